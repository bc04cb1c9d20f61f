//! The list of executed writes: which writes of clients a replica's content includes (rule R8). A
//! retry of such a write is answered and not executed again over what came after it.
//!
//! Entries are kept by block, because a resync that breaks off may have brought in, or overwritten,
//! only a part of a write.
//!
//! With every write a client sends its *floor*, its lowest unanswered number in the group. Lower
//! numbers are never retried, so their entries are dropped. That alone bounds nothing, because a
//! client may hang, die, or lie. Therefore each list has a maximum length, and so have all lists of
//! a device together. The oldest entries beyond it are forgotten, and [`Forgotten`] covers them: a
//! retry of such a write is neither executed nor acknowledged.
//!
//! Two lists of this kind exist per replica, for two facts: the replication's list says what it has
//! executed, and the unit store's list says what a crash would leave of that.
//!
//! Invariants: a client has entries of its newest incarnation only, at least one, in order, and
//! none below its floor; every entry has blocks; an entry that comes again, in whole or in part,
//! adds its blocks to the one that is there. So a history that is recorded again over a list that
//! contains a part of it gives the same list.

use super::{ClientWrite, ExecutedBlocks, Forgotten};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, Incarnation, Mutant, SdcId, UnitKey, mutant};

#[derive(Clone, Copy, Debug)]
struct Entry {
    seq: u64,
    unit: UnitKey,
    blocks: BlockSet,
    /// Rises with each entry of the device. The lowest are forgotten first.
    noted: u64,
}

impl Entry {
    fn key(&self) -> (u64, UnitKey) {
        (self.seq, self.unit)
    }
}

#[derive(Clone, Debug)]
struct Client {
    sdc: SdcId,
    incarnation: Incarnation,
    floor: u64,
    /// By number and unit. Clients number their writes, so most entries go to the end.
    entries: VecDeque<Entry>,
}

impl Client {
    fn new(sdc: SdcId, incarnation: Incarnation) -> Client {
        Client { sdc, incarnation, floor: 0, entries: VecDeque::new() }
    }

    #[inline]
    fn raise_floor(&mut self, floor: u64) {
        if floor <= self.floor {
            return; // no entry is below it
        }
        self.floor = floor;
        while self.entries.front().is_some_and(|e| e.seq < floor) {
            self.entries.pop_front();
        }
    }

    /// Adds an entry at this place. Nearly all go to the end, which costs less.
    #[inline]
    fn add(&mut self, place: usize, entry: Entry) {
        match place == self.entries.len() {
            true => self.entries.push_back(entry),
            false => self.entries.insert(place, entry),
        }
    }

    /// Adds blocks to the entry of a write in one unit. `Err`: there is none, and it belongs here.
    #[inline]
    fn extend(&mut self, entry: &Entry) -> Result<(), usize> {
        if self.entries.back().is_none_or(|last| last.key() < entry.key()) {
            return Err(self.entries.len());
        }
        let index = self.entries.binary_search_by_key(&entry.key(), Entry::key)?;
        self.entries[index].blocks.insert(entry.blocks);
        Ok(())
    }

    /// Returns the number of entries from this number on.
    fn count_from(&self, seq: u64) -> usize {
        self.entries.len() - self.entries.partition_point(|e| e.seq < seq)
    }

    fn to_blocks(&self, e: &Entry) -> ExecutedBlocks {
        let Client { sdc, incarnation, floor, .. } = *self;
        let write = ClientWrite { sdc, incarnation, seq: e.seq, floor };
        ExecutedBlocks { write, unit: e.unit, blocks: e.blocks }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, ExecutedBlocks)> {
        self.entries.iter().map(|e| (e.noted, self.to_blocks(e)))
    }
}

/// Why a list does not admit a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The client has a newer incarnation.
    Superseded,
    /// The client has as many writes in the list as it may have.
    Full,
}

