//! Serves a mount: passes the kernel's requests to the data client, and its answers back.
//!
//! One thread does everything. It waits for the kernel, for the client and for a signal at the same
//! time.
//!
//! Invariants:
//! - Each request of the kernel is answered once. A slot is in use from the request to the answer.
//! - Memory is bounded: while [`REQUESTS`] or [`BYTES`] are under way, no request is taken. The
//!   kernel keeps the rest.

use crate::client::{Client, Usable};
use crate::folder::Shown;
use crate::fuse::abi::{self, Allocate, Body, Call, Request, Start, Wanted};
use crate::fuse::channel::{Channel, Received};
use anyhow::{Context, Result, bail};
use base::{SECTOR, VolumeId};
use fleet::eprintln;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use seam::{BlockError, BlockKind, BlockRequest, Buf, RequestId};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest read and write, in bytes: half of what the kernel allows, so that it never cuts a
/// request within a sector.
const TRANSFER: u32 = 512 << 10;
/// Requests under way, at most.
const REQUESTS: u32 = 512;
/// Bytes of reads and writes under way, at most, but for the last request.
const BYTES: u64 = 64 << 20;
/// Requests that are taken before answers are looked for.
const BATCH: usize = 64;
/// Bytes of a range that are zeroed, or searched for data, with one request.
const STEP: u64 = 1 << 30;
/// Bytes of a block, of which the client says whether it has data.
const BLOCK: u64 = base::BLOCK as u64;

/// How the kernel is to use a mount.
pub(crate) const START: Start = Start { transfer: TRANSFER, background: 256 };

/// What is done with an answer.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Read {
        len: u32,
    },
    Write {
        len: u32,
    },
    /// The range from `at` to `end` is left to zero.
    Zero {
        volume: VolumeId,
        at: u64,
        end: u64,
        hole: bool,
    },
    /// From `at` on, blocks are searched up to `end`, which is the volume's.
    Seek {
        volume: VolumeId,
        at: u64,
        end: u64,
        wanted: Wanted,
    },
}

/// A request of the kernel that is under way.
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

fn errno(error: BlockError) -> Errno {
    match error {
        BlockError::NoSuchVolume => Errno::NXIO,
        BlockError::ReadOnly => Errno::ROFS,
        BlockError::Misaligned | BlockError::TooBig => Errno::INVAL,
        BlockError::Full => Errno::NOSPC,
        BlockError::Superseded => Errno::STALE,
        BlockError::TimedOut => Errno::TIMEDOUT,
        BlockError::OutOfRange
        | BlockError::Lost
        | BlockError::Media
        | BlockError::Busy
        | BlockError::Forgotten => Errno::IO,
    }
}

/// Returns the length of a range, shortened at the end of a volume of `size` bytes.
fn within(at: u64, len: u64, size: u64) -> u64 {
    len.min(size.saturating_sub(at))
}

/// Returns true if offset and length are whole sectors.
fn is_aligned(at: u64, len: u64) -> bool {
    at.is_multiple_of(SECTOR.into()) && len.is_multiple_of(SECTOR.into())
}

