//! The commands of an admin queue, and the controller behind it (base 5).
//!
//! Invariants: a discovery controller answers nothing about namespaces. A host that sends nothing
//! on this queue during the keep-alive time-out loses the controller. The controller remembers
//! which namespaces have changed since the host last read the list of changes: up to [`ACTIVE`] of
//! them, and beyond that only "many".

use super::command::Command;
use super::controller::Controller;
use super::events::{Event, Events};
use super::identify;
use super::notices::Notices;
use super::proto::*;
use super::status::Status;
use super::step::Step;
use super::subsystem::{Namespace, Subsystem, active};
use crate::reserve::Notice;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::time::Duration;
use base::{Limits, Time, VolumeId};
use seam::BufPool;

/// How late a keep alive may arrive.
const LATE: Duration = Duration::from_secs(1);

/// A controller.
#[derive(Debug)]
pub(crate) struct Admin {
    /// The part of the controller that other links see.
    pub(crate) controller: Controller,
    /// The property CC.
    pub(crate) configuration: u32,
    /// The property CSTS.
    pub(crate) status: u32,
    /// The host's keep-alive time-out; zero without one.
    pub(crate) keep_alive: Duration,
    /// The host has sent something since the last tick.
    pub(crate) heard: bool,
    /// The last tick before the host sent something.
    heard_at: Option<Time>,
    pub(crate) events: Events,
    pub(crate) notices: Notices,
    /// The namespaces at the last look for changes.
    known: Vec<Namespace>,
    /// The namespaces that have changed since the host last read the list of changes.
    changed: BTreeSet<u32>,
    /// The number of changes of the log page of ANA states.
    pub(crate) path_changes: u64,
    /// The version of the discovery log.
    version: u64,
}

impl Admin {
    /// Creates the controller of a host, which must send something every `keep_alive` milliseconds.
    pub(crate) fn new(controller: Controller, keep_alive: u32, now: Option<Time>) -> Admin {
        Admin {
            controller,
            configuration: 0,
            status: 0,
            keep_alive: Duration::from_millis(keep_alive.into()),
            heard: true,
            heard_at: now,
            events: Events::default(),
            notices: Notices::default(),
            known: Vec::new(),
            changed: BTreeSet::new(),
            path_changes: 0,
            version: 0,
        }
    }

    /// Begins to look for changes.
    pub(crate) fn enabled(&mut self, subsystem: &dyn Subsystem) {
        self.known =
            if self.controller.discovery { Vec::new() } else { active(subsystem, 0).collect() };
        self.version = subsystem.version();
        self.changed.clear();
    }

    /// Looks for changes, and queues events for the host.
    pub(crate) fn review(&mut self, subsystem: &dyn Subsystem) {
        if self.status & CSTS_RDY == 0 {
            return;
        }
        if self.controller.discovery {
            if core::mem::replace(&mut self.version, subsystem.version()) != self.version {
                self.events.happened(Event::Discovery);
            }
            return;
        }
        let same = active(subsystem, 0).eq(self.known.iter().copied());
        if same {
            return;
        }
        let known = core::mem::replace(&mut self.known, active(subsystem, 0).collect());
        let find = |list: &[Namespace], ns: &Namespace| {
            list.binary_search_by_key(&ns.volume, |other| other.volume).ok().map(|i| list[i])
        };
        let all = &self.known;
        self.notices.retain(|id| all.binary_search_by_key(&id, |ns| ns.volume.0).is_ok());
        let attributes = |ns: Namespace| (ns.size, ns.read_only);
        let other =
            |a: &Namespace, b: Option<Namespace>| b.is_none_or(|b| attributes(*a) != attributes(b));
        let gone = known.iter().filter(|ns| other(ns, find(&self.known, ns)));
        let new = self.known.iter().filter(|ns| other(ns, find(&known, ns)));
        let changed: BTreeSet<u32> = gone.chain(new).map(|ns| ns.volume.0).collect();
        // A namespace that comes or goes is told as that, and not as a change of its path.
        let moved = |ns: &Namespace| find(&known, ns).is_some_and(|old| old.path != ns.path);
        let moved = self.known.iter().any(moved);
        let id = |ns: &Namespace| ns.volume;
        if moved || known.iter().map(id).ne(self.known.iter().map(id)) {
            self.path_changes += 1;
        }
        if moved {
            self.events.happened(Event::Paths);
        }
        if !changed.is_empty() {
            self.changed.extend(changed);
            // One more than the log page has room for says that there are many.
            while self.changed.len() > ACTIVE as usize + 1 {
                self.changed.pop_last();
            }
            self.events.happened(Event::Namespaces);
        }
    }

    /// Returns the ids of the namespaces that have changed; with `forget`, the list is cleared.
    pub(crate) fn changes(&mut self, forget: bool) -> Vec<u32> {
        let changed: Vec<u32> = self.changed.iter().copied().collect();
        if forget {
            self.changed.clear();
        }
        changed
    }

    /// Tells the host about its reservations of a volume, unless it does not want to know.
    pub(crate) fn notify(&mut self, volume: VolumeId, notice: Notice) {
        let ready = self.status & CSTS_RDY != 0 && !self.controller.discovery;
        if ready && self.notices.add(volume.0, notice) {
            self.events.happened(Event::Reservations);
        }
    }

    /// Returns the namespaces at the last look for changes.
    pub(crate) fn namespaces(&self) -> &[Namespace] {
        &self.known
    }

    /// Returns true if the host has been silent for too long. Call it with each tick.
    pub(crate) fn is_silent(&mut self, now: Time) -> bool {
        if core::mem::take(&mut self.heard) || self.keep_alive.is_zero() {
            self.heard_at = Some(now);
        }
        let heard_at = *self.heard_at.get_or_insert(now);
        now.since(heard_at) > self.keep_alive + LATE
    }

    /// Handles a command that is not a fabrics command.
    pub(crate) fn command(
        &mut self,
        command: &Command,
        subsystem: &dyn Subsystem,
        limits: &Limits,
        pool: &BufPool,
    ) -> Result<Step, Status> {
        if self.configuration & CC_EN == 0 || self.status & CSTS_RDY == 0 {
            return Err(Status::SEQUENCE);
        }
        match command.opcode() {
            IDENTIFY => {
                let mut body = pool.zeroed(IDENTIFIED);
                identify::fill(command, &self.controller, subsystem, limits, body.as_mut())?;
                Ok(Step::Send(body))
            }
            GET_LOG_PAGE => self.log_page(command, subsystem, limits, pool),
            SET_FEATURES => self.set_feature(command, subsystem, limits),
            GET_FEATURES => self.feature(command, subsystem, limits, pool),
            ASYNC_EVENT => {
                self.events.wait(command.cid())?;
                Ok(Step::Wait)
            }
            KEEP_ALIVE => Ok(Step::Answer(0)),
            ABORT if !self.controller.discovery => Ok(Step::Answer(1)), // it was not aborted
            _ => Err(Status::INVALID_OPCODE),
        }
    }
}
