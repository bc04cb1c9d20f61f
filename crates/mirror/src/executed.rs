//! The list of executed writes: which writes of clients a replica's content includes (rule R8). A
//! retry of such a write is answered and not executed again over what came after it.
//!
//! Entries are kept by block, because a resync that breaks off may have brought in, or overwritten,
//! only a part of a write.
//!
//! With every write a client sends its *floor*, its lowest unanswered number in the group. Lower
//! numbers are never retried, so their entries are dropped. That alone bounds nothing, because a
//! client may hang, die, or lie. Therefore each list has a maximum length, and so have all lists of
//! a device together ([`base::Limits`]). The oldest entries beyond it are forgotten, and
//! [`Forgotten`] covers them: a retry of such a write is neither executed nor acknowledged. A
//! client whose window in a group is full may write nothing more there, except its lowest
//! unanswered number.

use alloc::vec::Vec;
use base::{BlockSet, GroupId, Incarnation, Mutant, SdcId, UnitKey, mutant};
use seam::{ClientWrite, ExecutedBlocks, Forgotten};
use wire::Status;
use wire::records::Executed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    seq: u64,
    unit: UnitKey,
    blocks: BlockSet,
    /// Rises with each entry of the device. The lowest are forgotten first.
    noted: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    sdc: SdcId,
    incarnation: Incarnation,
    floor: u64,
    entries: Vec<Entry>,
    prune_at: usize,
}

/// Number of entries below which a client's list isn't worth pruning.
const FEW: usize = 32;

impl Client {
    fn new(sdc: SdcId, incarnation: Incarnation) -> Client {
        Client { sdc, incarnation, floor: 0, entries: Vec::new(), prune_at: FEW }
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len() >= self.prune_at {
            self.prune();
        }
        self.entries.push(entry);
    }

    /// Drops entries that are never retried.
    fn prune(&mut self) {
        let floor = self.floor;
        self.entries.retain(|e| e.seq >= floor);
        self.prune_at = (self.entries.len() * 2).max(FEW);
    }

    /// Returns the entries that may be retried, and when they were noted.
    fn iter(&self) -> impl Iterator<Item = (u64, ExecutedBlocks)> {
        let Client { sdc, incarnation, floor, .. } = *self;
        self.entries.iter().filter(move |e| e.seq >= floor).map(move |e| {
            let write = ClientWrite { sdc, incarnation, seq: e.seq, floor };
            (e.noted, ExecutedBlocks { write, unit: e.unit, blocks: e.blocks })
        })
    }

    fn blocks(&self, seq: u64) -> BlockSet {
        let mut blocks = BlockSet::EMPTY;
        self.entries.iter().filter(|e| e.seq == seq).for_each(|e| blocks.insert(e.blocks));
        blocks
    }
}

/// Converts an entry to a record of a frame.
pub(crate) fn wire_entry(e: &ExecutedBlocks) -> Executed {
    Executed::new(e.write.sdc, e.write.incarnation, e.write.seq, e.unit, e.blocks)
}

/// Converts a record of a frame to an entry. The record has no floor, so the entry has floor 0.
pub(crate) fn told_entry(r: &Executed) -> ExecutedBlocks {
    let (sdc, incarnation, seq) = (r.sdc(), Incarnation(r.incarnation.get()), r.seq.get());
    let write = ClientWrite { sdc, incarnation, seq, floor: 0 };
    ExecutedBlocks { write, unit: r.key(), blocks: r.set() }
}

/// Executed writes by client, of the newest incarnation of each client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutedList {
    clients: Vec<Client>,
    len: usize,
}

impl ExecutedList {
    /// Adds an entry for a write to these blocks. `noted` rises with every entry of the device.
    pub fn record(&mut self, write: ClientWrite, unit: UnitKey, blocks: BlockSet, noted: u64) {
        let ClientWrite { sdc, incarnation, seq, floor } = write;
        let index = self.clients.iter().position(|c| c.sdc == sdc).unwrap_or_else(|| {
            self.clients.push(Client::new(sdc, incarnation));
            self.clients.len() - 1
        });
        let client = &mut self.clients[index];
        if client.incarnation > incarnation {
            return;
        }
        let before = client.entries.len();
        if client.incarnation < incarnation {
            *client = Client::new(sdc, incarnation);
        }
        client.floor = client.floor.max(floor);
        if seq >= client.floor {
            client.push(Entry { seq, unit, blocks, noted });
        }
        self.len = self.len + client.entries.len() - before;
        // Clients that write move forward, so that they are found fast among many that no longer
        // do.
        if index > 0 {
            self.clients.swap(index, index / 2);
        }
    }

