//! A simulated virtual machine: a vhost-user frontend, and the driver of a virtio disk. The
//! machine's memory is a file, which is accessed with system calls. Every process that maps the
//! file sees the changes at once.

use crate::run::binary;
use crate::{Cluster, secs, wait};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Kinds of requests.
pub const IN: u32 = 0;
/// See [`IN`].
pub const OUT: u32 = 1;
/// See [`IN`].
pub const FLUSH: u32 = 4;
/// See [`IN`].
pub const GET_ID: u32 = 8;
/// See [`IN`].
pub const DISCARD: u32 = 11;
/// See [`IN`].
pub const WRITE_ZEROES: u32 = 13;

/// Descriptors of a queue, four for each request.
const SIZE: u16 = 128;
/// Most requests under way in one queue.
pub const DEPTH: u16 = SIZE / 4;
/// Longest data of a request.
pub const DATA_MAX: u32 = 128 << 10;
/// The memory of one queue: its rings, and then 256 KiB for each request.
const QUEUE: u64 = 16 << 20;
/// The first address in the guest, and in this process.
const GUEST: u64 = 1 << 20;
const USER: u64 = 1 << 46;

/// The negotiated features: VERSION_1, indirect tables, event indices, and protocol features.
const WANTED: u64 = 1 << 32 | 1 << 28 | 1 << 29 | 1 << 30;
/// The feature by which the log of written pages is switched on.
const LOG_ALL: u64 = 1 << 26;
/// Bytes of a page in the log.
const PAGE: u64 = 4096;
/// The negotiated protocol features: LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD,
/// RESET_DEVICE and MQ.
const PROTOCOL: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13;

/// A process of `gabion vhost`. Dropping this value kills it.
#[derive(Debug)]
pub struct Backend {
    child: Child,
    /// Its socket.
    pub socket: PathBuf,
    log: PathBuf,
}

impl Backend {
    /// Starts the process, with further arguments. Returns when it listens.
    pub fn start(cluster: &Cluster, volume: &str, more: &[&str]) -> Result<Backend> {
        Backend::start_at(cluster, volume, volume, more)
    }

    /// Starts the process on what stands for another host: with another socket, and as another
    /// client.
    pub fn start_beside(cluster: &Cluster, volume: &str, host: &str) -> Result<Backend> {
        Backend::start_at(cluster, volume, &format!("{volume}.{host}"), &["--client", host])
    }

    fn start_at(cluster: &Cluster, volume: &str, name: &str, more: &[&str]) -> Result<Backend> {
        let socket = cluster.folder.join(&format!("{name}.vhost"));
        let log = cluster.folder.join(&format!("{name}.vhost.log"));
        let to = File::options().create(true).append(true).open(&log)?;
        let child = Command::new(binary())
            .args(["vhost", volume, "--dir", cluster.dir(), "--socket"])
            .arg(&socket)
            .args(more)
            .stdin(Stdio::null())
            .stdout(to.try_clone()?)
            .stderr(to)
            .spawn()?;
        let mut backend = Backend { child, socket, log };
        wait("it listens", secs(30), || {
            if let Some(status) = backend.child.try_wait()? {
                bail!("it has ended ({status}):\n{}", backend.said());
            }
            Ok(UnixStream::connect(&backend.socket).ok())
        })?;
        Ok(backend)
    }

