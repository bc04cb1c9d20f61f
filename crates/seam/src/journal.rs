//! The content of a device, between the replication that decides *what* is read and written, and in
//! which order, and the store that knows where it lies. Neither knows the other.
//!
//! A device that outlives its process keeps, together with its content, what replication must remember
//! about it (rule R5): data, and the marks that say how certain it is, are one atomic record. One that
//! does not ([`Journal::survives`]) keeps no records, and nobody needs to make any.
//!
//! The end of one device operation may end many jobs, or none (group commit), so ends are asked for with
//! [`Journal::finished`]; changes of the replication's own records are jobs as well.
//!
//! Everything here is a *delta* whose last writer wins, per block, per client or per field: replaying a
//! piece of history over a state that already contains a part of it gives the state after that history.

use crate::{Buf, DiskError, DiskOp, Effects, Forgotten};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{BlockSet, Epoch, GroupId, Incarnation, SdcId, UnitKey, VolumeId};

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
        /// Its CRC-32C, made by whoever made the data, if it is known: what is kept is what this belongs
        /// to, or the job is refused.
        crc: Option<u32>,
    },
    /// Make a range read as zeros; whole blocks become invalid.
    Zero {
        /// From here.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// These whole blocks hold data that nobody has any more: until they are written or zeroed whole, what
    /// needs them fails with [`DiskError::Corrupt`].
    Lose {
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
    /// [`Journal::finished`] will tell.
    Pending,
    /// No space; nothing was changed.
    Full,
    /// The body is not the one that its checksum belongs to; nothing was changed.
    BadBody,
}

/// A job that ended.
#[derive(Debug)]
pub struct Finished {
    /// The caller's name for it.
    pub token: u64,
    /// A read's data, or why it failed.
    pub result: Result<Buf, DiskError>,
    /// CRC-32C of a read's data, from checksums that are kept with it: not made from memory that may have
    /// changed. `None`: the store can't tell, and it is to be computed.
    pub crc: Option<u32>,
}

/// A client's name for a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientWrite {
    /// The client.
    pub sdc: SdcId,
    /// Its life; only the newest life that was seen counts.
    pub incarnation: Incarnation,
    /// Its number of the write.
    pub seq: u64,
    /// Its lowest unanswered number in the group: lower ones are forgotten.
    pub floor: u64,
}

/// Blocks of one unit whose content includes a client's write (rule R8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutedBlocks {
    /// The write.
    pub write: ClientWrite,
    /// The unit.
    pub unit: UnitKey,
    /// The blocks.
    pub blocks: BlockSet,
}

/// Where the content of a write came from, for the list of executed writes.
#[derive(Clone, Debug, Default)]
pub enum Origin {
    /// From nowhere that would retry it.
    #[default]
    Unnamed,
    /// From a client: the blocks include this write.
    Client(ClientWrite),
    /// From another replica: what its list says about these blocks replaces what ours says.
    Copied(Rc<[ExecutedBlocks]>),
}

/// What a write says about itself, in one record with its data.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// The blocks may differ from the other copy from now on: they enter the dirty set.
    pub dirty: bool,
    /// Whose write it is.
    pub origin: Origin,
}

/// What a walk over a device finds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A range of one unit that holds data: whole blocks, of which some may hold none.
    Held {
        /// The group.
        group: GroupId,
        /// The unit.
        unit: UnitKey,
        /// Where the range begins in the unit, in bytes.
        at: u32,
        /// Its bytes.
        len: u32,
        /// Bytes of the blocks in it that hold data.
        held: u32,
        /// Where the walk goes on.
        next: u64,
    },
    /// Nothing so far; to be asked again from here.
    Nothing {
        /// Where the walk goes on.
        next: u64,
    },
    /// There is nothing more.
    End,
}

/// A change of what a group must remember.
#[derive(Clone, Debug)]
pub enum Change {
    /// It takes part in this epoch (R2).
    Acted(Epoch),
    /// It takes part in this epoch as a joiner: others may acknowledge writes that it doesn't have.
    Joins(Epoch),
    /// It was equal to another in-sync member at this epoch's seal.
    Base(Epoch),
    /// These blocks may differ.
    Dirty(Vec<(UnitKey, BlockSet)>),
    /// These blocks don't differ any more. May be late, never early.
    Clean(Vec<(UnitKey, BlockSet)>),
    /// No block differs.
    CleanAll,
    /// The list of executed writes becomes this one: it is handed over at a seal.
    Executed(Vec<ExecutedBlocks>),
    /// These entries of [`Forgotten`] are added to what was forgotten on the device.
    Forgotten(Vec<ExecutedBlocks>),
    /// The content goes, and all of the above but what was forgotten, [`Change::Acted`] and [`Change::Joins`]. No job runs on the group.
    Wipe,
}

