//! Group commit: the records of many jobs in one write to the log; and flushes for what nobody waits for.
//!
//! What an answer waits for, log and fresh data, is *written through*: such a write is durable when it ends, so
//! a job has ended with the last of its writes. The next batch is written when the last one is durable (why: see
//! `log`); what comes meanwhile is gathered. Data on its way home and checkpoints wait for flushes, many at a
//! time, beside all this.

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

/// So many that wait for a flush are worth one, although more are on their way.
const MANY: usize = 16;

/// How much one operation that takes long may hold, in `Tuning::overlay_bytes`: log behind the first
/// record that has not ended, and payload that went home before an older one did. The next mount has
/// to keep both in memory. More of it waits, as for a ring that is full.
pub(super) const HELD: u64 = 8;

/// What is on its way to being durable.
#[derive(Debug, Default)]
pub struct Commit {
    /// Jobs whose record goes into a later batch, in order.
    queue: VecDeque<u64>,
    /// Jobs of the batch that is being written, and writes of it that have not ended.
    batch: Vec<u64>,
    writing: u32,
    /// Who waits for the next flush.
    waiting: Vec<Waiter>,
    /// Who waits for the flush that runs; there is one if this is `Some`.
    flushing: Option<Vec<Waiter>>,
    /// A volume was dropped since the last moment without a job.
    pub(super) dropping: bool,
    /// Payload bytes of records that are not applied yet.
    pub(super) payload: usize,
    /// Batches that were written when it was last asked whether the device rests.
    rested: u64,
}

impl Durable {
    /// A job's record goes into the next batch that has room; the job waits for that.
    pub(super) fn enqueue(&mut self, key: u64) {
        self.jobs.get_mut(key).expect("a job lives until it ends").left += 1;
        self.commit.queue.push_back(key);
    }

    /// A job that is nothing but a record.
    pub(super) fn enqueue_small(&mut self, token: Option<u64>, kind: Kind) {
        let fetch = Fetch::new(UnitKey::default(), Vec::new());
        let key = self.insert(token, kind, fetch, Vec::new());
        assert!(
            self.record_len(key) <= self.log.longest(),
            "a change is shorter than half the log"
        );
        self.enqueue(key);
    }

    /// Goes on: writes a batch, flushes, when that is possible and of use.
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

    /// Data on its way home can wait until there is more of it.
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

    /// How many jobs of the queue go into the next batch, and its bytes. None when there is no room, or when one job
    /// takes long: then what makes room is asked for, and jobs wait.
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
            // One that is too long for the bound goes when it is alone.
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

    /// If nothing was written since the last call, and the log doesn't tell that its last records are settled, a batch
    /// without records does.
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

    /// What was written to a volume that is gone meanwhile has no effect, and no record.
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

    /// A write of the batch ended.
    pub(super) fn log_written(&mut self, out: &mut Effects) {
        self.commit.writing -= 1;
        if self.commit.writing > 0 {
            return;
        }
        let mut batch = core::mem::take(&mut self.commit.batch);
        batch.drain(..).for_each(|key| self.arrived(key, None, out));
        self.commit.batch = batch;
    }

    /// Record and data of a job are durable.
    pub(super) fn written(&mut self, key: u64) {
        if self.jobs.get(key).is_some_and(|j| j.record.is_some()) {
            self.commit.payload -= self.payload_of(key);
            self.apply(key);
        }
        self.end(key, Ok(Buf::EMPTY));
    }

    /// Somebody's writes have ended, and are to be durable.
    pub(super) fn await_flush(&mut self, waiter: Waiter) {
        match self.tuning.durability {
            Durability::Flush => self.commit.waiting.push(waiter),
            Durability::WriteThrough => self.durable(waiter),
        }
    }

    /// A flush ended.
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
