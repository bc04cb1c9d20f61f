//! Jobs of a world that change more than blocks: records of groups, and drops of volumes.

use super::model::Unit;
use super::world::{Ask, Pending, World};
use base::{BlockSet, Epoch, GroupId, UnitKey, VolumeId};
use seam::{Change, UnitStore};

impl World {
    pub(super) fn change(&mut self, group: GroupId) {
        if self.is_busy(group) {
            return;
        }
        let record = self.model.record(group).clone();
        let epoch = Epoch(record.acted.0 + 1);
        let some: Vec<(UnitKey, BlockSet)> = record.dirty.into_iter().take(1).collect();
        let change = match self.prng.below(9) {
            0 => Change::Wipe,
            1 => Change::CleanAll,
            2 => Change::Executed(Vec::new()),
            3 => Change::Base(epoch),
            4 | 5 => Change::Clean(some),
            6 => Change::ActedAsJoiner(epoch),
            _ => Change::Acted(epoch),
        };
        self.start_change(group, change);
    }

    /// Wipes a group, on which no job may run.
    pub(crate) fn wipe(&mut self, group: GroupId) {
        assert!(!self.is_busy(group));
        self.start_change(group, Change::Wipe);
    }

    fn start_change(&mut self, group: GroupId, change: Change) {
        let token = self.insert(group, UnitKey::default(), Ask::Change(change.clone()));
        self.store.as_mut().expect("mounted").change(Some(token), group, vec![change]);
    }

    pub(super) fn drop_volume(&mut self) {
        let volume = VolumeId(self.volume);
        if self.pending.values().any(|p| p.unit.volume == volume || p.unit.volume.0 == 0) {
            return; // another test covers jobs on a volume that is dropped
        }
        self.volume += 1;
        self.drops.push((volume, self.next + 1));
        let store = self.store.as_mut().expect("mounted");
        let bytes = store.drop_volume(volume);
        let of = |((_, u), _): &(&(GroupId, UnitKey), &Unit)| u.volume == volume;
        let slots: u64 = self.model.units.iter().filter(of).map(|(_, u)| u.slots()).sum();
        assert_eq!(bytes, slots * (64 << 10));
        assert!(!store.volumes().contains(&volume));
    }

    /// Notes that drops are durable: a job that started after them, and had a record, is durable.
    pub(super) fn drops_are_durable(&mut self, token: u64, p: &Pending) {
        let recorded = matches!(&p.ask, Ask::Write { stamp, .. } if *stamp != 0);
        if recorded {
            let gone: Vec<VolumeId> =
                self.drops.iter().filter(|(_, t)| *t <= token).map(|(v, _)| *v).collect();
            self.drops.retain(|(_, t)| *t > token);
            gone.into_iter().for_each(|v| self.forget(v));
        }
    }
}
