//! The state as map pages: everything that is newer than the receiver's map.
//!
//! All pages of one answer carry the same version, and each is well below `Limits::frame_body`. The
//! last page lists all volumes that exist (rule R9), so `MAX_VOLUMES` bounds its size.

use crate::group::Group;
use crate::reserve::table_info;
use crate::seat::seat_infos;
use crate::state::{Device, State, Volume};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, MapVersion, Mutant, VolumeId, mutant};
use prost::Message;
use wire::control::{
    ClientInfo, DeviceInfo, GroupInfo, IdRange, LostRange, MapPage, StoreInfo, VolumeInfo,
};

/// The most groups in one page.
pub const GROUPS_PER_PAGE: usize = 4096;
/// The most volumes in one page: each lists up to `stripe_width` groups.
pub const VOLUMES_PER_PAGE: usize = 256;
/// A page takes no further volume once its volumes have this many bytes: one may have 32 KiB of
/// registrants.
const VOLUME_BYTES_PER_PAGE: usize = 1 << 20;

impl State {
    /// Returns the pages that a map of version `have` lacks; none if it is as new as the state.
    pub fn pages_since(&self, have: MapVersion) -> Vec<MapPage> {
        if have >= self.version {
            return Vec::new();
        }
        let groups = self.groups.iter().filter(|(_, g)| g.changed_at > have);
        let volumes = self.volumes.iter().filter(|(_, v)| v.changed_at > have);
        let groups: Vec<GroupInfo> = groups.map(|(id, g)| group_info(*id, g)).collect();
        let volumes: Vec<VolumeInfo> = volumes.map(|(id, v)| volume_info(*id, v)).collect();
        let (mut groups, mut volumes) =
            (groups.chunks(GROUPS_PER_PAGE), chunks(volumes).into_iter());
        let mut pages: Vec<MapPage> = Vec::new();
        loop {
            let parts = (groups.next(), volumes.next());
            if parts == (None, None) {
                break;
            }
            let (groups, volumes) = (parts.0.unwrap_or_default(), parts.1.unwrap_or_default());
            pages.push(MapPage { groups: groups.to_vec(), volumes, ..page(self) });
        }
        // The other lists go into the last page, so that the common small answer is one frame.
        let part = pages.pop().unwrap_or_default();
        let devices = self.devices_since(have);
        let (groups, volumes) = (part.groups, part.volumes);
        let news = self.members.changed_at > have;
        let mdms = if news { self.members.infos() } else { Vec::new() };
        let pools = if self.objects.changed_at > have { self.objects.infos() } else { Vec::new() };
        let all_sdcs = have.0 == 0 || self.sdcs_gone_at > have;
        let sdcs = self.sdcs.iter().filter(|(_, s)| s.changed_at > have || all_sdcs);
        let sdcs =
            sdcs.map(|(id, s)| ClientInfo { id: id.0, incarnation: s.incarnation.0 }).collect();
        // A client that was a gateway and is none any more has changed, too.
        let changed = self.sdcs.values().map(|sdc| sdc.changed_at).max();
        let newest = changed.max(Some(self.sdcs_gone_at)).filter(|at| *at > have);
        let (gateways, gateways_at) = match newest {
            Some(at) => (self.gateways(), at.0),
            None => (Vec::new(), 0),
        };
        let next_life = self.next_incarnation.0;
        let news = self.page_without_news();
        let news = MapPage { gateways, gateways_at, ..news };
        let last =
            MapPage { devices, groups, volumes, mdms, pools, sdcs, all_sdcs, next_life, ..news };
        pages.push(last);
        pages
    }

    /// Returns the devices that have changed since this map. Devices with another content than the
    /// one that groups in doubt wait for, or waited for, are always among them: what the map says
    /// of them changes with these groups.
    fn devices_since(&self, have: MapVersion) -> Vec<DeviceInfo> {
        let awaited = &self.recovery.awaited;
        let waits = !awaited.is_empty() && self.wants_reports();
        let waits = waits && !mutant::on(Mutant::NameOlderDisk);
        let other = |id: &DeviceId, d: &Device| match awaited.get(id) {
            Some((_, store)) if *store != d.store => *store,
            _ => 0,
        };
        let changed = |(id, d): &(&DeviceId, &Device)| d.changed_at > have || other(id, d) != 0;
        let info = |(id, d): (&DeviceId, &Device)| {
            let awaited = if waits { other(id, d) } else { 0 };
            DeviceInfo { awaited, ..device_info(*id, d) }
        };
        self.devices.iter().filter(changed).map(info).collect()
    }

