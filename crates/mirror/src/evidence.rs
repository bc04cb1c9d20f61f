//! What a device remembers that shows which replica has every acknowledged write. MDMs that lost
//! their logs decide by it during a recovery.

use crate::mirror::Mirror;
use crate::replica::Replica;
use alloc::vec::Vec;
use base::{Epoch, GroupId};
use seam::{ReplicaRecord, UnitStore};

/// What a device remembers of a group that helps to find the replica with every acknowledged write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evidence {
    /// The highest epoch in which it took part; 0: in none.
    pub acted: Epoch,
    /// It was a joiner in that epoch. It may have been sealed and then have missed writes that the
    /// primary acknowledged without it.
    pub joiner: bool,
    /// The last epoch at whose seal it was equal to others.
    pub base: Epoch,
}

impl From<&ReplicaRecord> for Evidence {
    fn from(r: &ReplicaRecord) -> Evidence {
        Evidence { acted: r.acted, joiner: r.joiner, base: r.base }
    }
}

impl<S: UnitStore> Mirror<S> {
    /// Returns what this device remembers of each group, in order of the groups.
    pub fn evidence(&self) -> Vec<(GroupId, Evidence)> {
        let one = |(id, r): (GroupId, &Replica)| (id, Evidence::from(&r.record));
        let mut all: Vec<(GroupId, Evidence)> = self.replicas.iter().map(one).collect();
        all.sort_unstable();
        all
    }

    /// Returns the highest epoch in which this device took part in the group; 0: in none.
    pub fn acted(&self, group: GroupId) -> Epoch {
        self.replicas.get(group).map_or(Epoch(0), |r| r.record.acted)
    }
}
