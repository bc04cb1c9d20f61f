//! The dirty set D of a replica: blocks that may differ from another copy (rules R5, R6, R11).
//!
//! It contains both the writes that were in flight when a configuration ended and the writes that
//! an absent replica missed.

use alloc::collections::BTreeMap;
use base::{BLOCK, BlockSet, UnitKey, VolumeId};

/// Dirty blocks by unit. No unit has an empty set.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Dirty {
    units: BTreeMap<UnitKey, BlockSet>,
}

impl Dirty {
    /// Adds blocks.
    pub fn insert(&mut self, unit: UnitKey, blocks: BlockSet) {
        if !blocks.is_empty() {
            self.units.entry(unit).or_default().insert(blocks);
        }
    }

    /// Adds all blocks of another set.
    pub fn extend(&mut self, other: &Dirty) {
        other.units.iter().for_each(|(unit, blocks)| self.insert(*unit, *blocks));
    }

    /// Removes blocks.
    pub fn remove(&mut self, unit: UnitKey, blocks: BlockSet) {
        if let Some(set) = self.units.get_mut(&unit) {
            set.remove(blocks);
            if set.is_empty() {
                self.units.remove(&unit);
            }
        }
    }

    /// Returns true if the unit has blocks in the set.
    pub fn names(&self, unit: UnitKey) -> bool {
        self.units.contains_key(&unit)
    }

    /// Returns the unit's blocks in the set.
    pub fn blocks(&self, unit: UnitKey) -> BlockSet {
        self.units.get(&unit).copied().unwrap_or(BlockSet::EMPTY)
    }

    /// Returns true if all of these blocks are in the set.
    pub fn contains(&self, unit: UnitKey, mut blocks: BlockSet) -> bool {
        blocks.remove(self.blocks(unit));
        blocks.is_empty()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.units.clear();
    }

    /// Removes the blocks of a volume that is gone.
    pub fn drop_volume(&mut self, volume: VolumeId) {
        self.units.retain(|unit, _| unit.volume != volume);
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Returns the units and their blocks, in order of the units.
    pub fn iter(&self) -> impl Iterator<Item = (UnitKey, BlockSet)> {
        self.units.iter().map(|(unit, blocks)| (*unit, *blocks))
    }

    /// Removes and returns the first run of blocks, `most` at most.
    pub fn pop_run(&mut self, most: u32) -> Option<(UnitKey, core::ops::Range<u32>)> {
        let (unit, blocks) = self.iter().next()?;
        let run = blocks.first_run().expect("no unit has an empty set");
        let run = run.start..run.end.min(run.start + most);
        self.remove(unit, BlockSet::from_range(run.clone()));
        Some((unit, run))
    }

    /// Returns the number of units with dirty blocks.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Returns the bytes of the dirty blocks.
    pub fn bytes(&self) -> u64 {
        self.units.values().map(|b| u64::from(b.len()) * u64::from(BLOCK)).sum()
    }
}
