//! One queue of a virtual machine: its setup, and its state while it is served.
//!
//! Invariants:
//! - A queue is served as soon as it is set up, has a kick descriptor, and is enabled, until it is
//!   stopped or broken. A broken queue is served again when it gets a new kick descriptor.
//! - A request is noted before it begins, if there is an in-flight region. The notes of a broken
//!   queue are cleared when it is stopped or served again: its driver has forgotten these requests.
//! - A queue that is stopped has given back everything that its driver had offered when the stop
//!   was asked for. So if the machine goes on elsewhere, and the next process serves the queue here
//!   once more, that process finds nothing to do.
//! - What is written to the used ring is marked in the log of written pages, also under the address
//!   that the monitor names for that.

use super::guest::Guest;
use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use target::vhost::message::Addresses;
use target::virtio::{Broken, Chain, Inflight, Queue, Rings};

/// What the kernel calls an event.
const EVENT: &[u8] = b"anon_inode:[eventfd]";

/// The in-flight region: memory for notes of the requests of all queues. It has room for all of
/// them, at even addresses.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) memory: Guest,
    /// Descriptors of each queue.
    pub(crate) size: u16,
    pub(crate) queues: u16,
}

impl Notes {
    /// Where the notes of a queue begin.
    fn of(&self, queue: usize) -> u64 {
        Inflight::bytes(self.size) * queue as u64
    }

    /// Forgets the requests of a queue, if it has notes.
    pub(crate) fn forget(&self, queue: usize) {
        if queue < self.queues.into() {
            let done = Inflight::forget(&self.memory, self.of(queue));
            done.expect("the memory has all notes, at even places");
        }
    }
}

/// The state of a queue that is served.
#[derive(Debug)]
struct Live {
    queue: Queue,
    rings: Rings,
    inflight: Option<Inflight>,
    /// The requests that the previous process had begun.
    redo: VecDeque<u16>,
}

/// A queue.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) size: u16,
    /// The index of the next request.
    pub(crate) base: u16,
    pub(crate) addresses: Option<Addresses>,
    pub(crate) enabled: bool,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    live: Option<Live>,
    /// The queue is about to stop: the index after the last request that is still taken.
    leaving: Option<u16>,
    /// It has broken and was not served since then. What is noted for it was withdrawn.
    broken: bool,
}

/// Makes an eventfd from another process nonblocking. Any other descriptor is refused: a file may
/// always be readable, or block.
pub(super) fn event(file: OwnedFd) -> Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let what = rustix::fs::readlink(&link, Vec::new())
        .with_context(|| format!("can't tell what a descriptor is: {link} can't be read"))?;
    ensure!(what.as_bytes() == EVENT, "a descriptor that is no event (eventfd), but {what:?}");
    rustix::io::ioctl_fionbio(&file, true).context("can't make an event nonblocking")?;
    Ok(file)
}

/// Adds 1 to an eventfd. It fails only if the counter is full, or if the file is no eventfd.
pub(super) fn wake(event: Option<&OwnedFd>) {
    if let Some(event) = event {
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }
}

impl Ring {
    /// Sets the kick descriptor, on which the guest signals new requests.
    pub(crate) fn set_kick(&mut self, kick: Option<OwnedFd>) -> Result<()> {
        let kick = kick.context("a queue without a kick, which would have to be polled")?;
        self.kick = Some(event(kick)?);
        Ok(())
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) -> Result<()> {
        self.call = call.map(event).transpose()?;
        // Signal requests that were given back before: the event may have been lost.
        wake(self.call.as_ref().filter(|_| self.live.is_some()));
        Ok(())
    }

    pub(crate) fn set_error(&mut self, error: Option<OwnedFd>) -> Result<()> {
        self.error = error.map(event).transpose()?;
        Ok(())
    }

    /// Returns true if the queue is ready to be served and is not served yet.
    pub(crate) fn is_due(&self) -> bool {
        self.live.is_none() && self.enabled && self.kick.is_some() && self.addresses.is_some()
    }

