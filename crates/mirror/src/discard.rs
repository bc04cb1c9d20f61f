//! Deletes a replica after it left the group (rule R11).
//!
//! Invariants:
//! - Content is deleted only after this device has entered a configuration of the group that does
//!   not name it and that an MDM has sent: another server may be wrong.
//! - A crash meanwhile leaves all of the content or none. The first map of the next incarnation
//!   says again that it has to be deleted.
//! - The epoch in which the replica acted is kept. If the device becomes a replica of the group
//!   again, it acts only in a newer epoch (R2).

use crate::configuration::Epochs;
use crate::jobs::AfterChange;
use crate::peers::Peers;
use crate::shard::Shard;
use alloc::vec;
use base::{Epoch, GroupId, Mutant, Time, mutant};
use seam::{Change, Effects, Note, UnitStore};

impl Epochs {
    /// Deletes the content of a group to which this device does not belong. The deletion counts as
    /// a job, so nothing else begins in the group until it is durable.
    pub(crate) fn discard<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        let record = &replica.record;
        let marked = !record.dirty.is_empty() || record.all_dirty || record.base > Epoch(0);
        let empty = shard.store.is_empty(group) && !marked;
        if empty || mutant::on(Mutant::KeepForeign) {
            return;
        }
        let left = !replica.config.replicas.contains(&shard.me);
        let left = left || mutant::on(Mutant::WipeReplica);
        assert!(left, "{group}: content is deleted after this device left the group");
        assert!(replica.local == 0 && replica.next.is_none(), "{group}: a deletion runs alone");
        replica.record.clean();
        replica.record.executed.clear();
        replica.record.base = Epoch(0);
        replica.local += 1;
        out.note(Note::Discarded { group });
        shard.jobs.change_first(
            &mut shard.store,
            now,
            group,
            vec![Change::Wipe],
            AfterChange::Discard,
        );
    }

    /// Continues after the deletion is durable.
    pub(crate) fn discarded<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        peers: &mut Peers,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        assert!(replica.local > 0, "a deletion counts as a job");
        replica.local -= 1;
        self.enter(shard, peers, now, group, out);
    }

    /// Enters a configuration again after an MDM has confirmed what only another server had said:
    /// now content may be deleted.
    pub(crate) fn enter_again<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        peers: &mut Peers,
        now: Time,
        group: GroupId,
        out: &mut Effects,
    ) {
        let Some(replica) = shard.replicas.get_mut(group) else { return };
        if replica.next.is_none() && !replica.config.replicas.contains(&shard.me) {
            replica.next = Some((replica.config.clone(), replica.map));
            self.enter(shard, peers, now, group, out);
        }
    }
}
