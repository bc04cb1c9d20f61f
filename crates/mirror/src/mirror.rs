//! The replicas of one shard: takes over configurations, starts and ends operations.
//!
//! `primary`, `secondary` and `sync` hold the parts of the protocol; this file holds what they share:
//! operations, range locks, media jobs, and the change from one configuration to the next.
//!
//! Invariants: an operation changes the media only while it holds its range lock; a new configuration is
//! entered only when no job of the group runs; from the moment it is known, nothing is answered under
//! the old one.

use crate::arrival::{self, Arrivals};
use crate::full::Usable;
use crate::gap::Gaps;
use crate::lease::{Fate, Leases};
use crate::load::Load;
use crate::lock::Range;
use crate::marks::{Changes, Waiting};
use crate::op::{Asker, Local, Op, OpKind};
use crate::pace::Pace;
use crate::repair::Repair;
use crate::replica::{GroupConfig, Primary, Record, Replica, Role};
use crate::scrub::Scrub;
use crate::secondary::Secondary;
use crate::stopwatch::Stopwatch;
use crate::volumes::Volumes;
use crate::window::{Peer, Traffic};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{
    BLOCK, BlockSet, DeviceId, Epoch, GroupId, IdMap, Incarnation, Limits, MapVersion, Mutant,
    Policy, Slab, Time, mutant,
};
use seam::{
    Buf, Change, DiskError, DiskOp, Effects, ExecutedBlocks, Forgotten, GroupRecord, Job, Journal,
    Note, Started,
};
use wire::{Header, Kind, PeerLink, Status, flag};

/// Where an answer goes: the link, the asker's name for the operation, and what it is about.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub link: PeerLink,
    pub op: u64,
    pub group: GroupId,
}

/// Counters that status views show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Client operations answered.
    pub ops: u64,
    /// Clients' reads that were answered with data.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Clients' writes that were answered as done, zeroes among them.
    pub writes: u64,
    /// Bytes of these, without zeroes.
    pub written_bytes: u64,
    /// Bytes copied to joiners and in settling.
    pub moved: u64,
    /// When a write last found no space here.
    pub full_at: Option<Time>,
    /// When a write to a thin volume last found only the spare here.
    pub only_spare_at: Option<Time>,
    /// Bytes of damaged blocks that were written anew.
    pub repaired: u64,
    /// Times that damaged blocks were in no other copy that is in sync.
    pub unreadable: u64,
}

/// What a group looks like from here, for status, tests and the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Which group.
    pub group: GroupId,
    /// The configuration that is in force here.
    pub config: GroupConfig,
    /// Leads.
    pub primary: bool,
    /// Leads and serves.
    pub active: bool,
    /// Blocks that may differ from the other copy, in bytes, without what is in flight.
    pub dirty_bytes: u64,
    /// Bytes that a running sync still has to move.
    pub todo_bytes: u64,
}