    /// Begins to serve the queue, as queue `number`.
    pub(crate) fn start(
        &mut self,
        number: usize,
        guest: &Guest,
        notes: Option<&Notes>,
        event_idx: bool,
    ) -> Result<(), Broken> {
        let Some(at) = self.addresses else { return Ok(()) };
        let address = |user| guest.address(user).ok_or(Broken::Rings);
        let rings = Rings {
            size: self.size,
            descriptors: address(at.descriptors)?,
            available: address(at.available)?,
            used: address(at.used)?,
        };
        let mut queue = Queue::new(rings, event_idx, self.base, guest)?;
        let (mut inflight, mut redo) = (None, VecDeque::new());
        if let Some(notes) = notes {
            let fits = number < notes.queues.into() && self.size <= notes.size;
            if self.broken {
                notes.forget(number);
            }
            let found = Inflight::open(&notes.memory, notes.of(number), self.size, queue.used());
            let (opened, heads) = found.filter(|_| fits).ok_or(Broken::Rings)?;
            if !self.broken {
                queue.repeats(heads.len() as u16);
            }
            (inflight, redo) = (Some(opened), heads.into());
        }
        self.live = Some(Live { queue, rings, inflight, redo });
        (self.leaving, self.broken) = (None, false);
        // An event of the previous process may have been lost.
        wake(self.call.as_ref());
        Ok(())
    }

    /// Returns true if requests of the queue may be taken. If the queue is about to stop, these are
    /// the requests that the previous process had begun, and those that were offered before.
    fn takes(&self) -> bool {
        match (self.leaving, &self.live) {
            (Some(last), Some(live)) => !live.redo.is_empty() || live.queue.next() != last,
            _ => self.enabled,
        }
    }

    /// Takes the next request, and returns its head.
    pub(crate) fn next(
        &mut self,
        guest: &Guest,
        notes: Option<&Notes>,
        chain: &mut Chain,
    ) -> Result<Option<u16>, Broken> {
        if !self.takes() {
            return Ok(None);
        }
        let Some(live) = &mut self.live else { return Ok(None) };
        if let Some(head) = live.redo.pop_front() {
            live.queue.take(guest, head, chain)?;
            return Ok(Some(head));
        }
        let head = live.queue.pop(guest, chain)?;
        if let (Some(head), Some(inflight), Some(notes)) = (head, &mut live.inflight, notes) {
            inflight.begins(&notes.memory, head).ok_or(Broken::Rings)?;
        }
        Ok(head)
    }

    /// Gives a request back.
    pub(crate) fn push(
        &mut self,
        guest: &Guest,
        notes: Option<&Notes>,
        head: u16,
        len: u32,
    ) -> Result<(), Broken> {
        let Some(Live { queue, inflight, .. }) = &mut self.live else { return Ok(()) };
        let noted = inflight.as_ref().zip(notes);
        if let Some((inflight, notes)) = noted {
            inflight.ends(&notes.memory, head).ok_or(Broken::Rings)?;
        }
        queue.push(guest, head, len)?;
        if let Some((inflight, notes)) = noted {
            inflight.ended(&notes.memory, head, queue.used()).ok_or(Broken::Rings)?;
        }
        self.mark_used(guest);
        Ok(())
    }

    /// Marks the used ring in the log of written pages, if it has an address of its own there.
    fn mark_used(&self, guest: &Guest) {
        let log = self.addresses.and_then(|at| at.log);
        if let (Some(Live { rings, .. }), Some(log)) = (&self.live, log)
            && log != rings.used
        {
            guest.mark(log, rings.used_bytes());
        }
    }

    /// Signals the driver that requests were given back, unless it has suppressed that.
    pub(crate) fn signal(&mut self, guest: &Guest) -> Result<(), Broken> {
        if let Some(live) = &mut self.live
            && live.queue.signals(guest)?
        {
            wake(self.call.as_ref());
        }
        Ok(())
    }

    /// Asks for a kick with the next request. Returns true if one can be taken now.
    pub(crate) fn listen(&mut self, guest: &Guest) -> Result<bool, Broken> {
        let takes = self.takes();
        let Some(live) = self.live.as_mut().filter(|_| takes) else { return Ok(false) };
        if !live.redo.is_empty() {
            return Ok(true);
        }
        let there = live.queue.listen(guest)?;
        self.mark_used(guest);
        Ok(there)
    }

    /// Takes no request any more that is not offered yet, so that the queue can be stopped.
    pub(crate) fn leave(&mut self, guest: &Guest) {
        self.leaving = self.live.as_ref().map(|live| {
            let offered = live.queue.offered(guest).ok().filter(|_| self.enabled);
            offered.unwrap_or(live.queue.next())
        });
    }

