//! Volumes: how they are created, grown, mapped and deleted.

use super::{Device, Edits, State, Volume};
use crate::command;
use crate::group::{Doubt, Group};
use crate::mapping::Mapping;
use crate::refused::{MAX_VOLUMES, Refused, check_name};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Epoch, GroupId, MAX_VOLUME_BYTES, MapVersion, PoolId, SdsId, UNIT, VolumeId};

impl State {
    pub(super) fn create_volume(&self, c: &command::CreateVolume) -> Result<Edits, Refused> {
        check_name(&c.name)?;
        check_size(c.size)?;
        if self.volume_named(&c.name).is_some() {
            return Err(Refused::Taken(c.name.clone()));
        }
        if self.volumes.len() >= MAX_VOLUMES {
            return Err(Refused::TooManyVolumes);
        }
        let pool = PoolId(c.pool.max(1));
        if !self.objects.pools.contains_key(&pool) {
            return Err(Refused::Outdated);
        }
        let here = |d: &Device| d.pool == pool || mutant::on(Mutant::PlaceAnywhere);
        let up = |d: DeviceId| self.is_up(d);
        let mut groups = Vec::new();
        for (id, new) in (self.next_group().0..).zip(&c.groups) {
            let replicas: Vec<DeviceId> = new.replicas.iter().copied().map(DeviceId).collect();
            let entry = |d: &DeviceId| self.devices.get(d).filter(|d| here(d));
            let units: Option<BTreeSet<SdsId>> =
                replicas.iter().map(|d| entry(d).and_then(|_| self.unit_of(*d))).collect();
            let apart = units.is_some_and(|s| s.len() == replicas.len() && s.len() >= 2);
            if !apart || !replicas.iter().any(|d| up(*d)) {
                return Err(Refused::Outdated);
            }
            groups.push((GroupId(id), Group { epoch: Epoch(1), ..Group::new(replicas, &up) }));
        }
        let slots: Vec<GroupId> = c.slots.iter().copied().map(GroupId).collect();
        let usable = |g: &GroupId| {
            let old = |g: &Group| !g.lost && self.pool_of(g) == Some(pool);
            self.groups.get(g).map_or(groups.iter().any(|(id, _)| id == g), old)
        };
        if VolumeId(c.volume) != self.next_volume || slots.is_empty() || !slots.iter().all(usable) {
            return Err(Refused::Outdated);
        }
        let wish = Mapping::of(c.mapping.clone());
        if !self.are_known(&wish) {
            return Err(Refused::Outdated);
        }
        let (mapping, generation) = Mapping::nobody().replaced(&wish, 1);
        let changed_at = MapVersion(0);
        let (name, size, thick) = (c.name.clone(), c.size, c.thick);
        let (losses, gaps) = (Vec::new(), BTreeMap::new());
        #[rustfmt::skip]
        let volume = Volume { name, size, generation, mapping, pool, thick, slots, losses, gaps, changed_at };
        Ok(Edits { groups, volume: Some((self.next_volume, Some(volume))), ..Edits::default() })
    }

    pub(super) fn resize_volume(&self, c: &command::ResizeVolume) -> Result<Edits, Refused> {
        check_size(c.size)?;
        let id = VolumeId(c.volume);
        let old = self.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
        if c.size < old.size {
            return Err(Refused::Shrink { name: old.name.clone(), size: old.size, asked: c.size });
        }
        let volume =
            (c.size > old.size).then(|| (id, Some(Volume { size: c.size, ..old.clone() })));
        Ok(Edits { volume, ..Edits::default() })
    }

    pub(super) fn map_volume(&self, c: &command::MapVolume) -> Result<Edits, Refused> {
        let id = VolumeId(c.volume);
        let old = self.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
        let wish = Mapping::of(c.mapping.clone());
        if !self.are_known(&wish) {
            return Err(Refused::Outdated);
        }
        let (mapping, generation) = old.mapping.replaced(&wish, old.generation);
        let volume = Volume { mapping, generation, ..old.clone() };
        let volume = (volume != *old).then_some((id, Some(volume)));
        Ok(Edits { volume, ..Edits::default() })
    }

    fn are_known(&self, mapping: &Mapping) -> bool {
        mapping.clients().all(|(sdc, _)| self.may_be_client(sdc))
    }

    /// Returns the bytes that thick volumes of this pool have reserved, in all copies.
    pub fn reserved(&self, pool: PoolId) -> u64 {
        let thick = self.volumes.values().filter(|v| v.thick && v.pool == pool);
        thick.map(|v| v.size.saturating_mul(2)).fold(0, u64::saturating_add)
    }

    pub(super) fn delete_volume(&self, c: &command::DeleteVolume) -> Result<Edits, Refused> {
        let id = VolumeId(c.volume);
        let old = self.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
        // Lost groups that no other volume uses are formed again, empty.
        let slots: BTreeSet<GroupId> = old.slots.iter().copied().collect();
        let up = |d: DeviceId| self.is_up(d);
        let mut groups = Vec::new();
        for id in slots.iter().filter(|g| self.users.get(g).is_some_and(|u| u.volumes == 1)) {
            let mut group = self.groups[id].clone();
            if group.doubt != Doubt::None {
                continue; // an unknown volume may have data there
            }
            group.form(&up);
            if group != self.groups[id] {
                group.epoch = group.epoch.next();
                groups.push((*id, group));
            }
        }
        Ok(Edits { groups, volume: Some((id, None)), ..Edits::default() })
    }
}

/// Checks a size that was rounded to whole units.
pub(crate) fn check_size(size: u64) -> Result<(), Refused> {
    match size {
        0 => Err(Refused::Empty),
        s if s > MAX_VOLUME_BYTES => Err(Refused::TooBig(s)),
        s if s % u64::from(UNIT) != 0 => Err(Refused::Outdated),
        _ => Ok(()),
    }
}
