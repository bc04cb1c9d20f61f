//! The content of a device, between the replication that decides *what* is read and written, and in
//! which order, and the store that knows where it lies. Neither knows the other.

use crate::{Buf, DiskError, DiskOp, Effects};
use alloc::vec::Vec;
use base::{BlockSet, GroupId, UnitKey, VolumeId};

/// One thing to do to a unit; `at` and `len` are bytes in the unit.
#[derive(Clone, Debug)]
pub enum Job {
    /// Read a range.
    Read {
        /// From here.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// Write the body.
    Write {
        /// To here.
        at: u32,
        /// The data.
        body: Buf,
    },
    /// Make a range read as zeros; whole blocks become invalid.
    Zero {
        /// From here.
        at: u32,
        /// Bytes.
        len: u32,
    },
}

/// What came of starting a job.
#[derive(Debug)]
pub enum Started {
    /// Done already; a read's data is here.
    Done(Buf),
    /// `disk_done` will tell.
    Pending,
    /// No space; nothing was changed.
    Full,
}

/// A job that ended.
#[derive(Debug)]
pub struct Finished {
    /// The caller's name for it.
    pub token: u64,
    /// A read's data, or why it failed.
    pub result: Result<Buf, DiskError>,
}

/// The content of one device, by group and unit.
pub trait Media {
    /// Starts a job; jobs on overlapping ranges never run at the same time.
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Job,
        out: &mut Effects,
    ) -> Started;
    /// A device operation ended; tells the job that ended with it.
    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>) -> Option<Finished>;
    /// True when a write to the unit needs no new space.
    fn has_space_for(&self, group: GroupId, unit: UnitKey) -> bool;
    /// Makes sure that a later write finds space; false when there is none.
    fn reserve(&mut self, group: GroupId, unit: UnitKey) -> bool;
    /// Ends a reservation.
    fn release(&mut self, group: GroupId, unit: UnitKey);
    /// The blocks of the unit that hold data.
    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet;
    /// The group's units that hold data, in order.
    fn units(&self, group: GroupId) -> Vec<UnitKey>;
    /// Drops the group's content; no job runs on it.
    fn wipe(&mut self, group: GroupId);
    /// Every volume that has content, in order.
    fn volumes(&self) -> Vec<VolumeId>;
    /// Drops the volume's content; what a job runs on goes when the job ends. Tells how many units.
    fn drop_volume(&mut self, volume: VolumeId) -> u32;
    /// False for a device that keeps nothing (NULL): nothing needs to be copied or remembered.
    fn keeps_data(&self) -> bool;
}