/// Returns the first block, of those that begin at `at`, whose bit is as wanted: its first byte.
fn first(bits: &[u8], at: u64, blocks: u64, wanted: Wanted) -> Option<u64> {
    let has_data = |block: u64| bits[block as usize / 8] >> (block % 8) & 1 == 1;
    let found = (0..blocks).find(|block| has_data(*block) == (wanted == Wanted::Data))?;
    Some(at + found * BLOCK)
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
        loop {
            self.client.turn()?;
            self.finish()?;
            if !self.take_requests()? {
                return Ok(());
            }
            let idle = self.client.arm()?;
            let idle = !self.finish()? && idle;
            if self.wait(stop, idle)? {
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

    /// Waits for something to do. Returns true if `stop` is readable.
    fn wait(&self, stop: &UnixStream, idle: bool) -> Result<bool> {
        let room = if self.has_room() { PollFlags::IN } else { PollFlags::empty() };
        let client = self.client.fd();
        let mut all = [
            PollFd::new(&self.channel, room),
            PollFd::new(&client, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut all, (!idle).then_some(&now)) {
            Ok(_) => Ok(all[2].revents().contains(PollFlags::IN)),
            Err(Errno::INTR) => Ok(false),
            Err(why) => Err(why).context("can't wait"),
        }
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.bytes < BYTES
    }

    /// Takes the requests that are there. Returns false when the mount is gone.
    fn take_requests(&mut self) -> Result<bool> {
        for _ in 0..BATCH {
            if !self.has_room() {
                break;
            }
            let Server { client, channel, shown, slots, free, bytes, .. } = self;
            // The message lies in the channel, and so does its data until it is copied.
            let message = match channel.receive()? {
                Received::Message(message) => message,
                Received::Nothing => break,
                Received::Unmounted => return Ok(false),
            };
            let Some(request) = Request::parse(message) else {
                bail!("a request of the kernel that is cut off");
            };
            let unique = request.unique;
            match start(client, *shown, &request) {
                Outcome::Silent => {}
                Outcome::Reply(body) => channel.reply(unique, body.bytes())?,
                Outcome::Empty => channel.reply(unique, &[])?,
                Outcome::Refuse(why) => channel.refuse(unique, why)?,
                Outcome::Ask(pending, ask) => {
                    let slot = free.pop().context("there is room")?;
                    slots[slot as usize] = Slot { unique, pending };
                    *bytes += weight(pending);
                    client.request(RequestId(slot.into()), ask);
                }
            }
        }
        Ok(true)
    }

    /// Passes on the answers that have come. Returns true if there were any.
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
                let found = first(&data, base, len.div_ceil(BLOCK), wanted);
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
                            // Behind the last byte, every file has a hole.
                            Wanted::Hole => self.channel.reply(unique, Body::of_seek(end).bytes()),
                            Wanted::Data => self.channel.refuse(unique, Errno::NXIO),
                        }
                    }
                }
            }
        }
    }

    /// Asks for the next part of a long range.
    fn go_on(&mut self, at: u32, pending: Pending) {
        self.slots[at as usize].pending = pending;
        self.client.request(RequestId(at.into()), ask(pending));
    }

    fn done(&mut self, at: u32) {
        self.bytes -= weight(self.slots[at as usize].pending);
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

/// The bytes of memory that a request holds until its answer.
fn weight(pending: Pending) -> u64 {
    match pending {
        Pending::Read { len, .. } | Pending::Write { len } => len.into(),
        Pending::Zero { .. } | Pending::Seek { .. } => 0,
    }
}

/// What becomes of a request.
enum Outcome {
    /// It gets no answer.
    Silent,
    Reply(Body),
    Empty,
    Refuse(Errno),
    Ask(Pending, BlockRequest),
}

/// Returns the client's request for the first part of a long range.
fn ask(pending: Pending) -> BlockRequest {
    let (volume, kind, at, len) = match pending {
        Pending::Zero { volume, at, end, hole } => {
            (volume, BlockKind::Zero { hole }, at, within(at, STEP, end))
        }
        Pending::Seek { volume, at, end, .. } => {
            let at = at / BLOCK * BLOCK;
            (volume, BlockKind::Extents, at, within(at, STEP, end))
        }
        Pending::Read { .. } | Pending::Write { .. } => unreachable!("they have one part"),
    };
    BlockRequest { volume, kind, at, len: len as u32, body: Buf::EMPTY }
}

/// Decides what a request needs.
fn start(client: &mut Client, shown: Shown, request: &Request<'_>) -> Outcome {
    let node = request.node;
    let outcome = match request.call {
        Call::Silent => return Outcome::Silent,
        Call::Read { handle, at, len } => {
            shown.opened(client, node, handle).and_then(|volume| read(volume, at, len))
        }
        Call::Write { handle, at, data } => {
            shown.opened(client, node, handle).and_then(|volume| write(client, volume, at, data))
        }
        Call::Allocate { handle, at, len, how } => {
            shown.opened(client, node, handle).and_then(|volume| zero(volume, at, len, how))
        }
        Call::Seek { handle, at, wanted } => {
            shown.opened(client, node, handle).and_then(|volume| seek(volume, at, wanted))
        }
        call => shown.answer(client, node, call).map(Outcome::Reply),
    };
    outcome.unwrap_or_else(Outcome::Refuse)
}

/// Reads any range: whole sectors are asked for.
fn read(volume: Usable, at: u64, len: u32) -> Result<Outcome, Errno> {
    let len = within(at, len.into(), volume.size) as u32;
    if len == 0 {
        return Ok(Outcome::Empty);
    }
    let skip = (at % u64::from(SECTOR)) as u32;
    let ask = BlockRequest {
        volume: volume.id,
        kind: BlockKind::Read,
        at: at - u64::from(skip),
        len: (skip + len).next_multiple_of(SECTOR),
        body: Buf::EMPTY,
    };
    Ok(Outcome::Ask(Pending::Read { skip, len }, ask))
}

fn write(client: &Client, volume: Usable, at: u64, data: &[u8]) -> Result<Outcome, Errno> {
    let len = within(at, data.len() as u64, volume.size) as u32;
    if len == 0 && !data.is_empty() {
        return Err(Errno::NOSPC);
    }
    if !is_aligned(at, len.into()) {
        return Err(Errno::INVAL);
    }
    let body = client.copy(&data[..len as usize]);
    let ask = BlockRequest { volume: volume.id, kind: BlockKind::Write, at, len, body };
    Ok(Outcome::Ask(Pending::Write { len }, ask))
}

fn zero(volume: Usable, at: u64, len: u64, how: Allocate) -> Result<Outcome, Errno> {
    let Allocate::Zero { hole } = how else { return Err(Errno::OPNOTSUPP) };
    if volume.read_only {
        return Err(Errno::ROFS);
    }
    let end = at + within(at, len, volume.size);
    if end == at {
        return Ok(Outcome::Empty);
    }
    if !is_aligned(at, end) {
        return Err(Errno::INVAL);
    }
    let pending = Pending::Zero { volume: volume.id, at, end, hole };
    Ok(Outcome::Ask(pending, ask(pending)))
}

fn seek(volume: Usable, at: u64, wanted: Wanted) -> Result<Outcome, Errno> {
    if at >= volume.size {
        return Err(Errno::NXIO);
    }
    let pending = Pending::Seek { volume: volume.id, at, end: volume.size, wanted };
    Ok(Outcome::Ask(pending, ask(pending)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: Usable =
        Usable { id: VolumeId(1), size: 4 << 20, generation: 1, read_only: false };

    fn asked(outcome: Result<Outcome, Errno>) -> Option<(u64, u32)> {
        match outcome {
            Ok(Outcome::Ask(_, ask)) => Some((ask.at, ask.len)),
            _ => None,
        }
    }

    #[test]
    fn requests_end_at_the_end_of_the_volume() {
        assert_eq!(asked(read(VOLUME, 4096, 8192)), Some((4096, 8192)));
        assert_eq!(asked(read(VOLUME, (4 << 20) - 512, 8192)), Some(((4 << 20) - 512, 512)));
        assert!(matches!(read(VOLUME, 4 << 20, 512), Ok(Outcome::Empty)));
        assert!(matches!(read(VOLUME, u64::MAX, 512), Ok(Outcome::Empty)));
        let hole = Allocate::Zero { hole: true };
        assert_eq!(asked(zero(VOLUME, 0, u64::MAX, hole)), Some((0, 4 << 20)));
        assert!(matches!(zero(VOLUME, 5 << 20, 512, hole), Ok(Outcome::Empty)));
        assert!(matches!(seek(VOLUME, 4 << 20, Wanted::Data), Err(Errno::NXIO)));
    }

    #[test]
    fn parts_of_sectors_can_be_read() {
        assert_eq!(asked(read(VOLUME, 1, 100)), Some((0, 512)));
        assert_eq!(asked(read(VOLUME, 1000, 100)), Some((512, 1024)));
        assert_eq!(asked(read(VOLUME, (4 << 20) - 1, 100)), Some(((4 << 20) - 512, 512)));
        let Ok(Outcome::Ask(Pending::Read { skip, len }, _)) = read(VOLUME, 1000, 100) else {
            panic!("it is a read");
        };
        assert_eq!((skip, len), (488, 100));
    }

    #[test]
    fn ranges_of_parts_of_sectors_and_other_kinds_of_allocation_are_refused() {
        let hole = Allocate::Zero { hole: true };
        assert!(matches!(zero(VOLUME, 0, 100, hole), Err(Errno::INVAL)));
        assert!(matches!(zero(VOLUME, 100, 1024, hole), Err(Errno::INVAL)));
        assert!(matches!(zero(VOLUME, 0, 4096, Allocate::Other), Err(Errno::OPNOTSUPP)));
        let read_only = Usable { read_only: true, ..VOLUME };
        assert!(matches!(zero(read_only, 0, 4096, hole), Err(Errno::ROFS)));
    }

    #[test]
    fn long_ranges_are_done_in_steps_of_whole_blocks() {
        let large = Usable { size: 5 << 30, ..VOLUME };
        let hole = Allocate::Zero { hole: true };
        assert_eq!(asked(zero(large, 512, 4 << 30, hole)), Some((512, 1 << 30)));
        assert_eq!(asked(seek(large, 5000, Wanted::Data)), Some((4096, 1 << 30)));
    }

    #[test]
    fn the_first_block_that_is_wanted_is_found() {
        let bits = [0b0000_0011, 0b0000_0100];
        let found = |blocks, wanted| first(&bits, 8192, blocks, wanted);
        assert_eq!(found(11, Wanted::Data), Some(8192));
        assert_eq!(found(11, Wanted::Hole), Some(8192 + 2 * 4096));
        assert_eq!(first(&bits[1..], 0, 3, Wanted::Data), Some(2 * 4096));
        assert_eq!(first(&bits[1..], 0, 2, Wanted::Data), None);
    }
}
