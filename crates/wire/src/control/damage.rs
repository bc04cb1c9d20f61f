//! Data of which no copy serves: what is told about it, and what people order.

use super::map::GapInfo;
use alloc::string::String;
use alloc::vec::Vec;

/// "What of this volume can't be served?"
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DamageAsk {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
}

/// "Serve these volumes again, without what is lost."
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AcceptLoss {
    /// The volumes: all that have data in the groups that are lost.
    #[prost(string, repeated, tag = "1")]
    pub volumes: Vec<String>,
    /// Who orders it, for the record.
    #[prost(string, tag = "2")]
    pub by: String,
    /// When: seconds since 1970, UTC.
    #[prost(uint64, tag = "3")]
    pub at: u64,
    /// Not what is lost, which reads as zeros then, but what waits for a device that won't come back: an older copy that
    /// is there is used, and what only that device had is given up.
    #[prost(bool, tag = "4")]
    pub stale: bool,
    /// What is lost is an error to read until it is written, instead of zeros.
    #[prost(bool, tag = "5")]
    pub errors: bool,
}

/// Why nobody serves a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Unserved {
    /// A reason that this build does not know.
    Unknown = 0,
    /// Every copy is gone.
    Lost = 1,
    /// Those that have every write are away.
    Away = 2,
    /// After a recovery of the MDMs: it is not known who has every write.
    Doubt = 3,
}

/// A group that nobody serves.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UnservedGroup {
    /// Which.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Why.
    #[prost(enumeration = "Unserved", tag = "2")]
    pub why: i32,
    /// Devices that have every write, or may have.
    #[prost(uint32, repeated, tag = "3")]
    pub waits_for: Vec<u32>,
    /// Devices that are up, and have an older copy.
    #[prost(uint32, repeated, tag = "4")]
    pub stale: Vec<u32>,
}

/// A loss that somebody has accepted.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AcceptedLoss {
    /// Who.
    #[prost(string, tag = "1")]
    pub by: String,
    /// When: seconds since 1970, UTC.
    #[prost(uint64, tag = "2")]
    pub at: u64,
    /// Groups that began anew.
    #[prost(uint32, repeated, tag = "3")]
    pub groups: Vec<u32>,
    /// With an older copy; otherwise empty.
    #[prost(bool, tag = "4")]
    pub stale: bool,
    /// Empty blocks are errors to read; otherwise zeros.
    #[prost(bool, tag = "5")]
    pub errors: bool,
}

/// What of a volume can't be served.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeDamage {
    /// Bytes of the volume.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    /// The groups of its units, as in the map.
    #[prost(uint32, repeated, tag = "2")]
    pub slots: Vec<u32>,
    /// Those of them that nobody serves.
    #[prost(message, repeated, tag = "3")]
    pub groups: Vec<UnservedGroup>,
    /// Losses that were accepted before, the last ones.
    #[prost(message, repeated, tag = "4")]
    pub accepted: Vec<AcceptedLoss>,
    /// What was lost and accepted, and is an error to read until it is written.
    #[prost(message, repeated, tag = "5")]
    pub gaps: Vec<GapInfo>,
}
