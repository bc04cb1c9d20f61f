//! The storage that the library reads from: the base and the entries after it, in memory. The owner
//! makes sure that they are on the disk, too.

use crate::records::{Base, HardState, Image, Membership, base_to, hard_to, membership_to};
use core::cell::Cell;
use raft::eraftpb::{Entry, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};

/// See the head of this file.
pub(crate) struct LogStorage {
    pub hard: HardState,
    /// The membership at the start. The library keeps its own from then on.
    start: Membership,
    pub base: Base,
    /// The entries after the base, without gaps.
    entries: Vec<Entry>,
    /// A member needs the base, but has joined after it, and would refuse it.
    pub too_old: Cell<bool>,
}

impl LogStorage {
    pub(crate) fn new(image: Image) -> LogStorage {
        let entries = image.entries.into_iter().map(crate::records::entry_to).collect();
        let start = image.base.membership.clone();
        LogStorage { hard: image.hard, start, base: image.base, entries, too_old: Cell::new(false) }
    }

    pub(crate) fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    /// Appends entries. They replace entries with the same or a higher index.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.base.index && first.index <= self.last() + 1, "no gap");
        self.entries.truncate((first.index - self.base.index - 1) as usize);
        self.entries.extend_from_slice(entries);
    }

    /// Replaces everything with a leader's state.
    pub(crate) fn restore(&mut self, base: Base) {
        self.entries.clear();
        self.base = base;
    }

    /// Replaces the base, and the entries that the new one contains.
    pub(crate) fn rebase(&mut self, base: Base) {
        assert!(base.index >= self.base.index && base.index <= self.last());
        self.entries.drain(..(base.index - self.base.index) as usize);
        self.base = base;
        self.too_old.set(false);
    }

    /// Returns the entries after the base.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn term_of(&self, index: u64) -> Option<u64> {
        match index.checked_sub(self.base.index)? {
            0 => Some(self.base.term),
            n => self.entries.get(n as usize - 1).map(|e| e.term),
        }
    }
}

impl Storage for LogStorage {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(hard_to(self.hard), membership_to(&self.start)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.base.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last() + 1, "entries {low}..{high} of {}", self.last());
        let at = |index: u64| (index - self.base.index - 1) as usize;
        let max = max_size.into().unwrap_or(u64::MAX);
        let (mut list, mut bytes) = (Vec::new(), 0);
        for entry in &self.entries[at(low)..at(high)] {
            bytes += (entry.data.len() + entry.context.len() + 24) as u64;
            if !list.is_empty() && bytes > max {
                break;
            }
            list.push(entry.clone());
        }
        Ok(list)
    }

    fn term(&self, index: u64) -> Result<u64> {
        let gone = index < self.base.index;
        let why = if gone { StorageError::Compacted } else { StorageError::Unavailable };
        self.term_of(index).ok_or(Error::Store(why))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _: u64, to: u64) -> Result<Snapshot> {
        if !self.base.membership.all().contains(&to) {
            self.too_old.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(base_to(&self.base))
    }
}
