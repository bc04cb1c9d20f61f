//! Data that no replica serves: lists it, and starts its groups again when an operator accepts the
//! loss.

use super::{Device, Edits, State, Volume};
use crate::command::{self, Command, Shape};
use crate::group::{Doubt, Group};
use crate::observed::Observed;
use crate::publish::gap_infos;
use crate::recovery;
use crate::recovery::{Copies, DeviceReports, JUMP};
use crate::refused::Refused;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use base::{DeviceId, Epoch, GroupId, Mutant, UNIT, VolumeId, mutant};
use wire::control::{self, AcceptedLoss, Intent, Unserved, UnservedGroup, VolumeDamage};

/// The most accepted losses of a volume that are remembered.
const LOSSES: usize = 16;
/// The most groups in one order.
const GROUPS: usize = 8192;

impl State {
    /// Returns the parts of a volume that cannot be served. `seen` tells which devices have older
    /// copies, and `reports` tells which copies of groups in doubt there are.
    pub fn damage(
        &self,
        name: &str,
        seen: &Observed,
        reports: &DeviceReports,
    ) -> Result<VolumeDamage, Refused> {
        let (_, volume) = self.volume_named(name).ok_or_else(|| no_volume(name))?;
        let groups: BTreeSet<GroupId> = volume.slots.iter().copied().collect();
        Ok(VolumeDamage {
            size: volume.size,
            slots: volume.slots.iter().map(|g| g.0).collect(),
            groups: groups.into_iter().filter_map(|id| unserved(self, id, seen, reports)).collect(),
            accepted: volume.losses.clone(),
            gaps: gap_infos(&volume.gaps),
        })
    }

    /// Returns how many groups in use are lost, and how many wait for a device.
    pub fn count_unserved(&self) -> (u32, u32) {
        let used =
            self.group_index.used().filter_map(|id| self.groups.get(id)).filter(|g| g.is_failed());
        used.fold((0, 0), |(lost, away), g| match g.lost {
            true => (lost + 1, away),
            false => (lost, away + 1),
        })
    }

    /// Returns the command that serves volumes again without the lost data. `seen` tells which
    /// devices know their present groups, and `reports` tells which copies of groups in doubt there
    /// are.
    pub fn accept_loss_command(
        &self,
        m: &control::AcceptLoss,
        seen: &Observed,
        reports: &DeviceReports,
    ) -> Result<Command, Refused> {
        let mut volumes: BTreeSet<VolumeId> = BTreeSet::new();
        let mut slots: BTreeSet<GroupId> = BTreeSet::new();
        for name in &m.volumes {
            let (id, volume) = self.volume_named(name).ok_or_else(|| no_volume(name))?;
            volumes.insert(id);
            slots.extend(&volume.slots);
        }
        let meant = |id: &GroupId| match unserved(self, *id, seen, reports) {
            Some(u) if m.stale => u.why() != Unserved::Lost && !u.stale.is_empty(),
            Some(u) => u.why() == Unserved::Lost,
            None => false,
        };
        let groups: Vec<GroupId> = slots.into_iter().filter(meant).take(GROUPS).collect();
        let gaps =
            || volumes.iter().filter_map(|id| self.volumes.get(id)).any(|v| !v.gaps.is_empty());
        if groups.is_empty() && (m.stale || m.errors || !gaps()) {
            return Err(Refused::NothingLost);
        }
        let touched = |v: &Volume| v.slots.iter().any(|g| groups.binary_search(g).is_ok());
        let others = self.volumes.iter().filter(|(id, v)| !volumes.contains(id) && touched(v));
        let others: Vec<&str> = others.map(|(_, v)| &*v.name).collect();
        if !others.is_empty() {
            return Err(Refused::SharesLoss(others.join(" ")));
        }
        let begin = |id: &GroupId| {
            let group = self.groups.get(id)?;
            let told = told(self, *id, group, reports);
            let [first, second] = match m.stale {
                true => with_stale(self, (*id, group), &told, seen)?,
                false => with_nothing(self, group, &told, seen)?,
            };
            let replicas = Vec::from([first.0, second.0]);
            let epoch = group.epoch.0;
            Some(Shape { group: id.0, epoch, replicas, leaving: 0, acted: told.acted })
        };
        let begun: Option<Vec<Shape>> = groups.iter().map(begin).collect();
        let numbers = groups.iter().map(|g| g.0).collect();
        let loss = AcceptedLoss {
            by: m.by.clone(),
            at: m.at,
            groups: numbers,
            stale: m.stale,
            errors: m.errors,
        };
        let volumes = volumes.into_iter().map(|v| v.0).collect();
        let groups = begun.ok_or(Refused::NobodyEmpty)?;
        Ok(Command::AcceptLoss(command::AcceptLoss { volumes, loss, groups }))
    }
}

