//! The cluster map: devices, the groups that they serve, and the volumes in those groups.

use super::{DeviceKind, GatewayInfo, MappingInfo, PoolInfo, ReservationInfo, SeatInfo};
use alloc::string::String;
use alloc::vec::Vec;
use base::VolumeId;
use core::ops::Range;

/// The MDM's intent for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Intent {
    /// The device stays.
    Normal = 0,
    /// Its groups move away, then it is removed.
    Remove = 1,
    /// It no longer belongs to the cluster. Its id is never reused.
    Removed = 2,
    /// Its server is in maintenance and may be off. It leads only groups that no other device can
    /// lead, and its copies are not rebuilt elsewhere.
    Maintain = 3,
    /// The same, but its groups move away first, so that there are two copies all the time.
    Protect = 4,
    /// It is new, and gets no copies before an order admits it.
    Waiting = 5,
}

impl Intent {
    /// Returns true if its data has to move away.
    pub fn empties(self) -> bool {
        matches!(self, Intent::Remove | Intent::Protect)
    }

    /// Returns true if it counts for the cluster's state: neither removed nor waiting.
    pub fn counts(self) -> bool {
        !matches!(self, Intent::Removed | Intent::Waiting)
    }

    /// Returns true while its server is in maintenance.
    pub fn maintains(self) -> bool {
        matches!(self, Intent::Maintain | Intent::Protect)
    }
}

/// A device in the map.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// The server that serves it.
    #[prost(uint32, tag = "2")]
    pub sds: u32,
    /// Its address, `ip:port`.
    #[prost(string, tag = "3")]
    pub address: String,
    /// The incarnation of the server process.
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
    /// True if it is believed to be alive.
    #[prost(bool, tag = "5")]
    pub up: bool,
    /// It is down, and its process is known to be dead: its leases and promises are void (rule R3).
    #[prost(bool, tag = "6")]
    pub dead: bool,
    /// The kind of the device.
    #[prost(enumeration = "DeviceKind", tag = "7")]
    pub kind: i32,
    /// Bytes for data.
    #[prost(uint64, tag = "8")]
    pub capacity: u64,
    /// Number of scrubs that were ordered. A pass begins when this rises.
    #[prost(uint32, tag = "20")]
    pub scrub: u32,
    /// The MDM's intent for it.
    #[prost(enumeration = "Intent", tag = "30")]
    pub intent: i32,
    /// Its storage pool.
    #[prost(uint32, tag = "50")]
    pub pool: u32,
    /// Identifies its content: drawn at random when its store was created.
    #[prost(fixed64, tag = "80")]
    pub store: u64,
    /// After a recovery of the MDMs, a newer content than `store` that groups in doubt wait for. In
    /// a later recovery, this map may be the only evidence of it. 0: there is none.
    #[prost(fixed64, tag = "81")]
    pub awaited: u64,
}

/// A group in the map. The format has allowed three replicas from the start.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GroupInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// The number of this configuration.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The device that serves the group; 0 if no in-sync replica is up.
    #[prost(uint32, tag = "3")]
    pub primary: u32,
    /// Devices that belong to the group, preferred primary first.
    #[prost(uint32, repeated, tag = "4")]
    pub replicas: Vec<u32>,
    /// Replicas that hold every acknowledged write.
    #[prost(uint32, repeated, tag = "5")]
    pub in_sync: Vec<u32>,
    /// Replicas that are being brought up to date.
    #[prost(uint32, repeated, tag = "6")]
    pub joiners: Vec<u32>,
    /// Every copy is gone: reads and writes fail (rule R10).
    #[prost(bool, tag = "7")]
    pub lost: bool,
    /// The replica that leaves the group once the others are in sync; 0: none.
    #[prost(uint32, tag = "30")]
    pub leaving: u32,
    /// After a recovery of the MDMs, whether it is known which replica has every acknowledged
    /// write. 0: it is known. 1: not until devices have reported. 2: no report can tell.
    #[prost(uint32, tag = "80")]
    pub doubt: u32,
    /// While the group is in doubt, an epoch that it is known to have reached. 0: none that is
    /// later than `epoch`.
    #[prost(uint64, tag = "81")]
    pub reached: u64,
}

