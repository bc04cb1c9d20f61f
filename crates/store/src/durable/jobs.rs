//! The jobs in flight, and the results of those that have ended, until the caller asks for them.
//!
//! Invariant: a job lives until it ends, and ends once.

use super::job::{Fetch, IN_FLIGHT, Job, Kind};
use super::unitmap::Pin;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{BlockSet, Slab, UnitKey};
use seam::{Buf, DiskError, Finished, Started};

/// All jobs of one device.
#[derive(Debug)]
pub(super) struct Jobs {
    table: Slab<Job>,
    finished: VecDeque<Finished>,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs { table: Slab::new(IN_FLIGHT), finished: VecDeque::new() }
    }
}

impl Jobs {
    /// Adds a job that has not begun anything yet.
    pub(super) fn begin(
        &mut self,
        token: Option<u64>,
        kind: Kind,
        fetch: Fetch,
        pins: Vec<Pin>,
    ) -> u64 {
        let job = Job { token, kind, fetch, left: 0, error: None, record: None, pins };
        self.table.insert(job).expect("callers bound their jobs")
    }

    /// Returns a job, unless it has ended.
    pub(super) fn get(&self, key: u64) -> Option<&Job> {
        self.table.get(key)
    }

    /// Returns a job, unless it has ended.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Job> {
        self.table.get_mut(key)
    }

    /// Returns a job that has not ended.
    pub(super) fn at(&mut self, key: u64) -> &mut Job {
        self.table.get_mut(key).expect("a job lives until it ends")
    }

    /// Records that an operation or record that a job waits for is complete. Returns the job if it
    /// was the last one.
    pub(super) fn arrived(&mut self, key: u64, error: Option<DiskError>) -> Option<&Job> {
        let job = self.table.get_mut(key)?;
        assert!(job.left > 0, "a job counts what it waits for");
        job.left -= 1;
        job.error = job.error.or(error);
        (job.left == 0).then_some(job)
    }

    /// Ends a job, and keeps its result. `crc` is the CRC-32C of its answer.
    pub(super) fn end(
        &mut self,
        key: u64,
        result: Result<Buf, DiskError>,
        crc: Option<u32>,
    ) -> Option<Job> {
        let job = self.table.remove(key)?;
        if let Some(token) = job.token {
            self.finished.push_back(Finished { token, result, crc });
        }
        Some(job)
    }

    /// Fails a job that has not begun.
    pub(super) fn refuse(&mut self, token: u64, error: DiskError) -> Started {
        self.finished.push_back(Finished { token, result: Err(error), crc: None });
        Started::Pending
    }

    /// Returns the next result.
    pub(super) fn finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// True when no job is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the keys of all jobs.
    pub(super) fn keys(&self) -> Vec<u64> {
        self.table.iter().map(|(key, _)| key).collect()
    }

    /// True when no read in flight needs blocks that a new job changes. Looks at every job, so only
    /// builds with debug assertions call it. Every build checks that no job touches what another
    /// one *changes* (`UnitMap::pin_slot`).
    pub(super) fn is_not_read(&self, unit: UnitKey, at: u32, len: u32, pins: &[Pin]) -> bool {
        let touched = BlockSet::touching(at, len);
        let same_slot = |job: &Job| job.pins.iter().any(|a| pins.iter().any(|b| a.slot == b.slot));
        self.table.iter().all(|(_, job)| match job.kind {
            Kind::Read { at, len } if len > 0 && job.fetch.unit == unit => {
                BlockSet::touching(at, len).and(touched).is_empty() || !same_slot(job)
            }
            _ => true,
        })
    }
}
