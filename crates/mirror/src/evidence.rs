//! What a device can tell about who has every write, for MDMs that were lost and begin anew.

use crate::mirror::Mirror;
use crate::replica::Replica;
use alloc::vec::Vec;
use base::{Epoch, GroupId};
use seam::Journal;

impl<J: Journal> Mirror<J> {
    /// Of each group: the highest epoch in which this device took part, and the last one at whose seal it was equal to the
    /// others in sync.
    pub fn evidence(&self) -> Vec<(GroupId, Epoch, Epoch)> {
        let one = |(id, r): (GroupId, &Replica)| (id, r.record.acted, r.record.base);
        let mut all: Vec<(GroupId, Epoch, Epoch)> = self.replicas.iter().map(one).collect();
        all.sort_unstable();
        all
    }

    /// The highest epoch in which this device took part in the group; 0: in none.
    pub fn acted(&self, group: GroupId) -> Epoch {
        self.replicas.get(group).map_or(Epoch(0), |r| r.record.acted)
    }
}
