//! Creates, grows, maps and deletes volumes.

use super::{Device, Edits, State, Volume};
use crate::command;
use crate::group::{Doubt, Group};
use crate::mapping::Mapping;
use crate::refused::{MAX_VOLUMES, Refused, check_name};
use crate::reserve::{Asked, REGISTRANTS, change, host, outcome};
use crate::volume::check_size;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Epoch, GroupId, MapVersion, PoolId, SdcId, SdsId, VolumeId};
use target::reserve::{self, Table};

// Long: one check after the other, and the volume.
pub(super) fn create_volume(state: &State, c: &command::CreateVolume) -> Result<Edits, Refused> {
    check_name(&c.name)?;
    check_size(c.size)?;
    if state.volume_named(&c.name).is_some() {
        return Err(Refused::Taken(c.name.clone()));
    }
    if state.volumes.len() >= MAX_VOLUMES {
        return Err(Refused::TooManyVolumes);
    }
    let pool = PoolId(c.pool.max(1));
    if !state.objects.pools.contains_key(&pool) {
        return Err(Refused::Outdated);
    }
    let here = |d: &Device| d.pool == pool || mutant::on(Mutant::PlaceAnywhere);
    let up = |d: DeviceId| state.is_up(d);
    let mut groups = Vec::new();
    for (id, new) in (state.next_group().0..).zip(&c.groups) {
        let replicas: Vec<DeviceId> = new.replicas.iter().copied().map(DeviceId).collect();
        let entry = |d: &DeviceId| state.devices.get(d).filter(|d| here(d));
        let units: Option<BTreeSet<SdsId>> =
            replicas.iter().map(|d| entry(d).and_then(|_| state.unit_of(*d))).collect();
        let apart = units.is_some_and(|s| s.len() == replicas.len() && s.len() >= 2);
        if !apart || !replicas.iter().any(|d| up(*d)) {
            return Err(Refused::Outdated);
        }
        groups.push((GroupId(id), Group { epoch: Epoch(1), ..Group::new(replicas, &up) }));
    }
    let slots: Vec<GroupId> = c.slots.iter().copied().map(GroupId).collect();
    let usable = |g: &GroupId| {
        let old = |g: &Group| !g.lost && state.pool_of(g) == Some(pool);
        state.groups.get(g).map_or(groups.iter().any(|(id, _)| id == g), old)
    };
    if VolumeId(c.volume) != state.next_volume || slots.is_empty() || !slots.iter().all(usable) {
        return Err(Refused::Outdated);
    }
    let wish = Mapping::of(c.mapping.clone());
    if !are_known(state, &wish) {
        return Err(Refused::Outdated);
    }
    let (mapping, generation) = Mapping::nobody().replaced(&wish, 1);
    let changed_at = MapVersion(0);
    let (name, size, thick) = (c.name.clone(), c.size, c.thick);
    let volume = Volume {
        name,
        size,
        generation,
        mapping,
        pool,
        thick,
        slots,
        losses: Vec::new(),
        gaps: BTreeMap::new(),
        reservations: Table::default(),
        asked: BTreeMap::new(),
        seats: BTreeMap::new(),
        changed_at,
    };
    Ok(Edits { groups, volume: Some((state.next_volume, Some(volume))), ..Edits::default() })
}

pub(super) fn resize_volume(state: &State, c: &command::ResizeVolume) -> Result<Edits, Refused> {
    check_size(c.size)?;
    let id = VolumeId(c.volume);
    let old = state.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
    if c.size < old.size {
        return Err(Refused::Shrink { name: old.name.clone(), size: old.size, asked: c.size });
    }
    let volume = (c.size > old.size).then(|| (id, Some(Volume { size: c.size, ..old.clone() })));
    Ok(Edits { volume, ..Edits::default() })
}

pub(super) fn map_volume(state: &State, c: &command::MapVolume) -> Result<Edits, Refused> {
    let id = VolumeId(c.volume);
    let old = state.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
    let wish = Mapping::of(c.mapping.clone());
    if !are_known(state, &wish) {
        return Err(Refused::Outdated);
    }
    next_generation(old)?;
    let (mapping, generation) = old.mapping.replaced(&wish, old.generation);
    let mut volume = Volume { mapping, generation, ..old.clone() };
    // A host that has lost access has no seat any more, so its gateway closes its connections.
    let since = |mapping: &Mapping, host: &str| mapping.hosts().get(host).map(|grant| grant.since);
    let kept = |host: &str| since(&old.mapping, host) == since(&volume.mapping, host);
    volume.seats.retain(|host, _| kept(host) || mutant::on(Mutant::KeepSeats));
    let volume = (volume != *old).then_some((id, Some(volume)));
    Ok(Edits { volume, ..Edits::default() })
}

