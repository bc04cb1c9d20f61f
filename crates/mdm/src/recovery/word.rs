//! What one device has told an MDM that goes on where others were lost.

use crate::refused::{MAX_DEVICES, MAX_SDCS, MAX_VOLUMES};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{DeviceId, GroupId, MapVersion, VolumeId};
use wire::control::{GroupInfo, Report, VolumeInfo};

/// Groups that one device may tell of.
const TOLD_GROUPS: usize = 1 << 17;
/// Volumes of which one device may say that it holds data.
const TOLD_HELD: usize = 1 << 17;
/// No group ever comes to this epoch: recoveries add [`super::JUMP`] each.
const EPOCHS: u64 = 1 << 62;

/// What one server's device has told.
#[derive(Clone, Debug, Default)]
pub struct Word {
    pub(super) version: MapVersion,
    pub(super) told: MapVersion,
    pub(super) groups: BTreeMap<GroupId, Said>,
    pub(super) volumes: BTreeMap<VolumeId, VolumeInfo>,
    pub(super) next_volume: u32,
    pub(super) held: BTreeSet<u32>,
    /// What is on devices, as its map has it.
    stores: BTreeMap<DeviceId, u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    pub acted: u64,
    /// In that epoch it was a joiner.
    pub joiner: bool,
    pub base: u64,
    pub config: Option<GroupInfo>,
}

impl Word {
    /// Takes in a part of a report; false, if no honest device can have so much to tell.
    #[must_use]
    pub fn add(&mut self, part: Report) -> bool {
        let groups = self.groups.len() + part.groups.len();
        let volumes = self.volumes.len() + part.volumes.len();
        if groups > TOLD_GROUPS
            || volumes > MAX_VOLUMES
            || self.held.len() + part.held.len() > TOLD_HELD
            || self.stores.len() + part.devices.len() > MAX_DEVICES
            || part.groups.iter().any(|g| g.acted.max(g.base) >= EPOCHS)
            || part.groups.iter().filter_map(|g| g.config.as_ref()).any(|c| c.epoch >= EPOCHS)
        {
            return false;
        }
        (self.version, self.told) = (MapVersion(part.version), MapVersion(part.told));
        self.next_volume = part.next_volume;
        self.held.extend(part.held);
        self.stores.extend(part.devices.iter().map(|d| (DeviceId(d.device), d.store)));
        for g in part.groups {
            let (acted, joiner, base) = (g.acted, g.joiner, g.base);
            let said = Said { acted, joiner, base, config: g.config };
            self.groups.insert(GroupId(g.group), said);
        }
        part.volumes.into_iter().all(|v| self.add_volume(v))
    }

    /// A volume that is mapped to many clients comes in several parts.
    fn add_volume(&mut self, told: VolumeInfo) -> bool {
        let Some(known) = self.volumes.get_mut(&VolumeId(told.id)) else {
            self.volumes.insert(VolumeId(told.id), told);
            return true;
        };
        let more = told.mapping.map_or_else(Vec::new, |m| m.sdcs);
        let sdcs = &mut known.mapping.get_or_insert_default().sdcs;
        sdcs.extend(more);
        sdcs.len() <= MAX_SDCS
    }

    /// Groups with the newest epochs in which the device took part.
    pub(crate) fn took_part(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.groups.iter().map(|(group, said)| (*group, said.acted))
    }

    pub(super) fn acted(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |s| s.acted)
    }

    pub(super) fn config(&self, group: GroupId) -> Option<&GroupInfo> {
        self.groups.get(&group)?.config.as_ref()
    }

    /// The device took part in no epoch of this group, as far as it remembers; and no map of its process says that it
    /// was in sync since. One of after the recovery says nothing of that.
    pub(super) fn is_blank(&self, group: GroupId, began: MapVersion) -> bool {
        !self.has_map(began) && self.acted(group) == 0
    }

    /// What lost MDMs took in as these devices, as far as its process knows.
    pub(super) fn stores(&self, began: MapVersion) -> impl Iterator<Item = (DeviceId, u64)> + '_ {
        let all = self.stores.iter().map(|(device, store)| (*device, *store));
        all.filter(move |_| self.has_map(began))
    }

    /// What its map says that this device has on it, if it says so.
    pub(super) fn store_of(&self, device: DeviceId) -> Option<u64> {
        self.stores.get(&device).copied()
    }

    /// Its process has a map that lost MDMs made.
    fn has_map(&self, began: MapVersion) -> bool {
        self.version.0 > 0 && self.version < began
    }

    /// If this device was emptied, it was so before this configuration of a group was made: it has taken part since, or
    /// its map knows its present life and this very configuration.
    pub(super) fn is_witness(&self, group: GroupId, newest: &GroupInfo, began: MapVersion) -> bool {
        let knows = || self.config(group).is_some_and(|c| c.epoch == newest.epoch);
        self.acted(group) > 0 || self.has_map(began) && knows()
    }
}

/// What devices have told, each in its present life.
pub type Words = BTreeMap<DeviceId, Word>;
