//! A process's copy of the cluster map. The MDM sends changes in pages, which are applied together.
//!
//! A map never goes back to an older version. This module only keeps the map: the roles act on it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{
    ClusterId, DeviceId, Epoch, GroupId, IdMap, Incarnation, MapVersion, Mutant, Policy, PoolId,
    SdcId, SdsId, UnitKey, VolumeId, mutant,
};
use core::net::SocketAddr;
use core::ops::Range;
use mdm::mapping::{Grant, Mapping, Permissions};
use mdm::publish::{gap_infos, gaps};
use mdm::reserve::{table, table_info};
use mdm::seat::{Seats, seat_infos, seats};
use mirror::{LostUnits, Volumes};
use prost::Message;
use target::reserve::Table;
use wire::control::{
    DeviceInfo, DeviceKind, GatewayInfo, GroupInfo, IdRange, Intent, MapPage, PolicyInfo, PoolInfo,
    VolumeInfo, level_of,
};

/// A device in the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The server that serves it.
    pub sds: SdsId,
    /// The address of its shard; `None` if the map's text is not an address (never seen in
    /// practice).
    pub address: Option<SocketAddr>,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// It is believed to be alive.
    pub up: bool,
    /// Its process is known to be dead.
    pub dead: bool,
    /// It no longer belongs to the cluster, and never will again.
    pub removed: bool,
    /// It waits for an operator to admit it.
    pub waits: bool,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Number of scrubs that were ordered.
    pub scrub: u32,
    /// Its storage pool.
    pub pool: PoolId,
    /// Identifies its content: drawn at random when its store was created.
    pub store: u64,
    /// A newer content that groups in doubt wait for; 0: there is none.
    pub awaited: u64,
}

/// Settings of a storage pool for copies. With `None`, `Limits` applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// For copies that replace a lost one.
    pub rebuild: Option<Policy>,
    /// For copies that only move.
    pub rebalance: Option<Policy>,
    /// Percentage of each device that is reserved for copies that replace a lost one.
    pub spare: Option<u32>,
}

pub use mirror::GroupConfig as Group;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// The clients that may use it.
    pub mapping: Mapping,
    /// True if space for all of it is reserved.
    pub thick: bool,
    /// The groups of its units.
    pub slots: Vec<GroupId>,
    /// Groups whose data of this volume was lost, with the number of units that the volume had
    /// then. Those blocks are read errors until they are written.
    pub gaps: BTreeMap<GroupId, u32>,
    /// The registered hosts, and the reservation.
    pub reservations: Table,
    /// The gateways of its hosts.
    pub seats: Seats,
}

/// A client that hosts connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The client.
    pub sdc: SdcId,
    /// Its number as a gateway.
    pub number: u8,
    /// The addresses at which iSCSI hosts reach it.
    pub iscsi: Vec<SocketAddr>,
    /// The addresses at which NVMe hosts reach it.
    pub nvme: Vec<SocketAddr>,
}

impl Volume {
    /// Returns the volume as the MDM described it, for an MDM that has lost it.
    pub fn info(&self, id: VolumeId) -> VolumeInfo {
        VolumeInfo {
            id: id.0,
            name: self.name.clone(),
            size: self.size,
            generation: self.mapping.newest(),
            slots: self.slots.iter().map(|g| g.0).collect(),
            mapping: Some(self.mapping.info()),
            pool: 0,
            thick: self.thick,
            gaps: gap_infos(&self.gaps),
            reservations: table_info(&self.reservations),
            seats: seat_infos(&self.seats),
        }
    }

    /// Returns the group of one of its units.
    #[inline]
    pub fn group_of(&self, unit: u32) -> Option<GroupId> {
        let slots = self.slots.len();
        (slots > 0).then(|| self.slots[placement::slot_of(unit, slots)])
    }
}

