//! Blocks whose newest data is in the log and not yet in their slot.
//!
//! A small overwrite is acknowledged when the log has it; its data stays here, is what reads see, and
//! goes to its slot later, many at a time. It leaves when its slot has it durably.
//!
//! Invariants: a block is never written to its slot twice at the same time, or the older data could
//! land last; what leaves is exactly what was written and flushed, never something newer.
//!
//! A mount puts all payload into memory again from the oldest record on that has a block here, so
//! what went home since then is counted.

use super::layout::SLOT_BLOCKS;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::BLOCK;
use seam::Buf;

#[derive(Debug)]
struct Entry {
    /// `None`: the block holds nothing any more, only a write of it is still on its way.
    data: Option<Buf>,
    /// The record that brought it.
    record: u64,
    /// The record whose data is on its way to the slot.
    writing: Option<u64>,
    /// The data is in the slot, and waits for a flush.
    written: bool,
}

impl Entry {
    /// It can be sent to its slot.
    fn is_ready(&self) -> bool {
        self.data.is_some() && self.writing.is_none() && !self.written
    }
}

/// Neighbouring blocks of one slot on their way there.
#[derive(Debug)]
pub struct Run {
    /// The slot.
    pub slot: u32,
    /// The first block.
    pub first: u32,
    /// By block: the data, and the record that brought it.
    pub blocks: Vec<(Buf, u64)>,
}

/// All such blocks of a device.
#[derive(Debug, Default)]
pub struct Overlay {
    /// By slot and block.
    entries: BTreeMap<(u32, u32), Entry>,
    /// By record: how many blocks here came with it, and what `home` was when the first came.
    records: BTreeMap<u64, (u32, u64)>,
    blocks: usize,
    /// Blocks that are in their slots durably, since the mount.
    home: u64,
    /// How many can be sent to their slots.
    ready: usize,
}

impl Overlay {
    /// Bytes of data in it.
    pub fn bytes(&self) -> usize {
        self.blocks * BLOCK as usize
    }

    /// The oldest record that something here came with.
    pub fn oldest(&self) -> Option<u64> {
        self.records.keys().next().copied()
    }

    /// Bytes that went home since the oldest record came, and which a mount reads all the same.
    pub fn bytes_behind(&self) -> u64 {
        let oldest = self.records.values().next();
        oldest.map_or(0, |(_, home)| (self.home - home) * u64::from(BLOCK))
    }

    /// Where the oldest record has a block that can be sent to its slot.
    pub fn oldest_ready(&self) -> Option<(u32, u32)> {
        let oldest = self.oldest()?;
        let ready = |e: &Entry| e.record == oldest && e.is_ready();
        self.entries.iter().find(|(_, e)| ready(e)).map(|(at, _)| *at)
    }

    /// A block's newest data.
    pub fn get(&self, slot: u32, block: u32) -> Option<&Buf> {
        self.entries.get(&(slot, block)).and_then(|e| e.data.as_ref())
    }

    /// True when one of these blocks is on its way to the slot.
    pub fn is_writing(&self, slot: u32, blocks: u16) -> bool {
        self.of_slot(slot).any(|(b, e)| blocks >> b & 1 == 1 && e.writing.is_some())
    }

