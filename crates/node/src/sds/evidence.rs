//! The report of a data server to an MDM that continues where the others were lost
//! ([`mdm::recovery`]).

use super::Sds;
use super::opening::Known;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::GroupId;
use mirror::Evidence;
use prost::Message;
use seam::UnitStore;
use wire::control::{
    GroupReport, HostsInfo, IdRange, MappingInfo, Report, ReservationInfo, StoreInfo, VolumeInfo,
};

/// Bytes of tag and length of an item in a report.
const AROUND: usize = 8;
/// Upper bound of the fixed fields of a part, in bytes.
const HEAD: usize = 64;
/// Upper bound of one grant of a volume, in bytes.
const GRANT: usize = 24;
/// Upper bound of one registrant of a volume, in bytes: its name has at most 223.
const REGISTRANT: usize = 278;
/// The most bytes of a host in the list of a mapping.
const HOST: usize = 240;

impl Sds {
    /// Returns what this shard knows, in parts that are short enough for a stranger to send.
    pub(super) fn report_parts(&self) -> Vec<Report> {
        let device = match (&self.mirror, self.opening.known()) {
            (Some(mirror), _) => mirror.store(),
            (None, Some(Known::Ready(device))) => device,
            (None, _) => return Vec::from([Report::default()]),
        };
        let mut evidence: BTreeMap<GroupId, Evidence> = match &self.mirror {
            Some(mirror) => mirror.replicas().evidence().into_iter().collect(),
            None => device.records().iter().map(|(g, r)| (*g, Evidence::from(r))).collect(),
        };
        // A map without this incarnation proves nothing about the device's content.
        for group in self.map.groups_of(self.me).into_iter().filter(|_| self.named) {
            evidence.entry(group).or_default();
        }
        let mut parts = Parts {
            room: self.config.limits.stranger_body as usize - HEAD,
            whole: Report {
                version: if self.named { self.map.version.0 } else { 0 },
                told: if self.named { self.map.from_mdm.0 } else { 0 },
                next_volume: self.map.next_volume.0,
                ..Report::default()
            },
            done: Vec::new(),
            bytes: 0,
        };
        parts.begin();
        for volume in device.volumes() {
            parts.part(AROUND).held.push(volume.0);
        }
        for ids in self.map.unknown.iter().filter(|_| self.named) {
            let ids = IdRange::of(ids);
            parts.part(ids.encoded_len() + AROUND).unknown.push(ids);
        }
        for (group, known) in evidence {
            let config = self.map.group_info(group);
            let said = GroupReport {
                group: group.0,
                acted: known.acted.0,
                base: known.base.0,
                joiner: known.joiner,
                config,
            };
            parts.part(said.encoded_len() + AROUND).groups.push(said);
        }
        let devices = self.map.devices.iter().filter(|_| self.named);
        for (device, known) in devices.filter(|(_, d)| !d.removed && !d.waits) {
            let (device, awaited) = (device.0, known.awaited);
            let info = StoreInfo { device, store: known.store, awaited };
            parts.part(info.encoded_len() + AROUND).devices.push(info);
        }
        let volumes = self.map.volumes.iter().filter(|_| self.named);
        for (id, volume) in volumes {
            parts.volume(volume.info(*id));
        }
        parts.done
    }
}

/// A report while it is divided into parts.
struct Parts {
    /// Room in one part, in bytes.
    room: usize,
    /// The fields that each part has.
    whole: Report,
    done: Vec<Report>,
    /// Bytes in the last part.
    bytes: usize,
}

impl Parts {
    fn begin(&mut self) {
        self.done.push(self.whole.clone());
        self.bytes = 0;
    }

    /// Returns the last part, with room for this many more bytes.
    fn part(&mut self, bytes: usize) -> &mut Report {
        if self.bytes + bytes > self.room {
            self.begin();
        }
        self.bytes += bytes;
        self.done.last_mut().expect("there is always one")
    }

