//! Reads of units with data in scattered blocks take few operations and return only their data.

use crate::common::world::World;
use base::{BLOCK, BlockSet, GroupId, UNIT, UnitKey, VolumeId};

const UNIT_1: UnitKey = UnitKey { volume: VolumeId(1), index: 1 };

/// Makes a unit in which every second block holds data, with the checksums in memory.
fn sparse() -> (World, GroupId) {
    let mut world = World::new(1, false);
    world.mount(None).unwrap();
    let group = World::group(UNIT_1);
    for block in (0..UNIT / BLOCK).step_by(2) {
        world.write(group, UNIT_1, block * BLOCK, BLOCK, false);
    }
    world.settle();
    (world, group)
}

#[test]
fn a_read_costs_at_most_one_operation_per_slot() {
    let (mut world, group) = sparse();
    world.read(group, UNIT_1, 0, UNIT);
    world.flush();
    assert_eq!(world.open_len(), 16);
    world.settle();
    // The same where some blocks wait in memory for their slots, and where only these are read.
    world.write(group, UNIT_1, 0, 7 * BLOCK, false);
    world.settle();
    world.read(group, UNIT_1, 0, UNIT);
    world.flush();
    assert!(world.open_len() <= 16 + 1, "and a page of checksums");
    world.settle();
    world.compare_content();
}

#[test]
fn gaps_between_runs_are_not_read() {
    let (mut world, group) = sparse();
    world.write(group, UNIT_1, 0, UNIT, false);
    world.settle();
    for block in (1..UNIT / BLOCK).step_by(2) {
        world.write(group, UNIT_1, block * BLOCK, BLOCK, true);
    }
    world.settle();
    let data = world.fetch(group, UNIT_1, 0, UNIT);
    let zero = |block: &[u8]| block.iter().all(|b| *b == 0);
    assert_eq!(data.chunks(BLOCK as usize).filter(|b| zero(b)).count(), 128);
    world.compare_content();
}

#[test]
fn a_bad_block_between_runs_fails_nothing_and_one_in_a_run_only_itself() {
    let (mut world, group) = sparse();
    let place = |world: &World, block| {
        world.store.as_ref().unwrap().place(group, UNIT_1, block).expect("it holds data")
    };
    let gap = place(&world, 4) + u64::from(BLOCK);
    world.unreadable = (gap..gap + u64::from(BLOCK), u32::MAX);
    world.compare_content();
    let bad = place(&world, 6);
    world.unreadable = (bad..bad + u64::from(BLOCK), u32::MAX);
    world.may_be_damaged = true;
    world.read(group, UNIT_1, 0, UNIT);
    world.settle();
    assert_eq!(world.corrupt, [(UNIT_1, 6, 1)]);
    let rest = BlockSet::from_range(8..256);
    world.unreadable.1 = 0;
    world.read(group, UNIT_1, 8 * BLOCK, rest.len() * BLOCK);
    world.settle();
    assert_eq!(world.corrupt.len(), 1);
}

/// Another copy may lack a neighbour of the bad block, so a run is not damaged as a whole.
#[test]
fn a_bad_block_in_a_run_hurts_only_itself() {
    let (mut world, group) = sparse();
    world.write(group, UNIT_1, 0, UNIT, false);
    world.settle();
    let bad = world.store.as_ref().unwrap().place(group, UNIT_1, 41).expect("it holds data");
    world.unreadable = (bad..bad + u64::from(BLOCK), u32::MAX);
    world.may_be_damaged = true;
    world.read(group, UNIT_1, 0, UNIT);
    world.settle();
    assert_eq!(world.corrupt, [(UNIT_1, 41, 1)]);
    world.unreadable.1 = 0;
    world.corrupt.clear();
    world.write(group, UNIT_1, 41 * BLOCK, BLOCK, false);
    world.settle();
    world.compare_content();
}
