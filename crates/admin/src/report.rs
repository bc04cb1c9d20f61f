//! The cluster's state as `gabion status --json` publishes it.
//!
//! This is an interface: fields are only added, never changed or removed. It is described in
//! `docs/reference/status.md`.

mod build;
mod counts;
mod hosts;
mod objects;
mod recovery;
mod refused_servers;
mod reservations;
mod servers;
mod summary;
#[cfg(test)]
mod tests;
mod volumes;

use crate::exit::Exit;
pub use build::Build;
pub use counts::{Client, Io, Latency, Path};
pub use hosts::{Host, HostConnection, HostSeat, HostVolume};
use hosts::{hosts, nvme_hosts};
pub use objects::{Domain, FaultSet, Mapped, MappedHost, Pool, mapped, mapped_host};
use objects::{domain, fault_set, of_kind, pool};
pub use recovery::Recovery;
pub use refused_servers::RefusedServer;
pub use reservations::{Registrant, Reservations};
use serde::Serialize;
use servers::servers;
pub use servers::{Device, Sds};
use std::net::SocketAddr;
pub use summary::{summary, when};
use volumes::volume;
pub use volumes::{Seat, Volume, volume_uri};
use wire::control::{MdmStatus, ObjectKind, StatusInfo};

/// The version of this document's shape.
pub const SCHEMA: u32 = 1;

/// The whole cluster, or one volume of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Every copy is present.
    Healthy,
    /// All data is served; some copies are missing.
    Degraded,
    /// Some data has no copy that may serve.
    Failed,
}

/// The state of a process or a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UpDown {
    /// The MDM hears from it.
    Up,
    /// The MDM does not hear from it.
    Down,
}

/// The document that `status --json` prints.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The cluster's id, in 16 hexadecimal digits.
    pub cluster: String,
    /// The state of the whole cluster.
    pub state: State,
    /// Rises with each change of the configuration.
    pub map_version: u64,
    /// The metadata managers, the leader first.
    pub mdm: Vec<Mdm>,
    /// The data servers.
    pub sds: Vec<Sds>,
    /// The data clients.
    pub sdc: Vec<Sdc>,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The hosts of iSCSI and NVMe/TCP.
    pub hosts: Vec<Host>,
    /// All placement groups.
    pub groups: Groups,
    /// The content of the devices.
    pub capacity: Capacity,
    /// The data that is still to be copied.
    pub resync: Resync,
    /// The groups that move.
    pub moves: Moves,
    /// The cluster's name; empty if it has none.
    pub name: String,
    /// The protection domains.
    pub protection_domains: Vec<Domain>,
    /// The fault sets.
    pub fault_sets: Vec<FaultSet>,
    /// The storage pools.
    pub storage_pools: Vec<Pool>,
    /// Present only while writes wait for space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<Full>,
    /// The last recovery of the MDMs; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// Servers that the MDM refused lately.
    #[serde(rename = "turned_away")] // the name in a published interface
    pub refused_servers: Vec<RefusedServer>,
    /// What may be logged, sent, or written to a device in this cluster.
    pub level: u32,
}

/// The scrubber of a device: the current pass, or the last one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Scrub {
    /// A pass runs now.
    pub running: bool,
    /// Bytes read in this pass.
    pub done_bytes: u64,
    /// Bytes to read in this pass.
    pub held_bytes: u64,
    /// Passes completed since the process started.
    pub passes: u64,
    /// Time since the last pass ended.
    pub ended_seconds_ago: Option<u64>,
    /// Damaged bytes that this pass found.
    pub damaged_bytes: u64,
    /// Those that it rewrote from another copy.
    pub repaired_bytes: u64,
    /// Damaged bytes without another copy.
    pub unrepairable_bytes: u64,
    /// Bytes not read because this device's copy is not up to date.
    pub skipped_bytes: u64,
    /// Number of passes requested so far.
    pub asked: u32,
    /// The latest requested pass that the device knows of. It is running or has ended.
    pub begun: u32,
}

/// Lack of space.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Full {
    /// Devices that had no space for a write lately.
    pub devices: Vec<u32>,
    /// Operations that wait for space.
    pub held: u64,
    /// Those of the devices that have only their spare left, which is reserved for rebuilds.
    pub only_spare: Vec<u32>,
}

/// A metadata manager.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Mdm {
    /// Where it listens, as `IP:PORT`.
    pub address: String,
    /// Process id of the leader; 0 for the others.
    pub pid: u32,
    /// Down when the leader has not heard from it lately.
    pub state: UpDown,
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// `manager` or `tie-breaker`.
    pub role: &'static str,
    /// It is the leader.
    pub leads: bool,
    /// True if it votes. A newly added MDM does not vote yet.
    pub votes: bool,
    /// Entries missing from its log, as far as the leader knows.
    pub entries_behind: u64,
    /// Its build, as far as the leader knows.
    pub build: Option<Build>,
}

