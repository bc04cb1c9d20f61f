//! Copies that come: who receives them begins them at its own pace, as its own clients allow.
//!
//! Each source paces what it sends by what its own clients get, and knows nothing of the others that send to the same
//! newcomer. So a copy that may wait says so (`flag::YIELDS`), and waits here, under its range lock, which the source holds as well.
//! Bounded by what all sources have in flight. What a settle copies, or what one that returns has missed, doesn't wait.

use crate::mirror::Mirror;
use crate::op::{Asker, Op};
use crate::pace::{End, Purpose, Turn};
use alloc::collections::{BTreeMap, VecDeque};
use base::{Mutant, Time, mutant};
use seam::{Effects, Journal};
use wire::flag;

/// The copies that have come, and are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// In the order in which they came.
    waiting: VecDeque<u64>,
    /// Those that are being written, with what they are for, and since when.
    running: BTreeMap<u64, (Purpose, Time)>,
    /// When the next one may begin.
    at: Option<Time>,
}

impl Arrivals {
    /// When `start_arrivals` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.at
    }
}

/// True for a copy that may wait.
#[inline]
pub(crate) fn yields(op: &Op) -> bool {
    let both = flag::COPY | flag::YIELDS;
    op.flags & both == both && matches!(op.asker, Asker::Primary { .. })
}

impl<J: Journal> Mirror<J> {
    /// A copy has its range here.
    pub(crate) fn arrive(&mut self, key: u64) {
        self.arrivals.waiting.push_back(key);
    }

    /// Begins those whose turn it is.
    pub(crate) fn start_arrivals(&mut self, now: Time, out: &mut Effects) {
        while let Some((key, purpose)) = self.next_arrival(now) {
            self.pace.begun(now, purpose);
            self.arrivals.running.insert(key, (purpose, now));
            self.start_job(now, key, out);
        }
    }

    fn next_arrival(&mut self, now: Time) -> Option<(u64, Purpose)> {
        self.arrivals.at = None;
        // Those whose configuration is over have ended.
        let ops = &self.ops;
        self.arrivals.waiting.retain(|key| ops.get(*key).is_some());
        let copies = self.arrivals.running.len() as u32;
        for (place, key) in self.arrivals.waiting.iter().enumerate() {
            let purpose = self.arrives_for(*key);
            match self.pace.turn(now, End::Target, purpose, copies, &self.limits) {
                Turn::At(_) | Turn::Later if mutant::on(Mutant::ForgetArrival) => {
                    self.arrivals.waiting.remove(place)?;
                    return None;
                }
                Turn::Now => return Some((self.arrivals.waiting.remove(place)?, purpose)),
                Turn::At(at) => self.arrivals.at = Time::earliest(self.arrivals.at, Some(at)),
                Turn::Later => {}
            }
        }
        None
    }

    fn arrives_for(&self, key: u64) -> Purpose {
        let op = self.ops.get(key).expect("those that ended were left out");
        let solo = self.replicas.get(op.group).is_none_or(|r| r.is_solo());
        if solo { Purpose::Rebuild } else { Purpose::Move }
    }

    /// A copy is written, or can't be.
    pub(crate) fn arrived(&mut self, now: Time, key: u64, len: u32) {
        if let Some((purpose, since)) = self.arrivals.running.remove(&key) {
            self.pace.ended(now, End::Target, purpose, now.since(since), len);
        }
    }
}
