//! One operation that takes long holds what comes behind it: in the log, and in the memory of the next mount.

mod common;

use base::{BLOCK, UNIT, UnitKey, VolumeId};
use common::{Fate, World};

/// Bytes that may wait in memory for their slots, here.
const OVERLAY: usize = 64 << 10;

/// A device with a log of 16 MiB, and a unit full of data.
fn filled() -> (World, UnitKey) {
    let mut world = World::sized(1, false, 512 << 20);
    world.tuning.overlay_bytes = OVERLAY;
    world.mount(None).unwrap();
    let unit = UnitKey { volume: VolumeId(1), index: 1 };
    world.write(World::group(unit), unit, 0, UNIT, false);
    world.settle();
    (world, unit)
}

/// A write of fresh data hangs while old data is overwritten, so many times.
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
    let (mut world, unit) = filled();
    let before = world.store.as_ref().unwrap().records_written();
    overwrite_beside_one_that_hangs(&mut world, unit, 2000);
    let records = world.store.as_ref().unwrap().records_written() - before;
    assert!(records > 50, "work goes on for a while: {records}");
    world.crash(Fate::Kept);
    world.mount(None).unwrap();
    let most = 8 * OVERLAY + (2 << 20); // and what is being read
    assert!(world.most_used < most, "{} KiB", world.most_used >> 10);
    world.compare();
}

#[test]
fn what_waits_behind_a_write_that_hangs_goes_on_when_it_has_ended() {
    let (mut world, unit) = filled();
    overwrite_beside_one_that_hangs(&mut world, unit, 2000);
    let before = world.ended;
    world.release();
    world.settle();
    assert!(world.ended - before > 2, "some waited");
    world.compare_content();
}
