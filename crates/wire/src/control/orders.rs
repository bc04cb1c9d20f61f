//! Requests of people and programs to the cluster, and the answers.

use super::{
    AcceptLoss, BackupRequest, ClearReservations, CreateObject, DamageRequest, MapRequest, MapTo,
    MapToHost, MovePath, RecoverMdm, RemoveObject, RenameRequest, SetLevelRequest, SetPool,
    StatusInfo, UnmapRequest, VolumeDamage, VolumeStatus,
};
use alloc::string::String;
use alloc::vec::Vec;

/// A request of a person or a program to the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdminRequest {
    /// The query or order.
    #[prost(
        oneof = "Ask",
        tags = "1, 2, 3, 4, 20, 30, 31, 32, 40, 41, 42, 50, 51, 52, 53, 54, 55, 56, 57, 80, 81, 82, 83, \
                90"
    )]
    pub ask: Option<Ask>,
    /// The level that the order and its fields need; 0 means 1. A build that does not know a field
    /// skips it, so without this it would carry out a part of the order.
    #[prost(uint32, tag = "100")]
    pub level: u32,
}

impl AdminRequest {
    /// Creates a request that every level knows.
    pub fn of(ask: Ask) -> AdminRequest {
        AdminRequest { ask: Some(ask), level: 0 }
    }
}

/// Kinds of [`AdminRequest`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Ask {
    /// Report the state of the cluster. Answered by `StatusInfo`.
    #[prost(message, tag = "1")]
    Status(StatusRequest),
    /// Create a volume.
    #[prost(message, tag = "2")]
    CreateVolume(CreateVolume),
    /// Grow a volume.
    #[prost(message, tag = "3")]
    ResizeVolume(ResizeVolume),
    /// Delete a volume and its data.
    #[prost(message, tag = "4")]
    DeleteVolume(DeleteVolume),
    /// Scrub devices now.
    #[prost(message, tag = "20")]
    Scrub(ScrubRequest),
    /// Remove a device or all devices of a server, or cancel that.
    #[prost(message, tag = "30")]
    Remove(RemoveRequest),
    /// Put a server into maintenance, or end the maintenance.
    #[prost(message, tag = "31")]
    Maintain(MaintainRequest),
    /// Allow new devices to have copies.
    #[prost(message, tag = "32")]
    Admit(AdmitRequest),
    /// Add an MDM to the cluster.
    #[prost(message, tag = "40")]
    AddMdm(AddMdm),
    /// Remove an MDM from the cluster.
    #[prost(message, tag = "41")]
    RemoveMdm(RemoveMdm),
    /// Make another MDM the leader.
    #[prost(message, tag = "42")]
    SwitchMdm(SwitchMdm),
    /// Map a volume to clients.
    #[prost(message, tag = "50")]
    Map(MapRequest),
    /// Forbid clients to use a volume any more.
    #[prost(message, tag = "51")]
    Unmap(UnmapRequest),
    /// Rename an object.
    #[prost(message, tag = "52")]
    Rename(RenameRequest),
    /// Create a protection domain, a fault set or a storage pool.
    #[prost(message, tag = "53")]
    CreateObject(CreateObject),
    /// Remove a protection domain, a fault set or a storage pool.
    #[prost(message, tag = "54")]
    RemoveObject(RemoveObject),
    /// Change settings of a storage pool.
    #[prost(message, tag = "55")]
    SetPool(SetPool),
    /// Serve hosts through another gateway.
    #[prost(message, tag = "56")]
    MovePath(MovePath),
    /// End the reservation of a volume and all registrations.
    #[prost(message, tag = "57")]
    ClearReservations(ClearReservations),
    /// Continue without the other MDMs, which are lost; or end the recovery.
    #[prost(message, tag = "80")]
    RecoverMdm(RecoverMdm),
    /// Return the complete state of an MDM.
    #[prost(message, tag = "81")]
    Backup(BackupRequest),
    /// Report which parts of a volume can't be served.
    #[prost(message, tag = "82")]
    Damage(DamageRequest),
    /// Serve volumes again without their lost data.
    #[prost(message, tag = "83")]
    AcceptLoss(AcceptLoss),
    /// Raise the cluster's level.
    #[prost(message, tag = "90")]
    SetLevel(SetLevelRequest),
}

/// Orders that an MDM is added to the cluster. It already runs, and belongs to no cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AddMdm {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its address, `ip:port`.
    #[prost(string, tag = "2")]
    pub address: String,
    /// True if it may lead only while no manager can.
    #[prost(bool, tag = "3")]
    pub tie_breaker: bool,
}

