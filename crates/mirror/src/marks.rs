//! What the journal is told (rule R5): marks with each write, changes of a group's record, and who waits
//! until they are durable.
//!
//! The sets in here and in the journal are not the same facts. What is here is exact, and counts while
//! this process lives; what the journal holds is what a crash would reveal: it has what is in flight as
//! well, and learns late what is clean. For a device that does not survive there is only the first.
//!
//! Invariant: the journal's dirty set of a group includes the one here.

use crate::dirty::Dirty;
use crate::executed::{ExecutedList, told_entry, wire_entry};
use crate::mirror::Mirror;
use crate::op::{Op, OpKind};
use crate::replica::Role;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{BlockSet, Epoch, GroupId, Incarnation, Lsn, Mutant, SdcId, Time, UnitKey, mutant};
use seam::{Change, Effects, ExecutedBlocks, Finished, Forgotten, Journal, Marks, Origin};
use wire::PeerLink;
use wire::records::Executed;

/// The low half of a change's token: no operation has that index.
const CHANGE: u64 = u32::MAX as u64;
/// Units that one change names at most: the journal takes less than 1 MiB of entries at a time.
const UNITS: usize = 8192;
/// Entries of what was forgotten that another replica tells of a group, at most: for each client that a cluster takes a
/// number of the group, and one of all groups.
const MARKERS: usize = 2 * (Forgotten::MOST + 1);

/// How long lists are that clients, peers and time make longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Executed writes in all lists.
    pub executed: usize,
    /// In the longest list of a group.
    pub executed_group: usize,
    /// Of one client in one group.
    pub executed_client: usize,
    /// Numbers of clients whose writes were forgotten.
    pub forgotten: usize,
    /// Uncertain writes of a joiner.
    pub uncertain: usize,
    /// The same of a member in sync.
    pub uncertain_in_sync: usize,
    /// Operations in a group's stream.
    pub stream: usize,
    /// Bytes under way to one member.
    pub flying: usize,
    /// Units in dirty sets that belong to volumes that are gone.
    pub gone: usize,
    /// Operations of clients that are not answered.
    pub client_ops: usize,
    /// Their bytes.
    pub client_bytes: usize,
    /// Copies of resyncs under way, where they are read.
    pub copies: usize,
}

/// Who waits for a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    /// A configuration with this epoch is to be entered, as a joiner or not.
    Entry { epoch: Epoch, joins: bool },
    /// A seal of this epoch is to be answered, to this link's operation.
    Seal { epoch: Epoch, lsn: Lsn, link: PeerLink, op: u64 },
    /// A wipe in this epoch is to be answered on this link.
    Wipe { epoch: Epoch, link: PeerLink },
    /// What a replica had that is none any more is to be gone.
    Discard,
}

/// Changes that somebody waits for, and what the journal is still to hear.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    waiting: alloc::collections::BTreeMap<u64, (GroupId, Waiting)>,
    next: u64,
    /// Groups with clean blocks that the journal has not heard of.
    pub untidy: BTreeSet<GroupId>,
}

impl Changes {
    /// The same is the last that is on its way for the group: it will be answered to who asked last. Who asks repeats that
    /// until there is an answer, and a device that hangs would get a change for each.
    pub fn joins(&mut self, group: GroupId, asked: Waiting) -> bool {
        let last = self.waiting.values_mut().rev().find(|known| known.0 == group);
        let Some((_, known)) = last else { return false };
        let same = match (*known, asked) {
            (Waiting::Seal { epoch: e, lsn: l, .. }, Waiting::Seal { epoch, lsn, .. }) => {
                (e, l) == (epoch, lsn)
            }
            (Waiting::Wipe { epoch: e, .. }, Waiting::Wipe { epoch, .. }) => e == epoch,
            _ => false,
        };
        if same {
            *known = asked;
        }
        same
    }
}

/// After how many executed writes all lists are counted.
fn count_every(limits: &base::Limits) -> u64 {
    u64::from(limits.executed_device / 64).max(1)
}