/// All replicas of one shard.
pub struct Mirror<J> {
    pub(crate) me: DeviceId,
    pub(crate) incarnation: Incarnation,
    pub(crate) limits: Limits,
    pub(crate) journal: J,
    pub(crate) replicas: IdMap<GroupId, Replica>,
    pub(crate) ops: Slab<Op>,
    pub(crate) load: Load,
    pub(crate) leases: Leases,
    pub(crate) map: MapVersion,
    pub(crate) named_at: MapVersion,
    /// Members that I have dialled; and what is under way to all of them.
    pub(crate) peers: IdMap<DeviceId, Peer>,
    pub(crate) traffic: Traffic,
    /// Operations of streams that were given to links so far.
    pub(crate) sends: u64,
    /// Members whose links have room again, while something waits for it.
    pub(crate) roomy: Vec<DeviceId>,
    pub(crate) fates: BTreeMap<DeviceId, Fate>,
    /// Where blocks without data are errors.
    pub(crate) gaps: Gaps,
    /// As many zeros as a unit has, while some are data in a gap.
    pub(crate) zeros: Option<Buf>,
    /// Operations that have their lock and can start.
    pub(crate) ready: VecDeque<u64>,
    /// Groups with blocks to copy, served in turn.
    pub(crate) copy_queue: VecDeque<GroupId>,
    pub(crate) copies: u32,
    pub(crate) arrivals: Arrivals,
    /// Groups that I bring a joiner up to date in.
    pub(crate) joining: BTreeSet<GroupId>,
    pub(crate) pace: Pace,
    /// When copies that are held back may begin.
    pub(crate) copy_at: Option<Time>,
    /// Groups that wait until a promise of mine runs out.
    pub(crate) waiting_grace: BTreeMap<GroupId, Time>,
    /// Groups with reads that wait for a lease.
    pub(crate) parked: BTreeSet<GroupId>,
    /// Groups whose sync asks again.
    pub(crate) asking: BTreeMap<GroupId, Time>,
    /// Groups whose commit point the secondaries may not know yet.
    pub(crate) untold: Vec<GroupId>,
    pub(crate) suspects: BTreeSet<DeviceId>,
    pub(crate) ready_to_admit: bool,
    /// Volumes that exist, and of which nobody knows.
    pub(crate) volumes: Volumes,
    /// Groups of whose newest configuration no MDM has told yet, but another server.
    pub(crate) unsure: BTreeSet<GroupId>,
    pub(crate) usable: Usable,
    pub(crate) changes: Changes,
    /// By operation: the blocks that it lacks.
    pub(crate) repairs: BTreeMap<u64, Repair>,
    /// By operation that writes another replica's content: what that replica's list says about it.
    pub(crate) copied: BTreeMap<u64, Rc<[ExecutedBlocks]>>,
    /// Executed writes that no list has any more, and how many were ever listed.
    pub(crate) forgotten: Forgotten,
    pub(crate) noted: u64,
    /// When so many were, all lists are counted.
    pub(crate) count_at: u64,
    pub(crate) scrub: Scrub,
    pub(crate) stats: Stats,
    /// How long jobs of the device take.
    pub(crate) stopwatch: Stopwatch,
    pub(crate) failed: bool,
}

