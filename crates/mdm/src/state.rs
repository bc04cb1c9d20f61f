//! The cluster's state, and the effects of commands on it.
//!
//! `apply` is a pure function of state and command. It works in two steps: [`State::edits`] returns
//! the changes, and `commit` makes them. So a command that changes nothing is known before it is
//! logged. And a group's epoch rises by exactly one for any change (recoveries and accepted losses
//! of groups in doubt raise it by more).
//!
//! The edits of one command may touch every group. The MDM that makes a command computes them once
//! ([`State::change`], [`State::make`]). The others get the command, and compute the same edits
//! from the same state.
//!
//! Invariants ([`State::check`]): those of [`Group`], and: ids and incarnations are below their
//! counters; names are unique; slots name groups; a lost group that no volume uses has no replica
//! that is up (it would have been formed again).
//!
//! [`State`] is data with lookups. The files under `state/` have the functions that return the
//! edits of a command, one file per noun; `apply`, the only place where edits are made; and
//! `check`.

mod apply;
mod check;
mod clients;
mod damage;
mod devices;
mod edits;
mod group_index;
pub(crate) mod groups;
pub(crate) mod naming;
pub(crate) mod reconcile;
mod seats;
pub(crate) mod volumes;

pub use crate::client::Sdc;
pub use crate::device::{Device, Server, survives};
pub use crate::volume::Volume;
pub use apply::Outcome;
pub use edits::{Change, Edits};

use crate::group::Group;
use crate::id_set::IdSet;
use crate::members::Members;
use crate::objects::Objects;
use crate::recovery::Recovery;
use crate::refused::MAX_WAITING;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::level;
use base::mutant::{self, Mutant};
use base::{
    ClusterId, DeviceId, DomainId, GroupId, Incarnation, MapVersion, PoolId, SdcId, SdsId, VolumeId,
};
pub(crate) use group_index::GroupIndex;
use wire::control::{Intent, Register};

/// Number of earlier nonces of a device or client that are kept, to tell a left-over process from a
/// new one.
const PAST: usize = 8;

/// Incarnations are below this number, so that the counter never overflows.
const LIVES: u64 = 1 << 63;

/// The replicated state of the MDMs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// The cluster; 0 before it is formed.
    pub cluster: ClusterId,
    /// The cluster's level: what may be logged, sent, or written to a device (`base::level`).
    pub level: u32,
    /// Index of the last command.
    pub index: u64,
    /// Index of the last command that changed the map.
    pub version: MapVersion,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Servers.
    pub servers: BTreeMap<SdsId, Server>,
    /// The cluster's name, protection domains, fault sets, storage pools.
    pub objects: Objects,
    /// Clients.
    pub sdcs: BTreeMap<SdcId, Sdc>,
    /// The last client id that was given away, even if that client was removed.
    pub last_sdc: SdcId,
    /// Client ids that lost MDMs may have given away and that no client may claim any more: the
    /// client was removed, or this MDM itself gave the id away between two recoveries.
    pub removed_sdcs: IdSet,
    /// The map version that removed a client last.
    pub sdcs_gone_at: MapVersion,
    /// The MDMs themselves.
    pub members: Members,
    /// Groups.
    pub groups: BTreeMap<GroupId, Group>,
    /// Volumes.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// The next new volume's id. No new volume gets a lower one.
    pub next_volume: VolumeId,
    /// The next new incarnation.
    pub next_incarnation: Incarnation,
    /// The record of recoveries.
    pub recovery: Recovery,
    /// Lists to find groups by. Follows from `groups` and `volumes`.
    pub(crate) group_index: GroupIndex,
}

impl State {
    /// Returns a state without a cluster.
    pub fn new() -> State {
        let (next_volume, next_incarnation) = (VolumeId(1), Incarnation(1));
        State { level: level::FIRST, next_volume, next_incarnation, ..State::default() }
    }

    /// Returns true if the device counts as alive.
    pub fn is_up(&self, device: DeviceId) -> bool {
        self.devices.get(&device).is_some_and(|d| d.up)
    }

