//! All replicas of one shard: starts and ends their operations.
//!
//! `primary`, `secondary` and `sync` contain the roles and phases of the protocol. This file
//! contains what they share: operations, range locks and media jobs.
//!
//! Invariant: an operation changes the media only while it holds its range lock.

use crate::arrival;
use crate::copies::Copies;
use crate::failures::Failures;
use crate::full::Usable;
use crate::gap::Lost;
use crate::history::History;
use crate::jobs::{Ended, Jobs};
use crate::known::Known;
use crate::lease::Leases;
use crate::marks::metadata;
use crate::op::{Caller, Local, Op, Streamed, Work};
use crate::ops::Ops;
use crate::repairs::Repairs;
use crate::replica::{Replica, Role};
use crate::replicas::Replicas;
use crate::scrub::Scrub;
use crate::timers::Timers;
use crate::untold::Untold;
use crate::window::Windows;
use alloc::rc::Rc;
use base::{BLOCK, BlockSet, DeviceId, GroupId, Incarnation, Limits, Mutant, Time, mutant};
use seam::{
    Buf, DiskError, DiskOp, Effects, ExecutedBlocks, Job, Note, ReplicaRecord, Started, UnitStore,
};
use wire::Status;
use wire::message::Reply;

/// Counters for status views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Answers to operations of clients.
    pub ops: u64,
    /// Reads of clients that were answered with data.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Writes of clients that were acknowledged, including zeroings.
    pub writes: u64,
    /// Bytes of these writes, without zeroings.
    pub written_bytes: u64,
    /// Bytes copied in resyncs and settles, counted once per receiver.
    pub moved: u64,
    /// When a write last found no space on this device.
    pub full_at: Option<Time>,
    /// When a write to a thin volume last found only the spare on this device.
    pub only_spare_at: Option<Time>,
    /// Bytes of damaged blocks that were rewritten.
    pub repaired: u64,
    /// How often no other in-sync replica could provide damaged blocks.
    pub unreadable: u64,
}

/// All replicas of one shard.
pub struct Mirror<S> {
    pub(crate) me: DeviceId,
    pub(crate) limits: Limits,
    pub(crate) store: S,
    pub(crate) replicas: Replicas,
    pub(crate) ops: Ops,
    pub(crate) leases: Leases,
    pub(crate) known: Known,
    pub(crate) windows: Windows,
    pub(crate) gaps: Lost,
    pub(crate) jobs: Jobs,
    pub(crate) copies: Copies,
    pub(crate) timers: Timers,
    pub(crate) untold: Untold,
    pub(crate) usable: Usable,
    pub(crate) repairs: Repairs,
    pub(crate) history: History,
    pub(crate) scrub: Scrub,
    pub(crate) stats: Stats,
    pub(crate) failures: Failures,
}

impl<S: UnitStore> Mirror<S> {
    /// Creates the replicas that the device's records describe; none for a new device.
    pub fn new(
        me: DeviceId,
        incarnation: Incarnation,
        limits: Limits,
        store: S,
        boot: Time,
    ) -> Mirror<S> {
        let mut history = History::new(&limits, store.forgotten());
        let replica = |(group, mut record): (GroupId, ReplicaRecord)| {
            record.executed = history.open(record.executed, group);
            if mutant::on(Mutant::VolatileDirty) {
                record.clean();
            }
            (group, Replica::new(record))
        };
        let replicas = Replicas::new(me, store.records().into_iter().map(replica));
        Mirror {
            scrub: Scrub::new(store.survives(), &limits, boot),
            me,
            store,
            replicas,
            ops: Ops::default(),
            leases: Leases::new(boot, &limits),
            known: Known::new(incarnation),
            windows: Windows::new(&limits),
            jobs: Jobs::default(),
            copies: Copies::new(&limits),
            timers: Timers::default(),
            untold: Untold::default(),
            limits,
            usable: Usable::default(),
            gaps: Lost::default(),
            repairs: Repairs::default(),
            history,
            stats: Stats::default(),
            failures: Failures::default(),
        }
    }

