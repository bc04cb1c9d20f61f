//! The state for people: what `gabion status` shows.
//!
//! **Bytes are an estimate.** Devices report how much they use, not what for. A device's used bytes
//! are split by the share of its groups (those that a volume uses) in each condition: whole,
//! degraded, or failed. Units of one volume spread evenly over its groups, so this is close as soon
//! as some hundred units are written. A device that is down counts with the last report that this
//! MDM has heard since its start.
//!
//! No group counts both as degraded and as failed.

use crate::group::Group;
use crate::mapping::Grant;
use crate::publish::device_info;
use crate::quarantine::Quarantine;
use crate::slowness::delays;
use crate::state::{State, Volume};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, Limits, MapVersion, SdcId, Time, VolumeId};
use core::time::Duration;
use wire::control::{
    BuildInfo, DeviceStatus, FullStatus, Heartbeat, Intent, MapTo, MovesStatus, SdcStatus,
    StatusInfo, VolumeStatus,
};

/// Time over which the resync rate is measured.
const WINDOW: Duration = Duration::from_secs(3);

/// What this MDM has heard of one process since its own start.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// It has a session.
    pub connected: bool,
    /// Its last heartbeat.
    pub heartbeat: Option<Heartbeat>,
    /// The build of its process.
    pub build: Option<BuildInfo>,
    /// How often it has come and gone.
    pub quarantine: Quarantine,
    /// The newest map that this incarnation has reported to have taken over.
    pub map: MapVersion,
    /// Groups of which this device has nothing that was ever whole, as this incarnation has
    /// reported.
    partial: Option<BTreeSet<GroupId>>,
    /// The content that it had, and how many records of its log were durable then.
    settled: (u64, u64),
    /// Bytes copied, as reported, in the last seconds.
    moved: VecDeque<(Time, u64)>,
}

impl Seen {
    /// Takes in a heartbeat.
    pub fn beat(&mut self, now: Time, heartbeat: Heartbeat) {
        self.partial = Some(heartbeat.partial.iter().map(|group| GroupId(*group)).collect());
        let moved = heartbeat.resync_moved;
        if self.moved.back().is_some_and(|(_, before)| *before > moved) {
            self.moved.clear(); // the process was restarted
        }
        self.moved.push_back((now, moved));
        while self.moved.len() > 2
            && (now.since(self.moved[1].0) >= WINDOW || self.moved.len() > 64)
        {
            self.moved.pop_front();
        }
        self.heartbeat = Some(heartbeat);
    }

    /// Records that this many first records of the device's log are durable. `store` names its
    /// content.
    pub fn has_settled(&mut self, store: u64, records: u64) {
        let before = if self.settled.0 == store { self.settled.1 } else { 0 };
        self.settled = (store, before.max(records));
    }

    /// Returns how many records of its log are known to have been durable while it had this
    /// content.
    pub fn settled(&self, store: u64) -> u64 {
        if self.settled.0 == store { self.settled.1 } else { 0 }
    }

    /// Begins a new incarnation: earlier reports do not tell its counters, nor which map it has.
    pub fn born(&mut self) {
        self.map = MapVersion(0);
        self.partial = None;
        if let Some(beat) = &mut self.heartbeat {
            *beat = Heartbeat { used: beat.used, ..Heartbeat::default() };
        }
    }

    /// Returns the bytes per second copied lately.
    fn rate(&self, now: Time) -> u64 {
        let (Some((from, before)), Some((_, after))) = (self.moved.front(), self.moved.back())
        else {
            return 0;
        };
        let millis = now.since(*from).as_millis().max(1000) as u64;
        if now.since(*from) > WINDOW * 2 {
            0
        } else {
            (after - before).saturating_mul(1000) / millis
        }
    }
}

/// What this MDM has heard of all devices and clients.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// By device.
    pub devices: BTreeMap<DeviceId, Seen>,
    /// By client.
    pub sdcs: BTreeMap<SdcId, Seen>,
    /// Devices that the other servers do not reach.
    pub cut_off: BTreeSet<DeviceId>,
    /// Pairs of a device and another one that it has not reached for
    /// [`base::Limits::rebuild_after`], although the MDM hears both.
    pub parted: BTreeSet<(DeviceId, DeviceId)>,
}

