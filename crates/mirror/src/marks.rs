//! What the unit store is told (rule R5): the metadata of each write, changes of a group's record,
//! and what waits until such a change is durable.
//!
//! The dirty set here and the one in the unit store are not the same. The one here is exact, and
//! counts while this process runs. The one in the unit store is what a crash would leave: it
//! includes what is in flight, and learns late what is clean. A device that does not survive its
//! process has only the first one.
//!
//! Invariant: the unit store's dirty set of a group includes the one here.

use crate::executed::{to_records, told_entry, wire_entry};
use crate::history::History;
use crate::jobs::{Ended, Jobs, Waiting};
use crate::mirror::Mirror;
use crate::op::Op;
use crate::replica::Role;
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, Incarnation, Mutant, SdcId, Time, UnitKey, mutant};
use seam::record::{Dirty, ExecutedList, oldest};
use seam::{
    Change, Effects, ExecutedBlocks, Finished, Forgotten, Origin, UnitStore, WriteMetadata,
};
use wire::records::Executed;

/// Units in one change at most: the unit store takes less than 1 MiB of entries at a time.
const UNITS: usize = 8192;
/// Entries of forgotten writes of a group that another replica may send, at most: for each client
/// that a cluster admits one number of the group, and one of all groups.
const MARKERS: usize = 2 * (Forgotten::MOST + 1);

/// The lengths of lists that clients, peers or time make longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLengths {
    /// Executed writes in all lists.
    pub executed: usize,
    /// Executed writes in the longest list of a group.
    pub executed_group: usize,
    /// Executed writes of one client in one group.
    pub executed_client: usize,
    /// Numbers of clients whose writes were forgotten.
    pub forgotten: usize,
    /// Executed writes in the longest list that came with a question.
    pub source: usize,
    /// Uncertain writes of a joiner.
    pub uncertain: usize,
    /// Uncertain writes of a secondary.
    pub uncertain_in_sync: usize,
    /// Operations in a group's stream.
    pub stream: usize,
    /// Bytes in flight to one replica.
    pub in_flight: usize,
    /// Units in dirty sets that belong to deleted volumes.
    pub gone: usize,
    /// Unanswered operations of clients.
    pub client_ops: usize,
    /// Bytes of these operations.
    pub client_bytes: usize,
    /// Copies of syncs in flight from this device.
    pub copies: usize,
}

impl<S: UnitStore> Mirror<S> {
    /// Returns the metadata of a write.
    pub(crate) fn marks(&self, op: &Op, copied: Option<&Rc<[ExecutedBlocks]>>) -> WriteMetadata {
        let unmarked = !op.work.changes_data() || mutant::on(Mutant::NoMarks);
        if unmarked || !self.store.survives() {
            return WriteMetadata::default();
        }
        let origin = match copied {
            Some(list) => Origin::Copied(list.clone()),
            None if op.client.sdc.0 != 0 => Origin::Client(op.client),
            None => Origin::Unnamed,
        };
        let alone = self.replicas[op.group].is_only_in_sync();
        WriteMetadata { dirty: !(alone && mutant::on(Mutant::NoSoloDirty)), origin }
    }

    /// Changes a group's record. Nothing waits for it.
    pub(crate) fn change(&mut self, group: GroupId, changes: Vec<Change>) {
        if self.store.survives() {
            self.store.change(None, group, changes);
        }
    }

    /// Changes a group's record. `waiting` continues when that is durable.
    pub(crate) fn change_first(
        &mut self,
        now: Time,
        group: GroupId,
        changes: Vec<Change>,
        waiting: Waiting,
    ) {
        if !self.store.survives() {
            self.store.change(None, group, changes);
            return self.jobs.ended_at_once(Ended::Change(group, waiting));
        }
        let token = self.jobs.change(now, group, waiting);
        self.store.change(Some(token), group, changes);
    }

    /// Takes the results of what the unit store has finished; false if there were none.
    pub(crate) fn reap(&mut self, now: Time, out: &mut Effects) -> bool {
        let mut any = false;
        while let Some(Finished { token, result, crc }) = self.store.finished() {
            any = true;
            self.jobs.ends(now, token);
            if !Jobs::is_change(token) {
                self.job_done(now, token, result, crc, out);
            } else if let Some((group, waiting)) = self.jobs.take_change(token) {
                match result {
                    Ok(_) => self.changed(now, group, waiting, out),
                    Err(_) => self.failures.here = true,
                }
            }
        }
        any
    }