    fn of_slot(&self, slot: u32) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.range((slot, 0)..(slot, SLOT_BLOCKS)).map(|((_, b), e)| (*b, e))
    }

    /// A block has new data, brought by this record.
    pub fn put(&mut self, slot: u32, block: u32, record: u64, data: Buf) {
        self.forget(slot, block);
        let entry = self.entries.entry((slot, block)).or_insert(Entry {
            data: None,
            record,
            writing: None,
            written: false,
        });
        (entry.data, entry.record, entry.written) = (Some(data), record, false);
        self.ready += usize::from(entry.is_ready());
        self.records.entry(record).or_insert((0, self.home)).0 += 1;
        self.blocks += 1;
    }

    /// These blocks hold nothing any more, or their newest data is elsewhere.
    pub fn clear(&mut self, slot: u32, blocks: u16) {
        for block in (0..SLOT_BLOCKS).filter(|b| blocks >> b & 1 == 1) {
            self.forget(slot, block);
        }
    }

    /// Takes the data out; what is on its way stays known.
    fn forget(&mut self, slot: u32, block: u32) {
        let Some(entry) = self.entries.get_mut(&(slot, block)) else { return };
        self.ready -= usize::from(entry.is_ready());
        if entry.data.take().is_some() {
            self.blocks -= 1;
            let (count, _) = self.records.get_mut(&entry.record).expect("it is counted");
            *count -= 1;
            if *count == 0 {
                self.records.remove(&entry.record);
            }
        }
        if entry.writing.is_none() {
            self.entries.remove(&(slot, block));
        }
    }

    /// Recovery: everything that came with records before this one is in its slot.
    pub fn forget_before(&mut self, record: u64) {
        if self.oldest().is_none_or(|oldest| oldest >= record) {
            return;
        }
        let old = self.entries.iter().filter(|(_, e)| e.record < record);
        let old: Vec<(u32, u32)> = old.map(|(at, _)| *at).collect();
        old.into_iter().for_each(|(slot, block)| self.forget(slot, block));
    }

    /// Recovery: keeps only the blocks that `keep` names, by slot and block.
    pub fn retain(&mut self, keep: impl Fn(u32, u32) -> bool) {
        let gone = self.entries.keys().filter(|(slot, block)| !keep(*slot, *block));
        let gone: Vec<(u32, u32)> = gone.copied().collect();
        gone.into_iter().for_each(|(slot, block)| self.forget(slot, block));
    }

    /// The first run from `from` on that can go to its slot; it counts as on its way.
    pub fn next_run(&mut self, from: (u32, u32)) -> Option<Run> {
        if self.ready == 0 {
            return None;
        }
        let mut run: Option<Run> = None;
        for ((slot, block), entry) in self.entries.range_mut(from..) {
            let ready = entry.is_ready();
            let next = run
                .as_ref()
                .is_none_or(|r| r.slot == *slot && r.first + r.blocks.len() as u32 == *block);
            match (&entry.data, ready && next) {
                (Some(data), true) => {
                    let run =
                        run.get_or_insert(Run { slot: *slot, first: *block, blocks: Vec::new() });
                    run.blocks.push((data.clone(), entry.record));
                    entry.writing = Some(entry.record);
                    self.ready -= 1;
                }
                _ if run.is_some() => break,
                _ => {}
            }
        }
        run
    }

    /// A block of a run, which this record brought, is in its slot.
    pub fn wrote(&mut self, slot: u32, block: u32, record: u64) {
        let entry = self.entries.get_mut(&(slot, block)).expect("what is on its way is known");
        entry.writing = None;
        if entry.data.is_none() {
            self.entries.remove(&(slot, block));
        } else {
            entry.written = entry.record == record;
            self.ready += usize::from(entry.is_ready());
        }
    }

    /// A block that this record brought is in its slot durably.
    pub fn flushed(&mut self, slot: u32, block: u32, record: u64) {
        let entry = self.entries.get(&(slot, block));
        if entry.is_some_and(|e| e.written && e.record == record) {
            self.forget(slot, block);
            self.home += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::BufPool;

    #[test]
    fn newer_data_stays_when_older_data_arrives() {
        let (pool, mut o) = (BufPool::new(0), Overlay::default());
        o.put(5, 3, 1, pool.copy(b"a"));
        o.put(5, 4, 1, pool.copy(b"b"));
        o.put(9, 0, 2, pool.copy(b"c"));
        let run = o.next_run((0, 0)).unwrap();
        assert_eq!((run.slot, run.first, run.blocks.len()), (5, 3, 2));
        o.put(5, 3, 3, pool.copy(b"d"));
        o.clear(5, 1 << 4);
        assert!(o.is_writing(5, 0xffff) && o.get(5, 4).is_none());
        let next = o.next_run((0, 0)).unwrap();
        assert_eq!((next.slot, o.oldest()), (9, Some(2)), "never two writes of a block at once");
        o.wrote(5, 3, 1);
        o.wrote(5, 4, 1);
        o.flushed(5, 3, 1);
        o.flushed(5, 4, 1);
        assert_eq!((&o.get(5, 3).unwrap()[..], o.is_writing(5, 0xffff)), (&b"d"[..], false));
        o.wrote(9, 0, 2);
        assert!(o.get(9, 0).is_some(), "in the slot is not durable yet");
        o.flushed(9, 0, 2);
        assert_eq!((o.bytes(), o.oldest(), o.ready), (4096, Some(3), 1));
    }
}