    /// Returns its output.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if it still runs.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Kills it. Returns when it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends it SIGTERM, and waits for its end.
    pub fn end(&mut self) -> Result<()> {
        crate::cluster::signal(self.pid(), rustix::process::Signal::TERM)?;
        wait("it ends", secs(20), || Ok(self.child.try_wait()?.map(drop)))
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A connection to the backend, for messages of any kind.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl Channel {
    /// Connects.
    pub fn connect(to: &Path) -> Result<Channel> {
        let stream = UnixStream::connect(to)?;
        stream.set_read_timeout(Some(secs(60)))?;
        Ok(Channel(stream))
    }

    /// Sends bytes with file descriptors.
    pub fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        ensure!(files.is_empty() || beside.push(SendAncillaryMessage::ScmRights(files)));
        let parts = [IoSlice::new(bytes)];
        let sent = rustix::net::sendmsg(&self.0, &parts, &mut beside, SendFlags::NOSIGNAL)?;
        ensure!(sent == bytes.len());
        Ok(())
    }

    /// Sends a message.
    pub fn say(
        &self,
        request: u32,
        flags: u32,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let head = [request, 1 | flags, body.len() as u32].map(u32::to_le_bytes).concat();
        self.send(&[&head, body].concat(), files)
    }

    /// Receives an answer. Returns its body and its file descriptor.
    pub fn answer(&mut self, request: u32) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut head = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&self.0, &mut parts, &mut beside, flags)?;
        ensure!(got.bytes == 12, "the connection was closed");
        let file = beside.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
        ensure!(word(0) == request && word(4) == 5, "an answer to {} ({})", word(0), word(4));
        let mut body = vec![0; word(8) as usize];
        self.0.read_exact(&mut body)?;
        Ok((body, file))
    }

    /// Sends a message that has an answer, and returns the answer.
    pub fn ask(&mut self, request: u32, body: &[u8]) -> Result<Vec<u8>> {
        self.say(request, 0, body, &[])?;
        Ok(self.answer(request)?.0)
    }

    /// Sends a message and waits for its acknowledgement. Returns true if it reports success.
    pub fn order(&mut self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<bool> {
        self.say(request, 8, body, files)?;
        Ok(self.answer(request)?.0 == [0; 8])
    }

    /// Returns true if an answer comes within the time limit.
    pub fn answers(&self, limit: Duration) -> Result<bool> {
        let mut one = [PollFd::new(&self.0, PollFlags::IN)];
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        Ok(rustix::event::poll(&mut one, Some(&limit))? > 0)
    }

    /// Returns true if the other side closes the connection within the time limit.
    pub fn closes(&mut self, limit: Duration) -> bool {
        crate::nbd::closes(&mut self.0, limit)
    }
}

/// A queue of the disk, and its requests under way.
#[derive(Debug)]
struct Queue {
    kick: OwnedFd,
    call: OwnedFd,
    offered: u16,
    seen: u16,
    /// Where the next backend begins, if not at the used index.
    base: Option<u16>,
    /// For each request under way: the bytes that it reads.
    busy: Vec<Option<u32>>,
}

/// A request that was given back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// Its number.
    pub slot: u16,
    /// Its status.
    pub status: u8,
    /// The data that was read.
    pub data: Vec<u8>,
}

/// A virtual machine with one disk. It survives the backend.
#[derive(Debug)]
pub struct Machine {
    memory: File,
    queues: Vec<Queue>,
    notes: Option<(Vec<u8>, OwnedFd)>,
    /// The log of written pages.
    log: Option<File>,
    /// The connection, after [`Machine::connect`].
    pub channel: Option<Channel>,
    /// The socket for requests from the backend.
    pub changes: Option<UnixStream>,
    /// The features that the backend offers.
    pub offered: u64,
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pair(queue: usize, value: u32) -> Vec<u8> {
    words(&[u64::from(value) << 32 | queue as u64])
}

impl Machine {
    /// Creates a machine with this many queues.
    pub fn new(queues: usize) -> Result<Machine> {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, QUEUE * queues as u64)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let queue = |_| {
            let busy = vec![None; DEPTH.into()];
            Ok(Queue { kick: event()?, call: event()?, offered: 0, seen: 0, base: None, busy })
        };
        let queues = (0..queues).map(queue).collect::<Result<_>>()?;
        let memory = memory.into();
        let (notes, log, channel, changes) = (None, None, None, None);
        Ok(Machine { memory, queues, notes, log, channel, changes, offered: 0 })
    }

