//! Group commit: one write to the log carries the records of many jobs. Also the flushes for writes
//! that no answer waits for.
//!
//! Writes that an answer waits for, to the log and to fresh space, are *written through*: they are
//! durable when they complete, so a job completes with the last of its writes. The next batch is
//! written when the last one is durable (`log` explains why); records that come meanwhile are
//! gathered. Destaged data and checkpoints wait for flushes, many writes per flush, in parallel
//! with all this.

use super::format::BatchHead;
use super::job::{Fetch, Kind, Op, Waiter};
use super::layout::PAGE;
use super::log::BATCH_BYTES;
use super::record::{self, Writer};
use super::store::{Durability, Durable};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::UnitKey;
use seam::{Buf, DiskOp, Effect, Effects};

/// Number of waiters that are worth a flush although more writes are in flight.
const MANY: usize = 16;

/// Limit for what one slow operation may hold back, in multiples of `Tuning::overlay_bytes`. It
/// applies to the log behind the first unsettled record, and to payload that went to its slots
/// before an older one did. The next mount has to keep both in memory. Beyond the limit, jobs wait
/// as they do for a full ring.
pub(super) const HELD: u64 = 8;

/// Records and writes that are becoming durable.
#[derive(Debug, Default)]
pub struct Commit {
    /// Jobs whose record goes into a later batch, in order.
    queue: VecDeque<u64>,
    /// Jobs of the batch that is being written, and the number of its writes in flight.
    batch: Vec<u64>,
    writing: u32,
    /// Waiters for the next flush.
    waiting: Vec<Waiter>,
    /// Waiters for the running flush. `None`: no flush is running.
    flushing: Option<Vec<Waiter>>,
    /// A volume was dropped since the store last had no jobs.
    pub(super) dropping: bool,
    /// Payload bytes of records that are not applied yet.
    pub(super) payload: usize,
    /// Number of batches that had been written at the last call of `rest`.
    rested: u64,
}

impl Durable {
    /// Queues a job's record for the next batch that has room. The job waits for that batch.
    pub(super) fn enqueue(&mut self, key: u64) {
        self.jobs.get_mut(key).expect("a job lives until it ends").left += 1;
        self.commit.queue.push_back(key);
    }

    /// Starts a job that consists of a record only.
    pub(super) fn enqueue_small(&mut self, token: Option<u64>, kind: Kind) {
        let fetch = Fetch::new(UnitKey::default(), Vec::new());
        let key = self.insert(token, kind, fetch, Vec::new());
        assert!(
            self.record_len(key) <= self.log.longest(),
            "a change is shorter than half the log"
        );
        self.enqueue(key);
    }

    /// Writes a batch and flushes, when that is possible and useful.
    pub(super) fn run_commit(&mut self, out: &mut Effects) {
        if self.commit.writing == 0 && !self.commit.queue.is_empty() {
            self.write_batch(out);
        }
        if self.commit.flushing.is_none() && self.wants_flush() {
            self.commit.flushing = Some(core::mem::take(&mut self.commit.waiting));
            self.stats.flushes += 1;
            let op = DiskOp(self.ops.insert(Op::Flush).expect("callers bound their jobs"));
            out.push(Effect::Flush { op, disk: self.disk });
        }
    }

    /// True when a flush is due. Destaged data can wait until there is more of it.
    fn wants_flush(&self) -> bool {
        let waiting = &self.commit.waiting;
        let hurry = |w: &Waiter| matches!(w, Waiter::Checkpoint);
        !waiting.is_empty()
            && (waiting.len() >= MANY || !self.destage.is_busy() || waiting.iter().any(hurry))
    }

    fn record_len(&self, key: u64) -> usize {
        match &self.jobs.get(key).expect("a queued job lives").kind {
            Kind::Write(write) => record::write_len(write),
            Kind::Change(_, changes) => record::change_len(changes),
            Kind::Drop(_) => record::DROP_LEN,
            Kind::Read { .. } | Kind::Edges { .. } => unreachable!("it has no record"),
        }
    }

    /// Returns how many queued jobs go into the next batch, and its length in bytes. There are none
    /// when there is no room, or when one operation is too slow. Then the jobs wait, and this
    /// function requests what makes room.
    fn next_batch(&mut self) -> (usize, usize) {
        let (mut count, mut len) = (0, size_of::<BatchHead>());
        let held = HELD * self.tuning.overlay_bytes as u64;
        if self.log.unsettled() > held {
            return (0, len);
        }
        let behind = self.overlay.bytes_behind() > held;
        let mut payload = self.commit.payload + self.overlay.bytes();
        for i in 0..self.commit.queue.len() {
            let key = self.commit.queue[i];
            let more = self.record_len(key);
            let inline = self.payload_of(key);
            if count > 0 && len + more > BATCH_BYTES {
                break;
            }
            if !self.log.has_room(len + more) {
                self.checkpoint_due |= count == 0;
                break;
            }
            // A payload beyond the limit goes when no other payload waits.
            let full = payload > 0 && payload + inline > self.tuning.overlay_bytes;
            if inline > 0 && (full || behind) {
                self.destage.wanted = true;
                break;
            }
            (count, len, payload) = (count + 1, len + more, payload + inline);
        }
        (count, len)
    }

