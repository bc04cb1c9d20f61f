//! The executed writes of all groups of a shard: how many are listed, and which were forgotten
//! because the lists are bounded (rule R8). The lists themselves are in the groups' records.
//!
//! Invariants:
//! - What a list no longer contains is among the forgotten writes before anything else happens.
//! - Entries are numbered in the order in which they were listed, over all groups, so the oldest
//!   ones are forgotten first.

use base::{BlockSet, GroupId, Limits, UnitKey};
use seam::record::{ClientWrite, ExecutedList};
use seam::{ExecutedBlocks, Forgotten};

/// What the shard knows of executed writes beside the lists.
#[derive(Debug)]
pub(crate) struct History {
    /// Executed writes that no list contains any more.
    forgotten: Forgotten,
    /// How many entries were ever listed.
    noted: u64,
    /// Value of `noted` at which all lists are counted again.
    count_at: u64,
    /// The most entries of one group's list.
    most: usize,
}

impl History {
    /// Creates the history of a device that was just opened, with what its unit store knows to be
    /// forgotten.
    pub(crate) fn new(limits: &Limits, known: Option<&Forgotten>) -> History {
        let room = limits.executed_device as usize;
        let mut forgotten = known.cloned().unwrap_or_else(|| Forgotten::new(room));
        forgotten.set_room(room);
        History { forgotten, noted: 0, count_at: 0, most: limits.executed_group as usize }
    }

    /// Returns the number of executed writes after which all lists are counted.
    pub(crate) fn count_every(limits: &Limits) -> u64 {
        u64::from(limits.executed_device / 64).max(1)
    }

    /// Numbers the entries of a list that a record has brought, and bounds it.
    pub(crate) fn open(&mut self, list: ExecutedList, group: GroupId) -> ExecutedList {
        let mut list = list.renoted(&mut self.noted);
        self.bound(&mut list, group);
        list
    }

    /// Lists a write. Returns true if lists have to be bounded or counted.
    #[inline]
    pub(crate) fn record(
        &mut self,
        list: &mut ExecutedList,
        write: ClientWrite,
        unit: UnitKey,
        blocks: BlockSet,
    ) -> bool {
        list.record(write, unit, blocks, &mut self.noted);
        list.len() > self.most || self.noted >= self.count_at
    }

    /// Updates a list for blocks that have another replica's content now.
    pub(crate) fn overwrite(
        &mut self,
        list: &mut ExecutedList,
        group: GroupId,
        (unit, blocks): (UnitKey, BlockSet),
        theirs: &[ExecutedBlocks],
    ) {
        list.overwrite(unit, blocks, theirs, &mut self.noted);
        self.bound(list, group);
    }

    /// Bounds a group's list.
    pub(crate) fn bound(&mut self, list: &mut ExecutedList, group: GroupId) {
        list.bound(self.most, group, &mut self.forgotten);
    }

    /// Returns true if all lists are to be counted now; then not again for a while.
    pub(crate) fn counts(&mut self, limits: &Limits) -> bool {
        let due = self.noted >= self.count_at;
        if due {
            self.count_at = self.noted + History::count_every(limits);
        }
        due
    }

    /// Forgets the entries of a list up to this number.
    pub(crate) fn forget_until(&mut self, list: &mut ExecutedList, last: u64, group: GroupId) {
        list.forget_until(last, group, &mut self.forgotten);
    }

    /// Takes over an entry that another replica has forgotten.
    pub(crate) fn forget(&mut self, group: GroupId, entry: &ExecutedBlocks) {
        self.forgotten.take(group, entry);
    }

    /// Returns what was forgotten.
    pub(crate) fn forgotten(&self) -> &Forgotten {
        &self.forgotten
    }

    /// Returns the number of entries so far, for lists that another replica has sent.
    pub(crate) fn noted(&mut self) -> &mut u64 {
        &mut self.noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use base::{Incarnation, SdcId};

    #[test]
    fn what_a_list_has_no_room_for_is_forgotten_and_not_unknown() {
        let limits = Limits { executed_group: 2, executed_device: 64, ..Limits::TEST_MIN };
        let mut history = History::new(&limits, None);
        let (group, mut list) = (GroupId(1), ExecutedList::default());
        let write = |seq| ClientWrite { sdc: SdcId(1), incarnation: Incarnation(1), seq, floor: 1 };
        let blocks = BlockSet::from_range(0..1);
        let mut bound = Vec::new();
        for seq in 1..=3 {
            let unit = UnitKey { index: seq as u32, ..UnitKey::default() };
            bound.push(history.record(&mut list, write(seq), unit, blocks));
            while history.counts(&limits) {}
        }
        assert_eq!(bound, [true, true, true], "each entry is counted, and the third is too many");
        history.bound(&mut list, group);
        assert!(list.len() <= 2);
        assert!(history.forgotten().covers(group, write(1)));
        assert!(!history.forgotten().covers(GroupId(2), write(1)));
    }
}
