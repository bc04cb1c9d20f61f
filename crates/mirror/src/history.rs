//! The executed writes of all groups of a shard: how many are listed, and which were forgotten
//! because the lists are bounded (rule R8). The lists themselves are in the groups' records.
//!
//! Invariants:
//! - A write that leaves a list is among the forgotten writes before anything else happens.
//! - Entries are numbered in the order in which they were listed, over all groups, so the oldest
//!   ones are forgotten first.

use crate::executed::{list_entry, wire_entry};
use crate::marks::change;
use crate::op::{Op, Work};
use crate::replicas::Replicas;
use alloc::vec::Vec;
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, GroupId, Limits, Mutant, UnitKey, mutant};
use seam::record::{ClientWrite, ExecutedList, oldest};
use seam::{Change, ExecutedBlocks, Forgotten, UnitStore};
use wire::Status;
use wire::records::Executed;

/// Entries of forgotten writes of a group that another replica may send, at most: for each client
/// that a cluster admits one number of the group, and one of all groups.
const MARKERS: usize = 2 * (Forgotten::MOST + 1);

/// The shard's knowledge of executed writes, apart from the lists.
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
        if mutant::on(Mutant::KeepList) {
            return;
        }
        list.overwrite(unit, blocks, theirs, &mut self.noted);
        self.bound(list, group);
    }

    /// Bounds a group's list that may be too long. Counts all lists now and then.
    #[cold]
    pub(crate) fn bound_lists(&mut self, replicas: &mut Replicas, group: GroupId, limits: &Limits) {
        if let Some(replica) = replicas.get_mut(group) {
            self.bound(&mut replica.record.executed, group);
        }
        if self.counts(limits) {
            self.bound_device(replicas, limits.executed_device as usize);
        }
    }

    /// Forgets the oldest entries of all lists, if these have more than `most` together.
    fn bound_device(&mut self, replicas: &mut Replicas, most: usize) {
        let len = replicas.executed_len();
        if len <= most || mutant::on(Mutant::EndlessList) {
            return;
        }
        let noted = replicas.values().flat_map(|r| r.record.executed.noted()).collect();
        let Some(last) = oldest(noted, len - most * 3 / 4) else { return };
        for group in replicas.groups() {
            let Some(replica) = replicas.get_mut(group) else { continue };
            replica.record.executed.forget_until(last, group, &mut self.forgotten);
        }
    }

    /// Bounds a group's list.
    fn bound(&mut self, list: &mut ExecutedList, group: GroupId) {
        list.bound(self.most, group, &mut self.forgotten);
    }

    /// Returns true if all lists are to be counted now. After that it returns false for a while.
    fn counts(&mut self, limits: &Limits) -> bool {
        let due = self.noted >= self.count_at;
        if due {
            self.count_at = self.noted + History::count_every(limits);
        }
        due
    }

    /// Takes over what another replica of the group has forgotten: content that comes from there
    /// may include it.
    pub(crate) fn take_forgotten(
        &mut self,
        store: &mut impl UnitStore,
        group: GroupId,
        told: &[Executed],
    ) {
        let entries = told.iter().filter(|r| r.set().is_empty()).take(MARKERS).map(list_entry);
        self.forget(store, group, entries);
    }

    /// Forgets these entries in this group only, because only this group's content comes from the
    /// replica that sent them. The unit store hears of it before it hears of later changes.
    pub(crate) fn forget(
        &mut self,
        store: &mut impl UnitStore,
        group: GroupId,
        entries: impl Iterator<Item = ExecutedBlocks>,
    ) {
        let entries: Vec<ExecutedBlocks> = entries.map(Forgotten::of_group).collect();
        for entry in &entries {
            self.forgotten.take(group, entry);
        }
        // Compares with what is durable: this process may have forgotten more entries of its own
        // lists, which a restart brings back.
        let known = store.forgotten();
        let is_news = |e: &ExecutedBlocks| known.is_some_and(|known| !known.has(group, e));
        let news: Vec<ExecutedBlocks> = entries.into_iter().filter(is_news).collect();
        if !news.is_empty() {
            change(store, group, alloc::vec![Change::Forgotten(news)]);
        }
    }

    /// Returns what was forgotten of a group, and these entries of its list, as records of a frame.
    pub(crate) fn records(&self, group: GroupId, list: Vec<ExecutedBlocks>) -> Vec<Executed> {
        self.forgotten.entries(group).chain(list).map(|e| wire_entry(&e)).collect()
    }

    /// Returns the answer to a retried compare-and-write, which lies in one block, if it must not
    /// be executed: its block has it already, or it is not known whether it has.
    pub(crate) fn done_before(&self, op: &Op, list: &ExecutedList) -> Option<Status> {
        if !list.blocks(op.client).is_empty() {
            return Some(Status::Ok);
        }
        self.forgotten.covers(op.group, op.client).then_some(Status::Forgotten)
    }

    /// Returns the answer to a retried write if nothing of it is left to do now.
    ///
    /// If a part of the write is in the content, the operation is reduced to the first run of
    /// missing blocks, and to no more than that: other clients may have overwritten the blocks
    /// between two such runs. A write with several missing runs is answered `Busy` after each of
    /// them but the last, so the client asks again for the next one.
    pub(crate) fn reduce(&self, op: &mut Op, list: &ExecutedList) -> Option<Status> {
        let done = list.blocks(op.client);
        let mut left = op.blocks();
        left.remove(done);
        let Work::Write(write) = &mut op.work else { return None };
        let Some(first) = left.first_run() else { return Some(write.status_when_done()) };
        let first = if mutant::on(Mutant::RetryWhole) { 0..BLOCKS_PER_UNIT } else { first };
        // It is unknown whether the write was executed, so `Ok` may be wrong, and executing it may
        // be, too.
        if self.forgotten.covers(op.group, op.client) && !mutant::on(Mutant::ForgetSilently) {
            return Some(Status::Forgotten);
        }
        let (from, to) =
            ((first.start * BLOCK).max(op.at), (first.end * BLOCK).min(op.at + op.len));
        left.remove(BlockSet::from_range(first));
        write.more |= !left.is_empty();
        // The operation may wait now, and then come here again with the reduced range.
        write.in_part |= (from, to - from) != (op.at, op.len);
        if !write.zero && (from, to) != (op.at, op.at + op.len) {
            let whole = op.body.clone();
            op.body = whole.slice((from - op.at) as usize..(to - op.at) as usize);
            op.body_crc = op.body_crc.map(|sum| {
                // The checksum of the part is computed before that of the whole body. So if the
                // body had changed by then, the second one differs, and the part gets a wrong one.
                let part = base::crc::crc32c(&op.body);
                let same = base::crc::crc32c(&whole) == sum;
                if same { part } else { !part }
            });
        }
        (op.at, op.len) = (from, to - from);
        None
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
    use base::{Incarnation, SdcId};

    #[test]
    fn writes_beyond_the_length_of_a_list_are_forgotten_and_not_unknown() {
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
