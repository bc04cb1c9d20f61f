//! The cluster's state, and what commands do to it.
//!
//! `apply` is a pure function of state and command. It works in two steps: [`State::edits`] tells
//! what would change, `commit` changes it. So a command that changes nothing is known before it is
//! logged, and a group's epoch rises by exactly one whatever the command did to it.
//!
//! Invariants ([`State::check`]): those of [`Group`], and: ids and incarnations are below their
//! counters; names are unique; slots name groups; a lost group that no volume uses has no replica
//! that is up (it would have been formed anew).
//!
//! What each command does is in one file per noun, under `state/`.

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

/// How many earlier nonces of a device or client are remembered, to tell a left-over process from
/// a new one.
const PAST: usize = 8;

/// Lives are numbered below this, so that counting on never overflows.
const LIVES: u64 = 1 << 63;

/// True for a device that keeps its content when its process ends.
pub fn survives(kind: DeviceKind) -> bool {
    kind == DeviceKind::Durable
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its server.
    pub sds: SdsId,
    /// Which shard of the server.
    pub shard: u32,
    /// Where it listens.
    pub address: String,
    /// The life of its process.
    pub incarnation: Incarnation,
    /// What that process drew at its start.
    pub nonce: u64,
    /// What earlier lives drew, the latest last.
    pub past: Vec<u64>,
    /// What was drawn when its store was made.
    pub store: u64,
    /// What it is.
    pub kind: DeviceKind,
    /// Bytes for data.
    pub capacity: u64,
    /// The process, for people.
    pub pid: u32,
    /// The release of the process; empty in a cluster of level 1.
    pub release: String,
    /// Thought to be alive.
    pub up: bool,
    /// Down, and known to be dead.
    pub dead: bool,
    /// How often it was asked to be scrubbed.
    pub scrub: u32,
    /// What is to become of it.
    pub intent: Intent,
    /// Its storage pool, for good.
    pub pool: PoolId,
    /// The version that changed it last.
    pub changed_at: MapVersion,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name that its processes give. It never changes.
    pub own: String,
    /// Its name, for people.
    pub name: String,
    /// Its protection domain, for good.
    pub domain: DomainId,
    /// Its fault set, for good.
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
    /// The life of its process.
    pub incarnation: Incarnation,
    /// What that process drew at its start.
    pub nonce: u64,
    /// What earlier lives drew, the latest last.
    pub past: Vec<u64>,
    /// The process, for people.
    pub pid: u32,
    /// NBD addresses, for people.
    pub nbd: Vec<String>,
    /// The version that changed it last.
    pub changed_at: MapVersion,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Bytes, a multiple of 1 MiB.
    pub size: u64,
    /// Rises when somebody's leave to use it ends: for fencing.
    pub generation: u32,
    /// Who may use it.
    pub mapping: Mapping,
    /// Its storage pool, for good.
    pub pool: PoolId,
    /// Space for all of it is reserved.
    pub thick: bool,
    /// The groups of its units.
    pub slots: Vec<GroupId>,
    /// Losses that people have accepted, the last ones.
    pub losses: Vec<AcceptedLoss>,
    /// Groups whose part of it was lost, with the units that it had then: those blocks are errors to read until they are
    /// written.
    pub gaps: BTreeMap<GroupId, u32>,
    /// The version that changed it last.
    pub changed_at: MapVersion,
}

/// What a command did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing: its effect was there already, or what it was about is over.
    Unchanged,
    /// What it says.
    Changed,
    /// Nothing, and somebody wants to know why.
    Refused(Refused),
}

