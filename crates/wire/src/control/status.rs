//! The state of the cluster as an MDM reports it: the answer to a status request.

use super::{
    BuildInfo, ClientCounts, DeviceInfo, Heartbeat, MapTo, MapToHost, MdmInfo, ObjectStatus,
    RecoveryStatus, ReservationInfo,
};
use alloc::string::String;
use alloc::vec::Vec;

/// The state of the cluster.
// Large: one message answers a status request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusInfo {
    /// The cluster.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// The map's version.
    #[prost(uint64, tag = "2")]
    pub map: u64,
    /// Total number of groups.
    #[prost(uint32, tag = "3")]
    pub groups: u32,
    /// Groups with fewer in-sync copies than wanted.
    #[prost(uint32, tag = "4")]
    pub groups_degraded: u32,
    /// Groups without any copy that may serve.
    #[prost(uint32, tag = "5")]
    pub groups_failed: u32,
    /// Every device (shard) of every server.
    #[prost(message, repeated, tag = "6")]
    pub devices: Vec<DeviceStatus>,
    /// Every volume.
    #[prost(message, repeated, tag = "7")]
    pub volumes: Vec<VolumeStatus>,
    /// Every client.
    #[prost(message, repeated, tag = "8")]
    pub sdcs: Vec<SdcStatus>,
    /// Raw bytes (all copies) of allocated units whose group is whole.
    #[prost(uint64, tag = "9")]
    pub bytes_protected: u64,
    /// Raw bytes in groups that lack a copy.
    #[prost(uint64, tag = "10")]
    pub bytes_degraded: u64,
    /// Raw bytes in groups without a copy.
    #[prost(uint64, tag = "11")]
    pub bytes_failed: u64,
    /// Bytes still to be copied.
    #[prost(uint64, tag = "12")]
    pub resync_remaining: u64,
    /// Bytes copied since the servers started.
    #[prost(uint64, tag = "13")]
    pub resync_moved: u64,
    /// Bytes per second copied lately.
    #[prost(uint64, tag = "14")]
    pub resync_rate: u64,
    /// The MDM's process id.
    #[prost(uint32, tag = "15")]
    pub mdm_pid: u32,
    /// Bytes for data on devices that are up.
    #[prost(uint64, tag = "16")]
    pub bytes_capacity: u64,
    /// Details on a lack of space; absent if there is none.
    #[prost(message, optional, tag = "20")]
    pub full: Option<FullStatus>,
    /// Groups that get other replicas; absent if there are none.
    #[prost(message, optional, tag = "30")]
    pub moves: Option<MovesStatus>,
    /// Every MDM.
    #[prost(message, repeated, tag = "40")]
    pub mdms: Vec<MdmStatus>,
    /// Every protection domain, fault set and storage pool.
    #[prost(message, repeated, tag = "50")]
    pub objects: Vec<ObjectStatus>,
    /// The cluster's name; empty if it has none.
    #[prost(string, tag = "51")]
    pub name: String,
    /// The last recovery of the MDMs; absent if there was none.
    #[prost(message, optional, tag = "80")]
    pub recovery: Option<RecoveryStatus>,
    /// Servers that were recently refused at registration.
    #[prost(message, repeated, tag = "90")]
    pub refused_servers: Vec<RefusedServer>,
    /// The cluster's level.
    #[prost(uint32, tag = "91")]
    pub level: u32,
}

/// A server, or a device of one, that was refused at registration.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RefusedServer {
    /// The name in its configuration.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Number of the device in the server, from 0.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// Its address, `ip:port`; empty if it was refused before it sent it.
    #[prost(string, tag = "3")]
    pub address: String,
    /// The reason, and what to do.
    #[prost(string, tag = "4")]
    pub why: String,
    /// Seconds since the last refusal.
    #[prost(uint64, tag = "5")]
    pub seconds_ago: u64,
}

/// Copies that are rebuilt, or that move off devices to be removed, or to new devices.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MovesStatus {
    /// Groups that are currently replacing a replica.
    #[prost(uint32, tag = "1")]
    pub groups: u32,
    /// Groups that wait for that: they lack a copy, or have one on a device that is to be removed.
    #[prost(uint32, tag = "2")]
    pub waiting: u32,
    /// Approximate number of bytes in these.
    #[prost(uint64, tag = "3")]
    pub waiting_bytes: u64,
    /// True if so many servers are away that no lost copy is rebuilt.
    #[prost(bool, tag = "4")]
    pub held_back: bool,
}

/// One MDM, as seen by the leader.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MdmStatus {
    /// Its entry in the map.
    #[prost(message, optional, tag = "1")]
    pub info: Option<MdmInfo>,
    /// True if it leads.
    #[prost(bool, tag = "2")]
    pub leader: bool,
    /// True if it votes. Otherwise it receives the log, and waits until it is admitted.
    #[prost(bool, tag = "3")]
    pub voter: bool,
    /// True if it was heard recently.
    #[prost(bool, tag = "4")]
    pub heard: bool,
    /// Number of log entries that it lacks, as far as is known.
    #[prost(uint64, tag = "5")]
    pub behind: u64,
    /// The build of its process, if it has reported one.
    #[prost(message, optional, tag = "91")]
    pub build: Option<BuildInfo>,
}

/// Writes that find no space. Clients hold them until there is some, because a volume is deleted,
/// data is discarded, or a device is added.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FullStatus {
    /// Devices on which a write found no space in the last seconds.
    #[prost(uint32, repeated, tag = "1")]
    pub devices: Vec<u32>,
    /// Operations that clients hold.
    #[prost(uint64, tag = "2")]
    pub held: u64,
    /// Devices of these that still have their spare, and reserve it for rebuilds.
    #[prost(uint32, repeated, tag = "3")]
    pub only_spare: Vec<u32>,
}