    /// Returns the unit store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the unit store. The results of its jobs are lost.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Returns the unit store, for calls that are not jobs.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Returns all replicas.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Returns the leases of this device.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns true if the device has failed in such a way that this process must stop.
    pub fn failed(&self) -> bool {
        self.failures.is_here() || self.store.failed().is_some()
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// Removes an operation, and frees its part of the limits and windows.
    pub(crate) fn remove_op(&mut self, key: u64) -> Option<Op> {
        let op = self.ops.remove(key)?;
        if !op.in_flight.is_empty() {
            let taken = (self.windows.bytes(&op), op.number);
            self.windows.give_room(self.replicas.of(op.group), op.group, op.in_flight, taken);
        }
        Some(op)
    }

    /// Like `remove_op`, for an operation whose data is not needed any more.
    #[inline]
    pub(crate) fn discard_op(&mut self, key: u64) {
        let Some(op) = self.ops.get(key) else { return };
        if op.in_flight.is_empty() {
            return self.ops.discard(key);
        }
        self.remove_op(key);
    }

    /// Ends an operation: removes it, and frees its range.
    pub(crate) fn end_op(&mut self, key: u64) -> Op {
        let op = self.remove_op(key).expect("an operation ends once");
        self.replicas.unlock(&mut self.ops, op.group, key);
        op
    }

    // ---- operations ----

    /// Does all work that can be done now. Each call from outside ends with this loop, and nothing
    /// else continues an operation that had to wait. So no step begins within another one.
    #[inline(always)]
    pub(crate) fn pump(&mut self, now: Time, out: &mut Effects) {
        // As a rule an answer leaves nothing to do.
        if self.has_work() || !self.copies.none_wait() || self.windows.have_room() {
            self.pump_all(now, out);
        }
    }

    fn pump_all(&mut self, now: Time, out: &mut Effects) {
        loop {
            loop {
                // Ended work is continued before other operations start.
                match self.jobs.next_ended() {
                    Some(Ended::Job(key, result)) => self.job_done(now, key, result, None, out),
                    Some(Ended::Change(group, what)) => self.changed(now, group, what, out),
                    None => match self.ops.next() {
                        Some(key) => self.start(now, key, out),
                        None => break,
                    },
                }
            }
            self.start_copies(now, out);
            while !self.copies.arrivals.is_empty()
                && let Some(key) =
                    self.copies.next_arrival(now, &self.limits, &self.ops, &self.replicas)
            {
                self.start_job(now, key, out);
            }
            if self.windows.have_room() {
                self.use_room(out);
            }
            if !self.has_work() {
                return;
            }
        }
    }

    /// Returns true if there is something for the loop to do.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.ops.none_ready() || !self.jobs.none_ended()
    }

    /// Starts an operation that has its range.
    fn start(&mut self, now: Time, key: u64, out: &mut Effects) {
        let Some(op) = self.ops.get(key) else { return };
        match &op.work {
            Work::Read(..) | Work::Extents(..) => self.start_read(now, key, out),
            Work::Write(_) => self.start_write(now, key, out),
            Work::Stream(s) if !s.zero && arrival::yields(s) => self.copies.arrive(now, key),
            Work::Stream(s) if !s.zero && s.fresh => self.start_fresh(now, key, out),
            Work::Stream(_) | Work::Whole { .. } | Work::Scrub => self.start_job(now, key, out),
            Work::Fetch(_) => self.start_fetch(now, key, out),
            Work::Copy(_) => self.start_copy(now, key, out),
            Work::Orphan { .. } => {}
        }
    }

    /// Starts an operation's media job.
    pub(crate) fn start_job(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let gone = op.work.changes_data() && self.known.is_gone(op.unit.volume);
        let started = self.launch(key, gone, out);
        self.launched(now, key, started, out);
    }

    /// Starts an operation's media job, which does nothing if the volume is `gone`. The caller
    /// passes the result to `launched`.
    pub(crate) fn launch(&mut self, key: u64, gone: bool, out: &mut Effects) -> Started {
        let op = self.ops.get_mut(key).expect("the operation lives");
        op.local = Local::Running;
        let (group, unit, at, len) = (op.group, op.unit, op.at, op.len);
        let job = op.job();
        if let Job::MarkLost { .. } = job {
            let (first, blocks) = ((at / BLOCK) as u16, (len / BLOCK) as u16);
            out.note(Note::Lost { group, unit, first, blocks });
        }
        let reserved = core::mem::take(&mut op.reserved);
        let copied = matches!(op.work, Work::Stream(Streamed { copy: true, .. }));
        let copied_zero = matches!(op.work, Work::Stream(Streamed { zero: true, .. }));
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        replica.local += 1;
        let list: Option<Rc<[ExecutedBlocks]>> = match &replica.role {
            Role::Secondary(secondary) if copied => {
                Some(secondary.source().of(unit, BlockSet::touching(at, len)).into())
            }
            _ => None,
        };
        let skipped = gone || copied_zero && mutant::on(Mutant::LocalTrim);
        let started = if skipped {
            Started::Done(Buf::EMPTY)
        } else {
            let marks = metadata(op, replica, self.store.survives(), list.as_ref());
            self.store.start(key, group, unit, job, marks, out)
        };
        if list.is_some() {
            self.ops.get_mut(key).expect("as above").list = list;
        }
        if reserved {
            self.store.release(group, unit, at, len);
        }
        started
    }

