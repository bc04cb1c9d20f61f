//! The state for people: what `gabion status` shows.
//!
//! **Bytes are an estimate.** Devices report how much they use, not by group. A device's used bytes
//! are split by the share of its groups (those that a volume uses) in each condition: whole,
//! degraded, or failed. Units of one volume spread evenly over its groups, so this is close as soon
//! as some hundred units are written. A device that is down counts with the last report that this
//! MDM has heard since its start.
//!
//! No group counts both as degraded and as failed.

use crate::group::Group;
use crate::mapping::Grant;
use crate::observed::{Observed, Seen};
use crate::publish::device_info;
use crate::reserve::table_info;
use crate::seat::Seat;
use crate::slowness::delays;
use crate::state::{Device, State, Volume};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{DeviceId, DomainId, FaultSetId, GroupId, Limits, PoolId, SdcId, SdsId, Time, VolumeId};
use core::time::Duration;
use prost::Message;
use wire::control::{
    ClientCounts, DeviceStatus, FullStatus, Heartbeat, Intent, MapTo, MapToHost, MovesStatus,
    ObjectKind, ObjectStatus, SdcStatus, SeatStatus, StatusInfo, VolumeStatus,
};

/// Bytes of all counts of clients in one status. Commands take answers of 64 MiB.
const COUNTS: usize = 16 << 20;

/// Number of groups that are whole, degraded and failed.
#[derive(Clone, Copy, Default)]
struct Tally {
    whole: u64,
    degraded: u64,
    failed: u64,
}

impl Tally {
    /// Counts a group. `unheard`: devices that do not answer, although the map has them as up.
    fn add(mut self, group: &Group, unheard: &BTreeSet<DeviceId>) -> Tally {
        let mute = |d: &DeviceId| unheard.contains(d);
        let failed = group.is_failed() || group.primary.as_ref().is_some_and(mute);
        match (failed, group.is_whole() && !group.in_sync.iter().any(mute)) {
            (true, _) => self.failed += 1,
            (_, true) => self.whole += 1,
            _ => self.degraded += 1,
        }
        self
    }

    fn all(&self) -> u64 {
        (self.whole + self.degraded + self.failed).max(1)
    }
}

/// Returns the status of the whole cluster. `unheard` are the devices that are silent, but not
/// declared lost.
pub fn status(
    state: &State,
    seen: &Observed,
    unheard: &BTreeSet<DeviceId>,
    now: Time,
    limits: &Limits,
) -> StatusInfo {
    let tally = state.groups.values().fold(Tally::default(), |t, g| t.add(g, unheard));
    let there = state.devices.iter().filter(|(_, d)| d.intent != Intent::Removed);
    let delays = delays(state, seen);
    let mut room = COUNTS;
    let mut info = StatusInfo {
        cluster: state.cluster.0,
        map: state.version.0,
        groups: state.groups.len() as u32,
        groups_degraded: tally.degraded as u32,
        groups_failed: tally.failed as u32,
        devices: there.map(|(id, _)| device(state, seen, unheard, now, *id, &delays)).collect(),
        volumes: state.volumes.iter().map(|(id, v)| volume(state, unheard, *id, v)).collect(),
        sdcs: state.sdcs.keys().map(|id| sdc(state, seen, *id, (now, limits), &mut room)).collect(),
        objects: object_status(state, limits, |d| seen.used(d)),
        name: state.objects.system.clone(),
        level: state.level,
        ..StatusInfo::default()
    };
    for (id, d) in &state.devices {
        info.bytes_capacity = info
            .bytes_capacity
            .saturating_add(if d.up && d.intent != Intent::Waiting { d.capacity } else { 0 });
        let Some(seen) = seen.devices.get(id) else { continue };
        let Some(beat) = &seen.heartbeat else { continue };
        let mine = state.groups_of(*id).iter().filter(|g| state.is_used(**g));
        let tally = mine.fold(Tally::default(), |t, g| t.add(&state.groups[g], unheard));
        let part =
            |of: u64| (u128::from(beat.used) * u128::from(of) / u128::from(tally.all())) as u64;
        info.bytes_degraded = info.bytes_degraded.saturating_add(part(tally.degraded));
        info.bytes_failed = info.bytes_failed.saturating_add(part(tally.failed));
        // The remainder, so that the three numbers add up to the bytes in use.
        info.bytes_protected = info
            .bytes_protected
            .saturating_add(beat.used - part(tally.degraded) - part(tally.failed));
        info.resync_moved = info.resync_moved.saturating_add(beat.resync_moved);
        if d.up {
            info.resync_remaining = info.resync_remaining.saturating_add(beat.resync_remaining);
            info.resync_rate = info.resync_rate.saturating_add(seen.rate(now));
        }
    }
    info.full = full(state, seen);
    info.moves = moves(state, seen);
    info
}