/// Changes that an applied map made.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Devices that are new or different.
    pub devices: Vec<DeviceId>,
    /// Groups that are new or different.
    pub groups: Vec<GroupId>,
    /// Volumes that were deleted.
    pub deleted: Vec<VolumeId>,
    /// Volumes whose reservations are different.
    pub reserved: Vec<Reserved>,
    /// Volumes whose seats are different, with those that they had before.
    pub seated: Vec<(VolumeId, Seats)>,
    /// Volumes with other permissions of hosts, each with the permissions before.
    pub hosts: Vec<(VolumeId, Permissions<String>)>,
    /// True if clients have new incarnations, or were removed.
    pub lives: bool,
}

/// A volume whose reservations are different.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// The volume.
    pub volume: VolumeId,
    /// The reservations that it had before.
    pub before: Table,
    /// The generation of this client's permission before. All that it has under way is of this one,
    /// or of an earlier one.
    pub generation: u32,
}

/// The cluster map, as one process sees it.
#[derive(Debug, Default)]
pub struct MapView {
    /// Its version; 0 before the first pull.
    pub version: MapVersion,
    /// The newest version that came directly from an MDM. Later deletions are not known here.
    pub from_mdm: MapVersion,
    /// The cluster's level, as of the map; 0 before the first pull.
    pub level: u32,
    /// The cluster.
    pub cluster: ClusterId,
    /// Devices by id.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Groups by id. They are looked up for every I/O, and never iterated on that path.
    groups: IdMap<GroupId, Group>,
    /// Groups of which it is not known which replica has every acknowledged write, each with the
    /// MDM's reason ([`GroupInfo::doubt`]) and the epoch that it has reached.
    doubts: BTreeMap<GroupId, (u32, u64)>,
    /// Groups whose data is lost.
    lost: BTreeSet<GroupId>,
    /// Volumes by id. They are looked up for every I/O.
    pub volumes: BTreeMap<VolumeId, Volume>,
    /// Lower ids that are in neither `volumes` nor `unknown` belong to deleted volumes.
    pub next_volume: VolumeId,
    /// Volume ids of which the MDMs do not know whether they were used or deleted.
    pub unknown: Vec<Range<VolumeId>>,
    /// Clients, each with its newest incarnation.
    pub sdcs: BTreeMap<SdcId, Incarnation>,
    /// The gateways, sorted by their numbers.
    pub gateways: Vec<Gateway>,
    /// The version of the map in which these changed last.
    pub gateways_at: MapVersion,
    /// Lower incarnations that are not in the map have ended.
    next_life: Incarnation,
    /// The addresses of the MDMs.
    pub mdms: Vec<SocketAddr>,
    /// Storage pools by id. Pools without any settings may be missing.
    pools: BTreeMap<PoolId, Pool>,
    /// The client that owns this copy, as soon as it has an id.
    pub me: Option<SdcId>,
    pages: Vec<MapPage>,
}

impl MapView {
    /// Takes one page of an MDM's answer. The last page applies the answer, and returns what
    /// changed. An answer that is not newer than the MDM's last one changes nothing. One that is
    /// older than a map from another server only confirms groups of that map.
    pub fn page(&mut self, page: MapPage) -> Option<Changes> {
        let last = page.last;
        self.pages.push(page);
        if !last {
            return None;
        }
        let pages = core::mem::take(&mut self.pages);
        let version = whole(&pages)?;
        if version <= self.from_mdm {
            return None;
        }
        self.from_mdm = version;
        match version >= self.version {
            true => Some(self.take(version, pages)),
            false => Some(self.confirmed(pages)),
        }
    }

    /// Takes over groups from an MDM's answer that is older than a map that another server passed
    /// on before. Where the epochs are the same, the MDM's version of the group counts.
    fn confirmed(&mut self, pages: Vec<MapPage>) -> Changes {
        let mut changes = Changes::default();
        for info in pages.into_iter().flat_map(|page| page.groups) {
            let id = GroupId(info.id);
            if self.group(id).is_some_and(|known| known.epoch == Epoch(info.epoch)) {
                self.put_group(info);
                changes.groups.push(id);
            }
        }
        changes
    }

