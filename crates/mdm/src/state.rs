//! The cluster's state, and what commands do to it.
//!
//! `apply` is a pure function of state and command. It works in two steps: [`State::edits`] returns
//! what would change, and `commit` changes it. So a command that changes nothing is known before it
//! is logged, and a group's epoch rises by exactly one whatever the command did to it (recoveries
//! and accepted losses of groups in doubt raise it by more).
//!
//! The edits of one command may touch every group. The MDM that makes a command computes them once
//! ([`State::change`], [`State::make`]). The others get the command, and compute the same edits
//! from the same state.
//!
//! Invariants ([`State::check`]): those of [`Group`], and: ids and incarnations are below their
//! counters; names are unique; slots name groups; a lost group that no volume uses has no replica
//! that is up (it would have been formed again).
//!
//! The effects of each command are in one file per noun, under `state/`.

mod check;
mod clients;
mod damage;
mod devices;
mod groups;
mod naming;
mod reconcile;
mod volumes;

use crate::command::{self, Command};
use crate::group::Group;
use crate::id_set::IdSet;
use crate::mapping::Mapping;
use crate::members::{Member, Members};
use crate::objects::Objects;
use crate::recovery::{Given, Recovery};
use crate::refused::{MAX_WAITING, Refused};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::level;
use base::mutant::{self, Mutant};
use base::{
    ClusterId, DeviceId, DomainId, FaultSetId, GroupId, Incarnation, MapVersion, PoolId, SdcId,
    SdsId, VolumeId,
};
use groups::{forget_volume, index_volume};
pub(crate) use volumes::check_size;
use wire::control::{AcceptedLoss, DeviceKind, Intent, Register};

/// Number of earlier nonces of a device or client that are kept, to tell a left-over process from a
/// new one.
const PAST: usize = 8;

/// Incarnations are below this number, so that counting on never overflows.
const LIVES: u64 = 1 << 63;

/// Returns true for a device that keeps its content when its process ends.
pub fn survives(kind: DeviceKind) -> bool {
    kind == DeviceKind::Durable
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its server.
    pub sds: SdsId,
    /// Number of its shard in the server: with the server it is the device's place.
    pub shard: u32,
    /// Address where its process listens.
    pub address: String,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The number that the process drew at its start.
    pub nonce: u64,
    /// Nonces of earlier processes, the latest last.
    pub past: Vec<u64>,
    /// The number drawn at random when its store was made (RAM: when the process started). It
    /// identifies the content.
    pub store: u64,
    /// Its kind.
    pub kind: DeviceKind,
    /// Bytes for data.
    pub capacity: u64,
    /// The process id, for people.
    pub pid: u32,
    /// The release of the process; empty in a cluster of level 1.
    pub release: String,
    /// It counts as alive.
    pub up: bool,
    /// It is down, and known to be dead.
    pub dead: bool,
    /// Number of scrubs that were ordered.
    pub scrub: u32,
    /// Whether it may hold replicas, and whether it is to leave.
    pub intent: Intent,
    /// Its storage pool. It never changes.
    pub pool: PoolId,
    /// The map version that changed it last.
    pub changed_at: MapVersion,
}

impl Device {
    /// Returns true while the device counts as alive in its place: what claims to be it in another
    /// place is a copy.
    pub(crate) fn is_in_use(&self) -> bool {
        self.up && !mutant::on(Mutant::TakeCopy)
    }
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name that its processes give. It never changes.
    pub own: String,
    /// Its name, for people.
    pub name: String,
    /// Its protection domain. It never changes.
    pub domain: DomainId,
    /// Its fault set. It never changes.
    pub fault_set: Option<FaultSetId>,
    /// Its fault unit: the first server of its fault set, or itself.
    pub unit: SdsId,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdc {
    /// The name that its processes give. It never changes.
    pub own: String,
    /// Its name, for people.
    pub name: String,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The number that the process drew at its start.
    pub nonce: u64,
    /// Nonces of earlier processes, the latest last.
    pub past: Vec<u64>,
    /// The process id, for people.
    pub pid: u32,
    /// NBD addresses, for people.
    pub nbd: Vec<String>,
    /// The map version that changed it last.
    pub changed_at: MapVersion,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Bytes, a multiple of 1 MiB.
    pub size: u64,
    /// Rises when a client's permission to use the volume ends: for fencing.
    pub generation: u32,
    /// The clients that may use it.
    pub mapping: Mapping,
    /// Its storage pool. It never changes.
    pub pool: PoolId,
    /// Space for all of it is reserved.
    pub thick: bool,
    /// The groups of its units.
    pub slots: Vec<GroupId>,
    /// The latest losses that operators have accepted.
    pub losses: Vec<AcceptedLoss>,
    /// Groups whose part of the volume was lost, with the number of units that the volume had then:
    /// their blocks are errors to read until they are written.
    pub gaps: BTreeMap<GroupId, u32>,
    /// The map version that changed it last.
    pub changed_at: MapVersion,
}

/// The effect of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// None: the state is as the command wants it already, or the command is outdated.
    Unchanged,
    /// The command changed the state.
    Changed,
    /// None, for this reason, which is for the requester.
    Refused(Refused),
}

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
    /// Of the client ids that lost MDMs may have given away, those that no client may claim any
    /// more: the client was removed, or this MDM itself gave the id away between two recoveries.
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
    /// The groups of each device. Follows from `groups`.
    pub(crate) by_device: BTreeMap<DeviceId, Vec<GroupId>>,
    /// The groups of each two devices, the smaller id first. Follows from `groups`.
    pub(crate) by_pair: BTreeMap<(DeviceId, DeviceId), Vec<GroupId>>,
    /// The volumes of each group. Follows from `volumes`.
    pub(crate) users: BTreeMap<GroupId, Users>,
}

