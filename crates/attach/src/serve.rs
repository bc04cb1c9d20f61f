//! Serves a mount: passes the kernel's requests to the data client, and returns the answers.
//!
//! One thread does everything. It waits for the kernel, for the client and for a signal at the same
//! time.
//!
//! Invariants:
//! - Each request of the kernel is answered once. A slot is in use from the request to the answer.
//! - Memory is bounded: while [`REQUESTS`] or [`BYTES`] are under way, no new request is taken. The
//!   kernel queues the rest.

use crate::client::Client;
use crate::folder::Shown;
use crate::fuse::abi::{self, Body, Call, Request, Start, Wanted};
use crate::fuse::channel::{Channel, Received};
use crate::request::{self, BLOCK, Outcome, Pending, STEP, within};
use anyhow::{Context, Result, bail};
use fleet::eprintln;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use seam::{BlockError, Buf, RequestId};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest read and write, in bytes: half of the kernel's maximum, so that the kernel never splits
/// a request within a sector.
const TRANSFER: u32 = 512 << 10;
/// Most requests under way.
const REQUESTS: u32 = 512;
/// No request begins while this many bytes of reads and writes are under way.
const BYTES: u64 = 64 << 20;
/// Most requests that are taken before answers are handled.
const BATCH: usize = 64;
/// The mount's flags for the kernel.
pub(crate) const START: Start = Start { transfer: TRANSFER, background: 256 };

/// A request of the kernel under way.
#[derive(Clone, Copy, Debug)]
struct Slot {
    unique: u64,
    pending: Pending,
}

/// A mount that is served.
pub(crate) struct Server {
    client: Client,
    channel: Channel,
    shown: Shown,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Bytes of reads and writes under way.
    bytes: u64,
    answers: Vec<(RequestId, Result<Buf, BlockError>)>,
    /// Failed requests so far.
    failed: u64,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug)]
struct Woken {
    /// The kernel has a request, or the mount is gone.
    kernel: bool,
    /// A signal has arrived.
    stop: bool,
}

pub(crate) fn errno(error: BlockError) -> Errno {
    match error {
        BlockError::NoSuchVolume => Errno::NXIO,
        BlockError::ReadOnly => Errno::ROFS,
        BlockError::Reserved => Errno::BADE,
        BlockError::Misaligned | BlockError::TooBig => Errno::INVAL,
        BlockError::Full => Errno::NOSPC,
        BlockError::Superseded => Errno::STALE,
        BlockError::TimedOut => Errno::TIMEDOUT,
        BlockError::OutOfRange
        | BlockError::Lost
        | BlockError::Media
        | BlockError::Busy
        | BlockError::Forgotten
        | BlockError::Elsewhere
        | BlockError::Miscompare(_) => Errno::IO,
    }
}

impl Server {
    /// Mounts the volumes of a client over a folder.
    pub(crate) fn mount(client: Client, folder: &Path, shown: Shown) -> Result<Server> {
        let free = Slot { unique: 0, pending: Pending::Read { skip: 0, len: 0 } };
        let mut server = Server {
            client,
            channel: Channel::mount(folder, START)?,
            shown,
            slots: vec![free; REQUESTS as usize],
            free: (0..REQUESTS).rev().collect(),
            bytes: 0,
            answers: Vec::with_capacity(REQUESTS as usize),
            failed: 0,
        };
        server.await_init()?;
        Ok(server)
    }

    /// Answers the kernel's first request.
    fn await_init(&mut self) -> Result<()> {
        loop {
            let (unique, call) = match self.channel.receive()? {
                Received::Message(message) => {
                    let request = Request::parse(message).context("the kernel's first request")?;
                    let Call::Init { major, minor, flags } = request.call else {
                        bail!("the kernel's first request is {request:?}");
                    };
                    (request.unique, (major, minor, flags))
                }
                Received::Nothing => {
                    let mut one = [PollFd::new(&self.channel, PollFlags::IN)];
                    rustix::event::poll(&mut one, None)?;
                    continue;
                }
                Received::Unmounted => bail!("it was unmounted at once"),
            };
            let (major, minor, flags) = call;
            if !abi::understands(major, minor) {
                self.channel.refuse(unique, Errno::PROTO)?;
                bail!("the kernel speaks FUSE {major}.{minor}: Linux 5.4 or later is needed");
            }
            return self.channel.reply(unique, Body::of_init(START, flags).bytes());
        }
    }

    /// Serves until it is unmounted. When `stop` is readable, it is unmounted, unless it is in use.
    pub(crate) fn run(&mut self, stop: &mut UnixStream) -> Result<()> {
        let mut woken = Woken { kernel: true, stop: false };
        loop {
            self.client.turn()?;
            self.finish()?;
            if woken.kernel && !self.take_requests()? {
                return Ok(());
            }
            let idle = self.client.arm()?;
            let idle = !self.finish()? && idle;
            woken = self.wait(stop, idle)?;
            if woken.stop {
                // One byte for each signal.
                let _ = stop.read(&mut [0; 64])?;
                if self.channel.unmount()? {
                    return Ok(());
                }
                eprintln!(
                    "{} is in use, so this process goes on: stop what uses it, or `gabion detach` \
                     the volume, and signal it again",
                    self.channel.folder().display()
                );
            }
        }
    }

