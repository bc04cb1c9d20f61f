//! Indexes of groups: by device, by pair of devices, and by their use by volumes.

use super::Volume;
use crate::group::Group;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{DeviceId, GroupId, UNIT};

/// How volumes use a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Users {
    /// Number of volumes.
    pub volumes: u32,
    /// Their units that the group may come to hold. A volume's units spread evenly over its groups.
    pub units: u64,
}

/// Lists to find groups by. They follow from the groups and volumes of a state.
///
/// Invariant: no list and no entry is empty, and lists are sorted.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct GroupIndex {
    /// The groups of each device.
    by_device: BTreeMap<DeviceId, Vec<GroupId>>,
    /// The groups of each pair of devices, the smaller id first.
    by_pair: BTreeMap<(DeviceId, DeviceId), Vec<GroupId>>,
    /// How volumes use each group.
    users: BTreeMap<GroupId, Users>,
}

impl GroupIndex {
    /// Returns the index of these groups and volumes.
    pub(crate) fn of<'a>(
        groups: &BTreeMap<GroupId, Group>,
        volumes: impl Iterator<Item = &'a Volume>,
    ) -> GroupIndex {
        let mut index = GroupIndex::default();
        groups.iter().for_each(|(id, group)| index.insert(*id, &group.replicas));
        volumes.for_each(|volume| index.insert_volume(volume));
        index
    }

    /// Returns the groups of a device.
    pub(crate) fn of_device(&self, device: DeviceId) -> &[GroupId] {
        self.by_device.get(&device).map_or(&[], |g| g)
    }

    /// Returns the groups that both devices belong to.
    pub(crate) fn of_pair(&self, a: DeviceId, b: DeviceId) -> &[GroupId] {
        self.by_pair.get(&(a.min(b), a.max(b))).map_or(&[], |g| g)
    }

    /// Returns each pair of devices that share groups, with these groups.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&(DeviceId, DeviceId), &Vec<GroupId>)> {
        self.by_pair.iter()
    }

    /// Returns how volumes use a group; `None`: no volume does.
    pub(crate) fn users(&self, group: GroupId) -> Option<&Users> {
        self.users.get(&group)
    }

    /// Returns the groups that volumes use.
    pub(crate) fn used(&self) -> impl Iterator<Item = &GroupId> {
        self.users.keys()
    }

    /// Adds a group.
    pub(crate) fn insert(&mut self, id: GroupId, replicas: &[DeviceId]) {
        for (i, device) in replicas.iter().enumerate() {
            enter(self.by_device.entry(*device).or_default(), id);
            for other in &replicas[i + 1..] {
                let pair = (*device.min(other), *device.max(other));
                enter(self.by_pair.entry(pair).or_default(), id);
            }
        }
    }

    /// Removes a group that has these replicas.
    pub(crate) fn remove(&mut self, id: GroupId, replicas: &[DeviceId]) {
        for (i, device) in replicas.iter().enumerate() {
            leave(&mut self.by_device, *device, id);
            for other in &replicas[i + 1..] {
                leave(&mut self.by_pair, (*device.min(other), *device.max(other)), id);
            }
        }
    }

    /// Adds the groups of a volume.
    pub(crate) fn insert_volume(&mut self, volume: &Volume) {
        let (slots, units) = used(volume);
        for group in slots {
            let group = self.users.entry(group).or_default();
            (group.volumes, group.units) = (group.volumes + 1, group.units + units);
        }
    }

    /// Removes the groups of a volume. Panics if the volume was not added.
    pub(crate) fn remove_volume(&mut self, volume: &Volume) {
        let (slots, units) = used(volume);
        for id in slots {
            let group = self.users.get_mut(&id).expect("its volume was indexed");
            (group.volumes, group.units) = (group.volumes - 1, group.units - units);
            if group.volumes == 0 {
                self.users.remove(&id);
            }
        }
    }
}

/// Adds a group to a sorted list.
fn enter(groups: &mut Vec<GroupId>, id: GroupId) {
    if let Err(place) = groups.binary_search(&id) {
        groups.insert(place, id);
    }
}

/// Removes a group from the list of this key, and the list when it becomes empty.
fn leave<K: Ord>(lists: &mut BTreeMap<K, Vec<GroupId>>, key: K, id: GroupId) {
    let Some(groups) = lists.get_mut(&key) else { return };
    groups.retain(|g| *g != id);
    if groups.is_empty() {
        lists.remove(&key);
    }
}

/// Returns a volume's groups, and how many of its units each of them may hold.
fn used(volume: &Volume) -> (BTreeSet<GroupId>, u64) {
    let slots: BTreeSet<GroupId> = volume.slots.iter().copied().collect();
    let units = (volume.size / u64::from(UNIT)).div_ceil(slots.len().max(1) as u64);
    (slots, units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_each_device_and_pair_until_it_is_removed() {
        let (a, b, c) = (DeviceId(1), DeviceId(2), DeviceId(3));
        let mut index = GroupIndex::default();
        index.insert(GroupId(2), &[b, a]);
        index.insert(GroupId(1), &[a, b, c]);
        index.insert(GroupId(1), &[a, b, c]);
        assert_eq!(index.of_device(a), [GroupId(1), GroupId(2)]);
        assert_eq!(index.of_pair(b, a), index.of_pair(a, b));
        assert_eq!((index.of_pair(a, b).len(), index.of_pair(c, b).len()), (2, 1));
        index.remove(GroupId(1), &[a, b, c]);
        index.remove(GroupId(2), &[b, a]);
        assert_eq!(index, GroupIndex::default());
    }
}
