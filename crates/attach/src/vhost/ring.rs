//! One queue of a virtual machine: how it was set up, and once it is served, its state.
//!
//! Invariants:
//! - It is served from the moment at which it is set up, has a kick, and is enabled, until it is
//!   stopped or breaks. What breaks is served again when it gets a new kick.
//! - A request is noted before it begins, if there is memory for notes.

use super::guest::Guest;
use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use target::vhost::message::Addresses;
use target::virtio::{Broken, Chain, Inflight, Memory, Queue, Rings};

/// Memory for notes of the requests of all queues.
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
    /// The requests that the process before this one had begun.
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
    /// No new requests are taken, because it is to be stopped.
    leaving: bool,
}

/// Makes a descriptor of another process one that is never waited for.
fn without_waiting(file: OwnedFd) -> Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&file, true).context("a descriptor that can't be used at once")?;
    Ok(file)
}

/// Adds 1 to an event. It only fails if the event is there already, or is no event.
fn wake(event: Option<&OwnedFd>) {
    if let Some(event) = event {
        let _ = rustix::io::write(event, &1u64.to_ne_bytes());
    }
}

impl Ring {
    /// The virtual machine's side gets a new kick.
    pub(crate) fn set_kick(&mut self, kick: Option<OwnedFd>) -> Result<()> {
        let kick = kick.context("a queue without a kick, which would have to be polled")?;
        self.kick = Some(without_waiting(kick)?);
        Ok(())
    }

    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) -> Result<()> {
        self.call = call.map(without_waiting).transpose()?;
        // What was given back before is told again: the event may have been lost.
        wake(self.call.as_ref().filter(|_| self.live.is_some()));
        Ok(())
    }

    pub(crate) fn set_error(&mut self, error: Option<OwnedFd>) -> Result<()> {
        self.error = error.map(without_waiting).transpose()?;
        Ok(())
    }

    /// Returns true if it could be served, and is not yet.
    pub(crate) fn is_due(&self) -> bool {
        self.live.is_none() && self.enabled && self.kick.is_some() && self.addresses.is_some()
    }

    /// Begins to serve it, as queue `number`.
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
        // An event of the process before this one may have been lost.
        wake(self.call.as_ref());
        Ok(())
    }

    /// Returns true if requests of it may be taken. Before it stops, what was begun is done.
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

    /// Tells the driver what was given back, if it wants to know.
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

    /// Stops to take requests, so that it can be stopped.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// If it may be stopped, stops it, and returns the index of the next request.
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

    /// It broke the rules: it is not served until it gets a new kick.
    pub(crate) fn breaks(&mut self) {
        self.drop_live();
        wake(self.error.as_ref());
    }

    /// Back to what it was at the beginning.
    pub(crate) fn reset(&mut self) {
        *self = Ring::default();
    }

    fn drop_live(&mut self) {
        (self.live, self.kick, self.leaving) = (None, None, false);
    }

    /// What the driver signals, if it is served.
    pub(crate) fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().filter(|_| self.live.is_some()).map(AsFd::as_fd)
    }

    /// Takes the driver's signal. Returns an error if what it signals with does not work.
    pub(crate) fn kicked(&self) -> Result<()> {
        let Some(kick) = &self.kick else { return Ok(()) };
        match rustix::io::read(kick, &mut [0; 8]) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            got => {
                ensure!(got == Ok(8), "its kick is no event");
                Ok(())
            }
        }
    }
}
