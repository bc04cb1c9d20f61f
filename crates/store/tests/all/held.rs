//! One slow operation holds back later ones: in the log, and in the memory of the next mount.

use crate::common::{Fate, World};
use base::{BLOCK, UNIT, UnitKey, VolumeId};

/// Bytes that may wait in memory for their slots, in these tests.
const OVERLAY: usize = 64 << 10;

/// Size of a device with a log of 16 MiB.
const SIZE: u64 = 512 << 20;

/// Makes a device with units that are full of data.
fn filled(size: u64, overlay: usize, units: u32) -> (World, UnitKey) {
    let mut world = World::sized(1, false, size);
    world.tuning.overlay_bytes = overlay;
    world.tuning.fresh_sums = 14 << 10; // the log alone makes checkpoints due
    world.mount(None).unwrap();
    let unit = |index| UnitKey { volume: VolumeId(1), index };
    for unit in (1..=units).map(unit) {
        world.write(World::group(unit), unit, 0, UNIT, false);
    }
    world.settle();
    (world, unit(1))
}

/// Overwrites old data `times` times while a write of fresh data hangs.
fn overwrite_beside_one_that_hangs(world: &mut World, unit: UnitKey, times: u32) {
    let fresh = UnitKey { index: 2, ..unit };
    world.write(World::group(fresh), fresh, 0, 16 * BLOCK, false);
    world.hold(); // its record is queued: the log is written at the next flush
    for n in 0..times {
        world.write(World::group(unit), unit, n % 10 * BLOCK, BLOCK, false);
        world.flush();
        for _ in 0..20 {
            if world.has_open() {
                world.step();
            }
        }
    }
}

#[test]
fn a_write_of_data_that_hangs_keeps_little_in_memory_at_the_next_mount() {
    let (mut world, unit) = filled(SIZE, OVERLAY, 1);
    let before = world.store.as_ref().unwrap().records_written();
    overwrite_beside_one_that_hangs(&mut world, unit, 2000);
    let records = world.store.as_ref().unwrap().records_written() - before;
    assert!(records > 50, "work goes on for a while: {records}");
    world.crash(Fate::Kept);
    world.mount(None).unwrap();
    let most = 8 * OVERLAY + (2 << 20); // and the data that is being read
    assert!(world.most_used < most, "{} KiB", world.most_used >> 10);
    world.compare();
}

#[test]
fn jobs_behind_a_hanging_write_go_on_when_it_has_ended() {
    let (mut world, unit) = filled(SIZE, OVERLAY, 1);
    overwrite_beside_one_that_hangs(&mut world, unit, 2000);
    let before = world.ended;
    world.release();
    world.settle();
    assert!(world.ended - before > 2, "some waited");
    world.compare_content();
}

/// A write hangs until no more records fit behind its own. Even then, the log says that the last
/// write before that has completed.
#[test]
fn damage_of_the_last_write_is_found_while_jobs_wait_for_one_that_hangs() {
    let (mut world, unit) = filled(SIZE, OVERLAY, 1);
    let slow = UnitKey { index: 2, ..unit };
    world.write(World::group(slow), slow, 0, BLOCK, false);
    world.hold(); // its record is queued
    let (group, mut last) = (World::group(unit), None);
    for n in 0..2000 {
        let (unit, block) = (UnitKey { index: 3 + n / 256 * 2, ..unit }, n % 256);
        let before = world.ended;
        world.write(group, unit, block * BLOCK, BLOCK, false);
        world.flush();
        while world.has_open() {
            world.step();
        }
        if world.ended == before {
            break; // it waits
        }
        last = Some((unit, block));
    }
    let (unit, block) = last.expect("work goes on for a while");
    assert!(unit.index * 256 + block < 2000, "it ends");
    let place = world.store.as_ref().unwrap().place(group, unit, block).unwrap();
    world.crash(Fate::Dropped);
    world.disk.rot(place);
    world.may_be_damaged = true;
    world.mount(None).unwrap();
    world.read(group, unit, 0, (block + 1) * BLOCK);
    world.flush();
    while world.has_open() {
        world.step();
    }
    assert_eq!(world.corrupt, [(unit, block as u16, 1)], "it is not taken for a torn write");
}

