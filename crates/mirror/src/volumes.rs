//! The volumes that exist. What is stored of one that is deleted goes (rule R9).

use crate::mirror::Mirror;
use crate::replica::{Primary, Role};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{Mutant, Time, VolumeId, mutant};
use seam::{Effects, Journal, Note};

impl<J: Journal> Mirror<J> {
    /// The volumes that exist; those that don't any more are dropped (rule R9).
    pub fn set_volumes(
        &mut self,
        now: Time,
        live: BTreeSet<VolumeId>,
        next: VolumeId,
        out: &mut Effects,
    ) {
        self.volumes = (live, next);
        let mut stored: Vec<VolumeId> = self.journal.volumes();
        stored.retain(|volume| self.is_gone(*volume));
        for volume in stored {
            self.drop_volume(volume, out);
            self.end_repairs(now, volume, out);
        }
    }

    /// True when the volume was deleted: its units are never stored again.
    pub(crate) fn is_gone(&self, volume: VolumeId) -> bool {
        volume < self.volumes.1
            && !self.volumes.0.contains(&volume)
            && !mutant::on(Mutant::NoLiveList)
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
