//! Which device is the primary of each group, as far as this client knows: the map says so, or a
//! server that knows a newer configuration has named it.
//!
//! Invariant: a server's word counts only until the map names a primary in the same epoch or a
//! newer one, and at most until the map is as new as the server's.

use super::topology::{Leader, Topology};
use base::{DeviceId, Epoch, GroupId, Map, MapVersion};

/// A primary that a server has named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hint {
    pub(super) device: DeviceId,
    pub(super) epoch: Epoch,
    /// The version of the server's map.
    pub(super) map: MapVersion,
}

/// The primaries that servers have named and no map has confirmed.
#[derive(Debug, Default)]
pub(super) struct Routes {
    hints: Map<GroupId, Hint>,
}

impl Routes {
    /// Returns the primary of the group.
    pub(super) fn leader(&self, group: GroupId, map: &impl Topology) -> Leader {
        let known = map.leader(group);
        match (self.hints.get(&group), known) {
            (Some(hint), Leader::At(_, epoch)) if hint.epoch <= epoch => known,
            (Some(hint), Leader::At(..) | Leader::Nobody) => Leader::At(hint.device, hint.epoch),
            _ => known,
        }
    }

    /// Records that a server has named the primary of the group, if nothing newer is known.
    pub(super) fn learn(&mut self, group: GroupId, hint: Hint) {
        let held = self.hints.entry(group).or_insert(hint);
        if held.epoch < hint.epoch {
            *held = hint;
        }
    }

    /// Records that this device was asked as the primary in this epoch, and says that it is not.
    pub(super) fn denies(&mut self, group: GroupId, device: DeviceId, epoch: Epoch) {
        if self.hints.get(&group).is_some_and(|h| (h.device, h.epoch) == (device, epoch)) {
            self.hints.remove(&group);
        }
    }

    /// Drops the named primaries that a newer map makes obsolete.
    pub(super) fn take_map(&mut self, map: &impl Topology) {
        self.hints.retain(|group, hint| {
            let newer = matches!(map.leader(*group), Leader::At(_, epoch) if epoch >= hint.epoch);
            hint.map > map.version() && !newer
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::topology::Usable;
    use super::*;
    use base::{UnitKey, VolumeId};

    /// A map of one group.
    struct Known(MapVersion, Leader);

    impl Topology for Known {
        fn version(&self) -> MapVersion {
            self.0
        }

        fn volume(&self, _: VolumeId) -> Option<Usable> {
            None
        }

        fn group_of(&self, _: UnitKey) -> Option<GroupId> {
            None
        }

        fn leader(&self, _: GroupId) -> Leader {
            self.1
        }
    }

    #[test]
    fn a_server_is_believed_until_a_map_knows_as_much() {
        let (group, at) = (GroupId(1), |device, epoch| Leader::At(DeviceId(device), Epoch(epoch)));
        let map = |version, leader| Known(MapVersion(version), leader);
        let hint = Hint { device: DeviceId(2), epoch: Epoch(5), map: MapVersion(7) };
        for (leader, expected) in [
            (at(1, 4), at(2, 5)),
            (at(1, 5), at(1, 5)),
            (Leader::Nobody, at(2, 5)),
            (Leader::Lost, Leader::Lost),
        ] {
            let mut routes = Routes::default();
            routes.learn(group, hint);
            routes.learn(group, Hint { device: DeviceId(3), epoch: Epoch(4), ..hint });
            assert_eq!(routes.leader(group, &map(6, leader)), expected);
        }
        for (version, leader, stays) in
            [(6, at(1, 4), true), (6, at(1, 5), false), (7, at(1, 4), false)]
        {
            let mut routes = Routes::default();
            routes.learn(group, hint);
            routes.take_map(&map(version, leader));
            assert_eq!(routes.leader(group, &map(6, at(1, 4))) == at(2, 5), stays);
        }
        let mut routes = Routes::default();
        routes.learn(group, hint);
        routes.denies(group, DeviceId(2), Epoch(4));
        assert_eq!(routes.leader(group, &map(6, at(1, 4))), at(2, 5), "of an older epoch");
        routes.denies(group, DeviceId(2), Epoch(5));
        assert_eq!(routes.leader(group, &map(6, at(1, 4))), at(1, 4));
    }
}
