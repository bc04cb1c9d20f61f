//! The log ring: where the next batch goes, what may be overwritten, what recovery has to look at.
//!
//! Positions only rise; modulo the ring's length they are offsets. Batches are written one at a time,
//! and the next one only when the last one is durable. So the log on the device is at every moment a
//! prefix of what was acknowledged or might be, and at most one batch behind it that may be torn. And a
//! valid batch *behind* one that isn't shows damage, not a torn tail.
//!
//! A record is *settled* when its job has ended: record and data are durable. The log begins, for a
//! checkpoint, with the batch of the first record that isn't. Each batch tells what was settled when it was written.
//! One without records tells nothing else: it is written when the device rests, so that the last records don't look
//! torn when a sector of them, or of their data, is damaged later.

use super::format::{BATCH_MAGIC, BatchHead, batch_crc};
use super::layout::{Area, PAGE};
use super::superblock::LogStart;
use alloc::collections::VecDeque;
use zerocopy::IntoBytes;

/// Bytes beyond which a batch takes no more records. A single record may be longer.
pub const BATCH_BYTES: usize = 1 << 20;

/// The ring.
#[derive(Debug)]
pub struct Log {
    area: Area,
    uuid: [u64; 2],
    life: u64,
    /// Where the next batch goes.
    head: LogStart,
    /// Up to here the ring may be overwritten.
    tail: u64,
    /// Records from the first that is not settled: whether they are.
    window: VecDeque<bool>,
    /// Batches from the one with the first record that is not settled.
    batches: VecDeque<LogStart>,
    /// The first record that is not settled, as the last batch tells.
    told: u64,
}

impl Log {
    /// A log that is empty and goes on at `head`.
    pub fn new(area: Area, uuid: [u64; 2], life: u64, head: LogStart) -> Log {
        let (window, batches) = (VecDeque::new(), VecDeque::new());
        let (tail, told) = (head.position, head.record);
        Log { area, uuid, life, head, tail, window, batches, told }
    }

    /// The life that batches carry.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Bytes that can't be overwritten yet.
    pub fn used(&self) -> u64 {
        self.head.position - self.tail
    }

    /// Bytes of the ring.
    pub fn ring(&self) -> u64 {
        self.area.len
    }

    /// Bytes that were ever written to it.
    pub fn written(&self) -> u64 {
        self.head.position
    }

    /// True when a batch of `len` bytes finds room.
    pub fn has_room(&self, len: usize) -> bool {
        self.used() + (len as u64).next_multiple_of(PAGE) <= self.area.len
    }

    /// The longest record that the ring takes.
    pub fn longest(&self) -> usize {
        (self.area.len / 2) as usize - size_of::<BatchHead>()
    }

    /// The number of the next record.
    pub fn next_record(&self) -> u64 {
        self.head.record
    }

    /// The first record that is not settled.
    pub fn settled(&self) -> u64 {
        self.head.record - self.window.len() as u64
    }

    /// All records are settled, and no batch tells so.
    pub fn rests_untold(&self) -> bool {
        self.window.is_empty() && !self.has_told_all()
    }

    /// The last batch tells that all records are settled.
    pub fn has_told_all(&self) -> bool {
        self.told == self.head.record
    }

    /// Seals a batch that begins with room for its head, is `len` bytes long and holds `count` records;
    /// tells its position.
    pub fn seal(&mut self, batch: &mut [u8], len: usize, count: u32, destaged: u64) -> u64 {
        let start = self.head;
        if count > 0 {
            self.batches.push_back(start);
        }
        self.told = self.settled();
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
            settled: self.told.into(),
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

    /// Where a position is on the device, and how many bytes there are until the ring's end.
    pub fn place(&self, position: u64) -> (u64, u64) {
        place(self.area, position)
    }

    /// A record's job has ended.
    pub fn settle(&mut self, record: u64) {
        let first = self.settled();
        self.window[(record - first) as usize] = true;
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

    /// Where a checkpoint's log begins: every record before has ended.
    pub fn start(&self) -> LogStart {
        self.batches.front().copied().unwrap_or(self.head)
    }

    /// Bytes from the batch of the first record that has not ended: a mount keeps their records in memory.
    pub fn unsettled(&self) -> u64 {
        self.head.position - self.start().position
    }

    /// A checkpoint is durable whose log begins here: what is before may be overwritten.
    pub fn free(&mut self, position: u64) {
        self.tail = self.tail.max(position);
    }
}

/// Where a position of the ring is on the device, and how many bytes there are until the ring's end.
pub fn place(area: Area, position: u64) -> (u64, u64) {
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
