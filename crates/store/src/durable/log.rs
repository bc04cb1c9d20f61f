//! The log ring: where the next batch goes, what may be overwritten, and where recovery starts.
//!
//! Positions only rise; modulo the ring's length they are offsets. Batches are written one at a
//! time, each one only after the previous one is durable. So at every moment, the log on the device
//! has every acknowledged batch, followed by at most one more, which may be torn. A valid batch
//! *behind* an invalid one therefore shows damage and not a torn tail.
//!
//! A record is *settled* when its job has completed: record and data are durable. For a checkpoint,
//! the log begins with the batch of the first unsettled record. Each batch says which records were
//! settled when it was written. A batch without records says nothing else. It is written when the
//! device rests, so that the last records don't look torn when a sector of them, or of their data,
//! is damaged later.

use super::format::{BATCH_MAGIC, BatchHead, batch_crc};
use super::layout::{Area, PAGE};
use super::superblock::LogStart;
use alloc::collections::VecDeque;
use zerocopy::IntoBytes;

/// Size in bytes beyond which a batch takes no more records. A single record may be longer.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// The ring.
#[derive(Debug)]
pub(super) struct Log {
    area: Area,
    uuid: [u64; 2],
    life: u64,
    /// Where the next batch goes.
    head: LogStart,
    /// Start of the part that may not be overwritten yet.
    tail: u64,
    /// Per record, from the first unsettled one on: whether it is settled.
    window: VecDeque<bool>,
    /// Starts of the batches, from the one with the first unsettled record on.
    batches: VecDeque<LogStart>,
    /// The first unsettled record, as the last batch says.
    settled_written: u64,
}

impl Log {
    /// Makes an empty log that continues at `head`.
    pub(super) fn new(area: Area, uuid: [u64; 2], life: u64, head: LogStart) -> Log {
        let (window, batches) = (VecDeque::new(), VecDeque::new());
        let (tail, settled_written) = (head.position, head.record);
        Log { area, uuid, life, head, tail, window, batches, settled_written }
    }

    /// Returns the number of the mount, which batches carry.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// Returns the number of bytes that can't be overwritten yet.
    pub(super) fn used(&self) -> u64 {
        self.head.position - self.tail
    }

    /// Returns the size of the ring in bytes.
    pub(super) fn ring(&self) -> u64 {
        self.area.len
    }

    /// Returns the number of bytes that were ever written to the log.
    pub(super) fn written(&self) -> u64 {
        self.head.position
    }

    /// True when the ring has room for a batch of `len` bytes.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.used() + (len as u64).next_multiple_of(PAGE) <= self.area.len
    }

    /// Returns the length in bytes of the longest record that the ring takes.
    pub(super) fn longest(&self) -> usize {
        (self.area.len / 2) as usize - size_of::<BatchHead>()
    }

    /// Returns the number of the next record.
    pub(super) fn next_record(&self) -> u64 {
        self.head.record
    }

    /// Returns the number of the first unsettled record.
    pub(super) fn settled(&self) -> u64 {
        self.head.record - self.window.len() as u64
    }

    /// True when all records are settled and no batch says so yet.
    pub(super) fn needs_settled_batch(&self) -> bool {
        self.window.is_empty() && !self.is_settled_on_disk()
    }

    /// True when the last batch says that all records are settled.
    pub(super) fn is_settled_on_disk(&self) -> bool {
        self.settled_written == self.head.record
    }

    /// Seals a batch and returns its position. The batch begins with room for its head, is `len`
    /// bytes long and holds `count` records.
    pub(super) fn seal(&mut self, batch: &mut [u8], len: usize, count: u32, destaged: u64) -> u64 {
        let start = self.head;
        let room = self.area.len - self.used();
        assert!(batch.len() as u64 <= room, "no batch overwrites what a mount needs");
        if count > 0 {
            self.batches.push_back(start);
        }
        self.settled_written = self.settled();
        self.window.extend((0..count).map(|_| false));
        batch[len..].fill(0);
        let head = BatchHead {
            magic: BATCH_MAGIC.into(),
            crc: 0.into(),
            len: (len as u32).into(),
            chain: start.chain.into(),
            position: start.position.into(),
            record: start.record.into(),
            life: self.life.into(),
            settled: self.settled_written.into(),
            destaged: destaged.min(start.record).into(),
            count: count.into(),
            reserved: 0.into(),
        };
        batch[..size_of::<BatchHead>()].copy_from_slice(head.as_bytes());
        let crc = batch_crc(&batch[..len], self.uuid);
        batch[4..8].copy_from_slice(&crc.to_le_bytes());
        self.head = LogStart {
            position: start.position + batch.len() as u64,
            record: start.record + u64::from(count),
            chain: crc,
        };
        start.position
    }

    /// Returns the place of a position on the device, and the number of bytes up to the ring's end.
    pub(super) fn place(&self, position: u64) -> (u64, u64) {
        place(self.area, position)
    }

    /// Marks a record as settled: its job has completed.
    pub(super) fn settle(&mut self, record: u64) {
        let first = self.settled();
        let settled = core::mem::replace(&mut self.window[(record - first) as usize], true);
        assert!(!settled, "a record is settled once");
        while self.window.front() == Some(&true) {
            self.window.pop_front();
        }
        let settled = self.settled();
        while self.batches.get(1).is_some_and(|b| b.record <= settled) {
            self.batches.pop_front();
        }
        if self.window.is_empty() {
            self.batches.clear();
        }
    }

    /// Returns where the log of a checkpoint begins. All records before that are settled.
    pub(super) fn start(&self) -> LogStart {
        self.batches.front().copied().unwrap_or(self.head)
    }

    /// Returns the number of bytes from the batch of the first unsettled record on. A mount keeps
    /// their records in memory.
    pub(super) fn unsettled(&self) -> u64 {
        self.head.position - self.start().position
    }

    /// Frees the log before `position`: a checkpoint whose log begins there is durable.
    pub(super) fn free(&mut self, position: u64) {
        assert!(position <= self.head.position, "only what was written is freed");
        self.tail = self.tail.max(position);
    }
}

/// Returns the place of a position on the device, and the number of bytes up to the ring's end.
pub(super) fn place(area: Area, position: u64) -> (u64, u64) {
    let offset = position % area.len;
    (area.at + offset, area.len - offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_begins_with_the_first_record_that_is_not_settled() {
        let area = Area { at: 4096, len: 65536 };
        let first = LogStart { position: 61440, record: 7, chain: 1 };
        let mut log = Log::new(area, [1, 2], 3, first);
        let mut batch = [0; 4096];
        assert_eq!(log.seal(&mut batch, 100, 2, 0), 61440);
        let second = log.head;
        assert_eq!((log.place(second.position), second.record), ((4096, 65536), 9));
        log.seal(&mut batch, 100, 1, 0);
        log.settle(8);
        log.settle(9);
        assert_eq!((log.start(), log.settled(), log.unsettled()), (first, 7, 8192));
        log.settle(7);
        assert_eq!((log.start(), log.settled(), log.unsettled()), (log.head, 10, 0));
        assert_eq!(log.used(), 8192);
        log.free(second.position);
        assert!(log.used() == 4096 && log.has_room(61440) && !log.has_room(61441));
    }
}
