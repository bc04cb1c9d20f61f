//! Space, group commit, and jobs whose volume is dropped or whose device fails.

use crate::common;
use crate::common::world::World;
use base::{BLOCK, GroupId, UNIT, UnitKey, VolumeId};
use seam::{Change, DiskError, Finished, Job, Started, UnitStore, WriteMetadata};
use store::durable::Durable;

const G: GroupId = GroupId(1);
const SLOT: u32 = 64 << 10;

fn unit(index: u32) -> UnitKey {
    UnitKey { volume: VolumeId(1), index }
}

fn mounted(write_through: bool) -> World {
    let mut world = World::new(1, write_through);
    world.mount(None).unwrap();
    world
}

fn store(world: &mut World) -> &mut Durable {
    world.store.as_mut().unwrap()
}

#[test]
fn a_full_device_refuses_overwrites_and_drains() {
    let mut world = mounted(false);
    let capacity = store(&mut world).capacity();
    let mut index = 1;
    while world.fulls == 0 {
        for _ in 0..16 {
            world.write(G, unit(index), (index / 2 % 16) * SLOT, SLOT, false);
            index += 2;
        }
        world.settle();
    }
    assert_eq!(store(&mut world).used(), capacity);
    assert!(!store(&mut world).reserve(G, unit(1), SLOT, UNIT - SLOT));
    // Data that has a slot can be overwritten, whole or in part; there is no other slot to use.
    for i in (1..41).step_by(2) {
        world.write(G, unit(i), (i / 2 % 16) * SLOT, SLOT, false);
        world.write(G, unit(i + 40), ((i + 40) / 2 % 16) * SLOT + 512, 1024, false);
    }
    world.settle();
    world.compare_content();
    world.write(G, unit(1), 0, SLOT, true);
    world.settle();
    assert_eq!(store(&mut world).used(), capacity - u64::from(SLOT));
    world.write(G, unit(1), 5 * SLOT, 512, false);
    world.settle();
    assert_eq!(store(&mut world).used(), capacity);
    world.crash(common::Fate::Random);
    world.mount(None).unwrap();
    world.compare();
}

#[test]
fn a_device_is_not_full_while_slots_of_a_dropped_volume_are_left() {
    let mut world = mounted(false);
    let dropped = |index| UnitKey { volume: VolumeId(2), index };
    (0..100).for_each(|i| world.write(G, unit(i), 0, SLOT, false));
    world.settle();
    let mut slots = 0;
    while world.fulls == 0 {
        world.write(G, dropped(slots), 0, SLOT, false);
        world.settle();
        slots += u32::from(world.fulls == 0);
    }
    store(&mut world).drop_volume(VolumeId(2));
    assert!(!store(&mut world).reserve(G, unit(100), 0, SLOT), "the drop is not durable");
    world.store.as_mut().unwrap().flush(&mut world.out);
    while !store(&mut world).is_idle() {
        world.end_or_fail(None);
        world.store.as_mut().unwrap().flush(&mut world.out);
    }
    assert!(store(&mut world).used() > 101 * u64::from(SLOT), "most of it is not swept yet");
    for i in 100..100 + slots {
        assert!(store(&mut world).reserve(G, unit(i), 0, SLOT), "{i} of {slots}");
    }
    assert!(!store(&mut world).reserve(G, unit(100 + slots), 0, SLOT));
}

#[test]
fn a_reservation_is_worth_a_write() {
    let mut world = mounted(false);
    let free = store(&mut world).capacity();
    assert!(store(&mut world).reserve(G, unit(1), 0, 2 * SLOT));
    let holds = |world: &mut World| store(world).has_space_for(G, unit(1), SLOT, SLOT);
    assert!(!holds(&mut world), "it may be given back");
    world.write(G, unit(1), SLOT, SLOT, true);
    assert!(!holds(&mut world), "whatever runs there");
    world.settle();
    assert!(!holds(&mut world));
    assert_eq!(store(&mut world).used(), 2 * u64::from(SLOT));
    world.write(G, unit(1), 0, SLOT, false);
    store(&mut world).release(G, unit(1), 0, 2 * SLOT);
    world.settle();
    assert_eq!(store(&mut world).used(), u64::from(SLOT));
    assert!(store(&mut world).reserve(G, unit(1), 0, 2 * SLOT));
    assert_eq!(store(&mut world).drop_volume(VolumeId(1)), 2 * u64::from(SLOT));
    store(&mut world).release(G, unit(1), 0, 2 * SLOT);
    world.settle();
    assert_eq!((store(&mut world).used(), store(&mut world).capacity()), (0, free));
}