    /// Returns the largest number of entries of one client.
    pub fn widest(&self) -> usize {
        self.clients.iter().map(|c| c.entries.len()).max().unwrap_or(0)
    }

    /// Returns the number of entries, including some that are never retried any more.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Refuses a write of an incarnation that a newer one has replaced, and a write of a client
    /// that has `most` writes in the list already. The client's oldest unanswered write is
    /// admitted, so that the window moves.
    pub fn admits(&self, write: ClientWrite, most: usize) -> Result<(), Status> {
        let Some(client) = self.clients.iter().find(|c| c.sdc == write.sdc) else { return Ok(()) };
        if client.incarnation > write.incarnation && !mutant::on(Mutant::OldLife) {
            return Err(Status::Superseded);
        }
        if client.entries.len() < most
            || write.seq <= write.floor
            || client.incarnation != write.incarnation
        {
            return Ok(());
        }
        let floor = client.floor.max(write.floor);
        let unanswered = client.entries.iter().filter(|e| e.seq >= floor).count();
        if unanswered < most { Ok(()) } else { Err(Status::Busy) }
    }

    /// Returns the newest incarnation of the client in the list.
    pub fn life(&self, sdc: SdcId) -> Option<Incarnation> {
        self.clients.iter().find(|c| c.sdc == sdc).map(|c| c.incarnation)
    }

    /// Returns the blocks that are known to include this write.
    pub fn blocks(&self, write: ClientWrite) -> BlockSet {
        let client =
            self.clients.iter().find(|c| c.sdc == write.sdc && c.incarnation == write.incarnation);
        client.map_or(BlockSet::EMPTY, |c| c.blocks(write.seq))
    }

    /// Takes over the entries of a replica whose content these blocks have now. `theirs` is that
    /// replica's list; what it doesn't include is gone from these blocks.
    pub fn overwrite(
        &mut self,
        unit: UnitKey,
        blocks: BlockSet,
        theirs: &[ExecutedBlocks],
        noted: &mut u64,
    ) {
        for client in &mut self.clients {
            let here = client.entries.iter_mut().filter(|e| e.unit == unit);
            here.for_each(|e| e.blocks.remove(blocks));
        }
        self.retain(|_, e| !e.blocks.is_empty());
        for entry in theirs.iter().filter(|e| e.unit == unit) {
            let common = entry.blocks.and(blocks);
            if !common.is_empty() && !self.extend(entry.write, unit, common) {
                *noted += 1;
                self.record(entry.write, unit, common, *noted);
            }
        }
    }

    /// Adds blocks to the entry of a write, because copies bring in a write piece by piece. Returns
    /// false if there is no entry.
    fn extend(&mut self, write: ClientWrite, unit: UnitKey, blocks: BlockSet) -> bool {
        let same = |c: &&mut Client| c.sdc == write.sdc && c.incarnation == write.incarnation;
        let Some(client) = self.clients.iter_mut().find(same) else { return false };
        let entry = client.entries.iter_mut().find(|e| (e.seq, e.unit) == (write.seq, unit));
        entry.map(|e| e.blocks.insert(blocks)).is_some()
    }

    fn retain(&mut self, mut keep: impl FnMut(&ExecutedBlocks, &Entry) -> bool) {
        self.clients.retain_mut(|c| {
            let Client { sdc, incarnation, floor, .. } = *c;
            c.entries.retain(|e| {
                let write = ClientWrite { sdc, incarnation, seq: e.seq, floor };
                keep(&ExecutedBlocks { write, unit: e.unit, blocks: e.blocks }, e)
            });
            !c.entries.is_empty()
        });
        self.len = self.clients.iter().map(|c| c.entries.len()).sum();
    }

    // ---- bounds ----

