//! The dirty set D of a replica: blocks that may differ from the other copy.
//!
//! One concept for "in flight at the crash" and "missed by the absent partner".

use alloc::collections::BTreeMap;
use base::{BLOCK, BlockSet, UnitKey, VolumeId};

/// Blocks by unit; no unit is in it with an empty set.
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

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Dirty) {
        other.units.iter().for_each(|(unit, blocks)| self.insert(*unit, *blocks));
    }

    /// Takes blocks out.
    pub fn remove(&mut self, unit: UnitKey, blocks: BlockSet) {
        if let Some(set) = self.units.get_mut(&unit) {
            set.remove(blocks);
            if set.is_empty() {
                self.units.remove(&unit);
            }
        }
    }

    /// True when all of these blocks are in.
    pub fn contains(&self, unit: UnitKey, mut blocks: BlockSet) -> bool {
        blocks.remove(self.units.get(&unit).copied().unwrap_or(BlockSet::EMPTY));
        blocks.is_empty()
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.units.clear();
    }

    /// Takes out a volume that is gone.
    pub fn drop_volume(&mut self, volume: VolumeId) {
        self.units.retain(|unit, _| unit.volume != volume);
    }

    /// True when nothing is in.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Units, in order.
    pub fn iter(&self) -> impl Iterator<Item = (UnitKey, BlockSet)> {
        self.units.iter().map(|(unit, blocks)| (*unit, *blocks))
    }

    /// Takes the first run of at most `most` blocks out.
    pub fn pop_run(&mut self, most: u32) -> Option<(UnitKey, core::ops::Range<u32>)> {
        let (unit, blocks) = self.iter().next()?;
        let run = blocks.first_run().expect("no unit has an empty set");
        let run = run.start..run.end.min(run.start + most);
        self.remove(unit, BlockSet::from_range(run.clone()));
        Some((unit, run))
    }

    /// How many units are in.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Bytes of the blocks that are in.
    pub fn bytes(&self) -> u64 {
        self.units.values().map(|b| u64::from(b.len()) * u64::from(BLOCK)).sum()
    }
}
