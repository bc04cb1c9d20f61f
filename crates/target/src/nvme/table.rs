//! The outstanding commands of a queue.
//!
//! Invariants: the handle of a command names it in tags of requests, and 16 of its bits name it in
//! R2Ts. Pieces of a command are counted, not listed: the tag of a request says which piece it is.

use super::controller::Request;
use super::ranges::Ranges;
use super::reserve::Wish;
use super::status::Status;
use super::subsystem::Namespace;
use crate::reserve::Access;
use crate::slots::Slots;
use crate::split::SplitSector;
use alloc::vec::Vec;
use base::time::Duration;
use base::{Time, VolumeId};
use seam::Buf;

/// A part of a volume, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// Where the part begins.
    pub(crate) at: u64,
    /// Its length.
    pub(crate) len: u32,
}

/// A command that gathers data from the host before it does anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gather {
    /// Connect.
    Connect(Request),
    /// The feature "host behavior support".
    Behavior,
    /// A message of an authentication.
    Auth,
    /// Deallocates this many ranges of a namespace, from the start of the list.
    Ranges(Namespace, u16),
    /// A change of a volume's reservations.
    Change(VolumeId, Wish),
    /// One of two fused commands.
    Fused(Fused),
}

/// One of two fused commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fused {
    /// What is compared, and then written.
    pub(crate) range: Range,
    /// True for the Write.
    pub(crate) is_second: bool,
    /// The handle of the other one; `None` until it has arrived.
    pub(crate) partner: Option<u32>,
}

/// The first of two fused commands, while the second one has not arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    /// The command with this handle.
    Waits(u32),
    /// It has failed, and is answered.
    Failed,
}

/// What a command does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Read a range.
    Read(Range),
    /// Write the data that comes.
    Write(Range),
    /// Compare the data that comes with that of the volume.
    Compare(Range),
    /// Make a range read as zeros; if true, its space may be freed.
    Zero(Range, bool),
    /// Gather the data in a buffer.
    Gather(Gather, Buf),
    /// Deallocate ranges.
    Deallocate(Ranges),
    /// Get the reservations of a volume from the MDM, and report this many bytes of them.
    Report(Range),
    /// The MDM changes the reservations of a volume.
    Change(VolumeId),
}

/// The data that a command may receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// None.
    Idle,
    /// None: the command waits until it may send its R2T.
    Queued,
    /// The rest of its data.
    Coming,
}

/// One command.
#[derive(Debug)]
pub(crate) struct Task {
    /// The host's id of the command.
    pub(crate) cid: u16,
    /// The last tick before it arrived; `None` before the session's first tick.
    pub(crate) since: Option<Time>,
    /// What the command does.
    pub(crate) work: Work,
    /// What data may come.
    pub(crate) flow: Flow,
    /// Bytes that the command needs.
    pub(crate) wants: u32,
    /// Bytes that have arrived.
    pub(crate) came: u32,
    /// Bytes that were requested from the host or the volume, and are not processed yet.
    pub(crate) owed: u32,
    /// Requests under way.
    pub(crate) pieces: u32,
    /// The start of a sector whose end has not arrived.
    pub(crate) split: SplitSector,
    /// The lowest offset at which the command has failed, and the status.
    pub(crate) failed: Option<(u32, Status)>,
}

impl Task {
    /// Creates a command that has done nothing, and needs `wants` bytes from the host.
    pub(crate) fn new(cid: u16, since: Option<Time>, work: Work, wants: u32) -> Task {
        Task {
            cid,
            since,
            work,
            flow: Flow::Idle,
            wants,
            came: 0,
            owed: 0,
            pieces: 0,
            split: SplitSector::default(),
            failed: None,
        }
    }

    /// Returns the volume, if the command is about one.
    fn volume(&self) -> Option<VolumeId> {
        match &self.work {
            Work::Read(range) | Work::Write(range) | Work::Report(range) => Some(range.volume),
            Work::Compare(range) | Work::Zero(range, _) => Some(range.volume),
            Work::Gather(Gather::Ranges(namespace, _), _) => Some(namespace.volume),
            Work::Gather(Gather::Change(volume, _), _) | Work::Change(volume) => Some(*volume),
            Work::Gather(Gather::Fused(fused), _) => Some(fused.range.volume),
            Work::Gather(Gather::Connect(_) | Gather::Behavior | Gather::Auth, _) => None,
            Work::Deallocate(ranges) => Some(ranges.volume()),
        }
    }

