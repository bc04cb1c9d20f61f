//! The units that hold data, by owner and in order: what a full copy of a group needs to know.
//!
//! For each unit the index counts the slots with data, so a unit leaves it with its last such slot.
//! Slots come and go seldom compared with writes: an overwrite within a slot doesn't touch the
//! index. A tree takes 12 to 25 bytes per *unit*, and lists the units of an owner without a look at
//! a slot. Links between the slots of an owner would take 8 bytes per *slot*, 16 slots per unit, in
//! no order.
//!
//! Invariant: a unit of an owner is in the index while a slot of it holds data.

use alloc::collections::BTreeMap;

/// The number of slots with data, by owner and unit.
#[derive(Debug, Default)]
pub struct UnitIndex(BTreeMap<u64, u8>);

impl UnitIndex {
    /// Builds the index from `(owner, unit)` of every slot with data. Neighbours in a unit are
    /// often neighbours on the device, too; they take one entry of the list that is sorted.
    pub fn build(slots: impl Iterator<Item = (u32, u32)>) -> UnitIndex {
        let mut runs: alloc::vec::Vec<(u64, u8)> = alloc::vec::Vec::new();
        for (owner, unit) in slots {
            match runs.last_mut() {
                Some((last, count)) if *last == key(owner, unit) => *count += 1,
                _ => runs.push((key(owner, unit), 1)),
            }
        }
        runs.sort_unstable();
        runs.dedup_by(|(unit, more), (kept, count)| {
            let same = unit == kept;
            *count += if same { *more } else { 0 };
            same
        });
        UnitIndex(runs.into_iter().collect())
    }

    /// A slot of the unit has data from now on.
    pub fn add(&mut self, owner: u32, unit: u32) {
        *self.0.entry(key(owner, unit)).or_insert(0) += 1;
    }

    /// A slot of the unit has no data any more.
    pub fn remove(&mut self, owner: u32, unit: u32) {
        let key = key(owner, unit);
        let count = self.0.get_mut(&key).expect("a unit with data is in the index");
        *count -= 1;
        if *count == 0 {
            self.0.remove(&key);
        }
    }

    /// Returns the owner's units with data, in order.
    pub fn units(&self, owner: u32) -> impl Iterator<Item = u32> + '_ {
        self.0.range(key(owner, 0)..=key(owner, u32::MAX)).map(|(key, _)| *key as u32)
    }
}

fn key(owner: u32, unit: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(unit)
}
