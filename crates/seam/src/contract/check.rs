//! Checks that apply to every event of every scenario: a ledger of links, dials and operations.

use crate::effect::{Effect, Effects};
use crate::event::Event;
use crate::{DialId, DiskOp};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{LinkId, Time};
use core::net::SocketAddr;

/// The surroundings of a probe, as far as it knows them.
#[derive(Clone, Debug)]
pub struct Place {
    /// Addresses of all probes, including this one, in order.
    pub peers: Vec<SocketAddr>,
    /// An address of a running host where nothing listens.
    pub nobody: SocketAddr,
    /// Size of the probe's device in bytes, if it is fixed. Operations beyond it should end in
    /// `OutOfRange`.
    pub disk_bytes: Option<u64>,
    /// Offsets and lengths of device operations are multiples of this, in bytes; 1: any. If it is
    /// above 1, other operations should end in `OutOfRange`.
    pub disk_block: u32,
    /// True if the device can give space back. Otherwise such operations should end in
    /// `Unsupported`.
    pub punches: bool,
    /// True if all probes read the same clock, so that they can compare each other's timestamps.
    pub same_clock: bool,
}

/// Most faults that are recorded.
const MOST: usize = 20;

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) faults: Vec<String>,
    now: Time,
    seen: BTreeSet<LinkId>,
    up: BTreeSet<LinkId>,
    dials: BTreeSet<DialId>,
    operations: BTreeMap<DiskOp, u32>,
}

impl Ledger {
    pub(super) fn fault(&mut self, what: String) {
        if self.faults.len() < MOST {
            self.faults.push(what);
        }
    }

    pub(super) fn check(&mut self, ok: bool, what: impl FnOnce() -> String) {
        if !ok {
            self.fault(what());
        }
    }

    pub(super) fn time(&mut self, now: Time) {
        let before = self.now;
        self.check(now >= before, || format!("time went back from {before:?} to {now:?}"));
        self.now = now;
    }

    /// Checks an event before the role sees it.
    pub(super) fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Tick | Event::Request { .. } | Event::Withdraw { .. } => {}
            Event::LinkUp { link, dial, at, from, .. } => {
                self.check(dial.is_none() || at.is_none(), || format!("{link}: at {at:?}"));
                let both = at.is_some() == from.is_some();
                self.check(both, || format!("{link}: at {at:?} from {from:?}"));
                let new = self.seen.insert(*link);
                self.check(new, || format!("{link} was there before"));
                self.up.insert(*link);
                if let Some(dial) = dial {
                    self.dial_ended(*dial);
                }
            }
            Event::DialFailed { dial, .. } => self.dial_ended(*dial),
            Event::LinkDown { link, .. } => {
                let was = self.up.remove(link);
                self.check(was, || format!("{link} went down but was not up"));
            }
            Event::Frame { link, .. } => {
                let is = self.up.contains(link);
                self.check(is, || format!("a frame on {link}, which is not up"));
            }
            Event::DiskDone { op, .. } => {
                let open =
                    self.operations.get_mut(op).is_some_and(|n| core::mem::replace(n, 0) == 1);
                self.check(open, || format!("{op:?} ended, but was not open"));
            }
        }
    }

    fn dial_ended(&mut self, dial: DialId) {
        let was = self.dials.remove(&dial);
        self.check(was, || format!("{dial:?} ended, but was not open"));
    }

    /// Records the effects of the role before the driver gets them.
    pub(super) fn effects(&mut self, out: &mut Effects) {
        let mut effects = Vec::new();
        out.swap(&mut effects);
        for effect in effects {
            match &effect {
                Effect::Dial { dial, .. } => {
                    self.dials.insert(*dial);
                }
                Effect::Close { link } => {
                    self.up.remove(link);
                }
                Effect::Read { op, .. }
                | Effect::Write { op, .. }
                | Effect::Flush { op, .. }
                | Effect::Punch { op, .. } => {
                    self.operations.insert(*op, 1);
                }
                _ => {}
            }
            out.push(effect);
        }
    }

    /// Returns a fault if operations or dials are still open at the end.
    pub(super) fn open_ends(&self) -> Option<String> {
        let operations = self.operations.values().filter(|n| **n > 0).count();
        (operations + self.dials.len() > 0).then(|| {
            format!("open at the end: {operations} operations, {} dials", self.dials.len())
        })
    }
}
