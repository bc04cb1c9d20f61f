//! Objects that people name, and orders about them: mappings of volumes, storage pools, protection
//! domains, fault sets.

use alloc::string::String;
use alloc::vec::Vec;
use base::Policy;

/// The access of a client to a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Access {
    /// Reading and writing.
    ReadWrite = 0,
    /// Reading only.
    ReadOnly = 1,
}

/// A client's permission to use a volume.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct GrantInfo {
    /// The client; 0 means all clients.
    #[prost(uint32, tag = "1")]
    pub sdc: u32,
    /// The access that is allowed.
    #[prost(enumeration = "Access", tag = "2")]
    pub access: i32,
    /// I/O of a lower generation is refused: access to the volume has changed since.
    #[prost(uint32, tag = "3")]
    pub generation: u32,
    /// The generation at which this permission began. Requests of a lower one belong to an earlier
    /// permission; others go on under the present generation. Absent: the same as `generation`.
    #[prost(uint32, optional, tag = "4")]
    pub since: Option<u32>,
}

/// The clients that may use a volume. Absent, as in builds before mappings: all clients, for
/// reading and writing.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MappingInfo {
    /// Permission of all clients. If it is absent, only those of the list have one.
    #[prost(message, optional, tag = "1")]
    pub all: Option<GrantInfo>,
    /// Permissions of single clients, each client once.
    #[prost(message, repeated, tag = "2")]
    pub sdcs: Vec<GrantInfo>,
    /// The hosts that may use the volume through these clients. Absent: all hosts, for reading and
    /// writing.
    #[prost(message, optional, tag = "3")]
    pub hosts: Option<HostsInfo>,
}

/// Permissions of hosts, which use a volume by iSCSI or NVMe/TCP.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HostsInfo {
    /// Permission of all hosts. If it is absent, only those of the list have one.
    #[prost(message, optional, tag = "1")]
    pub all: Option<HostGrant>,
    /// Permissions of single hosts, each host once.
    #[prost(message, repeated, tag = "2")]
    pub named: Vec<HostGrant>,
}

/// A host's permission to use a volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HostGrant {
    /// Its iSCSI or NVMe name; empty: all hosts.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The access that is allowed.
    #[prost(enumeration = "Access", tag = "2")]
    pub access: i32,
    /// The generation at which the permission began.
    #[prost(uint32, tag = "3")]
    pub since: u32,
}

/// A client by name, and its access.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MapTo {
    /// Its name; empty: all clients.
    #[prost(string, tag = "1")]
    pub sdc: String,
    /// The access.
    #[prost(enumeration = "Access", tag = "2")]
    pub access: i32,
}

/// A host by name, and its access.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MapToHost {
    /// Its iSCSI or NVMe name; empty: all hosts.
    #[prost(string, tag = "1")]
    pub host: String,
    /// The access.
    #[prost(enumeration = "Access", tag = "2")]
    pub access: i32,
}

/// Orders that a volume is mapped to these clients or hosts.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MapRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
    /// The clients; none: they stay as they are.
    #[prost(message, repeated, tag = "2")]
    pub to: Vec<MapTo>,
    /// If there are clients, all others lose their mapping. The same for hosts.
    #[prost(bool, tag = "3")]
    pub only: bool,
    /// The hosts; none: they stay as they are.
    #[prost(message, repeated, tag = "4")]
    pub hosts: Vec<MapToHost>,
}

/// Orders that these clients or hosts may no longer use the volume. Answered when none of their I/O
/// can be executed any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnmapRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
    /// The clients' names.
    #[prost(string, repeated, tag = "2")]
    pub sdcs: Vec<String>,
    /// True for all clients.
    #[prost(bool, tag = "3")]
    pub all: bool,
    /// The hosts' names.
    #[prost(string, repeated, tag = "4")]
    pub hosts: Vec<String>,
}

/// Orders that hosts of a volume are served by this gateway. Answered when nothing that they have
/// sent through another one can be executed any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MovePath {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
    /// The names of the hosts; none: all that have a seat.
    #[prost(string, repeated, tag = "2")]
    pub hosts: Vec<String>,
    /// The name of the gateway, which is a client.
    #[prost(string, tag = "3")]
    pub to: String,
}

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum ObjectKind {
    /// Not known to this build.
    Unknown = 0,
    /// A volume.
    Volume = 1,
    /// A data client.
    Sdc = 2,
    /// A data server.
    Sds = 3,
    /// A protection domain.
    Domain = 4,
    /// A fault set: servers that fail together.
    FaultSet = 5,
    /// A storage pool.
    Pool = 6,
    /// The cluster itself.
    System = 7,
}

/// The media of a storage pool's devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Media {
    /// Any media.
    Any = 0,
    /// Hard disks.
    Hdd = 1,
    /// Solid state drives.
    Ssd = 2,
}

/// How copies yield to clients: the numbers of a [`Policy`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PolicyInfo {
    /// [`Policy::copies`].
    #[prost(uint32, tag = "1")]
    pub copies: u32,
    /// [`Policy::always`].
    #[prost(bool, tag = "2")]
    pub always: bool,
    /// [`Policy::rest`].
    #[prost(uint32, tag = "3")]
    pub rest: u32,
    /// [`Policy::percent`].
    #[prost(uint32, tag = "4")]
    pub percent: u32,
    /// [`Policy::micros`].
    #[prost(uint32, tag = "5")]
    pub micros: u32,
    /// [`Policy::floor`].
    #[prost(uint64, tag = "6")]
    pub floor: u64,
    /// [`Policy::within`].
    #[prost(uint32, tag = "7")]
    pub within: u32,
}

