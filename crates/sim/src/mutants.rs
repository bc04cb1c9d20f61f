//! The test of the tester: with one rule of the protocol taken out, how many seeds does it take until
//! a judge notices, and which one?
//!
//! A mutant is switched on for the whole process, so mutants are hunted one after the other. A seed
//! counts only if it passes without the mutant.

use crate::campaign::campaign;
use crate::plan::Plan;
use crate::run::run;
use crate::trace::Sink;
use base::Mutant;
use base::mutant::choose;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What it took to catch one mutant.
#[derive(Clone, Debug)]
pub struct Catch {
    /// Which rule was removed.
    pub mutant: Mutant,
    /// Runs until it was caught, or until the budget was spent.
    pub runs: u64,
    /// The seed and what the judge said.
    pub caught: Option<(u64, String)>,
    /// How long that took.
    pub took: Duration,
}

/// The mutant with this name.
pub fn by_name(name: &str) -> Option<Mutant> {
    Mutant::ALL.iter().copied().find(|m| format!("{m:?}").eq_ignore_ascii_case(name))
}

/// Hunts one mutant with up to `max_seeds` seeds.
pub fn hunt(mutant: Mutant, from: u64, max_seeds: u64, jobs: usize) -> Catch {
    let start = Instant::now();
    let mut first = from;
    let end = from + max_seeds;
    loop {
        let caught: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
        choose(Some(mutant));
        campaign(
            first,
            jobs,
            Plan::generate,
            |seed, totals| seed >= end || !totals.failed.is_empty(),
            |seed, outcome, _| {
                if let Some(f) = &outcome.failure {
                    caught.lock().expect("no thread dies with it").push((seed, f.to_string()));
                }
            },
        );
        choose(None);
        let mut caught = caught.into_inner().expect("no thread died with it");
        caught.sort();
        let runs_until = |seed: u64| seed + 1 - from;
        let Some(last) = caught.last().map(|c| c.0) else {
            return Catch { mutant, runs: max_seeds, caught: None, took: start.elapsed() };
        };
        for (seed, text) in caught {
            if run(&Plan::generate(seed), Sink::Off).failure.is_none() {
                let (runs, took) = (runs_until(seed), start.elapsed());
                return Catch { mutant, runs, caught: Some((seed, text)), took };
            }
        }
        first = last + 1;
    }
}

/// The figures as a table for `docs/internals/simulator.md`.
pub fn markdown(catches: &[Catch]) -> String {
    let mut s = String::from(
        "| rule removed | seeds until caught | seed | caught by |\n|---|---|---|---|\n",
    );
    for c in catches {
        let (runs, seed, by) = match &c.caught {
            Some((seed, text)) => {
                let by = text.split(':').next().unwrap_or_default();
                (c.runs.to_string(), seed.to_string(), by.to_string())
            }
            None => (format!("not within {}", c.runs), "-".into(), "-".into()),
        };
        writeln!(s, "| {:?} | {runs} | {seed} | {by} |", c.mutant).expect("strings can be written");
    }
    s
}
