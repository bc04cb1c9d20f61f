//! The units that hold data, by owner and in order: what a full copy of a group needs to know.
//!
//! For each unit the index counts the slots with data, so a unit leaves it with its last such slot.
//! Few writes change the index: an overwrite within a slot doesn't touch it. A tree takes 12 to 25
//! bytes per *unit*, and lists the units of an owner without a look at a slot. Links between the
//! slots of an owner would take 8 bytes per *slot*, 16 slots per unit, and would list the slots in
//! no order.
//!
//! Invariant: a unit of an owner is in the index while a slot of it holds data.

use super::layout::UNIT_CHUNKS;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The number of slots with data, by owner and unit.
#[derive(Debug, Default)]
pub(super) struct UnitIndex(BTreeMap<u64, u8>);

impl UnitIndex {
    /// Builds the index from `(owner, unit)` of every slot with data, which `slots` lists from the
    /// start each time. Beside the tree, this needs room for a list of twice `most` entries of 8
    /// bytes. A list of all units would take most of the tree's memory once more, for a moment.
    pub(super) fn build<S: Iterator<Item = (u32, u32)>>(
        slots: impl Fn() -> S,
        most: usize,
    ) -> UnitIndex {
        assert!(most > 0, "each step lists a unit");
        let mut tree = BTreeMap::new();
        let (mut list, mut from) = (Vec::with_capacity(most * 2), 0);
        loop {
            let end = list_lowest(&mut list, slots(), from, most);
            tree.extend(list.iter().map(|run: &Run| (run.key(), run.slots())));
            match end {
                Some(end) => from = end,
                None => return UnitIndex(tree),
            }
        }
    }

    /// A slot of the unit has data from now on.
    pub(super) fn add(&mut self, owner: u32, unit: u32) {
        let count = self.0.entry(key(owner, unit)).or_insert(0);
        assert!(u32::from(*count) < UNIT_CHUNKS, "a unit has 16 slots");
        *count += 1;
    }

    /// A slot of the unit has no data any more.
    pub(super) fn remove(&mut self, owner: u32, unit: u32) {
        let key = key(owner, unit);
        let count = self.0.get_mut(&key).expect("a unit with data is in the index");
        assert!(*count > 0, "a unit leaves the index with its last slot");
        *count -= 1;
        if *count == 0 {
            self.0.remove(&key);
        }
    }

    /// Returns the owner's first unit with data, and the number of its slots with data.
    pub(super) fn first(&self, owner: u32) -> Option<(u32, u8)> {
        let mut units = self.0.range(key(owner, 0)..=key(owner, u32::MAX));
        units.next().map(|(key, slots)| (*key as u32, *slots))
    }

    /// Returns the owner's units with data, in order.
    pub(super) fn units(&self, owner: u32) -> impl Iterator<Item = u32> + '_ {
        self.0.range(key(owner, 0)..=key(owner, u32::MAX)).map(|(key, _)| *key as u32)
    }
}

/// An owner and a unit as one number, in order.
fn key(owner: u32, unit: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(unit)
}

/// Slots with data of one unit: the owner (28 bits), the unit (32), and one less than the number of
/// slots (4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Run(u64);

impl Run {
    /// Makes a run of one slot.
    fn new(key: u64) -> Run {
        assert!(key >> 60 == 0, "an owner has 28 bits");
        Run(key << 4)
    }

    fn key(self) -> u64 {
        self.0 >> 4
    }

    fn slots(self) -> u8 {
        (self.0 & 15) as u8 + 1
    }

    /// Adds more slots of the same unit.
    fn add(&mut self, slots: u8) {
        assert!(u32::from(self.slots() + slots) <= UNIT_CHUNKS, "a unit has 16 slots");
        self.0 += u64::from(slots);
    }
}

/// Lists the lowest `most` units from key `from` on, in order. Returns the key of the next one if
/// there may be more. Neighbours in a unit are often neighbours on the device, too; they take one
/// entry of the list.
fn list_lowest(
    list: &mut Vec<Run>,
    slots: impl Iterator<Item = (u32, u32)>,
    from: u64,
    most: usize,
) -> Option<u64> {
    list.clear();
    let mut end = None;
    for key in slots.map(|(owner, unit)| key(owner, unit)) {
        if key < from || end.is_some_and(|end| key >= end) {
            continue;
        }
        match list.last_mut() {
            Some(last) if last.key() == key => last.add(1),
            _ => list.push(Run::new(key)),
        }
        if list.len() == most * 2 {
            end = keep_lowest(list, most).or(end);
        }
    }
    keep_lowest(list, most).or(end)
}

/// Sorts the list, joins the entries of each unit, and keeps the lowest `most`. Returns the key of
/// the first one that goes.
fn keep_lowest(list: &mut Vec<Run>, most: usize) -> Option<u64> {
    list.sort_unstable();
    list.dedup_by(|run, kept| {
        let same = run.key() == kept.key();
        if same {
            kept.add(run.slots());
        }
        same
    });
    let end = list.get(most).map(|run| run.key());
    list.truncate(most);
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;

    #[test]
    fn an_index_that_is_built_in_steps_is_that_of_all_slots() {
        let mut prng = Prng::new(5);
        for (units, chunks) in [(40, 1), (40, 3), (7, 16), (1, 16), (0, 0)] {
            let mut slots: Vec<(u32, u32)> =
                (0..units * chunks).map(|i| (i % units % 3, i % units * 5)).collect();
            for most in [1, 2, 13, 100] {
                for i in (1..slots.len()).rev() {
                    slots.swap(i, prng.below(i as u64 + 1) as usize);
                }
                let mut wanted = UnitIndex::default();
                slots.iter().for_each(|(owner, unit)| wanted.add(*owner, *unit));
                let built = UnitIndex::build(|| slots.iter().copied(), most);
                assert_eq!(built.0, wanted.0, "{units} units, {chunks} chunks, {most}");
            }
        }
    }
}