    /// Connects, and sets everything up. After a crash of a backend, the next one executes the
    /// requests that were under way.
    // Long: one message after the other.
    pub fn connect(&mut self, to: &Path) -> Result<()> {
        let mut channel = Channel::connect(to)?;
        let number = |body: Vec<u8>| -> Result<u64> {
            Ok(u64::from_le_bytes(body.as_slice().try_into().context("eight bytes")?))
        };
        self.offered = number(channel.ask(1, &[])?)?;
        ensure!(self.offered & WANTED == WANTED, "features {:#x}", self.offered);
        channel.say(3, 0, &[], &[])?;
        let protocol = number(channel.ask(15, &[])?)?;
        ensure!(protocol & PROTOCOL == PROTOCOL, "protocol features {protocol:#x}");
        channel.say(16, 0, &words(&[PROTOCOL]), &[])?;
        ensure!(number(channel.ask(17, &[])?)? >= self.queues.len() as u64, "too few queues");
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        ensure!(channel.order(21, &[], &[theirs.as_fd()])?);
        if self.notes.is_none() {
            let asked = u64::from(SIZE) << 16 | self.queues.len() as u64;
            channel.say(31, 0, &words(&[0, 0, asked]), &[])?;
            let (body, file) = channel.answer(31)?;
            self.notes = Some((body, file.context("a file for notes")?));
        }
        let (notes, file) = self.notes.as_ref().context("it was just made")?;
        ensure!(channel.order(32, notes, &[file.as_fd()])?);
        ensure!(channel.order(2, &words(&[WANTED]), &[])?);
        let table = words(&[1, GUEST, QUEUE * self.queues.len() as u64, USER, 0]);
        ensure!(channel.order(5, &table, &[self.memory.as_fd()])?);
        for (q, queue) in self.queues.iter_mut().enumerate() {
            let at = USER + rings(q);
            let base = queue.base.take().unwrap_or(queue.seen);
            ensure!(channel.order(8, &pair(q, SIZE.into()), &[])?);
            // As QEMU does after a crash: continue at the used index.
            ensure!(channel.order(10, &pair(q, base.into()), &[])?);
            ensure!(channel.order(
                9,
                &words(&[q as u64, at, at + USED, at + AVAILABLE, 0]),
                &[]
            )?);
            ensure!(channel.order(12, &words(&[q as u64]), &[queue.kick.as_fd()])?);
            ensure!(channel.order(13, &words(&[q as u64]), &[queue.call.as_fd()])?);
        }
        for q in 0..self.queues.len() {
            ensure!(channel.order(18, &pair(q, 1), &[])?);
        }
        (self.channel, self.changes) = (Some(channel), Some(ours));
        Ok(())
    }

    /// Returns the first bytes of the configuration.
    pub fn config(&mut self) -> Result<Vec<u8>> {
        let channel = self.channel.as_mut().context("it is connected")?;
        let mut body = [0u32, 60, 0].map(u32::to_le_bytes).concat();
        body.resize(72, 0);
        Ok(channel.ask(24, &body)?.split_off(12))
    }

    /// Stops a queue, and returns the index of its next request.
    pub fn stop(&mut self, queue: usize) -> Result<u32> {
        self.leave(queue)?;
        self.left()
    }

    /// Asks to stop a queue.
    pub fn leave(&mut self, queue: usize) -> Result<()> {
        self.channel.as_ref().context("it is connected")?.say(11, 0, &pair(queue, 0), &[])
    }

    /// Waits until a queue has stopped, and returns the index of its next request.
    pub fn left(&mut self) -> Result<u32> {
        let (body, _) = self.channel.as_mut().context("it is connected")?.answer(11)?;
        Ok(u32::from_le_bytes(body[4..].try_into()?))
    }

    /// Switches the log of written pages on, as a monitor does that begins to migrate the machine.
    pub fn begin_log(&mut self) -> Result<()> {
        let channel = self.channel.as_mut().context("it is connected")?;
        let last = (GUEST + QUEUE * self.queues.len() as u64 - 1) / PAGE;
        let log = File::from(memfd_create("log", MemfdFlags::CLOEXEC)?);
        log.set_len(last / 8 + 1)?;
        channel.say(6, 0, &words(&[last / 8 + 1, 0]), &[log.as_fd()])?;
        channel.answer(6)?;
        ensure!(channel.order(2, &words(&[WANTED | LOG_ALL]), &[])?);
        for q in 0..self.queues.len() {
            let (at, log) = (USER + rings(q), GUEST + rings(q) + USED);
            let flagged = 1 << 32 | q as u64;
            let body = words(&[flagged, at, at + USED, at + AVAILABLE, log]);
            ensure!(channel.order(9, &body, &[])?);
        }
        self.log = Some(log);
        Ok(())
    }