/// A slow device, as reported by one device: about itself by its own operations, about others by
/// their answers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SlowDevice {
    /// The device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// Recent latency in milliseconds.
    #[prost(uint32, tag = "2")]
    pub ms: u32,
    /// About itself: milliseconds for which none of its pending operations has ended.
    #[prost(uint32, tag = "3")]
    pub stands_ms: u32,
}

/// One device of one server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceStatus {
    /// Its entry in the map.
    #[prost(message, optional, tag = "1")]
    pub info: Option<DeviceInfo>,
    /// The server's name.
    #[prost(string, tag = "2")]
    pub sds: String,
    /// Number of the shard in the server.
    #[prost(uint32, tag = "3")]
    pub shard: u32,
    /// The process id.
    #[prost(uint32, tag = "4")]
    pub pid: u32,
    /// True if it has a session with the MDM.
    #[prost(bool, tag = "5")]
    pub connected: bool,
    /// The last heartbeat.
    #[prost(message, optional, tag = "6")]
    pub heartbeat: Option<Heartbeat>,
    /// Groups that it leads.
    #[prost(uint32, tag = "7")]
    pub primaries: u32,
    /// Groups that it belongs to.
    #[prost(uint32, tag = "8")]
    pub replicas: u32,
    /// Groups in use by a volume of which it has the only in-sync copy.
    #[prost(uint32, tag = "9")]
    pub last_copies: u32,
    /// Groups that it belongs to and that no device serves.
    #[prost(uint32, tag = "80")]
    pub unserved: u32,
    /// Groups of which it is receiving a copy.
    #[prost(uint32, tag = "30")]
    pub coming: u32,
    /// Groups that it leaves when the replacing copy is complete.
    #[prost(uint32, tag = "31")]
    pub going: u32,
    /// Milliseconds left of its quarantine, for leaving and returning too often.
    #[prost(uint64, tag = "40")]
    pub quarantine_ms: u64,
    /// Latency of its operations, or of its host's answers, in milliseconds; 0: not slow.
    #[prost(uint32, tag = "41")]
    pub slow_ms: u32,
    /// True if the other servers can't reach it.
    #[prost(bool, tag = "42")]
    pub cut_off: bool,
    /// The server's protection domain.
    #[prost(string, tag = "50")]
    pub domain: String,
    /// The server's fault set; empty: none.
    #[prost(string, tag = "51")]
    pub fault_set: String,
    /// The device's storage pool.
    #[prost(string, tag = "52")]
    pub pool: String,
    /// The name in the configuration of the server's processes.
    #[prost(string, tag = "53")]
    pub own: String,
    /// The build of its process, if it has reported one.
    #[prost(message, optional, tag = "91")]
    pub build: Option<BuildInfo>,
}

/// One volume.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeStatus {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its size in bytes.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// Number of its groups that lack a copy.
    #[prost(uint32, tag = "4")]
    pub groups_degraded: u32,
    /// Number of its groups that have no copy.
    #[prost(uint32, tag = "5")]
    pub groups_failed: u32,
    /// Number of groups that it is striped over.
    #[prost(uint32, tag = "6")]
    pub groups: u32,
    /// Its storage pool.
    #[prost(string, tag = "50")]
    pub pool: String,
    /// True if space for all of it is reserved.
    #[prost(bool, tag = "51")]
    pub thick: bool,
    /// The clients that it is mapped to; an empty name means all.
    #[prost(message, repeated, tag = "52")]
    pub mapped: Vec<MapTo>,
    /// The hosts that it is mapped to; an empty name means all.
    #[prost(message, repeated, tag = "53")]
    pub hosts: Vec<MapToHost>,
    /// The gateways of its hosts.
    #[prost(message, repeated, tag = "54")]
    pub seats: Vec<SeatStatus>,
    /// Its reservations; absent: there are none, and nobody was ever registered.
    #[prost(message, optional, tag = "55")]
    pub reservations: Option<ReservationInfo>,
}

/// The gateway that serves a host of a volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SeatStatus {
    /// The name of the host.
    #[prost(string, tag = "1")]
    pub host: String,
    /// The name of the gateway.
    #[prost(string, tag = "2")]
    pub gateway: String,
}

/// One client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SdcStatus {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The process id.
    #[prost(uint32, tag = "3")]
    pub pid: u32,
    /// True if it has a session with the MDM.
    #[prost(bool, tag = "4")]
    pub connected: bool,
    /// Its addresses of NBD, iSCSI and NVMe/TCP, as URIs without the name of a volume.
    #[prost(string, repeated, tag = "5")]
    pub uris: Vec<String>,
    /// NBD connections.
    #[prost(uint32, tag = "6")]
    pub connections: u32,
    /// iSCSI sessions that have a volume.
    #[prost(uint32, tag = "7")]
    pub iscsi_sessions: u32,
    /// Operations that wait because there is no space.
    #[prost(uint32, tag = "10")]
    pub held: u32,
    /// Devices that refuse it.
    #[prost(uint32, repeated, tag = "70")]
    pub refused_by: Vec<u32>,
    /// Its number as a gateway; absent: no hosts connect to it.
    #[prost(uint32, optional, tag = "71")]
    pub gateway: Option<u32>,
    /// The name by which its process calls itself.
    #[prost(string, tag = "72")]
    pub own: String,
    /// Its connected hosts that had no room in its list for the MDM.
    #[prost(uint32, tag = "73")]
    pub hosts_left_out: u32,
    /// Counts of block requests, as last reported.
    #[prost(message, optional, tag = "100")]
    pub counts: Option<ClientCounts>,
    /// The build of its process, if it has reported one.
    #[prost(message, optional, tag = "91")]
    pub build: Option<BuildInfo>,
}
