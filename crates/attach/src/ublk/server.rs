//! Serves a disk: takes the kernel's requests, passes them to the data client, and returns the
//! answers.
//!
//! One thread does everything. It waits for the kernel, for the client and for a signal at the same
//! time. The kernel has at most 128 requests of at most 512 KiB under way, so memory is bounded.
//!
//! Invariant: if the volume was unmapped since it was attached, all requests fail, also after it is
//! mapped again. Others may have written meanwhile, and the kernel's cache would not know.

use super::claim::Claiming;
use crate::client::{Client, Usable};
use crate::serve::errno;
use anyhow::{Context, Result, bail};
use base::VolumeId;
use fleet::{eprintln, println};
use rt::{Ublk, UblkOp, UblkRequest};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use seam::{BlockError, BlockKind, BlockRequest, Buf, RequestId};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// An order that the kernel executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// None.
    None,
    /// The disk starts, or goes on.
    Start,
    /// It gets another size.
    Resize,
    /// It ends.
    Stop,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// A signal has arrived.
    stop: bool,
    /// The disk was claimed, or is in use.
    claimed: bool,
}

/// A disk that is served.
pub(crate) struct Server {
    client: Client,
    volume: VolumeId,
    /// The generation at which the mapping began that the disk belongs to.
    since: u32,
    /// The disk's size in bytes, or a size that the kernel does not take.
    size: u64,
    ublk: Ublk,
    order: Order,
    /// The disk is being claimed, because this process is to end.
    claiming: Option<Claiming>,
    /// It was claimed, and ends.
    claim: Option<OwnedFd>,
    /// The requests under way, by their numbers.
    pending: Vec<Option<UblkRequest>>,
    requests: Vec<UblkRequest>,
    answers: Vec<(RequestId, Result<Buf, BlockError>)>,
    /// Failed requests so far.
    failed: u64,
}

impl Server {
    /// Serves a disk that is about to start.
    pub(crate) fn new(client: Client, volume: Usable, ublk: Ublk) -> Server {
        Server {
            client,
            volume: volume.id,
            since: volume.since,
            size: volume.size,
            ublk,
            order: Order::Start,
            claiming: None,
            claim: None,
            pending: Vec::new(),
            requests: Vec::new(),
            answers: Vec::new(),
            failed: 0,
        }
    }

    /// Serves until `stop` is readable and nobody uses the disk. Calls `started` as soon as the
    /// disk is there.
    pub(crate) fn run(
        &mut self,
        stop: &mut UnixStream,
        disk: &Path,
        started: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (mut started, mut stops) = (Some(started), false);
        loop {
            self.client.turn()?;
            self.finish()?;
            match self.ended()? {
                Some(Order::Start) => started.take().map_or(Ok(()), |tell| tell())?,
                Some(Order::Resize) => println!("The disk has {} bytes now.", self.size),
                Some(Order::Stop | Order::None) | None => {}
            }
            if !self.take_requests()? && self.order == Order::None {
                return Ok(()); // the disk has ended
            }
            self.grow()?;
            self.ublk.submit()?;
            if stops && self.order == Order::None && self.claiming.is_none() {
                stops = false;
                self.claiming = Some(Claiming::begin(disk)?);
            }
            let idle = self.client.arm()?;
            let idle = !self.finish()? && idle;
            self.ublk.submit()?;
            let woken = self.wait(stop, idle)?;
            if woken.stop {
                // One byte for each signal.
                let _ = stop.read(&mut [0; 64])?;
                stops = true;
            }
            if woken.claimed {
                self.stop(disk)?;
            }
        }
    }