    /// Returns the pages in the log, as addresses in the machine's memory.
    pub fn logged(&self) -> Result<BTreeSet<u64>> {
        let log = self.log.as_ref().context("the log is on")?;
        let mut bytes = vec![0; log.metadata()?.len() as usize];
        log.read_exact_at(&mut bytes, 0)?;
        let is_set = |page: &u64| bytes[*page as usize / 8] >> (page % 8) & 1 == 1;
        let pages = (0..8 * bytes.len() as u64).filter(is_set);
        Ok(pages.map(|page| page * PAGE - GUEST).collect())
    }

    /// Copies the machine, as a monitor does before the machine stops.
    pub fn copy(&self) -> Result<Machine> {
        let mut copy = Machine::new(self.queues.len())?;
        let mut bytes = vec![0; (QUEUE * self.queues.len() as u64) as usize];
        self.memory.read_exact_at(&mut bytes, 0)?;
        copy.memory.write_all_at(&bytes, 0)?;
        for (to, from) in copy.queues.iter_mut().zip(&self.queues) {
            (to.offered, to.seen, to.busy) = (from.offered, from.seen, from.busy.clone());
        }
        Ok(copy)
    }

    /// Copies the pages in the log again, after the queues were stopped at these indices.
    pub fn copy_again(&self, copy: &mut Machine, bases: &[u32]) -> Result<()> {
        for page in self.logged()? {
            let mut bytes = [0; PAGE as usize];
            self.memory.read_exact_at(&mut bytes, page)?;
            copy.memory.write_all_at(&bytes, page)?;
        }
        for (queue, base) in copy.queues.iter_mut().zip(bases) {
            queue.base = Some(*base as u16);
        }
        Ok(())
    }

