//! After most MDMs were lost: what data servers tell the one that goes on, and what people order.

use super::{GroupInfo, VolumeInfo};
use alloc::string::String;
use alloc::vec::Vec;

/// A part of what a data server knows. It sends all parts before it registers, when the MDM's `Welcome` asks for them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// The version of its map; 0: its process has none yet.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Groups of which its device remembers something.
    #[prost(message, repeated, tag = "2")]
    pub groups: Vec<GroupReport>,
    /// Volumes of its map.
    #[prost(message, repeated, tag = "3")]
    pub volumes: Vec<VolumeInfo>,
    /// Volume ids below this one that its map does not have are gone for ever.
    #[prost(uint32, tag = "4")]
    pub next_volume: u32,
    /// Volumes of which its device holds data.
    #[prost(uint32, repeated, tag = "5")]
    pub held: Vec<u32>,
    /// The version of the newest map that an MDM has told it itself: what is deleted is known from that.
    #[prost(uint64, tag = "6")]
    pub told: u64,
    /// Devices of its map.
    #[prost(message, repeated, tag = "7")]
    pub devices: Vec<StoreInfo>,
}

/// What is on a device, as a map has it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StoreInfo {
    /// The device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// Drawn when its store was made.
    #[prost(fixed64, tag = "2")]
    pub store: u64,
}

/// What a device remembers of one group.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GroupReport {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The highest epoch in which this replica took part.
    #[prost(uint64, tag = "2")]
    pub acted: u64,
    /// The last epoch at whose seal it was equal to the others in sync.
    #[prost(uint64, tag = "3")]
    pub base: u64,
    /// The configuration that its map has; absent after a restart.
    #[prost(message, optional, tag = "4")]
    pub config: Option<GroupInfo>,
    /// In the epoch `acted` it was a joiner: what was acknowledged then it need not have, also if it was sealed.
    #[prost(bool, tag = "5")]
    pub joiner: bool,
}

/// "Go on alone: the other MDMs are lost." Taken by an MDM that does not lead. With `finish`, to the one that leads:
/// "don't wait any more for servers that have not reported". With `delete`, to the same: "nobody needs these any more".
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RecoverMdm {
    /// Who orders it, for the record.
    #[prost(string, tag = "1")]
    pub by: String,
    /// When: seconds since 1970, UTC.
    #[prost(uint64, tag = "2")]
    pub at: u64,
    /// End the recovery with what has been reported.
    #[prost(bool, tag = "3")]
    pub finish: bool,
    /// Delete the data of these volumes, which the MDM does not know.
    #[prost(uint32, repeated, tag = "4")]
    pub delete: Vec<u32>,
}

/// "Give me all that you know." Answered by [`super::AdminReply::backup`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BackupAsk {}

/// The last recovery of the MDMs, in the status.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RecoveryStatus {
    /// How many there were.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// Who ordered it.
    #[prost(string, tag = "2")]
    pub by: String,
    /// When: seconds since 1970, UTC.
    #[prost(uint64, tag = "3")]
    pub at: u64,
    /// The MDM still collects what servers know, and hands out no map.
    #[prost(bool, tag = "4")]
    pub open: bool,
    /// Groups of which it is not known yet who has everything.
    #[prost(uint32, tag = "5")]
    pub doubtful: u32,
    /// Devices whose reports would help.
    #[prost(uint32, repeated, tag = "6")]
    pub waits_for: Vec<u32>,
    /// Of the doubtful groups, those of which no report can help.
    #[prost(uint32, tag = "7")]
    pub stuck: u32,
    /// Volumes of which devices hold data, or that a server's map has, and that the MDM can't take over. Their data is
    /// kept until a person orders otherwise.
    #[prost(uint32, repeated, tag = "8")]
    pub strange: Vec<u32>,
    /// Of the doubtful groups, those of which one device has what was written last, if no other device is away of which
    /// nobody knows.
    #[prost(uint32, tag = "9")]
    pub alone: u32,
    /// Of the devices that it waits for, those in whose place a disk is that was replaced since.
    #[prost(uint32, repeated, tag = "10")]
    pub older: Vec<u32>,
}
