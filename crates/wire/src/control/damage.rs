//! Data that no copy serves: reports about it, and orders of the operator.

use super::map::LostRange;
use alloc::string::String;
use alloc::vec::Vec;

/// Asks which parts of a volume can't be served.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DamageRequest {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
}

/// Orders that these volumes are served again without the lost data.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AcceptLoss {
    /// The volumes: all that have data in the lost groups.
    #[prost(string, repeated, tag = "1")]
    pub volumes: Vec<String>,
    /// The person who orders it, for the record.
    #[prost(string, tag = "2")]
    pub by: String,
    /// Time of the order, in seconds since 1970, UTC.
    #[prost(uint64, tag = "3")]
    pub at: u64,
    /// False: accepts the loss of groups whose copies are all gone; they read as zeros. True: for
    /// groups that wait for a device that will not come back, uses an older copy that is there, and
    /// gives up the data that only that device had.
    #[prost(bool, tag = "4")]
    pub stale: bool,
    /// Lost blocks are read errors until they are written, not zeros.
    #[prost(bool, tag = "5")]
    pub errors: bool,
}

/// Reason why no device serves a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Unserved {
    /// A reason that this build does not know.
    Unknown = 0,
    /// Every copy is gone.
    Lost = 1,
    /// The replicas that have every write are away.
    Away = 2,
    /// After a recovery of the MDMs: it is not known which replica has every write.
    Doubt = 3,
}

/// A group that no device serves.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnservedGroup {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The reason.
    #[prost(enumeration = "Unserved", tag = "2")]
    pub why: i32,
    /// Devices that have every write, or may have it.
    #[prost(uint32, repeated, tag = "3")]
    pub waits_for: Vec<u32>,
    /// Devices that are up and have an older copy.
    #[prost(uint32, repeated, tag = "4")]
    pub stale: Vec<u32>,
}

/// A loss that the operator has accepted.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AcceptedLoss {
    /// The person who accepted it.
    #[prost(string, tag = "1")]
    pub by: String,
    /// Time, in seconds since 1970, UTC.
    #[prost(uint64, tag = "2")]
    pub at: u64,
    /// Groups that started again.
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
    /// True if they started with an older copy, false if empty.
    #[prost(bool, tag = "4")]
    pub stale: bool,
    /// True if empty blocks are read errors, false if they are zeros.
    #[prost(bool, tag = "5")]
    pub errors: bool,
}

/// The parts of a volume that can't be served.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeDamage {
    /// Size of the volume in bytes.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    /// The groups of its units, as in the map.
    #[prost(uint32, repeated, tag = "2")]
    pub slots: Vec<u32>,
    /// Groups of these that no device serves.
    #[prost(message, repeated, tag = "3")]
    pub groups: Vec<UnservedGroup>,
    /// The last losses that were accepted earlier.
    #[prost(message, repeated, tag = "4")]
    pub accepted: Vec<AcceptedLoss>,
    /// Parts whose loss was accepted, and that are read errors until they are written.
    #[prost(message, repeated, tag = "5")]
    pub gaps: Vec<LostRange>,
}
