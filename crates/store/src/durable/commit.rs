//! Group commit: one write to the log carries the records of many jobs. Also what follows when
//! something has become durable.
//!
//! Writes that an answer waits for, to the log and to fresh space, are *written through*: they are
//! durable when they complete, so a job completes with the last of its writes. The next batch is
//! written when the last one is durable (`log` explains why); records that come meanwhile are
//! gathered. Destaged data and checkpoints wait for flushes, many writes per flush, in parallel
//! with all this.

use super::format::BatchHead;
use super::job::{Fetch, Kind, Op, Waiter};
use super::jobs::Jobs;
use super::layout::PAGE;
use super::log::{BATCH_BYTES, Log, NAME_BYTES};
use super::ops::Ops;
use super::record::Writer;
use super::slots::Slots;
use super::store::Durable;
use super::tuning::{HELD, Tuning};
use super::unitmap::UnitMap;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::UnitKey;
use seam::{Buf, Effects};

/// The next batch.
struct Batch {
    /// Number of records.
    count: usize,
    /// Length in bytes.
    len: usize,
    /// The obstacle that further jobs wait for.
    needs: Option<Need>,
}

/// The event that makes room for jobs.
enum Need {
    /// A checkpoint, which frees a part of the log.
    Log,
    /// Data has to go to its slots, so that memory can take more.
    Memory,
}

/// Records and writes that are becoming durable.
#[derive(Debug, Default)]
pub(super) struct Commit {
    /// Jobs whose record goes into a later batch, in order.
    queue: VecDeque<u64>,
    /// Jobs of the batch that is being written, and the number of its writes in flight.
    batch: Vec<u64>,
    writing: u32,
    /// A volume was dropped since the store last had no jobs.
    pub(super) dropping: bool,
    /// Payload bytes of records that are not applied yet.
    payload: usize,
    /// Number of batches that had been written at the last call of `rest`.
    rested: u64,
}

impl Commit {
    /// True when nothing was written since the last call, and nothing is being written.
    pub(super) fn rests(&mut self, batches: u64) -> bool {
        let before = core::mem::replace(&mut self.rested, batches);
        before == batches && self.writing == 0 && self.queue.is_empty()
    }

    /// Queues a job's record for the next batch that has room. The job waits for that batch.
    pub(super) fn enqueue(&mut self, key: u64, jobs: &mut Jobs) {
        jobs.at(key).left += 1;
        self.queue.push_back(key);
    }

    /// Writes a batch to its place in the ring.
    fn write(&mut self, position: u64, body: Buf, log: &Log, ops: &mut Ops, out: &mut Effects) {
        assert_eq!(self.writing, 0, "one batch at a time");
        let (at, room) = log.place(position);
        let here = (room as usize).min(body.len());
        self.writing = 1;
        ops.write_through(at, body.slice(0..here), Op::Log, out);
        if here < body.len() {
            self.writing = 2;
            let (at, _) = log.place(position + here as u64);
            ops.write_through(at, body.slice(here..body.len()), Op::Log, out);
        }
    }

    /// Returns which queued jobs go into the next batch, which names `names` records. There are
    /// none when there is no room, or when one operation is too slow. Then the jobs wait for what
    /// the batch needs.
    fn next_batch(
        &self,
        jobs: &mut Jobs,
        log: &Log,
        names: usize,
        slots: &Slots,
        tuning: &Tuning,
    ) -> Batch {
        let mut batch = Batch { count: 0, len: empty_len(names), needs: None };
        let held = HELD * tuning.overlay_bytes as u64;
        if log.unsettled() > held {
            return batch;
        }
        let behind = slots.overlay().bytes_behind() > held;
        let mut payload = self.payload + slots.overlay().bytes();
        for key in &self.queue {
            let kind = &jobs.at(*key).kind;
            let (more, inline) = (kind.record_len(), kind.payload());
            if batch.count > 0 && batch.len + more > BATCH_BYTES {
                break;
            }
            if !log.has_room(batch.len + more) {
                batch.needs = Some(Need::Log);
                break;
            }
            // A payload beyond the limit goes when no other payload waits.
            let full = payload > 0 && payload + inline > tuning.overlay_bytes;
            if inline > 0 && (full || behind) {
                batch.needs = Some(Need::Memory);
                break;
            }
            (batch.count, batch.len) = (batch.count + 1, batch.len + more);
            payload += inline;
        }
        batch
    }

    /// Removes queued writes to volumes that were dropped meanwhile: they have no effect. Returns
    /// the jobs that end by that.
    fn skip_dropped(&mut self, jobs: &mut Jobs, map: &UnitMap) -> Vec<u64> {
        let mut over = Vec::new();
        if !self.dropping {
            return over;
        }
        self.queue.retain(|key| {
            let job = jobs.at(*key);
            let Kind::Write(write) = &job.kind else { return true };
            if !write.parts.iter().any(|p| map.is_dropped(p.slot)) {
                return true;
            }
            assert!(job.left > 0 && job.record.is_none(), "a queued job waits for its record");
            job.left -= 1;
            if job.left == 0 {
                over.push(*key);
            }
            false
        });
        over
    }
}