    /// Returns the number of devices that were not removed.
    pub(crate) fn devices_there(&self) -> usize {
        self.devices.values().filter(|d| d.intent != Intent::Removed).count()
    }

    /// Returns the number of devices that wait for an order.
    pub(crate) fn waiting(&self) -> usize {
        self.devices.values().filter(|d| d.intent == Intent::Waiting).count()
    }

    /// Returns true if no further new device may wait to be admitted to this pool.
    pub(crate) fn is_full_of_strangers(&self, pool: PoolId) -> bool {
        self.has_to_wait(pool) && self.waiting() >= MAX_WAITING
    }

    /// Returns true if new devices of this pool wait for an order.
    pub(crate) fn has_to_wait(&self, pool: PoolId) -> bool {
        self.objects.pools.get(&pool).is_some_and(|p| p.by_order)
    }

    /// Returns the groups that a device belongs to.
    pub fn groups_of(&self, device: DeviceId) -> &[GroupId] {
        self.group_index.of_device(device)
    }

    /// Returns true if a volume uses this group.
    pub fn is_used(&self, group: GroupId) -> bool {
        self.group_index.users(group).is_some()
    }

    /// Returns the units that a group may come to hold; 0: no volume uses it.
    pub fn units_of(&self, group: GroupId) -> u64 {
        self.group_index.users(group).map_or(0, |u| u.units)
    }

    /// Returns the known device that this registration is about: the one with the id that is
    /// written on the disk, or the one in its place.
    pub fn reporter(&self, m: &Register) -> Option<(DeviceId, &Device)> {
        if m.device != 0 && !mutant::on(Mutant::StrangeDevice) {
            let id = DeviceId(m.device);
            return self.devices.get(&id).map(|d| (id, d));
        }
        let place = (self.server_of(&m.sds)?, m.shard);
        let here = |d: &Device| (d.sds, d.shard) == place && d.intent != Intent::Removed;
        let mut there = self.devices.iter().filter(|(_, d)| here(d));
        there.next_back().map(|(id, d)| (*id, d))
    }

    /// Returns true for a known device at another place than the state knows: it was moved, or it
    /// is a copy.
    pub fn is_elsewhere(&self, m: &Register) -> bool {
        let known = self.reporter(m);
        known.is_some_and(|(_, d)| self.server_of(&m.sds) != Some(d.sds) || d.shard != m.shard)
    }

    /// Returns the devices that are up in the place of this registration, and the device itself if
    /// it is up.
    pub fn in_the_way(&self, m: &Register) -> Vec<DeviceId> {
        let place = self.server_of(&m.sds).map(|sds| (sds, m.shard));
        let here = |id: &DeviceId, d: &Device| id.0 == m.device || Some((d.sds, d.shard)) == place;
        let there = self.devices.iter().filter(|(id, d)| d.up && here(id, d));
        there.map(|(id, _)| *id).collect()
    }

    /// Returns the server whose processes give this name.
    pub fn server_of(&self, own: &str) -> Option<SdsId> {
        self.servers.iter().find(|(_, s)| s.own == own).map(|(id, _)| *id)
    }

    /// Returns the server with this name.
    pub fn server_named(&self, name: &str) -> Option<SdsId> {
        self.servers.iter().find(|(_, s)| s.name == name).map(|(id, _)| *id)
    }

    /// Returns the client whose processes give this name.
    pub fn sdc_of(&self, own: &str) -> Option<(SdcId, &Sdc)> {
        self.sdcs.iter().find(|(_, s)| s.own == own).map(|(id, s)| (*id, s))
    }

    /// Returns the client with this name.
    pub fn sdc_named(&self, name: &str) -> Option<(SdcId, &Sdc)> {
        self.sdcs.iter().find(|(_, s)| s.name == name).map(|(id, s)| (*id, s))
    }

    /// Returns a device's fault unit, named by the first server of it. Two copies on one fault unit
    /// can be lost together.
    pub fn unit_of(&self, device: DeviceId) -> Option<SdsId> {
        let server = self.devices.get(&device)?.sds;
        let alone = || self.servers.get(&server).is_some_and(|s| s.fault_set.is_none());
        match mutant::on(Mutant::DeviceIsUnit) && alone() {
            true => Some(SdsId(device.0 | 1 << 31)), // a number that no server has
            false => Some(self.unit(server)),
        }
    }

