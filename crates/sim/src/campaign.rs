//! Campaigns: many runs on a few threads, over a range of seeds or for a while.

use crate::marks::{Coverage, ENOUGH};
use crate::panics;
use crate::plan::Plan;
use crate::run::{Outcome, run};
use crate::trace::Sink;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Result of a campaign.
#[derive(Clone, Default, Debug)]
pub struct Totals {
    /// Runs without a failure.
    pub passed: u64,
    /// Seeds that failed, and why.
    pub failed: Vec<(u64, String)>,
    /// Seeds whose runs lost data with an accepted reason.
    pub excused: Vec<u64>,
    /// Virtual time of all runs.
    pub took: Duration,
    /// Steps of all worlds.
    pub steps: u64,
    /// Operations of clients.
    pub ops: u64,
    /// Sectors whose history could not be judged.
    pub unclear: u64,
    /// Rare paths that were met, with counts.
    pub marks: BTreeMap<String, u64>,
}

impl Totals {
    fn add(&mut self, seed: u64, outcome: &Outcome) {
        match &outcome.failure {
            None => self.passed += 1,
            Some(f) => self.failed.push((seed, f.to_string())),
        }
        if outcome.excused.is_some() {
            self.excused.push(seed);
        }
        self.took += outcome.took;
        self.steps += outcome.steps;
        self.ops += outcome.ops as u64;
        self.unclear += u64::from(outcome.unclear);
        for (name, n) in &outcome.marks {
            *self.marks.entry(name.clone()).or_default() += n;
        }
    }

    /// Returns the marks that no run met.
    pub fn missing(&self) -> Vec<&'static str> {
        Coverage::missing(&self.marks)
    }

    /// Returns true when no run failed and, if there were enough runs, all marks that
    /// judges need were met.
    pub fn is_good(&self) -> bool {
        let few = self.passed < ENOUGH;
        self.failed.is_empty() && (few || self.missing().is_empty())
    }
}

/// Runs seeds from `from` on until `stop` returns true, on `jobs` threads. Calls `stop` before each
/// seed, `make` for the seed's plan, and `each` with each outcome.
pub fn campaign(
    from: u64,
    jobs: usize,
    make: impl Fn(u64) -> Plan + Sync,
    stop: impl Fn(u64, &Totals) -> bool + Sync,
    each: impl Fn(u64, &Outcome, &Totals) + Sync,
) -> Totals {
    panics::hook();
    let next = AtomicU64::new(from);
    let over = AtomicBool::new(false);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let stopped = stop(seed, &totals.lock().expect("no thread dies with it"));
                    if over.load(Ordering::Relaxed) || stopped {
                        over.store(true, Ordering::Relaxed);
                        return;
                    }
                    let outcome = run(&make(seed), Sink::Off);
                    let mut totals = totals.lock().expect("no thread dies with it");
                    totals.add(seed, &outcome);
                    each(seed, &outcome, &totals);
                }
            });
        }
    });
    let mut totals = totals.into_inner().expect("no thread died with it");
    totals.failed.sort();
    totals.excused.sort_unstable();
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marks::{NOTES, SEEN};

    #[test]
    fn a_mark_that_many_runs_never_meet_is_reported() {
        let all = NOTES.iter().chain(SEEN).map(|name| (name.to_string(), 1));
        let mut totals = Totals { passed: ENOUGH, marks: all.collect(), ..Totals::default() };
        assert!(totals.is_good());
        totals.marks.remove(SEEN[0]);
        assert!(!totals.is_good(), "a judge had nothing to judge");
        totals.passed = ENOUGH - 1;
        assert!(totals.is_good(), "a few runs need not meet everything");
        totals.failed.push((1, "I2".into()));
        assert!(!totals.is_good());
    }
}