/// Returns the moves under way, and those that have to wait. Bytes are an estimate, as for the
/// states of data.
fn moves(state: &State, seen: &Observed) -> Option<MovesStatus> {
    let mut moves = MovesStatus::default();
    let beat = |d: DeviceId| seen.devices.get(&d).and_then(|s| s.heartbeat.as_ref());
    let used = |d: DeviceId| state.groups_of(d).iter().filter(|g| state.is_used(**g)).count();
    let share = |d: DeviceId| beat(d).map_or(0, |b| b.used / used(d).max(1) as u64);
    let leaves = |d: &DeviceId| state.devices[d].intent.empties();
    let shares: BTreeMap<DeviceId, u64> = state.devices.keys().map(|d| (*d, share(*d))).collect();
    for (id, group) in state.groups.iter().filter(|(_, g)| !g.lost) {
        if group.leaving.is_some() {
            moves.groups += 1;
        } else if !group.is_whole() && group.joiners.is_empty() || group.replicas.iter().any(leaves)
        {
            moves.waiting += 1;
            let bytes = group.in_sync.iter().map(|d| shares[d]).max().unwrap_or(0);
            moves.waiting_bytes += if state.is_used(*id) { bytes } else { 0 };
        }
    }
    (moves != MovesStatus::default()).then_some(moves)
}

/// Returns the devices without space, and the writes that wait for space. Only connected devices
/// count: the last report of a process that is gone is outdated.
fn full(state: &State, seen: &Observed) -> Option<FullStatus> {
    let beat: fn(&Seen) -> Option<&Heartbeat> = |s| s.heartbeat.as_ref().filter(|_| s.connected);
    let those = |is: fn(&Heartbeat) -> bool| -> Vec<u32> {
        let is = |id: &&DeviceId| seen.devices.get(id).and_then(beat).is_some_and(is);
        state.devices.keys().filter(is).map(|id| id.0).collect()
    };
    let devices = those(|b| b.full || b.only_spare);
    let only_spare = those(|b| b.only_spare && !b.full);
    let held = state.sdcs.keys().filter_map(|id| seen.sdcs.get(id).and_then(beat));
    let held: u64 = held.map(|b| u64::from(b.held)).sum();
    (held > 0 || !devices.is_empty()).then_some(FullStatus { devices, held, only_spare })
}