/// What a group remembered, as a mount finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupRecord {
    /// The highest epoch in which it took part.
    pub acted: Epoch,
    /// In that one it was a joiner.
    pub joiner: bool,
    /// The last epoch at whose seal it was equal to another in-sync member.
    pub base: Epoch,
    /// Blocks that may differ.
    pub dirty: BTreeMap<UnitKey, BlockSet>,
    /// There was no room for the dirty set: any block may differ, and only a full copy helps.
    pub all_dirty: bool,
    /// Client writes that the content includes, but for those of [`Journal::forgotten`].
    pub executed: Vec<ExecutedBlocks>,
}

/// The content of one device, by group and unit. Ranges are bytes in the unit, multiples of 512.
///
/// Jobs on overlapping *blocks* never run at the same time (the caller's range locks). After every
/// batch of calls comes one [`Journal::flush`].
pub trait Journal {
    /// Starts a job; a write's or zero's marks become durable with it, in one step. `marks` of a read
    /// mean nothing. The end of a pending job comes out of [`Journal::finished`].
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Job,
        marks: Marks,
        out: &mut Effects,
    ) -> Started;
    /// Changes a group's record, all of `changes` in one step, in the order of calls, and together less
    /// than 1 MiB of entries. [`Journal::finished`] tells `token`, if there is one, when it is durable.
    /// What it says about blocks doesn't concern jobs that still run, unless it repeats their marks.
    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>);
    /// A device operation ended.
    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, out: &mut Effects);
    /// The next job or change that ended. Ask until there is none, after `disk_done` and `flush`.
    fn finished(&mut self) -> Option<Finished>;
    /// Ends a batch of calls: writes what was gathered to the log.
    fn flush(&mut self, out: &mut Effects);
    /// Called every [`base::Limits::heartbeat_every`] or so: a device that has rested since the last call makes durable that
    /// what was written last has arrived whole. Damage is told from a write that a crash cut short by that.
    fn rest(&mut self, _out: &mut Effects) {}
    /// True when a write to this range needs no new space: all of its places hold data. One that is only reserved, or
    /// on which a job runs, may be given back.
    fn has_space_for(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool;
    /// Makes sure that a later write to this range finds space; false when there is none.
    fn reserve(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool;
    /// Ends a reservation of exactly this range.
    fn release(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32);
    /// The blocks of the unit that hold data.
    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet;
    /// The group's units that hold data, in order.
    fn units(&self, group: GroupId) -> Vec<UnitKey>;
    /// True when the group has no content; cheaper than to ask for its units.
    fn is_empty(&self, group: GroupId) -> bool;
    /// Every volume that has content, in order.
    fn volumes(&self) -> Vec<VolumeId>;
    /// Drops the volume's content and marks; what a job runs on goes when the job ends. Tells how many
    /// bytes of the device it took. Not waited for: a crash may bring the volume back, and the live list drops it again (R9).
    fn drop_volume(&mut self, volume: VolumeId) -> u64;
    /// A step of a walk over all that the device holds, from this cursor on; 0 is the beginning. What is
    /// there from the beginning of a walk to its end, and isn't written meanwhile, is met. One step takes a
    /// bounded time, and finds at most `most` bytes (64 KiB or more). Nothing, on a device that does not
    /// survive: nothing rots there.
    fn walk(&self, _cursor: u64, _most: u32) -> Walk {
        Walk::End
    }
    /// Bytes of the device that are taken, with what is reserved; about as many as a walk finds.
    fn used(&self) -> u64;
    /// What the groups remembered when the device was mounted, with all that was changed since.
    fn records(&self) -> Vec<(GroupId, GroupRecord)>;
    /// Executed writes that no group's record lists, although its content may include them; `None` for a device
    /// that does not survive.
    fn forgotten(&self) -> Option<&Forgotten> {
        None
    }
    /// False for a device that keeps nothing (NULL): nothing needs to be copied or remembered.
    fn keeps_data(&self) -> bool {
        true
    }
    /// False for a device that is empty after its process has died: marks mean nothing to it, changes
    /// but [`Change::Wipe`] neither, and there are no records.
    fn survives(&self) -> bool {
        true
    }
    /// Why the device can't go on, if it can't: nobody knows what is on it.
    fn failed(&self) -> Option<DiskError> {
        None
    }
}
