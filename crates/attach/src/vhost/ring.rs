//! One queue of a virtual machine: its setup, and its state while it is served.
//!
//! Invariants:
//! - A queue is served as soon as it is set up, has a kick descriptor, and is enabled, until it is
//!   stopped or broken. A broken queue is served again when it gets a new kick descriptor.
//! - A request is noted before it begins, if there is an in-flight region.

use super::guest::Guest;
use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use target::vhost::message::Addresses;
use target::virtio::{Broken, Chain, Inflight, Memory, Queue, Rings};

/// The in-flight region: memory for notes of the requests of all queues.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) memory: Guest,
    /// Descriptors of each queue.
    pub(crate) size: u16,
    pub(crate) queues: u16,
}

/// The state of a queue that is served.
#[derive(Debug)]
struct Live {
    queue: Queue,
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
    /// No new requests are taken, because the queue is about to stop.
    leaving: bool,
}

/// Makes a file descriptor from another process nonblocking.
fn without_waiting(file: OwnedFd) -> Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&file, true).context("can't make a descriptor nonblocking")?;
    Ok(file)
}

/// Adds 1 to an eventfd. It fails only if the counter is full, or if the file is no eventfd.
fn wake(event: Option<&OwnedFd>) {
    if let Some(event) = event {
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }
}

impl Ring {
    /// Sets the kick descriptor, on which the guest signals new requests.
    pub(crate) fn set_kick(&mut self, kick: Option<OwnedFd>) -> Result<()> {
        let kick = kick.context("a queue without a kick, which would have to be polled")?;
        self.kick = Some(without_waiting(kick)?);
        Ok(())
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) -> Result<()> {
        self.call = call.map(without_waiting).transpose()?;
        // Signal requests that were given back before: the event may have been lost.
        wake(self.call.as_ref().filter(|_| self.live.is_some()));
        Ok(())
    }

    pub(crate) fn set_error(&mut self, error: Option<OwnedFd>) -> Result<()> {
        self.error = error.map(without_waiting).transpose()?;
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
            let from = Inflight::bytes(notes.size) * number as u64;
            let found = Inflight::open(&notes.memory, from, self.size, queue.used());
            let (opened, heads) = found.filter(|_| fits).ok_or(Broken::Rings)?;
            queue.repeats(heads.len() as u16);
            (inflight, redo) = (Some(opened), heads.into());
        }
        self.live = Some(Live { queue, inflight, redo });
        self.leaving = false;
        // An event of the previous process may have been lost.
        wake(self.call.as_ref());
        Ok(())
    }

    /// Returns true if requests of the queue may be taken. Requests that the previous process had
    /// begun are taken even if the queue is about to stop.
    fn takes(&self) -> bool {
        match self.leaving {
            true => self.live.as_ref().is_some_and(|live| !live.redo.is_empty()),
            false => self.enabled,
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
        Ok(())
    }

    /// Signals the driver that requests were given back, unless it has suppressed that.
    pub(crate) fn signal(&mut self, guest: &impl Memory) -> Result<(), Broken> {
        if let Some(live) = &mut self.live
            && live.queue.signals(guest)?
        {
            wake(self.call.as_ref());
        }
        Ok(())
    }

    /// Asks for a kick with the next request. Returns true if one can be taken now.
    pub(crate) fn listen(&mut self, guest: &impl Memory) -> Result<bool, Broken> {
        let takes = self.takes();
        let Some(live) = self.live.as_mut().filter(|_| takes) else { return Ok(false) };
        Ok(!live.redo.is_empty() || live.queue.listen(guest)?)
    }

    /// Stops taking requests, so that the queue can be stopped.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Stops the queue if possible, and returns the index of the next request.
    pub(crate) fn stop(&mut self) -> Option<u16> {
        if let Some(live) = &self.live {
            if live.queue.in_flight() > 0 || !live.redo.is_empty() {
                return None;
            }
            self.base = live.queue.next();
        }
        self.drop_live();
        Some(self.base)
    }

    /// Marks the queue as broken: it is not served until it gets a new kick descriptor.
    pub(crate) fn breaks(&mut self) {
        self.drop_live();
        wake(self.error.as_ref());
    }

    /// Resets the queue to its initial state.
    pub(crate) fn reset(&mut self) {
        *self = Ring::default();
    }

    fn drop_live(&mut self) {
        (self.live, self.kick, self.leaving) = (None, None, false);
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
