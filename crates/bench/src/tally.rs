//! The results of a load: counters that other threads may read at any time, and latencies that are
//! merged at the end.
//!
//! The loading thread writes both, without atomic additions or locks. Only requests that are
//! answered while [`Counters::record`] is on go into the histograms.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Longer latencies are recorded as this value: one minute, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Significant decimal digits of a histogram.
const DIGITS: u8 = 3;

/// A read or a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A read: data comes back.
    Read,
    /// A write: data goes out.
    Write,
}

/// The results of one loading thread so far, for the measuring thread.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    /// Sum of all latencies in nanoseconds.
    waited: AtomicU64,
    record: AtomicBool,
}

impl Counters {
    /// Returns the numbers of answered reads and writes.
    pub fn answered(&self) -> [u64; 2] {
        [self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed)]
    }

    /// Returns the sum of their latencies in nanoseconds.
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    /// Switches the recording of latencies on or off.
    pub fn record(&self, on: bool) {
        self.record.store(on, Ordering::Relaxed);
    }

    /// Counts an answer, and records its latency if recording is on. Only one thread may call this.
    pub fn count(&self, side: Side, latency_ns: u64, tally: &mut Tally) {
        let counter = if side == Side::Read { &self.reads } else { &self.writes };
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.waited.store(self.waited().wrapping_add(latency_ns), Ordering::Relaxed);
        if self.record.load(Ordering::Relaxed) {
            tally.add(side, latency_ns);
        }
    }
}

/// Latencies of reads and of writes.
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

    /// Adds the latencies of another thread.
    pub fn merge(&mut self, other: &Tally) {
        for (ours, theirs) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            ours.add(theirs).expect("both have the same bounds");
        }
    }

    /// Returns the percentiles of reads or writes; `None` if none was recorded.
    pub fn latency(&self, side: Side) -> Option<Latency> {
        Latency::of(if side == Side::Read { &self.reads } else { &self.writes })
    }

    /// Returns the percentiles of reads and writes together; `None` if none was recorded.
    pub fn both(&self) -> Option<Latency> {
        let mut both = self.reads.clone();
        both.add(&self.writes).expect("both have the same bounds");
        Latency::of(&both)
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// Half of the requests took no longer.
    pub p50: f64,
    /// 90 % of them took no longer.
    pub p90: f64,
    /// 99 % of them took no longer.
    pub p99: f64,
    /// 99.9 % of them took no longer.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// 99.99 % of them took no longer.
    #[serde(rename = "p99.99")]
    pub p9999: f64,
    /// The longest.
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
