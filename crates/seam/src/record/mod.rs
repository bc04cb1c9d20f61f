//! The record that a replica must keep over a restart (rules R2, R5, R6, R8): epochs, the dirty
//! set, and the list of executed writes.
//!
//! The mirror decides by its [`ReplicaRecord`]s. The unit store keeps records of the same type, and
//! changes them with each record of its log: they are what a crash would reveal. The two differ
//! (`docs/design/0004-durable-store.md` says why), and follow the same rules, which are here.
//!
//! Every change is a *delta* for which the last writer wins, per block, per client or per field:
//! replaying a part of the history over a state that already contains some of it gives the state
//! after that history.

mod dirty;
mod executed;
mod forgotten;

pub use dirty::Dirty;
pub use executed::{ExecutedList, NotAdmitted, oldest};
pub use forgotten::Forgotten;

use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{BlockSet, Epoch, Incarnation, SdcId, UnitKey};

/// A client's identification of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientWrite {
    /// The client.
    pub sdc: SdcId,
    /// Incarnation of the client. Only the newest one that was seen counts.
    pub incarnation: Incarnation,
    /// The client's number for the write.
    pub seq: u64,
    /// The client's lowest unanswered number in the group. Lower ones need not be remembered.
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

/// The origin of a write's content, for the list of executed writes.
#[derive(Clone, Debug, Default)]
pub enum Origin {
    /// Nothing will retry it.
    #[default]
    Unnamed,
    /// From a client: the blocks include this write.
    Client(ClientWrite),
    /// Another replica: its list entries for these blocks replace those of this replica.
    Copied(Rc<[ExecutedBlocks]>),
}

/// The metadata of a write, stored in one record with its data.
#[derive(Clone, Debug, Default)]
pub struct WriteMetadata {
    /// The blocks may differ from the other copy from now on: they enter the dirty set.
    pub dirty: bool,
    /// The origin of the write.
    pub origin: Origin,
}

/// A change of a group's record.
#[derive(Clone, Debug)]
pub enum Change {
    /// The replica takes part in this epoch (R2).
    Acted(Epoch),
    /// The replica takes part in this epoch as a joiner: it may lack acknowledged writes.
    ActedAsJoiner(Epoch),
    /// The replica was equal to another in-sync replica at this epoch's seal.
    Base(Epoch),
    /// These blocks may differ from another copy.
    Dirty(Vec<(UnitKey, BlockSet)>),
    /// These blocks do not differ any more. May come late, but never early.
    Clean(Vec<(UnitKey, BlockSet)>),
    /// No block differs any more.
    CleanAll,
    /// Replaces the list of executed writes. A seal hands over the whole list.
    Executed(Vec<ExecutedBlocks>),
    /// Adds these entries of [`Forgotten`] to the device's forgotten writes.
    Forgotten(Vec<ExecutedBlocks>),
    /// Deletes the content and all of the above, except forgotten writes, [`Change::Acted`] and
    /// [`Change::ActedAsJoiner`]. No job may be running on the group.
    Wipe,
}

/// The record that a replica must keep over a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaRecord {
    /// The highest epoch in which the replica took part, or may have done so. After a restart it
    /// never acts in that epoch again (R2).
    pub acted: Epoch,
    /// True if it was a joiner in that epoch: it may lack acknowledged writes.
    pub joiner: bool,
    /// The last epoch at whose seal it was equal to another in-sync replica. `dirty` covers
    /// everything since then.
    pub base: Epoch,
    /// Blocks that may differ from another copy.
    pub dirty: Dirty,
    /// Any block may differ, and only a full copy helps: there was no room for the whole dirty set.
    pub all_dirty: bool,
    /// Client writes that the content includes, except [`Forgotten`] ones.
    pub executed: ExecutedList,
}

impl ReplicaRecord {
    /// Applies a write to these blocks. The dirty set may name `most` units; `noted` counts the
    /// executed writes that the device has noted.
    pub fn wrote(
        &mut self,
        unit: UnitKey,
        blocks: BlockSet,
        marks: &WriteMetadata,
        most: usize,
        noted: &mut u64,
    ) {
        if marks.dirty {
            self.differs(unit, blocks, most);
        }
        match &marks.origin {
            Origin::Unnamed => {}
            Origin::Client(write) => self.executed.record(*write, unit, blocks, noted),
            Origin::Copied(theirs) => self.executed.overwrite(unit, blocks, theirs, noted),
        }
    }

    /// Applies a change, with `most` and `noted` as above. Forgotten writes are a matter of the
    /// device, and deleted content is one of the store.
    pub fn change(&mut self, change: &Change, most: usize, noted: &mut u64) {
        match change {
            Change::Acted(epoch) => (self.acted, self.joiner) = (*epoch, false),
            Change::ActedAsJoiner(epoch) => (self.acted, self.joiner) = (*epoch, true),
            Change::Base(epoch) => self.base = *epoch,
            Change::Dirty(list) => list.iter().for_each(|(u, b)| self.differs(*u, *b, most)),
            Change::Clean(list) => list.iter().for_each(|(u, b)| self.dirty.remove(*u, *b)),
            Change::CleanAll => self.clean(),
            Change::Executed(list) => {
                self.executed = ExecutedList::from_entries(list.iter().copied(), noted);
            }
            Change::Forgotten(_) => {}
            Change::Wipe => {
                self.base = Epoch(0);
                self.executed.clear();
                self.clean();
            }
        }
    }

    /// Records that blocks may differ. If the dirty set would name more than `most` units, any
    /// block may differ.
    pub fn differs(&mut self, unit: UnitKey, blocks: BlockSet, most: usize) {
        if self.all_dirty || blocks.is_empty() {
            return;
        }
        if self.dirty.units() < most || self.dirty.names(unit) {
            self.dirty.insert(unit, blocks);
        } else {
            self.all_differs();
        }
    }

    /// Records that any block may differ.
    pub fn all_differs(&mut self) {
        self.dirty.clear();
        self.all_dirty = true;
    }

    /// Clears the dirty set: no block differs.
    pub fn clean(&mut self) {
        self.dirty.clear();
        self.all_dirty = false;
    }

    /// Returns true if only the epoch is left: the group's content here is gone.
    pub fn is_vacant(&self) -> bool {
        let is_clean = self.dirty.is_empty() && !self.all_dirty;
        self.base == Epoch(0) && is_clean && self.executed.is_empty()
    }
}

#[cfg(test)]
mod tests;
