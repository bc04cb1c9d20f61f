//! Devices that become larger.

use crate::common::world::{SIZE, World, expected};
use crate::common::{Crash, Fate, lives};
use base::MIB;
use store::durable::MountError;
use store::durable::layout::{GROWTHS, Layout, NotGrown, SMALLEST_GROWTH};
use store::durable::survey::Growth;

/// Makes a device that is full and at rest, not mounted.
fn full(seed: u64, write_through: bool) -> World {
    let mut world = World::new(seed, write_through);
    world.mount(None).unwrap();
    lives::fill(&mut world, 0..u64::MAX);
    world.settle();
    world.store = None;
    world
}

fn capacity(world: &World) -> u64 {
    world.store.as_ref().unwrap().capacity()
}

#[test]
fn a_full_device_has_room_after_each_growth_and_keeps_what_it_holds() {
    for sizes in [[33 * MIB, 50 * MIB], [32 * MIB, 48 * MIB], [40 * MIB + 4711, 200 * MIB + 512]] {
        let mut world = full(1, true);
        let mut before = Layout::new(SIZE).unwrap();
        for (bytes, from) in sizes.into_iter().zip([1000, 2000]) {
            world.disk.size = bytes;
            world.mount(None).unwrap();
            let store = world.store.as_ref().unwrap();
            assert_eq!(store.growth(), Growth { from: before.size, bytes, refused: None });
            before = before.grown(bytes).unwrap();
            assert_eq!((store.layout(), capacity(&world)), (&before, before.capacity()));
            world.compare();
            lives::fill(&mut world, from..u64::MAX);
            let store = world.store.as_ref().unwrap();
            assert_eq!(store.used(), before.capacity());
            world.compare();
            world.crash(Fate::Kept);
            world.mount(None).unwrap();
            assert_eq!(world.store.as_ref().unwrap().growth().refused, Some(NotGrown::TooLittle));
            world.compare();
        }
    }
}

#[test]
fn a_device_grows_so_often_and_not_more() {
    let mut world = full(1, true);
    for _ in 0..GROWTHS {
        world.disk.size += SMALLEST_GROWTH;
        world.mount(None).unwrap();
        assert_eq!(world.store.as_ref().unwrap().growth().refused, None);
    }
    let most = capacity(&world);
    world.disk.size += SMALLEST_GROWTH;
    world.mount(None).unwrap();
    let refused = world.store.as_ref().unwrap().growth().refused;
    assert_eq!((refused, capacity(&world)), (Some(NotGrown::TooOften), most));
    world.compare();
}

#[test]
fn a_device_that_is_hardly_larger_is_as_it_was() {
    let mut world = full(1, true);
    let before = Layout::new(SIZE).unwrap();
    world.disk.size += SMALLEST_GROWTH - 1;
    world.mount(None).unwrap();
    world.compare();
    let store = world.store.as_ref().unwrap();
    assert_eq!((store.layout(), store.growth().refused), (&before, Some(NotGrown::TooLittle)));
    world.store = None;
    world.disk.size = SIZE;
    world.mount(None).unwrap();
    world.compare();
}

#[test]
fn data_survives_crashes_while_a_device_grows() {
    (1..=150).for_each(lives::grown);
}

/// Grows a full device, with a crash after `after` operations of mount and jobs. Returns true when
/// there was none.
fn grow_with_a_crash(world: &mut World, after: u64, fate: Fate) -> bool {
    world.fifo = true;
    world.disk.size = 2 * SIZE + 5 * MIB;
    let start = world.ops;
    if !world.mount(Some(Crash { after, fate })).unwrap() {
        return false;
    }
    for n in 1000..1030 {
        lives::take(world, n);
        world.flush();
        if !world.step_until(start + after) {
            world.crash(fate);
            return false;
        }
    }
    world.settle();
    world.crash(fate);
    true
}

#[test]
fn acknowledged_writes_survive_a_crash_at_every_operation_of_a_growth() {
    lives::crash_everywhere(50, |write_through, after, fate, left| {
        // There is something to replay.
        let mut world = full(5, write_through);
        world.mount(None).unwrap();
        lives::busy(&mut world, 4);
        world.crash(Fate::Random);
        world.prng = left;
        let done = grow_with_a_crash(&mut world, after, fate);
        world.recover(after, fate);
        lives::fill(&mut world, 2000..2040);
        world.crash(fate);
        world.mount(None).unwrap();
        world.compare();
        done
    });
}

#[test]
fn a_growth_that_was_not_finished_can_be_taken_back_until_it_counts() {
    let (mut back, mut shrunk) = (0, 0);
    for after in 0.. {
        let mut world = full(7, false);
        world.disk.size = 3 * SIZE;
        let done = world.mount(Some(Crash { after, fate: Fate::Kept })).unwrap();
        world.store = None;
        match world.mount_as(expected(), SIZE, None) {
            Ok(_) => {
                back += 1;
                world.compare();
                assert_eq!(world.store.as_ref().unwrap().layout().extents.len(), 1);
            }
            Err(MountError::Shrunk { was, .. }) => {
                assert_eq!(was, 3 * SIZE);
                shrunk += 1;
            }
            Err(other) => panic!("after {after}: {other}"),
        }
        if done {
            break;
        }
    }
    assert!(back > 10 && shrunk > 1, "{back} {shrunk}");
}

#[test]
fn the_superblocks_of_a_grown_device_are_found_when_others_rot() {
    let mut grown = full(1, true);
    for size in [3 * SIZE, 5 * SIZE] {
        grown.disk.size = size;
        grown.mount(None).unwrap();
    }
    lives::fill(&mut grown, 1000..1100);
    grown.store.as_mut().unwrap().request_checkpoint();
    grown.settle();
    let places = grown.store.as_ref().unwrap().layout().places();
    assert_eq!(places, [0, MIB, SIZE / 2, 5 * SIZE - (64 << 10)]);
    for kept in 0..16u32 {
        let mut world = grown.copy();
        let rotten = (0..4).filter(|i| kept >> i & 1 == 0);
        rotten.for_each(|i| world.disk.rot(places[i] + 100));
        match world.mount(None) {
            Ok(_) => world.compare(),
            // Only the copy in the middle is left, and nothing says where that is.
            Err(error) => {
                assert_eq!(error, MountError::Damaged { what: "every superblock", at: 0 });
                assert!(kept & 0b1011 == 0, "{kept:04b}");
            }
        }
    }
}

#[test]
fn superblocks_that_fail_to_be_read_for_a_moment_make_no_empty_device() {
    let mut world = full(1, true);
    world.disk.size += SMALLEST_GROWTH;
    world.unreadable = (0..2 * MIB, 2);
    let error = world.mount(None).unwrap_err();
    assert!(matches!(error, MountError::Device { what: "reading the superblocks", .. }), "{error}");
    world.mount(None).unwrap();
    world.compare();
}

#[test]
fn data_that_looks_like_a_superblock_does_not_count() {
    (1..=30).for_each(lives::imitated);
}