    /// Removes the device after its disk has ended.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.claim = None;
        Ok(self.ublk.remove()?)
    }

    /// Returns the order that has ended.
    fn ended(&mut self) -> Result<Option<Order>> {
        let Some(result) = self.ublk.ended() else { return Ok(None) };
        let order = std::mem::replace(&mut self.order, Order::None);
        match (order, result) {
            (Order::Resize, Err(why)) => {
                eprintln!("the kernel does not take the size of {} bytes: {why}", self.size);
                Ok(None)
            }
            (_, result) => {
                result.context("the kernel does not start or end the disk")?;
                Ok(Some(order))
            }
        }
    }

    /// Ends the disk if it could be claimed. So nobody mounts it any more.
    fn stop(&mut self, disk: &Path) -> Result<()> {
        let Some(claiming) = self.claiming.take() else { return Ok(()) };
        self.claim = claiming.end()?;
        if self.claim.is_none() {
            eprintln!(
                "this process goes on: {} is mounted, or a part of it is, or another device is \
                 built on it",
                disk.display()
            );
            return Ok(());
        }
        self.order = Order::Stop;
        Ok(self.ublk.stop()?)
    }

    /// Gives the disk the size of a volume that has grown.
    fn grow(&mut self) -> Result<()> {
        let grown = self.client.volume(self.volume).filter(|volume| volume.size > self.size);
        let Some(Usable { size, .. }) = grown.filter(|_| self.order == Order::None) else {
            return Ok(());
        };
        self.size = size;
        if self.ublk.resize(size)? {
            self.order = Order::Resize;
        } else {
            eprintln!(
                "the volume has {size} bytes now. This kernel shows them after the volume is \
                 detached and attached again (Linux 6.16 or later: at once)"
            );
        }
        Ok(())
    }

    /// Waits for work if the loop is `idle`; otherwise checks for work without waiting.
    fn wait(&self, stop: &UnixStream, idle: bool) -> Result<Woken> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (client, order) = (self.client.fd(), self.ublk.order_fd());
        let mut all: Vec<PollFd<'_>> = [stop.as_fd(), client, order]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .into();
        let claim = self.claiming.as_ref().map(Claiming::fd);
        let requests = self.ublk.requests_fd();
        let more = claim.into_iter().chain(requests);
        all.extend(more.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match rustix::event::poll(&mut all, (!idle).then_some(&now)) {
            Ok(_) => Ok(Woken {
                stop: !all[0].revents().is_empty(),
                claimed: self.claiming.is_some() && !all[3].revents().is_empty(),
            }),
            Err(Errno::INTR) => Ok(Woken::default()),
            Err(why) => Err(why).context("can't wait"),
        }
    }

    /// Takes the requests that have arrived. Returns false when no more will come.
    fn take_requests(&mut self) -> Result<bool> {
        let mut requests = std::mem::take(&mut self.requests);
        let more = self.ublk.requests(&mut requests)?;
        let volume = self.client.volume(self.volume);
        let is_mapped = volume.is_some_and(|volume| volume.since == self.since);
        for request in requests.drain(..) {
            let UblkRequest { tag, op, at, len } = request;
            let (kind, mut body) = match op {
                // An answer means durable (rule R7).
                UblkOp::Flush => {
                    self.ublk.answer(tag, Ok(0));
                    continue;
                }
                UblkOp::Unknown => {
                    self.ublk.answer(tag, Err(Errno::OPNOTSUPP));
                    continue;
                }
                _ if !is_mapped => {
                    self.fail(tag, Errno::NXIO, "the volume is not mapped to this client any more");
                    continue;
                }
                UblkOp::Read => (BlockKind::Read, Buf::EMPTY),
                UblkOp::Write => (BlockKind::Write, self.client.alloc(len as usize)),
                UblkOp::Zero(hole) => (BlockKind::Zero { hole }, Buf::EMPTY),
            };
            if op == UblkOp::Write
                && let Err(why) = self.ublk.take(tag, body.as_mut())
            {
                self.fail(tag, Errno::IO, format_args!("the kernel keeps its data: {why}"));
                continue;
            }
            let place = usize::from(tag);
            if self.pending.len() <= place {
                self.pending.resize(place + 1, None);
            }
            self.pending[place] = Some(request);
            let ask = BlockRequest { volume: self.volume, kind, at, len, body };
            self.client.request(RequestId(tag.into()), ask);
        }
        self.requests = requests;
        Ok(more)
    }

    /// Passes on the answers that have arrived. Returns true if there were any.
    fn finish(&mut self) -> Result<bool> {
        let mut answers = std::mem::take(&mut self.answers);
        self.client.answers(&mut answers);
        let any = !answers.is_empty();
        for (id, result) in answers.drain(..) {
            if let Err(BlockError::Superseded) = result {
                bail!("another process has this client's name, and serves the volume now");
            }
            let pending = self.pending[id.0 as usize].take();
            let UblkRequest { tag, op, len, .. } = pending.context("an answer to a request")?;
            match (op, result) {
                (_, Err(why)) => self.fail(tag, errno(why), why),
                (UblkOp::Read, Ok(data)) if data.len() != len as usize => {
                    self.fail(tag, Errno::IO, "less data than was asked for");
                }
                (UblkOp::Read, Ok(data)) => match self.ublk.give(tag, &data) {
                    Ok(()) => self.ublk.answer(tag, Ok(len)),
                    Err(why) => {
                        self.fail(tag, Errno::IO, format_args!("the kernel takes no data: {why}"));
                    }
                },
                (_, Ok(_)) => self.ublk.answer(tag, Ok(len)),
            }
        }
        self.answers = answers;
        Ok(any)
    }

    /// Answers that a request has failed. Logs the 1st, 2nd, 4th, 8th and so on.
    fn fail(&mut self, tag: u16, error: Errno, why: impl std::fmt::Display) {
        self.failed += 1;
        if self.failed.is_power_of_two() {
            eprintln!("{} requests have failed; the last one: {why}", self.failed);
        }
        self.ublk.answer(tag, Err(error));
    }
}
