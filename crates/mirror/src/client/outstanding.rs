//! The numbers of operations, and of each group's outstanding writes, which determine the floor
//! (rule R8). Reads are not outstanding in this sense, because a read is never retried under its
//! number.
//!
//! A group's numbers are in a ring, in order. A finished number is removed when it comes to the
//! front, and all of them are removed when they are most of the ring. So it stays within twice the
//! number of operations, even while the oldest one waits for a group that is down.
//!
//! Invariant: no number is assigned twice, and the numbers in a ring rise.

use super::ops::Ops;
use alloc::collections::VecDeque;
use base::{GroupId, IdMap};

/// Number of entries below which it is not worthwhile to clean up the ring.
const SLACK: usize = 16;

/// The numbers of a client.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The number that was assigned last.
    last: u64,
    /// By group, because a group that is down must not hold back the floor of others.
    groups: IdMap<GroupId, Outstanding>,
}

impl Numbers {
    /// Assigns the next number.
    #[inline]
    pub(super) fn assign(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the floor to send with the operation of this group that has the number `seq`.
    /// `new`: the key of a write to which the number was just assigned.
    #[inline]
    pub(super) fn floor(&mut self, group: GroupId, seq: u64, new: Option<u64>, ops: &Ops) -> u64 {
        let outstanding = self.groups.get_or_insert_with(group, Outstanding::default);
        if let Some(key) = new {
            outstanding.push(seq, key, ops);
        }
        // A read is never retried under its number, so it does not hold the floor back.
        outstanding.floor(self.last, ops).min(seq)
    }
}

/// Numbers that may still be retried, and some that are done.
#[derive(Debug, Default)]
struct Outstanding {
    ring: VecDeque<(u64, u64)>,
}

impl Outstanding {
    /// Adds a number, higher than all before, and the operation's key.
    fn push(&mut self, seq: u64, key: u64, ops: &Ops) {
        assert!(self.ring.back().is_none_or(|(last, _)| *last < seq), "numbers rise");
        if self.ring.len() >= ops.len() * 2 + SLACK {
            self.ring.retain(|(seq, key)| has(ops, *seq, *key));
        }
        self.ring.push_back((seq, key));
    }

    /// Returns the lowest number that may still be retried; `next` when there is none.
    fn floor(&mut self, next: u64, ops: &Ops) -> u64 {
        while let Some((seq, key)) = self.ring.front() {
            if has(ops, *seq, *key) {
                return *seq;
            }
            self.ring.pop_front();
        }
        next
    }
}

/// Returns true if the operation exists and still has this number.
fn has(ops: &Ops, seq: u64, key: u64) -> bool {
    ops.get(key).is_some_and(|op| op.seq == seq)
}

#[cfg(test)]
mod tests {
    use super::super::op::Op;
    use super::*;
    use base::Time;
    use seam::BlockKind;

    #[test]
    fn floor_is_the_lowest_number_alive_and_the_ring_stays_small() {
        let mut ops = Ops::new(10);
        let mut out = Outstanding::default();
        let add = |ops: &mut Ops, out: &mut Outstanding, seq| {
            ops.insert(Op { seq, ..Op::new(BlockKind::Read, 0, Time::ZERO) });
            let key = ops.next_loose().unwrap();
            out.push(seq, key, ops);
            key
        };
        let old = add(&mut ops, &mut out, 1);
        for seq in 2..1000 {
            let key = add(&mut ops, &mut out, seq);
            assert_eq!(out.floor(seq + 1, &ops), 1);
            ops.remove(key);
        }
        assert!(out.ring.len() <= SLACK + 4, "{}", out.ring.len());
        ops.get_mut(old).unwrap().seq = 0; // as for a held write: it will get another number
        assert_eq!(out.floor(1000, &ops), 1000);
        assert!(out.ring.is_empty());
    }

    #[test]
    fn the_floor_is_never_above_the_number_that_it_goes_with() {
        let (mut ops, mut numbers, group) = (Ops::new(4), Numbers::default(), GroupId(1));
        let seq = numbers.assign();
        ops.insert(Op { seq, ..Op::new(BlockKind::Write, 0, Time::ZERO) });
        let write = ops.next_loose();
        assert_eq!(numbers.floor(group, seq, write, &ops), seq);
        let read = numbers.assign();
        assert_eq!(numbers.floor(group, read, None, &ops), seq, "the write may be retried");
        assert_eq!(numbers.floor(GroupId(2), read, None, &ops), read, "not in this group");
        ops.remove(write.unwrap());
        let later = numbers.assign();
        assert_eq!(numbers.floor(group, read, None, &ops), read, "sent again");
        assert_eq!(numbers.floor(group, later, None, &ops), later);
    }
}
