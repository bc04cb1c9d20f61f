//! Copies that arrive at a joiner: the joiner starts them at the pace that its own clients allow.
//!
//! Each primary paces the copies that it sends by the latency of its own clients, and knows nothing
//! of other primaries that send to the same joiner. So a copy that may be delayed says so
//! (`Replicate::yields`). It waits here under its range lock, which its primary holds as well. It
//! waits for at most [`PATIENCE`], because clients of these blocks wait with it. What all primaries
//! have in flight bounds the number of copies that wait. Copies of a settle, and copies of what a
//! returning replica has missed, don't wait.

use crate::mirror::Mirror;
use crate::op::Streamed;
use crate::pace::{End, Purpose, Turn};
use alloc::collections::{BTreeMap, VecDeque};
use base::{Duration, Mutant, Time, mutant};
use seam::{Effects, UnitStore};

/// The longest time that a copy waits.
const PATIENCE: Duration = Duration::from_millis(500);

/// Copies that have arrived and are not written yet.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Copies that wait, in order of arrival, with their times of arrival.
    waiting: VecDeque<(u64, Time)>,
    /// Copies that are being written, with their purposes and start times.
    running: BTreeMap<u64, (Purpose, Time)>,
    /// When the next copy may begin.
    at: Option<Time>,
}

impl Arrivals {
    /// Returns when `start_arrivals` has something to do.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.at
    }

    /// Returns true if no copy waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns how many copies of this purpose are being written.
    fn count(&self, purpose: Purpose) -> u32 {
        self.running.values().filter(|(of, _)| *of == purpose).count() as u32
    }
}

/// Returns true for a copy that may be delayed.
#[inline]
pub(crate) fn yields(streamed: &Streamed) -> bool {
    streamed.copy && streamed.yields
}

impl<S: UnitStore> Mirror<S> {
    /// A copy has its range lock here.
    pub(crate) fn arrive(&mut self, now: Time, key: u64) {
        self.copies.arrivals.waiting.push_back((key, now));
    }

    /// Starts the copies whose turn it is.
    #[cold]
    pub(crate) fn start_arrivals(&mut self, now: Time, out: &mut Effects) {
        while let Some((key, purpose)) = self.next_arrival(now) {
            self.copies.pace.begun(now, purpose);
            self.copies.arrivals.running.insert(key, (purpose, now));
            self.start_job(now, key, out);
        }
    }

    fn next_arrival(&mut self, now: Time) -> Option<(u64, Purpose)> {
        self.copies.arrivals.at = None;
        // Operations whose configuration ended are gone.
        while self
            .copies
            .arrivals
            .waiting
            .front()
            .is_some_and(|(key, _)| self.ops.get(*key).is_none())
        {
            self.copies.arrivals.waiting.pop_front();
        }
        let (_, oldest) = self.copies.arrivals.waiting.front()?;
        let overdue = *oldest + PATIENCE;
        let turn = |purpose| {
            let copies = self.copies.arrivals.count(purpose);
            self.copies.pace.turn(now, End::Target, purpose, copies, &self.limits)
        };
        let turns = [Purpose::Rebuild, Purpose::Move].map(|purpose| (purpose, turn(purpose)));
        let may = |purpose| turns.contains(&(purpose, Turn::Now));
        let mut place = (overdue <= now).then_some(0);
        if place.is_none() && turns.iter().any(|(_, turn)| *turn == Turn::Now) {
            let waits = |(key, _): &(u64, Time)| self.arrives_for(*key).is_some_and(may);
            place = self.copies.arrivals.waiting.iter().position(waits);
        }
        if let Some(place) = place {
            let (key, _) = self.copies.arrivals.waiting.remove(place)?;
            return self.arrives_for(key).map(|purpose| (key, purpose));
        }
        if mutant::on(Mutant::ForgetArrival) {
            self.copies.arrivals.waiting.clear();
            return None;
        }
        let at = turns.iter().filter_map(|(_, turn)| match turn {
            Turn::At(at) => Some(*at),
            Turn::Now | Turn::Later => None,
        });
        self.copies.arrivals.at = at.chain([overdue]).min();
        None
    }

    /// Returns the purpose of a copy that waits.
    fn arrives_for(&self, key: u64) -> Option<Purpose> {
        let op = self.ops.get(key)?;
        let solo = self.replicas.get(op.group).is_none_or(|r| r.is_only_in_sync());
        Some(if solo { Purpose::Rebuild } else { Purpose::Move })
    }

    /// A copy was written, or could not be.
    pub(crate) fn arrived(&mut self, now: Time, key: u64, len: u32) {
        if let Some((purpose, since)) = self.copies.arrivals.running.remove(&key) {
            self.copies.pace.ended(now, End::Target, purpose, now.since(since), since, len);
        }
    }
}
