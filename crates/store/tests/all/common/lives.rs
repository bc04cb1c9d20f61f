//! Whole histories of a device: jobs, a crash, a mount, and again.

use super::disk::Fate;
use super::world::{Crash, World};
use base::{BLOCK, GroupId, Prng, UNIT, UnitKey, VolumeId};
use seam::{Job, Started, UnitStore, WriteMetadata};
use std::ops::Range;
use store::durable::layout::{Layout, SMALLEST_GROWTH};
use store::durable::survey::{CopyState, look};

/// Length of a history: the number of mounts, and the rounds of jobs after each.
#[derive(Clone, Copy)]
pub(crate) struct Lives {
    pub lives: u32,
    pub rounds: u64,
}

impl Default for Lives {
    fn default() -> Lives {
        Lives { lives: 4, rounds: 60 }
    }
}

/// Runs a random history of one device and compares everything: jobs, sometimes a device error, a
/// crash anywhere, a mount (which sometimes crashes, too). Returns how many jobs completed.
pub(crate) fn random(seed: u64, lives: Lives) -> u64 {
    let mut world = World::new(seed, seed.is_multiple_of(3));
    world.tuning.holes = (seed % 2) as u32;
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

/// Runs random jobs, some of which don't complete.
pub(crate) fn busy(world: &mut World, rounds: u64) {
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
        if world.tuning.holes > 0 && world.prng.chance(0.3) {
            (0..world.prng.range(1, 5)).for_each(|_| world.rest());
        }
    }
}

/// Rots bits of a block on the device. The read says which block, and never returns wrong data.
pub(crate) fn rot_is_found(seed: u64) {
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
    // The repair from the other copy: a whole write of the block.
    world.write(group, unit, block * BLOCK, BLOCK, false);
    world.settle();
    world.may_be_damaged = false;
    world.store.as_mut().unwrap().request_checkpoint();
    world.settle();
    world.compare_content();
}

/// Completes every operation that is not held.
fn step_all(world: &mut World) {
    world.flush();
    while world.has_open() {
        world.step();
    }
}

/// While the data of an older write hangs, a newer write completes. Then a later batch is written:
/// that of a third write, or the one of a store that rests. A block of the newer write rots.
pub(crate) fn rot_behind_a_slow_write(seed: u64) {
    let rests = seed.is_multiple_of(2);
    let mut world = World::new(seed, true);
    world.mount(None).unwrap();
    let unit = |index| UnitKey { volume: VolumeId(1), index };
    let (newer, slow, group) = (unit(1), unit(3), World::group(unit(1)));
    world.write(group, newer, 0, UNIT, false);
    world.settle();
    world.store.as_mut().unwrap().request_checkpoint();
    world.settle();
    let slots = Layout::new(world.disk.size).unwrap().extents[0].slots;
    let batches = world.store.as_ref().unwrap().stats().batches;
    world.write(group, slow, 0, 4 * BLOCK, false);
    world.hold_writes(slots.at..slots.end());
    let (chunk, before) = (world.prng.below(16) as u32, world.ended);
    world.write(group, newer, chunk * (64 << 10), 64 << 10, false); // to another slot
    step_all(&mut world);
    assert_eq!(world.ended - before, 1, "the newer one is acknowledged");
    if rests {
        (0..4).for_each(|_| {
            world.rest();
            step_all(&mut world);
        });
    } else {
        // In the slot of the slow one. One that the newer one gave back would show its end.
        world.write(group, slow, 8 * BLOCK, 4 * BLOCK, false);
        world.hold_writes(slots.at..slots.end());
        step_all(&mut world);
    }
    let store = world.store.as_ref().unwrap();
    assert_eq!(store.stats().batches - batches, 2, "the log is written although a write hangs");
    let block = chunk * 16 + world.prng.below(16) as u32;
    let place = store.place(group, newer, block).unwrap();
    world.crash(Fate::Dropped);
    world.disk.rot(place + world.prng.below(u64::from(BLOCK)));
    world.may_be_damaged = true;
    world.mount(None).unwrap();
    let store = world.store.as_ref().unwrap();
    assert!(store.valid(group, slow).is_empty(), "a write that was torn is dropped");
    world.read(group, newer, 0, UNIT);
    step_all(&mut world);
    assert_eq!(world.corrupt, [(newer, block as u16, 1)], "it is not taken for a torn write");
    assert_eq!(world.store.as_ref().unwrap().stats().dropped, if rests { 1 } else { 2 });
}

