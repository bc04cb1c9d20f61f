//! Copies that arrive at a joiner: the joiner starts them at the pace that its own clients allow.
//!
//! Each primary paces the copies that it sends by the latency of its own clients, and knows nothing
//! of other primaries that send to the same joiner. So a copy that may be delayed says so
//! (`Replicate::yields`). It waits here under its range lock, which its primary holds as well. It
//! waits for at most [`PATIENCE`], because clients of these blocks wait with it. What all primaries
//! have in flight bounds the number of copies that wait. Copies of a settle, and copies of what a
//! returning replica has missed, don't wait.

use crate::op::{Op, Streamed};
use crate::ops::Ops;
use crate::pace::{End, Pace, Purpose, Turn};
use crate::replicas::Replicas;
use alloc::collections::{BTreeMap, VecDeque};
use base::{Duration, Limits, Mutant, Time, mutant};

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
    /// Returns when `next` may have something to do.
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

    /// Records that a copy has its range lock here.
    pub(crate) fn add(&mut self, now: Time, key: u64) {
        self.waiting.push_back((key, now));
    }

    /// Starts the next copy whose turn it is, and returns it.
    #[cold]
    pub(crate) fn next(
        &mut self,
        now: Time,
        pace: &mut Pace,
        limits: &Limits,
        ops: &Ops,
        replicas: &Replicas,
    ) -> Option<u64> {
        let purpose = |key: u64| ops.get(key).map(|op| purpose_here(op, replicas));
        let waiting = &mut self.waiting;
        self.at = None;
        // Operations whose configuration has ended no longer exist.
        let over = |key| ops.get(key).is_none() || mutant::on(Mutant::ForgetArrival);
        while waiting.front().is_some_and(|(key, _)| over(*key)) {
            waiting.pop_front();
        }
        let (_, oldest) = waiting.front()?;
        let overdue = *oldest + PATIENCE;
        let turn = |purpose| {
            let copies = self.count(purpose);
            pace.turn(now, End::Target, purpose, copies, limits)
        };
        let turns = [Purpose::Rebuild, Purpose::Move].map(|purpose| (purpose, turn(purpose)));
        let may = |purpose| turns.contains(&(purpose, Turn::Now));
        let mut place = (overdue <= now).then_some(0);
        if place.is_none() && turns.iter().any(|(_, turn)| *turn == Turn::Now) {
            let waits = |(key, _): &(u64, Time)| purpose(*key).is_some_and(may);
            place = self.waiting.iter().position(waits);
        }
        if let Some(place) = place {
            let (key, _) = self.waiting.remove(place)?;
            let purpose = purpose(key)?;
            pace.begun(now, purpose);
            let former = self.running.insert(key, (purpose, now));
            assert!(former.is_none(), "a copy that arrives is written once");
            return Some(key);
        }
        let at = turns.iter().filter_map(|(_, turn)| match turn {
            Turn::At(at) => Some(*at),
            Turn::Now | Turn::Later => None,
        });
        self.at = at.chain([overdue]).min();
        None
    }

    /// Records that a copy was written, or that writing it failed.
    pub(crate) fn end(&mut self, now: Time, pace: &mut Pace, key: u64, len: u32) {
        if let Some((purpose, since)) = self.running.remove(&key) {
            pace.ended(now, End::Target, purpose, now.since(since), since, len);
        }
    }
}

/// Returns true for a copy that may be delayed.
#[inline]
pub(crate) fn yields(streamed: &Streamed) -> bool {
    streamed.copy && streamed.yields
}

/// Returns the purpose of a copy that has arrived.
fn purpose_here(op: &Op, replicas: &Replicas) -> Purpose {
    let solo = replicas.get(op.group).is_none_or(|r| r.is_only_in_sync());
    if solo { Purpose::Rebuild } else { Purpose::Move }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Work;
    use base::{DeviceId, GroupId, UnitKey};

    #[test]
    fn a_copy_that_has_waited_long_enough_begins_and_one_that_is_gone_does_not() {
        let limits = Limits::TEST_MIN;
        let (mut arrivals, mut ops) = (Arrivals::default(), Ops::default());
        let mut pace = Pace::new(&limits);
        let replicas = Replicas::new(DeviceId(1), core::iter::empty());
        let op = || Op::new(GroupId(1), UnitKey::default(), 0, 4096, Work::Scrub);
        let keys = [1, 2, 3].map(|_| ops.insert(op()));
        keys.into_iter().for_each(|key| arrivals.add(Time(1), key));
        ops.remove(keys[0]);
        let late = Time(1) + PATIENCE;
        let mut next =
            |arrivals: &mut Arrivals| arrivals.next(late, &mut pace, &limits, &ops, &replicas);
        assert_eq!([next(&mut arrivals), next(&mut arrivals)], [Some(keys[1]), Some(keys[2])]);
        assert_eq!((next(&mut arrivals), arrivals.wake_at()), (None, None));
        assert_eq!(arrivals.count(Purpose::Rebuild), 2);
        keys.into_iter().for_each(|key| arrivals.end(late, &mut pace, key, 4096));
        assert_eq!(arrivals.count(Purpose::Rebuild), 0);
    }
}