/// How volumes use a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Users {
    /// Number of volumes.
    pub volumes: u32,
    /// Units of theirs that the group may come to hold, as a volume's units spread evenly over its
    /// groups.
    pub units: u64,
}

/// Ids that reports name count only below this one, so that there is room for new ones.
pub(crate) const IDS_END: u32 = 1 << 31;

/// The changes of a command. Epochs are final; `commit` sets `changed_at`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Edits {
    cluster: Option<ClusterId>,
    level: Option<u32>,
    devices: Vec<(DeviceId, Device)>,
    server: Option<(SdsId, Server)>,
    objects: Option<Objects>,
    sdc: Option<(SdcId, Option<Sdc>)>,
    groups: Vec<(GroupId, Group)>,
    volume: Option<(VolumeId, Option<Volume>)>,
    member: Option<(u32, Option<Member>)>,
    /// From a [`command::Reconcile`] or [`command::AcceptLoss`].
    volumes: Vec<(VolumeId, Option<Volume>)>,
    given: Option<Given>,
    forget: Option<command::Forget>,
    awaited: Vec<command::Awaited>,
    /// The recovery ends, and these volumes stay unknown.
    recovered: Option<Vec<u32>>,
}

impl Edits {
    /// Returns true if the command changes nothing, so that it need not be logged.
    pub fn is_empty(&self) -> bool {
        !self.is_map()
    }

    fn is_map(&self) -> bool {
        self.cluster.is_some()
            || self.level.is_some()
            || !self.devices.is_empty()
            || self.server.is_some()
            || self.sdc.is_some()
            || self.objects.is_some()
            || self.volume.is_some()
            || self.member.is_some()
            || !self.groups.is_empty()
            || !self.volumes.is_empty()
            || self.given.is_some()
            || self.forget.is_some()
            || !self.awaited.is_empty()
            || self.recovered.is_some()
    }
}

/// A command, and what it changes in the state that it was made for.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    command: Command,
    edits: Edits,
    /// The index of that state.
    at: u64,
}

impl Change {
    /// Returns true if the command changes nothing, so that it need not be logged.
    pub fn is_nothing(&self) -> bool {
        self.edits.is_empty()
    }

    /// Returns the command alone.
    pub fn into_command(self) -> Command {
        self.command
    }
}

impl core::ops::Deref for Change {
    type Target = Command;

    fn deref(&self) -> &Command {
        &self.command
    }
}

impl State {
    /// Returns a state without a cluster.
    pub fn new() -> State {
        let (next_volume, next_incarnation) = (VolumeId(1), Incarnation(1));
        State { level: level::FIRST, next_volume, next_incarnation, ..State::default() }
    }

    /// Applies the log entry with this index, which must be the next one.
    pub fn apply(&mut self, index: u64, command: &Command) -> Outcome {
        assert_eq!(index, self.index + 1, "log entries are applied in order");
        let edits = self.edits(command);
        self.index = index;
        match edits {
            Err(why) => Outcome::Refused(why),
            Ok(edits) if edits.is_empty() => Outcome::Unchanged,
            Ok(edits) => {
                self.commit(edits);
                Outcome::Changed
            }
        }
    }

    /// Makes a change that was computed for this very state, and returns its command. Panics if the
    /// change was computed for another state.
    pub fn make(&mut self, change: Change) -> Command {
        assert_eq!(change.at, self.index, "a change belongs to one state");
        self.index += 1;
        if !change.is_nothing() {
            self.commit(change.edits);
        }
        change.command
    }

    /// Returns the command with what it changes, or the reason why it is refused.
    pub fn change(&self, command: Command) -> Result<Change, Refused> {
        let edits = self.edits(&command)?;
        Ok(Change { command, edits, at: self.index })
    }

