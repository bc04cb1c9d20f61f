//! What all flows of a shard share: the unit store, the replicas, the operations, and what this
//! device knows. This file contains what each operation needs, whatever flow it belongs to: its
//! media job, its range lock, its answer and its end. `configuration`, `flow`, `no_space`,
//! `progress`, `repair` and `resend` add methods for what several flows call.
//!
//! Invariant: an operation changes the media only while it holds its range lock.

use crate::failures::Failures;
use crate::history::History;
use crate::jobs::{Jobs, Step};
use crate::known::Known;
use crate::lease::Leases;
use crate::marks::{metadata, set_dirty};
use crate::op::{Caller, Local, Op, Streamed, Work};
use crate::ops::Ops;
use crate::pace::Pace;
use crate::replica::{Replica, Role};
use crate::replicas::Replicas;
use crate::unsent::Unsent;
use crate::usable::Usable;
use crate::window::Windows;
use alloc::rc::Rc;
use base::{
    BLOCK, BlockSet, DeviceId, GroupId, Incarnation, Limits, Mutant, Time, UnitKey, mutant,
};
use seam::{Buf, DiskError, Effects, ExecutedBlocks, Job, Note, ReplicaRecord, Started, UnitStore};
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

/// What the flows of a shard share.
pub(crate) struct Shard<S> {
    pub me: DeviceId,
    pub limits: Limits,
    pub store: S,
    pub replicas: Replicas,
    pub ops: Ops,
    pub leases: Leases,
    pub known: Known,
    pub windows: Windows,
    pub jobs: Jobs,
    pub pace: Pace,
    pub unsent: Unsent,
    pub usable: Usable,
    pub history: History,
    pub stats: Stats,
    pub failures: Failures,
}

impl<S: UnitStore> Shard<S> {
    /// Creates the replicas that the device's records describe; none for a new device.
    pub(crate) fn new(
        me: DeviceId,
        incarnation: Incarnation,
        limits: Limits,
        store: S,
        boot: Time,
    ) -> Shard<S> {
        let mut history = History::new(&limits, store.forgotten());
        let replica = |(group, mut record): (GroupId, ReplicaRecord)| {
            record.executed = history.open(record.executed, group);
            if mutant::on(Mutant::VolatileDirty) {
                record.clean();
            }
            (group, Replica::new(record))
        };
        let replicas = Replicas::new(me, store.records().into_iter().map(replica));
        Shard {
            me,
            store,
            replicas,
            ops: Ops::default(),
            leases: Leases::new(boot, &limits),
            known: Known::new(incarnation),
            windows: Windows::new(&limits),
            jobs: Jobs::default(),
            pace: Pace::new(&limits),
            unsent: Unsent::default(),
            usable: Usable::default(),
            history,
            stats: Stats::default(),
            failures: Failures::default(),
            limits,
        }
    }

    // ---- work ----

    /// Returns true if there is something for the loop to do.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.ops.none_ready() || !self.jobs.has_no_task()
    }

    /// Adds an operation. It starts when it has its range lock. Returns its key.
    pub(crate) fn queue(&mut self, op: Op) -> u64 {
        let key = self.ops.insert(op);
        self.replicas.queue(&mut self.ops, key);
        key
    }

    // ---- operations ----

    /// Starts an operation's media job.
    pub(crate) fn start_job(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let gone = op.work.changes_data() && self.known.is_gone(op.unit.volume);
        let started = self.launch(key, gone, out);
        self.launched(now, key, started);
    }

    /// Starts an operation's media job, which does nothing if the volume is `gone`. The caller
    /// passes the result to `launched`.
    pub(crate) fn launch(&mut self, key: u64, gone: bool, out: &mut Effects) -> Started {
        let op = self.ops.get_mut(key).expect("the operation lives");
        assert!(op.local == Local::NotStarted, "an operation has one job at a time");
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
    pub(crate) fn launched(&mut self, now: Time, key: u64, started: Started) {
        match started {
            Started::Pending => self.jobs.begins(now, key),
            Started::Done(data) => self.jobs.ended_at_once(key, Ok(data)),
            Started::Full => self.jobs.push_step(Step::Refuse(key)),
            Started::BadBody => {
                self.jobs.ended_at_once(key, Err(DiskError::BadBody));
            }
        }
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

    /// Drops an operation whose configuration has ended.
    pub(crate) fn drop_over(&mut self, key: u64) {
        let op = self.end_op(key);
        self.jobs.push_step(Step::Enter(op.group));
    }

    // ---- answers ----

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

    /// Ends a client's operation, for which nothing is left to do.
    pub(crate) fn finish_client(&mut self, key: u64, status: Status, out: &mut Effects) {
        let op = self.end_op(key);
        if let Some(client) = op.work.client() {
            self.reply(Caller::new(client, op.group), status, out);
        }
    }

    // ---- the record ----

    /// Replaces the unit store's dirty set by the one in memory and what is in flight.
    pub(crate) fn change_to(&mut self, group: GroupId) {
        let Some(replica) = self.replicas.get(group) else { return };
        if self.store.survives() {
            let dirty = replica.dirty_and_in_flight(&self.ops);
            set_dirty(&mut self.store, group, &dirty, replica.record.base);
        }
    }

    /// Tells the unit store which blocks are clean and not in flight again.
    pub(crate) fn tell_clean(&mut self) {
        self.unsent.tell_clean(&mut self.replicas, &self.ops, &mut self.store);
    }

    /// Updates a group's list of executed writes for blocks that have another replica's content
    /// now.
    pub(crate) fn take_list(
        &mut self,
        group: GroupId,
        place: (UnitKey, BlockSet),
        theirs: &[ExecutedBlocks],
    ) {
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        self.history.overwrite(&mut replica.record.executed, group, place, theirs);
        self.history.bound_lists(&mut self.replicas, group, &self.limits);
    }

    /// Counts damaged blocks that were rewritten.
    pub(crate) fn count_repaired(&mut self, group: GroupId, bytes: u64, out: &mut Effects) {
        if bytes > 0 {
            self.stats.repaired += bytes;
            out.note(Note::Repaired { group, bytes });
        }
    }
}