/// Everything that the MDM knows for good.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// The cluster; 0 before it is formed.
    pub cluster: ClusterId,
    /// The cluster's level: what may be logged, sent, or written to a device (`base::level`).
    pub level: u32,
    /// The last command.
    pub index: u64,
    /// The last command that changed the map.
    pub version: MapVersion,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Servers.
    pub servers: BTreeMap<SdsId, Server>,
    /// The cluster's name, protection domains, fault sets, storage pools.
    pub objects: Objects,
    /// Clients.
    pub sdcs: BTreeMap<SdcId, Sdc>,
    /// Clients' ids up to this one were given away, also those of clients that were removed.
    pub last_sdc: SdcId,
    /// Of the ids that lost MDMs may have given to clients: those of which is known what became of them. These clients were
    /// removed, or this MDM itself has given the ids away between two recoveries.
    pub removed_sdcs: IdSet,
    /// The version that removed a client last.
    pub sdcs_gone_at: MapVersion,
    /// The MDMs themselves.
    pub members: Members,
    /// Groups.
    pub groups: BTreeMap<GroupId, Group>,
    /// Volumes.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// The next volume's id: those below that aren't there are gone for ever.
    pub next_volume: VolumeId,
    /// The next life's number.
    pub next_incarnation: Incarnation,
    /// What is remembered of recoveries of the MDMs.
    pub recovery: Recovery,
    /// The groups of each device. Follows from `groups`.
    pub(crate) by_device: BTreeMap<DeviceId, Vec<GroupId>>,
    /// The groups of each two devices, the smaller id first. Follows from `groups`.
    pub(crate) by_pair: BTreeMap<(DeviceId, DeviceId), Vec<GroupId>>,
    /// The volumes of each group. Follows from `volumes`.
    pub(crate) users: BTreeMap<GroupId, Users>,
}

/// What volumes have a group for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Users {
    /// How many.
    pub volumes: u32,
    /// Units of theirs that it may come to hold: those of a volume spread evenly over its groups.
    pub units: u64,
}

/// Ids of groups and volumes that somebody tells of are below this one: there is room for new ones.
pub(crate) const IDS_END: u32 = 1 << 31;

/// What a command changes. Epochs are set; `changed_at` is for `commit`.
#[derive(Default)]
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
    /// Of a [`command::Reconcile`] or [`command::AcceptLoss`].
    volumes: Vec<(VolumeId, Option<Volume>)>,
    given: Option<Given>,
    forget: Option<command::Forget>,
    awaited: Vec<command::Awaited>,
    /// A recovery is over, and these volumes are left of which nobody knows.
    recovered: Option<Vec<u32>>,
}

impl Edits {
    /// True when the command may as well not be logged.
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

impl State {
    /// A state without a cluster.
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

    /// What the command would change now.
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

    /// True when the device is thought to be alive.
    pub fn is_up(&self, device: DeviceId) -> bool {
        self.devices.get(&device).is_some_and(|d| d.up)
    }

    /// Devices that were not removed.
    pub(crate) fn devices_there(&self) -> usize {
        self.devices.values().filter(|d| d.intent != Intent::Removed).count()
    }

    /// Devices that wait for an order.
    pub(crate) fn waiting(&self) -> usize {
        self.devices.values().filter(|d| d.intent == Intent::Waiting).count()
    }

    /// True when no further device may wait for an order to come into this pool.
    pub(crate) fn is_full_of_strangers(&self, pool: PoolId) -> bool {
        self.has_to_wait(pool) && self.waiting() >= MAX_WAITING
    }

    /// True when devices that come into this pool for the first time wait for an order.
    pub(crate) fn has_to_wait(&self, pool: PoolId) -> bool {
        self.objects.pools.get(&pool).is_some_and(|p| p.by_order)
    }

    /// The groups that a device belongs to.
    pub fn groups_of(&self, device: DeviceId) -> &[GroupId] {
        self.by_device.get(&device).map_or(&[], |g| g)
    }

    /// True when a volume uses this group.
    pub fn is_used(&self, group: GroupId) -> bool {
        self.users.contains_key(&group)
    }

    /// Units that a group may come to hold; 0: no volume uses it.
    pub fn units_of(&self, group: GroupId) -> u64 {
        self.users.get(&group).map_or(0, |u| u.units)
    }

    /// The device that reports, if it is known: by the id that is written on it, or else by its place.
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

