//! The expected content of a device: a flat model of data, valid blocks and write metadata.
//!
//! Each sector holds the number of the write that wrote it and its own address, or zeros.

use base::{BlockSet, Epoch, GroupId, SECTOR, UNIT, UnitKey};
use std::collections::BTreeMap;

pub(crate) const SECTORS: usize = (UNIT / SECTOR) as usize;

/// Returns the bytes that the write `stamp` puts into a sector.
pub(crate) fn sector(stamp: u32, unit: UnitKey, index: u32) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    if stamp != 0 {
        let unit = unit.volume.0 << 16 ^ unit.index;
        let first = u128::from(stamp) | u128::from(unit) << 32 | u128::from(index) << 64;
        for (i, word) in (0u128..).zip(bytes.chunks_exact_mut(16)) {
            word.copy_from_slice(&(first | i << 96).to_le_bytes());
        }
    }
    bytes
}

/// Content of one unit.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    pub stamps: Vec<u32>,
    pub valid: BlockSet,
}

impl Default for Unit {
    fn default() -> Unit {
        Unit { stamps: vec![0; SECTORS], valid: BlockSet::EMPTY }
    }
}

impl Unit {
    /// Applies a write of `stamp`, or a zero if `stamp` is 0.
    pub(crate) fn write(&mut self, stamp: u32, at: u32, len: u32) {
        let range = (at / SECTOR) as usize..((at + len) / SECTOR) as usize;
        self.stamps[range].fill(stamp);
        if stamp == 0 {
            self.valid.remove(BlockSet::within(at, len));
        } else {
            self.valid.insert(BlockSet::touching(at, len));
        }
    }

    /// True when `data`, which begins at byte `at` of the unit, equals this content.
    pub(crate) fn matches(&self, unit: UnitKey, at: u32, data: &[u8]) -> bool {
        data.chunks_exact(SECTOR as usize).enumerate().all(|(i, bytes)| {
            let index = at / SECTOR + i as u32;
            bytes == sector(self.stamps[index as usize], unit, index)
        })
    }

    /// Returns the number of slots that the unit takes.
    pub(crate) fn slots(&self) -> u64 {
        (0..16).filter(|c| (self.valid.0[c / 4] >> (c % 4 * 16)) as u16 != 0).count() as u64
    }
}

/// The expected record of a group.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub acted: Epoch,
    pub joiner: bool,
    pub base: Epoch,
    pub dirty: BTreeMap<UnitKey, BlockSet>,
    pub executed: BTreeMap<(u64, UnitKey), BlockSet>,
}

impl Record {
    pub(crate) fn mark(&mut self, unit: UnitKey, blocks: BlockSet) {
        self.dirty.entry(unit).or_default().insert(blocks);
    }

    pub(crate) fn clean(&mut self, unit: UnitKey, blocks: BlockSet) {
        if let Some(set) = self.dirty.get_mut(&unit) {
            set.remove(blocks);
            if set.is_empty() {
                self.dirty.remove(&unit);
            }
        }
    }
}

/// Content of a device.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub units: BTreeMap<(GroupId, UnitKey), Unit>,
    pub records: BTreeMap<GroupId, Record>,
}

impl Model {
    pub(crate) fn unit(&mut self, group: GroupId, unit: UnitKey) -> &mut Unit {
        self.units.entry((group, unit)).or_default()
    }

    pub(crate) fn record(&mut self, group: GroupId) -> &mut Record {
        self.records.entry(group).or_default()
    }

    /// True when a block of the group holds data.
    pub(crate) fn has_content(&self, group: GroupId) -> bool {
        self.units.iter().any(|((g, _), unit)| *g == group && !unit.valid.is_empty())
    }

    /// Returns the number of slots that all units take.
    pub(crate) fn slots(&self) -> u64 {
        self.units.values().map(Unit::slots).sum()
    }
}