/// Overwrites old data: every second block of the units from `first` on, `blocks` in all. With
/// `hangs`, the write of the first block to its slot hangs.
fn overwrite_every_second_block(world: &mut World, first: UnitKey, blocks: u32, hangs: bool) {
    let place = world.store.as_ref().unwrap().place(World::group(first), first, 0).unwrap();
    for n in 0..blocks {
        let unit = UnitKey { index: first.index + n / 128, ..first };
        world.write(World::group(unit), unit, n % 128 * 2 * BLOCK, BLOCK, false);
        world.flush();
        for _ in 0..20 {
            if hangs {
                world.hold_writes(place..place + 1);
            }
            if world.has_open() {
                world.step();
            }
        }
    }
}

/// Bytes that may wait in memory for their slots when many go there at the same time.
const WIDE: usize = 256 << 10;
/// Upper bound of a mount's memory then, with the data that it is reading.
const WIDE_MOST: usize = 10 * WIDE + (2 << 20);

#[test]
fn a_write_home_that_hangs_keeps_little_in_memory_at_the_next_mount() {
    let (mut world, unit) = filled(SIZE, WIDE, 15);
    let before = world.store.as_ref().unwrap().records_written();
    overwrite_every_second_block(&mut world, unit, 1900, true);
    let records = world.store.as_ref().unwrap().records_written() - before;
    assert!(records > 500, "work goes on for a while: {records}");
    world.crash(Fate::Kept);
    world.mount(None).unwrap();
    assert!(world.most_used < WIDE_MOST, "{} KiB", world.most_used >> 10);
    world.compare();
}

#[test]
fn jobs_behind_a_hanging_home_write_go_on_when_it_has_ended() {
    let (mut world, unit) = filled(SIZE, WIDE, 15);
    overwrite_every_second_block(&mut world, unit, 1900, true);
    let before = world.ended;
    world.release();
    world.settle();
    assert!(world.ended - before > 2, "some waited");
    world.compare_content();
}

/// A write home hangs until no more payload fits. Even then, the log says that the last write of
/// data before that has completed.
#[test]
fn damage_of_the_last_write_is_found_while_jobs_wait_for_a_write_home() {
    let (mut world, first) = filled(SIZE, WIDE, 15);
    let home = world.store.as_ref().unwrap().place(World::group(first), first, 0).unwrap();
    let run = |world: &mut World, unit: UnitKey, block: u32| {
        let before = world.ended;
        world.write(World::group(unit), unit, block * BLOCK, BLOCK, false);
        world.flush();
        world.hold_writes(home..home + 1);
        while world.has_open() {
            world.step();
            world.hold_writes(home..home + 1);
        }
        world.ended > before
    };
    let (mut n, mut last) = (0, (first, 0));
    while run(&mut world, UnitKey { index: 1 + n / 128, ..first }, n % 128 * 2) {
        last = (UnitKey { index: 101 + n / 256, ..first }, n % 256);
        assert!(run(&mut world, last.0, last.1) && n < 1900, "no old data is overwritten");
        n += 1;
    }
    let (unit, block) = last;
    let place = world.store.as_ref().unwrap().place(World::group(unit), unit, block).unwrap();
    world.crash(Fate::Dropped);
    world.disk.rot(place);
    world.may_be_damaged = true;
    world.mount(None).unwrap();
    world.read(World::group(unit), unit, block * BLOCK, BLOCK);
    world.flush();
    while world.has_open() {
        world.step();
    }
    assert_eq!(world.corrupt, [(unit, block as u16, 1)], "it is not taken for a torn write");
}

#[test]
fn a_block_behind_a_stream_keeps_little_in_memory_at_the_next_mount() {
    let overlay = 1 << 20;
    let (mut world, unit) = filled(4 << 30, overlay, 50);
    let second = UnitKey { index: 2, ..unit };
    overwrite_every_second_block(&mut world, second, 256, false); // the next are destaged
    world.write(World::group(unit), unit, 0, BLOCK, false);
    overwrite_every_second_block(&mut world, UnitKey { index: 4, ..unit }, 45 * 128, false);
    world.crash(Fate::Kept);
    world.mount(None).unwrap();
    let most = 10 * overlay + (2 << 20);
    assert!(world.most_used < most, "{} KiB", world.most_used >> 10);
    world.compare_content(); // the list of executed writes is too short for all of them
}