impl From<Policy> for PolicyInfo {
    fn from(p: Policy) -> PolicyInfo {
        let Policy { copies, always, rest, percent, micros, floor, within } = p;
        PolicyInfo { copies, always, rest, percent, micros, floor, within }
    }
}

impl From<PolicyInfo> for Policy {
    /// Takes the numbers unchecked; [`Policy::check`] validates them.
    fn from(p: PolicyInfo) -> Policy {
        let PolicyInfo { copies, always, rest, percent, micros, floor, within } = p;
        Policy { copies, always, rest, percent, micros, floor, within }
    }
}

/// A storage pool in the map.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PoolInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Policy for copies that replace a lost one; absent: the default.
    #[prost(message, optional, tag = "2")]
    pub rebuild: Option<PolicyInfo>,
    /// Policy for copies that only move data; absent: the default.
    #[prost(message, optional, tag = "3")]
    pub rebalance: Option<PolicyInfo>,
    /// Percent of each device that is reserved for rebuilds; absent: the default.
    #[prost(uint32, optional, tag = "4")]
    pub spare: Option<u32>,
}

/// Orders that an object is renamed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RenameRequest {
    /// The kind of the object.
    #[prost(enumeration = "ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its new name.
    #[prost(string, tag = "3")]
    pub to: String,
}

/// Orders that a protection domain, a fault set or a storage pool is created.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateObject {
    /// The kind of the object.
    #[prost(enumeration = "ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The protection domain that it belongs to; empty: the only one.
    #[prost(string, tag = "3")]
    pub domain: String,
    /// For a pool: the media of its devices.
    #[prost(enumeration = "Media", tag = "4")]
    pub media: i32,
    /// For a pool: percent of it that is reserved for rebuilds; absent: the default.
    #[prost(uint32, optional, tag = "5")]
    pub spare: Option<u32>,
    /// For a pool: policy for copies that replace a lost one; absent: the default.
    #[prost(message, optional, tag = "6")]
    pub rebuild: Option<PolicyInfo>,
    /// For a pool: policy for copies that only move data; absent: the default.
    #[prost(message, optional, tag = "7")]
    pub rebalance: Option<PolicyInfo>,
    /// For a pool: new devices wait for an order.
    #[prost(bool, tag = "8")]
    pub by_order: bool,
}

/// Orders that a protection domain, a fault set or a storage pool is removed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RemoveObject {
    /// The kind of the object.
    #[prost(enumeration = "ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// Changes settings of a storage pool. Absent fields keep their value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetPool {
    /// Its name.
    #[prost(string, tag = "1")]
    pub pool: String,
    /// Percent of it that is reserved for rebuilds.
    #[prost(uint32, optional, tag = "2")]
    pub spare: Option<u32>,
    /// The media of its devices.
    #[prost(enumeration = "Media", optional, tag = "3")]
    pub media: Option<i32>,
    /// Policy for copies that replace a lost one.
    #[prost(message, optional, tag = "4")]
    pub rebuild: Option<PolicyInfo>,
    /// Policy for copies that only move data.
    #[prost(message, optional, tag = "5")]
    pub rebalance: Option<PolicyInfo>,
    /// New devices wait for an order.
    #[prost(bool, optional, tag = "6")]
    pub by_order: Option<bool>,
}

/// A protection domain, a fault set or a storage pool in the status.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ObjectStatus {
    /// The kind of the object.
    #[prost(enumeration = "ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its id.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The protection domain that it belongs to.
    #[prost(string, tag = "4")]
    pub domain: String,
    /// Number of its servers, or for a pool of servers with a device in it.
    #[prost(uint32, tag = "5")]
    pub servers: u32,
    /// Number of its devices.
    #[prost(uint32, tag = "6")]
    pub devices: u32,
    /// Number of its volumes.
    #[prost(uint32, tag = "7")]
    pub volumes: u32,
    /// Bytes for data on its devices that are up.
    #[prost(uint64, tag = "8")]
    pub capacity: u64,
    /// Bytes in use.
    #[prost(uint64, tag = "9")]
    pub used: u64,
    /// For a pool: the media of its devices.
    #[prost(enumeration = "Media", tag = "10")]
    pub media: i32,
    /// For a pool: percent of it that is reserved for rebuilds.
    #[prost(uint32, tag = "11")]
    pub spare: u32,
    /// For a pool: bytes that thick volumes have reserved, in all copies.
    #[prost(uint64, tag = "12")]
    pub reserved: u64,
    /// For a pool: policy for copies that replace a lost one.
    #[prost(message, optional, tag = "13")]
    pub rebuild: Option<PolicyInfo>,
    /// For a pool: policy for copies that only move data.
    #[prost(message, optional, tag = "14")]
    pub rebalance: Option<PolicyInfo>,
    /// For a pool: new devices wait for an order.
    #[prost(bool, tag = "15")]
    pub by_order: bool,
}
