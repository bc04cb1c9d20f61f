//! A set of numbers whose memory grows with the number of its gaps, and not of its elements.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Ranges that neither touch nor overlap: from each key to its value, exclusive.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct IdSet(BTreeMap<u32, u32>);

impl IdSet {
    /// Adds these numbers.
    pub fn insert(&mut self, ids: Range<u32>) {
        if ids.is_empty() {
            return;
        }
        let (mut from, mut to) = (ids.start, ids.end);
        let near = |set: &BTreeMap<u32, u32>, from: u32, to: u32| {
            let (begin, end) = set.range(..=to).next_back()?;
            (*end >= from).then_some((*begin, *end))
        };
        while let Some((begin, end)) = near(&self.0, from, to) {
            self.0.remove(&begin);
            (from, to) = (from.min(begin), to.max(end));
        }
        let former = self.0.insert(from, to);
        assert!(former.is_none(), "ranges neither touch nor overlap");
    }

    /// Returns true if this number is in the set.
    pub fn contains(&self, id: u32) -> bool {
        self.0.range(..=id).next_back().is_some_and(|(_, end)| id < *end)
    }

    /// Returns the ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.0.iter().map(|(from, to)| *from..*to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn the_set_has_the_fewest_possible_ranges() {
        let mut random = base::Prng::new(3);
        for _ in 0..200 {
            let (mut set, mut all) = (IdSet::default(), BTreeSet::new());
            for _ in 0..12 {
                let from = random.below(40) as u32;
                let ids = from..from + random.below(5) as u32;
                set.insert(ids.clone());
                all.extend(ids);
            }
            assert!((0..50).all(|id| set.contains(id) == all.contains(&id)), "{set:?}");
            let ranges: Vec<_> = set.ranges().collect();
            assert!(ranges.iter().all(|r| !r.is_empty()), "{set:?}");
            assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "{set:?}");
        }
    }
}
