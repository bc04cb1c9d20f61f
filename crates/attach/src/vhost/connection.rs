//! One virtual machine: the negotiated features, its memory and its queues.
//!
//! Invariants:
//! - Messages take effect in their order. While a stopping queue has requests under way, no further
//!   message is received.
//! - A refused message changes nothing.

use super::guest::Guest;
use super::log::Log;
use super::ring::{self, Notes, Ring};
use super::socket::{self, Received, Socket};
use anyhow::{Context, Result, bail, ensure};
use fleet::eprintln;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use target::vhost::message::{self, File};
use target::vhost::{Head, LOG_ALL, Message, PROTOCOL_FEATURES, protocol, reply};
use target::virtio::config::{self, QUEUES};
use target::virtio::{Chain, Disk, Inflight, QUEUE_MAX};

/// Features that are not those of the disk.
const OWN: u64 = PROTOCOL_FEATURES | LOG_ALL;
/// Most messages of a connection per round of the loop.
const MESSAGES: usize = 16;

/// The state of a connection after its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// It continues.
    Nothing,
    /// Its queues are gone.
    Reset,
    /// It has ended.
    Closed,
}

/// An answer, and the file descriptor that accompanies it.
type Answer = (Vec<u8>, Option<OwnedFd>);

/// A virtual machine that is connected.
#[derive(Debug)]
pub(crate) struct Connection {
    /// No other connection of this process has this number.
    pub(crate) serial: u64,
    /// The generation at which the client's mapping began, when the virtual machine connected. If
    /// the mapping has a later generation now, others may have written in between.
    pub(crate) since: u32,
    pub(crate) guest: Guest,
    pub(crate) rings: [Ring; QUEUES as usize],
    pub(crate) notes: Option<Notes>,
    socket: Socket,
    event_idx: bool,
    protocol: u64,
    /// The socket for requests to the frontend.
    backend: Option<OwnedFd>,
    /// The size that the virtual machine was told over this connection.
    told: Option<u64>,
    /// A GET_VRING_BASE request, and its queue, which must stop before the answer.
    leaving: Option<(u32, u32)>,
}