/// A volume in the map.
#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Its name, 1 to 31 characters.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Size in bytes, a multiple of 1 MiB.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// Rises whenever earlier I/O must be refused (rule R8).
    #[prost(uint32, tag = "4")]
    pub generation: u32,
    /// The groups of its units: unit u belongs to `slots[placement::slot_of(u, slots.len())]`.
    #[prost(uint32, repeated, tag = "5")]
    pub slots: Vec<u32>,
    /// The clients that may use it.
    #[prost(message, optional, tag = "50")]
    pub mapping: Option<MappingInfo>,
    /// Its storage pool.
    #[prost(uint32, tag = "51")]
    pub pool: u32,
    /// True if space for all of it is reserved.
    #[prost(bool, tag = "52")]
    pub thick: bool,
    /// Its reservations; absent: there are none, and nobody was ever registered.
    #[prost(message, optional, tag = "53")]
    pub reservations: Option<ReservationInfo>,
    /// The gateways of its hosts.
    #[prost(message, repeated, tag = "54")]
    pub seats: Vec<SeatInfo>,
    /// Parts that were lost and are read errors until they are written.
    #[prost(message, repeated, tag = "60")]
    pub gaps: Vec<LostRange>,
}

/// Data of a volume in one group that was lost, a loss that the operator has accepted. Its blocks
/// are read errors until they are written.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LostRange {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Number of units that the volume had at that time. Units that were added later are zeros.
    #[prost(uint32, tag = "2")]
    pub units: u32,
}

/// A client in the map.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ClientInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// The incarnation of its process.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// A range of volume ids.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IdRange {
    /// The first id.
    #[prost(uint32, tag = "1")]
    pub from: u32,
    /// One more than the last id.
    #[prost(uint32, tag = "2")]
    pub to: u32,
}

impl IdRange {
    /// Creates the message for a range.
    pub fn of(ids: &Range<VolumeId>) -> IdRange {
        IdRange { from: ids.start.0, to: ids.end.0 }
    }

    /// Returns the range.
    pub fn ids(&self) -> Range<VolumeId> {
        VolumeId(self.from)..VolumeId(self.to)
    }
}

/// A part of the changes since the puller's map. The parts of one answer come in sequence on one
/// link; the puller applies them together, when the last one has arrived.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MapPage {
    /// The version of the map after the last part.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// True in the last part.
    #[prost(bool, tag = "2")]
    pub last: bool,
    /// The cluster.
    #[prost(uint64, tag = "3")]
    pub cluster: u64,
    /// Devices that changed.
    #[prost(message, repeated, tag = "4")]
    pub devices: Vec<DeviceInfo>,
    /// Groups that changed.
    #[prost(message, repeated, tag = "5")]
    pub groups: Vec<GroupInfo>,
    /// Volumes that changed.
    #[prost(message, repeated, tag = "6")]
    pub volumes: Vec<VolumeInfo>,
    /// Last part: all volumes that exist (rule R9).
    #[prost(uint32, repeated, tag = "7")]
    pub live: Vec<u32>,
    /// Last part: lower ids that are in neither `live` nor `unknown` belong to deleted volumes.
    #[prost(uint32, tag = "8")]
    pub next_volume: u32,
    /// Last part: ids that lost MDMs may have given to volumes. Their data is kept, and not served.
    #[prost(message, repeated, tag = "9")]
    pub unknown: Vec<IdRange>,
    /// Last part: all MDMs, if they changed.
    #[prost(message, repeated, tag = "20")]
    pub mdms: Vec<MdmInfo>,
    /// Last part: all storage pools, if one changed.
    #[prost(message, repeated, tag = "50")]
    pub pools: Vec<PoolInfo>,
    /// Last part: clients whose incarnation changed.
    #[prost(message, repeated, tag = "70")]
    pub sdcs: Vec<ClientInfo>,
    /// True if `sdcs` has all clients: those that it does not have were removed.
    #[prost(bool, tag = "71")]
    pub all_sdcs: bool,
    /// The next incarnation that will be assigned. A lower one of a client that the map does not
    /// name has ended.
    #[prost(uint64, tag = "72")]
    pub next_life: u64,
    /// The version from which on maps belong to the last recovery of the MDMs. 0: there was none.
    #[prost(uint64, tag = "73")]
    pub recovered: u64,
    /// Last part: all gateways, if one changed.
    #[prost(message, repeated, tag = "74")]
    pub gateways: Vec<GatewayInfo>,
    /// The version of the map in which a gateway changed last; 0: `gateways` is not in this page.
    #[prost(uint64, tag = "75")]
    pub gateways_at: u64,
    /// The cluster's level. It is looked at before anything else of the page ([`super::level_of`]).
    #[prost(uint32, tag = "90")]
    pub level: u32,
}

/// An MDM in the map.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MdmInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its address, `ip:port`.
    #[prost(string, tag = "3")]
    pub address: String,
    /// It votes, and leads only while no manager can.
    #[prost(bool, tag = "4")]
    pub tie_breaker: bool,
}