    /// Returns what the command needs from the reservations of its volume.
    pub(crate) fn needs(&self) -> Access {
        let (read, write) = match self.work {
            Work::Read(_) | Work::Compare(_) => (true, false),
            Work::Write(_) | Work::Zero(..) | Work::Deallocate(_) => (false, true),
            Work::Gather(Gather::Ranges(..), _) => (false, true),
            Work::Gather(Gather::Fused(_), _) => (true, true),
            Work::Gather(..) | Work::Report(_) | Work::Change(_) => (false, false),
        };
        Access { read, write }
    }

    /// Returns true if the command waits for its turn to ask for data, or to read.
    pub(crate) fn waits(&self) -> bool {
        let reads = matches!(self.work, Work::Read(_) | Work::Report(_)) && self.pieces == 0;
        reads || self.flow == Flow::Queued
    }

    /// Records that the command has failed at this offset.
    pub(crate) fn fail(&mut self, offset: u32, status: Status) {
        if self.failed.is_none_or(|(lowest, _)| offset < lowest) {
            self.failed = Some((offset, status));
        }
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Slots<Task>,
}

/// The most commands of a table: an R2T has 16 bits for their numbers.
pub(crate) const TASKS_MAX: u32 = 1 << 8;

impl Table {
    /// Creates an empty table.
    pub(crate) fn new() -> Table {
        Table { slots: Slots::new() }
    }

    /// Adds a command, and returns its handle. The caller limits their number.
    #[inline]
    pub(crate) fn insert(&mut self, make: impl FnOnce() -> Task) -> u32 {
        let handle = self.slots.insert(make);
        debug_assert!(u32::from(handle as u16) < TASKS_MAX, "limited in `Session::new`");
        handle
    }

    /// Returns the command with this handle.
    #[inline]
    pub(crate) fn get(&mut self, handle: u32) -> Option<&mut Task> {
        self.slots.get_mut(handle)
    }

    /// Returns the tag by which the host names a command when it sends its data.
    pub(crate) fn ttag(handle: u32) -> u16 {
        (handle >> 8) as u16 & 0xff00 | handle as u16 & 0xff
    }

    /// Returns the handle of the command with such a tag.
    #[inline]
    pub(crate) fn find(&self, ttag: u16) -> Option<u32> {
        let handle = self.slots.handle_at(usize::from(ttag & 0xff))?;
        (Table::ttag(handle) == ttag).then_some(handle)
    }

    /// Removes the command with this handle, if there is one.
    pub(crate) fn remove(&mut self, handle: u32) {
        self.slots.remove(handle);
    }

    /// Returns the last tick before the command with this handle arrived, if it is known.
    pub(crate) fn since(&self, handle: u32) -> Option<Time> {
        self.slots.get(handle)?.since
    }

    /// Returns the handles of the commands that arrived at least `patience` ago and still wait for
    /// their turn.
    pub(crate) fn late(&mut self, now: Time, patience: Duration) -> Vec<u32> {
        let mut late = Vec::new();
        for (handle, task) in self.slots.iter_mut() {
            let since = *task.since.get_or_insert(now);
            if task.waits() && now.since(since) >= patience {
                late.push(handle);
            }
        }
        late
    }

    /// Returns the handles of the commands about a volume.
    pub(crate) fn about(&self, volume: VolumeId) -> Vec<u32> {
        let about = self.slots.iter().filter(|(_, task)| task.volume() == Some(volume));
        about.map(|(handle, _)| handle).collect()
    }

    /// Returns the number of commands.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_tags_of_ended_commands_find_nothing() {
        let task = |cid| Task::new(cid, None, Work::Gather(Gather::Behavior, Buf::EMPTY), 0);
        let mut table = Table::new();
        let a = table.insert(|| task(1));
        let b = table.insert(|| task(2));
        assert_eq!(table.find(Table::ttag(b)), Some(b));
        table.remove(b);
        table.remove(b);
        assert_eq!(table.len(), 1);
        let c = table.insert(|| task(3));
        assert!(table.get(b).is_none() && table.find(Table::ttag(b)).is_none());
        assert_eq!((table.find(Table::ttag(a)), table.find(Table::ttag(c))), (Some(a), Some(c)));
        assert_eq!(table.len(), 2);
    }
}
