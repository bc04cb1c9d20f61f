//! Which client writes a replica's content includes (rule R8), so that a retry of one is not executed
//! a second time, over what came after it.
//!
//! Kept by block: a resync that breaks off may have brought in, or overwritten, only a part of a write.
//!
//! Bounded: a client says with every write which number is its lowest unanswered one in the group;
//! lower ones are never retried, and forgotten.

use alloc::vec::Vec;
use base::{BlockSet, Incarnation, SdcId, UnitKey};
use seam::{ClientWrite, ExecutedBlocks};
use wire::records::Executed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    seq: u64,
    unit: UnitKey,
    blocks: BlockSet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    sdc: SdcId,
    incarnation: Incarnation,
    floor: u64,
    entries: Vec<Entry>,
    prune_at: usize,
}

/// Entries below which a client's list isn't worth pruning.
const FEW: usize = 32;

impl Client {
    fn new(sdc: SdcId, incarnation: Incarnation) -> Client {
        Client { sdc, incarnation, floor: 0, entries: Vec::new(), prune_at: FEW }
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len() >= self.prune_at {
            let floor = self.floor;
            self.entries.retain(|e| e.seq >= floor);
            self.prune_at = (self.entries.len() * 2).max(FEW);
        }
        self.entries.push(entry);
    }

    /// What may be retried.
    fn iter(&self) -> impl Iterator<Item = ExecutedBlocks> {
        let Client { sdc, incarnation, floor, .. } = *self;
        self.entries.iter().filter(move |e| e.seq >= floor).map(move |e| ExecutedBlocks {
            write: ClientWrite { sdc, incarnation, seq: e.seq, floor },
            unit: e.unit,
            blocks: e.blocks,
        })
    }

    fn blocks(&self, seq: u64) -> BlockSet {
        let mut blocks = BlockSet::EMPTY;
        self.entries.iter().filter(|e| e.seq == seq).for_each(|e| blocks.insert(e.blocks));
        blocks
    }
}

/// An entry as a record of a frame.
pub(crate) fn wire_entry(e: &ExecutedBlocks) -> Executed {
    Executed::new(e.write.sdc, e.write.incarnation, e.write.seq, e.unit, e.blocks)
}

/// The entry that such a record tells. What may be forgotten, it doesn't tell.
fn told_entry(r: &Executed) -> ExecutedBlocks {
    let (sdc, incarnation, seq) = (r.sdc(), Incarnation(r.incarnation.get()), r.seq.get());
    let write = ClientWrite { sdc, incarnation, seq, floor: 0 };
    ExecutedBlocks { write, unit: r.key(), blocks: r.set() }
}

/// Executed writes by client; only the newest life of each client counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutedList {
    clients: Vec<Client>,
}

impl ExecutedList {
    /// Remembers a write to these blocks.
    pub fn record(&mut self, write: ClientWrite, unit: UnitKey, blocks: BlockSet) {
        let ClientWrite { sdc, incarnation, seq, floor } = write;
        let index = self.clients.iter().position(|c| c.sdc == sdc).unwrap_or_else(|| {
            self.clients.push(Client::new(sdc, incarnation));
            self.clients.len() - 1
        });
        let client = &mut self.clients[index];
        if client.incarnation > incarnation {
            return;
        }
        if client.incarnation < incarnation {
            *client = Client::new(sdc, incarnation);
        }
        client.floor = client.floor.max(floor);
        if seq >= client.floor {
            client.push(Entry { seq, unit, blocks });
        }
    }

    /// The blocks that are known to include this write.
    pub fn blocks(&self, write: ClientWrite) -> BlockSet {
        let client =
            self.clients.iter().find(|c| c.sdc == write.sdc && c.incarnation == write.incarnation);
        client.map_or(BlockSet::EMPTY, |c| c.blocks(write.seq))
    }

