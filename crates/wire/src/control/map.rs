//! The cluster map: who is there, which groups they serve, and what volumes lie in those.

use super::{DeviceKind, MappingInfo, PoolInfo};
use alloc::string::String;
use alloc::vec::Vec;
use base::VolumeId;
use core::ops::Range;

/// What is to become of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Intent {
    /// It stays.
    Normal = 0,
    /// Its groups move away; then it is removed.
    Remove = 1,
    /// It belongs to the cluster no more. Its id never comes back.
    Removed = 2,
    /// Its server is worked on, and may be off: it leads only what nobody else can, and nothing is made anew in its
    /// place.
    Maintain = 3,
    /// The same, with its groups moved away first, so that two copies are there all the time.
    Protect = 4,
    /// It is new, and gets no copy before an order admits it.
    Waiting = 5,
}

impl Intent {
    /// True when what the device has is to move away.
    pub fn empties(self) -> bool {
        matches!(self, Intent::Remove | Intent::Protect)
    }

    /// True when it counts for what is judged of the cluster: it is neither removed, nor new and not admitted.
    pub fn counts(self) -> bool {
        !matches!(self, Intent::Removed | Intent::Waiting)
    }

    /// True while its server is in maintenance.
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
    /// Where, `ip:port`.
    #[prost(string, tag = "3")]
    pub address: String,
    /// The server process's life.
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
    /// True when it is thought to be alive.
    #[prost(bool, tag = "5")]
    pub up: bool,
    /// Down, and its process is known to be dead: its leases and promises are void (rule R3).
    #[prost(bool, tag = "6")]
    pub dead: bool,
    /// What it is.
    #[prost(enumeration = "DeviceKind", tag = "7")]
    pub kind: i32,
    /// Bytes for data.
    #[prost(uint64, tag = "8")]
    pub capacity: u64,
    /// How often it was asked to be scrubbed: when this rises, a pass begins.
    #[prost(uint32, tag = "20")]
    pub scrub: u32,
    /// What is to become of it.
    #[prost(enumeration = "Intent", tag = "30")]
    pub intent: i32,
    /// Its storage pool.
    #[prost(uint32, tag = "50")]
    pub pool: u32,
    /// What is on it: drawn when its store was made.
    #[prost(fixed64, tag = "80")]
    pub store: u64,
}

/// A group in the map. Room for three replicas from the first day.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GroupInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// The number of this configuration.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Who serves; 0 when no in-sync replica is up.
    #[prost(uint32, tag = "3")]
    pub primary: u32,
    /// Devices that belong to the group, the preferred primary first.
    #[prost(uint32, repeated, tag = "4")]
    pub replicas: Vec<u32>,
    /// Those that hold every acknowledged write.
    #[prost(uint32, repeated, tag = "5")]
    pub in_sync: Vec<u32>,
    /// Those that are being brought up to date.
    #[prost(uint32, repeated, tag = "6")]
    pub joiners: Vec<u32>,
    /// Every copy is gone: reads and writes are errors (rule R10).
    #[prost(bool, tag = "7")]
    pub lost: bool,
    /// The replica that goes when the others are in sync; 0: none.
    #[prost(uint32, tag = "30")]
    pub leaving: u32,
    /// After a recovery of the MDMs it is not known who has every acknowledged write: 1, until devices have reported;
    /// 2, and no report can tell. 0: it is known.
    #[prost(uint32, tag = "80")]
    pub doubt: u32,
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
    /// Bytes, a multiple of 1 MiB.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// Rises when I/O of before must be refused (rule R8).
    #[prost(uint32, tag = "4")]
    pub generation: u32,
    /// The groups that its units go to: unit u belongs to `slots[perm(u) % slots.len()]`
    /// (`placement::slot_of`).
    #[prost(uint32, repeated, tag = "5")]
    pub slots: Vec<u32>,
    /// Who may use it.
    #[prost(message, optional, tag = "50")]
    pub mapping: Option<MappingInfo>,
    /// Its storage pool.
    #[prost(uint32, tag = "51")]
    pub pool: u32,
    /// Space for all of it is reserved.
    #[prost(bool, tag = "52")]
    pub thick: bool,
    /// What of it was lost, and is an error to read until it is written.
    #[prost(message, repeated, tag = "60")]
    pub gaps: Vec<GapInfo>,
}

/// The data that a volume had in one group was lost, and somebody has accepted that: reading its blocks is an error
/// until they are written.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct GapInfo {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Units that the volume had then: those that it got since are zeros.
    #[prost(uint32, tag = "2")]
    pub units: u32,
}

/// A client in the map.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SdcInfo {
    /// Its id.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// The life of its process.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// Ids of volumes, from one up to another one.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IdRange {
    /// The first one.
    #[prost(uint32, tag = "1")]
    pub from: u32,
    /// The one after the last one.
    #[prost(uint32, tag = "2")]
    pub to: u32,
}

impl IdRange {
    /// As it is written.
    pub fn of(ids: &Range<VolumeId>) -> IdRange {
        IdRange { from: ids.start.0, to: ids.end.0 }
    }

    /// The ids.
    pub fn ids(&self) -> Range<VolumeId> {
        VolumeId(self.from)..VolumeId(self.to)
    }
}

/// A part of what is newer than the puller's map. The parts of one answer come in a row on one link;
/// the puller applies them together, at the last one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MapPage {
    /// The version that the map has after the last part.
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
    /// Last part: ids below this one that are in neither `live` nor `unknown` are gone for ever.
    #[prost(uint32, tag = "8")]
    pub next_volume: u32,
    /// Last part: ids that MDMs which are lost may have given to volumes. Data of these is kept, and not served.
    #[prost(message, repeated, tag = "9")]
    pub unknown: Vec<IdRange>,
    /// Last part: all MDMs, if they changed.
    #[prost(message, repeated, tag = "20")]
    pub mdms: Vec<MdmInfo>,
    /// Last part: all storage pools, if one changed.
    #[prost(message, repeated, tag = "50")]
    pub pools: Vec<PoolInfo>,
    /// Last part: clients whose life changed.
    #[prost(message, repeated, tag = "70")]
    pub sdcs: Vec<SdcInfo>,
    /// `sdcs` has all clients: those that aren't in it were removed.
    #[prost(bool, tag = "71")]
    pub all_sdcs: bool,
    /// The next life's number: a lower one that isn't in the map is over.
    #[prost(uint64, tag = "72")]
    pub next_life: u64,
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
    /// Where it listens, `ip:port`.
    #[prost(string, tag = "3")]
    pub address: String,
    /// It votes, and leads only while no manager can.
    #[prost(bool, tag = "4")]
    pub tie_breaker: bool,
}
