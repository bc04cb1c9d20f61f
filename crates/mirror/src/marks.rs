//! Metadata for the unit store (rule R5): that of each write, changes of a group's record, and the
//! continuation when such a change is durable.
//!
//! The dirty set in memory and the one in the unit store differ. The one in memory is exact, and
//! counts while this process runs. The one in the unit store is for the time after a crash: it
//! includes what is in flight, and blocks leave it late. A device that does not survive its process
//! has only the first one.
//!
//! Invariant: the unit store's dirty set of a group includes the one in memory.

use crate::history::History;
use crate::jobs::{Jobs, Waiting};
use crate::mirror::Mirror;
use crate::op::Op;
use crate::replica::{Replica, Role};
use alloc::rc::Rc;
use alloc::vec::Vec;
use base::{Epoch, GroupId, Mutant, Time, mutant};
use seam::record::{Dirty, ExecutedList};
use seam::{
    Change, Effects, ExecutedBlocks, Finished, Forgotten, Origin, UnitStore, WriteMetadata,
};

/// Units in one change at most: the unit store takes less than 1 MiB of entries at a time.
const UNITS: usize = 8192;

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

impl ListLengths {
    /// Returns the largest values that [`Mirror::grown`] may return.
    pub fn most(limits: &base::Limits) -> ListLengths {
        let group = limits.executed_group as usize;
        // The bound, operations that were admitted before it was reached, the whole blocks that a
        // replica needs of each of these, and copies.
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
            // The operations that were in flight when the volume was deleted.
            gone: stream,
            client_ops: limits.shard_ops as usize,
            // The limit, and the last operation that was admitted below it.
            client_bytes: limits.shard_bytes as usize + base::UNIT as usize,
            copies: crate::pace::Pace::most(limits) as usize,
        }
    }
}

/// Returns the metadata of a write to a device that survives its process or not. `copied`: the
/// entries that come with another replica's content.
#[inline]
pub(crate) fn metadata(
    op: &Op,
    replica: &Replica,
    survives: bool,
    copied: Option<&Rc<[ExecutedBlocks]>>,
) -> WriteMetadata {
    if !survives || !op.work.changes_data() || mutant::on(Mutant::NoMarks) {
        return WriteMetadata::default();
    }
    let origin = match copied {
        Some(list) => Origin::Copied(list.clone()),
        None if op.client.sdc.0 != 0 => Origin::Client(op.client),
        None => Origin::Unnamed,
    };
    let dirty = !(replica.is_only_in_sync() && mutant::on(Mutant::NoSoloDirty));
    WriteMetadata { dirty, origin }
}

/// Changes a group's record. Nothing waits for it.
pub(crate) fn change(store: &mut impl UnitStore, group: GroupId, changes: Vec<Change>) {
    if store.survives() {
        store.change(None, group, changes);
    }
}

/// Tells the unit store that these blocks of a group are clean.
pub(crate) fn tell_clean(store: &mut impl UnitStore, group: GroupId, clean: &Dirty) {
    let list: Vec<_> = clean.iter().collect();
    for part in list.chunks(UNITS) {
        change(store, group, alloc::vec![Change::Clean(part.to_vec())]);
    }
}

/// Replaces the unit store's dirty set of a group by this one, and its base epoch.
pub(crate) fn set_dirty(store: &mut impl UnitStore, group: GroupId, dirty: &Dirty, base: Epoch) {
    let list: Vec<_> = dirty.iter().collect();
    if list.len() <= UNITS {
        let changes = alloc::vec![Change::CleanAll, Change::Base(base), Change::Dirty(list)];
        return change(store, group, changes);
    }
    // There are too many for one step, and a crash between two steps would leave too small a set.
    // So everything in the unit store's set stays dirty until the next seal, which is safe.
    for part in list.chunks(UNITS) {
        change(store, group, alloc::vec![Change::Dirty(part.to_vec())]);
    }
    change(store, group, alloc::vec![Change::Base(base)]);
}

impl<S: UnitStore> Mirror<S> {
    /// Takes the results of finished work of the unit store. Returns false if there were none.
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
                    Err(_) => self.failures.fail(),
                }
            }
        }
        any
    }

    /// Ends a batch of calls: hands the requested operations to the device.
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
                // Another configuration may be the next one by now, but what is durable counts.
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
            executed: self.replicas.executed_len(),
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
            gone: dirty.filter(|(unit, _)| self.known.is_gone(unit.volume)).count(),
            client_ops: self.ops.load().ops() as usize,
            client_bytes: self.ops.load().bytes() as usize,
            copies: self.copies.running() as usize,
        }
    }

    /// Replaces the unit store's dirty set by the one in memory and what is in flight.
    pub(crate) fn change_to(&mut self, group: GroupId) {
        let Some(replica) = self.replicas.get(group) else { return };
        if self.store.survives() {
            let dirty = replica.dirty_and_in_flight(&self.ops);
            set_dirty(&mut self.store, group, &dirty, replica.record.base);
        }
    }
}
