//! Serves a volume to virtual machines: takes requests from their queues, passes them to the data
//! client, and returns the answers.
//!
//! One thread does everything. It waits for kicks, for messages, for the client and for a signal at
//! the same time. The data path takes no lock and crosses no thread.
//!
//! Invariants:
//! - A virtual machine that breaks the rules loses its connection or the queue. Other virtual
//!   machines are not affected.
//! - The requests of a virtual machine or a queue that is gone are withdrawn before any new request
//!   is made. So each of them takes effect before that, or never (R16).
//! - The data of a write is copied out of the guest's memory once, before it is used.

use super::connection::{After, Connection};
use super::slots::{Owner, Pending, Slots};
use crate::client::{Client, Usable};
use anyhow::{Context, Result, bail};
use base::VolumeId;
use fleet::eprintln;
use rt::Listening;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use seam::{BlockError, BlockKind, BlockRequest, Buf, RequestId};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use target::ident;
use target::virtio::config::QUEUES;
use target::virtio::request::ID;
use target::virtio::{Ask, Broken, Disk, Memory, Request, Status};

/// Most virtual machines at a time.
const CONNECTIONS: usize = 4;
/// Most requests that are taken from one queue before the next queue's turn.
const BATCH: usize = 64;
/// Number of busy rounds of the loop between two checks of the descriptors.
const ROUNDS: u32 = 16;
/// The stop, the listener, the client, and for each connection its socket and its kicks.
const DESCRIPTORS: usize = 3 + CONNECTIONS * (1 + QUEUES as usize);

/// A volume that is served.
pub(crate) struct Server {
    client: Client,
    volume: VolumeId,
    /// The disk's name.
    id: [u8; ID],
    listening: Listening,
    connections: Vec<Connection>,
    /// The number of the newest connection. The first one has 1.
    serial: u64,
    slots: Slots,
    answers: Vec<(RequestId, Result<Buf, BlockError>)>,
    /// Failed requests so far.
    failed: u64,
    /// No requests are taken any more.
    stopping: bool,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    /// A virtual machine wants to connect.
    connects: bool,
    /// The numbers of connections that have messages, or are gone. The rest is 0.
    says: [u64; CONNECTIONS],
    /// A signal has arrived.
    stop: bool,
}

impl Server {
    /// Serves a volume at a socket.
    pub(crate) fn new(mut client: Client, volume: VolumeId, listening: Listening) -> Server {
        let mut id = [0; ID];
        let serial = ident::serial(client.cluster(), volume);
        id[..serial.len()].copy_from_slice(serial.as_bytes());
        Server {
            client,
            volume,
            id,
            listening,
            connections: Vec::new(),
            serial: 0,
            slots: Slots::new(),
            answers: Vec::new(),
            failed: 0,
            stopping: false,
        }
    }

    /// Serves until `stop` is readable and the requests under way have ended. Ends at once if
    /// `stop` is readable a second time.
    pub(crate) fn run(&mut self, stop: &mut UnixStream) -> Result<()> {
        let (mut woken, mut rounds) = (Woken::default(), 0);
        loop {
            self.client.turn()?;
            self.finish()?;
            if woken.stop {
                // One byte for each signal.
                let _ = stop.read(&mut [0; 64])?;
                if std::mem::replace(&mut self.stopping, true) {
                    return Ok(());
                }
            }
            if self.stopping && self.slots.is_empty() {
                return Ok(());
            }
            let volume = self.client.volume(self.volume);
            if woken.connects {
                self.connect(volume)?;
            }
            self.receive(&woken, volume);
            self.take_requests(volume);
            self.signal();
            let idle = self.client.arm()? && !self.finish()? && !self.listen();
            rounds = if idle { 0 } else { (rounds + 1) % ROUNDS };
            woken = if rounds == 0 { self.wait(stop, idle)? } else { Woken::default() };
        }
    }