impl<J: Journal> Mirror<J> {
    /// The replicas of a device, as its records say; none for a new device.
    pub fn new(
        me: DeviceId,
        incarnation: Incarnation,
        limits: Limits,
        journal: J,
        boot: Time,
    ) -> Mirror<J> {
        let (room, mut noted) = (limits.executed_device as usize, 0);
        let known = journal.forgotten().cloned();
        let mut forgotten = known.unwrap_or_else(|| Forgotten::new(room));
        forgotten.set_room(room);
        let replica = |(group, found): (GroupId, GroupRecord)| {
            let mut record = Record::new(&found, &mut noted);
            record.executed.bound(limits.executed_group as usize, group, &mut forgotten);
            if mutant::on(Mutant::VolatileDirty) {
                record.clean();
            }
            (group, Replica::new(record))
        };
        let replicas = journal.records().into_iter().map(replica).collect();
        let scrubs = journal.survives() && limits.scrub_bytes > 0;
        Mirror {
            scrub: Scrub::new(scrubs.then(|| boot + limits.scrub_first)),
            me,
            stopwatch: Stopwatch::default(),
            incarnation,
            journal,
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

    /// The device's content.
    pub fn journal(&self) -> &J {
        &self.journal
    }

    /// The device, whose jobs nobody will hear of any more.
    pub fn into_journal(self) -> J {
        self.journal
    }

    /// The device, for calls that concern no job.
    pub fn journal_mut(&mut self) -> &mut J {
        &mut self.journal
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The device failed in a way that this process can't go on from: it must stop.
    pub fn failed(&self) -> bool {
        self.failed || self.journal.failed().is_some()
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn insert_op(&mut self, op: Op) -> u64 {
        self.load.add(op.counts);
        self.ops.insert(op).unwrap_or_else(|_| panic!("2^32 operations in flight"))
    }

    pub(crate) fn remove_op(&mut self, key: u64) -> Option<Op> {
        let op = self.ops.get_mut(key)?;
        self.load.end(op.counts.take());
        let op = self.ops.get(key)?;
        if !op.flying.is_empty() {
            self.give_room(op.group, op.flying, self.traffic.bytes(op), op.number);
        }
        self.ops.remove(key)
    }

    /// Every group with a replica here, in order.
    pub fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.replicas.keys().collect();
        groups.sort_unstable();
        groups
    }

    /// True for a group of which something is, or may be, here.
    pub fn has(&self, group: GroupId) -> bool {
        self.replicas.get(group).is_some()
    }

    /// What a group looks like from here.
    pub fn view(&self, group: GroupId) -> Option<GroupView> {
        let replica = self.replicas.get(group)?;
        let (primary, active, todo_bytes) = match &replica.role {
            Role::Primary(p) => (true, p.active, p.sync.as_ref().map_or(0, |s| s.todo.bytes())),
            _ => (false, false, 0),
        };
        let (config, dirty_bytes) = (replica.config.clone(), replica.record.dirty.bytes());
        Some(GroupView { group, config, primary, active, dirty_bytes, todo_bytes })
    }

    // ---- configurations ----

    /// The version of the map at which this life was named. Whatever an earlier life has led, it led by then.
    pub fn named_at(&mut self, map: MapVersion) {
        self.named_at = map;
    }

    /// A newer map is there. Call before `configure`, once per map.
    pub fn set_map(&mut self, map: MapVersion, fates: BTreeMap<DeviceId, Fate>) {
        self.map = map;
        self.leases.know(map, &fates);
        self.fates = fates;
    }

    /// What the storage pool says about copies that replace a lost one, and about those that only move. Holds at once.
    pub fn set_policies(
        &mut self,
        now: Time,
        rebuild: Policy,
        rebalance: Policy,
        out: &mut Effects,
    ) {
        if self.pace.set(rebuild, rebalance) {
            self.pump(now, out);
        }
    }

    /// Takes over a group's configuration, if it is newer than the one in force. `told`: by an MDM, and not by another
    /// server alone.
    pub fn configure(
        &mut self,
        now: Time,
        group: GroupId,
        config: &GroupConfig,
        told: bool,
        out: &mut Effects,
    ) {
        let member = config.replicas.contains(&self.me);
        if !member && self.replicas.get(group).is_none() {
            return;
        }
        // No MDM has said so, and a server may be wrong.
        if !told && config.primary.is_some_and(|primary| !config.in_sync.contains(&primary)) {
            return;
        }
        let replica = self.replicas.get_or_insert_with(group, || Replica::new(Record::default()));
        let known = replica.next.as_ref().map_or(&replica.config, |(next, _)| next);
        let confirms = told && config.epoch == known.epoch && self.unsure.contains(&group);
        if config.epoch <= known.epoch && !confirms {
            return;
        }
        if confirms && config == known {
            self.unsure.remove(&group);
            return self.enter_again(now, group, out);
        }
        // Else it is newer, or the other server was wrong.
        let old_epoch =
            config.epoch <= replica.record.acted && !mutant::on(Mutant::ResumeSameEpoch);
        if old_epoch && replica.config.epoch.0 == 0 {
            return; // R2: after a restart only a newer epoch counts
        }
        match told {
            true => self.unsure.remove(&group),
            false => self.unsure.insert(group),
        };
        let before = replica.next.as_ref().map_or(&replica.config, |(next, _)| next);
        let led = before.primary;
        let gone = before.replicas.iter().filter(|d| !config.replicas.contains(d));
        let mut former: Vec<DeviceId> = replica.former.iter().chain(gone).copied().collect();
        former.retain(|d| !config.replicas.contains(d) && self.leases.promised(*d) > now);
        former.sort_unstable();
        former.dedup();
        replica.former = former;
        if config.primary == Some(self.me) && led != Some(self.me) {
            let others = config.replicas.iter().chain(&replica.former).filter(|d| **d != self.me);
            replica.promises = others.map(|d| (*d, self.leases.promised(*d))).collect();
        }
        self.stop(group, config, out);
        let map = self.map;
        if let Some(replica) = self.replicas.get_mut(group) {
            replica.next = Some((config.clone(), map));
        }
        self.enter(now, group, out);
    }

    /// Nothing is answered under the present configuration any more.
    fn stop(&mut self, group: GroupId, next: &GroupConfig, out: &mut Effects) {
        let admitted = self.fold_admitted(group, next);
        self.fold_uncertain(group);
        if admitted {
            self.change_to(group);
        }
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let role = core::mem::replace(&mut replica.role, Role::Out);
        let locks = core::mem::take(&mut replica.locks);
        let mut ops: Vec<u64> = locks.ops().collect();
        if let Role::Primary(primary) = role {
            ops.extend(primary.held);
            ops.extend(primary.stream.iter().filter(|e| !e.done).map(|e| e.op));
        }
        let here = |key: &&u64| self.ops.get(**key).is_some_and(|op| op.group == group);
        ops.extend(self.repairs.keys().filter(here));
        ops.sort_unstable();
        ops.dedup();
        for key in ops {
            self.abort(key, next, out);
        }
        self.ask_no_more(group, next);
        self.waiting_grace.remove(&group);
        self.asking.remove(&group);
        self.joining.remove(&group);
        self.parked.remove(&group);
    }

    /// A joiner whose admission was asked for, and is granted, has all that I have but for what is in
    /// flight: the blocks that it had missed are not dirty any more.
    fn fold_admitted(&mut self, group: GroupId, next: &GroupConfig) -> bool {
        let Some(replica) = self.replicas.get_mut(group) else { return false };
        let Role::Primary(Primary { sync: Some(sync), .. }) = &replica.role else { return false };
        let joined = sync.joiner.is_some_and(|joiner| next.in_sync.contains(&joiner));
        let both = joined && next.in_sync.contains(&self.me);
        if sync.in_limbo() && both {
            replica.record.clean();
            replica.record.base = replica.config.epoch;
        }
        sync.in_limbo() && both
    }

    /// What is in flight is uncertain: puts it into the dirty set.
    fn fold_uncertain(&mut self, group: GroupId) {
        if !self.journal.keeps_data() {
            return;
        }
        let Some(replica) = self.replicas.get_mut(group) else { return };
        match &mut replica.role {
            Role::Primary(primary) => {
                for entry in primary.stream.iter().filter(|e| !e.done) {
                    let op = self.ops.get(entry.op).expect("an operation of the stream lives");
                    replica.record.dirty.insert(op.unit, BlockSet::touching(op.at, op.len));
                }
            }
            Role::Secondary(secondary) => secondary.fold(&mut replica.record.dirty),
            Role::Out => {}
        }
    }

    /// Ends an operation without doing it, or leaves only its media job.
    fn abort(&mut self, key: u64, next: &GroupConfig, out: &mut Effects) {
        let Some(op) = self.ops.get_mut(key) else { return };
        let (group, unit) = (op.group, op.unit);
        let asker = core::mem::replace(&mut op.asker, Asker::Nobody);
        if matches!(asker, Asker::Nobody) {
            return; // the configuration changes again while its job runs
        }
        let (flying, bytes) = (core::mem::take(&mut op.flying), self.traffic.bytes(op));
        let number = op.number;
        self.scrub.dropped(key);
        self.give_room(group, flying, bytes, number);
        let op = self.ops.get_mut(key).expect("looked up above");
        if op.kind == OpKind::Copy {
            self.copies -= 1;
        }
        let (at, len) = (op.at, op.len);
        if core::mem::take(&mut op.reserved) {
            self.journal.release(group, unit, at, len);
        }
        if !matches!(op.local, Local::Running | Local::Mending) {
            self.remove_op(key);
        }
        if let Asker::Client { link, op } = asker {
            let (epoch, leader) = (next.epoch, next.primary);
            self.reply_stale(Caller { link, op, group }, epoch, leader, out);
        }
    }

    /// Enters the next configuration, once no job of the last one runs, and the journal has it that this
    /// replica acts in it (rule R2): until then nothing is answered.
    pub(crate) fn enter(&mut self, now: Time, group: GroupId, out: &mut Effects) {
        let me = self.me;
        let Some(replica) = self.replicas.get_mut(group) else { return };
        if replica.local > 0 {
            return;
        }
        let Some((next, _)) = &replica.next else { return };
        let epoch = next.epoch;
        let (acts, joins) = (Replica::acts_in(next, me), !next.in_sync.contains(&me));
        let unknown = replica.record.base == Epoch(0) && next.in_sync == [me];
        if acts && unknown {
            // What others have, this one doesn't know: its dirty set reaches back to no epoch before this one.
            replica.record.base = epoch;
            self.change(group, alloc::vec![Change::Base(epoch)]);
        }
        let Some(replica) = self.replicas.get_mut(group) else { return };
        if acts && self.journal.survives() && replica.record.acted < epoch {
            if replica.noted < epoch {
                replica.noted = epoch;
                let acts = if joins { Change::Joins(epoch) } else { Change::Acted(epoch) };
                let wait = Waiting::Entry { epoch, joins };
                self.change_first(now, group, alloc::vec![acts], wait, out);
            }
            return;
        }
        let Some((config, map)) = replica.next.take() else { return };
        replica.enter(config, map, me);
        let config = &replica.config;
        if !config.replicas.contains(&me) || mutant::on(Mutant::WipeReplica) && !acts {
            // That can't be taken back: an MDM has to say it.
            if !self.unsure.contains(&group) {
                self.discard(now, group, out);
            }
            return;
        }
        if config.lost || config.primary.is_none() {
            return;
        }
        if config.primary == Some(me) {
            assert!(config.in_sync.contains(&me), "{group} is led from outside its in-sync set");
            (replica.record.acted, replica.record.joiner) = (config.epoch, false);
            replica.role = Role::Primary(Primary::default());
            out.note(Note::Primary { group, epoch: config.epoch });
            self.begin(now, group, out);
        } else if config.in_sync.contains(&me) || config.joiners.contains(&me) {
            let joiner = !config.in_sync.contains(&me);
            let primary = config.primary.expect("checked above");
            (replica.record.acted, replica.record.joiner) = (config.epoch, joiner);
            replica.role = Role::Secondary(Secondary::new(primary, joiner));
        }
    }

    /// The devices whose lease, or whose answers, groups that I lead need; and those to be brought back.
    pub fn wanted(&self) -> (BTreeSet<DeviceId>, BTreeSet<DeviceId>) {
        let (mut needed, mut out_of_sync) = (BTreeSet::new(), BTreeSet::new());
        let configs =
            self.replicas.values().map(|r| r.next.as_ref().map_or(&r.config, |(next, _)| next));
        for config in configs.filter(|c| c.primary == Some(self.me)) {
            for device in config.replicas.iter().filter(|d| **d != self.me) {
                let member = config.in_sync.contains(device) || config.joiners.contains(device);
                (if member { &mut needed } else { &mut out_of_sync }).insert(*device);
            }
        }
        (needed, out_of_sync)
    }

    // ---- operations ----

    /// Puts an operation in line for its range.
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

    /// Starts what can start, until nothing can.
    pub(crate) fn pump(&mut self, now: Time, out: &mut Effects) {
        loop {
            while let Some(key) = self.ready.pop_front() {
                let Some(op) = self.ops.get(key) else { continue };
                match (op.kind, op.asker) {
                    (_, Asker::Nobody) => {}
                    (OpKind::Read, Asker::Primary { .. }) => self.start_fetch(now, key, out),
                    (OpKind::Read, Asker::Scrub) => self.start_job(now, key, out),
                    (OpKind::Read | OpKind::Extents, _) => self.start_read(now, key, out),
                    (OpKind::Copy, _) => self.start_copy(now, key, out),
                    (_, Asker::Client { .. }) => self.start_write(now, key, out),
                    (OpKind::Write, _) if arrival::yields(op) => self.arrive(now, key),
                    (OpKind::Write, _) if op.flags & flag::FRESH != 0 => {
                        self.start_fresh(now, key, out)
                    }
                    _ => self.start_job(now, key, out),
                }
            }
            self.start_copies(now, out);
            if !self.arrivals.is_empty() {
                self.start_arrivals(now, out);
            }
            if !self.roomy.is_empty() {
                self.use_room(out);
            }
            if self.ready.is_empty() {
                return;
            }
        }
    }

    /// Starts an operation's job on the media.
    pub(crate) fn start_job(&mut self, now: Time, key: u64, out: &mut Effects) {
        let started = self.launch(key, out);
        self.launched(now, key, started, out);
    }

    /// Starts an operation's job; what came of it is for `launched`.
    pub(crate) fn launch(&mut self, key: u64, out: &mut Effects) -> Started {
        let gone = self
            .ops
            .get(key)
            .is_some_and(|op| op.kind.changes_data() && self.is_gone(op.unit.volume));
        let op = self.ops.get_mut(key).expect("the operation lives");
        op.local = Local::Running;
        let (group, unit, at, len) = (op.group, op.unit, op.at, op.len);
        let job = match op.kind {
            OpKind::Write if op.flags & flag::LOST != 0 => {
                let (first, blocks) = ((at / BLOCK) as u16, (len / BLOCK) as u16);
                out.note(Note::Lost { group, unit, first, blocks });
                Job::Lose { at, len }
            }
            OpKind::Write => {
                // A retry in parts, and what a primary has read, have a sum as well.
                let summed = op.flags & flag::NO_BODY_CRC == 0;
                Job::Write { at, body: op.body.clone(), crc: summed.then_some(op.body_crc) }
            }
            OpKind::Zero => Job::Zero { at, len },
            OpKind::Read | OpKind::Copy | OpKind::Extents | OpKind::Amend => Job::Read { at, len },
        };
        let reserved = core::mem::take(&mut op.reserved);
        let copied = op.flags & flag::COPY != 0 && op.kind.changes_data();
        let changes = op.kind.changes_data();
        debug_assert!(self.is_apart(key, group, (unit, at, len), changes), "jobs overlap");
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
            self.journal.start(key, group, unit, job, marks, out)
        };
        if let Some(list) = list {
            self.copied.insert(key, list);
        }
        if reserved {
            self.journal.release(group, unit, at, len);
        }
        started
    }

    /// A job was started.
    pub(crate) fn launched(&mut self, now: Time, key: u64, started: Started, out: &mut Effects) {
        match started {
            Started::Pending => self.stopwatch.begins(now, key),
            Started::Done(data) => self.job_done(now, key, Ok(data), None, out),
            Started::Full => self.job_full(now, key, out),
            Started::BadBody => self.job_done(now, key, Err(DiskError::BadBody), None, out),
        }
    }

    /// A device operation ended.
    pub fn disk_done(
        &mut self,
        now: Time,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        self.journal.disk_done(op, result, out);
        if self.reap(now, out) {
            self.pump(now, out);
        }
    }

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
        let copied = op.flags & flag::COPY != 0;
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
            self.noted += 1;
            let list = &mut replica.record.executed;
            list.record(client, unit, BlockSet::touching(at, len), self.noted);
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

    /// A header of ours about a group.
    pub(crate) fn header(&self, kind: Kind, group: GroupId) -> Header {
        self.header_in(kind, group, self.replicas.get(group).map_or(Epoch(0), |r| r.config.epoch))
    }

    /// The same, when its epoch is known.
    pub(crate) fn header_in(&self, kind: Kind, group: GroupId, epoch: Epoch) -> Header {
        let mut header = Header::new(kind);
        header.group = group.0.into();
        header.map = self.map.0.into();
        header.incarnation = self.incarnation.0.into();
        header.epoch = epoch.0.into();
        header
    }

    pub(crate) fn reply_header(&mut self, to: Caller) -> Header {
        let mut header = self.header(Kind::Reply, to.group);
        header.op = to.op.into();
        header.flags = if self.journal.keeps_data() { 0 } else { flag::NO_BODY_CRC };
        self.stats.ops += 1;
        header
    }

    pub(crate) fn reply(&mut self, to: Caller, status: Status, body: Buf, out: &mut Effects) {
        let mut header = self.reply_header(to);
        header.status = (status as u16).into();
        out.send(to.link.id, to.link.frame(header, &body), body);
    }

    /// A read's answer. A checksum that the store knows is not made anew from memory.
    pub(crate) fn reply_data(
        &mut self,
        to: Caller,
        body: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        let mut header = self.reply_header(to);
        let head = match crc.filter(|_| !header.has(flag::NO_BODY_CRC)) {
            Some(crc) => {
                (header.body_len, header.body_crc) = ((body.len() as u32).into(), crc.into());
                to.link.seal(header)
            }
            None => to.link.frame(header, &body),
        };
        out.send(to.link.id, head, body);
    }

    /// "Your epoch is old": with the one that is in force here, and who leads in it. Whoever asks may go on
    /// there, also without an MDM.
    pub(crate) fn reply_stale(
        &self,
        to: Caller,
        epoch: Epoch,
        leader: Option<DeviceId>,
        out: &mut Effects,
    ) {
        let mut header = self.header(Kind::Reply, to.group);
        header.op = to.op.into();
        header.status = (Status::Stale as u16).into();
        header.epoch = epoch.0.into();
        header.len = leader.map_or(0, |d| d.0).into();
        out.send(to.link.id, to.link.frame(header, &[]), Buf::EMPTY);
    }
}
