//! The commands of a recovery of the MDMs, which add the reports of devices to the state.

use super::{Edits, State, Volume};
use crate::command::{self, Awaited, Command, Forget, Told};
use crate::group::{Doubt, Group};
use crate::mapping::Mapping;
use crate::publish::gaps;
use crate::recovery::{IDS_END, JUMP, SkippedIds, first_generation, first_number};
use crate::refused::Refused;
use crate::reserve::table;
use crate::volume::check_size;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Epoch, GroupId, MapVersion, PoolId, SdcId, VolumeId};
use core::ops::Range;
use wire::control::{GroupInfo, IdRange, RecoverMdm, StoreInfo, VolumeInfo};

impl State {
    /// Returns the command that deletes the data of these unknown volumes from all devices.
    pub fn forget_command(&self, order: &RecoverMdm) -> Result<Command, Refused> {
        match order.delete.iter().find(|id| !is_kept(self, **id)) {
            Some(id) => Err(Refused::NotUnknown(*id)),
            None => {
                let volumes = order.delete.clone();
                let forget = Forget { volumes, by: order.by.clone(), at: order.at };
                let forget = Some(forget);
                Ok(Command::Reconcile(command::Reconcile { forget, ..Default::default() }))
            }
        }
    }
}

pub(super) fn reconcile(state: &State, c: &command::Reconcile) -> Edits {
    let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
    for info in c.made.iter().filter(|info| may_enter(state, info)) {
        groups.insert(GroupId(info.id), Group::doubtful(info));
    }
    let told = c.doubts.iter().filter_map(|d| Some((GroupId(d.group), doubted(state, d)?)));
    groups.extend(told);
    for info in c.groups.iter().filter(|info| may_settle(state, info)) {
        let mut group = Group::settled(info, &|d| state.is_up(d));
        if !state.is_used(GroupId(info.id)) {
            group.form(&|d| state.is_up(d));
        }
        groups.insert(GroupId(info.id), group);
    }
    let open = state.recovery.open;
    let anew = c.unused.iter().filter_map(|id| emptied_unused(state, GroupId(*id)));
    groups.extend(anew);
    let mut volumes: Vec<(VolumeId, Option<Volume>)> = Vec::new();
    for info in c.volumes.iter().filter(|_| open) {
        volumes.extend(adopted(state, info, c.generations).map(|v| (VolumeId(info.id), Some(v))));
    }
    let gone = c.deleted.iter().map(|id| VolumeId(*id)).filter(|_| open);
    volumes.extend(gone.filter(|id| state.volumes.contains_key(id)).map(|id| (id, None)));
    let groups = groups.into_iter().collect();
    let skipped = Some(SkippedIds::of(c)).filter(|ids| open && *ids != SkippedIds::default());
    let forget = c.forget.clone().filter(|f| f.volumes.iter().all(|id| is_kept(state, *id)));
    let recovered = (open && c.close).then(|| c.left.clone());
    let awaited = c.awaited.iter().filter(|a| may_await(state, a)).copied().collect();
    let was = |s: &StoreInfo| {
        let known = state.devices.get(&DeviceId(s.device)).map(|d| d.store);
        (state.wants_reports() && known == Some(s.store)).then_some((DeviceId(s.device), s.store))
    };
    let new = |(d, _): &(DeviceId, u64)| !state.recovery.emptied.contains_key(d);
    let emptied = c.emptied.iter().filter_map(was).filter(new).collect();
    let known = c.known.iter().map(IdRange::ids).filter(|ids| open && hides(state, ids)).collect();
    Edits {
        groups,
        volumes,
        skipped,
        forget,
        recovered,
        awaited,
        emptied,
        known,
        ..Edits::default()
    }
}

/// Returns true if the fate of any volume with such an id is unknown.
fn hides(state: &State, ids: &Range<VolumeId>) -> bool {
    let overlaps = |r: &Range<VolumeId>| r.start.max(ids.start) < r.end.min(ids.end);
    state.recovery.unknown.iter().any(overlaps)
}

/// Returns true if the fate of this volume is unknown, so that its data is kept.
fn is_kept(state: &State, id: u32) -> bool {
    let id = VolumeId(id);
    state.recovery.is_unknown(id) && !state.volumes.contains_key(&id)
}

/// Returns a group that stays in doubt, with what this adds to the knowledge about it; `None` if it
/// adds nothing. The group's own configuration stays as it is.
pub(crate) fn doubted(state: &State, new: &command::Doubtful) -> Option<Group> {
    let old = state.groups.get(&GroupId(new.group)).filter(|g| g.doubt != Doubt::None)?;
    let mut told = old.told.as_deref().cloned().unwrap_or_default();
    told.add(&new.told);
    let told = Some(Box::new(told)).filter(|told| **told != Told::default());
    let group = Group { told, ..old.clone() };
    (group != *old).then_some(group)
}

impl Told {
    /// Adds what else was told.
    fn add(&mut self, new: &Told) {
        let rank = |t: &Told| t.config.as_ref().map(|config| (config.epoch, t.version));
        if rank(new) > rank(self) {
            (self.config, self.version) = (new.config.clone(), new.version);
            self.stores.clone_from(&new.stores);
        }
        self.doubted_at = self.doubted_at.max(new.doubted_at);
        self.gone = self.gone.max(new.gone);
        self.reached = self.reached.max(new.reached);
    }
}