    /// Applies all pages of an answer that another server passes on. No volume is deleted because
    /// of it: a deletion can't be undone, so it has to come from an MDM.
    pub fn passed_on(&mut self, mut pages: Vec<MapPage>) -> Option<Changes> {
        let version = whole(&pages).filter(|version| *version > self.version)?;
        let last = pages.last_mut()?;
        last.live.extend(self.volumes.keys().map(|id| id.0));
        last.next_volume = self.next_volume.0;
        last.unknown = self.unknown.iter().map(IdRange::of).collect();
        Some(self.take(version, pages))
    }

    fn take(&mut self, version: MapVersion, pages: Vec<MapPage>) -> Changes {
        let recovered = pages.iter().map(|page| page.recovered).max().unwrap_or(0);
        if (1..recovered).contains(&self.version.0) && recovered <= version.0 {
            self.doubt_others(&pages);
        }
        self.version = version;
        let mut changes = Changes::default();
        for page in pages {
            self.apply(page, &mut changes);
        }
        changes
    }

    /// Marks the groups that these pages do not have as groups in doubt. A map from after a
    /// recovery has all groups that the recovered MDM knows. What the earlier map says of others is
    /// no decision of that MDM.
    fn doubt_others(&mut self, pages: &[MapPage]) {
        let told: BTreeSet<u32> = pages.iter().flat_map(|p| &p.groups).map(|g| g.id).collect();
        let others = self.groups.iter().map(|(id, _)| id).filter(|id| !told.contains(&id.0));
        for id in others.collect::<Vec<GroupId>>() {
            self.doubts.entry(id).or_insert((mdm::group::Doubt::Reports as u32, 0));
            self.lost.remove(&id);
        }
    }

    /// True unless an answer has begun whose last page has not come.
    pub fn is_between_pages(&self) -> bool {
        self.pages.is_empty()
    }

    /// Drops the first pages of an answer, because its link broke before the last one.
    pub fn forget_pages(&mut self) {
        self.pages.clear();
    }

    fn apply(&mut self, page: MapPage, changes: &mut Changes) {
        self.cluster = ClusterId(page.cluster);
        self.level = self.level.max(page.level);
        if !page.mdms.is_empty() {
            self.mdms = page.mdms.iter().filter_map(|m| m.address.parse().ok()).collect();
        }
        if !page.pools.is_empty() {
            self.pools = page.pools.iter().map(pool).collect();
        }
        for info in page.devices {
            changes.devices.push(DeviceId(info.id));
            self.devices.insert(DeviceId(info.id), device(info));
        }
        for info in page.groups {
            changes.groups.push(GroupId(info.id));
            self.put_group(info);
        }
        for info in page.volumes {
            let (id, volume) = (VolumeId(info.id), volume(info));
            let old = self.volumes.insert(id, volume);
            let grant = old.as_ref().and_then(|v| self.my_grant(v));
            let hosts = old.as_ref().map(|v| v.mapping.hosts());
            if let Some(hosts) = hosts.filter(|h| *h != self.volumes[&id].mapping.hosts()) {
                changes.hosts.push((id, hosts.clone()));
            }
            let (before, seats) = old.map_or_else(Default::default, |v| (v.reservations, v.seats));
            if seats != self.volumes[&id].seats {
                changes.seated.push((id, seats));
            }
            if before != self.volumes[&id].reservations {
                let generation = grant.map_or(0, |grant| grant.generation);
                changes.reserved.push(Reserved { volume: id, before, generation });
            }
        }
        if page.all_sdcs {
            self.sdcs.clear();
        }
        changes.lives |= page.all_sdcs || !page.sdcs.is_empty();
        for info in page.sdcs {
            self.sdcs.insert(SdcId(info.id), Incarnation(info.incarnation));
        }
        if page.gateways_at > 0 {
            self.gateways_at = MapVersion(page.gateways_at);
            self.gateways = page.gateways.iter().filter_map(gateway).collect();
            self.gateways.sort_unstable_by_key(|gateway| gateway.number);
        }
        self.next_life = self.next_life.max(Incarnation(page.next_life));
        if page.last {
            let live: BTreeSet<u32> = page.live.into_iter().collect();
            self.next_volume = VolumeId(page.next_volume);
            self.unknown = page.unknown.iter().map(IdRange::ids).collect();
            self.volumes.retain(|id, _| {
                let keep = live.contains(&id.0);
                if !keep {
                    changes.deleted.push(*id);
                }
                keep
            });
        }
    }

