//! The operations in flight at a shard, which of them can start, and how much of the limits for
//! clients they take.
//!
//! Invariants:
//! - An operation of a client counts against the limits from its arrival until it is answered or
//!   over.
//! - An operation that is ready has its range lock, or is over by now. The order in which
//!   operations became ready is that in which they start.

use crate::load::Load;
use crate::op::Op;
use alloc::collections::{BTreeSet, VecDeque};
use base::{GroupId, Slab};

/// The operations of a shard, by key.
#[derive(Debug)]
pub(crate) struct Ops {
    slab: Slab<Op>,
    load: Load,
    ready: VecDeque<u64>,
    /// Groups with operations that wait for a lease, for room in a window, or for the end of a
    /// seal.
    blocked: BTreeSet<GroupId>,
}

impl Default for Ops {
    fn default() -> Ops {
        let (load, ready, blocked) = (Load::default(), VecDeque::new(), BTreeSet::new());
        Ops { slab: Slab::new(usize::MAX), load, ready, blocked }
    }
}

impl Ops {
    /// Adds an operation, and returns its key.
    #[inline]
    pub(crate) fn insert(&mut self, op: Op) -> u64 {
        self.load.add(op.counts);
        self.slab.insert(op).unwrap_or_else(|_| panic!("2^32 operations in flight"))
    }

    /// Removes an operation.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64) -> Option<Op> {
        let mut op = self.slab.remove(key)?;
        self.load.end(op.counts.take());
        Some(op)
    }

    /// Removes an operation whose data is not needed any more.
    #[inline]
    pub(crate) fn discard(&mut self, key: u64) {
        if let Some(op) = self.slab.get_mut(key) {
            self.load.end(op.counts.take());
            self.slab.discard(key);
        }
    }

    /// Records that the client has its answer, so the operation doesn't count any more.
    #[inline]
    pub(crate) fn answered(&mut self, key: u64) -> Option<&mut Op> {
        let op = self.slab.get_mut(key)?;
        self.load.end(op.counts.take());
        Some(op)
    }

    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&Op> {
        self.slab.get(key)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut Op> {
        self.slab.get_mut(key)
    }

    /// Returns all operations, with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Op)> {
        self.slab.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns what unanswered operations of clients take of the limits.
    pub(crate) fn load(&self) -> &Load {
        &self.load
    }

    // ---- order ----

    /// Queues an operation that has its range lock: it starts when those before it have started.
    #[inline]
    pub(crate) fn can_start(&mut self, key: u64) {
        self.ready.push_back(key);
    }

    /// Returns the next operation to start.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }

    /// Returns true if no operation can start.
    #[inline]
    pub(crate) fn none_ready(&self) -> bool {
        self.ready.is_empty()
    }

    /// Records that operations of this group are blocked, or that none is.
    pub(crate) fn note_blocked(&mut self, group: GroupId, blocked: bool) {
        if blocked {
            self.blocked.insert(group);
        } else {
            self.blocked.remove(&group);
        }
    }

    /// Takes the first group with operations that are blocked.
    pub(crate) fn next_blocked(&mut self) -> Option<GroupId> {
        self.blocked.pop_first()
    }

    /// Returns the number of operations that can start.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Sorts the operations that can start, except the `first` ones, by their arrival.
    pub(crate) fn sort_ready(&mut self, first: usize) {
        let slab = &self.slab;
        let ready = &mut self.ready.make_contiguous()[first..];
        ready.sort_by_key(|key| slab.get(*key).and_then(|op| op.work.since()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Work;
    use base::UnitKey;

    fn op(counts: Option<u32>) -> Op {
        Op { counts, ..Op::new(GroupId(1), UnitKey::default(), 0, 4096, Work::Scrub) }
    }

    #[test]
    fn an_operation_counts_once_until_it_is_answered_or_over() {
        let mut ops = Ops::default();
        let [a, b, c] = [Some(10), Some(20), None].map(|counts| ops.insert(op(counts)));
        let load = |ops: &Ops| (ops.load().ops(), ops.load().bytes());
        assert_eq!(load(&ops), (2, 30));
        ops.answered(a);
        ops.answered(a);
        assert_eq!(load(&ops), (1, 20));
        [a, b, c].into_iter().for_each(|key| drop(ops.remove(key)));
        assert_eq!((load(&ops), ops.len()), ((0, 0), 0));
        assert!(ops.remove(b).is_none());
    }

    #[test]
    fn blocked_groups_are_taken_in_order_and_once() {
        let mut ops = Ops::default();
        [3, 1, 2, 1].into_iter().for_each(|group| ops.note_blocked(GroupId(group), true));
        ops.note_blocked(GroupId(2), false);
        let taken = core::iter::from_fn(|| ops.next_blocked());
        assert!(taken.eq([GroupId(1), GroupId(3)]));
    }
}
