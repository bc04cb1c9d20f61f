//! Devices that return other data than was written, and devices that must not be mounted.

use crate::common;
use crate::common::disk::Fate;
use crate::common::lives;
use crate::common::world::{CLUSTER, SIZE, World, expected, identity};
use base::{BLOCK, ClusterId, DeviceId, UNIT, UnitKey, VolumeId};
use seam::{DiskError, UnitStore};
use store::durable::layout::{Layout, SMALLEST};
use store::durable::{Expected, Identity, MountError};

fn unit(index: u32) -> UnitKey {
    UnitKey { volume: VolumeId(1), index }
}

/// Makes a device with two whole units, all of it in its slots, not mounted.
fn written() -> World {
    let mut world = World::new(1, true);
    world.mount(None).unwrap();
    for u in [unit(1), unit(3)] {
        world.write(World::group(u), u, 0, UNIT, false);
    }
    world.settle();
    world.store.as_mut().unwrap().request_checkpoint();
    world.settle();
    world.store = None;
    world
}

fn why(world: &mut World, expected: Expected, bytes: u64) -> MountError {
    world.mount_as(expected, bytes, None).expect_err("it must not be mounted")
}

#[test]
fn bits_that_rot_are_found_named_and_repaired_by_a_write() {
    (1..=30).for_each(lives::rot_is_found);
}

#[test]
fn data_that_lands_in_the_place_of_other_data_is_found() {
    let mut world = written();
    world.mount(None).unwrap();
    let group = World::group(unit(1));
    let place = |w: &World, u, b| w.store.as_ref().unwrap().place(group, u, b).unwrap();
    let (here, there) = (place(&world, unit(1), 7), place(&world, unit(3), 7));
    let mut data = vec![0; BLOCK as usize];
    world.disk.read(there, &mut data);
    world.disk.write(here, &data, false);
    world.may_be_damaged = true;
    world.read(group, unit(1), 0, UNIT);
    world.read(group, unit(3), 0, UNIT);
    world.settle();
    assert_eq!(world.corrupt, [(unit(1), 7, 1)]);
    assert_eq!(world.store.as_ref().unwrap().stats().corrupt, 1);
}

#[test]
fn a_write_that_the_device_lost_is_found() {
    let mut world = written();
    world.mount(None).unwrap();
    let group = World::group(unit(1));
    let place = world.store.as_ref().unwrap().place(group, unit(1), 3).unwrap();
    let mut old = vec![0; BLOCK as usize];
    world.disk.read(place, &mut old);
    world.write(group, unit(1), 3 * BLOCK, BLOCK, false);
    world.settle();
    world.store.as_mut().unwrap().request_checkpoint();
    world.settle();
    world.disk.write(place, &old, false); // undoes the write from the log to the slot
    world.may_be_damaged = true;
    world.read(group, unit(1), 0, 8 * BLOCK);
    world.settle();
    assert_eq!(world.corrupt, [(unit(1), 3, 1)]);
}

/// After the device has rested, damage of the last write does not look like a torn write.
#[test]
fn damage_of_the_last_write_is_found_after_a_rest() {
    for log in [false, true] {
        let mut world = written();
        world.mount(None).unwrap();
        let u = unit(5);
        let group = World::group(u);
        world.write(group, u, 0, 4 * BLOCK, false);
        world.settle();
        let rest = |world: &mut World| {
            let batches = world.store.as_ref().unwrap().stats().batches;
            let World { store, out, .. } = world;
            store.as_mut().unwrap().rest(out);
            world.settle();
            world.store.as_ref().unwrap().stats().batches - batches
        };
        assert_eq!([(); 4].map(|()| rest(&mut world)), [0, 1, 0, 0], "it was written to until now");
        let place = world.store.as_ref().unwrap().place(group, u, 2).unwrap();
        world.crash(Fate::Kept);
        if log {
            // After a mount and another crash, the log is empty, and there is nothing to log.
            world.mount(None).unwrap();
            assert_eq!([(); 3].map(|()| rest(&mut world)), [0; 3]);
            world.crash(Fate::Kept);
        }
        world.disk.write(place, &[7; BLOCK as usize], false);
        world.may_be_damaged = true;
        world.mount(None).unwrap();
        world.read(group, u, 0, 4 * BLOCK);
        world.settle();
        assert_eq!(world.corrupt, [(u, 2, 1)], "it is not taken for a write that never ended");
    }
}

#[test]
fn damage_of_a_write_is_found_although_an_older_write_hangs() {
    (1..=20).for_each(lives::rot_behind_a_slow_write);
}