    /// Returns when each entry was noted.
    pub fn noted(&self) -> impl Iterator<Item = u64> {
        self.clients.iter().flat_map(|c| c.entries.iter().map(|e| e.noted))
    }

    /// Forgets the entries that were noted at `last` or before, in the list of this group.
    pub fn forget_until(&mut self, last: u64, group: GroupId, forgotten: &mut Forgotten) {
        self.retain(|told, e| {
            let ClientWrite { sdc, incarnation, seq, floor } = told.write;
            let stays = e.noted > last;
            if !stays && seq >= floor {
                forgotten.raise(group, sdc, incarnation, seq.saturating_add(1));
            }
            stays
        });
    }

    /// Drops the entries of all clients that are never retried.
    pub fn prune(&mut self) {
        self.clients.iter_mut().for_each(Client::prune);
        self.retain(|_, _| true);
    }

    /// Bounds the list to `most` entries. If it has more, a quarter is forgotten at once, because
    /// finding the oldest looks at all of them.
    pub fn bound(&mut self, most: usize, group: GroupId, forgotten: &mut Forgotten) {
        if self.len <= most || mutant::on(Mutant::EndlessList) {
            return;
        }
        self.prune();
        if self.len > most
            && let Some(last) = oldest(self.noted().collect(), self.len - most * 3 / 4)
        {
            self.forget_until(last, group, forgotten);
        }
    }

    // ---- as a whole ----

