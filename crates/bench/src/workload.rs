//! The requests of a job: their kinds, sizes and offsets.

use crate::tally::Side;
use base::Prng;
use clap::ValueEnum;
use std::fmt;
use std::ops::Range;

/// Order and kind of the requests, named as in fio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Reads at random offsets
    Randread,
    /// Writes at random offsets
    Randwrite,
    /// Reads and writes at random offsets, mixed as --mix says
    Randrw,
    /// Sequential reads; each job has its own region
    Read,
    /// Sequential writes; each job has its own region
    Write,
}

impl Workload {
    /// Returns true for the sequential workloads.
    pub fn is_sequential(self) -> bool {
        matches!(self, Workload::Read | Workload::Write)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Workload::Randread => "randread",
            Workload::Randwrite => "randwrite",
            Workload::Randrw => "randrw",
            Workload::Read => "read",
            Workload::Write => "write",
        })
    }
}

/// The requests of one job.
#[derive(Clone, Debug)]
pub struct Requests {
    workload: Workload,
    read_share: f64,
    block: u64,
    /// The job's region of the volume, in blocks.
    region: Range<u64>,
    next: u64,
    prng: Prng,
}

impl Requests {
    /// Creates the requests of job `job` of `jobs`, of `block` bytes each. In a random mix, `mix`
    /// percent are reads. `None` if the volume is too small.
    pub fn new(
        workload: Workload,
        mix: u32,
        block: u32,
        size: u64,
        (job, jobs): (u32, u32),
        seed: u64,
    ) -> Option<Requests> {
        let blocks = size / u64::from(block);
        let part = |n: u32| blocks * u64::from(n) / u64::from(jobs);
        let region = if workload.is_sequential() { part(job)..part(job + 1) } else { 0..blocks };
        (!region.is_empty()).then(|| Requests {
            workload,
            read_share: f64::from(mix) / 100.0,
            block: block.into(),
            next: region.start,
            region,
            prng: Prng::new(seed),
        })
    }

    /// Draws the kind and the offset of the next request.
    pub fn draw(&mut self) -> (Side, u64) {
        let side = match self.workload {
            Workload::Randread | Workload::Read => Side::Read,
            Workload::Randwrite | Workload::Write => Side::Write,
            Workload::Randrw if self.prng.chance(self.read_share) => Side::Read,
            Workload::Randrw => Side::Write,
        };
        let block = if self.workload.is_sequential() {
            let block = self.next;
            self.next = if block + 1 == self.region.end { self.region.start } else { block + 1 };
            block
        } else {
            self.prng.range(self.region.start, self.region.end - 1)
        };
        (side, block * self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_jobs_share_the_volume_and_start_over() {
        let all: Vec<Vec<u64>> = (0..3)
            .map(|job| {
                let mut r = Requests::new(Workload::Read, 0, 512, 10 * 512, (job, 3), 1).unwrap();
                (0..5).map(|_| r.draw().1 / 512).collect()
            })
            .collect();
        assert_eq!(all, [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4], [6, 7, 8, 9, 6]]);
        assert!(Requests::new(Workload::Read, 0, 512, 1024, (0, 3), 1).is_none(), "too small");
    }

    #[test]
    fn random_mixes_are_as_asked_and_stay_inside() {
        let mut r = Requests::new(Workload::Randrw, 70, 4096, 1 << 20, (0, 1), 1).unwrap();
        let drawn: Vec<(Side, u64)> = (0..10_000).map(|_| r.draw()).collect();
        let reads = drawn.iter().filter(|(side, _)| *side == Side::Read).count();
        assert!((6800..7200).contains(&reads), "{reads}");
        assert!(drawn.iter().all(|(_, at)| at % 4096 == 0 && *at < 1 << 20));
    }
}