/// Executed writes by client, of the newest incarnation of each client.
///
/// Lists are equal if they have the same entries, in any order.
#[derive(Clone, Debug, Default)]
pub struct ExecutedList {
    clients: Vec<Client>,
    len: usize,
}

impl PartialEq for ExecutedList {
    fn eq(&self, other: &ExecutedList) -> bool {
        self.len == other.len && self.by_client() == other.by_client()
    }
}

impl ExecutedList {
    /// Records that these blocks include a write. `noted` counts the entries of the device.
    pub fn record(&mut self, write: ClientWrite, unit: UnitKey, blocks: BlockSet, noted: &mut u64) {
        if blocks.is_empty() {
            return;
        }
        let ClientWrite { sdc, incarnation, seq, floor } = write;
        let index = match self.clients.first() {
            Some(first) if first.sdc == sdc => 0,
            _ => self.find_or_add(sdc, incarnation),
        };
        let client = &mut self.clients[index];
        let before = client.entries.len();
        if client.incarnation != incarnation {
            if client.incarnation > incarnation {
                return;
            }
            *client = Client::new(sdc, incarnation);
        }
        client.raise_floor(floor);
        if seq >= client.floor {
            let entry = Entry { seq, unit, blocks, noted: *noted + 1 };
            if let Err(place) = client.extend(&entry) {
                client.add(place, entry);
                *noted += 1;
            }
        }
        self.len = self.len + client.entries.len() - before;
        if client.entries.is_empty() {
            self.clients.remove(index);
        } else if index > 0 {
            // Clients that write move forward, so that they are found fast among many that no
            // longer do.
            self.clients.swap(index, index / 2);
        }
    }

    /// Returns the index of a client, which is added without entries if it is new.
    #[inline(never)]
    fn find_or_add(&mut self, sdc: SdcId, incarnation: Incarnation) -> usize {
        self.clients.iter().position(|c| c.sdc == sdc).unwrap_or_else(|| {
            self.clients.push(Client::new(sdc, incarnation));
            self.clients.len() - 1
        })
    }

