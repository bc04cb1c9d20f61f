//! What this device knows of the cluster: the newest map that it has taken over, the volumes and
//! the other devices in it, and which configurations came only from another server.

use crate::lease::PeerState;
use crate::op::Caller;
use crate::volumes::Volumes;
use alloc::collections::{BTreeMap, BTreeSet};
use base::{DeviceId, Epoch, GroupId, Incarnation, MapVersion, Mutant, VolumeId, mutant};
use wire::Status;
use wire::message::{Reply, Sender};

/// What this device knows of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// This incarnation of the device.
    incarnation: Incarnation,
    /// The newest map.
    map: MapVersion,
    /// The map in which the MDM named this incarnation.
    named_at: MapVersion,
    /// What the map says of other devices.
    peers: BTreeMap<DeviceId, PeerState>,
    /// Volumes that exist, and ids of volumes that may exist.
    volumes: Volumes,
    /// Groups whose newest configuration came from another server, and no MDM has confirmed it yet.
    unsure: BTreeSet<GroupId>,
}

impl Known {
    /// Creates the knowledge of an incarnation that knows no map yet.
    pub(crate) fn new(incarnation: Incarnation) -> Known {
        Known { incarnation, ..Known::default() }
    }

    /// Returns the answer that a client's epoch is old, with the epoch that is known here and its
    /// primary. So the client can continue without an MDM.
    pub(crate) fn stale(&self, to: Caller, epoch: Epoch, leader: Option<DeviceId>) -> Reply {
        let reply = Reply::new(to.op, to.group, Status::Stale, self.map);
        Reply { epoch, leader, ..reply }
    }

    /// Returns the version of the newest map; 0 before the first.
    #[inline]
    pub(crate) fn map(&self) -> MapVersion {
        self.map
    }

    /// Returns the description of this device for frames to other devices.
    #[inline]
    pub(crate) fn sender(&self) -> Sender {
        Sender { incarnation: self.incarnation, map: self.map }
    }

    /// Returns the description of this device for a grant. Before the first map it names the
    /// version in which this incarnation was named: the other device may not know that an earlier
    /// one was the primary of its groups.
    pub(crate) fn granter(&self) -> Sender {
        Sender { incarnation: self.incarnation, map: self.map.max(self.named_at) }
    }

    /// Records that the MDM named this incarnation in this map.
    pub(crate) fn named_at(&mut self, map: MapVersion) {
        self.named_at = map;
    }

    /// Takes over a newer map.
    pub(crate) fn take_map(&mut self, map: MapVersion, peers: BTreeMap<DeviceId, PeerState>) {
        (self.map, self.peers) = (map, peers);
    }

    /// Takes over the list of volumes that exist.
    pub(crate) fn take_volumes(&mut self, volumes: Volumes) {
        self.volumes = volumes;
    }

    /// Returns true if the volume was deleted: its units are never stored again (R9).
    #[inline]
    pub(crate) fn is_gone(&self, volume: VolumeId) -> bool {
        self.volumes.is_gone(volume) && !mutant::on(Mutant::NoLiveList)
    }

    /// Returns what the map says of another device.
    pub(crate) fn peer(&self, device: DeviceId) -> Option<PeerState> {
        self.peers.get(&device).copied()
    }

    /// Returns false for an incarnation that is newer than the one in the map: it is not believed.
    pub(crate) fn knows_life(&self, device: DeviceId, life: Incarnation) -> bool {
        self.peers.get(&device).is_none_or(|peer| life <= peer.incarnation)
    }

    /// Records whether the group's newest configuration comes from an MDM, or only from another
    /// server.
    pub(crate) fn heard_of(&mut self, group: GroupId, told_by_mdm: bool) {
        match told_by_mdm {
            true => self.unsure.remove(&group),
            false => self.unsure.insert(group),
        };
    }

    /// Returns true if no MDM has confirmed the group's newest configuration.
    pub(crate) fn is_unsure(&self, group: GroupId) -> bool {
        self.unsure.contains(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_mdm_says_of_a_device_or_a_group_is_sure() {
        let (device, group, mut known) = (DeviceId(2), GroupId(1), Known::default());
        assert!(known.knows_life(device, Incarnation(9)), "no map names the device");
        known.named_at(MapVersion(3));
        assert_eq!((known.map(), known.granter().map), (MapVersion(0), MapVersion(3)));
        let peer = PeerState { incarnation: Incarnation(4), dead: false };
        known.take_map(MapVersion(5), [(device, peer)].into());
        assert_eq!((known.granter().map, known.peer(device)), (MapVersion(5), Some(peer)));
        let lives = [3, 4, 5].map(|life| known.knows_life(device, Incarnation(life)));
        assert_eq!(lives, [true, true, false]);
        known.heard_of(group, false);
        assert!(known.is_unsure(group));
        known.heard_of(group, true);
        assert!(!known.is_unsure(group));
    }
}
