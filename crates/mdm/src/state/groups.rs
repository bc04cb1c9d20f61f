//! Commands on groups, which primaries propose and the healer plans.

use super::{Edits, State};
use crate::command;
use crate::group::{Doubt, Group};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Epoch, GroupId};
use wire::control::Intent;

pub(super) fn suspect(state: &State, c: &command::Suspect) -> Edits {
    let device = DeviceId(c.device);
    let suspected = |group: &mut Group| group.suspected(device);
    as_primary(state, c.by, c.incarnation, device, suspected)
}

pub(super) fn join(state: &State, c: &command::Join) -> Edits {
    let device = DeviceId(c.device);
    if !state.is_up(device) {
        return Edits::default();
    }
    as_primary(state, c.by, c.incarnation, device, |group| group.join(device))
}

/// Changes the groups that incarnation `life` of `by` leads and that the other device,
/// `device`, belongs to.
pub(super) fn as_primary(
    state: &State,
    by: u32,
    life: u64,
    device: DeviceId,
    f: impl Fn(&mut Group),
) -> Edits {
    let by = DeviceId(by);
    if by == device || state.devices.get(&by).is_none_or(|d| d.incarnation.0 != life) {
        return Edits::default();
    }
    let led = state
        .group_index
        .of_pair(by, device)
        .iter()
        .filter(|g| state.groups[g].primary == Some(by));
    let groups = changed(state, led, false, &|d| state.is_up(d), f);
    Edits { groups, ..Edits::default() }
}

pub(super) fn admit(state: &State, c: &command::Admit) -> Edits {
    let up = |d: DeviceId| state.is_up(d);
    let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
    for one in &c.list {
        let id = GroupId(one.group);
        if groups.contains_key(&id) {
            continue; // its epoch has just changed
        }
        let ids = state.groups.contains_key(&id).then_some(id);
        let admit = |group: &mut Group| group.admit(Epoch(one.epoch), DeviceId(one.device), &up);
        groups.extend(changed(state, &ids, false, &up, admit));
    }
    Edits { groups: groups.into_iter().collect(), ..Edits::default() }
}

pub(super) fn reshape(state: &State, c: &command::Reshape) -> Edits {
    let up = |d: DeviceId| state.is_up(d);
    let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
    for shape in &c.list {
        let id = GroupId(shape.group);
        let replicas: Vec<DeviceId> = shape.replicas.iter().copied().map(DeviceId).collect();
        let leaving = Some(DeviceId(shape.leaving)).filter(|d| d.0 != 0);
        let staying = replicas.iter().copied().filter(|d| Some(*d) != leaving);
        if groups.contains_key(&id) || !may_hold(state, id, staying) {
            continue;
        }
        let epoch = Epoch(shape.epoch);
        let shaped = |group: &mut Group| group.reshape(epoch, &replicas, leaving, &up);
        groups.extend(changed(state, &[id], false, &up, shaped));
    }
    Edits { groups: groups.into_iter().collect(), ..Edits::default() }
}

/// Returns true if these devices may be a group's replicas for good. If one of them is new,
/// they must be on different fault units and in one pool, and no new one may be about to leave.
/// (If an old one came to the other's server with its disk, that is no reason to refuse.)
pub(super) fn may_hold(
    state: &State,
    group: GroupId,
    staying: impl Iterator<Item = DeviceId>,
) -> bool {
    let Some(group) = state.groups.get(&group) else { return false };
    let pool = state.pool_of(group);
    let (mut units, mut count, mut fresh) = (BTreeSet::new(), 0, false);
    for device in staying {
        let Some(entry) = state.devices.get(&device) else { return false };
        let new = !group.replicas.contains(&device);
        let here = Some(entry.pool) == pool || mutant::on(Mutant::HealAnywhere);
        if new && (entry.intent != Intent::Normal || !here) {
            return false;
        }
        fresh |= new;
        units.insert(state.unit_of(device));
        count += 1;
    }
    !fresh || units.len() == count || mutant::on(Mutant::OneFaultUnit)
}

/// Returns the groups that have two replicas on one fault unit.
pub(crate) fn groups_together(state: &State) -> impl Iterator<Item = GroupId> {
    let together = |(a, b): &(DeviceId, DeviceId)| state.unit_of(*a) == state.unit_of(*b);
    let pairs = state.group_index.pairs().filter(move |(pair, _)| together(pair));
    pairs.flat_map(|(_, groups)| groups).copied()
}

/// Returns those of these groups that `f` changes, in their new epoch; with `raise`, all of
/// them.
pub(super) fn changed<'a>(
    state: &State,
    ids: impl IntoIterator<Item = &'a GroupId>,
    raise: bool,
    up: &impl Fn(DeviceId) -> bool,
    f: impl Fn(&mut Group),
) -> Vec<(GroupId, Group)> {
    let mut changed = Vec::new();
    for id in ids {
        let old = &state.groups[id];
        if old.doubt != Doubt::None {
            continue;
        }
        let mut group = old.clone();
        f(&mut group);
        if !state.is_used(*id) {
            group.form(up);
        }
        if raise || group != *old {
            group.epoch = old.epoch.next();
            changed.push((*id, group));
        }
    }
    changed
}
