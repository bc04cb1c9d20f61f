//! The cluster's state, and what commands do to it.
//!
//! `apply` is a pure function of state and command. It works in two steps: [`State::edits`] tells
//! what would change, `commit` changes it. So a command that changes nothing is known before it is
//! logged, and a group's epoch rises by exactly one whatever the command did to it.
//!
//! Invariants ([`State::check`]): those of [`Group`], and: ids and incarnations are below their
//! counters; names are unique; slots name groups; a lost group that no volume uses has no replica
//! that is up (it would have been formed anew).

use crate::command::{self, Command};
use crate::group::Group;
use crate::members::{Member, Members};
use crate::refused::{MAX_DEVICES, MAX_SDCS, MAX_VOLUMES, Refused, check_name};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{
    ClusterId, DeviceId, Epoch, GroupId, Incarnation, MAX_VOLUME_BYTES, MapVersion, SdcId, SdsId,
    UNIT, VolumeId,
};
use wire::control::{DeviceKind, Intent, Register};

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
    /// Thought to be alive.
    pub up: bool,
    /// Down, and known to be dead.
    pub dead: bool,
    /// How often it was asked to be scrubbed.
    pub scrub: u32,
    /// What is to become of it.
    pub intent: Intent,
    /// The version that changed it last.
    pub changed_at: MapVersion,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sdc {
    /// Its name.
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
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Bytes, a multiple of 1 MiB.
    pub size: u64,
    /// For fencing.
    pub generation: u32,
    /// The groups of its units.
    pub slots: Vec<GroupId>,
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
    /// The last command.
    pub index: u64,
    /// The last command that changed the map.
    pub version: MapVersion,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Names of servers.
    pub servers: BTreeMap<SdsId, String>,
    /// Clients.
    pub sdcs: BTreeMap<SdcId, Sdc>,
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
    /// The groups of each device. Follows from `groups`.
    pub(crate) by_device: BTreeMap<DeviceId, Vec<GroupId>>,
    /// The groups of each two devices, the smaller id first. Follows from `groups`.
    pub(crate) by_pair: BTreeMap<(DeviceId, DeviceId), Vec<GroupId>>,
    /// How many volumes use each group. Follows from `volumes`.
    pub(crate) users: BTreeMap<GroupId, u32>,
}

/// What a command changes. Epochs are set; `changed_at` is for `commit`.
#[derive(Default)]
pub struct Edits {
    cluster: Option<ClusterId>,
    devices: Vec<(DeviceId, Device)>,
    server: Option<(SdsId, String)>,
    sdc: Option<(SdcId, Sdc)>,
    groups: Vec<(GroupId, Group)>,
    volume: Option<(VolumeId, Option<Volume>)>,
    member: Option<(u32, Option<Member>)>,
}

impl Edits {
    /// True when the command may as well not be logged.
    pub fn is_empty(&self) -> bool {
        !self.is_map() && self.sdc.is_none()
    }

    fn is_map(&self) -> bool {
        self.cluster.is_some()
            || !self.devices.is_empty()
            || self.server.is_some()
            || self.volume.is_some()
            || self.member.is_some()
            || !self.groups.is_empty()
    }
}

