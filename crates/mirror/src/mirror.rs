//! All replicas of one shard: starts and ends their operations.
//!
//! `primary`, `secondary` and `sync` contain the roles and phases of the protocol. This file
//! contains what they share: operations, range locks and media jobs.
//!
//! Invariant: an operation changes the media only while it holds its range lock.

use crate::arrival::{self, Arrivals};
use crate::changes::{Changes, Ended};
use crate::full::Usable;
use crate::gap::Gaps;
use crate::lease::{Fate, Leases};
use crate::load::Load;
use crate::lock::Range;
use crate::members::GroupConfig;
use crate::op::{Asker, Local, Op, OpKind};
use crate::pace::Pace;
use crate::repair::Repair;
use crate::replica::{Replica, Role};
use crate::scrub::Scrub;
use crate::stopwatch::Stopwatch;
use crate::volumes::Volumes;
use crate::window::{Peer, Traffic};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Epoch, GroupId, IdMap, Incarnation, Limits, MapVersion, Mutant,
    Slab, Time, mutant,
};
use seam::{
    Buf, DiskError, DiskOp, Effects, ExecutedBlocks, Forgotten, Job, Note, ReplicaRecord, Started,
    UnitStore,
};
use wire::message::Reply;
use wire::{PeerLink, Status};

/// Where an answer goes: the link, the asker's number for the operation, and the group.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub link: PeerLink,
    pub op: u64,
    pub group: GroupId,
}

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

/// The state of a group at this device, for status, tests and the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The group.
    pub group: GroupId,
    /// The configuration in force at this device.
    pub config: GroupConfig,
    /// This device is the primary.
    pub primary: bool,
    /// This device is the primary and serves.
    pub active: bool,
    /// Bytes of the dirty set, without what is in flight.
    pub dirty_bytes: u64,
    /// Bytes that a running sync still has to copy.
    pub todo_bytes: u64,
}

/// A step of the loop that does all work.
enum Work {
    Ended(Ended),
    /// Start an operation.
    Start(u64),
}

