//! A set of blocks within one unit: one bit per 4 KiB. Valid maps and dirty sets consist of these.

use crate::units::{BLOCK, BLOCKS_PER_UNIT, UNIT};
use core::ops::Range;

/// The blocks of one unit (256 of them) that are in the set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BlockSet(pub [u64; 4]);

impl BlockSet {
    /// No block.
    pub const EMPTY: BlockSet = BlockSet([0; 4]);
    /// Every block.
    pub const FULL: BlockSet = BlockSet([u64::MAX; 4]);

    /// Returns the blocks that `at..at + len` (bytes in the unit) touches, even in part.
    #[inline]
    pub fn touching(at: u32, len: u32) -> BlockSet {
        assert!(at <= UNIT && len <= UNIT - at, "range {at}+{len} leaves the unit");
        BlockSet::from_range(at / BLOCK..(at + len).div_ceil(BLOCK))
    }

    /// Returns the blocks that `at..at + len` (bytes in the unit) covers completely.
    pub fn within(at: u32, len: u32) -> BlockSet {
        assert!(at <= UNIT && len <= UNIT - at, "range {at}+{len} leaves the unit");
        let (first, end) = (at.div_ceil(BLOCK), (at + len) / BLOCK);
        BlockSet::from_range(first..end.max(first))
    }

    /// Returns the blocks with these indices; `range.end` is at most 256.
    #[inline]
    pub fn from_range(range: Range<u32>) -> BlockSet {
        let Range { start, end } = range;
        // Usually all blocks are in one word.
        if start < end && start / 64 == (end - 1) / 64 {
            let mut set = BlockSet::EMPTY;
            set.0[start as usize / 64] = u64::MAX >> (64 - (end - start)) << (start % 64);
            return set;
        }
        BlockSet::across_words(start, end)
    }

    #[inline(never)]
    fn across_words(start: u32, end: u32) -> BlockSet {
        let below = |n: u32| -> [u64; 4] {
            core::array::from_fn(|i| match n.saturating_sub(i as u32 * 64) {
                0 => 0,
                k if k >= 64 => u64::MAX,
                k => (1 << k) - 1,
            })
        };
        let (start, end) = (below(start), below(end));
        BlockSet(core::array::from_fn(|i| end[i] & !start[i]))
    }

    /// Returns true if block `i` is in the set.
    pub fn contains(&self, i: u32) -> bool {
        self.0[i as usize / 64] >> (i % 64) & 1 == 1
    }

    /// Returns the number of blocks in the set.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// Returns true if the set has no block.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Adds the blocks of `other`.
    pub fn insert(&mut self, other: BlockSet) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }

    /// Removes the blocks of `other`.
    pub fn remove(&mut self, other: BlockSet) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a &= !b);
    }

    /// Returns the blocks that are in both sets.
    pub fn and(&self, other: BlockSet) -> BlockSet {
        BlockSet(core::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Returns true if every block of `other` is in the set.
    pub fn contains_all(&self, other: BlockSet) -> bool {
        self.and(other) == other
    }

    /// Returns the lowest block of the set.
    fn first(&self) -> Option<u32> {
        let word = self.0.iter().position(|w| *w != 0)?;
        Some(word as u32 * 64 + self.0[word].trailing_zeros())
    }

    /// Returns the first run of consecutive blocks in the set, as indices.
    pub fn first_run(&self) -> Option<Range<u32>> {
        let start = self.first()?;
        let mut after = BlockSet::from_range(start..BLOCKS_PER_UNIT);
        after.remove(*self);
        Some(start..after.first().unwrap_or(BLOCKS_PER_UNIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_touch_and_cover() {
        assert_eq!(BlockSet::touching(4095, 2), BlockSet::from_range(0..2));
        assert_eq!(BlockSet::within(4095, 2), BlockSet::EMPTY);
        assert_eq!(BlockSet::within(1, 3 * 4096), BlockSet::from_range(1..3));
        assert_eq!(BlockSet::touching(0, UNIT), BlockSet::FULL);
        assert_eq!(BlockSet::touching(UNIT, 0), BlockSet::EMPTY);
        assert_eq!(BlockSet::from_range(60..70).first_run(), Some(60..70));
        assert_eq!(BlockSet::from_range(60..70).len(), 10);
    }

    #[test]
    fn ranges_and_runs_are_what_their_bits_are() {
        assert_eq!(BlockSet::EMPTY.first_run(), None);
        for start in 0..=BLOCKS_PER_UNIT {
            for end in start..=BLOCKS_PER_UNIT {
                let set = BlockSet::from_range(start..end);
                let is_in = |i: u32| set.contains(i) == (start..end).contains(&i);
                assert!((0..BLOCKS_PER_UNIT).all(is_in), "{start}..{end}");
                assert_eq!(set.first_run(), (start < end).then_some(start..end));
            }
        }
        let mut two = BlockSet::from_range(3..5);
        two.insert(BlockSet::from_range(130..200));
        assert_eq!(two.first_run(), Some(3..5));
        two.remove(BlockSet::from_range(0..64));
        assert_eq!(two.first_run(), Some(130..200));
    }
}