#[test]
fn lost_blocks_fail_through_every_mount_until_they_are_written_whole() {
    for saved in [false, true] {
        let mut world = written();
        world.mount(None).unwrap();
        let group = World::group(unit(1));
        world.write(group, unit(1), 14 * BLOCK, BLOCK, false); // in memory, not in its slot yet
        world.settle();
        world.lose(group, unit(1), 14 * BLOCK, 4 * BLOCK); // across the end of a slot
        world.lose(group, unit(5), 2 * BLOCK, BLOCK); // where there was no data
        world.settle();
        if saved {
            world.store.as_mut().unwrap().request_checkpoint();
            world.settle();
        }
        world.crash(common::Fate::Dropped);
        world.mount(None).unwrap();
        world.may_be_damaged = true;
        world.read(group, unit(1), 0, 14 * BLOCK);
        world.read(group, unit(1), 18 * BLOCK, UNIT - 18 * BLOCK);
        world.read(group, unit(5), 0, 2 * BLOCK);
        world.settle();
        assert!(world.corrupt.is_empty(), "their neighbours are whole");
        world.read(group, unit(1), 13 * BLOCK, 6 * BLOCK);
        world.read(group, unit(5), 0, UNIT);
        world.settle();
        world.write(group, unit(1), 17 * BLOCK + 512, 512, false);
        world.settle();
        world.corrupt.sort_unstable();
        assert_eq!(world.corrupt, [(unit(1), 14, 4), (unit(1), 17, 1), (unit(5), 2, 1)]);
        world.corrupt.clear();
        world.write(group, unit(1), 14 * BLOCK, 4 * BLOCK, false);
        world.write(group, unit(5), 2 * BLOCK, BLOCK, false);
        world.settle();
        world.read(group, unit(1), 0, UNIT);
        world.read(group, unit(5), 0, UNIT);
        world.settle();
        assert!(world.corrupt.is_empty(), "written whole");
    }
}

#[test]
fn any_single_damage_of_metadata_is_repaired_or_refused() {
    let layout = Layout::new(SIZE).unwrap();
    let (mut refused, mut lost_sums) = (0, 0);
    for (i, at) in
        (0..layout.extents[0].slots.at).step_by(4096).chain([SIZE / 2, SIZE - 65536]).enumerate()
    {
        if (layout.log.at..layout.extents[0].map.at).contains(&at) {
            continue; // free after the checkpoint
        }
        let mut world = written();
        world.disk.rot(at + (i as u64 * 7) % 16);
        match world.mount(None) {
            Ok(_) => {
                world.may_be_damaged = true; // with lost checksums, each of their blocks is damaged
                for u in [unit(1), unit(3)] {
                    world.read(World::group(u), u, 0, UNIT);
                }
                world.settle();
                let sums = (layout.extents[0].sums.at..layout.extents[0].slots.at).contains(&at);
                assert!(world.corrupt.is_empty() || sums, "at {at}");
                lost_sums += usize::from(!world.corrupt.is_empty());
            }
            Err(MountError::Damaged { .. }) => refused += 1,
            Err(other) => panic!("at {at}: {other}"),
        }
    }
    assert_eq!((refused, lost_sums), (3, 1), "root, records, map; checksums");
}

#[test]
fn damage_in_the_middle_of_the_log_is_no_torn_tail() {
    let mut world = World::new(3, true);
    world.mount(None).unwrap();
    let layout = Layout::new(SIZE).unwrap();
    for i in 0..8 {
        world.write(World::group(unit(1)), unit(1), i * BLOCK, BLOCK, false);
        world.settle();
    }
    world.crash(common::Fate::Kept);
    // The log of this mount begins at the start of the ring: a byte of batch 3 of 8 rots.
    world.disk.rot(layout.log.at + 3 * 4096 + 40);
    let error = why(&mut world, expected(), SIZE);
    assert_eq!(error, MountError::Damaged { what: "the log", at: layout.log.at + 3 * 4096 });
}

#[test]
fn three_superblocks_may_rot() {
    let places = Layout::superblocks(SIZE);
    for kept in 0..4 {
        let mut world = written();
        (0..4).filter(|i| *i != kept).for_each(|i| world.disk.rot(places[i] + 100));
        world.mount(None).unwrap();
        world.compare_content();
    }
    let mut world = written();
    places.iter().for_each(|at| world.disk.rot(at + 100));
    let error = why(&mut world, expected(), SIZE);
    assert_eq!(error, MountError::Damaged { what: "every superblock", at: 0 });
}

