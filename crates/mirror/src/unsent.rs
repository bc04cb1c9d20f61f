//! News that this shard passes on with its next beacons. The secondaries get the commit points that
//! no write has carried to them. The unit store learns which blocks are clean. Both may safely come
//! late.

use crate::marks;
use crate::ops::Ops;
use crate::replicas::Replicas;
use crate::window::Windows;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::GroupId;
use seam::{Buf, Effects, UnitStore};
use wire::message::Commit;

/// Groups with something to tell.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    commits: Vec<GroupId>,
    clean: BTreeSet<GroupId>,
}

impl Unsent {
    /// Records that the secondaries may not know this group's commit point.
    pub(crate) fn commit(&mut self, group: GroupId) {
        self.commits.push(group);
    }

    /// Sends the secondaries the commit points that no write has carried to them.
    pub(crate) fn tell_commits(
        &mut self,
        replicas: &mut Replicas,
        windows: &Windows,
        out: &mut Effects,
    ) {
        for group in core::mem::take(&mut self.commits) {
            let Some(replica) = replicas.get_mut(group) else { continue };
            let needed = replica.needed();
            let Some(primary) = replica.primary() else { continue };
            let Some(commit) = primary.tell_commit() else { continue };
            let commit = Commit { group, epoch: replica.config.epoch, commit };
            for device in replica.config.devices(needed) {
                windows.send_frame(device, commit, Buf::EMPTY, out);
            }
        }
    }

    /// Records that the unit store does not know all clean blocks of this group.
    #[inline]
    pub(crate) fn clean(&mut self, group: GroupId) {
        self.clean.insert(group);
    }

    /// Tells the unit store which blocks are clean and not in flight again.
    pub(crate) fn tell_clean(
        &mut self,
        replicas: &mut Replicas,
        ops: &Ops,
        store: &mut impl UnitStore,
    ) {
        while let Some(group) = self.clean.pop_first() {
            let Some(replica) = replicas.get_mut(group) else { continue };
            marks::tell_clean(store, group, &replica.take_clean(ops));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::Role;
    use crate::testing::{GROUP, Rig, UNIT, blocks, op, write};
    use base::Lsn;
    use seam::Change;
    use wire::Frame;

    type Case = fn(&mut Rig);

    #[test]
    fn secondaries_learn_of_a_commit_point_that_no_write_has_carried() {
        type Row = (&'static str, fn() -> Rig, u64, u64, Case, &'static str);
        let rows: &[Row] = &[
            ("news", || Rig::leading(&[2, 3], &[]), 5, 4, |_| {}, "Commit to 2, Commit to 3"),
            ("a write has carried it", || Rig::leading(&[2], &[]), 5, 5, |_| {}, ""),
            ("nothing", || Rig::leading(&[2], &[]), 0, 0, |_| {}, ""),
            ("a joiner needs none", || Rig::filling(&[2], 4), 5, 4, |_| {}, "Commit to 2"),
            ("no secondary", || Rig::leading(&[], &[]), 5, 4, |_| {}, ""),
            (
                "it leads no more",
                || Rig::leading(&[2], &[]),
                5,
                4,
                |r| r.replica().role = Role::Out,
                "",
            ),
        ];
        for (name, make, commit, sent, change, left) in rows {
            let mut rig = make();
            (rig.primary().commit, rig.primary().commit_sent) = (Lsn(*commit), Lsn(*sent));
            rig.primary().commit_queued = true;
            change(&mut rig);
            rig.shard.unsent.commit(GROUP);
            for expected in [*left, ""] {
                let Rig { shard, out, .. } = &mut rig;
                shard.unsent.tell_commits(&mut shard.replicas, &shard.windows, out);
                let frames = rig.frames();
                let texts: Vec<_> =
                    frames.iter().map(|(to, f, _)| crate::testing::text(*to, f)).collect();
                assert_eq!(texts.join(", "), expected, "{name}");
                let news = |f: &Frame| matches!(f, Frame::Commit(m) if m.commit == Lsn(*commit));
                assert!(frames.iter().all(|(_, frame, _)| news(frame)), "{name}");
            }
        }
    }

    /// Blocks that are in flight again may differ again.
    #[test]
    fn the_unit_store_learns_of_clean_blocks_that_are_not_in_flight() {
        for (in_flight, expected) in [(false, &[blocks(0..3)][..]), (true, &[blocks(1..3)])] {
            let mut rig = Rig::leading(&[2], &[]);
            rig.primary().clean.insert(UNIT, blocks(0..3));
            if in_flight {
                rig.send(op(write()), &[2]);
            }
            rig.shard.unsent.clean(GROUP);
            rig.shard.tell_clean();
            rig.shard.tell_clean();
            let told = rig.shard.store.changes.iter().flat_map(|(_, changes)| changes);
            let told: Vec<_> = told
                .map(|change| match change {
                    Change::Clean(list) => list[0].1,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(told, expected);
        }
    }
}
