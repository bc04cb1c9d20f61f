//! Messages after the loss of most MDMs: reports of data servers to the remaining MDM, and orders
//! of the operator.

use super::{GroupInfo, IdRange, VolumeInfo};
use alloc::string::String;
use alloc::vec::Vec;

/// A part of a data server's knowledge. The server sends all parts before it registers, if the
/// MDM's `Welcome` asks for them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// The version of its map; 0: its process has no map yet.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Groups that its device has a record of.
    #[prost(message, repeated, tag = "2")]
    pub groups: Vec<GroupReport>,
    /// Volumes of its map.
    #[prost(message, repeated, tag = "3")]
    pub volumes: Vec<VolumeInfo>,
    /// Volume ids below this one that its map does not have belong to deleted volumes, except those
    /// in `unknown`.
    #[prost(uint32, tag = "4")]
    pub next_volume: u32,
    /// Volumes of which its device holds data.
    #[prost(uint32, repeated, tag = "5")]
    pub held: Vec<u32>,
    /// The version of the newest map that this process got directly from an MDM. It tells which
    /// volumes are deleted.
    #[prost(uint64, tag = "6")]
    pub told: u64,
    /// Devices of its map.
    #[prost(message, repeated, tag = "7")]
    pub devices: Vec<StoreInfo>,
    /// Volume ids of which its map says that it is unknown whether they were used or deleted.
    #[prost(message, repeated, tag = "8")]
    pub unknown: Vec<IdRange>,
}

/// The content of a device, according to a map.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StoreInfo {
    /// The device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// Identifies the content: drawn at random when its store was created.
    #[prost(fixed64, tag = "2")]
    pub store: u64,
    /// The content that groups in doubt wait for ([`super::DeviceInfo::awaited`]).
    #[prost(fixed64, tag = "3")]
    pub awaited: u64,
}

/// A device's record of one group.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GroupReport {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The highest epoch in which this replica took part.
    #[prost(uint64, tag = "2")]
    pub acted: u64,
    /// The last epoch at whose seal it was equal to the other in-sync replicas.
    #[prost(uint64, tag = "3")]
    pub base: u64,
    /// The configuration in its map; absent after a restart.
    #[prost(message, optional, tag = "4")]
    pub config: Option<GroupInfo>,
    /// True if it was a joiner in the epoch `acted`: it may lack writes that were acknowledged
    /// then, even if it was sealed.
    #[prost(bool, tag = "5")]
    pub joiner: bool,
}

/// Orders an MDM that does not lead to continue alone because the other MDMs are lost. With
/// `finish`, sent to the leader: stop waiting for servers that have not reported. With `delete`,
/// sent to the leader: delete these volumes, which are not needed any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RecoverMdm {
    /// The person who orders it, for the record.
    #[prost(string, tag = "1")]
    pub by: String,
    /// Time of the order, in seconds since 1970, UTC.
    #[prost(uint64, tag = "2")]
    pub at: u64,
    /// End the recovery with the reports so far.
    #[prost(bool, tag = "3")]
    pub finish: bool,
    /// Delete the data of these volumes, which the MDM does not know.
    #[prost(uint32, repeated, tag = "4")]
    pub delete: Vec<u32>,
}

/// Asks for the complete state of an MDM. Answered by [`super::AdminReply::backup`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackupRequest {}

/// The last recovery of the MDMs, in the status.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RecoveryStatus {
    /// Number of recoveries so far.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// The person who ordered it.
    #[prost(string, tag = "2")]
    pub by: String,
    /// Time of the order, in seconds since 1970, UTC.
    #[prost(uint64, tag = "3")]
    pub at: u64,
    /// True while the MDM still collects reports and publishes no map.
    #[prost(bool, tag = "4")]
    pub open: bool,
    /// Groups of which it is not known yet which replica has every write.
    #[prost(uint32, tag = "5")]
    pub doubtful: u32,
    /// Devices whose reports would help.
    #[prost(uint32, repeated, tag = "6")]
    pub waits_for: Vec<u32>,
    /// Doubtful groups for which no report can help.
    #[prost(uint32, tag = "7")]
    pub stuck: u32,
    /// Volumes that the MDM can't restore although devices hold data of them, or a server's map has
    /// them. Their data is kept until the operator orders otherwise.
    #[prost(uint32, repeated, tag = "8")]
    pub strange: Vec<u32>,
    /// Doubtful groups of which one device has the last writes, if no unknown device is away.
    #[prost(uint32, tag = "9")]
    pub alone: u32,
    /// Devices that it waits for, and in whose place an older disk is that they had replaced.
    #[prost(uint32, repeated, tag = "10")]
    pub older: Vec<u32>,
}