impl<J: Journal> Mirror<J> {
    /// What a job says about itself.
    pub(crate) fn marks(&self, op: &Op, copied: Option<&Rc<[ExecutedBlocks]>>) -> Marks {
        let unmarked = !op.kind.changes_data() || mutant::on(Mutant::NoMarks);
        if unmarked || !self.journal.survives() {
            return Marks::default();
        }
        let origin = match copied {
            Some(list) => Origin::Copied(list.clone()),
            None if op.client.sdc.0 != 0 => Origin::Client(op.client),
            None => Origin::Unnamed,
        };
        let alone = self.replicas[op.group].is_solo();
        Marks { dirty: !(alone && mutant::on(Mutant::NoSoloDirty)), origin }
    }

    /// Changes a group's record; nobody waits.
    pub(crate) fn change(&mut self, group: GroupId, changes: Vec<Change>) {
        if self.journal.survives() {
            self.journal.change(None, group, changes);
        }
    }

    /// Changes a group's record; `waiting` goes on when that is durable.
    pub(crate) fn change_first(
        &mut self,
        now: Time,
        group: GroupId,
        changes: Vec<Change>,
        waiting: Waiting,
        out: &mut Effects,
    ) {
        if !self.journal.survives() {
            self.journal.change(None, group, changes);
            return self.changed(now, group, waiting, out);
        }
        self.changes.next += 1;
        let token = self.changes.next << 32 | CHANGE;
        self.changes.waiting.insert(token, (group, waiting));
        self.stopwatch.begins(now, token);
        self.journal.change(Some(token), group, changes);
    }

    /// Takes in what the journal has finished; false when that was nothing.
    pub(crate) fn reap(&mut self, now: Time, out: &mut Effects) -> bool {
        let mut any = false;
        while let Some(Finished { token, result, crc }) = self.journal.finished() {
            any = true;
            self.stopwatch.ends(now, token);
            if token & CHANGE != CHANGE {
                self.job_done(now, token, result, crc, out);
            } else if let Some((group, waiting)) = self.changes.waiting.remove(&token) {
                match result {
                    Ok(_) => self.changed(now, group, waiting, out),
                    Err(_) => self.failed = true,
                }
            }
        }
        any
    }

    /// Ends a batch of calls: what was asked for goes to the device.
    pub fn flush(&mut self, now: Time, out: &mut Effects) {
        loop {
            self.journal.flush(out);
            if !self.reap(now, out) {
                return;
            }
            self.pump(now, out);
        }
    }

    fn changed(&mut self, now: Time, group: GroupId, waiting: Waiting, out: &mut Effects) {
        match waiting {
            Waiting::Entry { epoch, joins } => {
                let Some(replica) = self.replicas.get_mut(group) else { return };
                // The next configuration may be another one by now. What the device says counts all the same.
                if replica.record.acted < epoch {
                    (replica.record.acted, replica.record.joiner) = (epoch, joins);
                }
                self.enter(now, group, out);
                self.pump(now, out);
            }
            Waiting::Seal { epoch, lsn, link, op } => self.sealed(group, epoch, lsn, link, op, out),
            Waiting::Wipe { epoch, link } => self.wiped(group, epoch, link, out),
            Waiting::Discard => self.discarded(now, group, out),
        }
    }

    // ---- executed writes ----

    /// Blocks have another replica's content.
    pub(crate) fn overwritten(
        &mut self,
        group: GroupId,
        unit: UnitKey,
        blocks: BlockSet,
        theirs: &[ExecutedBlocks],
    ) {
        if mutant::on(Mutant::KeepList) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(group) else { return };
        replica.record.executed.overwrite(unit, blocks, theirs, &mut self.noted);
        let most = self.limits.executed_group as usize;
        replica.record.executed.bound(most, group, &mut self.forgotten);
    }

    /// Executed writes that all lists of this device have.
    pub fn executed_len(&self) -> usize {
        self.replicas.values().map(|r| r.record.executed.len()).sum()
    }

