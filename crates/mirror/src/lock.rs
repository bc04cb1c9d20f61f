//! Range locks of one group. Operations on overlapping blocks run one after the other, in order of
//! arrival; reads share. So no read overlaps a write in flight (R3). The unit store relies on it,
//! and stops at a job that breaks it.

use alloc::vec::Vec;
use base::{BLOCK, BLOCKS_PER_UNIT, UnitKey};

/// Blocks of one unit, shared or exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    unit: UnitKey,
    first: u32,
    end: u32,
    exclusive: bool,
}

impl Range {
    /// Returns the range of the blocks that a byte range of a unit touches.
    pub fn new(unit: UnitKey, at: u32, len: u32, exclusive: bool) -> Range {
        let (first, end) = (at / BLOCK, (at + len).div_ceil(BLOCK));
        assert!(first < end && end <= BLOCKS_PER_UNIT, "a lock is of blocks of one unit");
        Range { unit, first, end, exclusive }
    }

    fn conflicts(&self, other: &Range) -> bool {
        self.unit == other.unit
            && self.first < other.end
            && other.first < self.end
            && (self.exclusive || other.exclusive)
    }
}

/// The locks that are held or waited for, in order of arrival.
#[derive(Debug, Default)]
pub struct Locks {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    op: u64,
    range: Range,
    granted: bool,
}

impl Locks {
    /// Requests a lock and returns true if it is granted at once. Otherwise `unlock` of another
    /// operation reports it.
    #[inline]
    pub fn lock(&mut self, op: u64, range: Range) -> bool {
        let granted = !self.entries.iter().any(|e| e.range.conflicts(&range));
        self.entries.push(Entry { op, range, granted });
        granted
    }

    /// Releases a lock, or withdraws a request, and reports the operations that get their lock by
    /// that.
    #[inline]
    pub fn unlock(&mut self, op: u64, mut granted: impl FnMut(u64)) {
        let Some(index) = self.entries.iter().position(|e| e.op == op) else { return };
        let gone = self.entries.remove(index).range;
        for i in index..self.entries.len() {
            let entry = &self.entries[i];
            if entry.granted || !entry.range.conflicts(&gone) {
                continue;
            }
            if !self.entries[..i].iter().any(|e| e.range.conflicts(&entry.range)) {
                self.entries[i].granted = true;
                granted(self.entries[i].op);
            }
        }
    }

    /// Returns every operation that holds or waits for a lock, in order of arrival.
    pub fn ops(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|e| e.op)
    }

    /// Returns true if no lock is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn writers_exclude_readers_share_and_order_holds() {
        let mut locks = Locks::default();
        let range = |at, exclusive| Range::new(UnitKey::default(), at, 4096, exclusive);
        assert!(locks.lock(1, range(0, false)));
        assert!(locks.lock(2, range(0, false)));
        assert!(!locks.lock(3, range(512, true)), "touches block 0 and 1");
        assert!(!locks.lock(4, range(0, false)), "no reader overtakes a writer");
        assert!(locks.lock(5, range(8192, true)));
        let mut got = vec![];
        locks.unlock(1, |op| got.push(op));
        assert!(got.is_empty());
        locks.unlock(2, |op| got.push(op));
        assert_eq!(got, [3]);
        locks.unlock(3, |op| got.push(op));
        assert_eq!(got, [3, 4]);
    }
}
