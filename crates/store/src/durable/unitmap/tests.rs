//! Tests of the map: against a tree, against a look at every slot, and of what is counted.

extern crate std;

use super::*;
use base::Prng;
use std::cell::Cell;

std::thread_local! {
    static SLOTS_LOOKED_AT: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn count_a_slot() {
    SLOTS_LOOKED_AT.with(|n| n.set(n.get() + 1));
}

fn chunk(volume: u32, unit: u32, chunk: u8) -> Chunk {
    let unit = UnitKey { volume: VolumeId(volume), index: unit };
    Chunk { group: GroupId(unit.index % 3), unit, chunk }
}

/// Gives a chunk data, and returns its slot.
fn fill(map: &mut UnitMap, chunk: Chunk) -> u32 {
    let pin = map.pin(chunk, Access::Hold).unwrap();
    map.set(pin.slot, 1);
    map.unpin(pin);
    pin.slot
}

#[test]
fn finds_what_a_tree_finds_also_when_full() {
    let (mut map, mut tree) = (UnitMap::new(300, Some(7)), BTreeMap::new());
    let mut prng = Prng::new(1);
    for _ in 0..60_000 {
        let c = chunk(prng.below(2) as u32, prng.below(20) as u32, prng.below(16) as u8);
        match tree.get(&c) {
            Some(slot) if prng.chance(0.45) => {
                map.clear(*slot, u16::MAX);
                tree.remove(&c);
            }
            Some(slot) => assert_eq!(map.slot(c), Some(*slot)),
            None => match map.pin(c, Access::Hold) {
                Some(pin) => {
                    let slot = pin.slot;
                    map.set(slot, 3);
                    map.unpin(pin);
                    assert_ne!(slot, 7);
                    tree.insert(c, slot);
                }
                None => assert_eq!(tree.len(), 299),
            },
        }
        assert_eq!(map.used() as usize, tree.len());
    }
    assert!(tree.iter().all(|(c, slot)| map.slot(*c) == Some(*slot)));
    assert!(tree.iter().all(|(c, slot)| map.chunk(*slot) == Some(*c)));
}

#[test]
fn a_dropped_owner_is_gone_at_once_and_its_slots_later() {
    let mut map = UnitMap::new(10, None);
    let (a, b) = (chunk(1, 0, 0), chunk(2, 0, 1));
    let slot = map.pin(a, Access::Hold).unwrap();
    map.set(slot.slot, 1);
    let other = map.pin(b, Access::Hold).unwrap();
    map.set(other.slot, 1);
    map.unpin(other);
    map.drop_owners(|_, v| v == VolumeId(1));
    assert_eq!((map.slot(a), map.used(), map.volumes()), (None, 2, vec![VolumeId(2)]));
    let again = map.pin(a, Access::Hold).unwrap();
    assert_ne!(again.slot, slot.slot);
    map.begin_sweep(|_, v| v == VolumeId(1));
    map.sweep(u32::MAX, |_| {});
    assert_eq!(map.used(), 3, "a job holds it");
    map.unpin(slot);
    map.unpin(again);
    assert_eq!((map.used(), map.slot(b)), (1, Some(other.slot)));
}

#[test]
fn a_sweep_goes_by_units_and_another_one_may_begin_meanwhile() {
    let mut map = UnitMap::new(200, None);
    for unit in 0..90 {
        fill(&mut map, chunk(unit % 2, unit, 0));
        fill(&mut map, chunk(unit % 2, unit, 9));
    }
    map.take_dirty();
    for volume in [0, 1] {
        map.drop_owners(|_, v| v == VolumeId(volume));
        assert_eq!(map.is_sweeping(), volume == 1, "not before the drop is durable");
        map.begin_sweep(|_, v| v == VolumeId(volume));
        map.sweep(30, |_| {});
        assert_eq!(map.used(), 180 - 60 * (volume + 1));
    }
    let mut swept = Vec::new();
    map.sweep(u32::MAX, |slot| swept.push(slot));
    assert_eq!((swept.len(), map.used(), map.is_sweeping()), (60, 0, false));
    assert!((0..200).all(|slot| map.entry(slot).valid.get() == 0));
}

#[test]
fn a_sweep_looks_only_at_slots_that_it_frees_and_spares_the_next_owner_of_an_index() {
    let mut map = UnitMap::new(64 << 10, None);
    (0..3000).for_each(|unit| _ = fill(&mut map, chunk(1, unit, 0)));
    fill(&mut map, chunk(2, 0, 0));
    map.drop_owners(|_, v| v == VolumeId(2));
    map.begin_sweep(|_, v| v == VolumeId(2));
    SLOTS_LOOKED_AT.set(0);
    map.sweep(1, |_| {});
    assert!(map.used() == 3000 && SLOTS_LOOKED_AT.get() < 20, "{}", SLOTS_LOOKED_AT.get());
    let kept = fill(&mut map, chunk(3, 0, 0));
    map.sweep(u32::MAX, |_| {});
    assert_eq!(map.slot(chunk(3, 0, 0)), Some(kept), "it has the index of the swept owner");
}

#[test]
fn a_sweep_finds_a_chunk_that_moved_after_the_drop() {
    let mut map = UnitMap::new(10, None);
    let c = chunk(1, 0, 0);
    let old = fill(&mut map, c);
    let second = map.pin_second(c).unwrap();
    map.drop_owners(|_, _| true);
    map.replace(old, second.slot);
    map.clear(old, u16::MAX);
    map.set(second.slot, u16::MAX);
    map.unpin(second);
    assert_eq!((map.used(), map.slot(c)), (1, None));
    map.begin_sweep(|_, _| true);
    map.sweep(1, |_| {});
    assert_eq!((map.used(), map.is_sweeping()), (0, false));
}

#[test]
fn space_that_was_given_back_is_used_before_space_that_never_was() {
    let mut map = UnitMap::new(64, None);
    let take = |map: &mut UnitMap, unit| fill(map, chunk(1, unit, 0));
    assert_eq!([0, 1, 2].map(|unit| take(&mut map, unit)), [0, 1, 2]);
    map.clear(1, 1);
    map.clear(0, 1);
    assert_eq!([3, 4, 5].map(|unit| take(&mut map, unit)), [1, 0, 3]);
}

#[test]
fn every_slot_may_have_an_owner_of_its_own() {
    let slots = (1 << 20) + 1;
    let mut map = UnitMap::new(slots, None);
    for slot in 0..slots {
        map.recover(slot, chunk(slot, 0, 0), 1).unwrap();
    }
    map.index().unwrap();
    assert_eq!((map.used(), map.slot(chunk(1 << 20, 0, 0))), (slots, Some(1 << 20)));
}

#[test]
fn recovery_needs_no_more_owners_than_the_live_map_did() {
    let mut map = UnitMap::new(40, None);
    map.most_owners = 16;
    let put = |map: &mut UnitMap, slot, volume| {
        map.recover(slot, chunk(volume, 0, 0), 1).unwrap();
    };
    (0..15).for_each(|v| put(&mut map, v, v));
    map.drop_owners(|_, v| v.0 < 5);
    // New owners in new slots, in slots of other owners, and in slots that were cleared.
    (20..25).for_each(|v| put(&mut map, v, v));
    (25..30).for_each(|v| put(&mut map, v - 20, v));
    (30..35).for_each(|v| {
        map.recover_clear(v - 20, 1);
        put(&mut map, v, v);
    });
    map.index().unwrap();
    assert_eq!(map.used(), 15);
    assert!((20..35).all(|v| map.slot(chunk(v, 0, 0)).is_some()));
    assert!((0..15).all(|v| map.slot(chunk(v, 0, 0)).is_none()));
    put(&mut map, 35, 35);
    assert_eq!(map.recover(36, chunk(36, 0, 0), 1), Err(TooManyOwners));
    assert_eq!(map.recover(35, chunk(36, 0, 0), 1), Ok(true), "in the place of the last one");
}

/// What `units` has to return: a look at every slot.
fn scan(map: &UnitMap, group: GroupId) -> Vec<UnitKey> {
    let slots = 0..map.owner.len() as u32;
    let live = slots.filter(|s| map.valid(*s) != 0 && map.life(*s) == Life::Live);
    let chunks = live.filter_map(|slot| map.chunk(slot)).filter(|c| c.group == group);
    let units: std::collections::BTreeSet<UnitKey> = chunks.map(|c| c.unit).collect();
    units.into_iter().collect()
}

/// Everything that the store does with the map, in any order, as far as it may.
#[test]
fn the_units_of_a_group_are_those_that_a_scan_finds() {
    let mut prng = Prng::new(5);
    let (mut map, mut pins) = (UnitMap::new(200, Some(3)), Vec::new());
    for step in 0..30_000 {
        let c = chunk(prng.below(4) as u32, prng.below(9) as u32, prng.below(16) as u8);
        let blocks = 1 << prng.below(3);
        match prng.below(100) {
            0 => map.drop_owners(|g, v| (g, v) == (c.group, c.unit.volume)),
            1 => map.drop_owners(|g, _| g == c.group),
            2..4 => map.begin_sweep(|g, _| g == c.group),
            4..8 => map.sweep(3, |_| {}),
            8..30 => pins.extend(map.pin(c, Access::Hold)),
            30..50 if !pins.is_empty() => {
                map.unpin(pins.swap_remove(prng.below(pins.len() as u64) as usize));
            }
            50..65 if !pins.is_empty() => {
                map.set(pins[prng.below(pins.len() as u64) as usize].slot, blocks);
            }
            65..75 => {
                // The chunk moves to a second slot, as a write of a whole slot does it. Its owner
                // may be dropped before the write is durable.
                let Some(old) = map.slot(c) else { continue };
                if pins.iter().any(|pin: &Pin| pin.slot == old) {
                    continue; // no other job may change it then
                }
                let Some(pin) = map.pin_second(c) else { continue };
                if prng.chance(0.1) {
                    map.drop_owners(|g, v| (g, v) == (c.group, c.unit.volume));
                }
                map.replace(old, pin.slot);
                map.clear(old, u16::MAX);
                map.set(pin.slot, u16::MAX);
                map.unpin(pin);
            }
            _ => {
                let Some(slot) = map.slot(c) else { continue };
                map.clear(slot, blocks | 4);
            }
        }
        for group in (0..3).map(GroupId) {
            assert_eq!(map.units(group), scan(&map, group), "step {step}");
        }
    }
    pins.into_iter().for_each(|pin| map.unpin(pin));
    map.drop_owners(|_, _| true);
    map.begin_sweep(|_, _| true);
    map.sweep(u32::MAX, |_| {});
    assert_eq!((map.used(), map.owners.len() - map.unused_owners.len()), (0, 0));
}

#[test]
fn the_units_of_a_group_are_known_after_a_recovery() {
    let (mut map, mut prng) = (UnitMap::new(400, None), Prng::new(6));
    for slot in 0..400 {
        let c = chunk(slot % 5, slot / 80, (slot / 5 % 16) as u8);
        map.recover(slot, c, 1).unwrap();
    }
    (0..200).for_each(|_| map.recover_clear(prng.below(400) as u32, 1));
    map.drop_owners(|_, v| v == VolumeId(2));
    map.index().unwrap();
    for group in (0..3).map(GroupId) {
        assert_eq!(map.units(group), scan(&map, group));
    }
    // What the recovery built goes on to be right.
    let group = GroupId(0);
    for unit in map.units(group) {
        assert!(scan(&map, group).contains(&unit));
        for chunk in 0..16 {
            if let Some(slot) = map.slot(Chunk { group, unit, chunk }) {
                map.clear(slot, 1);
            }
        }
        assert_eq!(map.units(group), scan(&map, group));
    }
    assert!(map.units(group).is_empty() && !map.units(GroupId(1)).is_empty());
}

#[test]
fn the_units_of_a_group_are_listed_without_a_look_at_a_slot() {
    let mut map = UnitMap::new(64 << 10, None);
    for unit in 0..4000 {
        for i in 0..16 {
            fill(&mut map, chunk(1, unit, i));
        }
    }
    SLOTS_LOOKED_AT.set(0);
    assert_eq!(map.units(GroupId(2)).len(), 1333);
    assert_eq!(SLOTS_LOOKED_AT.get(), 0);
    assert_eq!(scan(&map, GroupId(2)).len(), 1333);
    assert!(SLOTS_LOOKED_AT.get() >= 64 << 10, "a scan is counted");
}

/// Measures a full map of 1 TiB. `--release -- --ignored --nocapture a_full_map`
#[test]
#[ignore = "it measures, and takes a minute"]
fn a_full_map_of_a_tebibyte_in_numbers() {
    const SLOTS: u32 = 1 << 24;
    const GROUPS: u32 = 256;
    // Units of 16 slots that lie together, and units of one slot each, anywhere.
    for scattered in [false, true] {
        let at = |slot: u32| {
            let (unit, chunk) = match scattered {
                true => (slot.wrapping_mul(2_654_435_761) % SLOTS, 0),
                false => (slot / 16, slot as u8 % 16),
            };
            let key = UnitKey { volume: VolumeId(1), index: unit };
            Chunk { group: GroupId(unit % GROUPS), unit: key, chunk }
        };
        let mut map = UnitMap::new(SLOTS, None);
        let begin = std::time::Instant::now();
        (0..SLOTS).for_each(|slot| assert!(map.recover(slot, at(slot), 1).is_ok()));
        let recovered = begin.elapsed();
        map.index().unwrap();
        let indexed = begin.elapsed() - recovered;
        let begin = std::time::Instant::now();
        let units = map.units(GroupId(7)).len();
        let listed = begin.elapsed();
        let begin = std::time::Instant::now();
        for i in 0..100_000u32 {
            let old = i.wrapping_mul(40_503) % SLOTS;
            let key = map.chunk(old).unwrap();
            map.clear(old, 1);
            fill(&mut map, key);
        }
        let turn = begin.elapsed() / 100_000;
        std::println!(
            "scattered {scattered}: recover {recovered:?}, index {indexed:?}, \
             {units} units of a group {listed:?}, free a slot and take it again {turn:?}"
        );
    }
}

#[test]
fn the_unit_map_of_a_tebibyte_takes_less_than_236_mib() {
    let slots = 1 << 24;
    let map = UnitMap::new(slots, None);
    let bytes = map.owner.len() * 4
        + map.unit.len() * 4
        + map.valid.len() * 2
        + map.places.len() * 4
        + slots as usize / 8;
    assert!(bytes < 236 << 20, "{} MiB", bytes >> 20);
}