/// A data client.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sdc {
    /// Its name.
    pub name: String,
    /// The name by which its process calls itself; another one only if it was renamed.
    pub process_name: String,
    /// Its id.
    pub id: u32,
    /// Up while it has a session with the MDM.
    pub state: UpDown,
    /// Its process id.
    pub pid: u32,
    /// Where it serves NBD, without the name of an export.
    pub nbd_uris: Vec<String>,
    /// Where it serves iSCSI, without the name of a target.
    pub iscsi_portals: Vec<String>,
    /// Where it serves NVMe/TCP.
    pub nvme_portals: Vec<String>,
    /// Its number as a gateway, which is part of what hosts know of it; `None` if it serves neither
    /// iSCSI nor NVMe/TCP.
    pub gateway: Option<u32>,
    /// Number of connected NBD clients.
    pub nbd_connections: u32,
    /// Number of iSCSI sessions that have a volume.
    pub iscsi_sessions: u32,
    /// Number of connected NVMe hosts.
    pub nvme_hosts: u32,
    /// Volumes and paths that are missing in the lists of counts, because there are too many.
    pub counts_left_out: u32,
    /// Connected hosts that the MDM was not told of, because there are too many.
    pub hosts_left_out: u32,
    /// Devices that refuse this client. Its I/O to groups that they lead waits.
    pub refused_by: Vec<u32>,
    /// Its build; `None` until it has reported it.
    pub build: Option<Build>,
}

/// Counts of placement groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Groups {
    /// All of them.
    pub total: u32,
    /// Those that lack a copy.
    pub degraded: u32,
    /// Those without a copy that may serve.
    pub failed: u32,
}

/// Raw bytes, over all copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Capacity {
    /// Space of the devices that are up and admitted.
    pub total_bytes: u64,
    /// Data with all its copies.
    pub protected_bytes: u64,
    /// Data that lacks a copy.
    pub degraded_bytes: u64,
    /// Data without a copy.
    pub failed_bytes: u64,
}

/// Bytes to copy to replicas that are out of date.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Resync {
    /// Bytes still to copy.
    pub remaining_bytes: u64,
    /// Bytes copied per second lately.
    pub rate_bytes_per_second: u64,
    /// Bytes copied since the servers' processes started.
    pub moved_bytes: u64,
}

/// Groups whose replicas move: lost copies that are rebuilt, copies that leave devices to be
/// removed, and copies that go to new devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Moves {
    /// Groups that are moving.
    pub groups: u32,
    /// Groups that wait to move.
    pub waiting_groups: u32,
    /// Approximate bytes still to copy, resyncs included.
    pub remaining_bytes: u64,
    /// Time until everything is copied at the present rate; `None` while nothing is copied.
    pub eta_seconds: Option<u64>,
    /// True if so many servers are away that lost copies are not rebuilt.
    pub held_back: bool,
}

impl Moves {
    fn new(info: &StatusInfo) -> Moves {
        let moves = info.moves.unwrap_or_default();
        let remaining_bytes = info.resync_remaining + moves.waiting_bytes;
        let rate = Some(info.resync_rate).filter(|rate| *rate > 0 && remaining_bytes > 0);
        Moves {
            groups: moves.groups,
            waiting_groups: moves.waiting,
            remaining_bytes,
            eta_seconds: rate.map(|rate| remaining_bytes.div_ceil(rate)),
            held_back: moves.held_back,
        }
    }
}

/// Returns a device's name for messages, with its server's name if that is known.
pub fn device_name(info: &StatusInfo, id: u32) -> String {
    let device = info.devices.iter().find(|d| d.info.as_ref().is_some_and(|i| i.id == id));
    device.map_or_else(|| format!("dev{id}"), |d| format!("dev{id} of {}", d.sds))
}

impl Groups {
    fn state(self) -> State {
        match self {
            Groups { failed: 1.., .. } => State::Failed,
            Groups { degraded: 1.., .. } => State::Degraded,
            _ => State::Healthy,
        }
    }
}

impl UpDown {
    fn of(up: bool) -> UpDown {
        if up { UpDown::Up } else { UpDown::Down }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            State::Healthy => "healthy",
            State::Degraded => "degraded",
            State::Failed => "failed",
        })
    }
}

impl std::fmt::Display for UpDown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            UpDown::Up => "up",
            UpDown::Down => "down",
        })
    }
}