    /// How long lists of this device are, for who compares that with their bounds.
    pub fn grown(&self) -> Grown {
        let lists = || self.replicas.values().map(|r| &r.record.executed);
        let most = |of: &dyn Fn(&Role) -> usize| {
            self.replicas.values().map(|r| of(&r.role)).max().unwrap_or(0)
        };
        let uncertain = |joiner| {
            most(&|role| match role {
                Role::Secondary(s) if s.is_joiner() == joiner => s.uncertain().count(),
                _ => 0,
            })
        };
        let dirty = self.replicas.values().flat_map(|r| r.record.dirty.iter());
        Grown {
            executed: self.executed_len(),
            executed_group: lists().map(ExecutedList::len).max().unwrap_or(0),
            executed_client: lists().map(ExecutedList::widest).max().unwrap_or(0),
            forgotten: self.forgotten.len(),
            uncertain: uncertain(true),
            uncertain_in_sync: uncertain(false),
            stream: most(&|role| match role {
                Role::Primary(p) => p.stream.len(),
                _ => 0,
            }),
            flying: self.most_flying() as usize,
            gone: dirty.filter(|(unit, _)| self.is_gone(unit.volume)).count(),
            client_ops: self.load.ops() as usize,
            client_bytes: self.load.bytes() as usize,
            copies: self.copies as usize,
        }
    }

    /// What [`Mirror::grown`] may tell at most.
    pub fn may_grow(limits: &base::Limits) -> Grown {
        let group = limits.executed_group as usize;
        // What was admitted before it was full; of each of that, the blocks that a member needs whole; and copies.
        let stream = (limits.stream + 2 * limits.shard_ops + 2 * limits.copies) as usize;
        Grown {
            executed: limits.executed_device as usize + count_every(limits) as usize,
            executed_group: group,
            // Twice, as what is never retried is dropped now and then only.
            executed_client: group
                .min(2 * (2 * limits.executed_window + limits.shard_ops) as usize),
            forgotten: limits.executed_device as usize + Forgotten::MOST + 1,
            uncertain: crate::secondary::UNCERTAIN_MAX,
            // Who leads tells with each operation up to where the stream is finished.
            // Before its seal it keeps all, up to a bound of its own.
            uncertain_in_sync: stream.max(crate::secondary::UNCERTAIN_MAX),
            stream,
            flying: crate::window::most(limits) as usize,
            // What was in flight when the volume went.
            gone: stream,
            client_ops: limits.shard_ops as usize,
            // And the last one that is taken.
            client_bytes: limits.shard_bytes as usize + base::UNIT as usize,
            copies: crate::pace::Pace::most(limits) as usize,
        }
    }

    /// A group's list may be too long; now and then all lists are counted.
    #[cold]
    pub(crate) fn bound_executed(&mut self, group: GroupId) {
        let most = self.limits.executed_group as usize;
        if let Some(replica) = self.replicas.get_mut(group) {
            replica.record.executed.bound(most, group, &mut self.forgotten);
        }
        if self.noted >= self.count_at {
            self.count_at = self.noted + count_every(&self.limits);
            self.bound_all_executed();
        }
    }

    fn bound_all_executed(&mut self) {
        let most = self.limits.executed_device as usize;
        if self.executed_len() <= most || mutant::on(Mutant::EndlessList) {
            return;
        }
        // What is never retried goes first: nobody misses it, and nothing is forgotten with it.
        self.replicas.values_mut().for_each(|r| r.record.executed.prune());
        let len = self.executed_len();
        if len <= most {
            return;
        }
        let noted = self.replicas.values().flat_map(|r| r.record.executed.noted()).collect();
        let Some(last) = crate::executed::oldest(noted, len - most * 3 / 4) else { return };
        for group in self.groups() {
            let Some(replica) = self.replicas.get_mut(group) else { continue };
            replica.record.executed.forget_until(last, group, &mut self.forgotten);
        }
    }

    /// What another replica of the group has forgotten: content that comes from there may include it.
    pub(crate) fn take_forgotten(&mut self, group: GroupId, told: &[Executed]) {
        let entries = told.iter().filter(|r| r.set().is_empty()).take(MARKERS).map(told_entry);
        self.forget(group, entries.collect());
    }

