//! What a load has done: counts that others may read at any time, latencies that are merged at the
//! end.
//!
//! The thread that loads writes both and pays for no atomic addition and no lock. Only what is
//! answered while [`Counters::record`] is on goes into the histograms.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Latencies above are counted as this one: a minute, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Decimal digits that a histogram keeps.
const DIGITS: u8 = 3;

/// Read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Data comes back.
    Read,
    /// Data goes out.
    Write,
}

/// What one loading thread has done so far, for the thread that measures.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    /// Nanoseconds that all answers took together.
    waited: AtomicU64,
    record: AtomicBool,
}

impl Counters {
    /// Reads and writes that have been answered.
    pub fn answered(&self) -> [u64; 2] {
        [self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed)]
    }

    /// Nanoseconds that all of them took together.
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    /// Switches the recording of latencies.
    pub fn record(&self, on: bool) {
        self.record.store(on, Ordering::Relaxed);
    }

    /// Counts an answer, and its latency if that is wanted. Only one thread may call this.
    pub fn count(&self, side: Side, latency_ns: u64, tally: &mut Tally) {
        let counter = if side == Side::Read { &self.reads } else { &self.writes };
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.waited.store(self.waited().wrapping_add(latency_ns), Ordering::Relaxed);
        if self.record.load(Ordering::Relaxed) {
            tally.add(side, latency_ns);
        }
    }
}

/// Latencies, of reads and of writes.
#[derive(Clone, Debug)]
pub struct Tally {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        let empty = || Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("fixed, valid bounds");
        Tally { reads: empty(), writes: empty() }
    }
}

impl Tally {
    fn add(&mut self, side: Side, latency_ns: u64) {
        let histogram = if side == Side::Read { &mut self.reads } else { &mut self.writes };
        histogram.saturating_record(latency_ns.max(1));
    }

    /// Adds what another thread has seen.
    pub fn merge(&mut self, other: &Tally) {
        for (ours, theirs) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            ours.add(theirs).expect("both have the same bounds");
        }
    }

    /// Percentiles of one side; `None` when nothing of it was answered.
    pub fn latency(&self, side: Side) -> Option<Latency> {
        Latency::of(if side == Side::Read { &self.reads } else { &self.writes })
    }

    /// Percentiles of both sides together.
    pub fn both(&self) -> Option<Latency> {
        let mut both = self.reads.clone();
        both.add(&self.writes).expect("both have the same bounds");
        Latency::of(&both)
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    #[serde(rename = "p99.9")]
    pub p999: f64,
    #[serde(rename = "p99.99")]
    pub p9999: f64,
    pub max: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        if histogram.is_empty() {
            return None;
        }
        let at = |share: f64| histogram.value_at_quantile(share) as f64 / 1e3;
        Some(Latency {
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: histogram.max() as f64 / 1e3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_percentiles_are_those_of_all_threads() {
        let (counters, mut sum) = (Counters::default(), Tally::default());
        counters.count(Side::Read, 5, &mut sum);
        assert!(sum.both().is_none(), "nothing is recorded before it is wanted");
        counters.record(true);
        for n in 0..4u64 {
            let mut one = Tally::default();
            (0..25).for_each(|_| counters.count(Side::Read, (n + 1) * 1_000_000, &mut one));
            sum.merge(&one);
        }
        counters.count(Side::Write, u64::MAX, &mut sum);
        assert_eq!(counters.answered(), [101, 1]);
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.002;
        let reads = sum.latency(Side::Read).unwrap();
        assert!(near(reads.p50, 2000.0) && near(reads.p90, 4000.0), "{reads:?}");
        assert!(near(reads.mean, 2500.0) && near(reads.max, 4000.0), "{reads:?}");
        assert!(near(sum.both().unwrap().max, LONGEST as f64 / 1e3));
    }
}