/// All replicas of one shard.
pub struct Mirror<S> {
    pub(crate) me: DeviceId,
    pub(crate) incarnation: Incarnation,
    pub(crate) limits: Limits,
    pub(crate) store: S,
    pub(crate) replicas: IdMap<GroupId, Replica>,
    pub(crate) ops: Slab<Op>,
    pub(crate) load: Load,
    pub(crate) leases: Leases,
    pub(crate) map: MapVersion,
    pub(crate) named_at: MapVersion,
    /// Devices that this one has dialled as a primary.
    pub(crate) peers: IdMap<DeviceId, Peer>,
    /// What is in flight to all of them together.
    pub(crate) traffic: Traffic,
    /// Number of operations of streams that were handed to links so far.
    pub(crate) sends: u64,
    /// Devices whose windows have room again while something waits for it.
    pub(crate) roomy: Vec<DeviceId>,
    pub(crate) fates: BTreeMap<DeviceId, Fate>,
    /// Where blocks without data are errors.
    pub(crate) gaps: Gaps,
    /// Zeros of the length of a unit, while writes in gaps use them.
    pub(crate) zeros: Option<Buf>,
    /// Operations that have their range lock and can start.
    pub(crate) ready: VecDeque<u64>,
    /// What ended in the call that began it. It goes on before other operations start.
    pub(crate) ended: VecDeque<Ended>,
    /// Groups with blocks to copy, served in turn.
    pub(crate) copy_queue: VecDeque<GroupId>,
    pub(crate) copies: u32,
    pub(crate) arrivals: Arrivals,
    /// Groups in which this device, as the primary, fills a joiner.
    pub(crate) joining: BTreeSet<GroupId>,
    pub(crate) pace: Pace,
    /// When copies that are delayed may begin.
    pub(crate) copy_at: Option<Time>,
    /// Groups that wait until leases that this device has granted have run out, and until when.
    pub(crate) waiting_grace: BTreeMap<GroupId, Time>,
    /// Groups with operations that wait for a lease, for room in a window, or for the end of a
    /// seal.
    pub(crate) parked: BTreeSet<GroupId>,
    /// Groups whose sync will repeat its question, and when.
    pub(crate) asking: BTreeMap<GroupId, Time>,
    /// Groups with commit points that the secondaries may not know yet.
    pub(crate) untold: Vec<GroupId>,
    pub(crate) suspects: BTreeSet<DeviceId>,
    pub(crate) ready_to_admit: bool,
    /// Volumes that exist, and ids of volumes that may exist.
    pub(crate) volumes: Volumes,
    /// Groups whose newest configuration came from another server, and no MDM has confirmed it yet.
    pub(crate) unsure: BTreeSet<GroupId>,
    pub(crate) usable: Usable,
    pub(crate) changes: Changes,
    /// By operation: the damaged blocks that it waits for.
    pub(crate) repairs: BTreeMap<u64, Repair>,
    /// By operation that writes another replica's content: the entries of that replica's list of
    /// executed writes.
    pub(crate) copied: BTreeMap<u64, Rc<[ExecutedBlocks]>>,
    /// Executed writes that no list contains any more, and how many entries were ever listed.
    pub(crate) forgotten: Forgotten,
    pub(crate) noted: u64,
    /// Value of `noted` at which all lists are counted again.
    pub(crate) count_at: u64,
    pub(crate) scrub: Scrub,
    pub(crate) stats: Stats,
    /// Measures how long jobs of the device take.
    pub(crate) stopwatch: Stopwatch,
    pub(crate) failed: bool,
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
        let (room, mut noted) = (limits.executed_device as usize, 0);
        let known = store.forgotten().cloned();
        let mut forgotten = known.unwrap_or_else(|| Forgotten::new(room));
        forgotten.set_room(room);
        let replica = |(group, mut record): (GroupId, ReplicaRecord)| {
            record.executed = record.executed.renoted(&mut noted);
            record.executed.bound(limits.executed_group as usize, group, &mut forgotten);
            if mutant::on(Mutant::VolatileDirty) {
                record.clean();
            }
            (group, Replica::new(record))
        };
        let replicas = store.records().into_iter().map(replica).collect();
        let scrubs = store.survives() && limits.scrub_bytes > 0;
        Mirror {
            scrub: Scrub::new(scrubs.then(|| boot + limits.scrub_first)),
            me,
            stopwatch: Stopwatch::default(),
            incarnation,
            store,
            replicas,
            ops: Slab::new(usize::MAX),
            load: Load::default(),
            leases: Leases::new(boot, &limits),
            map: MapVersion(0),
            named_at: MapVersion(0),
            peers: IdMap::default(),
            traffic: Traffic::new(&limits),
            sends: 0,
            roomy: Vec::new(),
            fates: BTreeMap::new(),
            ready: VecDeque::new(),
            ended: VecDeque::new(),
            copy_queue: VecDeque::new(),
            copies: 0,
            arrivals: Arrivals::default(),
            joining: BTreeSet::new(),
            pace: Pace::new(&limits),
            limits,
            copy_at: None,
            waiting_grace: BTreeMap::new(),
            parked: BTreeSet::new(),
            asking: BTreeMap::new(),
            untold: Vec::new(),
            suspects: BTreeSet::new(),
            ready_to_admit: false,
            volumes: Volumes::default(),
            unsure: BTreeSet::new(),
            usable: Usable::default(),
            gaps: Gaps::new(),
            zeros: None,
            changes: Changes::default(),
            repairs: BTreeMap::new(),
            copied: BTreeMap::new(),
            forgotten,
            noted,
            count_at: 0,
            stats: Stats::default(),
            failed: false,
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

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns true if the device has failed in such a way that this process must stop.
    pub fn failed(&self) -> bool {
        self.failed || self.store.failed().is_some()
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// Adds an operation, and returns its key.
    pub(crate) fn insert_op(&mut self, op: Op) -> u64 {
        self.load.add(op.counts);
        self.ops.insert(op).unwrap_or_else(|_| panic!("2^32 operations in flight"))
    }

    /// Removes an operation, and what it takes of the limits and windows.
    pub(crate) fn remove_op(&mut self, key: u64) -> Option<Op> {
        let mut op = self.ops.remove(key)?;
        self.load.end(op.counts.take());
        if !op.flying.is_empty() {
            self.give_room(op.group, op.flying, self.traffic.bytes(&op), op.number);
        }
        Some(op)
    }

    /// Returns every group that has a replica here, in order.
    pub fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.replicas.keys().collect();
        groups.sort_unstable();
        groups
    }

    /// Returns true if this device has, or may have, something of the group.
    pub fn has(&self, group: GroupId) -> bool {
        self.replicas.get(group).is_some()
    }

    /// Returns the state of a group at this device.
    pub fn view(&self, group: GroupId) -> Option<GroupView> {
        let replica = self.replicas.get(group)?;
        let (primary, active, todo_bytes) = match &replica.role {
            Role::Primary(p) => (true, p.active, p.sync.as_ref().map_or(0, |s| s.todo.bytes())),
            _ => (false, false, 0),
        };
        let (config, dirty_bytes) = (replica.config.clone(), replica.record.dirty.bytes());
        Some(GroupView { group, config, primary, active, dirty_bytes, todo_bytes })
    }

    // ---- operations ----

    /// Requests the operation's range lock. The operation is ready when it has the lock.
    pub(crate) fn queue(&mut self, key: u64) {
        let op = self.ops.get(key).expect("queued operations live");
        let exclusive = op.alone || !op.kind.shares();
        let mutant = match op.kind {
            OpKind::Read | OpKind::Extents if !op.alone => Some(Mutant::ReadInFlight),
            OpKind::Copy => Some(Mutant::CopyUnlocked),
            _ => None,
        };
        if mutant.is_some_and(mutant::on) {
            return self.ready.push_back(key);
        }
        let range = Range::new(op.unit, op.at, op.len, exclusive);
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        if replica.locks.lock(key, range) {
            self.ready.push_back(key);
        }
    }

    pub(crate) fn unlock(&mut self, group: GroupId, key: u64) {
        let ready = &mut self.ready;
        if let Some(replica) = self.replicas.get_mut(group) {
            replica.locks.unlock(key, |op| ready.push_back(op));
        }
    }

    /// Does what can be done now. Each call from outside ends with this loop, and nothing else
    /// continues an operation that had to wait: so no step begins within another one.
    #[inline]
    pub(crate) fn pump(&mut self, now: Time, out: &mut Effects) {
        let copies = !self.copy_queue.is_empty() || !self.arrivals.is_empty();
        if self.has_work() || copies || !self.roomy.is_empty() {
            self.pump_all(now, out);
        } else {
            self.copy_at = None; // as a rule an answer leaves nothing to do
        }
    }

    fn pump_all(&mut self, now: Time, out: &mut Effects) {
        loop {
            while let Some(work) = self.next_work() {
                self.step(now, work, out);
            }
            self.start_copies(now, out);
            if !self.arrivals.is_empty() {
                self.start_arrivals(now, out);
            }
            if !self.roomy.is_empty() {
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
        !self.ready.is_empty() || !self.ended.is_empty()
    }

    #[inline]
    fn next_work(&mut self) -> Option<Work> {
        if let Some(ended) = self.ended.pop_front() {
            return Some(Work::Ended(ended));
        }
        self.ready.pop_front().map(Work::Start)
    }

    #[inline]
    fn step(&mut self, now: Time, work: Work, out: &mut Effects) {
        match work {
            Work::Ended(Ended::Job(key, result)) => self.job_done(now, key, result, None, out),
            Work::Ended(Ended::Change(group, waiting)) => self.changed(now, group, waiting, out),
            Work::Start(key) => self.start(now, key, out),
        }
    }

    /// Starts an operation that has its range.
    fn start(&mut self, now: Time, key: u64, out: &mut Effects) {
        let Some(op) = self.ops.get(key) else { return };
        match (op.kind, op.asker) {
            (_, Asker::Nobody) => {}
            (OpKind::Read, Asker::Primary { .. }) => self.start_fetch(now, key, out),
            (OpKind::Read, Asker::Scrub) => self.start_job(now, key, out),
            (OpKind::Read | OpKind::Extents, _) => self.start_read(now, key, out),
            (OpKind::Copy, _) => self.start_copy(now, key, out),
            (_, Asker::Client { .. }) => self.start_write(now, key, out),
            (OpKind::Write, _) if arrival::yields(op) => self.arrive(now, key),
            (OpKind::Write, _) if op.stream.fresh => self.start_fresh(now, key, out),
            _ => self.start_job(now, key, out),
        }
    }

    /// Starts an operation's media job.
    pub(crate) fn start_job(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get(key).expect("the operation lives");
        let gone = op.kind.changes_data() && self.is_gone(op.unit.volume);
        let started = self.launch(key, gone, out);
        self.launched(now, key, started, out);
    }

    /// Starts an operation's media job, which does nothing if the volume is `gone`. The caller
    /// passes the result to `launched`.
    pub(crate) fn launch(&mut self, key: u64, gone: bool, out: &mut Effects) -> Started {
        let op = self.ops.get_mut(key).expect("the operation lives");
        op.local = Local::Running;
        let (group, unit, at, len) = (op.group, op.unit, op.at, op.len);
        let job = match op.kind {
            OpKind::Write if op.stream.lost => {
                let (first, blocks) = ((at / BLOCK) as u16, (len / BLOCK) as u16);
                out.note(Note::Lost { group, unit, first, blocks });
                Job::Lose { at, len }
            }
            OpKind::Write => {
                // A retry in parts, and what a primary has read, have a checksum as well.
                Job::Write { at, body: op.body.clone(), crc: op.body_crc }
            }
            OpKind::Zero => Job::Zero { at, len },
            OpKind::Read | OpKind::Copy | OpKind::Extents | OpKind::Amend => Job::Read { at, len },
        };
        let reserved = core::mem::take(&mut op.reserved);
        let copied = op.stream.copy && op.kind.changes_data();
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        replica.local += 1;
        let list: Option<Rc<[ExecutedBlocks]>> = match &replica.role {
            Role::Secondary(secondary) if copied => {
                Some(secondary.source().of(unit, BlockSet::touching(at, len)).into())
            }
            _ => None,
        };
        let started = if gone {
            Started::Done(Buf::EMPTY)
        } else {
            let marks = self.marks(self.ops.get(key).expect("as above"), list.as_ref());
            self.store.start(key, group, unit, job, marks, out)
        };
        if let Some(list) = list {
            self.copied.insert(key, list);
        }
        if reserved {
            self.store.release(group, unit, at, len);
        }
        started
    }

    /// Handles the result of starting a job.
    pub(crate) fn launched(&mut self, now: Time, key: u64, started: Started, out: &mut Effects) {
        match started {
            Started::Pending => self.stopwatch.begins(now, key),
            Started::Done(data) => self.ended.push_back(Ended::Job(key, Ok(data))),
            Started::Full => self.job_full(now, key, out),
            Started::BadBody => {
                self.ended.push_back(Ended::Job(key, Err(DiskError::BadBody)));
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
        let (unit, at, len, since) = (op.unit, op.at, op.len, op.since);
        let copied = op.stream.copy;
        let (group, kind, asker, client, lsn) = (op.group, op.kind, op.asker, op.client, op.lsn);
        if copied {
            self.arrived(now, key, len);
        }
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        replica.local -= 1;
        let data = match result {
            Ok(_) if mending => return self.mended(now, key, out),
            Ok(data) => data,
            Err(error) => return self.job_failed(now, key, error, out),
        };
        if client.sdc.0 != 0 && kind.changes_data() {
            let list = &mut replica.record.executed;
            list.record(client, unit, BlockSet::touching(at, len), &mut self.noted);
            let is_long = list.len() > self.limits.executed_group as usize;
            if is_long || self.noted >= self.count_at {
                self.bound_executed(group);
            }
        }
        if copied && let Some(list) = self.copied.remove(&key) {
            self.overwritten(group, unit, BlockSet::touching(at, len), &list);
        }
        match (asker, kind) {
            (Asker::Nobody, _) => {
                self.remove_op(key);
                self.unlock(group, key);
                self.enter(now, group, out);
            }
            (Asker::Primary { .. }, OpKind::Read) => self.fetched_here(now, key, data, out),
            (Asker::Scrub, _) => self.scrubbed(now, key, out),
            (_, OpKind::Read) => {
                self.pace.answered(now, since);
                self.finish_read(key, data, crc, out);
            }
            (_, OpKind::Copy) => self.send_copy(now, key, data, crc, out),
            (_, OpKind::Amend) => self.send_amend(now, key, data, crc, out),
            (Asker::Primary { .. }, _) => self.replicated_here(now, key, lsn, out),
            _ => self.check_write(now, key, out),
        }
    }

    // ---- frames ----

    /// Returns the epoch of a group that is in force here; 0 if it has no replica here.
    pub(crate) fn epoch_of(&self, group: GroupId) -> Epoch {
        self.replicas.get(group).map_or(Epoch(0), |r| r.config.epoch)
    }

    /// Returns the answer to a client's operation, and counts it.
    pub(crate) fn answer_to(&mut self, op: u64, group: GroupId, status: Status) -> Reply {
        self.stats.ops += 1;
        Reply::new(op, group, status, self.map)
    }

    /// Answers a client without data.
    pub(crate) fn reply(&mut self, to: Caller, status: Status, out: &mut Effects) {
        let reply = self.answer_to(to.op, to.group, status);
        out.send(to.link.id, to.link.frame(reply, &[]), Buf::EMPTY);
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

    /// Answers that the client's epoch is old, with the epoch that is known here and its primary.
    /// So the client can go on without an MDM.
    pub(crate) fn reply_stale(
        &self,
        to: Caller,
        epoch: Epoch,
        leader: Option<DeviceId>,
        out: &mut Effects,
    ) {
        let reply = Reply::new(to.op, to.group, Status::Stale, self.map);
        let reply = Reply { epoch, leader, ..reply };
        out.send(to.link.id, to.link.frame(reply, &[]), Buf::EMPTY);
    }
}
