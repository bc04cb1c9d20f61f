//! Removes each rule of the store's order of writes, one at a time, and checks that a test notices
//! (`cargo test -p gabion-store --features mutants --test mutants`).
//!
//! A mutant is switched on for the whole process, so a single test hunts all of them, one by one.

#[path = "all/common/mod.rs"]
#[allow(dead_code, unused_imports)] // A part of it is used here.
mod common;

use base::Mutant;
use base::mutant::choose;
use common::lives::{self, Lives};
use std::panic::catch_unwind;

/// Number of seeds within which each mutant is caught.
const SEEDS: u64 = 300;

/// Runs the test that should catch the mutant.
fn life(mutant: Mutant, seed: u64) {
    match mutant {
        // Only a device that returns other data than was written shows this one.
        Mutant::NoSumCheck => lives::rot_is_found(seed),
        // Only damage behind a slow write shows this one.
        Mutant::ForgetNamed => lives::rot_behind_a_slow_write(seed),
        // Only memory that changes shows this one.
        Mutant::BlessBody => lives::flips(seed),
        // Only a full log reuses its oldest part.
        Mutant::EagerTail | Mutant::NoHurry => lives::log_wraps(seed),
        // Only a group that is wiped and written again between two checkpoints shows this one.
        Mutant::MidSweep => lives::wiped(seed),
        // Only a device that gives space back shows this one.
        Mutant::HoleUnawaited => lives::holes(seed),
        // Only a device that grows shows these.
        Mutant::GrownGap => lives::grown(seed),
        Mutant::PresentSize => lives::imitated(seed),
        _ => drop(lives::random(seed, Lives::default())),
    }
}

/// Returns the first seed that catches the mutant, and the message.
fn caught_by(mutant: Mutant) -> Option<(u64, String)> {
    choose(Some(mutant));
    let fails = |seed: u64| {
        let error = catch_unwind(|| life(mutant, seed)).err()?;
        let text = error.downcast_ref::<String>().cloned();
        Some((seed, text.unwrap_or_else(|| "an assertion".into())))
    };
    let caught = (1..=SEEDS).find_map(fails);
    choose(None);
    caught
}

#[test]
fn every_mutant_is_caught() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught: Vec<_> = Mutant::STORE.iter().map(|m| (m, caught_by(*m))).collect();
    std::panic::set_hook(quiet);
    for (mutant, seed) in &caught {
        println!("{mutant:?}: {seed:?}");
        if let Some((seed, _)) = seed {
            life(**mutant, *seed);
        }
    }
    let alive: Vec<_> = caught.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(alive.is_empty(), "nobody notices {alive:?}");
}