    fn put_group(&mut self, info: GroupInfo) {
        let id = GroupId(info.id);
        match info.doubt {
            0 => self.doubts.remove(&id),
            doubt => self.doubts.insert(id, (doubt, info.reached)),
        };
        match info.lost {
            true => self.lost.insert(id),
            false => self.lost.remove(&id),
        };
        self.groups.insert(id, group(&info));
    }

    /// Returns the settings of the device's storage pool.
    pub fn pool_of(&self, device: DeviceId) -> Pool {
        let pool = self.devices.get(&device).and_then(|d| self.pools.get(&d.pool));
        pool.copied().unwrap_or_default()
    }

    /// Returns a group's configuration.
    #[inline]
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id)
    }

    /// Returns true if the data of any group is lost.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns a group as the MDM described it, for an MDM that has lost it.
    pub fn group_info(&self, id: GroupId) -> Option<GroupInfo> {
        let g = self.group(id)?;
        let (doubt, reached) = self.doubts.get(&id).copied().unwrap_or_default();
        let numbers = |of: &[DeviceId]| of.iter().map(|d| d.0).collect();
        Some(GroupInfo {
            id: id.0,
            epoch: g.epoch.0,
            primary: g.primary.map_or(0, |p| p.0),
            replicas: numbers(&g.replicas),
            in_sync: numbers(&g.in_sync),
            joiners: numbers(&g.joiners),
            lost: g.lost,
            doubt,
            reached,
            ..GroupInfo::default()
        })
    }

    /// Returns the number of groups.
    pub fn groups_known(&self) -> usize {
        self.groups.iter().count()
    }

    /// Returns every group that has this device among its replicas, sorted.
    pub fn groups_of(&self, device: DeviceId) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self
            .groups
            .iter()
            .filter(|(_, g)| g.replicas.contains(&device))
            .map(|(id, _)| id)
            .collect();
        groups.sort_unstable();
        groups
    }

    /// Returns the group of a unit, if its volume is known.
    #[inline]
    pub fn group_of(&self, unit: UnitKey) -> Option<GroupId> {
        self.volumes.get(&unit.volume)?.group_of(unit.index)
    }

    /// Returns what the client that owns this copy may do with a volume.
    #[inline]
    pub fn my_grant(&self, volume: &Volume) -> Option<Grant> {
        match self.me {
            Some(me) => volume.mapping.grant(me),
            None => volume.mapping.all(),
        }
    }

    /// Returns what this host may do with a volume through the client that owns this copy. NBD
    /// clients and programs, without a name, may do what the client may.
    #[inline]
    pub fn host_grant(&self, volume: &Volume, host: &str) -> Option<Grant> {
        let grant = self.my_grant(volume)?;
        match host {
            "" => Some(grant),
            _ if mutant::on(Mutant::ServeStrangers) => Some(grant),
            host => volume.mapping.host_grant(grant, host),
        }
    }

    /// Returns the number as a gateway of the client that owns this copy.
    pub fn my_number(&self) -> Option<u8> {
        let mine = self.gateways.iter().find(|gateway| Some(gateway.sdc) == self.me);
        mine.map(|gateway| gateway.number)
    }

    /// Returns the other gateways.
    pub fn others(&self) -> impl Iterator<Item = &Gateway> {
        self.gateways.iter().filter(|gateway| Some(gateway.sdc) != self.me)
    }

    /// Returns the other gateways to which this volume is mapped.
    pub fn others_of<'a>(&'a self, volume: &'a Volume) -> impl Iterator<Item = &'a Gateway> {
        self.others().filter(|gateway| volume.mapping.grant(gateway.sdc).is_some())
    }

    /// Returns where blocks without data are read errors.
    pub fn gaps(&self) -> LostUnits {
        let of = |(id, v): (&VolumeId, &Volume)| {
            let id = *id;
            v.gaps.clone().into_iter().map(move |(group, units)| ((id, group), units))
        };
        self.volumes.iter().flat_map(of).collect()
    }

    /// True if this incarnation of a client has ended: the client has a newer one, or was removed.
    pub fn is_over(&self, sdc: SdcId, life: Incarnation) -> bool {
        life < self.sdcs.get(&sdc).copied().unwrap_or(self.next_life)
    }

    /// True if this volume existed and was deleted.
    pub fn is_deleted(&self, volume: VolumeId) -> bool {
        volume < self.next_volume
            && !self.volumes.contains_key(&volume)
            && !self.unknown.iter().any(|range| range.contains(&volume))
    }

    /// Returns the volumes that exist, and the ids of volumes that may exist.
    pub fn volumes_there(&self) -> Volumes {
        let live = self.volumes.keys().copied().collect();
        Volumes { live, next: self.next_volume, unknown: self.unknown.clone() }
    }
}

