//! The records of replication fit on every device, whatever clients do and however long it runs.

use crate::common;
use crate::common::world::{World, identity};
use base::{BlockSet, Epoch, GroupId, Incarnation, Limits, SdcId, UnitKey, VolumeId};
use seam::{Change, ClientWrite, DiskError, ExecutedBlocks, Job, Origin, UnitStore, WriteMetadata};
use std::collections::BTreeMap;
use store::durable::Durable;

const MIB: u64 = 1 << 20;

fn unit(index: u32) -> UnitKey {
    UnitKey { volume: VolumeId(1), index }
}

fn mounted(bytes: u64) -> World {
    let mut world = World::sized(1, true, bytes);
    world.tuning.executed = 64 << 10;
    world.mount(None).unwrap();
    world
}

fn store(world: &mut World) -> &mut Durable {
    world.store.as_mut().unwrap()
}

/// Completes everything that runs.
fn drain(world: &mut World) {
    loop {
        world.store.as_mut().unwrap().flush(&mut world.out);
        while store(world).finished().is_some() {}
        if !world.end_or_fail(None) {
            return;
        }
    }
}

fn checkpoint(world: &mut World) {
    store(world).request_checkpoint();
    drain(world);
    assert_eq!(store(world).failed(), None);
    assert!(!store(world).is_checkpointing());
}

fn named(sdc: u32, seq: u64, floor: u64) -> ClientWrite {
    ClientWrite { sdc: SdcId(sdc), incarnation: Incarnation(u64::from(sdc)), seq, floor }
}

/// Starts a client's write of one block. If writes go to seven groups in turn, 1,792 of them touch
/// different blocks.
fn write(world: &mut World, group: u32, write: ClientWrite) {
    let at = (write.seq / 7 % 256) as u32 * 4096;
    let body = world.out.copy(&[write.seq as u8; 4096]);
    let marks = WriteMetadata { dirty: false, origin: Origin::Client(write) };
    let job = Job::Write { at, body, crc: None };
    let store = world.store.as_mut().unwrap();
    store.start(write.seq, GroupId(group), unit(group), job, marks, &mut world.out);
}

fn executed(world: &mut World) -> BTreeMap<(SdcId, u64), GroupId> {
    let records = store(world).records().into_iter();
    let all =
        records.flat_map(|(g, r)| r.executed.entries().into_iter().map(move |e| (g, e.write)));
    all.map(|(group, w)| ((w.sdc, w.seq), group)).collect()
}

#[test]
fn clients_that_come_and_go_leave_a_device_that_mounts_and_knows_what_it_forgot() {
    let mut world = mounted(64 * MIB);
    const GROUPS: u32 = 256;
    let seq = |group: u32| u64::from(group);
    for sdc in 1..=60 {
        (1..=GROUPS).for_each(|g| write(&mut world, g, named(sdc, seq(g), seq(g))));
        drain(&mut world);
        checkpoint(&mut world);
    }
    for _ in 0..2 {
        let listed = executed(&mut world);
        assert!((1..=GROUPS).all(|g| listed.contains_key(&(SdcId(60), seq(g)))), "the newest");
        let most = store(&mut world).executed_most();
        assert!(most >= 2048 && listed.len() <= most, "{} of {most}", listed.len());
        let forgotten = store(&mut world).forgotten().unwrap().clone();
        for sdc in 1..=60 {
            let known = |g| {
                let write = named(sdc, seq(g), 0);
                listed.contains_key(&(SdcId(sdc), seq(g))) || forgotten.covers(GroupId(g), write)
            };
            assert!((1..=GROUPS).all(known), "client {sdc} could have a write done twice");
        }
        assert!([60, 61].iter().all(|sdc| !forgotten.covers(GroupId(1), named(*sdc, 1, 0))));
        world.crash(common::Fate::Dropped);
        world.mount(None).unwrap();
    }
}

#[test]
fn one_client_whose_floor_stands_fills_no_device() {
    let mut world = mounted(16 * MIB);
    for seq in 1..=9000 {
        write(&mut world, (seq % 7) as u32 + 1, named(1, seq, 0));
        if seq % 500 == 0 {
            drain(&mut world);
        }
    }
    checkpoint(&mut world);
    world.crash(common::Fate::Random);
    world.mount(None).unwrap();
    let listed = executed(&mut world);
    let forgotten = store(&mut world).forgotten().unwrap().clone();
    assert!(listed.len() <= store(&mut world).executed_most());
    let known = |seq| {
        listed.contains_key(&(SdcId(1), seq))
            || forgotten.covers(GroupId((seq % 7) as u32 + 1), named(1, seq, 0))
    };
    assert!((1..=9000).all(known));
    assert!((8000..=9000).all(|seq| listed.contains_key(&(SdcId(1), seq))), "the newest");
}

/// The smallest device takes the longest list that replication may hand over as one change,
/// although it does not keep all of it.
#[test]
fn a_list_as_long_as_replication_hands_over_is_one_change_of_the_smallest_device() {
    let mut world = mounted(16 * MIB);
    let most = store(&mut world).executed_most();
    let handed = u64::from(Limits::SHIPPED.executed_group);
    let blocks = BlockSet::from_range(0..1);
    let entry = |seq| ExecutedBlocks { write: named(1, seq, 1), unit: unit(1), blocks };
    let marker = |sdc| ExecutedBlocks {
        write: named(sdc, 9, 0),
        unit: UnitKey::default(),
        blocks: BlockSet::EMPTY,
    };
    let list = (1..=handed).map(entry).collect();
    let forgotten = (2..=seam::Forgotten::MOST as u32).map(marker).collect();
    let changes = vec![Change::CleanAll, Change::Executed(list), Change::Forgotten(forgotten)];
    store(&mut world).change(None, GroupId(1), changes);
    drain(&mut world);
    checkpoint(&mut world);
    let listed = executed(&mut world);
    assert!((most / 2..=most).contains(&listed.len()), "{} of {most}", listed.len());
    assert!(listed.contains_key(&(SdcId(1), handed)), "the newest");
    let forgotten = store(&mut world).forgotten().unwrap();
    let known = |seq| {
        listed.contains_key(&(SdcId(1), seq)) || forgotten.covers(GroupId(1), named(1, seq, 1))
    };
    assert!((1..=handed).all(known));
    assert_eq!(forgotten.len(), seam::Forgotten::MOST);
}

/// A device of this size has no room for so many groups. The checkpoint fails and reports it, with
/// jobs in the queue.
#[test]
fn a_checkpoint_that_can_not_be_made_ends_all_jobs_and_panics_nowhere() {
    let mut world = mounted(16 * MIB);
    assert_eq!(identity().uuid, [11, 12]);
    for group in 1..=40_000 {
        store(&mut world).change(None, GroupId(group), vec![Change::Base(Epoch(1))]);
        if group % 1000 == 0 {
            drain(&mut world);
        }
    }
    store(&mut world).request_checkpoint();
    let mut ended = Vec::new();
    for token in 0..200 {
        store(&mut world).change(Some(token), GroupId(1), vec![Change::Acted(Epoch(token))]);
        world.store.as_mut().unwrap().flush(&mut world.out);
        ended.extend(std::iter::from_fn(|| store(&mut world).finished()));
        world.end_or_fail(None);
    }
    ended.extend(std::iter::from_fn(|| store(&mut world).finished()));
    assert_eq!(store(&mut world).failed(), Some(DiskError::NoSpace));
    assert_eq!(ended.len(), 200, "every change is answered");
}
