//! Blocks whose newest data is in the log and not yet in their slots.
//!
//! A small overwrite is acknowledged when it is in the log. Its data stays here, where reads find
//! it, and is written to its slot later, together with many other blocks. It is dropped here when
//! it is durable in its slot.
//!
//! Invariants: a block is never written to its slot twice at the same time, because the older data
//! could land last; data is dropped only after exactly this data was written and flushed.
//!
//! A mount loads all payload, beginning with the oldest record that has a block here. So this
//! module counts the payload that was destaged after that record came.

use super::layout::SLOT_BLOCKS;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::BLOCK;
use seam::Buf;

#[derive(Debug)]
struct Entry {
    /// `None`: the block holds nothing any more, but a write of it is still in flight.
    data: Option<Buf>,
    /// The record that contains the data.
    record: u64,
    /// The record whose data is being written to the slot.
    writing: Option<u64>,
    /// The data is in the slot, and waits for a flush.
    written: bool,
}

impl Entry {
    /// True when the block can be sent to its slot.
    fn is_ready(&self) -> bool {
        self.data.is_some() && self.writing.is_none() && !self.written
    }
}

/// Neighbouring blocks of one slot that are being written there.
#[derive(Debug)]
pub(super) struct Run {
    /// The slot.
    pub slot: u32,
    /// The first block.
    pub first: u32,
    /// By block: the data, and the record that contains it.
    pub blocks: Vec<(Buf, u64)>,
}

/// All blocks of a device that wait for their slots.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// By slot and block.
    entries: BTreeMap<(u32, u32), Entry>,
    /// By record: how many of its blocks are here, and the value of `home` when the first one came.
    records: BTreeMap<u64, (u32, u64)>,
    blocks: usize,
    /// Number of blocks that became durable in their slots since the mount.
    home: u64,
    /// Number of blocks that can be sent to their slots.
    ready: usize,
}

impl Overlay {
    /// Returns the bytes of data that wait.
    pub(super) fn bytes(&self) -> usize {
        self.blocks * BLOCK as usize
    }

    /// Returns the oldest record with a block that waits.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.records.keys().next().copied()
    }

    /// Returns the bytes that were destaged since the oldest record came. A mount still reads them.
    pub(super) fn bytes_behind(&self) -> u64 {
        let oldest = self.records.values().next();
        oldest.map_or(0, |(_, home)| (self.home - home) * u64::from(BLOCK))
    }

    /// Returns the place of a block of the oldest record that can be sent to its slot.
    pub(super) fn oldest_ready(&self) -> Option<(u32, u32)> {
        let oldest = self.oldest()?;
        let ready = |e: &Entry| e.record == oldest && e.is_ready();
        self.entries.iter().find(|(_, e)| ready(e)).map(|(at, _)| *at)
    }

    /// Returns the newest data of a block.
    pub(super) fn get(&self, slot: u32, block: u32) -> Option<&Buf> {
        self.entries.get(&(slot, block)).and_then(|e| e.data.as_ref())
    }

    /// True when one of these blocks is being written to the slot.
    pub(super) fn is_writing(&self, slot: u32, blocks: u16) -> bool {
        self.of_slot(slot).any(|(b, e)| blocks >> b & 1 == 1 && e.writing.is_some())
    }

    fn of_slot(&self, slot: u32) -> impl Iterator<Item = (u32, &Entry)> {
        self.entries.range((slot, 0)..(slot, SLOT_BLOCKS)).map(|((_, b), e)| (*b, e))
    }

    /// Stores the new data of a block, and the record that contains it.
    pub(super) fn put(&mut self, slot: u32, block: u32, record: u64, data: Buf) {
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

    /// Removes blocks that hold nothing any more, or whose newest data is elsewhere.
    pub(super) fn clear(&mut self, slot: u32, blocks: u16) {
        for block in (0..SLOT_BLOCKS).filter(|b| blocks >> b & 1 == 1) {
            self.forget(slot, block);
        }
    }

    /// Removes the data of a block. A write in flight stays known.
    fn forget(&mut self, slot: u32, block: u32) {
        let Some(entry) = self.entries.get_mut(&(slot, block)) else { return };
        let ready = usize::from(entry.is_ready());
        assert!(self.ready >= ready, "the number of ready blocks has each of them");
        self.ready -= ready;
        if entry.data.take().is_some() {
            assert!(self.blocks > 0, "the number of blocks has each of them");
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

    /// Recovery: removes the data of all records before `record`, because it is in its slots.
    pub(super) fn forget_before(&mut self, record: u64) {
        if self.oldest().is_none_or(|oldest| oldest >= record) {
            return;
        }
        let old = self.entries.iter().filter(|(_, e)| e.record < record);
        let old: Vec<(u32, u32)> = old.map(|(at, _)| *at).collect();
        old.into_iter().for_each(|(slot, block)| self.forget(slot, block));
    }

    /// Recovery: keeps only the blocks that `keep` names, by slot and block.
    pub(super) fn retain(&mut self, keep: impl Fn(u32, u32) -> bool) {
        let gone = self.entries.keys().filter(|(slot, block)| !keep(*slot, *block));
        let gone: Vec<(u32, u32)> = gone.copied().collect();
        gone.into_iter().for_each(|(slot, block)| self.forget(slot, block));
    }

    /// Returns the first run from `from` on that can go to its slot, and marks it as in flight.
    pub(super) fn next_run(&mut self, from: (u32, u32)) -> Option<Run> {
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

    /// Records that a block of a run is in its slot, with the data of `record`.
    pub(super) fn wrote(&mut self, slot: u32, block: u32, record: u64) {
        let entry = self.entries.get_mut(&(slot, block)).expect("what is on its way is known");
        assert!(entry.writing == Some(record), "a block is written once at a time");
        entry.writing = None;
        if entry.data.is_none() {
            self.entries.remove(&(slot, block));
        } else {
            entry.written = entry.record == record;
            self.ready += usize::from(entry.is_ready());
        }
    }

    /// Records that a block is durable in its slot, with the data of `record`.
    pub(super) fn flushed(&mut self, slot: u32, block: u32, record: u64) {
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
