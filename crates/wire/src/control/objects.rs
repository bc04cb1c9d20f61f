//! The objects that people name, and orders about them: mappings of volumes, storage pools, protection domains,
//! fault sets.

use alloc::string::String;
use alloc::vec::Vec;
use base::Policy;

/// What a client may do with a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Access {
    /// Everything.
    ReadWrite = 0,
    /// Read.
    ReadOnly = 1,
}

/// A client's leave to use a volume.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct GrantInfo {
    /// The client; 0 where all are meant.
    #[prost(uint32, tag = "1")]
    pub sdc: u32,
    /// What it may do.
    #[prost(enumeration = "Access", tag = "2")]
    pub access: i32,
    /// I/O of a lower generation is of a time before this leave was given, and is refused.
    #[prost(uint32, tag = "3")]
    pub generation: u32,
}

/// Who may use a volume. Absent, as builds before mappings leave it: all may, for reading and writing.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MappingInfo {
    /// All clients; if it is absent, those of the list.
    #[prost(message, optional, tag = "1")]
    pub all: Option<GrantInfo>,
    /// These, each once.
    #[prost(message, repeated, tag = "2")]
    pub sdcs: Vec<GrantInfo>,
}

/// A client by its name, and what it may do.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MapTo {
    /// Its name; empty: all clients.
    #[prost(string, tag = "1")]
    pub sdc: String,
    /// What it may do.
    #[prost(enumeration = "Access", tag = "2")]
    pub access: i32,
}

/// "Map a volume to these clients."
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MapAsk {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
    /// To whom.
    #[prost(message, repeated, tag = "2")]
    pub to: Vec<MapTo>,
    /// And to nobody else from now on.
    #[prost(bool, tag = "3")]
    pub only: bool,
}

/// "Don't let these clients use the volume any more." Answered when no I/O of theirs can be done any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnmapAsk {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
    /// The clients' names.
    #[prost(string, repeated, tag = "2")]
    pub sdcs: Vec<String>,
    /// All clients.
    #[prost(bool, tag = "3")]
    pub all: bool,
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
    /// A fault set: servers that share their fate.
    FaultSet = 5,
    /// A storage pool.
    Pool = 6,
    /// The cluster itself.
    System = 7,
}

/// What the devices of a storage pool are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Media {
    /// Anything.
    Any = 0,
    /// Hard disks.
    Hdd = 1,
    /// Solid state drives.
    Ssd = 2,
}

/// How copies give way to clients: the numbers of a [`Policy`].
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
    /// As it is said; [`Policy::check`] tells whether that can be.
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
    /// How copies that replace a lost one give way to clients; absent: the default.
    #[prost(message, optional, tag = "2")]
    pub rebuild: Option<PolicyInfo>,
    /// The same for copies that only move.
    #[prost(message, optional, tag = "3")]
    pub rebalance: Option<PolicyInfo>,
    /// Of each device, in percent, what is kept for copies that replace lost ones; absent: the default.
    #[prost(uint32, optional, tag = "4")]
    pub spare: Option<u32>,
}

/// "Give it another name."
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RenameAsk {
    /// What it is.
    #[prost(enumeration = "ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The new one.
    #[prost(string, tag = "3")]
    pub to: String,
}

/// "Make a protection domain, a fault set or a storage pool."
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateObject {
    /// What.
    #[prost(enumeration = "ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The protection domain that it belongs to; empty: the only one.
    #[prost(string, tag = "3")]
    pub domain: String,
    /// Of a pool: what its devices are.
    #[prost(enumeration = "Media", tag = "4")]
    pub media: i32,
    /// Of a pool: how many percent of it are for rebuilds only; absent: the default.
    #[prost(uint32, optional, tag = "5")]
    pub spare: Option<u32>,
    /// Of a pool: how copies that replace a lost one give way to clients; absent: the default.
    #[prost(message, optional, tag = "6")]
    pub rebuild: Option<PolicyInfo>,
    /// The same for copies that only move.
    #[prost(message, optional, tag = "7")]
    pub rebalance: Option<PolicyInfo>,
    /// Of a pool: new devices wait for an order.
    #[prost(bool, tag = "8")]
    pub by_order: bool,
}

/// "Remove a protection domain, a fault set or a storage pool."
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RemoveObject {
    /// What.
    #[prost(enumeration = "ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// "Set what can be set of a storage pool."
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SetPool {
    /// Its name.
    #[prost(string, tag = "1")]
    pub pool: String,
    /// How many percent of it are for rebuilds only.
    #[prost(uint32, optional, tag = "2")]
    pub spare: Option<u32>,
    /// What its devices are.
    #[prost(enumeration = "Media", optional, tag = "3")]
    pub media: Option<i32>,
    /// How copies that replace a lost one give way to clients.
    #[prost(message, optional, tag = "4")]
    pub rebuild: Option<PolicyInfo>,
    /// The same for copies that only move.
    #[prost(message, optional, tag = "5")]
    pub rebalance: Option<PolicyInfo>,
    /// New devices wait for an order.
    #[prost(bool, optional, tag = "6")]
    pub by_order: Option<bool>,
}

/// A protection domain, a fault set or a storage pool, as a status shows it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ObjectStatus {
    /// What it is.
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
    /// Servers of it, or with a device of it.
    #[prost(uint32, tag = "5")]
    pub servers: u32,
    /// Devices of it.
    #[prost(uint32, tag = "6")]
    pub devices: u32,
    /// Volumes of it.
    #[prost(uint32, tag = "7")]
    pub volumes: u32,
    /// Bytes for data on its devices that are up.
    #[prost(uint64, tag = "8")]
    pub capacity: u64,
    /// Bytes in use.
    #[prost(uint64, tag = "9")]
    pub used: u64,
    /// Of a pool: what its devices are.
    #[prost(enumeration = "Media", tag = "10")]
    pub media: i32,
    /// Of a pool: how many percent of it are for rebuilds only.
    #[prost(uint32, tag = "11")]
    pub spare: u32,
    /// Of a pool: bytes that thick volumes have reserved, all copies.
    #[prost(uint64, tag = "12")]
    pub reserved: u64,
    /// Of a pool: how copies that replace a lost one give way to clients.
    #[prost(message, optional, tag = "13")]
    pub rebuild: Option<PolicyInfo>,
    /// The same for copies that only move.
    #[prost(message, optional, tag = "14")]
    pub rebalance: Option<PolicyInfo>,
    /// Of a pool: new devices wait for an order.
    #[prost(bool, tag = "15")]
    pub by_order: bool,
}