    /// Handles the result of starting a job.
    pub(crate) fn launched(&mut self, now: Time, key: u64, started: Started, out: &mut Effects) {
        match started {
            Started::Pending => self.jobs.begins(now, key),
            Started::Done(data) => self.jobs.ended_at_once(Ended::Job(key, Ok(data))),
            Started::Full => self.job_full(now, key, out),
            Started::BadBody => {
                self.jobs.ended_at_once(Ended::Job(key, Err(DiskError::BadBody)));
            }
        }
    }

    /// Takes the result of a device operation.
    pub fn disk_done(
        &mut self,
        now: Time,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        self.store.disk_done(op, result, out);
        if self.reap(now, out) {
            self.pump(now, out);
        }
    }

    /// Continues an operation whose media job has ended.
    pub(crate) fn job_done(
        &mut self,
        now: Time,
        key: u64,
        result: Result<Buf, DiskError>,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        let op = self.ops.get_mut(key).expect("an operation lives while its job runs");
        let mending = core::mem::replace(&mut op.local, Local::Done) == Local::Mending;
        let (unit, at, len) = (op.unit, op.at, op.len);
        let list = if mending { None } else { op.list.take() };
        let (group, client, changes) = (op.group, op.client, op.work.changes_data());
        if list.is_some() {
            self.copies.arrived(now, key, len);
        }
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        replica.local -= 1;
        let data = match result {
            Ok(_) if mending => return self.mended(now, key, out),
            Ok(data) => data,
            Err(error) => return self.job_failed(now, key, error, out),
        };
        if client.sdc.0 != 0 && changes {
            let list = &mut replica.record.executed;
            if self.history.record(list, client, unit, BlockSet::touching(at, len)) {
                self.history.bound_lists(&mut self.replicas, group, &self.limits);
            }
        }
        if let Some(theirs) = list {
            let replica = self.replicas.get_mut(group).expect("as above");
            let place = (unit, BlockSet::touching(at, len));
            self.history.overwrite(&mut replica.record.executed, group, place, &theirs);
            self.history.bound_lists(&mut self.replicas, group, &self.limits);
        }
        match self.ops.get(key).expect("as above").work {
            Work::Read(_, since) => {
                self.copies.pace.answered(now, since);
                self.finish_read(key, data, crc, out);
            }
            Work::Extents(..) => unreachable!("it has no job"),
            Work::Write(_) => self.check_write(now, key, out),
            Work::Stream(_) => self.end_replicated(now, key, Status::Ok, out),
            Work::Fetch(asker) => self.fetched_here(now, key, asker, data, out),
            Work::Copy(_) => self.send_copy(now, key, data, crc, out),
            Work::Whole { .. } => self.send_whole(now, key, data, crc, out),
            Work::Scrub => self.scrubbed(now, key, out),
            Work::Orphan { .. } => {
                self.end_op(key);
                self.enter(now, group, out);
            }
        }
    }

    // ---- frames ----

    /// Returns the answer to a client's operation, and counts it.
    pub(crate) fn answer_to(&mut self, op: u64, group: GroupId, status: Status) -> Reply {
        self.stats.ops += 1;
        Reply::new(op, group, status, self.known.map())
    }

    /// Answers a client without data.
    pub(crate) fn reply(&mut self, to: Caller, status: Status, out: &mut Effects) {
        let reply = self.answer_to(to.op, to.group, status);
        to.send(reply, out);
    }

    /// Answers a read. A checksum that the unit store knows is not computed again from memory,
    /// which may have changed. Data that is not kept has none.
    pub(crate) fn reply_data(
        &mut self,
        to: Caller,
        body: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        let reply = self.answer_to(to.op, to.group, Status::Ok);
        let head = match crc {
            _ if !self.store.keeps_data() => to.link.frame_as(reply, &body, None),
            Some(crc) => to.link.frame_as(reply, &body, Some(crc)),
            None => to.link.frame(reply, &body),
        };
        out.send(to.link.id, head, body);
    }
}
