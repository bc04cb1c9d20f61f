//! The units of a memory device, by group and key, with the pins of jobs and reservations.
//!
//! A job looks its unit up once, and keeps the unit's [`Place`] until it ends: a lookup is a large
//! part of what a job costs in memory.
//!
//! Invariants: each unit is in the table once, under its own group and key; a unit that is pinned
//! stays in the table; no job touches a block that another one changes.

use alloc::vec::Vec;
use base::{BlockSet, GroupId, IdMap, Map, Slab, UNIT, UnitKey};
use core::cell::Cell;

/// A unit that has a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// The group that it belongs to.
    pub group: GroupId,
    /// Its name.
    pub key: UnitKey,
    /// Where its bytes are on the device.
    pub slot: u64,
    /// The blocks that hold data.
    pub valid: BlockSet,
    /// The volume was dropped: the unit goes with its last pin.
    pub doomed: bool,
    /// Jobs and reservations that need the slot.
    pins: u32,
    /// Blocks that running jobs change. No other job may touch them.
    changing: BlockSet,
}

/// The purpose of a pin on a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// To read these blocks.
    Read(BlockSet),
    /// To change these blocks.
    Change(BlockSet),
    /// To keep its slot.
    Hold,
}

impl Unit {
    /// Makes a unit without data.
    pub(crate) fn new(group: GroupId, key: UnitKey, slot: u64) -> Unit {
        let (valid, changing) = (BlockSet::EMPTY, BlockSet::EMPTY);
        Unit { group, key, slot, valid, doomed: false, pins: 0, changing }
    }

    /// Returns where the unit begins on the device, in bytes.
    pub(crate) fn start(&self) -> u64 {
        self.slot * u64::from(UNIT)
    }

    /// True while a job or a reservation needs the slot.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// True when nothing needs the slot any more.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_pinned() && (self.valid.is_empty() || self.doomed)
    }

    /// Adds a pin.
    #[inline]
    pub(crate) fn pin(&mut self, access: Access) {
        if let Access::Read(blocks) | Access::Change(blocks) = access {
            let overlaps = !self.changing.and(blocks).is_empty();
            assert!(!overlaps, "a job overlaps a change");
        }
        if let Access::Change(blocks) = access {
            self.changing.insert(blocks);
        }
        self.pins += 1;
    }

    /// Ends a pin that was there to change these blocks.
    #[inline]
    pub(crate) fn unpin(&mut self, changed: &BlockSet) {
        self.changing.remove(*changed);
        assert!(self.pins > 0, "a pin ends once");
        self.pins -= 1;
    }

    /// Forgets all pins, as the end of the process does.
    pub(crate) fn forget_pins(&mut self) {
        (self.pins, self.changing) = (0, BlockSet::EMPTY);
    }
}

/// Where a unit is in the table. The place of a unit that was removed names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place(u64);

/// All units of a device.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    table: Slab<Unit>,
    groups: IdMap<GroupId, Map<UnitKey, Place>>,
    /// The last lookup. Usually the next one wants the same unit: the caller asks whether a unit
    /// has space, and then writes to it.
    recent: Cell<(GroupId, UnitKey, Place)>,
}

/// The place of no unit: tables are shorter.
const NOWHERE: Place = Place(u32::MAX as u64);

impl Default for Units {
    fn default() -> Units {
        let recent = Cell::new((GroupId::default(), UnitKey::default(), NOWHERE));
        Units { table: Slab::new(u32::MAX as usize), groups: IdMap::default(), recent }
    }
}

impl Units {
    /// Returns the place of a unit.
    #[inline]
    pub(crate) fn find(&self, group: GroupId, key: UnitKey) -> Option<Place> {
        let (last_group, last_key, place) = self.recent.get();
        if last_key == key && last_group == group && self.table.get(place.0).is_some() {
            return Some(place);
        }
        let place = *self.groups.get(group)?.get(&key)?;
        self.recent.set((group, key, place));
        Some(place)
    }

    /// Returns a unit.
    #[inline]
    pub(crate) fn get(&self, group: GroupId, key: UnitKey) -> Option<&Unit> {
        self.find(group, key).map(|place| self.table.get(place.0).expect("a place that was found"))
    }

    /// Returns the unit at a place.
    #[inline]
    pub(crate) fn at(&mut self, place: Place) -> &mut Unit {
        self.table.get_mut(place.0).expect("a unit keeps its place")
    }

    /// Adds a unit that is not there yet.
    pub(crate) fn insert(&mut self, unit: Unit) -> Place {
        let place = Place(self.table.insert(unit).expect("a device has fewer slots"));
        let before = self.groups.get_or_insert_with(unit.group, Map::default);
        assert!(before.insert(unit.key, place).is_none(), "{:?} is there already", unit.key);
        self.recent.set((unit.group, unit.key, place));
        place
    }

    /// Removes the unit at a place.
    pub(crate) fn remove(&mut self, place: Place) -> Unit {
        let unit = self.table.remove(place.0).expect("a unit keeps its place");
        self.groups.get_mut(unit.group).and_then(|units| units.remove(&unit.key));
        unit
    }

    /// Removes all units of a group.
    pub(crate) fn wipe(&mut self, group: GroupId) -> Vec<Unit> {
        let places = self.groups.get_mut(group).map(core::mem::take).unwrap_or_default();
        let unit = |place: Place| self.table.remove(place.0).expect("a unit keeps its place");
        places.into_values().map(unit).collect()
    }

    /// Removes the units that `keep` does not accept.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut Unit) -> bool) {
        let table = &mut self.table;
        for units in self.groups.values_mut() {
            units.retain(|_, place| {
                let stays = keep(table.get_mut(place.0).expect("a unit keeps its place"));
                if !stays {
                    table.remove(place.0);
                }
                stays
            });
        }
    }

    /// Iterates over the keys of a group's units, in no order.
    pub(crate) fn keys(&self, group: GroupId) -> impl Iterator<Item = UnitKey> {
        self.groups.get(group).into_iter().flat_map(|units| units.keys().copied())
    }

    /// Iterates over all units.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Unit> {
        self.table.iter().map(|(_, unit)| unit)
    }
}
