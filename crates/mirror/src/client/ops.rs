//! The operations of all requests, and those of them that have to be routed or that wait.
//!
//! Invariants:
//! - An operation that is `Loose` between two steps of a call is in the list of those to be routed.
//!   The list is empty between calls.
//! - No device holds credit for an operation that is `Loose` or `Waiting`: the credit was given
//!   back before.

use super::op::{Op, Place};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::time::Duration;
use base::{Slab, Time};

/// The first delay before an operation that was put off is sent again. It doubles up to
/// `DELAY_MAX`.
const DELAY_MIN: Duration = Duration::from_millis(2);
const DELAY_MAX: Duration = Duration::from_millis(50);

/// The operations of a client, by key.
#[derive(Debug)]
pub(super) struct Ops {
    slab: Slab<Op>,
    /// Operations that have to be routed.
    loose: VecDeque<u64>,
    /// Operations that wait for a time or a map. Some may be gone already.
    waiting: Vec<u64>,
    /// The earliest of those times.
    due: Option<Time>,
}

impl Ops {
    /// Creates room for this many operations.
    pub(super) fn new(most: usize) -> Ops {
        Ops { slab: Slab::new(most), loose: VecDeque::new(), waiting: Vec::new(), due: None }
    }

    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<&Op> {
        self.slab.get(key)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Op> {
        self.slab.get_mut(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Op)> {
        self.slab.iter()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Adds an operation, which has to be routed.
    #[inline]
    pub(super) fn insert(&mut self, op: Op) {
        let key = self.slab.insert(op).expect("one per request, and the extra ones, fit");
        self.loose.push_back(key);
    }

    /// Removes an operation.
    #[inline]
    pub(super) fn remove(&mut self, key: u64) -> Option<Op> {
        self.slab.remove(key)
    }

    /// Returns the operations that `wanted` picks, those that were sent first at the front.
    pub(super) fn keys(&self, wanted: impl Fn(&Op) -> bool) -> Vec<u64> {
        let rank = |op: &Op| (op.seq == 0, op.seq, op.since, op.offset);
        let mut found: Vec<_> = self.slab.iter().filter(|(_, op)| wanted(op)).collect();
        found.sort_by_key(|(_, op)| rank(op));
        found.into_iter().map(|(key, _)| key).collect()
    }

    // ---- operations to be routed ----

    /// Adds an operation to the list of those to be routed.
    pub(super) fn set_loose(&mut self, key: u64) {
        let Some(op) = self.slab.get_mut(key) else { return };
        op.leave_for(Place::Loose);
        self.loose.push_back(key);
    }

    /// Takes the next operation to be routed.
    #[inline]
    pub(super) fn next_loose(&mut self) -> Option<u64> {
        self.loose.pop_front()
    }

    // ---- operations that wait ----

    /// Puts an operation off until this time. A new map ends the wait, too.
    pub(super) fn wait(&mut self, key: u64, until: Time) {
        let Some(op) = self.slab.get_mut(key) else { return };
        op.leave_for(Place::Waiting(until));
        self.waiting.push(key);
        if until != Time::NEVER {
            self.due = Time::earliest(self.due, Some(until));
        }
    }

    /// Puts an operation off, for longer each time.
    pub(super) fn put_off(&mut self, key: u64, now: Time) {
        let Some(op) = self.slab.get_mut(key) else { return };
        let delay = (DELAY_MIN * (1 << op.delays.min(8))).min(DELAY_MAX);
        op.delays = op.delays.saturating_add(1);
        self.wait(key, now + delay);
    }

    /// Returns when `release_due` has something to do.
    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Frees the operations that have waited long enough.
    pub(super) fn release_due(&mut self, now: Time) {
        let mut due = None;
        let (slab, loose) = (&mut self.slab, &mut self.loose);
        self.waiting.retain(|key| {
            let Some(op) = slab.get_mut(*key) else { return false };
            let Place::Waiting(until) = op.place else { return false };
            if until <= now {
                op.place = Place::Loose;
                loose.push_back(*key);
                return false;
            }
            if until != Time::NEVER {
                due = Time::earliest(due, Some(until));
            }
            true
        });
        self.due = due;
    }

    /// Ends all waits: a new map has come, and the caller reviews all operations.
    pub(super) fn end_waits(&mut self) {
        self.waiting.clear();
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::BlockKind;

    fn filled(count: u64) -> (Ops, Vec<u64>) {
        let mut ops = Ops::new(4);
        (0..count).for_each(|n| ops.insert(Op::new(BlockKind::Read, n, Time(n))));
        let keys = core::iter::from_fn(|| ops.next_loose()).collect();
        (ops, keys)
    }

    #[test]
    fn each_deferral_of_an_operation_is_longer() {
        let (mut ops, keys) = filled(1);
        let mut delays = Vec::new();
        for _ in 0..7 {
            ops.put_off(keys[0], Time(0));
            let due = ops.due().unwrap();
            delays.push(due.since(Time(0)).as_millis());
            ops.release_due(Time(due.0 - 1));
            assert_eq!(ops.next_loose(), None);
            ops.release_due(due);
            assert_eq!((ops.next_loose(), ops.due()), (Some(keys[0]), None));
        }
        assert_eq!(delays, [2, 4, 8, 16, 32, 50, 50]);
    }

    #[test]
    fn an_operation_that_waits_for_a_map_has_no_timer() {
        let (mut ops, keys) = filled(2);
        ops.wait(keys[0], Time::NEVER);
        assert_eq!(ops.due(), None);
        ops.wait(keys[1], Time(9));
        ops.remove(keys[1]);
        ops.release_due(Time(9));
        assert_eq!((ops.next_loose(), ops.due()), (None, None), "it is gone");
        ops.end_waits();
        ops.set_loose(keys[0]);
        assert_eq!(ops.next_loose(), Some(keys[0]));
    }

    #[test]
    #[should_panic = "has it"]
    fn an_operation_that_was_sent_can_not_be_deferred() {
        let (mut ops, keys) = filled(1);
        ops.get_mut(keys[0]).unwrap().place = Place::Sent(base::DeviceId(1));
        ops.wait(keys[0], Time(1));
    }
}