/// Returns why this group is not served; `None` if it is.
fn unserved(
    state: &State,
    id: GroupId,
    seen: &Observed,
    reports: &DeviceReports,
) -> Option<UnservedGroup> {
    let group = state.groups.get(&id).filter(|g| g.is_failed())?;
    let stale = stale(state, (id, group), &told(state, id, group, reports), seen);
    let why = match (group.lost, group.doubt) {
        (true, Doubt::None) => Unserved::Lost,
        (true, _) if stale.is_empty() => Unserved::Lost,
        (_, Doubt::None) => Unserved::Away,
        _ => Unserved::Doubt,
    };
    Some(UnservedGroup {
        group: id.0,
        why: why as i32,
        waits_for: group.in_sync.iter().map(|d| d.0).collect(),
        stale: stale.iter().map(|d| d.0).collect(),
    })
}

/// Returns what devices have reported of a group in doubt.
fn told(state: &State, id: GroupId, group: &Group, reports: &DeviceReports) -> Copies {
    match group.doubt {
        Doubt::None => Copies::default(),
        _ => recovery::copies(state, reports, id),
    }
}

/// Returns the devices that are up and have an older copy, the best first. A device that never
/// had all of the group is not among them, nor is one whose copy was deleted since: only the
/// device itself knows that.
fn stale(
    state: &State,
    (id, group): (GroupId, &Group),
    told: &Copies,
    seen: &Observed,
) -> Vec<DeviceId> {
    if group.doubt != Doubt::None {
        return told.whole.clone();
    }
    let old = |d: &DeviceId| {
        let old = !group.lost && !group.in_sync.contains(d);
        old && group.was_whole(*d) && seen.was_whole(*d, id) && state.is_up(*d)
    };
    group.replicas.iter().copied().filter(old).collect()
}

/// Returns the two replicas of a group that starts again with the best available older copy. The
/// second one is a device that has nothing of the group. A device that comes back has to delete its
/// content first, and one that has just come has not reported what it knows. Otherwise the resync,
/// which compares the memories of both replicas, would not find what such a device wrote alone.
fn with_stale(
    state: &State,
    (id, group): (GroupId, &Group),
    told: &Copies,
    seen: &Observed,
) -> Option<[DeviceId; 2]> {
    let first = *stale(state, (id, group), told, seen).first()?;
    let fit = fit(state, group);
    let apart = |d: &&DeviceId| state.unit_of(**d) != state.unit_of(first);
    let blank = |d: &&DeviceId| !group.replicas.contains(d) && !told.any.contains(d);
    let new = fit.iter().filter(|d| blank(d) && knows(d, group, seen)).filter(apart);
    let second = *new.min_by_key(|d| (state.groups_of(**d).len(), **d))?;
    Some([first, second])
}

/// Returns the devices that may take this group.
fn fit(state: &State, group: &Group) -> Vec<DeviceId> {
    let pool = state.pool_of(group);
    let fit = |d: &Device| d.up && d.intent == Intent::Normal && Some(d.pool) == pool;
    state.devices.iter().filter(|(_, d)| fit(d)).map(|(id, _)| *id).collect()
}

