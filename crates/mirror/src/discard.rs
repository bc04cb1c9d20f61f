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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::Role;
    use crate::testing::{GROUP, ME, NOW, Rig, SECOND, UNIT, blocks};

    /// Creates a device that has left the group.
    fn left() -> Rig {
        let mut rig = Rig::leading(&[2], &[]);
        let replica = rig.replica();
        replica.role = Role::Out;
        replica.config.replicas.retain(|device| *device != ME);
        (replica.config.in_sync, replica.config.primary) = ([SECOND].into(), Some(SECOND));
        replica.record.acted = Epoch(3);
        rig
    }

    fn discard(rig: &mut Rig) {
        let Rig { shard, flows, out, .. } = rig;
        flows.epochs.discard(shard, NOW, GROUP, out);
    }

    #[test]
    fn what_a_replica_that_left_has_is_deleted_except_its_epoch() {
        type Row = (&'static str, fn(&mut Rig), bool);
        let rows: &[Row] = &[
            ("nothing", |_| {}, false),
            ("content", |r| r.shard.store.valid = blocks(0..1), true),
            ("dirty blocks", |r| r.replica().record.dirty.insert(UNIT, blocks(0..1)), true),
            ("all is dirty", |r| r.replica().record.all_dirty = true, true),
            ("it was equal once", |r| r.replica().record.base = Epoch(1), true),
        ];
        for (name, change, deletes) in rows {
            let mut rig = left();
            change(&mut rig);
            discard(&mut rig);
            let changes = &rig.shard.store.changes;
            assert_eq!(changes.len(), usize::from(*deletes), "{name}");
            assert!(
                changes.iter().all(
                    |(token, changes)| token.is_some() && matches!(changes[..], [Change::Wipe])
                ),
                "{name}"
            );
            let Rig { shard, .. } = &rig;
            let replica = shard.replicas.of(GROUP);
            assert_eq!(replica.local, u32::from(*deletes), "{name}: nothing else begins");
            assert!(replica.record.is_vacant(), "{name}");
            assert_eq!(replica.record.acted, Epoch(3), "{name}");
        }
    }

    #[test]
    #[should_panic = "after this device left"]
    fn a_replica_of_the_group_is_not_deleted() {
        let mut rig = Rig::leading(&[2], &[]);
        rig.shard.store.valid = blocks(0..1);
        discard(&mut rig);
    }

    #[test]
    #[should_panic = "runs alone"]
    fn no_job_runs_while_content_is_deleted() {
        let mut rig = left();
        rig.shard.store.valid = blocks(0..1);
        rig.replica().local = 1;
        discard(&mut rig);
    }

    /// A configuration that came only from another server deletes nothing until an MDM confirms it.
    #[test]
    fn a_group_is_left_for_good_when_an_mdm_says_so() {
        type Row = (&'static str, fn() -> Rig, fn(&mut Rig), bool);
        let rows: &[Row] = &[
            ("it has left", left, |_| {}, true),
            ("it is a replica", || Rig::leading(&[2], &[]), |_| {}, false),
            ("the next configuration is coming", left, Rig::end_soon, false),
        ];
        for (name, make, change, deletes) in rows {
            let mut rig = make();
            rig.shard.store.valid = blocks(0..1);
            change(&mut rig);
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.epochs.enter_again(shard, &mut flows.peers, NOW, GROUP, out);
            assert_eq!(rig.shard.store.changes.len(), usize::from(*deletes), "{name}");
            assert_eq!(rig.replica().local, u32::from(*deletes), "{name}");
        }
    }

    #[test]
    fn the_next_configuration_is_entered_when_the_deletion_is_durable() {
        let mut rig = left();
        rig.replica().local = 1;
        rig.end_soon();
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.epochs.discarded(shard, &mut flows.peers, NOW, GROUP, out);
        let replica = rig.replica();
        assert_eq!((replica.local, replica.config.epoch), (0, Epoch(5)));
        assert!(replica.next.is_none());
    }
}