impl Report {
    /// Makes the report from an MDM's status.
    // Long: one field of the report after the other.
    pub fn new(info: &StatusInfo, mdm: SocketAddr) -> Report {
        let groups = Groups {
            total: info.groups,
            degraded: info.groups_degraded,
            failed: info.groups_failed,
        };
        let sds = servers(&info.devices);
        // Without a session the MDM can't tell whether a device is alive. This is so for a moment
        // after a change of leader.
        let unheard = |d: &Device| d.state == UpDown::Up && !d.connected;
        // Until its first heartbeat, the content of a device is unknown, too.
        let unreported = |d: &Device| d.state == UpDown::Up && !d.told;
        let missing = |s: &Sds| {
            s.state == UpDown::Down || s.devices.iter().any(|d| unheard(d) || unreported(d))
        };
        let missing = sds.iter().any(missing);
        let mdm = managers(info, mdm);
        let missing = missing || mdm.iter().any(|m| m.state == UpDown::Down);
        let recovers = info.recovery.as_ref().is_some_and(|r| r.open);
        let missing = missing || recovers;
        let sdc: Vec<Sdc> = info
            .sdcs
            .iter()
            .map(|s| Sdc {
                name: s.name.clone(),
                process_name: s.own.clone(),
                id: s.id,
                state: UpDown::of(s.connected),
                pid: s.pid,
                nbd_uris: uris(&s.uris, "nbd"),
                iscsi_portals: uris(&s.uris, "iscsi:"),
                nvme_portals: uris(&s.uris, "nvme-tcp:"),
                gateway: s.gateway,
                nbd_connections: s.connections,
                iscsi_sessions: s.iscsi_sessions,
                nvme_hosts: nvme_hosts(s),
                counts_left_out: s.counts.as_ref().map_or(0, |counts| counts.left_out),
                hosts_left_out: s.hosts_left_out,
                refused_by: s.refused_by.clone(),
                build: s.build.as_ref().map(Build::from),
            })
            .collect();
        let volume = |v| volume(v, info, &sdc);
        let mut volumes: Vec<Volume> = info.volumes.iter().map(volume).collect();
        let missing = missing || volumes.iter().any(|v| v.unserved);
        let mut state = groups.state().max(if missing { State::Degraded } else { State::Healthy });
        if recovers {
            // The MDM does not know yet what has failed, and I/O goes on as before.
            state = State::Degraded;
            volumes.iter_mut().for_each(|v| v.state = v.state.min(State::Degraded));
        }
        Report {
            schema: SCHEMA,
            cluster: format!("{:016x}", info.cluster),
            state,
            map_version: info.map,
            mdm,
            hosts: hosts(&volumes, &info.sdcs),
            volumes,
            sds,
            sdc,
            groups,
            capacity: Capacity {
                total_bytes: info.bytes_capacity,
                protected_bytes: info.bytes_protected,
                degraded_bytes: info.bytes_degraded,
                failed_bytes: info.bytes_failed,
            },
            resync: Resync {
                remaining_bytes: info.resync_remaining,
                rate_bytes_per_second: info.resync_rate,
                moved_bytes: info.resync_moved,
            },
            moves: Moves::new(info),
            name: info.name.clone(),
            protection_domains: of_kind(info, ObjectKind::Domain).map(domain).collect(),
            fault_sets: of_kind(info, ObjectKind::FaultSet).map(fault_set).collect(),
            storage_pools: of_kind(info, ObjectKind::Pool).map(pool).collect(),
            full: info.full.clone().map(|f| Full {
                devices: f.devices,
                held: f.held,
                only_spare: f.only_spare,
            }),
            recovery: info.recovery.as_ref().map(|r| Recovery::new(info, r)),
            refused_servers: info.refused_servers.iter().map(RefusedServer::from).collect(),
            level: info.level.max(base::level::FIRST),
        }
    }

    /// Returns the exit code of `gabion status`.
    pub fn exit(&self) -> Exit {
        match self.state {
            State::Healthy => Exit::Ok,
            State::Degraded => Exit::Degraded,
            State::Failed => Exit::Unserved,
        }
    }

    /// Returns the number of data servers that are up.
    pub fn sds_up(&self) -> usize {
        self.sds.iter().filter(|s| s.state == UpDown::Up).count()
    }
}

/// Returns those of a client's URIs that begin with this.
fn uris(all: &[String], scheme: &str) -> Vec<String> {
    all.iter().filter(|uri| uri.starts_with(scheme)).cloned().collect()
}

/// Returns all MDMs, the leader first. An MDM whose map lists no MDMs is the only one.
fn managers(info: &StatusInfo, leader: SocketAddr) -> Vec<Mdm> {
    let one = |m: &MdmStatus| {
        let info_of = m.info.clone().unwrap_or_default();
        Mdm {
            address: info_of.address,
            pid: if m.leader { info.mdm_pid } else { 0 },
            state: UpDown::of(m.heard || m.leader),
            name: info_of.name,
            id: info_of.id,
            role: if info_of.tie_breaker { "tie-breaker" } else { "manager" },
            leads: m.leader,
            votes: m.voter,
            entries_behind: m.behind,
            build: m.build.as_ref().map(Build::from),
        }
    };
    let mut all: Vec<Mdm> = info.mdms.iter().map(one).collect();
    all.sort_by_key(|m| (!m.leads, m.id));
    if all.is_empty() {
        all.push(Mdm {
            address: leader.to_string(),
            pid: info.mdm_pid,
            state: UpDown::Up,
            name: String::new(),
            id: 0,
            role: "manager",
            leads: true,
            votes: true,
            entries_behind: 0,
            build: None,
        });
    }
    all
}