    /// Records that these blocks have the content of another replica now, whose list is `theirs`.
    /// Writes that are not in that list are gone from these blocks.
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
            self.record(entry.write, unit, entry.blocks.and(blocks), noted);
        }
    }

    /// Refuses a write of an incarnation that a newer one has replaced, and a write of a client
    /// that has `most` writes in the list already. The client's oldest unanswered write is
    /// admitted, so that the window moves.
    pub fn admits(&self, write: ClientWrite, most: usize) -> Result<(), NotAdmitted> {
        let Some(client) = self.clients.iter().find(|c| c.sdc == write.sdc) else { return Ok(()) };
        if client.incarnation > write.incarnation && !mutant::on(Mutant::OldIncarnation) {
            return Err(NotAdmitted::Superseded);
        }
        let has_room = client.entries.len() < most
            || write.seq <= write.floor
            || client.incarnation != write.incarnation
            || client.count_from(write.floor) < most;
        if has_room { Ok(()) } else { Err(NotAdmitted::Full) }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        *self = ExecutedList::default();
    }

    fn retain(&mut self, mut keep: impl FnMut(&Client, &Entry) -> bool) {
        self.clients.retain_mut(|client| {
            let mut entries = core::mem::take(&mut client.entries);
            entries.retain(|e| keep(client, e));
            client.entries = entries;
            !client.entries.is_empty()
        });
        self.len = self.clients.iter().map(|c| c.entries.len()).sum();
    }

    // ---- queries ----

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the largest number of entries of one client.
    pub fn widest(&self) -> usize {
        self.clients.iter().map(|c| c.entries.len()).max().unwrap_or(0)
    }

    /// Returns the newest incarnation of the client in the list.
    pub fn life(&self, sdc: SdcId) -> Option<Incarnation> {
        self.clients.iter().find(|c| c.sdc == sdc).map(|c| c.incarnation)
    }

    /// Returns the blocks that are known to include this write. These are all blocks if its number
    /// is below the floor: the client has the answer. A delayed copy of its request must not be
    /// executed over later writes.
    pub fn blocks(&self, write: ClientWrite) -> BlockSet {
        let mut blocks = BlockSet::EMPTY;
        let same = |c: &&Client| c.sdc == write.sdc && c.incarnation == write.incarnation;
        if let Some(client) = self.clients.iter().find(same) {
            if write.seq < client.floor {
                return BlockSet::FULL;
            }
            let first = client.entries.partition_point(|e| e.seq < write.seq);
            let entries = client.entries.range(first..).take_while(|e| e.seq == write.seq);
            entries.for_each(|e| blocks.insert(e.blocks));
        }
        blocks
    }

    /// Returns the entries about these blocks.
    pub fn of(&self, unit: UnitKey, blocks: BlockSet) -> Vec<ExecutedBlocks> {
        let common = |(_, e): (u64, ExecutedBlocks)| {
            let blocks = e.blocks.and(blocks);
            (e.unit == unit && !blocks.is_empty()).then_some(ExecutedBlocks { blocks, ..e })
        };
        self.clients.iter().flat_map(Client::iter).filter_map(common).collect()
    }

    /// Returns the entries in the order in which they were noted.
    pub fn entries(&self) -> Vec<ExecutedBlocks> {
        let mut all: Vec<_> = self.clients.iter().flat_map(Client::iter).collect();
        all.sort_by_key(|(noted, _)| *noted);
        all.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Returns the entries by client, number and unit.
    pub fn by_client(&self) -> Vec<ExecutedBlocks> {
        let mut clients: Vec<&Client> = self.clients.iter().collect();
        clients.sort_by_key(|c| c.sdc);
        clients.into_iter().flat_map(Client::iter).map(|(_, entry)| entry).collect()
    }

    /// Creates a list of these entries, which are in order from the oldest.
    pub fn from_entries(
        entries: impl IntoIterator<Item = ExecutedBlocks>,
        noted: &mut u64,
    ) -> ExecutedList {
        let mut list = ExecutedList::default();
        entries.into_iter().for_each(|e| list.record(e.write, e.unit, e.blocks, noted));
        list
    }

    /// Returns a list of the same entries, noted in the order of their incarnations and numbers.
    pub fn renoted(&self, noted: &mut u64) -> ExecutedList {
        let mut entries = self.by_client();
        entries.sort_by_key(|e| (e.write.incarnation, e.write.seq));
        ExecutedList::from_entries(entries, noted)
    }

    // ---- bounds ----

    /// Returns when each entry was noted.
    pub fn noted(&self) -> impl Iterator<Item = u64> {
        self.clients.iter().flat_map(|c| c.entries.iter().map(|e| e.noted))
    }

    /// Forgets the entries that were noted at `last` or before, in the list of this group.
    pub fn forget_until(&mut self, last: u64, group: GroupId, forgotten: &mut Forgotten) {
        self.retain(|client, e| {
            let stays = e.noted > last;
            if !stays {
                let next = e.seq.saturating_add(1);
                forgotten.raise(group, client.sdc, client.incarnation, next);
            }
            stays
        });
    }

    /// Bounds the list to `most` entries. If it has more, a quarter is forgotten at once, because
    /// finding the oldest looks at all of them.
    pub fn bound(&mut self, most: usize, group: GroupId, forgotten: &mut Forgotten) {
        if self.len <= most || mutant::on(Mutant::EndlessList) {
            return;
        }
        if let Some(last) = oldest(self.noted().collect(), self.len - most * 3 / 4) {
            self.forget_until(last, group, forgotten);
        }
    }
}

/// Returns the latest of the `count` oldest values; `None` if there is none.
pub fn oldest(mut noted: Vec<u64>, count: usize) -> Option<u64> {
    let last = count.min(noted.len()).checked_sub(1)?;
    Some(*noted.select_nth_unstable(last).1)
}