/// Returns the version of the map to which all of these pages belong, if it is one and the same.
fn whole(pages: &[MapPage]) -> Option<MapVersion> {
    let version = pages.last()?.version;
    pages.iter().all(|p| p.version == version).then_some(MapVersion(version))
}

/// Decodes a page of a map, in a build that knows levels up to `level_max`. The level is checked
/// before anything else in the page. The error is the note about it.
pub fn read_page(body: &[u8], level_max: u32) -> Result<MapPage, &'static str> {
    const DAMAGED: &str = "a map that can't be read";
    if level_of(body).map_err(|_| DAMAGED)? > level_max {
        return Err(TOO_NEW);
    }
    let page = MapPage::decode(body).map_err(|_| DAMAGED)?;
    page.check().map_err(|_| UNKNOWN)?;
    let groups = page.groups.iter().all(|info| group(info).is_sound());
    match groups && page.volumes.iter().all(|info| table(info.reservations.as_ref()).is_some()) {
        true => Ok(page),
        false => Err(DAMAGED),
    }
}

/// The note about a map of a level that this build does not know.
pub const TOO_NEW: &str =
    "the map is of a cluster of a higher level than this build knows: update this process";
/// The note about a map with a value that this build does not know.
pub const UNKNOWN: &str = "the map has a value that this build doesn't know: update this process";

/// True if a map of version `theirs` is from before a recovery of the MDMs, and `ours` from after
/// it.
pub fn is_of_before(ours: MapVersion, theirs: u64) -> bool {
    theirs / mdm::recovery::JUMP < ours.0 / mdm::recovery::JUMP
}

/// True if an MDM whose map has version `theirs` lacks decisions, because a process already has map
/// `ours`. Such an MDM was set back, was given up in a recovery of the MDMs, or does not know yet
/// that another one leads. It must not be followed. An MDM that leads knows every map that was ever
/// handed out.
pub fn knows_less(theirs: u64, ours: MapVersion) -> bool {
    theirs < ours.0 && !mutant::on(Mutant::FollowSetBack)
}

/// The note about such an MDM.
pub const OF_BEFORE: &str =
    "an MDM that does not know the newest map: another one leads, or its log was set back";

fn ids(of: &[u32]) -> Vec<DeviceId> {
    of.iter().copied().map(DeviceId).collect()
}

