//! Whole lives of a device: jobs, a crash, a mount, again.

use super::disk::Fate;
use super::world::{Crash, World};
use base::{BLOCK, UNIT, UnitKey, VolumeId};
use seam::{Job, Journal, Marks, Started};

/// How long.
#[derive(Clone, Copy)]
pub struct Lives {
    pub lives: u32,
    pub rounds: u64,
}

impl Default for Lives {
    fn default() -> Lives {
        Lives { lives: 4, rounds: 60 }
    }
}

/// Random lives of one device: jobs, maybe an error of the device, a crash somewhere, a mount (maybe crashed, too), all compared.
/// Tells how many jobs ended.
pub fn random(seed: u64, lives: Lives) -> u64 {
    let mut world = World::new(seed, seed.is_multiple_of(3));
    for life in 0..lives.lives {
        loop {
            let cut = life > 0 && world.prng.chance(0.3);
            let crash = cut.then_some(Crash { after: seed % 23, fate: Fate::Random });
            if world.mount(crash).unwrap() {
                break;
            }
        }
        world.compare();
        world.slow_metadata = world.prng.chance(0.3);
        let rounds = world.prng.range(5, lives.rounds);
        busy(&mut world, rounds);
        if world.prng.chance(0.2) {
            world.fail_one();
        }
        let fates = [Fate::Random, Fate::Random, Fate::Dropped, Fate::Kept];
        let fate = *world.prng.pick(&fates);
        world.crash(fate);
    }
    world.mount(None).unwrap();
    world.compare();
    world.ended
}

/// Random jobs, some of which don't end.
pub fn busy(world: &mut World, rounds: u64) {
    let depth = world.prng.range(1, 12);
    for _ in 0..rounds {
        for _ in 0..world.prng.range(1, depth) {
            world.ask();
        }
        world.flush();
        for _ in 0..world.prng.below(8) {
            if world.has_open() {
                world.step();
            }
        }
    }
}

/// Bits of a block rot on the device: the read says which block, and never gives the wrong data.
pub fn rot_is_found(seed: u64) {
    let mut world = World::new(seed, false);
    world.mount(None).unwrap();
    busy(&mut world, 20);
    world.settle();
    world.store.as_mut().unwrap().request_checkpoint();
    world.settle();
    let unit = UnitKey { volume: VolumeId(1), index: 1 };
    let group = World::group(unit);
    world.write(group, unit, 0, 64 << 10, false);
    world.settle();
    let block = world.prng.below(16) as u32;
    let place = world.store.as_ref().unwrap().place(group, unit, block).unwrap();
    let byte = world.prng.below(u64::from(BLOCK));
    world.disk.rot(place + byte);
    world.may_be_damaged = true;
    world.read(group, unit, 0, UNIT);
    world.settle();
    assert_eq!(world.corrupt, [(unit, block as u16, 1)]);
    // Repaired from the other copy: a whole write of the block.
    world.write(group, unit, block * BLOCK, BLOCK, false);
    world.settle();
    world.may_be_damaged = false;
    world.store.as_mut().unwrap().request_checkpoint();
    world.settle();
    world.compare_content();
}

/// The log runs full again and again, while what a checkpoint writes is slow; then a crash.
pub fn log_wraps(seed: u64) {
    let mut world = World::new(seed, seed.is_multiple_of(4));
    world.mount(None).unwrap();
    world.slow_metadata = true;
    let units = [1, 3].map(|index| UnitKey { volume: VolumeId(1), index });
    for unit in units {
        world.write(World::group(unit), unit, 0, UNIT, false);
    }
    world.settle();
    for _ in 0..world.prng.range(200, 400) {
        let unit = *world.prng.pick(&units);
        let chunk = world.prng.below(16) as u32;
        let (at, len) = (chunk * (64 << 10), world.prng.range(1, 15) as u32 * BLOCK);
        world.write(World::group(unit), unit, at, len, false);
        world.flush();
        if world.prng.chance(0.9) && world.has_open() {
            world.step();
        }
    }
    world.crash(Fate::Random);
    world.mount(None).unwrap();
    world.compare();
}

/// Slots change hands at once, on a device that is nearly full; then a crash.
pub fn reuse(seed: u64) {
    let mut world = World::new(seed, seed.is_multiple_of(2));
    world.mount(None).unwrap();
    let unit = |i: u64| UnitKey { volume: VolumeId(1), index: 2 * i as u32 + 1 };
    let slots = world.store.as_ref().unwrap().capacity() / (64 << 10);
    let name = |n: u64| (unit(n / 16), (n % 16) as u32 * (64 << 10));
    for n in 0..slots {
        let (unit, at) = name(n);
        world.write(World::group(unit), unit, at, BLOCK, false);
    }
    world.settle();
    for n in 0..world.prng.range(10, 40) {
        // What was there goes, and something new wants its place.
        let old = world.prng.below(slots);
        for (n, zero) in [(old, true), (slots + n, false)] {
            let (unit, at) = name(n);
            world.write(World::group(unit), unit, at, 2 * BLOCK, zero);
            world.flush();
            if world.prng.chance(0.5) && world.has_open() {
                world.step();
            }
        }
    }
    world.crash(Fate::Random);
    world.mount(None).unwrap();
    world.compare();
}

/// A body that has changed in memory since its checksum was made is refused, and changes nothing.
pub fn flips(seed: u64) {
    let mut world = World::new(seed, false);
    world.mount(None).unwrap();
    busy(&mut world, 20);
    world.settle();
    let unit = UnitKey { volume: VolumeId(1), index: 1 };
    let (group, store) = (World::group(unit), world.store.as_mut().unwrap());
    let body = world.out.copy(&[1; BLOCK as usize]);
    let crc = Some(base::crc::crc32c(&body) ^ 1);
    let job = Job::Write { at: 7 * BLOCK, body, crc };
    let started = store.start(1 << 40, group, unit, job, Marks::default(), &mut world.out);
    assert!(matches!(started, Started::BadBody), "it was taken");
    world.settle();
    world.compare_content();
}