/// Starts a write that the test follows instead of the model.
fn start(world: &mut World, token: u64, at: u32, len: usize) {
    let body = world.out.copy(&vec![1; len]);
    let (store, out) = (world.store.as_mut().unwrap(), &mut world.out);
    let started = store.start(
        token,
        G,
        unit(1),
        Job::Write { at, body, crc: None },
        WriteMetadata::default(),
        out,
    );
    assert!(matches!(started, Started::Pending));
}

/// Completes all operations, or fails them. Returns the jobs that completed.
fn drain(world: &mut World, error: Option<DiskError>) -> Vec<Finished> {
    let mut ended = Vec::new();
    loop {
        world.store.as_mut().unwrap().flush(&mut world.out);
        ended.extend(std::iter::from_fn(|| world.store.as_mut().unwrap().finished()));
        if !world.end_or_fail(error) {
            return ended;
        }
    }
}

#[test]
fn jobs_of_a_volume_that_goes_end_and_leave_nothing() {
    for steps in 0..12 {
        let mut world = mounted(false);
        world.write(G, unit(1), 0, UNIT / 2, false);
        world.settle();
        start(&mut world, 901, 0, 4096); // inline
        start(&mut world, 902, UNIT - SLOT, 8192); // to fresh space
        start(&mut world, 903, SLOT + 512, 1024); // has to read first
        start(&mut world, 904, 2 * SLOT, SLOT as usize); // to another slot
        let mut ended = 0;
        for _ in 0..steps {
            world.store.as_mut().unwrap().flush(&mut world.out);
            ended += usize::from(world.store.as_mut().unwrap().finished().is_some());
            world.end_or_fail(None);
        }
        store(&mut world).drop_volume(VolumeId(1));
        ended += drain(&mut world, None).len();
        (0..40).for_each(|_| world.flush()); // frees the slots in steps
        assert_eq!((ended, store(&mut world).used()), (4, 0), "after {steps} operations");
        assert!(store(&mut world).units(G).is_empty());
        store(&mut world).request_checkpoint();
        drain(&mut world, None);
        world.crash(common::Fate::Dropped);
        world.mount(None).unwrap();
        assert_eq!(store(&mut world).used(), 0, "after {steps} operations");
    }
}

#[test]
fn after_a_failed_write_every_job_fails_until_the_next_mount() {
    let mut world = mounted(false);
    start(&mut world, 901, 0, 4096);
    start(&mut world, 902, 8192, 4096);
    let ended = drain(&mut world, Some(DiskError::Io));
    assert_eq!(ended.len(), 2);
    assert!(ended.iter().all(|f| f.result.as_ref().err() == Some(&DiskError::Io)));
    assert_eq!(store(&mut world).failed(), Some(DiskError::Io));
    start(&mut world, 903, 0, 4096);
    store(&mut world).change(Some(904), G, vec![Change::CleanAll]);
    let ended = drain(&mut world, None);
    assert_eq!(ended.len(), 2);
    world.crash(common::Fate::Random);
    world.mount(None).unwrap();
    start(&mut world, 905, 0, 4096);
    assert!(drain(&mut world, None)[0].result.is_ok());
}

#[test]
fn one_batch_serves_many_jobs_and_none_waits_for_a_flush() {
    let mut world = mounted(false);
    world.write(G, unit(1), 0, UNIT, false);
    world.settle();
    let before = store(&mut world).stats();
    for block in 0..64 {
        world.write(G, unit(1), block * BLOCK, BLOCK, false);
    }
    world.settle();
    let after = store(&mut world).stats();
    assert_eq!((after.records - before.records, after.batches - before.batches), (64, 1));
    assert_eq!(after.flushes - before.flushes, 0);
}
