//! The reports of devices to an MDM that recovers.
//!
//! A [`DeviceReport`] has two parts. The device's own memory belongs to its present process. The
//! server's map tells decisions of lost MDMs, so it stays true when that process ends
//! ([`State::heed`]).

use super::JUMP;
use crate::group::Doubt;
use crate::mapping::NAMED_HOSTS;
use crate::refused::{MAX_DEVICES, MAX_SDCS, MAX_VOLUMES};
use crate::reserve::REGISTRANTS;
use crate::state::State;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{DeviceId, GroupId, MapVersion, Mutant, VolumeId, mutant};
use core::ops::Range;
use wire::control::{GroupInfo, IdRange, Report, VolumeInfo};

/// The most groups in the report of one device.
const TOLD_GROUPS: usize = 1 << 17;
/// The most volumes of which one device may report data.
const TOLD_HELD: usize = 1 << 17;
/// The most ranges of volume ids that one device may report as unknown.
const TOLD_UNKNOWN: usize = 1 << 17;
/// No group ever comes to this epoch: recoveries add [`super::JUMP`] each.
const EPOCHS: u64 = 1 << 62;

/// The report of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceReport {
    pub(super) groups: BTreeMap<GroupId, Remembered>,
    pub(super) held: BTreeSet<u32>,
    /// The map of its process.
    map: Map,
    /// The newest map of lost MDMs that an earlier process reported.
    earlier: Option<Map>,
}

/// A device's records of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered {
    pub acted: u64,
    /// In that epoch it was a joiner.
    pub joiner: bool,
    pub base: u64,
}

/// A server's map, as far as it matters for a recovery.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    /// 0: the process has no map, or its map does not name its incarnation.
    pub version: MapVersion,
    /// Version of the newest map that an MDM itself has sent to this server.
    pub from_mdm: MapVersion,
    pub configs: BTreeMap<GroupId, GroupInfo>,
    pub volumes: BTreeMap<VolumeId, VolumeInfo>,
    pub next_volume: u32,
    /// Ranges of volume ids of which the MDM of this map did not know whether they were used or
    /// deleted: the first id of each, and one more than the last one.
    unknown: BTreeMap<VolumeId, VolumeId>,
    /// The contents of devices.
    pub stores: BTreeMap<DeviceId, u64>,
    /// The contents that the MDM waited for, if these are others.
    pub awaited: BTreeMap<DeviceId, u64>,
}

impl DeviceReport {
    /// Adds a part of a report. Returns false if no honest device can have this much to report.
    #[must_use]
    pub fn add(&mut self, part: Report) -> bool {
        let map = &mut self.map;
        if self.groups.len() + part.groups.len() > TOLD_GROUPS
            || map.volumes.len() + part.volumes.len() > MAX_VOLUMES
            || self.held.len() + part.held.len() > TOLD_HELD
            || map.unknown.len() + part.unknown.len() > TOLD_UNKNOWN
            || map.stores.len() + part.devices.len() > MAX_DEVICES
            || part.groups.iter().any(|g| g.acted.max(g.base) >= EPOCHS)
            || part
                .groups
                .iter()
                .filter_map(|g| g.config.as_ref())
                .any(|c| c.epoch.max(c.reached) >= EPOCHS)
        {
            return false;
        }
        (map.version, map.from_mdm) = (MapVersion(part.version), MapVersion(part.told));
        map.next_volume = part.next_volume;
        let unknown = part.unknown.iter().map(IdRange::ids);
        map.unknown.extend(unknown.map(|ids| (ids.start, ids.end)));
        map.stores.extend(part.devices.iter().map(|d| (DeviceId(d.device), d.store)));
        let awaited = part.devices.iter().filter(|d| d.awaited != 0);
        map.awaited.extend(awaited.map(|d| (DeviceId(d.device), d.awaited)));
        self.held.extend(part.held);
        for g in part.groups {
            let (id, acted, joiner, base) = (GroupId(g.group), g.acted, g.joiner, g.base);
            self.groups.insert(id, Remembered { acted, joiner, base });
            map.configs.extend(g.config.map(|config| (id, config)));
        }
        part.volumes.into_iter().all(|v| map.add_volume(v))
    }

    /// Returns groups with the newest epochs in which the device took part.
    pub(crate) fn took_part(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.groups.iter().map(|(group, said)| (*group, said.acted))
    }