    /// Waits for work if the loop is `idle`; otherwise checks for work without waiting.
    fn wait(&mut self, stop: &UnixStream, idle: bool) -> Result<Woken> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let client = self.client.fd();
        let mut all: [PollFd<'_>; DESCRIPTORS] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN));
        let mut whose = [(0, 0); DESCRIPTORS];
        all[1] = PollFd::from_borrowed_fd(client, PollFlags::IN);
        let (mut used, room) = (2, self.takes());
        for (at, connection) in self.connections.iter().enumerate() {
            let said = if connection.takes_messages() { PollFlags::IN } else { PollFlags::empty() };
            all[used] = PollFd::from_borrowed_fd(connection.socket(), said);
            (whose[used], used) = ((at, usize::MAX), used + 1);
            for (queue, ring) in connection.rings.iter().enumerate().filter(|_| room) {
                if let Some(kick) = ring.kick() {
                    all[used] = PollFd::from_borrowed_fd(kick, PollFlags::IN);
                    (whose[used], used) = ((at, queue), used + 1);
                }
            }
        }
        if self.connections.len() < CONNECTIONS {
            all[used] = PollFd::from_borrowed_fd(self.listening.as_fd(), PollFlags::IN);
            (whose[used], used) = ((CONNECTIONS, 0), used + 1);
        }
        match rustix::event::poll(&mut all[..used], (!idle).then_some(&now)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Woken::default()),
            Err(why) => return Err(why).context("can't wait"),
        }
        let found = all.map(|one| one.revents());
        let mut woken = Woken { stop: !found[0].is_empty(), ..Woken::default() };
        for at in (2..used).filter(|at| !found[*at].is_empty()) {
            match whose[at] {
                (CONNECTIONS, _) => woken.connects = true,
                (one, usize::MAX) => woken.says[one] = self.connections[one].serial,
                (one, queue) => self.kicked(one, queue),
            }
        }
        Ok(woken)
    }

    /// Consumes the kick of a queue.
    fn kicked(&mut self, at: usize, queue: usize) {
        if let Err(why) = self.connections[at].rings[queue].kicked() {
            self.breaks(at, queue, format_args!("{why:#}"));
        }
    }

    /// Returns true if requests may be taken.
    fn takes(&self) -> bool {
        !self.stopping && self.slots.has_room()
    }

    /// Accepts a virtual machine that wants to connect.
    fn connect(&mut self, volume: Option<Usable>) -> Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = match rustix::net::accept_with(&self.listening, flags) {
            Ok(stream) => stream,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
            Err(why) => return Err(why).context("can't take a connection"),
        };
        match volume {
            Some(volume) => {
                self.serial += 1;
                let connection = Connection::new(self.serial, volume.since, stream);
                self.connections.push(connection);
                eprintln!("a virtual machine has connected");
            }
            None => eprintln!(
                "a virtual machine is turned away: the volume was deleted, or is not mapped to \
                 this client any more (`gabion volume list`, `gabion volume map`)"
            ),
        }
        Ok(())
    }

    /// Receives the messages of connections.
    fn receive(&mut self, woken: &Woken, volume: Option<Usable>) {
        let disk = disk(volume);
        // Backwards, because ended connections are removed.
        for at in (0..self.connections.len()).rev() {
            let connection = &mut self.connections[at];
            if let Some(volume) = volume {
                connection.tell(volume.size);
            }
            let serial = connection.serial;
            if !woken.says.contains(&serial) {
                continue;
            }
            // While a queue is stopping, the socket wakes only when the connection ends.
            let after = match connection.takes_messages() {
                true => connection.receive(disk),
                false => Ok(After::Closed),
            };
            match after {
                Ok(After::Nothing) => {
                    // Its queues may be served since a moment ago.
                    volume.iter().for_each(|volume| connection.tell(volume.size));
                    continue;
                }
                Ok(After::Closed) => eprintln!("a virtual machine has disconnected"),
                Ok(After::Reset) => {}
                Err(ref why) => eprintln!("the connection of a virtual machine is closed: {why:#}"),
            }
            self.withdraw(|owner| owner.connection == serial);
            if !matches!(after, Ok(After::Reset)) {
                self.connections.remove(at);
            }
        }
    }

    /// Takes requests from all queues.
    fn take_requests(&mut self, volume: Option<Usable>) {
        for at in 0..self.connections.len() {
            for queue in 0..usize::from(QUEUES) {
                for _ in 0..BATCH {
                    match self.take_request(at, queue, volume) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(why) => {
                            self.breaks(at, queue, why);
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Takes the next request of a queue. Returns false if there is none, or no room.
    fn take_request(
        &mut self,
        at: usize,
        queue: usize,
        volume: Option<Usable>,
    ) -> Result<bool, Broken> {
        if self.stopping {
            return Ok(false);
        }
        let connection = &mut self.connections[at];
        let Some(chain) = self.slots.chain() else { return Ok(false) };
        let Some(head) = connection.next(queue, chain)? else { return Ok(false) };
        let Request { ask, status } = Request::parse(&connection.guest, chain, disk(volume))?;
        let usable = volume.filter(|volume| volume.since == connection.since);
        let (kind, from, len) = match ask {
            Ask::Answered(outcome) => return self.answer(at, queue, head, status, outcome, 0),
            _ if usable.is_none() => {
                return self.answer(at, queue, head, status, Status::IoError, 0);
            }
            Ask::Id => {
                let len = chain.writable().min(ID as u64) as usize;
                let done = chain.write(&connection.guest, &self.id[..len]);
                let outcome = if done { Status::Ok } else { Status::IoError };
                return self.answer(at, queue, head, status, outcome, len as u32);
            }
            Ask::Read { at, len } => (BlockKind::Read, at, len),
            Ask::Write { at, len } => (BlockKind::Write, at, len),
            Ask::Zero { at, len, hole } => (BlockKind::Zero { hole }, at, len),
        };
        let mut body = Buf::EMPTY;
        if kind == BlockKind::Write {
            body = self.client.alloc(len as usize);
            if !chain.read(&connection.guest, body.as_mut()) {
                return Err(Broken::Outside);
            }
        }
        let reads = if kind == BlockKind::Read { len } else { 0 };
        let bytes = reads + body.len() as u32;
        let owner = Owner { connection: connection.serial, queue };
        let id = self.slots.take(owner, Pending { head, status, reads, bytes });
        let ask = BlockRequest { volume: self.volume, kind, at: from, len, body };
        self.client.request(id, ask);
        Ok(true)
    }

    /// Gives a request back. `written`: bytes of data, without the status.
    fn answer(
        &mut self,
        at: usize,
        queue: usize,
        head: u16,
        status: u64,
        outcome: Status,
        written: u32,
    ) -> Result<bool, Broken> {
        let connection = &mut self.connections[at];
        if !connection.guest.write(status, &[outcome as u8]) {
            return Err(Broken::Outside);
        }
        connection.push(queue, head, written + 1)?;
        Ok(true)
    }

    /// Passes on the answers that have arrived. Returns true if there were any.
    fn finish(&mut self) -> Result<bool> {
        let mut answers = std::mem::take(&mut self.answers);
        self.client.answers(&mut answers);
        let any = !answers.is_empty();
        for (id, result) in answers.drain(..) {
            if let Err(BlockError::Superseded) = result {
                bail!(
                    "another process has this client's name, and serves the volume now. Virtual \
                     machines go on there, if it listens at the same socket"
                );
            }
            self.pass_on(id, result);
        }
        self.answers = answers;
        if any {
            self.signal();
        }
        Ok(any)
    }

    /// Passes on one answer.
    fn pass_on(&mut self, id: RequestId, result: Result<Buf, BlockError>) {
        let Some((owner, pending, chain)) = self.slots.end(id) else { return };
        if let Err(why) = &result {
            self.failed += 1;
            if self.failed.is_power_of_two() {
                eprintln!("{} requests have failed; the last one: {why}", self.failed);
            }
        }
        let found = self.connections.iter().position(|one| one.serial == owner.connection);
        let at = found.expect("what is gone has no requests");
        let connection = &mut self.connections[at];
        let done = match result {
            Ok(data) if pending.reads > 0 => {
                data.len() == pending.reads as usize && chain.write(&connection.guest, &data)
            }
            Ok(_) => true,
            Err(_) => false,
        };
        let (outcome, written) =
            if done { (Status::Ok, pending.reads) } else { (Status::IoError, 0) };
        let Pending { head, status, .. } = pending;
        if let Err(why) = self.answer(at, owner.queue, head, status, outcome, written) {
            self.breaks(at, owner.queue, why);
        }
    }

    /// Signals the drivers that requests were given back, and tells the monitors which queues have
    /// stopped.
    fn signal(&mut self) {
        for at in (0..self.connections.len()).rev() {
            for queue in 0..usize::from(QUEUES) {
                let Connection { guest, rings, .. } = &mut self.connections[at];
                if let Err(why) = rings[queue].signal(guest) {
                    self.breaks(at, queue, why);
                }
            }
            let connection = &mut self.connections[at];
            connection.guest.signal();
            if let Err(why) = connection.leave() {
                eprintln!("the connection of a virtual machine is closed: {why:#}");
                let serial = connection.serial;
                self.withdraw(|owner| owner.connection == serial);
                self.connections.remove(at);
            }
        }
    }

    /// Asks the drivers for kicks. Returns true if a request can be taken already.
    fn listen(&mut self) -> bool {
        if !self.takes() {
            return false;
        }
        let mut any = false;
        for at in 0..self.connections.len() {
            for queue in 0..usize::from(QUEUES) {
                let Connection { guest, rings, .. } = &mut self.connections[at];
                match rings[queue].listen(guest) {
                    Ok(there) => any |= there,
                    Err(why) => self.breaks(at, queue, why),
                }
            }
        }
        any
    }

    /// Handles a queue that has broken the rules.
    fn breaks(&mut self, at: usize, queue: usize, why: impl std::fmt::Display) {
        let connection = &mut self.connections[at];
        connection.breaks(queue, why);
        let serial = connection.serial;
        self.withdraw(|owner| owner.connection == serial && owner.queue == queue);
    }

    /// Ends the requests of owners that are gone.
    fn withdraw(&mut self, is_gone: impl Fn(Owner) -> bool) {
        let gone = self.slots.orphan(is_gone);
        if !gone.is_empty() {
            self.client.withdraw(&gone);
        }
    }
}

/// The disk that a virtual machine sees. One without a volume is empty.
fn disk(volume: Option<Usable>) -> Disk {
    let (size, read_only) = volume.map_or((0, true), |volume| (volume.size, volume.read_only));
    Disk { size, read_only }
}
