//! Bits that flip in memory: between the arrival of a write and the checksums that are kept, and
//! between those and the answer to a read.

use crate::common::lives;
use crate::common::world::World;
use base::crc::crc32c;
use base::{BLOCK, GroupId, Prng, UNIT, UnitKey, VolumeId};
use seam::{Buf, DiskError, Finished, Job, Started, UnitStore, WriteMetadata};

const G: GroupId = GroupId(1);
const U: UnitKey = UnitKey { volume: VolumeId(1), index: 1 };

fn mounted() -> World {
    let mut world = World::new(1, true);
    world.mount(None).unwrap();
    world
}

/// Runs a job to its completion.
fn run(world: &mut World, job: Job) -> Result<Finished, Started> {
    let store = world.store.as_mut().unwrap();
    match store.start(7, G, U, job, WriteMetadata::default(), &mut world.out) {
        Started::Pending => {}
        Started::Done(data) => return Ok(Finished { token: 7, result: Ok(data), crc: None }),
        other => return Err(other),
    }
    loop {
        let store = world.store.as_mut().unwrap();
        store.flush(&mut world.out);
        if let Some(finished) = store.finished() {
            return Ok(finished);
        }
        assert!(world.end_or_fail(None), "the job ends");
    }
}

fn read(world: &mut World, at: u32, len: u32) -> (Buf, Option<u32>) {
    let finished = run(world, Job::Read { at, len }).unwrap();
    (finished.result.unwrap(), finished.crc)
}

fn write(world: &mut World, at: u32, data: &[u8], crc: u32) -> Result<(), DiskError> {
    let body = world.out.copy(data);
    match run(world, Job::Write { at, body, crc: Some(crc) }) {
        Ok(finished) => finished.result.map(drop),
        Err(Started::BadBody) => Err(DiskError::BadBody),
        Err(other) => panic!("{other:?}"),
    }
}

fn random(prng: &mut Prng, len: u32) -> Vec<u8> {
    (0..len).map(|_| prng.next_u64() as u8).collect()
}

#[test]
fn a_bit_that_flips_between_arrival_and_media_refuses_the_write_and_changes_nothing() {
    let (mut world, mut prng) = (mounted(), Prng::new(3));
    // Inline over old data, direct to fresh space, redirected, across slots, and parts of blocks:
    // over old blocks, which are read first, and in fresh ones.
    let (slot, half) = (16 * BLOCK, UNIT / 2);
    let old = random(&mut prng, half);
    write(&mut world, 0, &old, crc32c(&old)).unwrap();
    let ranges = [
        (BLOCK, BLOCK),
        (half, 3 * BLOCK),
        (slot, slot),
        (slot - BLOCK, 2 * slot),
        (512, 1024),
        (BLOCK - 512, slot),
        (half + 512, 512),
        (half + slot - 512, 2 * BLOCK + 1024),
    ];
    for (at, len) in ranges {
        let before = (read(&mut world, 0, UNIT).0.to_vec(), world.store.as_ref().unwrap().used());
        let data = random(&mut prng, len);
        let bit = prng.below(u64::from(len) * 8) as usize;
        let mut flipped = data.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let refused = write(&mut world, at, &flipped, crc32c(&data));
        assert_eq!(refused, Err(DiskError::BadBody), "{at} {len}");
        world.settle();
        let after = (read(&mut world, 0, UNIT).0.to_vec(), world.store.as_ref().unwrap().used());
        assert!(before == after, "{at} {len}");
        assert!(world.store.as_ref().unwrap().is_idle());
    }
    for (at, len) in ranges {
        let data = random(&mut prng, len);
        write(&mut world, at, &data, crc32c(&data)).unwrap();
        assert_eq!(&read(&mut world, at, len).0[..], data);
    }
}

#[test]
fn an_answer_comes_with_the_sum_of_what_was_written() {
    let (mut world, mut prng) = (mounted(), Prng::new(4));
    let mut content = vec![0; UNIT as usize];
    for round in 0..400 {
        let blocks = UNIT / BLOCK;
        let first = prng.below(u64::from(blocks)) as u32;
        let count = prng.range(1, u64::from(blocks - first).min(40)) as u32;
        let (mut at, mut len) = (first * BLOCK, count * BLOCK);
        if round % 3 == 0 {
            (at, len) = (at + 512, len - 1024);
        }
        if round % 2 == 0 {
            let data = random(&mut prng, len);
            write(&mut world, at, &data, crc32c(&data)).unwrap();
            content[at as usize..(at + len) as usize].copy_from_slice(&data);
        }
        if round % 50 == 49 {
            world.store.as_mut().unwrap().request_checkpoint();
            world.settle();
        }
        let (data, crc) = read(&mut world, at, len);
        assert!(data[..] == content[at as usize..(at + len) as usize]);
        assert!(crc.is_none_or(|crc| crc == crc32c(&data)), "{at} {len}");
        assert!(crc.is_some() || data.iter().all(|b| *b == 0), "{at} {len}");
    }
}

#[test]
fn a_busy_device_takes_no_body_that_has_changed() {
    (1..=10).for_each(lives::flips);
}