#[test]
fn another_device_is_refused_with_a_reason() {
    let mut world = written();
    let other = Expected { cluster: Some(ClusterId(78)), ..expected() };
    let error = why(&mut world, other, SIZE);
    assert_eq!(error, MountError::OtherCluster { found: CLUSTER, wanted: ClusterId(78) });
    let other = Expected { device: Some(DeviceId(4)), ..expected() };
    let error = why(&mut world, other, SIZE);
    assert_eq!(error, MountError::OtherDevice { found: DeviceId(3), wanted: DeviceId(4) });
    let error = why(&mut world, expected(), SIZE - 65536);
    assert_eq!(error, MountError::Shrunk { was: SIZE, is: SIZE - 65536 });
    let error = why(&mut world, expected(), 1 << 20);
    assert_eq!(error, MountError::TooSmall { bytes: 1 << 20, needed: SMALLEST });
    // Each error says what to do.
    assert!(error.to_string().contains("use one of at least"));
    world.mount_as(Expected { cluster: None, device: None, ..expected() }, SIZE, None).unwrap();
    world.compare_content();
}

/// Writes these features into a copy of the superblock.
fn with_features(world: &mut World, copy: usize, features: u64) {
    let at = Layout::superblocks(SIZE)[copy];
    let mut page = [0; 512];
    world.disk.read(at, &mut page);
    page[16..24].copy_from_slice(&features.to_le_bytes());
    page[12..16].fill(0);
    let crc = base::crc::crc32c(&page);
    page[12..16].copy_from_slice(&crc.to_le_bytes());
    world.disk.write(at, &page, true);
}

#[test]
fn a_device_with_a_feature_of_a_higher_level_is_refused_before_it_is_read() {
    let root = Layout::new(SIZE).unwrap().root;
    let known = base::level::features(1);
    // A checkpoint that sets a feature writes copies 0 and 2 first, and then 1 and 3.
    for copies in [&[0][..], &[0, 2], &[0, 2, 1], &[0, 1, 2, 3]] {
        let mut world = written();
        copies.iter().for_each(|copy| with_features(&mut world, *copy, known | 1 << 40));
        root.iter().for_each(|area| world.disk.rot(area.at + 8));
        let refused = MountError::Features { unknown: 1 << 40 };
        assert_eq!(why(&mut world, expected(), SIZE), refused, "{copies:?}");
        assert!(refused.to_string().contains("update"));
    }
    // The table of levels decides: a build of before level 1 has none of its features.
    let mut world = written();
    (0..4).for_each(|copy| with_features(&mut world, copy, known));
    let before = Expected { level_max: 0, ..expected() };
    assert_eq!(why(&mut world, before, SIZE), MountError::Features { unknown: known });
    world.mount_as(expected(), SIZE, None).unwrap();
    world.compare_content();
}

#[test]
fn a_device_of_a_higher_level_is_refused_before_anything_else_of_it_is_read() {
    let next = Expected { level_max: 2, ..expected() };
    let level = |world: &World, at: u64| {
        let mut page = [0; 512];
        world.disk.read(at, &mut page);
        u32::from_le_bytes(page[36..40].try_into().unwrap())
    };
    let refused = MountError::Level { level: 2, known: 1 };
    // The checkpoint that raises the level stops after each number of operations.
    let mut raised = 0;
    for ends in 0.. {
        let mut world = written();
        world.mount_as(next, SIZE, None).unwrap();
        let store = world.store.as_mut().unwrap();
        assert_eq!(store.level(), 1);
        store.raise_level(2);
        let mut done = 0;
        let over = loop {
            world.store.as_mut().unwrap().flush(&mut world.out);
            if done == ends {
                break false;
            }
            if !world.end_or_fail(None) {
                break true;
            }
            done += 1;
        };
        world.crash(Fate::Kept);
        // One of the two copies whose place every build knows.
        let any = Layout::superblocks(SIZE)[..2].iter().any(|at| level(&world, *at) == 2);
        raised += u32::from(any);
        if any {
            assert_eq!(why(&mut world, expected(), SIZE), refused, "after {ends}");
        }
        world.mount_as(next, SIZE, None).unwrap();
        assert!(!any || world.store.as_ref().unwrap().level() == 2);
        world.compare_content();
        if over {
            assert!(raised > 1 && ends > 5, "{ends}");
            let all = Layout::superblocks(SIZE).map(|at| level(&world, at));
            assert_eq!(all, [2; 4]);
            return;
        }
    }
}

#[test]
fn a_newer_format_is_refused_whatever_its_checksum() {
    let mut world = written();
    for at in Layout::superblocks(SIZE) {
        let mut page = [0; 512];
        world.disk.read(at, &mut page);
        page[8] = 2;
        world.disk.write(at, &page, false);
    }
    assert_eq!(why(&mut world, expected(), SIZE), MountError::Newer { format: 2 });
}

