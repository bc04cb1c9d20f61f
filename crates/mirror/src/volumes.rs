//! The volumes that exist. The data of a deleted volume is dropped (rule R9). The data of a volume
//! that only lost MDMs knew is kept, because it is not known whether the volume was deleted.

use crate::flows::Flows;
use crate::shard::Shard;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{Time, VolumeId};
use core::ops::Range;
use seam::{Effects, Note, UnitStore};

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

impl Flows {
    /// Sets the volumes that exist, and drops the data of those that were deleted (rule R9).
    pub(crate) fn set_volumes<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        volumes: Volumes,
        out: &mut Effects,
    ) {
        shard.known.take_volumes(volumes);
        let mut stored: Vec<VolumeId> = shard.store.volumes();
        stored.retain(|volume| shard.known.is_gone(*volume));
        for volume in stored {
            shard.replicas.drop_volume(volume);
            let bytes = shard.store.drop_volume(volume);
            if bytes > 0 {
                out.note(Note::Dropped { volume, bytes });
            }
            self.repairs.end_repairs(shard, now, volume, out);
            self.pump(shard, now, out);
        }
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

    #[test]
    fn the_data_of_deleted_volumes_is_dropped_and_no_other() {
        use crate::testing::{GROUP, NOW, Rig, UNIT, blocks};
        let volume = UNIT.volume;
        let next = VolumeId(5);
        let deleted = Volumes { next, ..Volumes::default() };
        let live = Volumes { live: [volume].into(), next, ..Volumes::default() };
        let unknown = Volumes { unknown: [volume..next].into(), next, ..Volumes::default() };
        for (name, volumes, dropped) in [
            ("deleted", deleted, true),
            ("it exists", live, false),
            ("it may exist", unknown, false),
            ("not yet assigned", Volumes::default(), false),
        ] {
            let mut rig = Rig::filling(&[2], 4);
            rig.shard.store.valid = blocks(0..3);
            rig.replica().record.dirty.insert(UNIT, blocks(0..1));
            rig.sync().todo.insert(UNIT, blocks(0..1));
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.set_volumes(shard, NOW, volumes, out);
            rig.left();
            assert_eq!(rig.shard.store.valid.is_empty(), dropped, "{name}");
            assert_eq!(rig.replica().record.dirty.is_empty(), dropped, "{name}");
            assert_eq!(rig.sync().todo.is_empty(), dropped, "{name}");
            let note = Note::Dropped { volume, bytes: 3 * u64::from(base::BLOCK) };
            assert_eq!(rig.notes.contains(&note), dropped, "{name}");
            assert_eq!(rig.shard.replicas.view(GROUP).map(|view| view.active), Some(true));
        }
    }

    #[test]
    fn reads_of_a_deleted_volume_wait_for_no_other_replica() {
        use crate::testing::{NOW, Rig, SECOND, UNIT, blocks, op, read};
        let mut rig = Rig::leading(&[2], &[]);
        rig.shard.store.valid = blocks(0..1);
        let key = rig.hold(op(read()));
        rig.op(key).local = crate::op::Local::Asking;
        rig.flows.repairs.begin(key, SECOND, (0, 1));
        let volumes = Volumes { next: VolumeId(UNIT.volume.0 + 1), ..Volumes::default() };
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.set_volumes(shard, NOW, volumes, out);
        assert_eq!((&rig.left()[..], rig.is_over(key)), ("NoVolume", true));
    }
}