/// Fills the log again and again while the writes of checkpoints are slow; then crashes.
pub(crate) fn log_wraps(seed: u64) {
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

/// Makes slots change owners at once, on a device that is nearly full; then crashes.
pub(crate) fn reuse(seed: u64) {
    let mut world = World::new(seed, seed.is_multiple_of(2));
    world.mount(None).unwrap();
    let slots = world.store.as_ref().unwrap().capacity() / (64 << 10);
    fill(&mut world, 0..slots);
    for n in 0..world.prng.range(10, 40) {
        // Old data is zeroed, and new data needs its slot.
        let old = world.prng.below(slots);
        for (n, zero) in [(old, true), (slots + n, false)] {
            let (unit, at) = slot(n);
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

/// Frees slots, takes others, and rests in between, so that space is given back all the while. Its
/// operations take long. Then it crashes.
pub(crate) fn holes(seed: u64) {
    let mut world = World::new(seed, seed.is_multiple_of(2));
    world.tuning.holes = 1;
    world.mount(None).unwrap();
    let slots = world.store.as_ref().unwrap().capacity() / (64 << 10) / 2;
    fill(&mut world, 0..slots);
    for n in 0..world.prng.range(10, 60) {
        let (old, slow) = (world.prng.below(slots), world.prng.chance(0.7));
        for (n, zero) in [(old, true), (slots + n, false)] {
            let (unit, at) = slot(n);
            world.write(World::group(unit), unit, at, 2 * BLOCK, zero);
            world.flush();
        }
        (0..5).for_each(|_| world.rest());
        if slow {
            world.hold_punches();
        }
        while world.has_open() && world.prng.chance(0.9) {
            world.step();
        }
        if world.prng.chance(0.5) {
            world.release();
        }
    }
    world.crash(Fate::Random);
    world.mount(None).unwrap();
    world.compare();
}

/// Wipes a group and writes it again while checkpoints begin; then crashes.
pub(crate) fn wiped(seed: u64) {
    let mut world = World::new(seed, seed.is_multiple_of(2));
    world.mount(None).unwrap();
    for _ in 0..world.prng.range(1, 3) {
        fill(&mut world, 0..100);
        world.wipe(World::group(slot(0).0));
        for _ in 0..world.prng.range(4, 40) {
            if world.prng.chance(0.2) {
                world.store.as_mut().unwrap().request_checkpoint();
            }
            world.flush();
            if world.has_open() {
                world.step();
            }
        }
        world.settle();
        for _ in 0..world.prng.range(1, 40) {
            let (unit, at) = slot(world.prng.below(100));
            world.write(World::group(unit), unit, at, 64 << 10, false);
        }
        world.settle();
    }
    world.crash(Fate::Random);
    world.mount(None).unwrap();
    world.compare();
}

/// Returns the unit of the `n`th slot's data, and where that begins in the unit.
fn slot(n: u64) -> (UnitKey, u32) {
    let unit = UnitKey { volume: VolumeId(1), index: 2 * (n / 16) as u32 + 1 };
    (unit, (n % 16) as u32 * (64 << 10))
}

/// Writes one block, alone in the `n`th slot.
pub(crate) fn take(world: &mut World, n: u64) {
    let (unit, at) = slot(n);
    world.write(World::group(unit), unit, at, BLOCK, false);
}

/// Does the same for a range of slots while there is room, and waits until all of it is done.
pub(crate) fn fill(world: &mut World, range: Range<u64>) {
    let before = world.fulls;
    for n in range {
        take(world, n);
        if n % 32 == 0 {
            world.settle();
        }
        if world.fulls > before {
            break;
        }
    }
    world.settle();
}

/// A run that crashes with this fate after `after` operations, on a device that writes through or
/// not. `left` drives what the crash leaves. Returns true when the run completed before the crash.
pub(crate) type Doomed = fn(write_through: bool, after: u64, fate: Fate, left: Prng) -> bool;

/// Repeats a run with a crash after 0, 1, 2, ... operations, until it completes before the crash.
/// That must take more than `least` operations.
pub(crate) fn crash_everywhere(least: u64, run: Doomed) {
    const FATES: [Fate; 4] = [Fate::Dropped, Fate::Kept, Fate::Random, Fate::Random];
    for write_through in [false, true] {
        let mut after = 0;
        loop {
            let each = (0..).zip(FATES);
            let done = each.fold(false, |_, (i, fate)| {
                run(write_through, after, fate, Prng::new(after * 4 + i))
            });
            if done {
                break;
            }
            after += 1;
        }
        println!("{after} crash points, write through: {write_through}");
        assert!(after > least);
    }
}

/// Grows a full device twice, with crashes during the growth and after the new space was used.
pub(crate) fn grown(seed: u64) {
    let mut world = World::new(seed, seed.is_multiple_of(3));
    world.mount(None).unwrap();
    fill(&mut world, 0..u64::MAX);
    for growth in 1..=2 {
        let fate = *world.prng.pick(&[Fate::Random, Fate::Random, Fate::Dropped, Fate::Kept]);
        busy(&mut world, 5);
        world.crash(fate);
        world.disk.size += SMALLEST_GROWTH + world.prng.below(1 << 20);
        loop {
            let after = world.prng.below(40);
            let crash = world.prng.chance(0.6).then_some(Crash { after, fate: Fate::Random });
            if world.mount(crash).unwrap() {
                break;
            }
        }
        world.compare();
        let store = world.store.as_ref().unwrap();
        assert_eq!(store.layout().extents.len(), 1 + growth);
        assert_eq!(store.capacity(), store.layout().capacity());
        fill(&mut world, growth as u64 * 1000..growth as u64 * 1000 + 150);
    }
    busy(&mut world, 20);
    world.crash(Fate::Random);
    world.mount(None).unwrap();
    world.compare();
}

/// Returns a superblock that this device could have if it were formatted with its present size. It
/// is newer than the true superblocks, and has their uuid.
fn imitation(world: &World) -> [u8; BLOCK as usize] {
    let mut page = [0; BLOCK as usize];
    world.disk.read(0, &mut page);
    let CopyState::Valid(mut content) = look(&page) else { panic!("a device has a superblock") };
    content.layout = Layout::new(world.disk.size).unwrap();
    content.anchor.sequence += 1000;
    content.encode(&mut page);
    page
}

/// Fills a volume with superblocks, on a device that has become larger. None of them counts,
/// wherever it lies.
pub(crate) fn imitated(seed: u64) {
    let mut world = World::sized(seed, false, 40 << 20);
    world.mount(None).unwrap();
    let more = *world.prng.pick(&[0, 8 << 20, 20 << 20]);
    world.disk.size += more;
    let page = imitation(&world);
    let slots = world.store.as_ref().unwrap().capacity() / (64 << 10);
    let unit = |n: u64| UnitKey { volume: VolumeId(1), index: n as u32 / 16 };
    let place = |n: u64| (n % 16) as u32 * (64 << 10);
    for n in 0..slots {
        let body = world.out.copy(&page);
        let job = Job::Write { at: place(n), body, crc: None };
        let (store, out) = (world.store.as_mut().unwrap(), &mut world.out);
        let started = store.start(1 << 40, GroupId(1), unit(n), job, WriteMetadata::default(), out);
        assert!(matches!(started, Started::Pending));
        while store_end(&mut world).is_none() {}
    }
    // Either of the two copies that say where the others are may be damaged. The place of the
    // future last copy may hold what another device has left there.
    if more > 0 {
        world.disk.write(world.disk.size - (64 << 10), &page, true);
    }
    let damaged = world.prng.below(3);
    world.crash(Fate::Kept);
    if damaged < 2 {
        world.disk.rot((damaged << 20) + 100);
    }
    world.mount(None).unwrap();
    for n in 0..slots {
        assert_eq!(world.fetch(GroupId(1), unit(n), place(n), BLOCK)[..], page, "slot {n}");
    }
    let grew = world.store.as_ref().unwrap().layout().extents.len() > 1;
    assert_eq!(grew, more > SMALLEST_GROWTH);
}

/// Completes device operations until a job completes.
fn store_end(world: &mut World) -> Option<()> {
    world.store.as_mut().unwrap().flush(&mut world.out);
    let ended = world.store.as_mut().unwrap().finished();
    if ended.is_none() {
        assert!(world.end_or_fail(None), "the job hangs");
    }
    ended.map(|f| drop(f.result.unwrap()))
}

/// A body that changed in memory after its checksum was computed is refused and changes nothing.
pub(crate) fn flips(seed: u64) {
    let mut world = World::new(seed, false);
    world.mount(None).unwrap();
    busy(&mut world, 20);
    world.settle();
    let unit = UnitKey { volume: VolumeId(1), index: 1 };
    let (group, store) = (World::group(unit), world.store.as_mut().unwrap());
    let body = world.out.copy(&[1; BLOCK as usize]);
    let crc = Some(base::crc::crc32c(&body) ^ 1);
    let job = Job::Write { at: 7 * BLOCK, body, crc };
    let started = store.start(1 << 40, group, unit, job, WriteMetadata::default(), &mut world.out);
    assert!(matches!(started, Started::BadBody), "it was taken");
    world.settle();
    world.compare_content();
}
