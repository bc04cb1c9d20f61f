//! The volumes that exist. What is stored of one that is deleted goes (rule R9). What became of one that only lost MDMs knew is
//! not known: its data stays.

use crate::mirror::Mirror;
use crate::replica::{Primary, Role};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{Mutant, Time, VolumeId, mutant};
use core::ops::Range;
use seam::{Effects, Journal, Note};

/// The volumes of a map.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    /// Those that exist.
    pub live: BTreeSet<VolumeId>,
    /// The first id that is not given out.
    pub next: VolumeId,
    /// Ids that MDMs which are lost may have given out: nobody knows what became of these volumes.
    pub unknown: Vec<Range<VolumeId>>,
}

impl Volumes {
    /// True when the volume was deleted: its data may go, and never comes again.
    pub fn is_gone(&self, volume: VolumeId) -> bool {
        volume < self.next
            && !self.live.contains(&volume)
            && !self.unknown.iter().any(|range| range.contains(&volume))
    }
}

impl<J: Journal> Mirror<J> {
    /// The volumes that exist; those that are known not to any more are dropped (rule R9).
    pub fn set_volumes(&mut self, now: Time, volumes: Volumes, out: &mut Effects) {
        self.volumes = volumes;
        let mut stored: Vec<VolumeId> = self.journal.volumes();
        stored.retain(|volume| self.is_gone(*volume));
        for volume in stored {
            self.drop_volume(volume, out);
            self.end_repairs(now, volume, out);
        }
    }

    /// True when the volume was deleted: its units are never stored again.
    pub(crate) fn is_gone(&self, volume: VolumeId) -> bool {
        self.volumes.is_gone(volume) && !mutant::on(Mutant::NoLiveList)
    }

    fn drop_volume(&mut self, volume: VolumeId, out: &mut Effects) {
        for replica in self.replicas.values_mut() {
            replica.record.dirty.drop_volume(volume);
            if let Role::Primary(Primary { sync: Some(sync), .. }) = &mut replica.role {
                sync.todo.drop_volume(volume);
            }
        }
        let bytes = self.journal.drop_volume(volume);
        if bytes > 0 {
            out.note(Note::Dropped { volume, bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_not_gone() {
        let unknown = Vec::from([VolumeId(4)..VolumeId(6), VolumeId(7)..VolumeId(9)]);
        let live = BTreeSet::from([VolumeId(2)]);
        let volumes = Volumes { live, next: VolumeId(11), unknown };
        let gone = (1..30).filter(|v| volumes.is_gone(VolumeId(*v)));
        assert_eq!(gone.collect::<Vec<u32>>(), [1, 3, 6, 9, 10]);
    }
}