    fn payload_of(&self, key: u64) -> usize {
        match self.jobs.get(key).map(|j| &j.kind) {
            Some(Kind::Write(write)) => write.inline_bytes(),
            _ => 0,
        }
    }

    fn write_batch(&mut self, out: &mut Effects) {
        self.skip_dropped();
        let (count, len) = self.next_batch();
        if count == 0 {
            return;
        }
        let mut body = out.alloc(len.next_multiple_of(PAGE as usize));
        let mut to = Writer::new(&mut body.as_mut()[size_of::<BatchHead>()..]);
        let first = self.log.next_record();
        for record in first..first + count as u64 {
            let key = self.commit.queue.pop_front().expect("they were counted");
            self.commit.payload += self.payload_of(key);
            let job = self.jobs.get_mut(key).expect("a queued job lives");
            job.record = Some(record);
            match &job.kind {
                Kind::Write(write) => record::put_write(write, &mut to),
                Kind::Change(group, changes) => record::put_changes(*group, changes, &mut to),
                Kind::Drop(volume) => record::put_drop(*volume, &mut to),
                Kind::Read { .. } | Kind::Edges { .. } => unreachable!("it has no record"),
            }
            self.commit.batch.push(key);
        }
        self.seal_batch(body, len, count, out);
    }

    fn seal_batch(&mut self, mut body: Buf, len: usize, count: usize, out: &mut Effects) {
        let destaged = self.overlay.oldest().unwrap_or(u64::MAX).min(self.log.settled());
        let position = self.log.seal(body.as_mut(), len, count as u32, destaged);
        self.stats.batches += 1;
        self.stats.records += count as u64;
        self.write_ring(position, body, out);
    }

    /// Writes a batch without records if nothing was written since the last call, and the log does
    /// not say yet that its last records are settled.
    pub(super) fn tell_settled(&mut self, out: &mut Effects) {
        let rests = core::mem::replace(&mut self.commit.rested, self.stats.batches);
        let idle = self.commit.writing == 0 && self.commit.queue.is_empty();
        let len = size_of::<BatchHead>();
        if rests == self.stats.batches
            && idle
            && self.failed.is_none()
            && self.log.rests_untold()
            && self.log.has_room(len)
        {
            let body = out.alloc(len.next_multiple_of(PAGE as usize));
            self.seal_batch(body, len, 0, out);
        }
    }

    fn write_ring(&mut self, position: u64, body: Buf, out: &mut Effects) {
        let (at, room) = self.log.place(position);
        let here = (room as usize).min(body.len());
        self.commit.writing = 1;
        self.write_through(at, body.slice(0..here), Op::Log, out);
        if here < body.len() {
            self.commit.writing = 2;
            let (at, _) = self.log.place(position + here as u64);
            self.write_through(at, body.slice(here..body.len()), Op::Log, out);
        }
    }

    /// Removes queued writes to volumes that were dropped meanwhile: they have no effect.
    fn skip_dropped(&mut self) {
        if !self.commit.dropping {
            return;
        }
        let mut queue = core::mem::take(&mut self.commit.queue);
        queue.retain(|key| {
            let job = self.jobs.get_mut(*key).expect("a queued job lives");
            let Kind::Write(write) = &job.kind else { return true };
            if !write.parts.iter().any(|p| self.map.is_dropped(p.slot)) {
                return true;
            }
            job.left -= 1;
            if job.left == 0 {
                self.end(*key, Ok(Buf::EMPTY));
            }
            false
        });
        self.commit.queue = queue;
    }

    /// Notes that a write of the batch completed.
    pub(super) fn log_written(&mut self, out: &mut Effects) {
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
        if self.jobs.get(key).is_some_and(|j| j.record.is_some()) {
            self.commit.payload -= self.payload_of(key);
            self.apply(key);
        }
        self.end(key, Ok(Buf::EMPTY));
    }

    /// Makes completed writes durable, then lets their waiter continue.
    pub(super) fn await_flush(&mut self, waiter: Waiter) {
        match self.tuning.durability {
            Durability::Flush => self.commit.waiting.push(waiter),
            Durability::WriteThrough => self.durable(waiter),
        }
    }

    /// Takes the completion of a flush.
    pub(super) fn flushed(&mut self) {
        let waiters = self.commit.flushing.take().expect("one flush at a time");
        waiters.into_iter().for_each(|w| self.durable(w));
    }

    fn durable(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Home(blocks) => self.home_durable(blocks),
            Waiter::Checkpoint => self.checkpoint_durable(),
        }
    }
}