/// Returns the generation after that of the volume, if there is one.
fn next_generation(volume: &Volume) -> Result<u32, Refused> {
    let next = volume.generation.checked_add(1);
    next.ok_or_else(|| Refused::LastGeneration(volume.name.clone()))
}

fn are_known(state: &State, mapping: &Mapping) -> bool {
    mapping.is_sound() && mapping.clients().all(|(sdc, _)| state.may_be_client(sdc))
}

/// Changes the reservations of a volume, for a host of a client. A refused change, and a change
/// without effect, only enter the record of requested changes. A change with the number of an
/// earlier one, or with a lower number, does nothing.
pub(super) fn reserve(state: &State, c: &command::Reserve) -> Result<Edits, Refused> {
    let (id, sdc) = (VolumeId(c.volume), SdcId(c.sdc));
    let old = state.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
    let lives = |sdc: &SdcId, life: u64| {
        let here = state.sdcs.get(sdc).is_some_and(|s| s.incarnation.0 == life);
        here && old.mapping.grant(*sdc).is_some()
    };
    let (Some(who), Some(change)) = (host(&c.who), change(&c.change)) else {
        return Err(Refused::Outdated);
    };
    if !lives(&sdc, c.incarnation) {
        return Err(Refused::Outdated);
    }
    let known = old.asked.get(&sdc).filter(|last| last.incarnation == c.incarnation);
    if known.is_some_and(|last| last.number >= c.number) && !mutant::on(Mutant::ReserveAgain) {
        return Ok(Edits::default());
    }
    let mut volume = old.clone();
    let outcome = outcome(reserve::step(&mut volume.reservations, &who, &change, REGISTRANTS));
    let fences = reserve::fences(&old.reservations, &volume.reservations);
    if fences && !mutant::on(Mutant::ReuseGeneration) {
        volume.generation = next_generation(old)?;
        volume.mapping = old.mapping.renewed(volume.generation);
    }
    if c.notes_losses {
        reserve::note_losses(&old.reservations, &mut volume.reservations, volume.generation);
    }
    volume.asked.retain(|sdc, last| lives(sdc, last.incarnation));
    let asked = Asked { incarnation: c.incarnation, number: c.number, outcome };
    volume.asked.insert(sdc, asked);
    if c.notes_losses && volume.reservations == old.reservations {
        return Ok(Edits { asked: Some((id, volume.asked)), ..Edits::default() });
    }
    Ok(Edits { volume: Some((id, Some(volume))), ..Edits::default() })
}

/// Ends the reservation and all registrations. Nobody loses access by that.
pub(super) fn clear_reservations(
    state: &State,
    c: &command::ClearReservations,
) -> Result<Edits, Refused> {
    let id = VolumeId(c.volume);
    let old = state.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
    let mut volume = old.clone();
    volume.reservations.clear();
    let volume = (!old.reservations.registrants.is_empty()).then_some((id, Some(volume)));
    Ok(Edits { volume, ..Edits::default() })
}

pub(super) fn delete_volume(state: &State, c: &command::DeleteVolume) -> Result<Edits, Refused> {
    let id = VolumeId(c.volume);
    let old = state.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
    // Lost groups that no other volume uses start again, empty.
    let slots: BTreeSet<GroupId> = old.slots.iter().copied().collect();
    let up = |d: DeviceId| state.is_up(d);
    let mut groups = Vec::new();
    for id in slots.iter().filter(|g| state.group_index.users(**g).is_some_and(|u| u.volumes == 1))
    {
        let mut group = state.groups[id].clone();
        if group.doubt != Doubt::None {
            continue; // an unknown volume may have data there
        }
        group.form(&up);
        if group != state.groups[id] {
            group.epoch = group.epoch.next();
            groups.push((*id, group));
        }
    }
    Ok(Edits { groups, volume: Some((id, None)), ..Edits::default() })
}