    /// Adds a volume. One that is mapped to very many clients is added several times, each time
    /// with some of them, and so is one with registrants, or mapped to hosts by name. Seats are of
    /// no use after a recovery.
    fn volume(&mut self, mut volume: VolumeInfo) {
        let room = self.room;
        let grants = volume.mapping.as_mut().map(|m| core::mem::take(&mut m.sdcs));
        let grants = grants.unwrap_or_default();
        let registrants = volume.reservations.as_mut();
        let registrants = registrants.map(|r| core::mem::take(&mut r.registrants));
        let named = volume.mapping.as_mut().and_then(|m| m.hosts.as_mut());
        let named = named.map(|hosts| core::mem::take(&mut hosts.named));
        volume.seats.clear();
        let fixed = volume.encoded_len() + AROUND;
        let first = grants.len().min(room.saturating_sub(fixed) / GRANT);
        let (with, later) = grants.split_at(first);
        if let Some(mapping) = &mut volume.mapping {
            mapping.sdcs = with.to_vec();
        }
        let id = volume.id;
        self.part(fixed + with.len() * GRANT).volumes.push(volume);
        for some in later.chunks(room / GRANT / 2) {
            let mapping = MappingInfo { sdcs: some.to_vec(), ..MappingInfo::default() };
            let more = VolumeInfo { id, mapping: Some(mapping), ..VolumeInfo::default() };
            self.part(more.encoded_len() + AROUND).volumes.push(more);
        }
        for some in named.unwrap_or_default().chunks(room / HOST) {
            let hosts = Some(HostsInfo { named: some.to_vec(), all: None });
            let mapping = Some(MappingInfo { hosts, ..MappingInfo::default() });
            let more = VolumeInfo { id, mapping, ..VolumeInfo::default() };
            self.part(more.encoded_len() + AROUND).volumes.push(more);
        }
        for some in registrants.unwrap_or_default().chunks(room / REGISTRANT) {
            let registrants = some.to_vec();
            let reservations = Some(ReservationInfo { registrants, ..ReservationInfo::default() });
            let more = VolumeInfo { id, reservations, ..VolumeInfo::default() };
            self.part(more.encoded_len() + AROUND).volumes.push(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Limits;
    use wire::control::{GrantInfo, HostInfo, RegistrantInfo};

    #[test]
    fn a_stranger_may_send_each_part_and_all_of_it_arrives() {
        let most = Limits::SHIPPED.stranger_body as usize;
        let whole = Report { version: u64::MAX, next_volume: u32::MAX, ..Report::default() };
        let mut parts = Parts { room: most - HEAD, whole, done: Vec::new(), bytes: 0 };
        parts.begin();
        for id in 0..9000 {
            parts.part(AROUND).held.push(u32::MAX - id);
        }
        let (access, generation, since) = (2, u32::MAX, Some(u32::MAX - 1));
        let grant = |sdc| GrantInfo { sdc: u32::MAX - sdc, access, generation, since };
        let who = HostInfo { name: "n".repeat(223), id: Vec::from([9; 6]), port: u32::MAX };
        let host = RegistrantInfo { key: u64::MAX, who, holds: true, since: u32::MAX };
        assert!(host.encoded_len() + AROUND <= REGISTRANT);
        let volume = |id: u32, clients: u32| VolumeInfo {
            id,
            name: "n".repeat(31),
            size: u64::MAX,
            slots: (0..512).map(|slot| (1 << 20) + slot).collect(),
            mapping: Some(MappingInfo {
                all: None,
                sdcs: (0..clients).map(grant).collect(),
                hosts: None,
            }),
            reservations: (id == 21).then(|| ReservationInfo {
                generation: u32::MAX,
                kind: 6,
                registrants: (0..128).map(|_| host.clone()).collect(),
                since: u32::MAX,
            }),
            ..VolumeInfo::default()
        };
        for id in 1..40 {
            parts.volume(volume(id, if id == 20 { 4096 } else { id }));
        }
        assert!(parts.done.iter().all(|p| p.encoded_len() <= most));
        let held: usize = parts.done.iter().map(|p| p.held.len()).sum();
        let told = parts.done.iter().flat_map(|p| &p.volumes);
        let clients: usize = told.map(|v| v.mapping.as_ref().map_or(0, |m| m.sdcs.len())).sum();
        assert_eq!((held, clients), (9000, 4096 + 39 * 40 / 2 - 20));
        let told =
            parts.done.iter().flat_map(|p| &p.volumes).filter_map(|v| v.reservations.as_ref());
        let told: Vec<&ReservationInfo> = told.collect();
        assert_eq!(told.iter().map(|r| r.registrants.len()).sum::<usize>(), 128);
        assert!(told.len() > 2 && told.iter().filter(|r| r.kind == 6).count() == 1);
    }
}
