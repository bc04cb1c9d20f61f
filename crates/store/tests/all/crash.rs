//! Crashes at every operation of a scripted run, and anywhere in random runs.

use crate::common::lives::{self, Lives};
use crate::common::{Crash, Fate, World};
use base::{UnitKey, VolumeId};

#[test]
fn acknowledged_writes_survive_random_crashes() {
    let seeds = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(300);
    let from = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let ended: u64 = (from..from + seeds)
        .map(|seed| {
            let run = std::panic::catch_unwind(|| lives::random(seed, Lives::default()));
            run.unwrap_or_else(|_| panic!("seed {seed}"))
        })
        .sum();
    println!("{seeds} seeds, {ended} jobs ended");
    assert!(ended > seeds * 20);
}

/// Runs jobs that use each way to write, and a checkpoint, in the same order every time. Returns
/// false when `until` operations were reached before the end.
fn script(world: &mut World, until: u64) -> bool {
    world.fifo = true;
    let start = world.ops;
    for i in 0..60u32 {
        let unit = UnitKey { volume: VolumeId(1), index: i % 3 };
        let group = World::group(unit);
        match i % 10 {
            0 => world.write(group, unit, 0, 200 << 10, false),
            1..=4 => world.write(group, unit, i * 1024 % (128 << 10), 2048 + i % 4 * 512, false),
            5 => world.write(group, unit, 64 << 10, 64 << 10, false),
            6 => world.write(group, unit, 4096 * (i % 20), 12288, true),
            7 => world.write(group, unit, 8192, 100 << 10, false),
            8 if i % 20 == 8 => world.store.as_mut().unwrap().request_checkpoint(),
            _ => world.ask(),
        }
        world.flush();
        if !world.step_until(start + until) {
            return false;
        }
    }
    while world.has_open() {
        if world.ops - start == until {
            return false;
        }
        world.step();
    }
    true
}

#[test]
fn acknowledged_writes_survive_a_crash_at_every_operation() {
    lives::crash_everywhere(120, |write_through, after, fate, left| {
        let mut world = World::new(5, write_through);
        world.mount(None).unwrap();
        let done = script(&mut world, after);
        world.prng = left;
        world.crash(fate);
        world.recover(after, fate);
        done
    });
}

#[test]
fn a_mount_survives_a_crash_at_every_operation() {
    let mut after = 0;
    loop {
        let mut world = World::new(9, false);
        world.mount(None).unwrap();
        script(&mut world, 130);
        world.fifo = false;
        world.crash(Fate::Random);
        let done = world.mount(Some(Crash { after, fate: Fate::Random })).unwrap();
        let again = Crash { after: after / 2, fate: Fate::Random };
        if !done && !world.mount(Some(again)).unwrap() {
            world.mount(None).unwrap();
        }
        world.compare();
        if done {
            break;
        }
        after += 1;
    }
    println!("{after} crash points");
    assert!(after > 20);
}

#[test]
fn a_full_log_holds_jobs_back_and_loses_none() {
    (1..=20).for_each(lives::log_wraps);
}

#[test]
fn slots_that_change_hands_on_a_full_device_keep_their_owners() {
    (1..=100).for_each(lives::reuse);
}

#[test]
fn space_that_is_given_back_holds_nothing() {
    (1..=200).for_each(lives::holes);
}

#[test]
fn data_wiped_in_steps_does_not_come_back() {
    (1..=100).for_each(lives::wiped);
}