fn device(
    state: &State,
    seen: &Observed,
    unheard: &BTreeSet<DeviceId>,
    now: Time,
    id: DeviceId,
    delays: &BTreeMap<DeviceId, Duration>,
) -> DeviceStatus {
    let slow_ms = delays.get(&id).map_or(0, |took| took.as_millis() as u32);
    let (quarantine, cut_off) = (seen.quarantine(id, now), seen.cut_off.contains(&id));
    let d = &state.devices[&id];
    let server = state.servers.get(&d.sds);
    let domain = server.and_then(|s| state.objects.domains.get(&s.domain));
    let set = server.and_then(|s| state.objects.fault_sets.get(&s.fault_set?));
    let seen = seen.devices.get(&id);
    let groups = state.groups_of(id);
    let leads = |g: &&GroupId| state.groups[*g].primary == Some(id);
    let last = |g: &&GroupId| state.is_used(**g) && state.groups[*g].in_sync == [id];
    let mut info = device_info(id, d);
    info.up &= !unheard.contains(&id);
    DeviceStatus {
        info: Some(info),
        sds: server.map_or_else(String::new, |s| s.name.clone()),
        own: server.map_or_else(String::new, |s| s.own.clone()),
        domain: domain.map_or_else(String::new, |d| d.name.clone()),
        fault_set: set.map_or_else(String::new, |f| f.name.clone()),
        pool: state.objects.pools.get(&d.pool).map_or_else(String::new, |p| p.name.clone()),
        shard: d.shard,
        pid: d.pid,
        connected: seen.is_some_and(|s| s.connected),
        heartbeat: seen.and_then(|s| s.heartbeat.clone()),
        primaries: groups.iter().filter(leads).count() as u32,
        replicas: groups.len() as u32,
        last_copies: groups.iter().filter(last).count() as u32,
        unserved: groups.iter().filter(|g| state.groups[*g].is_failed()).count() as u32,
        coming: groups.iter().filter(|g| state.groups[*g].newcomer() == Some(id)).count() as u32,
        going: groups.iter().filter(|g| state.groups[*g].leaving == Some(id)).count() as u32,
        quarantine_ms: quarantine.as_millis() as u64,
        slow_ms,
        cut_off,
        build: seen.and_then(|s| s.build.clone()),
    }
}

/// Returns the status of one volume.
pub fn volume(
    state: &State,
    unheard: &BTreeSet<DeviceId>,
    id: VolumeId,
    v: &Volume,
) -> VolumeStatus {
    let tally = v.slots.iter().fold(Tally::default(), |t, g| t.add(&state.groups[g], unheard));
    let to = |sdc: String, g: &Grant| MapTo { sdc, access: g.access as i32 };
    let unknown = |id: &SdcId| alloc::format!("sdc{}", id.0); // not back since a recovery
    let named = |id: &SdcId| state.sdcs.get(id).map_or_else(|| unknown(id), |s| s.name.clone());
    let list = v.mapping.named().into_iter().flatten();
    let list = list.map(|(sdc, grant)| to(named(sdc), grant));
    let mapped = v.mapping.all().iter().map(|all| to(String::new(), all)).chain(list).collect();
    let to_host = |host: String, g: &Grant| MapToHost { host, access: g.access as i32 };
    let list = v.mapping.hosts().named().into_iter().flatten();
    let list = list.map(|(host, grant)| to_host(host.clone(), grant));
    let all_hosts = v.mapping.hosts().all();
    let hosts = all_hosts.iter().map(|all| to_host(String::new(), all)).chain(list).collect();
    let seat = |(host, seat): (&String, &Seat)| SeatStatus {
        host: host.clone(),
        gateway: named(&seat.sdc),
    };
    VolumeStatus {
        id: id.0,
        name: v.name.clone(),
        size: v.size,
        groups_degraded: tally.degraded as u32,
        groups_failed: tally.failed as u32,
        groups: v.slots.len() as u32,
        pool: state.objects.pools.get(&v.pool).map_or_else(String::new, |p| p.name.clone()),
        thick: v.thick,
        mapped,
        hosts,
        seats: v.seats.iter().map(seat).collect(),
        reservations: table_info(&v.reservations),
    }
}