    pub(super) fn acted(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |s| s.acted)
    }

    /// Returns the maps of its present and of an earlier process.
    fn maps(&self) -> impl Iterator<Item = &Map> {
        core::iter::once(&self.map).chain(&self.earlier)
    }

    /// Returns true if the device remembers no epoch of this group, and its process has no map from
    /// before the doubt. Later maps do not tell whether it was in sync before, and neither does the
    /// map of an earlier recovery that was in doubt about the group.
    /// `lost` is where the versions of lost MDMs begin: a map from after a later recovery that does
    /// not have the group says nothing of it either.
    pub(super) fn is_blank(&self, group: GroupId, began: MapVersion, lost: MapVersion) -> bool {
        let doubted = match self.map.configs.get(&group) {
            Some(config) => config.doubt != Doubt::None as u32,
            None => self.map.version.0 / JUMP > lost.0 / JUMP,
        };
        let doubted = doubted && !mutant::on(Mutant::BelieveDoubtful);
        (doubted || !self.map.is_before(began)) && self.acted(group) == 0
    }

    /// Returns true if this device was not emptied after this configuration of a group was made: it
    /// has taken part since, or its map names its present incarnation and this configuration.
    pub(super) fn is_witness(&self, group: GroupId, newest: &GroupInfo, began: MapVersion) -> bool {
        let sure = |c: &GroupInfo| c.epoch == newest.epoch && c.doubt == Doubt::None as u32;
        let knows = || self.map.configs.get(&group).is_some_and(sure);
        self.acted(group) > 0 || self.map.is_before(began) && knows()
    }

    /// Keeps the newest map of lost MDMs that this device has reported, unless the map of its
    /// present process is as new. `lost` is their range of versions.
    fn keep_map_of(&mut self, former: DeviceReport, lost: &Range<MapVersion>) {
        let own = self.map.is_before(lost.end).then_some(self.map.version);
        let older = former.earlier.into_iter().chain([former.map]);
        let of_lost = older.filter(|m| m.version < lost.end && Some(m.version) > own);
        let newest = of_lost.max_by_key(|m| m.version);
        self.earlier = newest.filter(|_| !mutant::on(Mutant::ForgetMaps));
    }
}

impl Map {
    /// Adds a volume, or more clients or hosts to its mapping, or more hosts to its reservations:
    /// those of many come in several parts.
    fn add_volume(&mut self, told: VolumeInfo) -> bool {
        let Some(known) = self.volumes.get_mut(&VolumeId(told.id)) else {
            self.volumes.insert(VolumeId(told.id), told);
            return true;
        };
        let hosts = told.reservations.map_or_else(Vec::new, |r| r.registrants);
        if !hosts.is_empty() {
            let registrants = &mut known.reservations.get_or_insert_default().registrants;
            registrants.extend(hosts);
            return registrants.len() <= REGISTRANTS;
        }
        let more = told.mapping.unwrap_or_default();
        let mapping = known.mapping.get_or_insert_default();
        mapping.sdcs.extend(more.sdcs);
        let Some(hosts) = more.hosts else { return mapping.sdcs.len() <= MAX_SDCS };
        let named = &mut mapping.hosts.get_or_insert_default().named;
        named.extend(hosts.named);
        named.len() <= NAMED_HOSTS
    }

    /// Returns true if the MDM of this map knew that this volume was deleted.
    pub(super) fn is_deleted(&self, id: VolumeId) -> bool {
        let unknown = self.unknown.range(..=id).next_back().is_some_and(|(_, end)| id < *end);
        id.0 < self.next_volume && !unknown && !self.volumes.contains_key(&id)
    }

    /// Returns those of these ids that the MDM of this map did not list as unknown. `pending` are
    /// volumes that it had and that the state does not have yet.
    pub(super) fn known_ids(
        &self,
        unknown: &[Range<VolumeId>],
        pending: &[VolumeId],
    ) -> Vec<Range<VolumeId>> {
        let next = VolumeId(self.next_volume);
        let pending = pending.iter().filter(|id| **id < next);
        let pending = pending.map(|id| *id..VolumeId(id.0 + 1));
        let listed = self.unknown.iter().map(|(start, end)| *start..*end).chain(pending);
        let mut listed: Vec<Range<VolumeId>> = listed.collect();
        listed.sort_unstable_by_key(|range| range.start);
        let mut unknown = unknown.to_vec();
        unknown.sort_unstable_by_key(|range| range.start);
        let (mut known, mut listed) = (Vec::new(), listed.into_iter().peekable());
        let mut from = VolumeId(0); // lower ids are listed, or were looked at
        for range in unknown {
            let end = range.end.min(next);
            from = from.max(range.start);
            while let Some(other) = listed.next_if(|other| other.start < end) {
                known.extend(Some(from..other.start).filter(|ids| !ids.is_empty()));
                from = from.max(other.end);
            }
            known.extend(Some(from..end).filter(|ids| !ids.is_empty()));
            from = from.max(end);
        }
        known
    }

    /// Returns true if the process has a map, and that map is older than this version.
    pub(super) fn is_before(&self, version: MapVersion) -> bool {
        self.version.0 > 0 && self.version < version
    }
}

/// The reports of all devices.
pub type DeviceReports = BTreeMap<DeviceId, DeviceReport>;

impl State {
    /// Replaces the device's former report by this one. Maps of lost MDMs are kept.
    pub fn heed(&self, reports: &mut DeviceReports, device: DeviceId, mut report: DeviceReport) {
        if let Some(former) = reports.remove(&device) {
            report.keep_map_of(former, &self.recovery.lost);
        }
        reports.insert(device, report);
    }
}

/// Returns the reported maps that lost MDMs made.
pub(super) fn lost_maps<'a>(
    state: &'a State,
    reports: &'a DeviceReports,
) -> impl Iterator<Item = &'a Map> {
    reports.values().flat_map(DeviceReport::maps).filter(|m| m.version < state.recovery.lost.end)
}