    /// Writes to the guest's memory, at an offset in a queue's part.
    pub fn poke(&self, queue: usize, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write_all_at(bytes, rings(queue) + at)?)
    }

    fn peek<const N: usize>(&self, queue: usize, at: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, rings(queue) + at)?;
        Ok(bytes)
    }

    fn number(&self, queue: usize, at: u64) -> Result<u16> {
        Ok(u16::from_le_bytes(self.peek(queue, at)?))
    }

    /// Returns the number of requests that were started in a queue, up to 65535.
    pub fn started(&self, queue: usize) -> u32 {
        self.queues[queue].offered.into()
    }

    /// Returns the number of requests that are under way.
    pub fn in_flight(&self, queue: usize) -> usize {
        self.queues[queue].busy.iter().flatten().count()
    }

    /// Starts a request and returns its number. Every second one uses an indirect table.
    pub fn start(
        &mut self,
        queue: usize,
        kind: u32,
        sector: u64,
        out: &[u8],
        into: u32,
    ) -> Result<u16> {
        let busy = &mut self.queues[queue].busy;
        let slot = busy.iter().position(Option::is_none).context("all requests are under way")?;
        busy[slot] = Some(into);
        let at = room(slot as u16);
        let head = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.poke(queue, at, &head)?;
        self.poke(queue, at + STATUS, &[0xff])?;
        self.poke(queue, at + DATA, out)?;
        let guest = GUEST + rings(queue) + at;
        let all = [
            (guest, 16, 0),
            (guest + DATA, out.len() as u32, 0),
            (guest + DATA, into, 2),
            (guest + STATUS, 1, 2),
        ];
        let parts: Vec<_> = all.into_iter().filter(|(_, len, _)| *len > 0).collect();
        let first = 4 * slot as u16;
        let table = |first: u16| -> Vec<u8> {
            let part = |(i, (at, len, flags)): (usize, &(u64, u32, u16))| {
                let next = if i + 1 < parts.len() { 1 } else { 0 };
                descriptor(*at, *len, flags | next, first + i as u16 + 1)
            };
            parts.iter().enumerate().flat_map(part).collect()
        };
        if slot.is_multiple_of(2) {
            self.poke(queue, 16 * u64::from(first), &table(first))?;
        } else {
            self.poke(queue, at + TABLE, &table(0))?;
            let whole = descriptor(guest + TABLE, 16 * parts.len() as u32, 4, 0);
            self.poke(queue, 16 * u64::from(first), &whole)?;
        }
        self.offer(queue, first)?;
        Ok(slot as u16)
    }

    /// Makes the chain with this head available, and kicks the device unless it suppresses that.
    pub fn offer(&mut self, queue: usize, head: u16) -> Result<()> {
        let old = self.queues[queue].offered;
        let new = old.wrapping_add(1);
        self.poke(queue, AVAILABLE + 4 + 2 * u64::from(old % SIZE), &head.to_le_bytes())?;
        self.poke(queue, AVAILABLE + 2, &new.to_le_bytes())?;
        self.queues[queue].offered = new;
        let wanted = self.number(queue, USED + 4 + 8 * u64::from(SIZE))?;
        if wanted == old {
            self.kick(queue)?;
        }
        Ok(())
    }

    /// Kicks the device.
    pub fn kick(&self, queue: usize) -> Result<()> {
        rustix::io::write(&self.queues[queue].kick, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Waits for the next request that is given back.
    pub fn next(&mut self, queue: usize, limit: Duration) -> Result<Done> {
        let seen = self.queues[queue].seen;
        loop {
            // Told with the next one.
            self.poke(queue, AVAILABLE + 4 + 2 * u64::from(SIZE), &seen.to_le_bytes())?;
            if self.number(queue, USED + 2)? != seen {
                break;
            }
            let call = &self.queues[queue].call;
            let mut one = [PollFd::new(call, PollFlags::IN)];
            let limit =
                Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
            ensure!(rustix::event::poll(&mut one, Some(&limit))? > 0, "nothing is given back");
            rustix::io::read(call, &mut [0; 8])?;
        }
        let entry: [u8; 8] = self.peek(queue, USED + 4 + 8 * u64::from(seen % SIZE))?;
        self.queues[queue].seen = seen.wrapping_add(1);
        let slot = u16::from_le_bytes([entry[0], entry[1]]) / 4;
        let written = u32::from_le_bytes(entry[4..].try_into()?);
        let into = self.queues[queue].busy[usize::from(slot)].take();
        let into = into.context("it was not under way")?;
        let [status] = self.peek(queue, room(slot) + STATUS)?;
        ensure!(written == 1 || written == into + 1, "{written} bytes of {into} were written");
        let mut data = vec![0; into as usize];
        self.memory.read_exact_at(&mut data, rings(queue) + room(slot) + DATA)?;
        Ok(Done { slot, status, data })
    }

    /// Executes one request, and waits for its end.
    pub fn run(&mut self, kind: u32, sector: u64, out: &[u8], into: u32) -> Result<Done> {
        ensure!(self.in_flight(0) == 0, "others are under way");
        self.start(0, kind, sector, out, into)?;
        self.next(0, secs(60))
    }

    /// Forgets the state of a queue, as a driver does when it resets the disk.
    pub fn forget(&mut self, queue: usize) -> Result<()> {
        self.poke(queue, 0, &vec![0; DATA_AT as usize])?;
        let queue = &mut self.queues[queue];
        (queue.offered, queue.seen) = (0, 0);
        queue.busy.fill(None);
        self.notes = None;
        Ok(())
    }
}

/// Offsets of the parts of a queue's memory.
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x8000;
const DATA_AT: u64 = 0x1_0000;
/// Offsets of the parts of a request's memory.
const STATUS: u64 = 0x80;
const TABLE: u64 = 0x100;
const DATA: u64 = 0x1000;

fn rings(queue: usize) -> u64 {
    QUEUE * queue as u64
}

fn room(slot: u16) -> u64 {
    DATA_AT + u64::from(slot) * (256 << 10)
}

/// Returns a descriptor.
pub fn descriptor(at: u64, len: u32, flags: u16, next: u16) -> Vec<u8> {
    let (len, flags, next) = (len.to_le_bytes(), flags.to_le_bytes(), next.to_le_bytes());
    [&at.to_le_bytes()[..], &len, &flags, &next].concat()
}
