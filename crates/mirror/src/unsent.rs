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
