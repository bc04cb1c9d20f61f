//! What a device remembers that shows which replica has every acknowledged write. MDMs that lost
//! their logs decide by it during a recovery.

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
    /// The last epoch at whose seal it was equal to others.
    pub base: Epoch,
}

impl From<&ReplicaRecord> for Evidence {
    fn from(r: &ReplicaRecord) -> Evidence {
        Evidence { acted: r.acted, joiner: r.joiner, base: r.base }
    }
}
