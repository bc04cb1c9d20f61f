//! Copies that come: who receives them begins them at its own pace, as its own clients allow.
//!
//! Each source paces what it sends by what its own clients get, and knows nothing of the others that send to the same
//! newcomer. So a copy that may wait says so (`flag::YIELDS`), and waits here, under its range lock, which the source holds as well:
//! for [`PATIENCE`] at most, as clients of those blocks wait with it. Bounded by what all sources have in flight. What a
//! settle copies, or what one that returns has missed, doesn't wait.

use crate::mirror::Mirror;
use crate::op::{Asker, Op};
use crate::pace::{End, Purpose, Turn};
use alloc::collections::{BTreeMap, VecDeque};
use base::{Duration, Mutant, Time, mutant};
use seam::{Effects, Journal};
use wire::flag;

/// The longest that a copy waits.
const PATIENCE: Duration = Duration::from_millis(500);

/// The copies that have come, and are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// In the order in which they came, and when that was.
    waiting: VecDeque<(u64, Time)>,
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

    /// None waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many are being written for this.
    fn count(&self, purpose: Purpose) -> u32 {
        self.running.values().filter(|(of, _)| *of == purpose).count() as u32
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
    pub(crate) fn arrive(&mut self, now: Time, key: u64) {
        self.arrivals.waiting.push_back((key, now));
    }

    /// Begins those whose turn it is.
    #[cold]
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
        while self.arrivals.waiting.front().is_some_and(|(key, _)| self.ops.get(*key).is_none()) {
            self.arrivals.waiting.pop_front();
        }
        let (_, oldest) = self.arrivals.waiting.front()?;
        let overdue = *oldest + PATIENCE;
        let turn = |purpose| {
            let copies = self.arrivals.count(purpose);
            self.pace.turn(now, End::Target, purpose, copies, &self.limits)
        };
        let turns = [Purpose::Rebuild, Purpose::Move].map(|purpose| (purpose, turn(purpose)));
        let may = |purpose| turns.contains(&(purpose, Turn::Now));
        let mut place = (overdue <= now).then_some(0);
        if place.is_none() && turns.iter().any(|(_, turn)| *turn == Turn::Now) {
            let waits = |(key, _): &(u64, Time)| self.arrives_for(*key).is_some_and(may);
            place = self.arrivals.waiting.iter().position(waits);
        }
        if let Some(place) = place {
            let (key, _) = self.arrivals.waiting.remove(place)?;
            return self.arrives_for(key).map(|purpose| (key, purpose));
        }
        if mutant::on(Mutant::ForgetArrival) {
            self.arrivals.waiting.clear();
            return None;
        }
        let at = turns.iter().filter_map(|(_, turn)| match turn {
            Turn::At(at) => Some(*at),
            Turn::Now | Turn::Later => None,
        });
        self.arrivals.at = at.chain([overdue]).min();
        None
    }

    /// What a copy that waits is for.
    fn arrives_for(&self, key: u64) -> Option<Purpose> {
        let op = self.ops.get(key)?;
        let solo = self.replicas.get(op.group).is_none_or(|r| r.is_solo());
        Some(if solo { Purpose::Rebuild } else { Purpose::Move })
    }

    /// A copy is written, or can't be.
    pub(crate) fn arrived(&mut self, now: Time, key: u64, len: u32) {
        if let Some((purpose, since)) = self.arrivals.running.remove(&key) {
            self.pace.ended(now, End::Target, purpose, now.since(since), since, len);
        }
    }
}