/// Returns the two replicas of a group that starts again, empty. The first one must hold nothing of
/// the group: it is a device that does not belong to the group, and has reported that it knows so.
/// The second one gets a copy, which replaces what it may have.
fn with_nothing(
    state: &State,
    group: &Group,
    told: &Copies,
    seen: &Observed,
) -> Option<[DeviceId; 2]> {
    let load = |d: &DeviceId| (state.groups_of(*d).len(), *d);
    let fit = fit(state, group);
    let blank = |d: &DeviceId| !group.replicas.contains(d) && !told.any.contains(d);
    let empty = fit.iter().filter(|d| blank(d) && knows(d, group, seen));
    let first = *empty.min_by_key(|d| load(d))?;
    let apart = |d: &&DeviceId| state.unit_of(**d) != state.unit_of(first);
    let may = |d: &&DeviceId| apart(d) && knows(d, group, seen);
    let second = *fit.iter().filter(may).min_by_key(|d| load(d))?;
    Some([first, second])
}

pub(super) fn accept_loss(state: &State, c: &command::AcceptLoss) -> Edits {
    let up = |d: DeviceId| state.is_up(d);
    let mut groups = Vec::new();
    for shape in &c.groups {
        let id = GroupId(shape.group);
        let meant = |g: &&Group| g.epoch.0 == shape.epoch && g.is_failed();
        let meant = |g: &&Group| meant(g) || mutant::on(Mutant::AcceptServed);
        let old = state.groups.get(&id).filter(meant);
        let (Some(old), [first, ..]) = (old, &shape.replicas[..]) else { continue };
        let first = DeviceId(*first);
        // In a group in doubt, replicas may have acted in later epochs.
        let epoch = match old.doubt {
            Doubt::None => old.epoch.next(),
            _ => Epoch(old.epoch.0.max(shape.acted) + JUMP),
        };
        let replicas: Vec<DeviceId> = shape.replicas.iter().map(|d| DeviceId(*d)).collect();
        let group = Group {
            epoch,
            primary: Some(first),
            filling: replicas.iter().copied().filter(|d| *d != first).collect(),
            replicas,
            in_sync: Vec::from([first]),
            changed_at: old.changed_at,
            ..Group::default()
        };
        let pool = |d: &DeviceId| state.devices.get(d).map(|d| d.pool);
        let home = pool(&first);
        let one_pool = home.is_some() && group.replicas.iter().all(|d| pool(d) == home);
        if one_pool && group.check(&up).is_ok() {
            groups.push((id, group));
        }
    }
    let mut volumes = Vec::new();
    for id in c.volumes.iter().map(|id| VolumeId(*id)) {
        let Some(mut volume) = state.volumes.get(&id).cloned() else { continue };
        let begun = groups.iter().map(|(id, _)| *id).filter(|id| volume.slots.contains(id));
        match (c.loss.errors && !mutant::on(Mutant::ErrorsAsZeros), c.loss.stale) {
            (true, _) => {
                let units = volume.size.div_ceil(UNIT.into()) as u32;
                volume.gaps.extend(begun.map(|id| (id, units)));
            }
            // Blocks that were errors until now read as zeros, too.
            (false, false) => volume.gaps.clear(),
            // The content of the older copy counts as it is.
            (false, true) => begun.for_each(|id| _ = volume.gaps.remove(&id)),
        }
        if groups.is_empty() && state.volumes[&id].gaps == volume.gaps {
            continue;
        }
        volume.losses.push(c.loss.clone());
        volume.losses.drain(..volume.losses.len().saturating_sub(LOSSES));
        volumes.push((id, Some(volume)));
    }
    Edits { groups, volumes, ..Edits::default() }
}

/// Returns true if the device has reported, in this incarnation, that it knows the group's
/// replicas: a device that is none of them deletes its content of the group.
fn knows(device: &DeviceId, group: &Group, seen: &Observed) -> bool {
    seen.devices.get(device).is_some_and(|s| s.map >= group.changed_at)
}

fn no_volume(name: &str) -> Refused {
    Refused::NotFound(name.chars().take(64).collect::<String>())
}