#[test]
fn a_device_with_data_is_formatted_only_by_force() {
    let mut world = written();
    let new = Identity { uuid: [5, 6], ..identity() };
    assert_eq!(world.format(new, false), Err(MountError::InUse));
    world.mount(None).unwrap();
    world.compare_content();
    world.store = None;
    world.format(new, true).unwrap();
    world.mount(None).unwrap();
    let store = world.store.as_ref().unwrap();
    assert_eq!((store.used(), store.identity()), (0, new));
}

#[test]
fn a_format_that_was_not_finished_left_no_device() {
    let mut world = World::new(1, true);
    for at in Layout::superblocks(SIZE) {
        world.disk.write(at, &[0; 4096], false);
    }
    assert_eq!(why(&mut world, expected(), SIZE), MountError::Unformatted);
}

#[test]
fn unreadable_blocks_count_as_damaged_and_nothing_else_fails() {
    let mut world = written();
    world.mount(None).unwrap();
    let group = World::group(unit(1));
    world.may_be_damaged = true;
    world.read(group, unit(1), 0, BLOCK);
    while world.end_or_fail(Some(DiskError::Io)) {}
    let store = world.store.as_mut().unwrap();
    let ended = store.finished().expect("the read ended");
    assert!(matches!(ended.result, Err(DiskError::Corrupt { first: 0, blocks: 1 })));
    assert_eq!(store.failed(), None);
    assert!(store.is_idle());
    // Unreadable neighbours are found together, so one repair does for all of them.
    world.read(World::group(unit(3)), unit(3), 0, 16 * BLOCK);
    while world.end_or_fail(Some(DiskError::Io)) {}
    let ended = world.store.as_mut().unwrap().finished().expect("the read ended");
    assert!(matches!(ended.result, Err(DiskError::Corrupt { first: 0, blocks: 16 })));
}

/// Writes a block of the first unit, lets its page of checksums be loaded and saved, mounts again.
fn save_checksums(world: &mut World) {
    world.mount(None).unwrap();
    world.write(World::group(unit(1)), unit(1), 5 * BLOCK, BLOCK, false);
    world.settle();
    world.store.as_mut().unwrap().request_checkpoint();
    world.settle();
    world.store = None;
    world.mount(None).unwrap();
}

#[test]
fn checksums_that_fail_to_be_read_for_a_moment_are_not_saved_as_lost() {
    let layout = Layout::new(SIZE).unwrap();
    let sums = layout.extents[0].sums.at..layout.extents[0].slots.at;
    for times in 1..=3 {
        let mut world = written();
        world.unreadable = (sums.clone(), times);
        save_checksums(&mut world);
        assert_eq!(world.unreadable.1, 0, "they were read");
        world.compare_content();
    }
}

#[test]
fn a_page_of_checksums_with_one_unreadable_copy_is_lost_only_with_the_one_that_counts() {
    let layout = Layout::new(SIZE).unwrap();
    let mut lost = 0;
    for copy in 0..2 {
        let mut world = written();
        world.mount(None).unwrap();
        let at = layout.sum_page(0) + copy * 4096;
        world.unreadable = (at..at + 4096, u32::MAX);
        world.may_be_damaged = true;
        world.read(World::group(unit(1)), unit(1), 0, UNIT);
        world.settle();
        let pages = world.store.as_ref().unwrap().stats().lost_pages;
        assert_eq!(pages == 0, world.corrupt.is_empty());
        lost += pages;
    }
    assert_eq!(lost, 1);
}

#[test]
fn data_at_the_logs_end_that_cannot_be_read_is_damage_and_no_reason_to_refuse() {
    let mut world = written();
    world.mount(None).unwrap();
    let group = World::group(unit(9));
    world.write(group, unit(9), 0, 4 * BLOCK, false);
    world.settle();
    let at = world.store.as_ref().unwrap().place(group, unit(9), 2).expect("it is written");
    world.store = None;
    world.unreadable = (at..at + u64::from(BLOCK), u32::MAX);
    world.mount(None).unwrap();
    world.may_be_damaged = true;
    world.read(group, unit(9), 0, 4 * BLOCK);
    world.settle();
    assert!(!world.corrupt.is_empty(), "somebody was told that it is there");
    // After it is written again, it is as good as before.
    world.unreadable.1 = 0;
    world.corrupt.clear();
    world.write(group, unit(9), 2 * BLOCK, BLOCK, false);
    world.settle();
    world.compare_content();
}