    /// Returns a page without changes: the answer to a pull that does not wait for a newer map.
    pub fn page_without_news(&self) -> MapPage {
        let live = self.volumes.keys().map(|v| v.0).collect();
        let unknown = self.recovery.unknown.iter().map(IdRange::of);
        let unknown = unknown.filter(|_| !mutant::on(Mutant::DropUnknown)).collect();
        MapPage { last: true, live, next_volume: self.next_volume.0, unknown, ..page(self) }
    }
}

/// Divides volumes into those of each page.
fn chunks(volumes: Vec<VolumeInfo>) -> Vec<Vec<VolumeInfo>> {
    let mut pages: Vec<Vec<VolumeInfo>> = Vec::new();
    let mut room = 0;
    for volume in volumes {
        let bytes = volume.encoded_len();
        match pages.last_mut() {
            Some(page) if page.len() < VOLUMES_PER_PAGE && bytes <= room => page.push(volume),
            _ => {
                pages.push(Vec::from([volume]));
                room = VOLUME_BYTES_PER_PAGE;
            }
        }
        room = room.saturating_sub(bytes);
    }
    pages
}

fn page(state: &State) -> MapPage {
    let (version, cluster, level) = (state.version.0, state.cluster.0, state.level);
    let recovered = state.recovery.lost.end.0;
    MapPage { version, cluster, level, recovered, ..MapPage::default() }
}

/// Returns a device's entry in the map.
pub fn device_info(id: DeviceId, d: &Device) -> DeviceInfo {
    DeviceInfo {
        id: id.0,
        sds: d.sds.0,
        address: d.address.clone(),
        incarnation: d.incarnation.0,
        up: d.up,
        dead: d.dead,
        kind: d.kind as i32,
        capacity: d.capacity,
        scrub: d.scrub,
        intent: d.intent as i32,
        pool: d.pool.0,
        store: d.store,
        awaited: 0,
    }
}

/// Returns the content of a device as messages and the log name it.
pub(crate) fn store_info(device: DeviceId, store: u64) -> StoreInfo {
    StoreInfo { device: device.0, store, awaited: 0 }
}

/// Returns a group's entry in the map.
pub fn group_info(id: GroupId, g: &Group) -> GroupInfo {
    let ids = |of: &[DeviceId]| of.iter().map(|d| d.0).collect();
    GroupInfo {
        id: id.0,
        epoch: g.epoch.0,
        primary: g.primary.map_or(0, |p| p.0),
        replicas: ids(&g.replicas),
        in_sync: ids(&g.in_sync),
        joiners: ids(&g.joiners),
        lost: g.lost,
        leaving: g.leaving.map_or(0, |d| d.0),
        doubt: g.told_doubt() as u32,
        reached: if g.reached() > g.epoch { g.reached().0 } else { 0 },
    }
}

/// Returns a volume's entry in the map.
pub fn volume_info(id: VolumeId, v: &Volume) -> VolumeInfo {
    VolumeInfo {
        id: id.0,
        name: v.name.clone(),
        size: v.size,
        generation: v.generation,
        slots: v.slots.iter().map(|g| g.0).collect(),
        mapping: Some(v.mapping.info()),
        pool: v.pool.0,
        thick: v.thick,
        gaps: gap_infos(&v.gaps),
        reservations: table_info(&v.reservations),
        seats: seat_infos(&v.seats),
    }
}

/// Returns the accepted losses of a volume as the map has them.
pub fn gap_infos(gaps: &BTreeMap<GroupId, u32>) -> Vec<LostRange> {
    gaps.iter().map(|(group, units)| LostRange { group: group.0, units: *units }).collect()
}

/// Returns the accepted losses of a volume's entry in the map.
pub fn gaps(infos: &[LostRange]) -> BTreeMap<GroupId, u32> {
    infos.iter().map(|gap| (GroupId(gap.group), gap.units)).collect()
}
