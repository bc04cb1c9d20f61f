//! A store stops at a job that touches blocks which another one changes.

use crate::common::world::World;
use base::{BLOCK, GroupId, UnitKey, VolumeId};
use seam::{Buf, BufPool, DiskId, Effects, Job, Started, UnitStore, WriteMetadata};
use std::panic::{AssertUnwindSafe, catch_unwind};
use store::Memory;

const G: GroupId = GroupId(1);
const UNIT0: UnitKey = UnitKey { volume: VolumeId(1), index: 0 };
const K: u32 = BLOCK;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Read,
    Write,
    Zero,
    MarkLost,
}
use Kind::{MarkLost, Read, Write, Zero};

impl Kind {
    fn job(self, at: u32, len: u32, pool: &BufPool) -> Job {
        match self {
            Read => Job::Read { at, len },
            Write => Job::Write { at, body: pool.zeroed(len as usize), crc: None },
            Zero => Job::Zero { at, len },
            MarkLost => Job::MarkLost { at, len },
        }
    }
}

type Place = (Kind, u32, u32);

/// Two jobs, and whether they may run at the same time. Everything up to block 64 holds data.
const CASES: [(Place, Place, bool); 14] = [
    ((Read, 0, K), (Read, 0, K), true),
    ((Read, 0, K), (Write, K, K), true),
    ((Write, 0, K), (Write, K, K), true),
    ((Write, 0, 64 * K), (Read, 64 * K, K), true),
    ((Write, 0, K), (Write, 0, K), false),
    ((Write, 0, K), (Read, 0, K), false),
    ((Write, 0, 64 * K), (Write, 63 * K, K), false),
    ((Write, 32 * K, K), (Write, 0, 64 * K), false),
    ((Write, 0, 512), (Write, 1024, 512), false),
    ((Write, 0, K), (Zero, 0, 2 * K), false),
    ((Zero, 512, K), (Read, 0, 512), false),
    ((Zero, 512, K), (Write, K, K), false),
    ((Write, 0, K), (MarkLost, 0, 2 * K), false),
    // Only builds with debug assertions look at reads.
    ((Read, 0, K), (Write, 0, K), false),
];

/// Starts both jobs of each case on devices that `make` makes. Nothing completes in between.
fn check<S: UnitStore>(make: impl Fn(&mut Effects) -> S) {
    let pool = BufPool::new(1 << 24);
    for (first, second, may) in CASES {
        let mut out = Effects::new(pool.clone(), base::Prng::new(1), None);
        let mut store = make(&mut out);
        let mut start = |token, (kind, at, len): Place| {
            let job = kind.job(at, len, &pool);
            let started = store.start(token, G, UNIT0, job, WriteMetadata::default(), &mut out);
            assert!(token == 2 || matches!(started, Started::Pending), "{first:?} runs");
        };
        start(1, first);
        let went = catch_unwind(AssertUnwindSafe(|| start(2, second))).is_ok();
        let may = may || first.0 == Read && !cfg!(debug_assertions);
        assert_eq!(went, may, "{first:?} and {second:?}");
    }
}

#[test]
fn a_durable_store_refuses_a_job_that_overlaps_a_change() {
    check(|_| {
        let mut world = World::new(1, false);
        world.mount(None).unwrap();
        world.write(G, UNIT0, 0, 64 * K, false);
        world.settle();
        *world.store.take().unwrap()
    });
}

#[test]
fn a_memory_refuses_a_job_that_overlaps_a_change() {
    check(|out| {
        let mut store = Memory::new(DiskId(0), 1 << 24, true);
        let job = Write.job(0, 64 * K, &BufPool::new(1 << 24));
        assert!(matches!(
            store.start(1, G, UNIT0, job, WriteMetadata::default(), out),
            Started::Pending
        ));
        let Some(seam::Effect::Write { op, .. }) = out.drain().next() else { panic!("a write") };
        store.disk_done(op, Ok(Buf::EMPTY), out);
        assert!(store.finished().is_some());
        store
    });
}

/// Blocks that a job has changed, or that a failed job was to change, are free again.
#[test]
fn a_job_that_ends_makes_room_for_the_next_one() {
    let mut world = World::new(1, false);
    world.mount(None).unwrap();
    for zero in [false, true, false, false, true] {
        world.write(G, UNIT0, 0, 17 * K, zero);
        world.settle();
        world.read(G, UNIT0, 0, 17 * K);
        world.settle();
    }
    let (pool, error) = (BufPool::new(1 << 24), seam::DiskError::Io);
    let mut out = Effects::new(pool.clone(), base::Prng::new(1), None);
    let mut store = Memory::new(DiskId(0), 1 << 24, true);
    for _ in 0..3 {
        for kind in [Write, Read, Zero, Write] {
            let job = kind.job(512, 1024, &pool);
            let started = store.start(1, G, UNIT0, job, WriteMetadata::default(), &mut out);
            if let Started::Pending = started {
                let op = match out.drain().next() {
                    Some(seam::Effect::Write { op, .. } | seam::Effect::Read { op, .. }) => op,
                    other => panic!("{other:?}"),
                };
                let result = if kind == Read { Ok(pool.zeroed(1024)) } else { Err(error) };
                store.disk_done(op, result, &mut out);
                assert!(store.finished().is_some());
            }
        }
    }
}
