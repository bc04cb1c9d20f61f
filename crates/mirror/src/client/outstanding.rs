//! The numbers of one group's outstanding writes, in order: they give the floor (rule R8). Reads
//! are not among them, because a read is never retried under its number.
//!
//! They are in a ring. Numbers that are done are noticed when they come to the front, and the ring
//! is tidied when most of it is done. So it stays within twice the number of operations, even while
//! the oldest one waits for a group that is down.

use super::Op;
use alloc::collections::VecDeque;
use base::Slab;

/// Number of entries that the ring may have before tidying it is worthwhile.
const SLACK: usize = 16;

/// Numbers that may still be retried, and some that are done.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    ring: VecDeque<(u64, u64)>,
}

impl Outstanding {
    /// Adds a number, higher than all before, and the operation's key.
    pub(super) fn push(&mut self, seq: u64, key: u64, ops: &Slab<Op>) {
        if self.ring.len() >= ops.len() * 2 + SLACK {
            self.ring.retain(|(seq, key)| has(ops, *seq, *key));
        }
        self.ring.push_back((seq, key));
    }

    /// Returns the lowest number that may still be retried; `next` when there is none.
    pub(super) fn floor(&mut self, next: u64, ops: &Slab<Op>) -> u64 {
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
fn has(ops: &Slab<Op>, seq: u64, key: u64) -> bool {
    ops.get(key).is_some_and(|op| op.seq == seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Time;
    use seam::BlockKind;

    #[test]
    fn floor_is_the_lowest_number_alive_and_the_ring_stays_small() {
        let mut ops = Slab::new(10);
        let mut out = Outstanding::default();
        let add = |ops: &mut Slab<Op>, out: &mut Outstanding, seq| {
            let op = Op { seq, ..Op::new(BlockKind::Read, 0, Time::ZERO) };
            let key = ops.insert(op).unwrap();
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
        ops.get_mut(old).unwrap().seq = 0; // like one that is held: it will get another number
        assert_eq!(out.floor(1000, &ops), 1000);
        assert!(out.ring.is_empty());
    }
}