    /// Who counts as up where this device says that it is, and this device itself, if that does.
    pub fn in_the_way(&self, m: &Register) -> Vec<DeviceId> {
        let place = self.server_of(&m.sds).map(|sds| (sds, m.shard));
        let here = |id: &DeviceId, d: &Device| id.0 == m.device || Some((d.sds, d.shard)) == place;
        let there = self.devices.iter().filter(|(id, d)| d.up && here(id, d));
        there.map(|(id, _)| *id).collect()
    }

    /// The server whose processes give this name.
    pub fn server_of(&self, own: &str) -> Option<SdsId> {
        self.servers.iter().find(|(_, s)| s.own == own).map(|(id, _)| *id)
    }

    /// The server with this name.
    pub fn server_named(&self, name: &str) -> Option<SdsId> {
        self.servers.iter().find(|(_, s)| s.name == name).map(|(id, _)| *id)
    }

    /// The client whose processes give this name.
    pub fn sdc_of(&self, own: &str) -> Option<(SdcId, &Sdc)> {
        self.sdcs.iter().find(|(_, s)| s.own == own).map(|(id, s)| (*id, s))
    }

    /// The client with this name.
    pub fn sdc_named(&self, name: &str) -> Option<(SdcId, &Sdc)> {
        self.sdcs.iter().find(|(_, s)| s.name == name).map(|(id, s)| (*id, s))
    }

    /// A device's fault unit, named by the first server of it: two copies on one share their fate.
    pub fn unit_of(&self, device: DeviceId) -> Option<SdsId> {
        let server = self.devices.get(&device)?.sds;
        let alone = || self.servers.get(&server).is_some_and(|s| s.fault_set.is_none());
        match mutant::on(Mutant::DeviceIsUnit) && alone() {
            true => Some(SdsId(device.0 | 1 << 31)), // a number that no server has
            false => Some(self.unit(server)),
        }
    }

    /// A server's fault unit.
    pub fn unit(&self, server: SdsId) -> SdsId {
        let known = self.servers.get(&server).filter(|_| !mutant::on(Mutant::IgnoreFaultSets));
        known.map_or(server, |s| s.unit)
    }

    /// A server's protection domain.
    pub fn domain_of(&self, server: SdsId) -> DomainId {
        self.servers.get(&server).map_or(DomainId(1), |s| s.domain)
    }

    /// How many fault units the protection domain of this device has, without servers whose devices all wait.
    pub fn units_beside(&self, device: DeviceId) -> usize {
        let Some(device) = self.devices.get(&device) else { return 0 };
        let domain = self.domain_of(device.sds);
        let counted = self.devices.values().filter(|d| d.intent.counts());
        let units = counted.filter(|d| self.domain_of(d.sds) == domain).map(|d| self.unit(d.sds));
        units.collect::<BTreeSet<SdsId>>().len()
    }

    /// A group's storage pool: its devices'.
    pub fn pool_of(&self, group: &Group) -> Option<PoolId> {
        self.devices.get(group.replicas.first()?).map(|d| d.pool)
    }

    /// The volume with this name.
    pub fn volume_named(&self, name: &str) -> Option<(VolumeId, &Volume)> {
        self.volumes.iter().find(|(_, v)| v.name == name).map(|(id, v)| (*id, v))
    }

    // Entries of devices, servers and groups are never removed, so the next id follows from the last.

    /// The next new device's id.
    pub fn next_device(&self) -> DeviceId {
        DeviceId(next(self.devices.last_key_value().map(|(id, _)| id.0), self.recovery.device))
    }

    /// The next new server's id.
    pub fn next_sds(&self) -> SdsId {
        SdsId(next(self.servers.last_key_value().map(|(id, _)| id.0), self.recovery.server))
    }

    /// The next new group's id.
    pub fn next_group(&self) -> GroupId {
        GroupId(next(self.groups.last_key_value().map(|(id, _)| id.0), self.recovery.group))
    }

    /// The next new client's id.
    pub fn next_sdc(&self) -> SdcId {
        SdcId(next(Some(self.last_sdc.0), self.recovery.sdc))
    }
}

/// The id after the last one that was given, and after those that lost MDMs may have given.
fn next(last: Option<u32>, lost: u32) -> u32 {
    last.unwrap_or(0).max(lost) + 1
}
