//! What devices remember of their groups. It shows which replica has every acknowledged write, and
//! the MDM decides by it during a recovery.

use base::Epoch;
use seam::ReplicaRecord;

/// What a device remembers of a group that helps to find the replica with every acknowledged write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evidence {
    /// The highest epoch in which it took part; 0: in none.
    pub acted: Epoch,
    /// It was a joiner in that epoch. It may have been sealed and then have missed writes that the
    /// primary acknowledged without it.
    pub joiner: bool,
    /// The last epoch in which it was equal to other replicas, by a seal.
    pub base: Epoch,
}

impl From<&ReplicaRecord> for Evidence {
    fn from(r: &ReplicaRecord) -> Evidence {
        Evidence { acted: r.acted, joiner: r.joiner, base: r.base }
    }
}