impl Connection {
    pub(crate) fn new(serial: u64, since: u32, stream: OwnedFd) -> Connection {
        Connection {
            serial,
            since,
            guest: Guest::default(),
            rings: Default::default(),
            notes: None,
            socket: Socket::new(stream),
            event_idx: false,
            protocol: 0,
            backend: None,
            told: None,
            leaving: None,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns true if messages may be received.
    pub(crate) fn takes_messages(&self) -> bool {
        self.leaving.is_none()
    }

    /// Receives available messages. An error ends the connection.
    pub(crate) fn receive(&mut self, disk: Disk) -> Result<After> {
        let mut after = After::Nothing;
        for _ in 0..MESSAGES {
            if !self.takes_messages() {
                break;
            }
            let (head, message, files) = match self.socket.receive()? {
                Received::Message(head, message, files) => (head, message, files),
                Received::Nothing => break,
                Received::Closed => return Ok(After::Closed),
            };
            if matches!(message, Message::ResetDevice) {
                after = After::Reset;
            }
            self.answer(head, message, files, disk)?;
            self.start_rings();
        }
        Ok(after)
    }

    /// Executes a message, and answers it.
    fn answer(
        &mut self,
        head: Head,
        message: Message,
        files: Vec<OwnedFd>,
        disk: Disk,
    ) -> Result<()> {
        let acknowledges = head.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let waits = matches!(message, Message::GetVringBase { .. });
        match self.carry_out(head.request, message, files, disk) {
            Ok(Some((bytes, file))) => self.socket.send(&bytes, file.as_ref().map(AsFd::as_fd)),
            Ok(None) if acknowledges && !waits => {
                self.socket.send(&reply::number(head.request, 0), None)
            }
            Ok(None) => Ok(()),
            Err(why) if acknowledges => {
                eprintln!("request {} of a virtual machine is refused: {why:#}", head.request);
                self.socket.send(&reply::number(head.request, 1), None)
            }
            Err(why) => Err(why),
        }
    }

    // Long: one match over all messages.
    fn carry_out(
        &mut self,
        request: u32,
        message: Message,
        files: Vec<OwnedFd>,
        disk: Disk,
    ) -> Result<Option<Answer>> {
        let number = |value| Ok(Some((reply::number(request, value), None)));
        let mut file = files.into_iter();
        match message {
            Message::GetFeatures => {
                return number(config::features(disk.read_only) | OWN);
            }
            Message::SetFeatures(features) => {
                let all = config::features(true) | config::features(false) | OWN;
                ensure!(features & !all == 0, "features {features:#x} are not all offered");
                self.guest.set_logging(features & LOG_ALL != 0)?;
                self.event_idx = features & config::EVENT_IDX != 0;
                if features & PROTOCOL_FEATURES == 0 {
                    self.rings.iter_mut().for_each(|ring| ring.enabled = true);
                }
            }
            Message::GetProtocolFeatures => return number(protocol::ALL),
            Message::SetProtocolFeatures(features) => {
                ensure!(features & !protocol::ALL == 0, "protocol features {features:#x}");
                self.protocol = features;
            }
            Message::SetOwner | Message::ResetOwner | Message::SetConfig => {}
            Message::ResetDevice => {
                self.rings.iter_mut().for_each(Ring::reset);
                if let Some(notes) = &self.notes {
                    (0..usize::from(notes.queues)).for_each(|queue| notes.forget(queue));
                }
            }
            Message::GetQueueNum => return number(QUEUES.into()),
            Message::SetMemTable(regions) => {
                let files: Vec<_> = file.collect();
                self.guest.replace(&regions, &files)?;
            }
            Message::SetLogBase(of) => {
                ensure!(self.protocol & protocol::LOG_SHMFD != 0, "a log without LOG_SHMFD");
                self.guest.set_log(Log::open(of, &file.next().context("its file")?)?)?;
                // With LOG_SHMFD, this message has an answer.
                return number(0);
            }
            Message::SetLogFd => {
                self.guest.set_log_event(ring::event(file.next().context("its file")?)?);
            }
            Message::SetVringNum(of) => {
                let size = u16::try_from(of.value).ok();
                let fits = size.filter(|size| size.is_power_of_two() && *size <= QUEUE_MAX);
                let ring = self.ring(of.queue)?;
                ring.size = fits.with_context(|| format!("a queue of {} entries", of.value))?;
            }
            Message::SetVringBase(of) => {
                let base = u16::try_from(of.value).context("an index beyond 65535")?;
                self.ring(of.queue)?.base = base;
            }
            Message::SetVringAddr(of) => self.ring(of.queue)?.addresses = Some(of),
            Message::SetVringEnable(of) => self.ring(of.queue)?.enabled = of.value != 0,
            Message::SetVringKick(File { queue, .. }) => {
                self.ring(queue)?.set_kick(file.next())?;
            }
            Message::SetVringCall(File { queue, .. }) => {
                self.ring(queue)?.set_call(file.next())?;
            }
            Message::SetVringErr(File { queue, .. }) => {
                self.ring(queue)?.set_error(file.next())?;
            }
            Message::GetVringBase { queue } => {
                self.ring(queue)?;
                self.rings[queue as usize].leave(&self.guest);
                self.leaving = Some((request, queue));
                self.leave()?;
            }
            Message::SetBackendSocket => self.backend = file.next(),
            Message::GetConfig(of) => {
                self.told = Some(disk.size);
                let fill = |to: &mut [u8]| config::read(disk, of.offset as usize, to);
                return Ok(Some((reply::config(request, of, fill), None)));
            }
            Message::GetInflight(of) => {
                let (notes, file) = make_notes(of)?;
                return Ok(Some((reply::notes(request, notes), Some(file))));
            }
            Message::SetInflight(of) => {
                self.notes = Some(open_notes(of, &file.next().context("its file")?)?);
            }
        }
        Ok(None)
    }

    fn ring(&mut self, queue: u32) -> Result<&mut Ring> {
        let all = self.rings.len();
        let ring = self.rings.get_mut(queue as usize);
        ring.with_context(|| format!("queue {queue} of {all}"))
    }

    /// Begins to serve the queues that are ready.
    fn start_rings(&mut self) {
        for queue in 0..self.rings.len() {
            let ring = &mut self.rings[queue];
            if ring.is_due()
                && let Err(why) =
                    ring.start(queue, &self.guest, self.notes.as_ref(), self.event_idx)
            {
                self.breaks(queue, why);
            }
        }
    }

    /// Answers the message that stops a queue, once none of the queue's requests is under way.
    pub(crate) fn leave(&mut self) -> Result<()> {
        let Some((request, queue)) = self.leaving else { return Ok(()) };
        let notes = self.notes.as_ref();
        let Some(base) = self.rings[queue as usize].stop(queue as usize, notes) else {
            return Ok(());
        };
        self.leaving = None;
        self.socket.send(&reply::ring(request, queue, base), None)
    }

    /// Tells the virtual machine of a new size.
    ///
    /// A frontend that connects again, as after a restart of this process, does not ask for the
    /// configuration again. The volume may have grown meanwhile, and only the frontend knows which
    /// size the guest has. So it is told once its queues are served, and compares the sizes itself.
    pub(crate) fn tell(&mut self, size: u64) {
        let is_served = || self.rings.iter().any(|ring| ring.kick().is_some());
        let is_due = self.told.map_or_else(is_served, |told| told != size);
        if let Some(backend) = &self.backend
            && is_due
        {
            self.told = Some(size);
            if let Err(why) = socket::send(backend.as_fd(), &reply::config_changed(), None) {
                eprintln!("can't tell a virtual machine its disk's new size: {why:#}");
                self.backend = None;
            }
        }
    }

    /// Takes the next request of a queue, and returns its head.
    pub(crate) fn next(
        &mut self,
        queue: usize,
        chain: &mut Chain,
    ) -> Result<Option<u16>, target::virtio::Broken> {
        self.rings[queue].next(&self.guest, self.notes.as_ref(), chain)
    }

    /// Gives a request back.
    pub(crate) fn push(
        &mut self,
        queue: usize,
        head: u16,
        len: u32,
    ) -> Result<(), target::virtio::Broken> {
        self.rings[queue].push(&self.guest, self.notes.as_ref(), head, len)
    }

    /// Handles a queue that has broken the rules.
    pub(crate) fn breaks(&mut self, queue: usize, why: impl std::fmt::Display) {
        eprintln!(
            "queue {queue} of a virtual machine is not served any more: {why}. Its driver has to \
             reset the disk"
        );
        self.rings[queue].breaks();
    }
}

/// Returns the size of an in-flight region in bytes, if the request is valid.
fn bytes_of_notes(of: message::Notes) -> Result<u64> {
    let fits = (1..=QUEUES).contains(&of.queues) && (1..=QUEUE_MAX).contains(&of.size);
    ensure!(fits, "notes of {} queues with {} entries", of.queues, of.size);
    Ok(u64::from(of.queues) * Inflight::bytes(of.size))
}

/// Makes an in-flight region. It is sealed, so no process can shrink it.
fn make_notes(of: message::Notes) -> Result<(message::Notes, OwnedFd)> {
    let len = bytes_of_notes(of)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("gabion-inflight", flags).context("no memory for notes")?;
    rustix::fs::ftruncate(&file, len).context("no memory for notes")?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).context("no memory for notes")?;
    Ok((message::Notes { len, offset: 0, ..of }, file))
}

/// Opens an in-flight region that the previous process made.
fn open_notes(of: message::Notes, file: &OwnedFd) -> Result<Notes> {
    let len = bytes_of_notes(of)?;
    if of.len < len {
        bail!("{} bytes for notes of {len}", of.len);
    }
    ensure!(of.offset.is_multiple_of(2), "notes at an odd place");
    let memory = Guest::of_file(file, of.offset, len)?;
    Ok(Notes { memory, size: of.size, queues: of.queues })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    const DISK: Disk = Disk { size: 1 << 20, read_only: false };

    #[test]
    fn a_reset_forgets_what_all_queues_had_under_way() {
        const SIZE: u16 = 8;
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(1, 1, ours.into());
        let (of, file) = make_notes(message::Notes { len: 0, offset: 0, queues: 2, size: SIZE })
            .expect("memory for notes");
        connection.notes = Some(open_notes(of, &file).unwrap());
        let under_way = |connection: &Connection| {
            let memory = &connection.notes.as_ref().unwrap().memory;
            [0, Inflight::bytes(SIZE)].map(|at| Inflight::open(memory, at, SIZE, 0).unwrap())
        };
        for (mut queue, head) in
            under_way(&connection).map(|(notes, _)| notes).into_iter().zip([3, 5])
        {
            queue.begins(&connection.notes.as_ref().unwrap().memory, head).unwrap();
        }
        assert_eq!(under_way(&connection).map(|(_, heads)| heads), [[3], [5]]);
        connection.carry_out(34, Message::ResetDevice, Vec::new(), DISK).unwrap();
        assert!(under_way(&connection).iter().all(|(_, heads)| heads.is_empty()));
    }

    #[test]
    fn the_messages_of_a_migration_begin_and_end_the_log() {
        use std::os::unix::fs::FileExt;
        let file = |len| {
            let file = std::fs::File::from(
                rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memory"),
            );
            file.set_len(len).unwrap();
            file
        };
        let (memory, log) = (file(16 << 12), file(8));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(1, 1, ours.into());
        let region = message::Region { guest: 0, len: 16 << 12, user: 0, offset: 0 };
        let base = |len| Message::SetLogBase(message::Log { len, offset: 0 });
        let features = |log| Message::SetFeatures(PROTOCOL_FEATURES | log);
        let shmfd = Message::SetProtocolFeatures(protocol::LOG_SHMFD);
        let table = Message::SetMemTable(vec![region]);
        // What comes with each message, whether it is answered, and whether a write is marked then.
        let steps = [
            ("memory", table.clone(), Some(&memory), Some(false), false),
            ("on, without a log", features(LOG_ALL), None, Some(false), false),
            ("a log without its feature", base(2), Some(&log), None, false),
            ("off", features(0), None, Some(false), false),
            ("LOG_SHMFD", shmfd, None, Some(false), false),
            ("the log", base(2), Some(&log), Some(true), false),
            ("on", features(LOG_ALL), None, Some(false), true),
            ("the memory again", table, Some(&memory), Some(false), true),
            ("a log that is too short", base(1), Some(&log), None, true),
            ("features that do not exist", features(1 << 27), None, None, true),
            ("cancelled", features(0), None, Some(false), false),
            ("the log of the next one", base(2), Some(&log), Some(true), false),
            ("on again", features(LOG_ALL), None, Some(false), true),
        ];
        for (what, message, file, answered, marks) in steps {
            let files = file.map(|file| file.try_clone().unwrap().into()).into_iter().collect();
            let done = connection.carry_out(6, message, files, DISK);
            assert_eq!(done.ok().map(|answer| answer.is_some()), answered, "{what}");
            log.write_all_at(&[0; 8], 0).unwrap();
            assert!(target::virtio::Memory::write(&connection.guest, 9 << 12, &[1]));
            let mut found = [0; 8];
            log.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, [0, u8::from(marks) << 1, 0, 0, 0, 0, 0, 0], "{what}");
        }
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(connection.carry_out(7, Message::SetLogFd, vec![event], DISK).is_ok());
        assert!(connection.carry_out(7, Message::SetLogFd, vec![log.into()], DISK).is_err());
    }
    /// A frontend asks for the size when its machine starts, but not when it connects again.
    #[test]
    fn a_machine_that_did_not_ask_for_the_size_is_told_once_its_queues_are_served() {
        use std::io::Read;
        let memory = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&memory, 16 << 12).unwrap();
        let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let region = message::Region { guest: 0, len: 16 << 12, user: 0, offset: 0 };
        let addresses = message::Addresses {
            queue: 0,
            descriptors: 0,
            used: 2 << 12,
            available: 1 << 12,
            log: None,
        };
        for asks in [false, true] {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let (backend, mut told) = UnixStream::pair().unwrap();
            told.set_nonblocking(true).unwrap();
            let mut messages = move || told.read(&mut [0; 64]).is_ok();
            let mut connection = Connection::new(1, 1, ours.into());
            let carry_out = |connection: &mut Connection, message, file: Option<OwnedFd>| {
                connection.carry_out(5, message, file.into_iter().collect(), DISK).unwrap();
                connection.start_rings();
            };
            carry_out(&mut connection, Message::SetBackendSocket, Some(backend.into()));
            if asks {
                let all = message::Config { offset: 0, len: 60, flags: 0 };
                carry_out(&mut connection, Message::GetConfig(all), None);
            }
            let memory = memory.try_clone().unwrap();
            carry_out(&mut connection, Message::SetMemTable(vec![region]), Some(memory));
            let number = |value| message::Ring { queue: 0, value };
            carry_out(&mut connection, Message::SetVringNum(number(8)), None);
            carry_out(&mut connection, Message::SetVringAddr(addresses), None);
            carry_out(&mut connection, Message::SetVringEnable(number(1)), None);
            connection.tell(DISK.size);
            assert!(!messages(), "its queues are not served yet");
            let kick = Message::SetVringKick(File { queue: 0, has_file: true });
            carry_out(&mut connection, kick, Some(event()));
            connection.tell(DISK.size);
            assert_eq!(messages(), !asks, "it asked: {asks}");
            connection.tell(DISK.size);
            assert!(!messages(), "it was told before");
            connection.tell(2 * DISK.size);
            assert!(messages(), "the volume has grown");
        }
    }
}
