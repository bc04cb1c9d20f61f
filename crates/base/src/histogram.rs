//! A histogram of durations: a count for each range of time.
//!
//! Up to 8 µs, each microsecond is a range of its own. Above that, each power of two is divided
//! into eight equal ranges, so a range is at most an eighth longer than its start. The last one
//! begins at 126 s (125,829,120 µs), and has no end. Recording takes a few instructions and no
//! memory.

use crate::time::{Duration, Time};

/// The number of ranges.
pub const RANGES: usize = 200;

/// Ranges per power of two.
const PARTS: u64 = 8;

/// The counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: [u64; RANGES],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; RANGES] }
    }
}

/// Returns the range of this many microseconds.
#[inline]
fn range_of(us: u64) -> usize {
    if us < PARTS {
        return us as usize;
    }
    let power = u64::from(us.ilog2());
    let range = (power - 2) * PARTS + (us >> (power - 3)) % PARTS;
    (range as usize).min(RANGES - 1)
}

/// Returns where a range begins, in microseconds. For [`RANGES`], returns where the last range
/// would end if it had an end.
pub fn begin_us(range: usize) -> u64 {
    let range = range.min(RANGES) as u64;
    match range / PARTS {
        0 => range,
        power => (PARTS + range % PARTS) << (power - 1),
    }
}

impl Histogram {
    /// Counts something that took from `from` to `to`.
    #[inline]
    pub fn record(&mut self, from: Time, to: Time) {
        self.counts[range_of(to.0.saturating_sub(from.0) / 1000)] += 1;
    }

    /// Adds `count` to a range. A range that does not exist is ignored.
    pub fn add(&mut self, range: usize, count: u64) {
        if let Some(counted) = self.counts.get_mut(range) {
            *counted = counted.saturating_add(count);
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        other.ranges().for_each(|(range, count)| self.add(range, count));
    }

    /// Returns what has been counted since an earlier state of the same histogram.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut rest = self.clone();
        for (count, before) in rest.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        rest
    }

    /// Iterates over the ranges that are not empty, with their counts, in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// Returns the number of things counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns a percentile, which is given in thousandths: 990 is the 99th. Assumes that the
    /// durations within a range are evenly spread. `None` if nothing was counted.
    pub fn percentile(&self, thousandths: u64) -> Option<Duration> {
        let all = u128::from(self.total());
        let rank = (all * u128::from(thousandths.min(1000))).div_ceil(1000).max(1);
        let mut before = 0;
        for (range, count) in self.ranges() {
            let count = u128::from(count);
            if before + count >= rank {
                let begin = begin_us(range);
                let length = if range + 1 < RANGES { begin_us(range + 1) - begin } else { 0 };
                let part = u128::from(length) * 1000 * (rank - before) / count;
                return Some(Duration::from_micros(begin) + Duration::from_nanos(part as u64));
            }
            before += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn of(us: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        us.iter().for_each(|us| histogram.record(Time(7), Time(7 + us * 1000)));
        histogram
    }

    #[test]
    fn ranges_follow_each_other_and_are_at_most_an_eighth_longer_than_their_start() {
        for range in 0..RANGES {
            let (begin, end) = (begin_us(range), begin_us(range + 1));
            assert!(begin < end && (end - begin == 1 || (end - begin) * 8 <= begin), "{range}");
            let last = if range + 1 == RANGES { u64::MAX } else { end - 1 };
            assert_eq!((range_of(begin), range_of(last)), (range, range));
        }
        assert_eq!(begin_us(RANGES - 1), 125_829_120);
    }

    #[test]
    fn times_are_counted_in_whole_microseconds() {
        let mut histogram = Histogram::default();
        histogram.record(Time(0), Time(1999));
        histogram.record(Time(5), Time(4)); // counts as no time
        assert_eq!(histogram.ranges().collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    }

    #[test]
    fn percentiles_lie_in_the_range_of_their_rank() {
        assert_eq!(Histogram::default().percentile(500), None);
        let even: Vec<u64> = (0..10_000).collect();
        for (thousandths, exact) in [(1, 10), (500, 5000), (990, 9900), (1000, 10_000)] {
            let us = of(&even).percentile(thousandths).unwrap().as_micros();
            assert!(us.abs_diff(exact) <= exact / 8, "{thousandths}: {us}");
        }
        let rare = of(&[5, 5, 5, 1_000_000]);
        assert_eq!(rare.percentile(750), Some(Duration::from_micros(6)));
        assert!(rare.percentile(751).unwrap() > Duration::from_millis(900));
        assert_eq!(
            of(&[u64::MAX / 1000 - 1]).percentile(500),
            Some(Duration::from_micros(begin_us(RANGES - 1)))
        );
    }

    #[test]
    fn what_was_counted_since_is_the_difference() {
        let (before, mut after) = (of(&[3, 50]), of(&[3, 50, 50, 9000]));
        assert_eq!(after.since(&before), of(&[50, 9000]));
        assert_eq!(before.since(&after).total(), 0);
        after.merge(&before);
        assert_eq!((after.total(), before.total()), (6, 2));
        after.add(RANGES, 1);
        assert_eq!(after.total(), 6);
    }
}