/// Returns a group in doubt that no volume uses, empty, in an epoch above all epochs in which a
/// device may have taken part.
fn emptied_unused(state: &State, id: GroupId) -> Option<(GroupId, Group)> {
    let old = state.groups.get(&id).filter(|g| g.doubt != Doubt::None)?;
    if state.recovery.open || state.is_used(id) {
        return None;
    }
    let epoch = Epoch((old.reached().0 + JUMP).max(first_number(state.recovery.at)));
    let (in_sync, told) = (Vec::new(), None);
    let mut group = Group { epoch, in_sync, doubt: Doubt::None, told, lost: true, ..old.clone() };
    group.form(&|d| state.is_up(d));
    Some((id, group))
}

/// Returns true if this content comes from a map of lost MDMs, and is news.
fn may_await(state: &State, a: &Awaited) -> bool {
    let known = state.recovery.awaited.get(&DeviceId(a.device));
    let named = (MapVersion(a.version), a.store);
    state.wants_reports() && state.recovery.lost.contains(&named.0) && known < Some(&named)
}

/// Returns true for a group that the lost MDMs made and that this state does not have.
pub(crate) fn may_enter(state: &State, info: &GroupInfo) -> bool {
    let new = state.recovery.open && !state.groups.contains_key(&GroupId(info.id));
    let number = info.epoch > 0 && (1..IDS_END).contains(&info.id);
    let group = Group::doubtful(info);
    new && number && in_one_pool(state, info) && group.check(&|_| false).is_ok()
}

fn in_one_pool(state: &State, info: &GroupInfo) -> bool {
    let pool = |d: &u32| state.devices.get(&DeviceId(*d)).map(|d| d.pool);
    let first = info.replicas.first().and_then(pool);
    first.is_some() && info.replicas.iter().all(|d| pool(d) == first)
}

/// Returns true if this configuration ends a doubt, or is a group that the lost MDMs made.
pub(crate) fn may_settle(state: &State, info: &GroupInfo) -> bool {
    let doubtful = match state.groups.get(&GroupId(info.id)) {
        Some(group) if group.doubt == Doubt::Gone => info.epoch > group.epoch.0,
        Some(group) => group.doubt == Doubt::Reports,
        None => state.recovery.open && info.id <= state.recovery.group,
    };
    let group = Group::settled(info, &|d| state.is_up(d));
    doubtful && in_one_pool(state, info) && group.check(&|d| state.is_up(d)).is_ok()
}

/// Returns the volume as a server's map has it, with a generation that is at least so far above
/// those of the map; `None` if the state has the same, or if it can't be.
pub(crate) fn adopted(state: &State, info: &VolumeInfo, above: u32) -> Option<Volume> {
    let slots: Vec<GroupId> = info.slots.iter().map(|g| GroupId(*g)).collect();
    let pool = |g: &GroupId| state.groups.get(g).and_then(|g| state.pool_of(g));
    let home: PoolId = slots.first().and_then(pool)?;
    let old = state.volumes.get(&VolumeId(info.id));
    let mut told = info.mapping.clone().unwrap_or_default();
    told.sdcs.retain(|g| state.may_be_client(SdcId(g.sdc)) && !mutant::on(Mutant::ForgetMapping));
    let mapping =
        info.mapping.as_ref().map_or_else(|| Mapping::everyone(1), |_| Mapping::of(Some(told)));
    let first = || first_generation(state.recovery.at).max(1);
    let unheard = mapping.newest().saturating_add(above);
    let generation = old.map_or_else(first, |v| v.generation).max(unheard);
    let reservations = table(info.reservations.as_ref())?;
    // It is not known which of the recorded changes another table includes.
    let asked = old.filter(|v| v.reservations == reservations).map(|v| v.asked.clone());
    let volume = Volume {
        name: info.name.clone(),
        size: info.size,
        generation,
        mapping,
        pool: home,
        thick: info.thick,
        slots,
        losses: old.map_or_else(Vec::new, |v| v.losses.clone()),
        gaps: gaps(&info.gaps),
        reservations,
        asked: asked.unwrap_or_default(),
        seats: BTreeMap::new(),
        changed_at: old.map_or(MapVersion(0), |v| v.changed_at),
    };
    let other = |(id, v): (&VolumeId, &Volume)| id.0 != info.id && v.name == volume.name;
    let may = volume.slots.iter().all(|g| pool(g) == Some(home))
        && check_size(volume.size).is_ok()
        && volume.mapping.is_sound()
        && (old.is_some() || state.recovery.is_unknown(VolumeId(info.id)))
        && VolumeId(info.id) < state.next_volume
        && !state.volumes.iter().any(other);
    (may && old != Some(&volume)).then_some(volume)
}

/// Skips the ids that lost MDMs have given away.
pub(super) fn skip_ids(state: &mut State, ids: SkippedIds) {
    let (recovery, next_volume) = (&mut state.recovery, VolumeId(ids.next_volume));
    recovery.device = recovery.device.max(ids.device);
    recovery.group = recovery.group.max(ids.group);
    recovery.sdc = recovery.sdc.max(ids.sdc);
    if next_volume > state.next_volume {
        state.recovery.unknown.push(state.next_volume..next_volume);
        state.next_volume = next_volume;
    }
}

/// Ends the recovery. Every peer gets the whole map: its own may come from lost decisions.
pub(super) fn close_recovery(state: &mut State, left: Vec<u32>) {
    state.recovery.open = false;
    state.recovery.left = left;
    let at = state.version;
    state.devices.values_mut().for_each(|d| d.changed_at = at);
    state.groups.values_mut().for_each(|g| g.changed_at = at);
    state.volumes.values_mut().for_each(|v| v.changed_at = at);
    state.sdcs.values_mut().for_each(|s| s.changed_at = at);
    (state.objects.changed_at, state.members.changed_at) = (at, at);
}