    /// Waits for work if the loop is `idle`; otherwise checks for work without waiting.
    fn wait(&self, stop: &UnixStream, idle: bool) -> Result<Woken> {
        let room = if self.has_room() { PollFlags::IN } else { PollFlags::empty() };
        let client = self.client.fd();
        let mut all = [
            PollFd::new(&self.channel, room),
            PollFd::new(&client, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut all, (!idle).then_some(&now)) {
            // When it is unmounted, the kernel reports an error here.
            Ok(_) => Ok(Woken {
                kernel: !all[0].revents().is_empty(),
                stop: !all[2].revents().is_empty(),
            }),
            Err(Errno::INTR) => Ok(Woken { kernel: false, stop: false }),
            Err(why) => Err(why).context("can't wait"),
        }
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.bytes < BYTES
    }

    /// Takes the available requests. Returns false when the mount is gone.
    fn take_requests(&mut self) -> Result<bool> {
        for _ in 0..BATCH {
            if !self.has_room() {
                break;
            }
            let Server { client, channel, shown, slots, free, bytes, .. } = self;
            // The message borrows the channel's buffer, and so does its data until it is copied.
            let message = match channel.receive()? {
                Received::Message(message) => message,
                Received::Nothing => break,
                Received::Unmounted => return Ok(false),
            };
            let Some(request) = Request::parse(message) else {
                bail!("a request of the kernel that is cut off");
            };
            let unique = request.unique;
            match request::start(client, *shown, &request) {
                Outcome::Silent => {}
                Outcome::Reply(body) => channel.reply(unique, body.bytes())?,
                Outcome::Empty => channel.reply(unique, &[])?,
                Outcome::Refuse(why) => channel.refuse(unique, why)?,
                Outcome::Ask(pending, ask) => {
                    let slot = free.pop().context("there is room")?;
                    slots[slot as usize] = Slot { unique, pending };
                    *bytes += request::weight(pending);
                    client.request(RequestId(slot.into()), ask);
                }
            }
        }
        Ok(true)
    }

    /// Passes on the answers that have arrived. Returns true if there were any.
    fn finish(&mut self) -> Result<bool> {
        let mut answers = std::mem::take(&mut self.answers);
        self.client.answers(&mut answers);
        let any = !answers.is_empty();
        for (id, result) in answers.drain(..) {
            self.answer(id.0 as u32, result)?;
        }
        self.answers = answers;
        Ok(any)
    }

    fn answer(&mut self, at: u32, result: Result<Buf, BlockError>) -> Result<()> {
        let Slot { unique, pending } = self.slots[at as usize];
        let data = match result {
            Ok(data) => data,
            Err(why) => {
                self.tell(pending, why);
                self.done(at);
                return self.channel.refuse(unique, errno(why));
            }
        };
        match pending {
            Pending::Read { skip, len } => {
                self.done(at);
                match data.get(skip as usize..(skip + len) as usize) {
                    Some(asked) => self.channel.reply(unique, asked),
                    None => self.channel.refuse(unique, Errno::IO),
                }
            }
            Pending::Write { len } => {
                self.done(at);
                self.channel.reply(unique, &abi::written(len))
            }
            Pending::Zero { volume, at: from, end, hole } => {
                let from = from + within(from, STEP, end);
                if from == end {
                    self.done(at);
                    return self.channel.reply(unique, &[]);
                }
                self.go_on(at, Pending::Zero { volume, at: from, end, hole });
                Ok(())
            }
            Pending::Seek { volume, at: from, end, wanted } => {
                let len = within(from / BLOCK * BLOCK, STEP, end);
                let base = from / BLOCK * BLOCK;
                let found = request::first(&data, base, len.div_ceil(BLOCK), wanted);
                let next = base + len;
                match found {
                    Some(found) => {
                        self.done(at);
                        self.channel.reply(unique, Body::of_seek(found.max(from)).bytes())
                    }
                    None if next < end => {
                        self.go_on(at, Pending::Seek { volume, at: next, end, wanted });
                        Ok(())
                    }
                    None => {
                        self.done(at);
                        match wanted {
                            // Every file ends with an implicit hole.
                            Wanted::Hole => self.channel.reply(unique, Body::of_seek(end).bytes()),
                            Wanted::Data => self.channel.refuse(unique, Errno::NXIO),
                        }
                    }
                }
            }
        }
    }

    /// Requests the next part of a long range.
    fn go_on(&mut self, at: u32, pending: Pending) {
        self.slots[at as usize].pending = pending;
        self.client.request(RequestId(at.into()), request::ask(pending));
    }

    fn done(&mut self, at: u32) {
        self.bytes -= request::weight(self.slots[at as usize].pending);
        self.free.push(at);
    }

    /// Logs a failed request: the 1st, 2nd, 4th, 8th and so on.
    fn tell(&mut self, what: Pending, why: BlockError) {
        self.failed += 1;
        if self.failed.is_power_of_two() {
            eprintln!("{} requests have failed; the last one ({what:?}): {why}", self.failed);
        }
    }
}
