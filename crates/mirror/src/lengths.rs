//! The lengths of the lists of a device that clients, peers or time make longer, and their bounds.

use crate::history::History;
use crate::mirror::Mirror;
use crate::replica::Role;
use base::Limits;
use seam::record::ExecutedList;
use seam::{Forgotten, UnitStore};

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
    /// Units in dirty sets that belong to volumes that exist.
    pub dirty: usize,
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
    /// Returns the largest values that [`Mirror::grown`] may return, if all volumes together have
    /// this many units.
    pub fn most(limits: &Limits, units: usize) -> ListLengths {
        let group = limits.executed_group as usize;
        // The sum of four parts: the bound, the operations that were admitted before it was
        // reached, the whole blocks that a replica needs of each of these, and copies.
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
            // Each operation brings the commit point, and writes up to it are not uncertain any
            // more. Before its seal a secondary keeps all writes, up to a bound of its own.
            uncertain_in_sync: stream.max(crate::secondary::UNCERTAIN_MAX),
            stream,
            in_flight: crate::window::Windows::most(limits) as usize,
            dirty: units,
            // The operations that were in flight when the volume was deleted.
            gone: stream,
            client_ops: limits.shard_ops as usize,
            // The limit, and the last operation that was admitted below it.
            client_bytes: limits.shard_bytes as usize + base::UNIT as usize,
            copies: crate::pace::Pace::most(limits) as usize,
        }
    }
}

impl<S: UnitStore> Mirror<S> {
    /// Returns the lengths of lists of this device, for comparison with their bounds.
    pub fn grown(&self) -> ListLengths {
        let lists = || self.shard.replicas.values().map(|r| &r.record.executed);
        let most = |of: &dyn Fn(&Role) -> usize| {
            self.shard.replicas.values().map(|r| of(&r.role)).max().unwrap_or(0)
        };
        let uncertain = |joiner| {
            most(&|role| match role {
                Role::Secondary(s) if s.is_joiner() == joiner => s.uncertain().count(),
                _ => 0,
            })
        };
        let dirty = |gone| {
            let all = self.shard.replicas.values().flat_map(|r| r.record.dirty.iter());
            all.filter(|(unit, _)| self.shard.known.is_gone(unit.volume) == gone).count()
        };
        ListLengths {
            executed: self.shard.replicas.executed_len(),
            executed_group: lists().map(ExecutedList::len).max().unwrap_or(0),
            executed_client: lists().map(ExecutedList::widest).max().unwrap_or(0),
            forgotten: self.shard.history.forgotten().len(),
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
            in_flight: self.shard.windows.most_flying() as usize,
            dirty: dirty(false),
            gone: dirty(true),
            client_ops: self.shard.ops.load().ops() as usize,
            client_bytes: self.shard.ops.load().bytes() as usize,
            copies: self.flows.peers.copies.running() as usize,
        }
    }
}