impl Observed {
    /// Returns true if the primary `leader` can't bring this device up to date: the device is cut
    /// off from all, or the path between them is broken.
    pub fn is_out_of_reach(&self, leader: Option<DeviceId>, device: DeviceId) -> bool {
        self.cut_off.contains(&device) || self.is_parted(leader, device)
    }

    /// Returns true if the path between the primary `leader` and this device is broken.
    pub fn is_parted(&self, leader: Option<DeviceId>, device: DeviceId) -> bool {
        leader.is_some_and(|leader| self.parted.contains(&(leader, device)))
    }

    /// Returns how long this device is still held out because it came and went too often.
    pub fn quarantine(&self, device: DeviceId, now: Time) -> Duration {
        self.devices.get(&device).map_or(Duration::ZERO, |seen| seen.quarantine.left(now))
    }

    /// Returns true if this device gets nothing now: it is held out, or the other servers do not
    /// reach it.
    pub fn is_out(&self, device: DeviceId, now: Time) -> bool {
        self.cut_off.contains(&device) || self.quarantine(device, now) > Duration::ZERO
    }

    /// Returns true if the present incarnation of this device has reported that its copy of this
    /// group was whole once.
    pub fn was_whole(&self, device: DeviceId, group: GroupId) -> bool {
        let partial = self.devices.get(&device).and_then(|seen| seen.partial.as_ref());
        partial.is_some_and(|partial| !partial.contains(&group))
    }

    /// Returns the bytes that a device had in use when it was last heard.
    pub fn used(&self, device: DeviceId) -> u64 {
        let beat = self.devices.get(&device).and_then(|s| s.heartbeat.as_ref());
        beat.map_or(0, |beat| beat.used)
    }

    /// Returns the connected clients that have the volume attached.
    pub fn attached(&self, volume: VolumeId) -> Vec<SdcId> {
        let has = |s: &Seen| {
            let beat = s.heartbeat.as_ref().filter(|_| s.connected);
            beat.is_some_and(|beat| beat.attached.contains(&volume.0))
        };
        self.sdcs.iter().filter(|(_, seen)| has(seen)).map(|(sdc, _)| *sdc).collect()
    }
}

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
    let mut info = StatusInfo {
        cluster: state.cluster.0,
        map: state.version.0,
        groups: state.groups.len() as u32,
        groups_degraded: tally.degraded as u32,
        groups_failed: tally.failed as u32,
        devices: there.map(|(id, _)| device(state, seen, unheard, now, *id, &delays)).collect(),
        volumes: state.volumes.iter().map(|(id, v)| volume(state, unheard, *id, v)).collect(),
        sdcs: state.sdcs.keys().map(|id| sdc(state, seen, *id)).collect(),
        objects: state.object_status(limits, |d| seen.used(d)),
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
        // The rest, so that the three add up to the bytes in use.
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

/// Returns the moves under way, and what waits to move. Bytes are an estimate, as for the states of
/// data.
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

/// Returns the devices without space, and what waits for space. Only connected devices count: the
/// last report of a process that is gone is outdated.
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
    }
}

fn sdc(state: &State, seen: &Observed, id: SdcId) -> SdcStatus {
    let s = &state.sdcs[&id];
    let seen = seen.sdcs.get(&id);
    SdcStatus {
        id: id.0,
        name: s.name.clone(),
        pid: s.pid,
        connected: seen.is_some_and(|s| s.connected),
        nbd: s.nbd.clone(),
        connections: seen.and_then(|s| s.heartbeat.as_ref()).map_or(0, |h| h.connections),
        held: seen.and_then(|s| s.heartbeat.as_ref()).map_or(0, |h| h.held),
        refused_by: seen
            .and_then(|s| s.heartbeat.as_ref())
            .map_or_else(Vec::new, |h| h.refused_by.clone()),
        build: seen.and_then(|s| s.build.clone()),
    }
}
