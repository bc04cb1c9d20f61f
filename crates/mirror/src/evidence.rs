//! What a device can tell about who has every write, for MDMs that were lost and begin anew.

use crate::mirror::Mirror;
use crate::replica::Replica;
use alloc::vec::Vec;
use base::{Epoch, GroupId};
use seam::{GroupRecord, Journal};

/// What a device remembers of a group that says who has every write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evidence {
    /// The highest epoch in which it took part; 0: in none.
    pub acted: Epoch,
    /// In that one it was a joiner. It may have been sealed, and then have missed what its leader acknowledged without it.
    pub joiner: bool,
    /// The last epoch at whose seal it was equal to others.
    pub base: Epoch,
}

impl From<&GroupRecord> for Evidence {
    fn from(r: &GroupRecord) -> Evidence {
        Evidence { acted: r.acted, joiner: r.joiner, base: r.base }
    }
}

impl<J: Journal> Mirror<J> {
    /// What this device remembers of each group, in order.
    pub fn evidence(&self) -> Vec<(GroupId, Evidence)> {
        let one = |(id, r): (GroupId, &Replica)| {
            let (acted, joiner, base) = (r.record.acted, r.record.joiner, r.record.base);
            (id, Evidence { acted, joiner, base })
        };
        let mut all: Vec<(GroupId, Evidence)> = self.replicas.iter().map(one).collect();
        all.sort_unstable();
        all
    }

    /// The highest epoch in which this device took part in the group; 0: in none.
    pub fn acted(&self, group: GroupId) -> Epoch {
        self.replicas.get(group).map_or(Epoch(0), |r| r.record.acted)
    }
}
