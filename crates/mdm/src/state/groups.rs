//! Commands on groups, which primaries propose and the healer plans, and the indexes of groups by
//! device and volume.

use super::{Edits, State, Users, Volume};
use crate::command;
use crate::group::{Doubt, Group};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Epoch, GroupId, UNIT};
use wire::control::Intent;

impl State {
    pub(super) fn suspect(&self, c: &command::Suspect) -> Edits {
        let device = DeviceId(c.device);
        let suspected = |group: &mut Group| group.suspected(device);
        self.as_primary(c.by, c.incarnation, device, suspected)
    }

    pub(super) fn join(&self, c: &command::Join) -> Edits {
        let device = DeviceId(c.device);
        if !self.is_up(device) {
            return Edits::default();
        }
        self.as_primary(c.by, c.incarnation, device, |group| group.join(device))
    }

    /// Changes the groups that incarnation `life` of `by` leads and that the other device,
    /// `device`, belongs to.
    pub(super) fn as_primary(
        &self,
        by: u32,
        life: u64,
        device: DeviceId,
        f: impl Fn(&mut Group),
    ) -> Edits {
        let by = DeviceId(by);
        if by == device || self.devices.get(&by).is_none_or(|d| d.incarnation.0 != life) {
            return Edits::default();
        }
        let pair = (by.min(device), by.max(device));
        let common = self.by_pair.get(&pair).map_or(&[][..], |g| g);
        let led = common.iter().filter(|g| self.groups[g].primary == Some(by));
        let groups = self.changed(led, false, &|d| self.is_up(d), f);
        Edits { groups, ..Edits::default() }
    }

    pub(super) fn admit(&self, c: &command::Admit) -> Edits {
        let up = |d: DeviceId| self.is_up(d);
        let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
        for one in &c.list {
            let id = GroupId(one.group);
            if groups.contains_key(&id) {
                continue; // its epoch has just changed
            }
            let ids = self.groups.contains_key(&id).then_some(id);
            let admit =
                |group: &mut Group| group.admit(Epoch(one.epoch), DeviceId(one.device), &up);
            groups.extend(self.changed(&ids, false, &up, admit));
        }
        Edits { groups: groups.into_iter().collect(), ..Edits::default() }
    }

    pub(super) fn reshape(&self, c: &command::Reshape) -> Edits {
        let up = |d: DeviceId| self.is_up(d);
        let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
        for shape in &c.list {
            let id = GroupId(shape.group);
            let replicas: Vec<DeviceId> = shape.replicas.iter().copied().map(DeviceId).collect();
            let leaving = Some(DeviceId(shape.leaving)).filter(|d| d.0 != 0);
            let staying = replicas.iter().copied().filter(|d| Some(*d) != leaving);
            if groups.contains_key(&id) || !self.may_hold(id, staying) {
                continue;
            }
            let epoch = Epoch(shape.epoch);
            let shaped = |group: &mut Group| group.reshape(epoch, &replicas, leaving, &up);
            groups.extend(self.changed(&[id], false, &up, shaped));
        }
        Edits { groups: groups.into_iter().collect(), ..Edits::default() }
    }

    /// Returns true if these devices may be a group's replicas for good. If one of them is new,
    /// they must be on different fault units and in one pool, and no new one may be about to leave.
    /// (If an old one came to the other's server with its disk, that is no reason to refuse.)
    pub(super) fn may_hold(&self, group: GroupId, staying: impl Iterator<Item = DeviceId>) -> bool {
        let Some(group) = self.groups.get(&group) else { return false };
        let pool = self.pool_of(group);
        let (mut units, mut count, mut fresh) = (BTreeSet::new(), 0, false);
        for device in staying {
            let Some(entry) = self.devices.get(&device) else { return false };
            let new = !group.replicas.contains(&device);
            let here = Some(entry.pool) == pool || mutant::on(Mutant::HealAnywhere);
            if new && (entry.intent != Intent::Normal || !here) {
                return false;
            }
            fresh |= new;
            units.insert(self.unit_of(device));
            count += 1;
        }
        !fresh || units.len() == count || mutant::on(Mutant::OneFaultUnit)
    }

    /// Returns the groups that have two replicas on one fault unit.
    pub(crate) fn groups_together(&self) -> impl Iterator<Item = GroupId> {
        let together = |(a, b): &(DeviceId, DeviceId)| self.unit_of(*a) == self.unit_of(*b);
        let pairs = self.by_pair.iter().filter(move |(pair, _)| together(pair));
        pairs.flat_map(|(_, groups)| groups).copied()
    }

    /// Returns those of these groups that `f` changes, in their new epoch; with `raise`, all of
    /// them.
    pub(super) fn changed<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a GroupId>,
        raise: bool,
        up: &impl Fn(DeviceId) -> bool,
        f: impl Fn(&mut Group),
    ) -> Vec<(GroupId, Group)> {
        let mut changed = Vec::new();
        for id in ids {
            let old = &self.groups[id];
            if old.doubt != Doubt::None {
                continue;
            }
            let mut group = old.clone();
            f(&mut group);
            if !self.users.contains_key(id) {
                group.form(up);
            }
            if raise || group != *old {
                group.epoch = old.epoch.next();
                changed.push((*id, group));
            }
        }
        changed
    }

    /// Rebuilds the indexes, after a snapshot was read.
    pub(crate) fn index_all(&mut self) {
        self.by_device.clear();
        self.by_pair.clear();
        self.users.clear();
        let groups = core::mem::take(&mut self.groups);
        groups.iter().for_each(|(id, group)| self.index_group(*id, group));
        self.groups = groups;
        self.volumes.values().for_each(|v| index_volume(&mut self.users, v));
    }

    pub(super) fn index_group(&mut self, id: GroupId, group: &Group) {
        for (i, device) in group.replicas.iter().enumerate() {
            enter(self.by_device.entry(*device).or_default(), id);
            for other in &group.replicas[i + 1..] {
                let pair = (*device.min(other), *device.max(other));
                enter(self.by_pair.entry(pair).or_default(), id);
            }
        }
    }

    pub(super) fn forget_group(&mut self, id: GroupId, replicas: &[DeviceId]) {
        for (i, device) in replicas.iter().enumerate() {
            leave(&mut self.by_device, *device, id);
            for other in &replicas[i + 1..] {
                leave(&mut self.by_pair, (*device.min(other), *device.max(other)), id);
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

pub(super) fn index_volume(users: &mut BTreeMap<GroupId, Users>, volume: &Volume) {
    let (slots, units) = used(volume);
    for group in slots {
        let group = users.entry(group).or_default();
        (group.volumes, group.units) = (group.volumes + 1, group.units + units);
    }
}

pub(super) fn forget_volume(users: &mut BTreeMap<GroupId, Users>, volume: &Volume) {
    let (slots, units) = used(volume);
    for id in slots {
        let group = users.get_mut(&id).expect("its volume was indexed");
        (group.volumes, group.units) = (group.volumes - 1, group.units - units);
        if group.volumes == 0 {
            users.remove(&id);
        }
    }
}
