//! Space that is given back to the file system below the device (R18).

use crate::common::Fate;
use crate::common::lives::fill;
use crate::common::world::World;
use base::{UnitKey, VolumeId};
use seam::{DiskError, Note};
use store::durable::Durable;

const SLOT: u64 = 64 << 10;

fn store(world: &World) -> &Durable {
    world.store.as_ref().unwrap()
}

fn slots(world: &World) -> u64 {
    store(world).capacity() / SLOT
}

fn free(world: &World) -> u64 {
    store(world).capacity() - store(world).used()
}

/// Makes a device that gives back what was left over between two calls of `rest`.
fn mounted(write_through: bool) -> World {
    let mut world = World::new(1, write_through);
    world.tuning.holes = 1;
    world.mount(None).unwrap();
    world
}

/// Lets the device rest until there is nothing left to give back.
fn long_rest(world: &mut World) {
    let mut before = u64::MAX;
    while before != world.disk.holes() {
        before = world.disk.holes();
        for _ in 0..4 {
            world.rest();
            world.settle();
        }
    }
}

/// Zeros the `n`th slot of `fill`.
fn clear(world: &mut World, n: u64) {
    let unit = UnitKey { volume: VolumeId(1), index: 2 * (n / 16) as u32 + 1 };
    world.write(World::group(unit), unit, (n % 16) as u32 * SLOT as u32, SLOT as u32, true);
}

#[test]
fn freed_space_is_given_back_and_other_data_stays_whole() {
    for write_through in [false, true] {
        let mut world = mounted(write_through);
        let n = slots(&world) * 3 / 4;
        fill(&mut world, 0..n);
        long_rest(&mut world);
        assert_eq!(world.disk.holes(), free(&world), "also what was never used");
        let before = store(&world).stats().given_back;
        for i in (0..n).filter(|i| i % 3 != 0) {
            clear(&mut world, i);
        }
        world.settle();
        assert_eq!(store(&world).stats().given_back, before, "not at once");
        long_rest(&mut world);
        assert_eq!(world.disk.holes(), free(&world));
        world.compare_content();
        // It is taken again, and all of it is there.
        fill(&mut world, n..n + n / 2);
        world.compare_content();
        world.crash(Fate::Random);
        world.mount(None).unwrap();
        world.compare();
    }
}

#[test]
fn a_crash_before_the_operation_leaks_nothing() {
    let mut world = mounted(false);
    let n = slots(&world) * 3 / 4;
    fill(&mut world, 0..n);
    long_rest(&mut world);
    (0..n / 2).for_each(|i| clear(&mut world, i));
    world.settle();
    world.rest();
    world.hold_punches();
    world.crash(Fate::Dropped);
    world.mount(None).unwrap();
    world.compare();
    long_rest(&mut world);
    assert_eq!(world.disk.holes(), free(&world));
    world.compare_content();
}

#[test]
fn while_the_operation_hangs_most_free_space_can_be_taken() {
    let mut world = mounted(false);
    world.rest();
    world.rest();
    let held = world.hold_punches();
    assert!(held > 0 && held <= store(&world).capacity() / 8, "{held}");
    (0..20).for_each(|_| world.rest());
    assert!(!world.has_open(), "there is one operation at a time");
    let all = slots(&world);
    fill(&mut world, 0..all);
    assert!(world.fulls > 0);
    assert_eq!(free(&world), held);
    world.compare_content();
    world.release();
    world.settle();
    fill(&mut world, all..2 * all);
    assert_eq!(free(&world), 0);
    world.compare_content();
}

#[test]
fn a_device_that_can_not_punch_holes_is_asked_once() {
    for why in [DiskError::Unsupported, DiskError::Io] {
        let mut world = mounted(false);
        world.rest();
        world.rest();
        assert!(world.end_or_fail(Some(why)));
        for _ in 0..20 {
            world.rest();
            assert!(!world.has_open());
        }
        assert_eq!(store(&world).failed(), None);
        let device = store(&world).identity().device;
        assert_eq!(world.notes, [Note::SpaceKept { device, why }]);
        let all = slots(&world);
        fill(&mut world, 0..all);
        assert_eq!(free(&world), 0);
        world.compare_content();
    }
}

#[test]
fn overwrites_of_whole_slots_give_nothing_back() {
    let mut world = mounted(false);
    let n = slots(&world) / 2;
    fill(&mut world, 0..n);
    long_rest(&mut world);
    let before = store(&world).stats().given_back;
    for i in 0..400 {
        let unit = UnitKey { volume: VolumeId(1), index: 2 * (i % n / 16) as u32 + 1 };
        let at = (i % 16) as u32 * SLOT as u32;
        world.write(World::group(unit), unit, at, SLOT as u32, false);
        world.settle();
        if i % 5 == 0 {
            world.rest();
            world.settle();
        }
    }
    let given = store(&world).stats().given_back - before;
    assert!(given <= 2 * SLOT, "{given}");
    world.compare_content();
}