    /// Returns what the command would change now.
    pub fn edits(&self, command: &Command) -> Result<Edits, Refused> {
        match command {
            Command::FormCluster(c) => Ok(self.form(c)),
            Command::DeviceUp(c) => Ok(self.device_up(c).unwrap_or_default()),
            Command::DeviceDown(c) => Ok(self.devices_down(core::slice::from_ref(c))),
            Command::DevicesDown(c) => Ok(self.devices_down(&c.list)),
            Command::Suspect(c) => Ok(self.suspect(c)),
            Command::Join(c) => Ok(self.join(c)),
            Command::Admit(c) => Ok(self.admit(c)),
            Command::RegisterSdc(c) => Ok(self.sdc_up(c).unwrap_or_default()),
            Command::CreateVolume(c) => self.create_volume(c),
            Command::ResizeVolume(c) => self.resize_volume(c),
            Command::DeleteVolume(c) => self.delete_volume(c),
            Command::Scrub(c) => Ok(self.scrub(c).unwrap_or_default()),
            Command::Reshape(c) => Ok(self.reshape(c)),
            Command::Intend(c) => Ok(self.intend(c)),
            Command::AddMdm(c) => Ok(Edits { member: self.members.added(c), ..Edits::default() }),
            Command::RemoveMdm(c) => {
                Ok(Edits { member: self.members.removed(c), ..Edits::default() })
            }
            Command::MapVolume(c) => self.map_volume(c),
            Command::Rename(c) => self.rename(c),
            Command::PutObject(c) => self.put_object(c),
            Command::DropObject(c) => self.drop_object(c),
            Command::Reconcile(c) => Ok(self.reconcile(c)),
            Command::AcceptLoss(c) => Ok(self.accept_loss(c)),
            Command::SetLevel(c) => Ok(self.set_level(c)),
        }
    }

    fn form(&self, c: &command::FormCluster) -> Edits {
        let first = self.cluster.0 == 0 && c.cluster != 0;
        Edits { cluster: first.then_some(ClusterId(c.cluster)), ..Edits::default() }
    }

    /// A level never falls.
    fn set_level(&self, c: &command::SetLevel) -> Edits {
        let level = Some(c.level).filter(|level| *level > self.level);
        Edits { level, ..Edits::default() }
    }

    // Long: one kind of change after the other; the end of a recovery is last, as it touches all.
    fn commit(&mut self, edits: Edits) {
        if edits.is_map() {
            self.version = MapVersion(self.index);
        }
        let changed_at = self.version;
        if let Some(cluster) = edits.cluster {
            self.cluster = cluster;
        }
        self.level = edits.level.unwrap_or(self.level);
        if let Some((id, server)) = edits.server {
            self.servers.insert(id, server);
        }
        if let Some(objects) = edits.objects {
            self.objects = Objects { changed_at, ..objects };
        }
        for (id, device) in edits.devices {
            self.next_incarnation =
                self.next_incarnation.max(Incarnation(device.incarnation.0 + 1));
            self.devices.insert(id, Device { changed_at, ..device });
        }
        match edits.sdc {
            Some((id, Some(sdc))) => {
                let next = Incarnation(sdc.incarnation.0 + 1);
                self.next_incarnation = self.next_incarnation.max(next);
                self.last_sdc = self.last_sdc.max(id);
                self.sdcs.insert(id, Sdc { changed_at, ..sdc });
            }
            Some((id, None)) => {
                self.sdcs.remove(&id);
                if (self.recovery.sdc_known + 1..=self.recovery.sdc).contains(&id.0) {
                    self.removed_sdcs.insert(id.0..id.0 + 1);
                }
                self.sdcs_gone_at = changed_at;
            }
            None => {}
        }
        if let Some((id, member)) = edits.member {
            self.members.set(id, member, changed_at);
        }
        for (id, group) in edits.groups {
            let old = self.groups.get(&id).map(|g| g.replicas.clone());
            if old.as_ref() != Some(&group.replicas) {
                self.forget_group(id, old.as_deref().unwrap_or_default());
                self.index_group(id, &group);
            }
            self.groups.insert(id, Group { changed_at, ..group });
        }
        for (id, volume) in edits.volumes.into_iter().chain(edits.volume) {
            self.next_volume = self.next_volume.max(VolumeId(id.0 + 1));
            let old = match volume {
                Some(volume) => {
                    index_volume(&mut self.users, &volume);
                    self.volumes.insert(id, Volume { changed_at, ..volume })
                }
                None => {
                    self.recovery.forget(id);
                    self.volumes.remove(&id)
                }
            };
            old.iter().for_each(|v| forget_volume(&mut self.users, v));
        }
        if let Some(given) = edits.given {
            self.give_away(given);
        }
        if let Some(forget) = edits.forget {
            forget.volumes.iter().for_each(|id| self.recovery.forget(VolumeId(*id)));
            self.recovery.forgot = Some(forget);
        }
        let awaited = edits.awaited.iter().map(|a| a.entry());
        self.recovery.awaited.extend(awaited);
        if let Some(left) = edits.recovered {
            self.close_recovery(left);
        }
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
        self.by_device.get(&device).map_or(&[], |g| g)
    }

    /// Returns true if a volume uses this group.
    pub fn is_used(&self, group: GroupId) -> bool {
        self.users.contains_key(&group)
    }

    /// Returns the units that a group may come to hold; 0: no volume uses it.
    pub fn units_of(&self, group: GroupId) -> u64 {
        self.users.get(&group).map_or(0, |u| u.units)
    }

    /// Returns the known device that this registration is about: the one with the id that is
    /// written on it, or the one in its place.
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