    /// These entries are forgotten from now on, in this group: only of this one the content comes from where they are
    /// told. The device hears of it before it hears of what comes after.
    pub(crate) fn forget(&mut self, group: GroupId, entries: Vec<ExecutedBlocks>) {
        let here = entries.into_iter().map(Forgotten::of_group);
        let entries: Vec<ExecutedBlocks> = here.collect();
        for entry in &entries {
            self.forgotten.take(group, entry);
        }
        // What the device knows counts: this side may know more, of its own lists, which a restart brings back.
        let known = self.journal.forgotten();
        let is_news = |e: &ExecutedBlocks| known.is_some_and(|known| !known.has(group, e));
        let news: Vec<ExecutedBlocks> = entries.into_iter().filter(is_news).collect();
        if !news.is_empty() {
            self.change(group, alloc::vec![Change::Forgotten(news)]);
        }
    }

    /// The group's list of executed writes, and what was forgotten of it, as records of a frame.
    pub(crate) fn executed_records(&self, group: GroupId) -> Vec<Executed> {
        let mut records: Vec<Executed> =
            self.forgotten.entries(group).map(|e| wire_entry(&e)).collect();
        if let Some(replica) = self.replicas.get(group) {
            records.extend(replica.record.executed.to_records());
        }
        records
    }

    /// The newest life of a client of which a write is listed here.
    pub fn newest_life(&self, sdc: SdcId) -> Incarnation {
        let lives = self.replicas.values().filter_map(|r| r.record.executed.life(sdc));
        lives.max().unwrap_or_default()
    }

    // ---- what is clean ----

    /// Every member has what this operation has written.
    pub(crate) fn on_all(&mut self, op: &Op) {
        if !self.journal.survives() || op.kind == OpKind::Copy {
            return;
        }
        let Some(replica) = self.replicas.get_mut(op.group) else { return };
        let whole = !replica.is_solo();
        if let Role::Primary(primary) = &mut replica.role
            && primary.active
            && whole
        {
            primary.clean.insert(op.unit, BlockSet::touching(op.at, op.len));
            self.changes.untidy.insert(op.group);
        }
    }

    /// Tells the journal what is clean, and not in flight again. Late is safe.
    pub(crate) fn tell_clean(&mut self) {
        while let Some(group) = self.changes.untidy.pop_first() {
            let Some(replica) = self.replicas.get_mut(group) else { continue };
            let mut clean = Dirty::default();
            match &mut replica.role {
                Role::Primary(primary) => {
                    core::mem::swap(&mut clean, &mut primary.clean);
                    let eager = mutant::on(Mutant::EagerClean);
                    for entry in primary.stream.iter().filter(|e| !e.done && !eager) {
                        let op = self.ops.get(entry.op).expect("an operation of the stream lives");
                        clean.remove(op.unit, BlockSet::touching(op.at, op.len));
                    }
                }
                Role::Secondary(secondary) => clean = secondary.take_clean(),
                Role::Out => {}
            }
            let list: Vec<_> = clean.iter().collect();
            for part in list.chunks(UNITS) {
                self.change(group, alloc::vec![Change::Clean(part.to_vec())]);
            }
        }
    }

    /// This is all that may differ: `Dirty` may be what is in flight.
    pub(crate) fn change_to(&mut self, group: GroupId) {
        if !self.journal.survives() {
            return;
        }
        let Some(replica) = self.replicas.get(group) else { return };
        let mut dirty = replica.record.dirty.clone();
        if let Role::Primary(primary) = &replica.role {
            for entry in primary.stream.iter().filter(|e| !e.done) {
                let op = self.ops.get(entry.op).expect("an operation of the stream lives");
                dirty.insert(op.unit, BlockSet::touching(op.at, op.len));
            }
        }
        let base = replica.record.base;
        let list: Vec<_> = dirty.iter().collect();
        if list.len() <= UNITS {
            let changes = alloc::vec![Change::CleanAll, Change::Base(base), Change::Dirty(list)];
            return self.change(group, changes);
        }
        // Too many for one step, and a crash between two would leave too few marks. So all that the journal has stays
        // dirty until the next seal: that is safe.
        for part in list.chunks(UNITS) {
            self.change(group, alloc::vec![Change::Dirty(part.to_vec())]);
        }
        self.change(group, alloc::vec![Change::Base(base)]);
    }
}
