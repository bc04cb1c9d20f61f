//! Checksums of blocks: the newest in memory, the others on the device, some of those cached.
//!
//! *Fresh* checksums have changed since the last checkpoint began. The running checkpoint writes
//! *saving* checksums to the device. *Cached* pages are equal to those on the device. A lookup goes
//! in this order. All three are bounded: many fresh checksums make a checkpoint due.

use super::layout::{SLOT_BLOCKS, SUM_ENTRIES};
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use base::Map;

/// A page of checksums: the 16 checksums of each of 64 slots.
pub(super) type SumPage = Box<[u32; (SUM_ENTRIES * SLOT_BLOCKS) as usize]>;

/// Some checksums of one slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fresh {
    blocks: u16,
    sums: [u32; SLOT_BLOCKS as usize],
}

impl Fresh {
    fn get(&self, block: u32) -> Option<u32> {
        (self.blocks >> block & 1 == 1).then(|| self.sums[block as usize])
    }
}

#[derive(Debug)]
struct Cached {
    sums: SumPage,
    /// The page was used since the clock hand last passed it.
    used: bool,
}

/// All checksums that are in memory.
#[derive(Debug)]
pub(super) struct Sums {
    fresh: Map<u32, Fresh>,
    saving: Map<u32, Fresh>,
    /// Pages with checksums to save.
    to_save: BTreeSet<u32>,
    cached: Map<u32, Cached>,
    /// Cached pages, in the order in which the clock hand passes them.
    hand: VecDeque<u32>,
    most: usize,
}

impl Sums {
    /// Makes an empty set that will cache at most `most` pages of 4 KiB.
    pub(super) fn new(most: usize) -> Sums {
        Sums {
            fresh: Map::default(),
            saving: Map::default(),
            to_save: BTreeSet::new(),
            cached: Map::default(),
            hand: VecDeque::new(),
            most,
        }
    }

    /// Returns the number of slots with fresh checksums.
    pub(super) fn fresh(&self) -> usize {
        self.fresh.len()
    }

    /// Returns the checksum of a block. `None`: its page has to be read first.
    pub(super) fn get(&mut self, slot: u32, block: u32) -> Option<u32> {
        let newer = |of: &Map<u32, Fresh>| of.get(&slot).and_then(|f| f.get(block));
        newer(&self.fresh).or_else(|| newer(&self.saving)).or_else(|| {
            let page = self.cached.get_mut(&(slot / SUM_ENTRIES))?;
            page.used = true;
            Some(page.sums[(slot % SUM_ENTRIES * SLOT_BLOCKS + block) as usize])
        })
    }

    /// Sets the checksums of these blocks of a slot. The entries of other blocks mean nothing.
    pub(super) fn put(&mut self, slot: u32, blocks: u16, sums: &[u32; SLOT_BLOCKS as usize]) {
        let fresh = self.fresh.entry(slot).or_default();
        fresh.blocks |= blocks;
        for (block, (to, sum)) in fresh.sums.iter_mut().zip(sums).enumerate() {
            if blocks >> block & 1 == 1 {
                *to = *sum;
            }
        }
    }

    /// Returns a cached page.
    pub(super) fn page(&self, page: u32) -> Option<&SumPage> {
        self.cached.get(&page).map(|c| &c.sums)
    }

    /// Caches a page that was read, or that the device is about to have.
    pub(super) fn insert(&mut self, page: u32, sums: SumPage) {
        if self.cached.insert(page, Cached { sums, used: true }).is_none() {
            self.hand.push_back(page);
        }
        while self.cached.len() > self.most {
            let Some(page) = self.hand.pop_front() else { return };
            match self.cached.get_mut(&page) {
                Some(cached) if cached.used => {
                    cached.used = false;
                    self.hand.push_back(page);
                }
                _ => drop(self.cached.remove(&page)),
            }
        }
    }

    /// Begins a checkpoint: fresh checksums are now to be saved.
    pub(super) fn begin_saving(&mut self) {
        assert!(self.saving.is_empty(), "one checkpoint at a time");
        core::mem::swap(&mut self.saving, &mut self.fresh);
        assert!(self.to_save.is_empty(), "the last checkpoint has saved its pages");
        self.to_save.extend(self.saving.keys().map(|slot| slot / SUM_ENTRIES));
    }

    /// Returns the first page from `from` on with checksums to save.
    pub(super) fn next_to_save(&self, from: u32) -> Option<u32> {
        self.to_save.range(from..).next().copied()
    }

    /// Returns the number of pages with checksums to save.
    pub(super) fn pages_to_save(&self) -> usize {
        self.to_save.len()
    }

    /// Puts the checksums to save into a page.
    pub(super) fn merge(&self, page: u32, into: &mut SumPage) {
        let slots = into.chunks_exact_mut(SLOT_BLOCKS as usize);
        for (slot, into) in (page * SUM_ENTRIES..).zip(slots) {
            let Some(fresh) = self.saving.get(&slot) else { continue };
            for (block, into) in (0..).zip(into) {
                *into = fresh.get(block).unwrap_or(*into);
            }
        }
    }

    /// Records that a page was saved, and that the device has this content now.
    pub(super) fn saved(&mut self, page: u32, sums: SumPage) {
        let first = page * SUM_ENTRIES;
        for slot in first..first + SUM_ENTRIES {
            self.saving.remove(&slot);
        }
        self.to_save.remove(&page);
        self.insert(page, sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_values_win_and_the_cache_is_bounded() {
        let mut sums = Sums::new(2);
        let page = |v: u32| Box::new([v; 1024]);
        sums.insert(0, page(1));
        sums.put(3, 1 << 2, &[7; 16]);
        assert_eq!((sums.get(3, 2), sums.get(3, 1), sums.get(64, 0)), (Some(7), Some(1), None));
        sums.begin_saving();
        sums.put(3, 1 << 2, &[8; 16]);
        assert_eq!((sums.get(3, 2), sums.next_to_save(0)), (Some(8), Some(0)));
        let mut new = page(1);
        sums.merge(0, &mut new);
        sums.saved(0, new);
        assert_eq!((sums.next_to_save(0), sums.page(0).unwrap()[3 * 16 + 2]), (None, 7));
        (1..10).for_each(|p| sums.insert(p, page(p)));
        assert_eq!((0..10).filter(|p| sums.page(*p).is_some()).count(), 2);
    }
}