    /// Stops the queue, which is queue `number`, if possible, and returns the index of the next
    /// request.
    pub(crate) fn stop(&mut self, number: usize, notes: Option<&Notes>) -> Option<u16> {
        if let Some(live) = &self.live {
            let takes = self.leaving.is_some() && self.takes();
            if live.queue.in_flight() > 0 || !live.redo.is_empty() || takes {
                return None;
            }
            self.base = live.queue.next();
        }
        if let Some(notes) = notes.filter(|_| self.broken) {
            notes.forget(number);
        }
        self.drop_live();
        Some(self.base)
    }

    /// Marks the queue as broken: it is not served until it gets a new kick descriptor.
    pub(crate) fn breaks(&mut self) {
        if let Some(live) = &self.live {
            (self.base, self.broken) = (live.queue.next(), true);
        }
        self.drop_live();
        wake(self.error.as_ref());
    }

    /// Resets the queue to its initial state.
    pub(crate) fn reset(&mut self) {
        *self = Ring::default();
    }

    fn drop_live(&mut self) {
        (self.live, self.kick, self.leaving) = (None, None, None);
    }

    /// Returns the kick descriptor, if the queue is served.
    pub(crate) fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().filter(|_| self.live.is_some()).map(AsFd::as_fd)
    }

    /// Consumes the driver's kick. Returns an error if the descriptor does not work.
    pub(crate) fn kicked(&self) -> Result<()> {
        let Some(kick) = &self.kick else { return Ok(()) };
        match rustix::io::read(kick, &mut [0; 8]) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            got => {
                ensure!(got == Ok(8), "its kick is not an eventfd");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost::log::Log;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use target::virtio::Memory;

    const SIZE: u16 = 4;
    /// The addresses of the rings.
    const AT: Addresses =
        Addresses { queue: 0, descriptors: 0x1000, available: 0x2000, used: 0x3000, log: None };

    fn memory() -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x1_0000).unwrap();
        file
    }

    fn guest() -> Guest {
        Guest::of_file(&memory(), 0, 0x1_0000).unwrap()
    }

    fn notes() -> Notes {
        Notes { memory: guest(), size: SIZE, queues: 1 }
    }

    /// Offers requests of one byte, with the numbers of their descriptors.
    fn offer(guest: &Guest, index: u16, heads: &[u16]) {
        for (at, head) in (index..).zip(heads) {
            let part = [0x8000u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
            assert!(guest.write(AT.descriptors + 16 * u64::from(*head), &part));
            assert!(guest.store(AT.available + 4 + 2 * u64::from(at % SIZE), *head));
            assert!(guest.store(AT.available + 2, at + 1));
        }
    }

    /// A queue that is served from an index on.
    fn serve(ring: &mut Ring, guest: &Guest, notes: &Notes, base: u16) {
        (ring.size, ring.base, ring.addresses, ring.enabled) = (SIZE, base, Some(AT), true);
        ring.set_kick(Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap())).unwrap();
        assert!(ring.is_due());
        ring.start(0, guest, Some(notes), false).unwrap();
    }

    fn next(ring: &mut Ring, guest: &Guest, notes: &Notes) -> Option<u16> {
        ring.next(guest, Some(notes), &mut Chain::default()).unwrap()
    }

    #[test]
    fn what_a_broken_queue_had_begun_is_taken_again_by_the_next_process_only() {
        let (guest, notes) = (guest(), notes());
        offer(&guest, 0, &[0, 1, 2]);
        let mut first = Ring::default();
        serve(&mut first, &guest, &notes, 0);
        assert_eq!([0; 3].map(|_| next(&mut first, &guest, &notes)), [Some(0), Some(1), Some(2)]);
        first.push(&guest, Some(&notes), 1, 1).unwrap();
        first.breaks();
        // The process has died: the driver waits for its requests.
        let mut second = Ring::default();
        serve(&mut second, &guest, &notes, 1);
        assert_eq!([0; 3].map(|_| next(&mut second, &guest, &notes)), [Some(0), Some(2), None]);
        // It breaks, and is served again: these requests were withdrawn.
        second.breaks();
        serve(&mut second, &guest, &notes, 3);
        assert_eq!(next(&mut second, &guest, &notes), None);
        offer(&guest, 3, &[1]);
        assert_eq!(next(&mut second, &guest, &notes), Some(1));
        // It is stopped after a break, and the process dies before it is served again.
        second.breaks();
        assert_eq!(second.stop(0, Some(&notes)), Some(4));
        let mut third = Ring::default();
        serve(&mut third, &guest, &notes, 4);
        assert!(third.live.as_ref().unwrap().redo.is_empty());
    }

    /// The marks of a log of 16 pages: the numbers of the pages.
    fn collect(log: &OwnedFd) -> Vec<usize> {
        let mut bytes = [0; 2];
        rustix::io::pread(log, &mut bytes, 0).unwrap();
        rustix::io::pwrite(log, &[0; 2], 0).unwrap();
        (0..16).filter(|page| u16::from_le_bytes(bytes) >> page & 1 == 1).collect()
    }

    #[test]
    fn the_used_ring_is_marked_also_under_the_address_that_it_has_in_the_log() {
        let (mut guest, notes, log) = (guest(), notes(), memory());
        let of = target::vhost::message::Log { len: 2, offset: 0 };
        guest.set_log(Log::open(of, &log).unwrap()).unwrap();
        guest.set_logging(true).unwrap();
        let mut ring = Ring::default();
        serve(&mut ring, &guest, &notes, 0);
        // Again, with event indices: the device writes to the used ring when it asks for kicks.
        ring.start(0, &guest, Some(&notes), true).unwrap();
        offer(&guest, 0, &[0, 1, 2]);
        (0..3).for_each(|head| assert_eq!(next(&mut ring, &guest, &notes), Some(head)));
        collect(&log);
        // The monitor sets the addresses anew while the queue is served.
        let named = [(None, &[3][..]), (Some(0x3000), &[3]), (Some(0x7fff), &[3, 7, 8])];
        for (head, (log_at, pages)) in (0..).zip(named) {
            ring.addresses = Some(Addresses { log: log_at, ..AT });
            ring.push(&guest, Some(&notes), head, 1).unwrap();
            assert_eq!(collect(&log), pages, "{log_at:x?}");
            ring.listen(&guest).unwrap();
            assert_eq!(collect(&log), pages, "{log_at:x?}");
        }
    }

    #[test]
    fn a_queue_stops_after_everything_that_was_offered_before() {
        let (guest, notes) = (guest(), notes());
        let mut ring = Ring::default();
        serve(&mut ring, &guest, &notes, 0);
        offer(&guest, 0, &[0, 1]);
        assert_eq!(next(&mut ring, &guest, &notes), Some(0));
        ring.leave(&guest);
        offer(&guest, 2, &[2]);
        ring.push(&guest, Some(&notes), 0, 1).unwrap();
        assert_eq!(ring.stop(0, Some(&notes)), None, "one was offered, and was not taken yet");
        assert!(ring.listen(&guest).unwrap());
        assert_eq!([0; 2].map(|_| next(&mut ring, &guest, &notes)), [Some(1), None]);
        assert_eq!(ring.stop(0, Some(&notes)), None, "it is under way");
        ring.push(&guest, Some(&notes), 1, 1).unwrap();
        assert!(!ring.listen(&guest).unwrap());
        assert_eq!(ring.stop(0, Some(&notes)), Some(2), "the last one was offered later");
        // One that is not enabled takes nothing, and an impossible index breaks the queue.
        serve(&mut ring, &guest, &notes, 2);
        ring.enabled = false;
        ring.leave(&guest);
        assert_eq!(ring.stop(0, Some(&notes)), Some(2));
        serve(&mut ring, &guest, &notes, 2);
        assert!(guest.store(AT.available + 2, 2 + SIZE + 1));
        ring.leave(&guest);
        assert!(ring.next(&guest, Some(&notes), &mut Chain::default()).is_err());
        ring.breaks();
        assert_eq!(ring.stop(0, Some(&notes)), Some(2));
    }

    #[test]
    fn only_events_are_taken_as_events() {
        let (end, _other) = rustix::pipe::pipe().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        for file in [memory(), end, null.into()] {
            assert!(Ring::default().set_kick(Some(file.try_clone().unwrap())).is_err());
            assert!(Ring::default().set_call(Some(file.try_clone().unwrap())).is_err());
            assert!(Ring::default().set_error(Some(file)).is_err());
        }
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut ring = Ring::default();
        ring.set_kick(Some(event)).unwrap();
        assert!(ring.kicked().is_ok(), "nobody has kicked, and nobody waits for it");
    }
}
