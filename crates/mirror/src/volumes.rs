//! The volumes that exist. The data of a deleted volume is dropped (rule R9). The data of a volume
//! that only lost MDMs knew is kept, because it is not known whether the volume was deleted.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::VolumeId;
use core::ops::Range;

/// The volumes of a map.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    /// Volumes that exist.
    pub live: BTreeSet<VolumeId>,
    /// The first id that has not been assigned.
    pub next: VolumeId,
    /// Ids that lost MDMs may have assigned. It is not known whether these volumes still exist.
    pub unknown: Vec<Range<VolumeId>>,
}

impl Volumes {
    /// Returns true if the volume was deleted. Its data may be dropped, and is never stored again.
    pub fn is_gone(&self, volume: VolumeId) -> bool {
        volume < self.next
            && !self.live.contains(&volume)
            && !self.unknown.iter().any(|range| range.contains(&volume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_volume_does_not_count_as_deleted() {
        let unknown = Vec::from([VolumeId(4)..VolumeId(6), VolumeId(7)..VolumeId(9)]);
        let live = BTreeSet::from([VolumeId(2)]);
        let volumes = Volumes { live, next: VolumeId(11), unknown };
        let gone = (1..30).filter(|v| volumes.is_gone(VolumeId(*v)));
        assert_eq!(gone.collect::<Vec<u32>>(), [1, 3, 6, 9, 10]);
    }
}