    /// These blocks now have the content of a replica whose list is `theirs`: what it doesn't include
    /// is gone, what it includes is here.
    pub fn overwrite(&mut self, unit: UnitKey, blocks: BlockSet, theirs: &[ExecutedBlocks]) {
        for client in &mut self.clients {
            client
                .entries
                .iter_mut()
                .filter(|e| e.unit == unit)
                .for_each(|e| e.blocks.remove(blocks));
            client.entries.retain(|e| !e.blocks.is_empty());
        }
        for entry in theirs.iter().filter(|e| e.unit == unit) {
            let common = entry.blocks.and(blocks);
            if !common.is_empty() {
                self.record(entry.write, unit, common);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = ExecutedBlocks> {
        self.clients.iter().flat_map(Client::iter)
    }

    /// All that may be retried.
    pub fn entries(&self) -> Vec<ExecutedBlocks> {
        self.iter().collect()
    }

    /// What is known of these blocks.
    pub fn of(&self, unit: UnitKey, blocks: BlockSet) -> Vec<ExecutedBlocks> {
        let common = |e: ExecutedBlocks| {
            let blocks = e.blocks.and(blocks);
            (e.unit == unit && !blocks.is_empty()).then_some(ExecutedBlocks { blocks, ..e })
        };
        self.iter().filter_map(common).collect()
    }

    /// The list of these entries.
    pub fn from_entries(entries: &[ExecutedBlocks]) -> ExecutedList {
        let mut list = ExecutedList::default();
        entries.iter().for_each(|e| list.record(e.write, e.unit, e.blocks));
        list
    }

    /// The list as records of a frame.
    pub fn to_records(&self) -> Vec<Executed> {
        self.iter().map(|e| wire_entry(&e)).collect()
    }

    /// The list that these records tell.
    pub fn from_records(records: &[Executed]) -> ExecutedList {
        let entries: Vec<ExecutedBlocks> = records.iter().map(told_entry).collect();
        ExecutedList::from_entries(&entries)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.clients.clear();
    }
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

    const UNIT: UnitKey = UnitKey { volume: base::VolumeId(1), index: 0 };

    #[test]
    fn remembers_what_may_be_retried_and_no_more() {
        let mut list = ExecutedList::default();
        for seq in 1..10_000 {
            list.record(write(5, seq, seq.saturating_sub(4)), UNIT, blocks(0..1));
        }
        assert!((9_995..10_000).all(|seq| list.blocks(write(5, seq, 0)) == blocks(0..1)));
        assert!(list.clients[0].entries.len() <= 64);
        list.record(write(6, 1, 1), UNIT, blocks(0..1));
        assert!(
            !list.blocks(write(6, 1, 1)).is_empty() && list.blocks(write(5, 9_999, 0)).is_empty()
        );
        list.record(write(5, 2, 1), UNIT, blocks(0..1));
        assert!(list.blocks(write(5, 2, 1)).is_empty(), "an older life counts no more");
    }

    #[test]
    fn copied_blocks_know_what_the_source_knows() {
        let (mut mine, mut theirs) = (ExecutedList::default(), ExecutedList::default());
        mine.record(write(1, 7, 1), UNIT, blocks(0..4));
        mine.record(write(1, 8, 1), UNIT, blocks(4..8));
        theirs.record(write(1, 8, 1), UNIT, blocks(4..8));
        theirs.record(write(1, 9, 1), UNIT, blocks(2..6));
        mine.overwrite(UNIT, blocks(3..6), &theirs.of(UNIT, blocks(3..6)));
        assert_eq!(mine.blocks(write(1, 7, 1)), blocks(0..3));
        assert_eq!(mine.blocks(write(1, 8, 1)), blocks(4..8));
        assert_eq!(mine.blocks(write(1, 9, 1)), blocks(3..6));
        assert_eq!(
            ExecutedList::from_records(&mine.to_records()).blocks(write(1, 9, 1)),
            blocks(3..6)
        );
    }
}