/// Returns the length of a batch without records that names `names` records.
fn empty_len(names: usize) -> usize {
    size_of::<BatchHead>() + names * NAME_BYTES
}

impl Durable {
    /// Starts a job that consists of a record only.
    pub(super) fn enqueue_small(&mut self, token: Option<u64>, kind: Kind) {
        let fetch = Fetch::new(UnitKey::default(), Vec::new());
        let key = self.jobs.begin(token, kind, fetch, Vec::new());
        let len = self.jobs.at(key).kind.record_len();
        assert!(len <= self.log.longest(), "a change is shorter than half the log");
        self.commit.enqueue(key, &mut self.jobs);
    }

    /// Writes a batch and flushes, when that is possible and useful.
    pub(super) fn run_commit(&mut self, out: &mut Effects) {
        if self.commit.writing == 0 && !self.commit.queue.is_empty() {
            self.write_batch(out);
        }
        if self.flushes.begin(self.destage.is_busy()) {
            self.stats.flushes += 1;
            self.ops.flush(out);
        }
    }

    fn write_batch(&mut self, out: &mut Effects) {
        let over = self.commit.skip_dropped(&mut self.jobs, self.slots.map());
        over.into_iter().for_each(|key| self.end(key, Ok(Buf::EMPTY)));
        let names = self.log.names();
        let Batch { count, len, needs } =
            self.commit.next_batch(&mut self.jobs, &self.log, names, &self.slots, &self.tuning);
        match needs {
            Some(Need::Log) if count == 0 => self.checkpoints.request(),
            Some(Need::Memory) => self.destage.wanted = true,
            Some(Need::Log) | None => {}
        }
        if count == 0 {
            if self.log.is_untold() {
                self.write_settled(out); // data may be damaged while jobs wait
            }
            return;
        }
        assert!(self.commit.batch.is_empty(), "the jobs of the last batch have continued");
        let mut body = out.alloc(len.next_multiple_of(PAGE as usize));
        let mut to = Writer::new(&mut body.as_mut()[size_of::<BatchHead>()..]);
        let first = self.log.next_record();
        for record in first..first + count as u64 {
            let key = self.commit.queue.pop_front().expect("they were counted");
            let job = self.jobs.at(key);
            job.record = Some(record);
            job.kind.put_record(&mut to);
            self.commit.payload += job.kind.payload();
            self.commit.batch.push(key);
        }
        self.seal_batch(body, len, (count, names), out);
    }

    /// Writes a batch without records, if there is room. It says which records are settled.
    pub(super) fn write_settled(&mut self, out: &mut Effects) {
        let names = self.log.names();
        let len = empty_len(names);
        if self.log.has_room(len) {
            let body = out.alloc(len.next_multiple_of(PAGE as usize));
            self.seal_batch(body, len, (0, names), out);
        }
    }

    /// Seals and writes a batch of so many records and names.
    fn seal_batch(
        &mut self,
        mut body: Buf,
        len: usize,
        (count, names): (usize, usize),
        out: &mut Effects,
    ) {
        let destaged = self.slots.overlay().oldest().unwrap_or(u64::MAX).min(self.log.settled());
        let position = self.log.seal(body.as_mut(), len, (count, names), destaged);
        self.stats.batches += 1;
        self.stats.records += count as u64;
        self.commit.write(position, body, &self.log, &mut self.ops, out);
    }

    /// Records that a write of the batch has completed.
    pub(super) fn log_written(&mut self, out: &mut Effects) {
        assert!(self.commit.writing > 0, "each write of a batch ends once");
        self.commit.writing -= 1;
        if self.commit.writing > 0 {
            return;
        }
        let mut batch = core::mem::take(&mut self.commit.batch);
        batch.drain(..).for_each(|key| self.arrived(key, None, out));
        self.commit.batch = batch;
    }

    /// Completes a job whose record and data are durable.
    pub(super) fn written(&mut self, key: u64) {
        if let Some(job) = self.jobs.get(key).filter(|job| job.record.is_some()) {
            let payload = job.kind.payload();
            assert!(self.commit.payload >= payload, "the sum has the payload of each record");
            self.commit.payload -= payload;
            self.apply(key);
        }
        self.end(key, Ok(Buf::EMPTY));
    }

    /// Makes completed writes durable, then lets their waiter continue.
    pub(super) fn await_flush(&mut self, waiter: Waiter) {
        let durable = self.flushes.wait(waiter, self.tuning.durability);
        durable.into_iter().for_each(|w| self.durable(w));
    }

    /// Continues what waited for the flush that has ended.
    pub(super) fn flushed(&mut self) {
        self.flushes.end().into_iter().for_each(|w| self.durable(w));
    }

    /// Continues a waiter whose writes are durable.
    fn durable(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Home(blocks) => {
                self.stats.destaged += blocks.len() as u64;
                self.slots.flushed(&blocks);
            }
            Waiter::Checkpoint => {
                if let Some((anchor, log)) = self.checkpoints.durable() {
                    let next = self.content.anchor.sequence + 1;
                    assert!(anchor.sequence == next, "checkpoints are numbered in order");
                    self.content.anchor = anchor;
                    self.log.free(log.position);
                    self.stats.checkpoints += 1;
                }
            }
        }
    }
}