/// Returns the status of a client. Its counts are left out if there is no `room` for them, in bytes
/// of the message.
/// Returns the status of a client. One that is not heard counts as down: its process may hang, and
/// then its host still acknowledges data.
fn sdc(
    state: &State,
    seen: &Observed,
    id: SdcId,
    (now, limits): (Time, &Limits),
    room: &mut usize,
) -> SdcStatus {
    let s = &state.sdcs[&id];
    let seen = seen.sdcs.get(&id);
    let heard = seen.filter(|seen| seen.is_heard(now, limits));
    let beat = heard.and_then(|seen| seen.heartbeat.as_ref());
    let counts = seen.and_then(|s| s.heartbeat.as_ref()).and_then(|h| h.counts.as_ref());
    let counts = counts.map(|counts| match room.checked_sub(counts.encoded_len()) {
        Some(rest) => {
            *room = rest;
            counts.clone()
        }
        None => ClientCounts {
            left_out: (counts.volumes.len() + counts.paths.len()) as u32,
            ..ClientCounts::default()
        },
    });
    SdcStatus {
        counts,
        id: id.0,
        gateway: s.gateway.map(u32::from),
        name: s.name.clone(),
        own: s.own.clone(),
        pid: s.pid,
        connected: heard.is_some(),
        uris: s.uris.clone(),
        connections: beat.map_or(0, |h| h.connections),
        iscsi_sessions: beat.map_or(0, |h| h.iscsi_sessions),
        hosts_left_out: beat.map_or(0, |h| h.hosts_left_out),
        held: beat.map_or(0, |h| h.held),
        refused_by: beat.map_or_else(Vec::new, |h| h.refused_by.clone()),
        build: seen.and_then(|s| s.build.clone()),
    }
}

/// Returns all objects, for people; `used` returns the bytes in use on a device.
pub fn object_status(
    state: &State,
    limits: &Limits,
    used: impl Fn(DeviceId) -> u64,
) -> Vec<ObjectStatus> {
    let status = |kind: ObjectKind, id: u32, name: &str, domain: Option<DomainId>| {
        let is = |device: &Device| {
            let server = state.servers.get(&device.sds);
            match kind {
                ObjectKind::Domain => server.is_some_and(|s| s.domain.0 == id),
                ObjectKind::FaultSet => server.is_some_and(|s| s.fault_set == Some(FaultSetId(id))),
                _ => device.pool == PoolId(id),
            }
        };
        let there = || state.devices.iter().filter(|(_, d)| d.intent != Intent::Removed && is(d));
        let servers: BTreeSet<SdsId> = there().map(|(_, d)| d.sds).collect();
        let in_pool = |pool: PoolId| match kind {
            ObjectKind::Pool => pool == PoolId(id),
            ObjectKind::Domain => state.objects.pools.get(&pool).is_some_and(|p| p.domain.0 == id),
            _ => false,
        };
        ObjectStatus {
            kind: kind as i32,
            id,
            name: name.into(),
            domain: domain
                .and_then(|d| state.objects.domains.get(&d))
                .map_or_else(String::new, |d| d.name.clone()),
            servers: servers.len() as u32,
            devices: there().count() as u32,
            volumes: state.volumes.values().filter(|v| in_pool(v.pool)).count() as u32,
            capacity: there()
                .filter(|(_, d)| d.up && d.intent != Intent::Waiting)
                .map(|(_, d)| d.capacity)
                .sum(),
            used: there().map(|(id, _)| used(*id)).sum(),
            ..ObjectStatus::default()
        }
    };
    let objects = &state.objects;
    let domains = objects.domains.iter();
    let mut all: Vec<ObjectStatus> =
        domains.map(|(id, d)| status(ObjectKind::Domain, id.0, &d.name, None)).collect();
    for (id, f) in &objects.fault_sets {
        all.push(status(ObjectKind::FaultSet, id.0, &f.name, Some(f.domain)));
    }
    for (id, p) in &objects.pools {
        all.push(ObjectStatus {
            media: p.media as i32,
            spare: objects.spare(*id, limits) as u32,
            rebuild: Some(p.rebuild.unwrap_or(limits.rebuild).into()),
            rebalance: Some(p.rebalance.unwrap_or(limits.rebalance).into()),
            reserved: state.reserved(*id),
            by_order: p.by_order,
            ..status(ObjectKind::Pool, id.0, &p.name, Some(p.domain))
        });
    }
    all
}