fn device(info: DeviceInfo) -> Device {
    Device {
        sds: SdsId(info.sds),
        address: info.address.parse().ok(),
        incarnation: Incarnation(info.incarnation),
        up: info.up,
        dead: info.dead,
        removed: info.intent() == Intent::Removed,
        waits: info.intent() == Intent::Waiting,
        kind: info.kind(),
        scrub: info.scrub,
        pool: PoolId(info.pool),
        store: info.store,
        awaited: info.awaited,
    }
}

fn pool(info: &PoolInfo) -> (PoolId, Pool) {
    let policy = |said: Option<PolicyInfo>| said.map(Policy::from);
    let (rebuild, rebalance) = (policy(info.rebuild), policy(info.rebalance));
    let pool = Pool { rebuild, rebalance, spare: info.spare };
    (PoolId(info.id), pool)
}

fn group(info: &GroupInfo) -> Group {
    Group {
        epoch: Epoch(info.epoch),
        primary: Some(DeviceId(info.primary)).filter(|p| p.0 != 0),
        replicas: ids(&info.replicas),
        in_sync: ids(&info.in_sync),
        joiners: ids(&info.joiners),
        lost: info.lost,
    }
}

/// Returns which of a volume's `slots` slots holds this unit.
pub fn slot(unit: u32, slots: usize) -> usize {
    placement::slot_of(unit, slots)
}

fn volume(info: VolumeInfo) -> Volume {
    let reservations = table(info.reservations.as_ref()).expect("`read_page` has checked it");
    Volume {
        name: info.name,
        size: info.size,
        mapping: Mapping::of(info.mapping),
        thick: info.thick,
        slots: info.slots.into_iter().map(GroupId).collect(),
        reservations,
        seats: seats(info.seats),
        gaps: gaps(&info.gaps),
    }
}

fn gateway(info: &GatewayInfo) -> Option<Gateway> {
    let of = |scheme: &str| {
        let address = |uri: &String| uri.strip_prefix(scheme)?.trim_end_matches('/').parse().ok();
        info.uris.iter().filter_map(address).collect()
    };
    let (iscsi, nvme) = (of("iscsi://"), of("nvme-tcp://"));
    Some(Gateway { sdc: SdcId(info.sdc), number: info.number.try_into().ok()?, iscsi, nvme })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_is_passed_on_unchanged_and_ends_when_the_mdm_ends_it() {
        let mut view = MapView::default();
        let doubtful = GroupInfo {
            id: 1,
            epoch: 4,
            replicas: Vec::from([1, 2]),
            in_sync: Vec::from([1]),
            doubt: 2,
            ..GroupInfo::default()
        };
        let known = GroupInfo { epoch: 5, primary: 1, doubt: 0, ..doubtful.clone() };
        for (version, info) in [(5, doubtful), (6, known)] {
            let groups = Vec::from([info.clone()]);
            let page = MapPage { version, groups, last: true, ..MapPage::default() };
            assert!(view.page(page).is_some());
            assert_eq!(view.group_info(GroupId(1)), Some(info));
        }
    }

    #[test]
    fn a_page_with_a_group_that_can_not_be_is_refused() {
        let group = |replicas, in_sync, joiners, primary| {
            let info = GroupInfo { replicas, in_sync, joiners, primary, ..GroupInfo::default() };
            MapPage { groups: Vec::from([info]), ..MapPage::default() }
        };
        let is_read = |page: MapPage| read_page(&page.encode_to_vec(), 1).is_ok();
        let eight = Vec::from_iter(1..=8);
        assert!(is_read(group(eight.clone(), Vec::from([1]), Vec::from([8]), 1)));
        assert!(!is_read(group(Vec::from_iter(1..=9), Vec::from([1]), Vec::new(), 1)));
        assert!(!is_read(group(eight.clone(), Vec::from([1, 9]), Vec::new(), 1)));
        assert!(!is_read(group(eight.clone(), Vec::from([1]), Vec::from([9]), 1)));
        assert!(!is_read(group(eight.clone(), Vec::from([1]), Vec::new(), 9)));
        assert!(!is_read(group(eight, Vec::from([1]), Vec::new(), 2)), "it is not in sync");
    }
}