    /// Returns a server's fault unit.
    pub fn unit(&self, server: SdsId) -> SdsId {
        let known = self.servers.get(&server).filter(|_| !mutant::on(Mutant::IgnoreFaultSets));
        known.map_or(server, |s| s.unit)
    }

    /// Returns a server's protection domain.
    pub fn domain_of(&self, server: SdsId) -> DomainId {
        self.servers.get(&server).map_or(DomainId(1), |s| s.domain)
    }

    /// Returns the number of fault units in the protection domain of this device, without servers
    /// whose devices all wait.
    pub fn units_beside(&self, device: DeviceId) -> usize {
        let Some(device) = self.devices.get(&device) else { return 0 };
        let domain = self.domain_of(device.sds);
        let counted = self.devices.values().filter(|d| d.intent.counts());
        let units = counted.filter(|d| self.domain_of(d.sds) == domain).map(|d| self.unit(d.sds));
        units.collect::<BTreeSet<SdsId>>().len()
    }

    /// Returns a group's storage pool: that of its devices.
    pub fn pool_of(&self, group: &Group) -> Option<PoolId> {
        self.devices.get(group.replicas.first()?).map(|d| d.pool)
    }

    /// Returns the volume with this name.
    pub fn volume_named(&self, name: &str) -> Option<(VolumeId, &Volume)> {
        self.volumes.iter().find(|(_, v)| v.name == name).map(|(id, v)| (*id, v))
    }

    /// Returns true for a client, and for an id that only lost MDMs may have given away: that
    /// client may still register.
    pub(crate) fn may_be_client(&self, id: SdcId) -> bool {
        self.sdcs.contains_key(&id) || self.may_be_lost(id)
    }

    /// Returns true for an id that MDMs lost in a recovery may have assigned, and that was not
    /// removed since.
    pub(crate) fn may_be_lost(&self, id: SdcId) -> bool {
        let recovery = &self.recovery;
        let may = id.0 > recovery.sdc_known && recovery.may_be_given(id.0, recovery.sdc);
        may && !self.removed_sdcs.contains(id.0)
    }

    /// Returns true for the id of a device that MDMs lost in a recovery may have given away.
    pub(crate) fn may_be_lost_device(&self, id: DeviceId) -> bool {
        let recovery = &self.recovery;
        recovery.may_be_given(id.0, recovery.device)
            || recovery.is_above(id.0, self.next_device().0)
    }

    /// Returns the bytes that thick volumes of this pool have reserved, in all copies.
    pub fn reserved(&self, pool: PoolId) -> u64 {
        let thick = self.volumes.values().filter(|v| v.thick && v.pool == pool);
        thick.map(|v| v.size.saturating_mul(2)).fold(0, u64::saturating_add)
    }

    // Entries of devices, servers and groups are never removed, so the next id follows from the
    // last one.

    /// Returns the next new device's id.
    pub fn next_device(&self) -> DeviceId {
        DeviceId(next(self.devices.last_key_value().map(|(id, _)| id.0), self.recovery.device))
    }

    /// Returns the next new server's id.
    pub fn next_sds(&self) -> SdsId {
        SdsId(next(self.servers.last_key_value().map(|(id, _)| id.0), self.recovery.server))
    }

    /// Returns the next new group's id.
    pub fn next_group(&self) -> GroupId {
        GroupId(next(self.groups.last_key_value().map(|(id, _)| id.0), self.recovery.group))
    }

    /// Returns the next new client's id.
    pub fn next_sdc(&self) -> SdcId {
        SdcId(next(Some(self.last_sdc.0), self.recovery.sdc))
    }
}

/// Returns the id after the last one that was given, and after those that lost MDMs may have given.
fn next(last: Option<u32>, lost: u32) -> u32 {
    last.unwrap_or(0).max(lost) + 1
}