    /// Ends a batch of calls: what was requested goes to the device.
    pub fn flush(&mut self, now: Time, out: &mut Effects) {
        debug_assert!(!self.has_work(), "each call from outside ends with the loop");
        loop {
            self.store.flush(out);
            if !self.reap(now, out) {
                return;
            }
            self.pump(now, out);
        }
    }

    /// Continues what waited for a change.
    pub(crate) fn changed(
        &mut self,
        now: Time,
        group: GroupId,
        waiting: Waiting,
        out: &mut Effects,
    ) {
        match waiting {
            Waiting::Entry { epoch, joins } => {
                let Some(replica) = self.replicas.get_mut(group) else { return };
                // Another configuration may be the next one by now. What is durable counts all the
                // same.
                if replica.record.acted < epoch {
                    (replica.record.acted, replica.record.joiner) = (epoch, joins);
                }
                self.enter(now, group, out);
            }
            Waiting::Seal { epoch, lsn, link } => {
                self.sealed(group, epoch, lsn, link, out);
                self.answer_asked(group, out);
            }
            Waiting::Wipe { epoch, question, link } => {
                self.wiped(group, (question, epoch), link, out)
            }
            Waiting::Discard => self.discarded(now, group, out),
        }
    }

    // ---- executed writes ----

    /// Updates the list of executed writes for blocks that have another replica's content now.
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
        let list = &mut replica.record.executed;
        self.history.overwrite(list, group, (unit, blocks), theirs);
        if self.history.counts(&self.limits) {
            self.bound_all_executed();
        }
    }

    /// Returns the number of executed writes in all lists of this device.
    pub fn executed_len(&self) -> usize {
        self.replicas.values().map(|r| r.record.executed.len()).sum()
    }

    /// Returns the lengths of lists of this device, for comparison with their bounds.
    pub fn grown(&self) -> ListLengths {
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
        ListLengths {
            executed: self.executed_len(),
            executed_group: lists().map(ExecutedList::len).max().unwrap_or(0),
            executed_client: lists().map(ExecutedList::widest).max().unwrap_or(0),
            forgotten: self.history.forgotten().len(),
            source: most(&|role| match role {
                Role::Secondary(s) => s.source().len(),
                _ => 0,
            }),
            uncertain: uncertain(true),
            uncertain_in_sync: uncertain(false),
            stream: most(&|role| match role {
                Role::Primary(p) => p.stream.len(),
                _ => 0,
            }),
            in_flight: self.windows.most_flying() as usize,
            gone: dirty.filter(|(unit, _)| self.is_gone(unit.volume)).count(),
            client_ops: self.ops.load().ops() as usize,
            client_bytes: self.ops.load().bytes() as usize,
            copies: self.copies.running() as usize,
        }
    }

    /// Returns the largest values that [`Mirror::grown`] may return.
    pub fn may_grow(limits: &base::Limits) -> ListLengths {
        let group = limits.executed_group as usize;
        // The bound, what was admitted before it was reached, the whole blocks that a replica needs
        // of each of these, and copies.
        let stream = (limits.stream + 2 * limits.shard_ops + 2 * limits.copies) as usize;
        ListLengths {
            executed: limits.executed_device as usize + History::count_every(limits) as usize,
            executed_group: group,
            // Twice, because a list that came from another replica has no floors before the next
            // writes of its clients.
            executed_client: group
                .min(2 * (2 * limits.executed_window + limits.shard_ops) as usize),
            forgotten: limits.executed_device as usize + Forgotten::MOST + 1,
            // The list of an honest primary has the same bound.
            source: group,
            uncertain: crate::secondary::UNCERTAIN_MAX,
            // The primary sends with each operation up to where the stream is finished. Before its
            // seal a secondary keeps all, up to a bound of its own.
            uncertain_in_sync: stream.max(crate::secondary::UNCERTAIN_MAX),
            stream,
            in_flight: crate::window::Windows::most(limits) as usize,
            // What was in flight when the volume was deleted.
            gone: stream,
            client_ops: limits.shard_ops as usize,
            // The limit, and the last operation that was admitted below it.
            client_bytes: limits.shard_bytes as usize + base::UNIT as usize,
            copies: crate::pace::Pace::most(limits) as usize,
        }
    }

    /// Bounds a group's list that may be too long. Counts all lists now and then.
    #[cold]
    pub(crate) fn bound_executed(&mut self, group: GroupId) {
        if let Some(replica) = self.replicas.get_mut(group) {
            self.history.bound(&mut replica.record.executed, group);
        }
        if self.history.counts(&self.limits) {
            self.bound_all_executed();
        }
    }

    fn bound_all_executed(&mut self) {
        let most = self.limits.executed_device as usize;
        let len = self.executed_len();
        if len <= most || mutant::on(Mutant::EndlessList) {
            return;
        }
        let noted = self.replicas.values().flat_map(|r| r.record.executed.noted()).collect();
        let Some(last) = oldest(noted, len - most * 3 / 4) else { return };
        for group in self.groups() {
            let Some(replica) = self.replicas.get_mut(group) else { continue };
            self.history.forget_until(&mut replica.record.executed, last, group);
        }
    }

    /// Takes over what another replica of the group has forgotten: content that comes from there
    /// may include it.
    pub(crate) fn take_forgotten(&mut self, group: GroupId, told: &[Executed]) {
        let entries = told.iter().filter(|r| r.set().is_empty()).take(MARKERS).map(told_entry);
        self.forget(group, entries.collect());
    }

    /// Forgets these entries in this group, because only this group's content comes from where they
    /// were told. The unit store hears of it before it hears of what comes afterwards.
    pub(crate) fn forget(&mut self, group: GroupId, entries: Vec<ExecutedBlocks>) {
        let here = entries.into_iter().map(Forgotten::of_group);
        let entries: Vec<ExecutedBlocks> = here.collect();
        for entry in &entries {
            self.history.forget(group, entry);
        }
        // Compares with what is durable: this process may have forgotten more entries of its own
        // lists, which a restart brings back.
        let known = self.store.forgotten();
        let is_news = |e: &ExecutedBlocks| known.is_some_and(|known| !known.has(group, e));
        let news: Vec<ExecutedBlocks> = entries.into_iter().filter(is_news).collect();
        if !news.is_empty() {
            self.change(group, alloc::vec![Change::Forgotten(news)]);
        }
    }

    /// Returns the group's list of executed writes, and what was forgotten of it, as records of a
    /// frame.
    pub(crate) fn executed_records(&self, group: GroupId) -> Vec<Executed> {
        let mut records: Vec<Executed> =
            self.history.forgotten().entries(group).map(|e| wire_entry(&e)).collect();
        if let Some(replica) = self.replicas.get(group) {
            records.extend(to_records(&replica.record.executed));
        }
        records
    }

    /// Returns the newest incarnation of a client of which a write is listed here.
    pub fn newest_life(&self, sdc: SdcId) -> Incarnation {
        let lives = self.replicas.values().filter_map(|r| r.record.executed.life(sdc));
        lives.max().unwrap_or_default()
    }

    // ---- what is clean ----

    /// Notes that every replica has what a write has written here.
    #[inline]
    pub(crate) fn on_all(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) {
        if !self.store.survives() {
            return;
        }
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let whole = !replica.is_only_in_sync();
        if let Role::Primary(primary) = &mut replica.role
            && primary.active
            && whole
        {
            primary.clean.insert(unit, BlockSet::touching(at, len));
            self.untold.clean(group);
        }
    }

    /// Tells the unit store which blocks are clean and not in flight again. It is safe to do so
    /// late.
    pub(crate) fn tell_clean(&mut self) {
        while let Some(group) = self.untold.next_clean() {
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

    /// Replaces the unit store's dirty set by the one here and what is in flight.
    pub(crate) fn change_to(&mut self, group: GroupId) {
        if !self.store.survives() {
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
        // Too many for one step, and a crash between two steps would leave too small a set. So
        // everything in the unit store's set stays dirty until the next seal, which is safe.
        for part in list.chunks(UNITS) {
            self.change(group, alloc::vec![Change::Dirty(part.to_vec())]);
        }
        self.change(group, alloc::vec![Change::Base(base)]);
    }
}