/// Orders that an MDM is removed from the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveMdm {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Orders that another MDM becomes the leader.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SwitchMdm {
    /// Name of the MDM; empty: the best one.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Asks for the state of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {}

/// Orders a scrub of a device, or of all devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScrubRequest {
    /// The device; 0: all.
    #[prost(uint32, tag = "1")]
    pub device: u32,
}

/// Orders that a device or server is removed once its data is elsewhere; or cancels that.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveRequest {
    /// The device; 0: all devices of a server.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// The server's name if a server is meant.
    #[prost(string, tag = "2")]
    pub server: String,
    /// True to cancel the removal.
    #[prost(bool, tag = "3")]
    pub keep: bool,
}

/// Orders that a new device may have copies.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdmitRequest {
    /// The device; 0: all waiting devices of a server.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// The server's name if a server is meant.
    #[prost(string, tag = "2")]
    pub server: String,
}

/// Puts a server into maintenance, or ends the maintenance.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MaintainRequest {
    /// The server's name.
    #[prost(string, tag = "1")]
    pub server: String,
    /// True if its data has to move away first.
    #[prost(bool, tag = "2")]
    pub protected: bool,
    /// True to end the maintenance.
    #[prost(bool, tag = "3")]
    pub end: bool,
}

/// Orders that a volume is created.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateVolume {
    /// Its name. 1 to 31 characters: letters, digits, `-`, `_`, `.`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Size in bytes; rounded up to 1 MiB.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// True if space for all of it is reserved.
    #[prost(bool, tag = "50")]
    pub thick: bool,
    /// The storage pool; empty: the only one.
    #[prost(string, tag = "51")]
    pub pool: String,
    /// The clients that it is mapped to. If there are none and `unmapped` is not set: all clients.
    #[prost(message, repeated, tag = "52")]
    pub to: Vec<MapTo>,
    /// True if it is mapped to no client.
    #[prost(bool, tag = "53")]
    pub unmapped: bool,
    /// The hosts that may use it; none: all hosts.
    #[prost(message, repeated, tag = "54")]
    pub hosts: Vec<MapToHost>,
}

/// Orders that a volume grows.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResizeVolume {
    /// Name of the volume.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its new size in bytes, not below the present one; rounded up to 1 MiB.
    #[prost(uint64, tag = "2")]
    pub size: u64,
}

/// Orders that a volume is deleted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteVolume {
    /// Name of the volume.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Delete it even if it is mapped to a client, or in use.
    #[prost(bool, tag = "50")]
    pub unmap: bool,
}

/// Reason why an order is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum AdminError {
    /// The order was not refused: it is done.
    None = 0,
    /// A reason that this build does not know; see the text.
    Other = 1,
    /// No such volume.
    NotFound = 2,
    /// The name is taken.
    NameTaken = 3,
    /// The name, the size or another value is not allowed.
    Invalid = 4,
    /// Not enough servers to keep two copies apart.
    TooFewServers = 5,
    /// The MDM could not write its log.
    Log = 6,
    /// Too few MDMs would be left, or the wrong ones.
    TooFewMdms = 7,
    /// The requested state already exists.
    Already = 8,
    /// Something uses the object.
    InUse = 50,
    /// There is not enough space.
    NoSpace = 51,
    /// The order is done, but not every process that has to know has confirmed it.
    Unconfirmed = 52,
}

/// The answer to an [`AdminRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdminReply {
    /// The reason for a refusal, for programs.
    #[prost(enumeration = "AdminError", tag = "1")]
    pub error: i32,
    /// The reason for a refusal and what to do, for people.
    #[prost(string, tag = "2")]
    pub text: String,
    /// The log index at which the order took effect.
    #[prost(uint64, tag = "3")]
    pub applied: u64,
    /// The answer to `Status`.
    #[prost(message, optional, tag = "4")]
    pub status: Option<StatusInfo>,
    /// The volume that was created or grown.
    #[prost(message, optional, tag = "5")]
    pub volume: Option<VolumeStatus>,
    /// The term of the leading MDM that answers. It never falls from one answer to the next.
    #[prost(uint64, tag = "30")]
    pub term: u64,
    /// The answer to `Backup`.
    #[prost(bytes = "vec", tag = "80")]
    pub backup: Vec<u8>,
    /// The answer to `Damage`.
    #[prost(message, optional, tag = "81")]
    pub damage: Option<VolumeDamage>,
}