impl State {
    /// A state without a cluster.
    pub fn new() -> State {
        State { next_volume: VolumeId(1), next_incarnation: Incarnation(1), ..State::default() }
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
            Command::DeviceDown(c) => Ok(self.device_down(c).unwrap_or_default()),
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
        }
    }

    fn form(&self, c: &command::FormCluster) -> Edits {
        let first = self.cluster.0 == 0 && c.cluster != 0;
        Edits { cluster: first.then_some(ClusterId(c.cluster)), ..Edits::default() }
    }

    fn device_up(&self, c: &command::DeviceUp) -> Option<Edits> {
        let (id, sds) = (DeviceId(c.device), SdsId(c.sds));
        let old = self.devices.get(&id);
        let server = match self.servers.get(&sds) {
            Some(name) if *name == c.name => None,
            None if sds == self.next_sds() && !self.servers.values().any(|n| *n == c.name) => {
                Some((sds, c.name.clone()))
            }
            _ => return None,
        };
        let kind = DeviceKind::try_from(c.kind).unwrap_or(DeviceKind::Unknown);
        let place = (sds, c.shard);
        // Of those that survive, several may have been at a place, one after the other.
        let taken = self.devices.iter().any(|(d, v)| {
            let alone = v.up || !(survives(v.kind) || survives(kind));
            *d != id && (v.sds, v.shard) == place && alone && v.intent != Intent::Removed
        });
        let known = match old {
            Some(d) => {
                let moved = survives(kind) && survives(d.kind) && d.store == c.store && !d.up;
                ((d.sds, d.shard) == place || moved)
                    && d.incarnation.0 <= c.incarnation
                    && d.intent != Intent::Removed
            }
            None => id == self.next_device() && self.devices_there() < MAX_DEVICES,
        };
        if taken || !known || !(1..LIVES).contains(&c.incarnation) {
            return None;
        }
        let new_life = old.is_none_or(|d| d.incarnation.0 < c.incarnation);
        let mut past = old.map_or_else(Vec::new, |d| d.past.clone());
        if let Some(d) = old.filter(|_| new_life) {
            past.push(d.nonce);
            past.drain(..past.len().saturating_sub(PAST));
        }
        let entry = Device {
            sds,
            shard: c.shard,
            address: c.address.clone(),
            incarnation: Incarnation(c.incarnation),
            nonce: c.nonce,
            past,
            store: c.store,
            kind,
            capacity: c.capacity,
            pid: c.pid,
            up: true,
            dead: false,
            scrub: old.map_or(0, |d| d.scrub),
            intent: old.map_or(Intent::Normal, |d| d.intent),
            changed_at: old.map_or(MapVersion(0), |d| d.changed_at),
        };
        let emptied = old.is_some_and(|d| d.store != c.store);
        let up = |d: DeviceId| d == id || self.is_up(d);
        // R2: a new life acts in new epochs only.
        let raise = new_life && (emptied || !mutant::on(Mutant::ResumeSameEpoch));
        let groups = self.changed(self.groups_of(id), raise, &up, |group| {
            if emptied { group.emptied(id, &up) } else { group.restarted_if(new_life, id, &up) }
        });
        let devices = (old != Some(&entry)).then_some((id, entry)).into_iter().collect();
        Some(Edits { devices, server, groups, ..Edits::default() })
    }

    fn device_down(&self, c: &command::DeviceDown) -> Option<Edits> {
        let id = DeviceId(c.device);
        let old = self.devices.get(&id).filter(|d| d.incarnation.0 == c.incarnation)?;
        let dead = old.dead || c.dead;
        let entry = Device { up: false, dead, ..old.clone() };
        let up = |d: DeviceId| d != id && self.is_up(d);
        let empty = dead && !survives(old.kind);
        let went = |group: &mut Group| group.went_down(id, empty, &up);
        let groups = self.changed(self.groups_of(id), false, &up, went);
        let devices = (*old != entry).then_some((id, entry)).into_iter().collect();
        Some(Edits { devices, groups, ..Edits::default() })
    }

    fn scrub(&self, c: &command::Scrub) -> Option<Edits> {
        let id = DeviceId(c.device);
        let old = self.devices.get(&id).filter(|d| d.scrub.checked_add(1) == Some(c.number))?;
        let entry = Device { scrub: c.number, ..old.clone() };
        Some(Edits { devices: Vec::from([(id, entry)]), ..Edits::default() })
    }

    fn suspect(&self, c: &command::Suspect) -> Edits {
        let device = DeviceId(c.device);
        let suspected = |group: &mut Group| group.suspected(device);
        self.as_primary(c.by, c.incarnation, device, suspected)
    }

    fn join(&self, c: &command::Join) -> Edits {
        let device = DeviceId(c.device);
        if !self.is_up(device) {
            return Edits::default();
        }
        self.as_primary(c.by, c.incarnation, device, |group| group.join(device))
    }

    /// Changes the groups that this life of `by` leads and that `device`, somebody else, belongs to.
    fn as_primary(&self, by: u32, life: u64, device: DeviceId, f: impl Fn(&mut Group)) -> Edits {
        let by = DeviceId(by);
        if by == device || self.devices.get(&by).is_none_or(|d| d.incarnation.0 != life) {
            return Edits::default();
        }
        let pair = (by.min(device), by.max(device));
        let common = self.by_pair.get(&pair).map_or(&[][..], |g| g);
        let led = common.iter().filter(|g| self.groups[g].primary == Some(by));
        let groups = self.changed(led, false, &|d| self.is_up(d), f);
        Edits { groups, ..Edits::default() }
    }

    fn admit(&self, c: &command::Admit) -> Edits {
        let up = |d: DeviceId| self.is_up(d);
        let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
        for one in &c.list {
            let id = GroupId(one.group);
            if groups.contains_key(&id) {
                continue; // its epoch has just changed
            }
            let ids = self.groups.contains_key(&id).then_some(id);
            let admit =
                |group: &mut Group| group.admit(Epoch(one.epoch), DeviceId(one.device), &up);
            groups.extend(self.changed(&ids, false, &up, admit));
        }
        Edits { groups: groups.into_iter().collect(), ..Edits::default() }
    }

    fn reshape(&self, c: &command::Reshape) -> Edits {
        let up = |d: DeviceId| self.is_up(d);
        let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
        for shape in &c.list {
            let id = GroupId(shape.group);
            let replicas: Vec<DeviceId> = shape.replicas.iter().copied().map(DeviceId).collect();
            let leaving = Some(DeviceId(shape.leaving)).filter(|d| d.0 != 0);
            let staying = replicas.iter().copied().filter(|d| Some(*d) != leaving);
            if groups.contains_key(&id) || !self.may_hold(id, staying) {
                continue;
            }
            let epoch = Epoch(shape.epoch);
            let shaped = |group: &mut Group| group.reshape(epoch, &replicas, leaving, &up);
            groups.extend(self.changed(&[id], false, &up, shaped));
        }
        Edits { groups: groups.into_iter().collect(), ..Edits::default() }
    }

    /// Whether these devices may be a group's replicas for good. If one of them is new, they must be on two
    /// servers, and it must not be on its way out. (That an old one came to the other's server with its disk is
    /// nothing to refuse here.)
    fn may_hold(&self, group: GroupId, staying: impl Iterator<Item = DeviceId>) -> bool {
        let Some(group) = self.groups.get(&group) else { return false };
        let (mut servers, mut count, mut fresh) = (BTreeSet::new(), 0, false);
        for device in staying {
            let Some(entry) = self.devices.get(&device) else { return false };
            let new = !group.replicas.contains(&device);
            if new && entry.intent != Intent::Normal {
                return false;
            }
            fresh |= new;
            servers.insert(entry.sds);
            count += 1;
        }
        !fresh || servers.len() == count || mutant::on(Mutant::OneFaultUnit)
    }

    /// Intents change as people like; to removed only from remove, when the device holds nothing that counts, and
    /// never back.
    fn intend(&self, c: &command::Intend) -> Edits {
        let mut devices = Vec::new();
        for (id, old) in &self.devices {
            let intent = c.intent();
            let may = match (old.intent, intent) {
                (Intent::Remove, Intent::Removed) => self.groups_of(*id).is_empty(),
                (Intent::Removed, _) | (_, Intent::Removed) => false,
                (old, new) => old != new,
            };
            if may && c.devices.contains(&id.0) {
                let gone = intent == Intent::Removed;
                let entry =
                    Device { intent, up: old.up && !gone, dead: old.dead && !gone, ..old.clone() };
                devices.push((*id, entry));
            }
        }
        Edits { devices, ..Edits::default() }
    }

    fn sdc_up(&self, c: &command::RegisterSdc) -> Option<Edits> {
        let id = SdcId(c.sdc);
        let old = self.sdcs.get(&id);
        let known = match old {
            Some(sdc) => sdc.name == c.name && sdc.incarnation.0 <= c.incarnation,
            None => {
                id == self.next_sdc()
                    && self.sdcs.len() < MAX_SDCS
                    && self.sdc_named(&c.name).is_none()
            }
        };
        if !known || !(1..LIVES).contains(&c.incarnation) {
            return None;
        }
        let mut past = old.map_or_else(Vec::new, |s| s.past.clone());
        if let Some(sdc) = old.filter(|s| s.incarnation.0 < c.incarnation) {
            past.push(sdc.nonce);
            past.drain(..past.len().saturating_sub(PAST));
        }
        let entry = Sdc {
            name: c.name.clone(),
            incarnation: Incarnation(c.incarnation),
            nonce: c.nonce,
            past,
            pid: c.pid,
            nbd: c.nbd.clone(),
        };
        Some(Edits { sdc: (old != Some(&entry)).then_some((id, entry)), ..Edits::default() })
    }

    fn create_volume(&self, c: &command::CreateVolume) -> Result<Edits, Refused> {
        check_name(&c.name)?;
        check_size(c.size)?;
        if self.volume_named(&c.name).is_some() {
            return Err(Refused::Taken(c.name.clone()));
        }
        if self.volumes.len() >= MAX_VOLUMES {
            return Err(Refused::TooManyVolumes);
        }
        let up = |d: DeviceId| self.is_up(d);
        let mut groups = Vec::new();
        for (id, new) in (self.next_group().0..).zip(&c.groups) {
            let replicas: Vec<DeviceId> = new.replicas.iter().copied().map(DeviceId).collect();
            let servers: Option<BTreeSet<SdsId>> =
                replicas.iter().map(|d| self.devices.get(d).map(|d| d.sds)).collect();
            let apart = servers.is_some_and(|s| s.len() == replicas.len() && s.len() >= 2);
            if !apart || !replicas.iter().any(|d| up(*d)) {
                return Err(Refused::Outdated);
            }
            groups.push((GroupId(id), Group { epoch: Epoch(1), ..Group::new(replicas, &up) }));
        }
        let slots: Vec<GroupId> = c.slots.iter().copied().map(GroupId).collect();
        let usable = |g: &GroupId| {
            self.groups.get(g).map_or(groups.iter().any(|(id, _)| id == g), |group| !group.lost)
        };
        if VolumeId(c.volume) != self.next_volume || slots.is_empty() || !slots.iter().all(usable) {
            return Err(Refused::Outdated);
        }
        let changed_at = MapVersion(0);
        let volume =
            Volume { name: c.name.clone(), size: c.size, generation: 1, slots, changed_at };
        Ok(Edits { groups, volume: Some((self.next_volume, Some(volume))), ..Edits::default() })
    }

    fn resize_volume(&self, c: &command::ResizeVolume) -> Result<Edits, Refused> {
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

    fn delete_volume(&self, c: &command::DeleteVolume) -> Result<Edits, Refused> {
        let id = VolumeId(c.volume);
        let old = self.volumes.get(&id).ok_or_else(|| Refused::NotFound(format!("{id}")))?;
        // Lost groups that nobody else uses are formed anew.
        let slots: BTreeSet<GroupId> = old.slots.iter().copied().collect();
        let up = |d: DeviceId| self.is_up(d);
        let mut groups = Vec::new();
        for id in slots.iter().filter(|g| self.users.get(g) == Some(&1)) {
            let mut group = self.groups[id].clone();
            group.form(&up);
            if group != self.groups[id] {
                group.epoch = group.epoch.next();
                groups.push((*id, group));
            }
        }
        Ok(Edits { groups, volume: Some((id, None)), ..Edits::default() })
    }

    /// Those of these groups that `f` changes, in their new epoch; with `raise`, all of them.
    fn changed<'a>(
        &self,
        ids: impl IntoIterator<Item = &'a GroupId>,
        raise: bool,
        up: &impl Fn(DeviceId) -> bool,
        f: impl Fn(&mut Group),
    ) -> Vec<(GroupId, Group)> {
        let mut changed = Vec::new();
        for id in ids {
            let old = &self.groups[id];
            let mut group = old.clone();
            f(&mut group);
            if !self.users.contains_key(id) {
                group.form(up);
            }
            if raise || group != *old {
                group.epoch = old.epoch.next();
                changed.push((*id, group));
            }
        }
        changed
    }

    fn commit(&mut self, edits: Edits) {
        if edits.is_map() {
            self.version = MapVersion(self.index);
        }
        let changed_at = self.version;
        if let Some(cluster) = edits.cluster {
            self.cluster = cluster;
        }
        if let Some((id, name)) = edits.server {
            self.servers.insert(id, name);
        }
        for (id, device) in edits.devices {
            self.next_incarnation =
                self.next_incarnation.max(Incarnation(device.incarnation.0 + 1));
            self.devices.insert(id, Device { changed_at, ..device });
        }
        if let Some((id, sdc)) = edits.sdc {
            self.next_incarnation = self.next_incarnation.max(Incarnation(sdc.incarnation.0 + 1));
            self.sdcs.insert(id, sdc);
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
        if let Some((id, volume)) = edits.volume {
            self.next_volume = self.next_volume.max(VolumeId(id.0 + 1));
            let old = match volume {
                Some(volume) => {
                    index_volume(&mut self.users, &volume);
                    self.volumes.insert(id, Volume { changed_at, ..volume })
                }
                None => self.volumes.remove(&id),
            };
            old.iter().for_each(|v| forget_volume(&mut self.users, v));
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

    /// The groups that a device belongs to.
    pub fn groups_of(&self, device: DeviceId) -> &[GroupId] {
        self.by_device.get(&device).map_or(&[], |g| g)
    }

    /// True when a volume uses this group.
    pub fn is_used(&self, group: GroupId) -> bool {
        self.users.contains_key(&group)
    }

    /// The device that reports, if it is known: by the id that is written on it, or else by its place.
    pub fn reporter(&self, m: &Register) -> Option<(DeviceId, &Device)> {
        if m.device != 0 && !mutant::on(Mutant::StrangeDevice) {
            let id = DeviceId(m.device);
            return self.devices.get(&id).map(|d| (id, d));
        }
        let place = (self.server_named(&m.sds)?, m.shard);
        let here = |d: &Device| (d.sds, d.shard) == place && d.intent != Intent::Removed;
        let mut there = self.devices.iter().filter(|(_, d)| here(d));
        there.next_back().map(|(id, d)| (*id, d))
    }

    /// The server with this name.
    pub fn server_named(&self, name: &str) -> Option<SdsId> {
        self.servers.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
    }

    /// The client with this name.
    pub fn sdc_named(&self, name: &str) -> Option<(SdcId, &Sdc)> {
        self.sdcs.iter().find(|(_, s)| s.name == name).map(|(id, s)| (*id, s))
    }

    /// The volume with this name.
    pub fn volume_named(&self, name: &str) -> Option<(VolumeId, &Volume)> {
        self.volumes.iter().find(|(_, v)| v.name == name).map(|(id, v)| (*id, v))
    }

    // Devices, servers, groups and clients are never removed, so the next id follows from the last.

    /// The next new device's id.
    pub fn next_device(&self) -> DeviceId {
        DeviceId(self.devices.last_key_value().map_or(1, |(id, _)| id.0 + 1))
    }

    /// The next new server's id.
    pub fn next_sds(&self) -> SdsId {
        SdsId(self.servers.last_key_value().map_or(1, |(id, _)| id.0 + 1))
    }

    /// The next new group's id.
    pub fn next_group(&self) -> GroupId {
        GroupId(self.groups.last_key_value().map_or(1, |(id, _)| id.0 + 1))
    }

    /// The next new client's id.
    pub fn next_sdc(&self) -> SdcId {
        SdcId(self.sdcs.last_key_value().map_or(1, |(id, _)| id.0 + 1))
    }

    /// Computes what follows from the rest, after a snapshot was read.
    pub(crate) fn index_all(&mut self) {
        self.by_device.clear();
        self.by_pair.clear();
        self.users.clear();
        let groups = core::mem::take(&mut self.groups);
        groups.iter().for_each(|(id, group)| self.index_group(*id, group));
        self.groups = groups;
        self.volumes.values().for_each(|v| index_volume(&mut self.users, v));
    }

    fn index_group(&mut self, id: GroupId, group: &Group) {
        for (i, device) in group.replicas.iter().enumerate() {
            enter(self.by_device.entry(*device).or_default(), id);
            for other in &group.replicas[i + 1..] {
                let pair = (*device.min(other), *device.max(other));
                enter(self.by_pair.entry(pair).or_default(), id);
            }
        }
    }

    fn forget_group(&mut self, id: GroupId, replicas: &[DeviceId]) {
        for (i, device) in replicas.iter().enumerate() {
            leave(&mut self.by_device, *device, id);
            for other in &replicas[i + 1..] {
                leave(&mut self.by_pair, (*device.min(other), *device.max(other)), id);
            }
        }
    }

    /// The first invariant that doesn't hold.
    pub fn check(&self) -> Result<(), String> {
        let up = |d: DeviceId| self.is_up(d);
        for (id, group) in &self.groups {
            group.check(&up).map_err(|what| format!("{id}: {what}: {group:?}"))?;
            let revivable =
                group.lost && !self.is_used(*id) && group.replicas.iter().any(|d| up(*d));
            if revivable || group.epoch.0 == 0 || group.changed_at > self.version {
                return Err(format!(
                    "{id} is unused and not formed anew, or has a wrong number: {group:?}"
                ));
            }
        }
        let lives = self
            .devices
            .values()
            .map(|d| d.incarnation)
            .chain(self.sdcs.values().map(|s| s.incarnation));
        if !lives.clone().all(|i| i.0 > 0 && i < self.next_incarnation) {
            return Err(format!("a life is numbered {:?} or more", self.next_incarnation));
        }
        let removed = |id: &DeviceId, d: &Device| {
            d.intent == Intent::Removed && (d.up || self.by_device.contains_key(id))
        };
        if let Some((id, _)) = self.devices.iter().find(|(id, d)| removed(id, d)) {
            return Err(format!("{id} is removed, and is up or has groups"));
        }
        if self.devices.values().any(|d| d.up && d.dead || !self.servers.contains_key(&d.sds)) {
            return Err(String::from("a device is up and dead, or has no server"));
        }
        for (id, volume) in &self.volumes {
            let slots = volume.slots.iter().all(|g| self.groups.contains_key(g))
                && !volume.slots.is_empty();
            if !slots || *id >= self.next_volume || check_size(volume.size).is_err() {
                return Err(format!("{id} has wrong slots, id or size: {volume:?}"));
            }
        }
        let names: BTreeSet<&str> = self.volumes.values().map(|v| &*v.name).collect();
        let mut again =
            State { by_device: BTreeMap::new(), by_pair: BTreeMap::new(), ..self.clone() };
        again.index_all();
        if names.len() != self.volumes.len() || again != *self {
            return Err(String::from("two volumes have one name, or an index is wrong"));
        }
        Ok(())
    }
}

impl Group {
    /// A device is up again: in a new life, or after silence in the old one.
    fn restarted_if(&mut self, new_life: bool, device: DeviceId, up: &impl Fn(DeviceId) -> bool) {
        if new_life || self.primary.is_none() {
            self.restarted(device, up);
        }
    }
}

/// Puts a group into a list that is in order.
fn enter(groups: &mut Vec<GroupId>, id: GroupId) {
    if let Err(place) = groups.binary_search(&id) {
        groups.insert(place, id);
    }
}

/// Takes a group out of the list of this key; no empty list stays.
fn leave<K: Ord>(lists: &mut BTreeMap<K, Vec<GroupId>>, key: K, id: GroupId) {
    let Some(groups) = lists.get_mut(&key) else { return };
    groups.retain(|g| *g != id);
    if groups.is_empty() {
        lists.remove(&key);
    }
}

fn index_volume(users: &mut BTreeMap<GroupId, u32>, volume: &Volume) {
    let slots: BTreeSet<GroupId> = volume.slots.iter().copied().collect();
    slots.into_iter().for_each(|g| *users.entry(g).or_default() += 1);
}

fn forget_volume(users: &mut BTreeMap<GroupId, u32>, volume: &Volume) {
    let slots: BTreeSet<GroupId> = volume.slots.iter().copied().collect();
    for group in slots {
        let count = users.get_mut(&group).expect("its volume was indexed");
        *count -= 1;
        if *count == 0 {
            users.remove(&group);
        }
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
