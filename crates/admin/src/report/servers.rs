//! Data servers and their devices, as `status --json` publishes them.

use super::{Build, Scrub, UpDown};
use serde::Serialize;
use std::collections::BTreeMap;
use wire::control::{DeviceKind, DeviceStatus, Intent};

/// A data server.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sds {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// The name in its configuration. It differs from `name` if the server was renamed.
    pub process_name: String,
    /// Its protection domain.
    pub protection_domain: String,
    /// Its fault set. A server without one is a fault unit by itself.
    pub fault_set: Option<String>,
    /// Up when all its devices are up.
    pub state: UpDown,
    /// The process that registered last.
    pub pid: u32,
    /// Address of its first device.
    pub address: String,
    /// Bytes that its devices can hold.
    pub capacity_bytes: u64,
    /// Bytes that its devices have allocated.
    pub used_bytes: u64,
    /// Its devices.
    pub devices: Vec<Device>,
    /// The build of its first process that has reported one.
    pub build: Option<Build>,
}

/// One device of a data server.
// Large: the fields of one object of `gabion status --json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Device {
    /// Its id, which stays when it moves to another server.
    pub id: u32,
    /// Its number in the server, from 0.
    pub shard: u32,
    /// `ram`, `null`, `durable` or `unknown`.
    pub kind: &'static str,
    /// Up while the MDM counts on it.
    pub state: UpDown,
    /// Down, and its process is known to be dead.
    pub dead: bool,
    /// It is being removed: its groups move to other devices.
    pub leaving: bool,
    /// It is new, and gets no copy before `gabion device admit`.
    pub waiting: bool,
    /// Its server is in maintenance: `instant` or `protected`.
    pub maintenance: Option<&'static str>,
    /// Seconds for which it still gets no groups, because it restarted too often or is slow.
    pub quarantine_seconds: f64,
    /// Recent latency of its operations, or of its host's answers, in ms; 0 below 50 ms.
    pub slow_ms: u32,
    /// The MDM reaches it, but the other servers don't.
    pub cut_off: bool,
    /// It has a session with the leader.
    pub connected: bool,
    /// It has sent a heartbeat. Until then, for a moment after it registered, `used_bytes` and the
    /// other figures from heartbeats are 0, also in the sums over the cluster.
    pub told: bool,
    /// Where its thread listens, as `IP:PORT`.
    pub address: String,
    /// Rises with each start of its process.
    pub incarnation: u64,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Bytes that it has allocated.
    pub used_bytes: u64,
    /// Groups with a replica here.
    pub groups: u32,
    /// Groups whose primary it is.
    pub groups_led: u32,
    /// Groups of which it is getting a copy.
    pub groups_coming: u32,
    /// Groups that it leaves when their new copy elsewhere is complete.
    pub groups_going: u32,
    /// Groups used by a volume of which this device has the only copy in sync.
    pub last_copies: u32,
    /// Groups with a replica here that no device serves.
    pub groups_unserved: u32,
    /// Damaged bytes that were rewritten from another copy since the process started.
    pub repaired_bytes: u64,
    /// Times since the process started that a damaged block had no good copy.
    pub unreadable: u64,
    /// `None` for devices that are not scrubbed.
    pub scrub: Option<Scrub>,
    /// Bytes that it still has to copy to others.
    pub resync_remaining_bytes: u64,
    /// Bytes that it has copied to others since its process started.
    pub resync_moved_bytes: u64,
    /// Operations of clients that it has served since its process started.
    pub ops: u64,
    /// Reads answered to clients since the process started; the next three fields likewise.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Writes acknowledged to clients.
    pub writes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// It had no space for a write lately, or has only its spare.
    pub full: bool,
    /// Its storage pool.
    pub storage_pool: String,
}

/// Groups devices by server and sorts the servers by name.
pub(super) fn servers(devices: &[DeviceStatus]) -> Vec<Sds> {
    let mut servers: BTreeMap<u32, Sds> = BTreeMap::new();
    for status in devices {
        let device = device(status);
        let id = status.info.as_ref().map_or(0, |i| i.sds);
        let sds = servers.entry(id).or_insert_with(|| Sds {
            name: status.sds.clone(),
            id,
            process_name: status.own.clone(),
            protection_domain: status.domain.clone(),
            fault_set: Some(status.fault_set.clone()).filter(|f| !f.is_empty()),
            state: UpDown::Up,
            pid: status.pid,
            address: device.address.clone(),
            capacity_bytes: 0,
            used_bytes: 0,
            devices: Vec::new(),
            build: None,
        });
        sds.build = sds.build.take().or_else(|| status.build.as_ref().map(Build::from));
        if device.state == UpDown::Down {
            sds.state = UpDown::Down;
        }
        sds.capacity_bytes += device.capacity_bytes;
        sds.used_bytes += device.used_bytes;
        sds.devices.push(device);
    }
    let mut servers: Vec<Sds> = servers.into_values().collect();
    servers.sort_by_cached_key(|s| natural(&s.name));
    servers
}

/// Returns a sort key that puts `sds2` before `sds10`.
pub(super) fn natural(name: &str) -> (String, u64, String) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name[stem.len()..].parse().unwrap_or(0);
    (stem.to_owned(), number, name.to_owned())
}

fn device(status: &DeviceStatus) -> Device {
    let info = status.info.clone().unwrap_or_default();
    let beat = status.heartbeat.clone().unwrap_or_default();
    Device {
        id: info.id,
        shard: status.shard,
        kind: match info.kind() {
            DeviceKind::Ram => "ram",
            DeviceKind::Null => "null",
            DeviceKind::Durable => "durable",
            DeviceKind::Unknown => "unknown",
        },
        state: UpDown::of(info.up),
        dead: info.dead,
        leaving: info.intent() == Intent::Remove,
        waiting: info.intent() == Intent::Waiting,
        maintenance: match info.intent() {
            Intent::Maintain => Some("instant"),
            Intent::Protect => Some("protected"),
            Intent::Normal | Intent::Remove | Intent::Removed | Intent::Waiting => None,
        },
        quarantine_seconds: status.quarantine_ms as f64 / 1000.0,
        slow_ms: status.slow_ms,
        cut_off: status.cut_off,
        connected: status.connected,
        told: status.heartbeat.is_some(),
        address: info.address,
        incarnation: info.incarnation,
        capacity_bytes: info.capacity,
        used_bytes: beat.used,
        groups: status.replicas,
        groups_led: status.primaries,
        groups_coming: status.coming,
        groups_going: status.going,
        last_copies: status.last_copies,
        groups_unserved: status.unserved,
        repaired_bytes: beat.repaired,
        unreadable: beat.unreadable,
        scrub: beat.scrub.map(|s| Scrub {
            running: s.running,
            done_bytes: s.done,
            held_bytes: s.held,
            passes: s.passes,
            ended_seconds_ago: (s.passes > 0).then_some(s.ended_ms_ago / 1000),
            damaged_bytes: s.damaged,
            repaired_bytes: s.repaired,
            unrepairable_bytes: s.unrepairable,
            skipped_bytes: s.skipped,
            asked: info.scrub,
            begun: s.asked,
        }),
        resync_remaining_bytes: beat.resync_remaining,
        resync_moved_bytes: beat.resync_moved,
        ops: beat.ops,
        reads: beat.reads,
        read_bytes: beat.read_bytes,
        writes: beat.writes,
        written_bytes: beat.written_bytes,
        full: beat.full || beat.only_spare,
        storage_pool: status.pool.clone(),
    }
}