    /// Returns the entries that may be retried, in the order in which they were noted.
    pub fn entries(&self) -> Vec<ExecutedBlocks> {
        let mut all: Vec<_> = self.clients.iter().flat_map(Client::iter).collect();
        all.sort_by_key(|(noted, _)| *noted);
        all.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Returns what is known about these blocks.
    pub fn of(&self, unit: UnitKey, blocks: BlockSet) -> Vec<ExecutedBlocks> {
        let common = |(_, e): (u64, ExecutedBlocks)| {
            let blocks = e.blocks.and(blocks);
            (e.unit == unit && !blocks.is_empty()).then_some(ExecutedBlocks { blocks, ..e })
        };
        self.clients.iter().flat_map(Client::iter).filter_map(common).collect()
    }

    /// Creates a list of these entries, which are in order from the oldest. Entries without blocks
    /// are left out.
    pub fn from_entries(entries: &[ExecutedBlocks], noted: &mut u64) -> ExecutedList {
        let mut list = ExecutedList::default();
        for e in entries.iter().filter(|e| !e.blocks.is_empty()) {
            *noted += 1;
            list.record(e.write, e.unit, e.blocks, *noted);
        }
        list
    }

    /// Returns the list as records of a frame, the oldest first.
    pub fn to_records(&self) -> Vec<Executed> {
        self.entries().iter().map(wire_entry).collect()
    }

    /// Creates a list from the records of a frame.
    pub fn from_records(records: &[Executed], noted: &mut u64) -> ExecutedList {
        let entries: Vec<ExecutedBlocks> = records.iter().map(told_entry).collect();
        ExecutedList::from_entries(&entries, noted)
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = ExecutedList::default();
    }
}

/// Returns the latest of the `count` oldest values; `None` if there is none.
pub(crate) fn oldest(mut noted: Vec<u64>, count: usize) -> Option<u64> {
    let last = count.min(noted.len()).checked_sub(1)?;
    Some(*noted.select_nth_unstable(last).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(incarnation: u64, seq: u64, floor: u64) -> ClientWrite {
        ClientWrite { sdc: SdcId(1), incarnation: Incarnation(incarnation), seq, floor }
    }

    fn blocks(range: core::ops::Range<u32>) -> BlockSet {
        BlockSet::from_range(range)
    }

    const G: GroupId = GroupId(3);
    const UNIT: UnitKey = UnitKey { volume: base::VolumeId(1), index: 0 };

    #[test]
    fn remembers_what_may_be_retried_and_no_more() {
        let mut list = ExecutedList::default();
        for seq in 1..10_000 {
            list.record(write(5, seq, seq.saturating_sub(4)), UNIT, blocks(0..1), seq);
        }
        assert!((9_995..10_000).all(|seq| list.blocks(write(5, seq, 0)) == blocks(0..1)));
        assert!(list.clients[0].entries.len() <= 64);
        list.record(write(6, 1, 1), UNIT, blocks(0..1), 10_001);
        assert!(
            !list.blocks(write(6, 1, 1)).is_empty() && list.blocks(write(5, 9_999, 0)).is_empty()
        );
        list.record(write(5, 2, 1), UNIT, blocks(0..1), 10_002);
        assert!(list.blocks(write(5, 2, 1)).is_empty(), "an older life counts no more");
    }

    #[test]
    fn copied_blocks_know_what_the_source_knows() {
        let (mut mine, mut theirs) = (ExecutedList::default(), ExecutedList::default());
        mine.record(write(1, 7, 1), UNIT, blocks(0..4), 1);
        mine.record(write(1, 8, 1), UNIT, blocks(4..8), 2);
        theirs.record(write(1, 8, 1), UNIT, blocks(4..8), 3);
        theirs.record(write(1, 9, 1), UNIT, blocks(2..6), 4);
        mine.overwrite(UNIT, blocks(3..6), &theirs.of(UNIT, blocks(3..6)), &mut 9);
        assert_eq!(mine.blocks(write(1, 7, 1)), blocks(0..3));
        assert_eq!(mine.blocks(write(1, 8, 1)), blocks(4..8));
        assert_eq!(mine.blocks(write(1, 9, 1)), blocks(3..6));
        assert_eq!(
            ExecutedList::from_records(&mine.to_records(), &mut 0).blocks(write(1, 9, 1)),
            blocks(3..6)
        );
    }

    #[test]
    fn a_list_has_a_length_and_what_it_forgets_is_covered() {
        let (mut list, mut forgotten) = (ExecutedList::default(), Forgotten::new(100));
        for seq in 1..=5000 {
            let sdc = SdcId(1 + (seq % 3) as u32);
            list.record(ClientWrite { sdc, ..write(4, seq, 1) }, UNIT, blocks(0..1), seq);
            list.bound(100, G, &mut forgotten);
            assert!(list.len() <= 100);
        }
        for seq in 1..=5000 {
            let named = ClientWrite { sdc: SdcId(1 + (seq % 3) as u32), ..write(4, seq, 1) };
            assert!(!list.blocks(named).is_empty() || forgotten.covers(G, named));
        }
        assert!((4950..=5000).all(|seq| {
            let named = ClientWrite { sdc: SdcId(1 + (seq % 3) as u32), ..write(4, seq, 1) };
            !list.blocks(named).is_empty()
        }));
        assert!(!forgotten.covers(G, write(4, 5001, 1)) && !forgotten.covers(G, write(5, 1, 1)));
    }

    /// Clients are refused with it today, but a log that an earlier build wrote may contain it.
    #[test]
    fn the_highest_number_there_is_can_be_forgotten() {
        let (mut list, mut forgotten) = (ExecutedList::default(), Forgotten::new(100));
        list.record(write(4, u64::MAX, 0), UNIT, blocks(0..1), 1);
        for seq in 2..=200 {
            let other = ClientWrite { sdc: SdcId(2), ..write(4, seq, 0) };
            list.record(other, UNIT, blocks(0..1), seq);
        }
        list.bound(100, G, &mut forgotten);
        assert!(forgotten.covers(G, write(4, u64::MAX - 1, 0)));
    }

    #[test]
    fn a_window_that_is_full_takes_the_lowest_number_only() {
        let mut list = ExecutedList::default();
        (2..=9).for_each(|seq| list.record(write(4, seq, 1), UNIT, blocks(0..1), seq));
        assert_eq!(list.admits(write(4, 10, 1), 8), Err(Status::Busy));
        assert_eq!(list.admits(write(4, 10, 1), 9), Ok(()));
        assert_eq!(list.admits(write(4, 1, 1), 8), Ok(()), "the one that the floor waits for");
        assert_eq!(list.admits(write(4, 10, 5), 8), Ok(()), "the floor has moved");
        assert_eq!(list.admits(ClientWrite { sdc: SdcId(2), ..write(4, 10, 1) }, 8), Ok(()));
        assert_eq!(list.admits(write(5, 10, 1), 8), Ok(()), "a new life");
        assert_eq!(list.admits(write(3, 1, 1), 8), Err(Status::Superseded));
    }
}
