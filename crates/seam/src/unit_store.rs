//! The unit store: the interface to the content of a device. Replication decides *what* is read and
//! written and in which order; the store knows where it lies. Neither depends on the other.
//!
//! A device that survives its process also stores the metadata of replication (rule R5): data and
//! the metadata of a write are one atomic record. A device that does not survive
//! ([`UnitStore::survives`]) keeps no records, and the caller need not make any.
//!
//! One device operation may complete many jobs, or none (group commit), so the caller polls
//! completed jobs with [`UnitStore::finished`]. Changes of replication's records are jobs, too.
//! [`crate::record`] has that metadata.

use crate::{Buf, Change, DiskError, DiskOp, Effects, Forgotten, ReplicaRecord, WriteMetadata};
use alloc::vec::Vec;
use base::{BlockSet, GroupId, UnitKey, VolumeId};

/// One operation on a unit. `at` and `len` are in bytes within the unit.
#[derive(Clone, Debug)]
pub enum Job {
    /// Read a range.
    Read {
        /// Offset.
        at: u32,
        /// Length.
        len: u32,
    },
    /// Write the body.
    Write {
        /// Offset.
        at: u32,
        /// The data.
        body: Buf,
        /// CRC-32C of the body, computed where the data originated, if known. The store refuses the
        /// job if it does not match the body.
        crc: Option<u32>,
    },
    /// Make a range read as zeros; whole blocks become invalid.
    Zero {
        /// Offset.
        at: u32,
        /// Length.
        len: u32,
    },
    /// Mark these whole blocks as lost: no copy has their data any more. Until they are written or
    /// zeroed as a whole, every job that needs them fails with [`DiskError::Corrupt`].
    MarkLost {
        /// Offset.
        at: u32,
        /// Length.
        len: u32,
    },
}

/// The result of starting a job.
#[derive(Debug)]
pub enum Started {
    /// The job is already done; holds the data of a read.
    Done(Buf),
    /// [`UnitStore::finished`] will return the result.
    Pending,
    /// There is no space. Nothing was changed.
    Full,
    /// The body does not match its checksum. Nothing was changed.
    BadBody,
}

/// A completed job.
#[derive(Debug)]
pub struct Finished {
    /// The caller's id for the job.
    pub token: u64,
    /// The data of a read, or the error.
    pub result: Result<Buf, DiskError>,
    /// CRC-32C of a read's data, taken from the stored checksums and not computed from memory that
    /// may have changed. `None`: the store does not know it, and the caller has to compute it.
    pub crc: Option<u32>,
}

/// A result of a walk over a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A range of one unit that holds data. Some of its whole blocks may be empty.
    Held {
        /// The group.
        group: GroupId,
        /// The unit.
        unit: UnitKey,
        /// Offset of the range in the unit, in bytes.
        at: u32,
        /// Length of the range, in bytes.
        len: u32,
        /// Bytes of the blocks in the range that hold data.
        held: u32,
        /// Cursor for the next step.
        next: u64,
    },
    /// Nothing found in this step.
    Nothing {
        /// Cursor for the next step.
        next: u64,
    },
    /// The walk is complete.
    End,
}

/// The content of one device, by group and unit. Ranges are bytes in the unit, multiples of 512.
///
/// The caller's range locks keep jobs apart: no job may touch *blocks* that another one changes, or
/// change blocks that another one reads. A store panics at a job that touches blocks that another
/// one changes. Only builds with debug assertions detect a change of blocks that another job reads,
/// because this check compares every job.
/// The caller ends each batch of calls with one [`UnitStore::flush`].
pub trait UnitStore {
    /// Starts a job. The metadata of a write or zero becomes durable together with it, atomically;
    /// `marks` of a read are ignored. [`UnitStore::finished`] returns a pending job when it ends.
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Job,
        marks: WriteMetadata,
        out: &mut Effects,
    ) -> Started;
    /// Changes a group's record. All of `changes` take effect atomically, in the order of calls.
    /// In total, their entries take less than 2 MB on a device, which the smallest log has room
    /// for. [`UnitStore::finished`] returns `token`, if there is one, when they are durable.
    /// Changes of blocks do not apply to jobs still in flight; repeat their metadata if they must.
    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>);
    /// Reports that a device operation ended.
    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, out: &mut Effects);
    /// Returns the next job or change that ended. Call until there is none, after `disk_done` and
    /// `flush`.
    fn finished(&mut self) -> Option<Finished>;
    /// Ends a batch of calls and writes the collected records to the log.
    fn flush(&mut self, out: &mut Effects);
    /// Called about every [`base::Limits::heartbeat_every`]. A device that was idle since the last
    /// call records durably that its last writes have arrived whole. That distinguishes damage from
    /// a write that a crash interrupted.
    fn rest(&mut self, _out: &mut Effects) {}
    /// Returns true if a write to this range needs no new space because all of its slots hold data.
    /// Slots that are reserved, or filled by a running job, do not count: they may be freed again.
    fn has_space_for(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool;
    /// Reserves space for a later write to this range. Returns false if there is none.
    fn reserve(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool;
    /// Ends a reservation of exactly this range.
    fn release(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32);
    /// Returns the blocks of the unit that hold data.
    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet;
    /// Returns the group's units that hold data, in order.
    fn units(&self, group: GroupId) -> Vec<UnitKey>;
    /// Returns true if the group has no content. Cheaper than `units`.
    fn is_empty(&self, group: GroupId) -> bool;
    /// Returns every volume that has content, in order.
    fn volumes(&self) -> Vec<VolumeId>;
    /// Drops the volume's content and metadata, and returns the number of bytes freed. A range with
    /// a running job is dropped when the job ends. The call does not wait until the drop is
    /// durable: a crash may bring the volume back, and then the live list drops it again (R9).
    fn drop_volume(&mut self, volume: VolumeId) -> u64;
    /// Performs one step of a walk over everything on the device, from this cursor on; 0 starts a
    /// walk. A walk finds all content that is there from its start to its end and is not written
    /// meanwhile. One step takes a bounded time and covers at most `most` bytes (64 KiB or more). A
    /// device that does not survive returns nothing: it is not scrubbed.
    fn walk(&self, _cursor: u64, _most: u32) -> Walk {
        Walk::End
    }
    /// Returns the bytes in use, including reservations. A walk finds about as many.
    fn used(&self) -> u64;
    /// Returns the records of all groups when the device was mounted, with all changes since.
    fn records(&self) -> Vec<(GroupId, ReplicaRecord)>;
    /// Returns the executed writes that no group's record lists, although its content may include
    /// them. `None` for a device that does not survive.
    fn forgotten(&self) -> Option<&Forgotten> {
        None
    }
    /// Returns false for a device that stores nothing (NULL), so nothing is copied or recorded.
    fn keeps_data(&self) -> bool {
        true
    }
    /// Returns false for a device that is empty after its process has died. It ignores write
    /// metadata and all changes except [`Change::Wipe`], and has no records.
    fn survives(&self) -> bool {
        true
    }
    /// Returns the error that stopped the device, if any. Its content is unknown then.
    fn failed(&self) -> Option<DiskError> {
        None
    }
}
