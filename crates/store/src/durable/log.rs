//! The log ring: where the next batch goes, what may be overwritten, and where recovery starts.
//!
//! Positions only rise; modulo the ring's length they are offsets. Batches are written one at a
//! time, each one only after the previous one is durable. So at every moment, the log on the device
//! has every acknowledged batch, followed by at most one more, which may be torn. A valid batch
//! *behind* an invalid one therefore shows damage and not a torn tail.
//!
//! A record is *settled* when its job has completed: record and data are durable. For a checkpoint,
//! the log begins with the batch of the first unsettled record. Each batch says which records were
//! settled when it was written: it gives the number of the first unsettled one, and *names* settled
//! ones behind that. Each is named once. Only records with data elsewhere on the device are named,
//! because a mount examines no others. A batch without records says nothing else. It is written
//! when the device rests, so that the last records don't look torn when a sector of them, or of
//! their data, is damaged later.

use super::format::{BATCH_MAGIC, BatchHead, batch_crc};
use super::layout::{Area, PAGE};
use super::superblock::LogStart;
use alloc::collections::VecDeque;
use zerocopy::IntoBytes;

/// Size in bytes beyond which a batch takes no more records. A single record may be longer.
pub(super) const BATCH_BYTES: usize = 1 << 20;
/// Size in bytes of a record's name in a batch: its number.
pub(super) const NAME_BYTES: usize = size_of::<u64>();
/// Number of records that one batch names at most. The next batch names the others.
const MOST_NAMES: usize = 4096;

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
    /// Settled records that no batch names yet. The first unsettled one may have passed some.
    unnamed: VecDeque<u64>,
    /// Records with data are settled, and no batch says so yet.
    untold: bool,
}

impl Log {
    /// Makes an empty log that continues at `head`.
    pub(super) fn new(area: Area, uuid: [u64; 2], life: u64, head: LogStart) -> Log {
        let (window, batches, unnamed) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (tail, settled_written) = (head.position, head.record);
        let untold = false;
        Log { area, uuid, life, head, tail, window, batches, settled_written, unnamed, untold }
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

    /// True when records are settled and no batch says so yet.
    pub(super) fn needs_settled_batch(&self) -> bool {
        self.settled() > self.settled_written || !self.unnamed.is_empty()
    }

    /// True when records are settled whose data a mount would examine, as no batch says so yet.
    pub(super) fn is_untold(&self) -> bool {
        self.untold
    }

    /// True when the last batch says that all records are settled.
    pub(super) fn is_settled_on_disk(&self) -> bool {
        self.settled_written == self.head.record
    }

    /// Returns how many records the next batch has to name.
    pub(super) fn names(&mut self) -> usize {
        let settled = self.settled();
        self.unnamed.retain(|record| *record >= settled);
        assert!(self.unnamed.len() < self.window.len().max(1), "a record is named once");
        self.unnamed.len().min(MOST_NAMES)
    }

    /// Writes the names of records that are settled.
    fn put_names(&mut self, room: &mut [u8]) {
        let unsettled = self.settled();
        for name in room.chunks_exact_mut(NAME_BYTES) {
            let record = self.unnamed.pop_front().expect("they were counted");
            assert!(record > unsettled, "the first unsettled record is not named");
            name.copy_from_slice(&record.to_le_bytes());
        }
    }

    /// Seals a batch and returns its position. The batch begins with room for its head, is `len`
    /// bytes long, holds `count` records, and ends with room for `names`.
    pub(super) fn seal(
        &mut self,
        batch: &mut [u8],
        len: usize,
        (count, names): (usize, usize),
        destaged: u64,
    ) -> u64 {
        let start = self.head;
        let room = self.area.len - self.used();
        assert!(batch.len() as u64 <= room, "no batch overwrites what a mount needs");
        assert!(len <= longest_batch(self.area), "a mount reads the batch");
        if count > 0 {
            self.batches.push_back(start);
        }
        self.settled_written = self.settled();
        self.put_names(&mut batch[len - names * NAME_BYTES..len]);
        self.untold = !self.unnamed.is_empty();
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
            count: (count as u32).into(),
            named: (names as u32).into(),
        };
        batch[..size_of::<BatchHead>()].copy_from_slice(head.as_bytes());
        let crc = batch_crc(&batch[..len], self.uuid);
        batch[4..8].copy_from_slice(&crc.to_le_bytes());
        self.head = LogStart {
            position: start.position + batch.len() as u64,
            record: start.record + count as u64,
            chain: crc,
        };
        start.position
    }

    /// Returns the place of a position on the device, and the number of bytes up to the ring's end.
    pub(super) fn place(&self, position: u64) -> (u64, u64) {
        place(self.area, position)
    }

    /// Marks a record as settled: its job has completed. With `data`, a mount would examine its
    /// data if no batch said so.
    pub(super) fn settle(&mut self, record: u64, data: bool) {
        let first = self.settled();
        self.untold |= data;
        if data && record != first {
            self.unnamed.push_back(record);
        }
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
            self.unnamed.clear();
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

/// Returns the upper bound of a batch's length in bytes: the longest record, and names.
pub(super) fn longest_batch(area: Area) -> usize {
    (area.len / 2) as usize + MOST_NAMES * NAME_BYTES + PAGE as usize
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
        assert_eq!(log.seal(&mut batch, 100, (2, 0), 0), 61440);
        let second = log.head;
        assert_eq!((log.place(second.position), second.record), ((4096, 65536), 9));
        log.seal(&mut batch, 100, (1, 0), 0);
        log.settle(8, true);
        log.settle(9, true);
        assert_eq!((log.start(), log.settled(), log.unsettled()), (first, 7, 8192));
        log.settle(7, true);
        assert_eq!((log.start(), log.settled(), log.unsettled()), (log.head, 10, 0));
        assert_eq!(log.used(), 8192);
        log.free(second.position);
        assert!(log.used() == 4096 && log.has_room(61440) && !log.has_room(61441));
    }

    #[test]
    fn a_batch_names_what_is_settled_behind_the_first_unsettled_record_once() {
        let area = Area { at: 4096, len: 1 << 20 };
        let mut log = Log::new(area, [1, 2], 3, LogStart { position: 0, record: 7, chain: 1 });
        let mut batch = [0; 4096];
        let mut seal = |log: &mut Log, count| {
            let (names, head) = (log.names(), size_of::<BatchHead>());
            let len = head + names * NAME_BYTES;
            log.seal(&mut batch, len, (count, names), 0);
            let named = batch[head..len].iter().step_by(NAME_BYTES).copied();
            (batch[60], named.collect::<alloc::vec::Vec<u8>>())
        };
        assert_eq!(seal(&mut log, 5), (0, [].into()));
        log.settle(9, true);
        log.settle(8, true);
        log.settle(11, false); // a mount does not examine it
        assert!(log.needs_settled_batch());
        assert_eq!(seal(&mut log, 1), (2, [9, 8].into()));
        log.settle(12, true);
        assert!(log.needs_settled_batch());
        log.settle(7, true);
        assert_eq!(seal(&mut log, 0), (1, [12].into()));
        assert!(!log.needs_settled_batch() && !log.is_untold() && !log.is_settled_on_disk());
        assert_eq!(seal(&mut log, 1), (0, [].into()));
        log.settle(13, true);
        log.settle(10, true);
        assert!(log.is_untold(), "the first unsettled record passed the one to name");
        assert_eq!((log.names(), log.settled()), (0, 14));
        seal(&mut log, 0);
        assert!(!log.needs_settled_batch() && log.is_settled_on_disk());
    }
}
