//! What people and programs ask of the cluster, and what they are answered.

use super::{
    AcceptLoss, BackupAsk, CreateObject, DamageAsk, MapAsk, MapTo, RecoverMdm, RemoveObject,
    RenameAsk, SetPool, StatusInfo, UnmapAsk, VolumeDamage, VolumeStatus,
};
use alloc::string::String;
use alloc::vec::Vec;

/// What a person or program asks of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdminRequest {
    /// The question or order.
    #[prost(
        oneof = "Ask",
        tags = "1, 2, 3, 4, 20, 30, 31, 32, 40, 41, 42, 50, 51, 52, 53, 54, 55, 80, 81, 82, 83"
    )]
    pub ask: Option<Ask>,
}

/// Kinds of [`AdminRequest`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Ask {
    /// How is everything? Answered by `StatusInfo`.
    #[prost(message, tag = "1")]
    Status(StatusAsk),
    /// Make a volume.
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
    Scrub(ScrubAsk),
    /// Have a device, or all of a server, removed; or not any more.
    #[prost(message, tag = "30")]
    Remove(RemoveAsk),
    /// Put a server into maintenance, or end that.
    #[prost(message, tag = "31")]
    Maintain(MaintainAsk),
    /// Let new devices have copies.
    #[prost(message, tag = "32")]
    Admit(AdmitAsk),
    /// Take an MDM into the cluster.
    #[prost(message, tag = "40")]
    AddMdm(AddMdm),
    /// Do without an MDM from now on.
    #[prost(message, tag = "41")]
    RemoveMdm(RemoveMdm),
    /// Let another MDM lead.
    #[prost(message, tag = "42")]
    SwitchMdm(SwitchMdm),
    /// Map a volume to clients.
    #[prost(message, tag = "50")]
    Map(MapAsk),
    /// Don't let clients use a volume any more.
    #[prost(message, tag = "51")]
    Unmap(UnmapAsk),
    /// Give an object another name.
    #[prost(message, tag = "52")]
    Rename(RenameAsk),
    /// Make a protection domain, a fault set or a storage pool.
    #[prost(message, tag = "53")]
    CreateObject(CreateObject),
    /// Remove one.
    #[prost(message, tag = "54")]
    RemoveObject(RemoveObject),
    /// Set what can be set of a storage pool.
    #[prost(message, tag = "55")]
    SetPool(SetPool),
    /// Go on without the other MDMs, which are lost; or end that.
    #[prost(message, tag = "80")]
    RecoverMdm(RecoverMdm),
    /// Tell all that an MDM knows.
    #[prost(message, tag = "81")]
    Backup(BackupAsk),
    /// What of a volume can't be served?
    #[prost(message, tag = "82")]
    Damage(DamageAsk),
    /// Serve volumes again without what is lost.
    #[prost(message, tag = "83")]
    AcceptLoss(AcceptLoss),
}

/// "Take an MDM into the cluster." It runs already, and belongs to none.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AddMdm {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Where it listens, `ip:port`.
    #[prost(string, tag = "2")]
    pub address: String,
    /// It is to lead only while no manager can.
    #[prost(bool, tag = "3")]
    pub tie_breaker: bool,
}

/// "Do without an MDM from now on."
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveMdm {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// "Let another MDM lead."
#[derive(Clone, PartialEq, prost::Message)]
pub struct SwitchMdm {
    /// Which; empty: the best one.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// "How is everything?"
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusAsk {}

/// "Scrub a device, or all, now."
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScrubAsk {
    /// Which; 0: all.
    #[prost(uint32, tag = "1")]
    pub device: u32,
}

/// "Have this removed, once what it holds is elsewhere", or "keep it".
#[derive(Clone, PartialEq, prost::Message)]
pub struct RemoveAsk {
    /// A device; 0: all of a server.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// The server's name, if it is a server.
    #[prost(string, tag = "2")]
    pub server: String,
    /// It stays after all.
    #[prost(bool, tag = "3")]
    pub keep: bool,
}

/// "This device is no stranger: it may have copies."
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdmitAsk {
    /// A device; 0: all of a server that wait.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// The server's name, if it is a server.
    #[prost(string, tag = "2")]
    pub server: String,
}

/// "This server is about to be worked on", or "that is over".
#[derive(Clone, PartialEq, prost::Message)]
pub struct MaintainAsk {
    /// The server's name.
    #[prost(string, tag = "1")]
    pub server: String,
    /// What it has moves away first.
    #[prost(bool, tag = "2")]
    pub protected: bool,
    /// It is over.
    #[prost(bool, tag = "3")]
    pub end: bool,
}

/// "Make a volume."
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateVolume {
    /// 1 to 31 characters: letters, digits, `-`, `_`, `.`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Bytes; rounded up to 1 MiB.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// Reserve space for all of it.
    #[prost(bool, tag = "50")]
    pub thick: bool,
    /// The storage pool; empty: the only one.
    #[prost(string, tag = "51")]
    pub pool: String,
    /// To whom it is mapped; if there is nobody, and `unmapped` is not set: to all.
    #[prost(message, repeated, tag = "52")]
    pub to: Vec<MapTo>,
    /// It is mapped to nobody.
    #[prost(bool, tag = "53")]
    pub unmapped: bool,
}

/// "Grow a volume."
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResizeVolume {
    /// Which.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its new size in bytes, not below the present one; rounded up to 1 MiB.
    #[prost(uint64, tag = "2")]
    pub size: u64,
}

/// "Delete a volume."
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteVolume {
    /// Which.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Also if it is mapped to somebody, or in use.
    #[prost(bool, tag = "50")]
    pub unmap: bool,
}

/// Why an order is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum AdminError {
    /// It is not: done.
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
    /// It is so already.
    Already = 8,
    /// Something uses it.
    InUse = 50,
    /// There is not enough space.
    NoSpace = 51,
    /// It is done, and not everybody who has to know has confirmed it.
    Unconfirmed = 52,
}

/// The answer to an [`AdminRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdminReply {
    /// Why not, for programs.
    #[prost(enumeration = "AdminError", tag = "1")]
    pub error: i32,
    /// Why not and what to do, for people.
    #[prost(string, tag = "2")]
    pub text: String,
    /// The log index at which the order took effect.
    #[prost(uint64, tag = "3")]
    pub applied: u64,
    /// The answer to `Status`.
    #[prost(message, optional, tag = "4")]
    pub status: Option<StatusInfo>,
    /// The volume that was made or grown.
    #[prost(message, optional, tag = "5")]
    pub volume: Option<VolumeStatus>,
    /// The term of the MDM that leads, and answers: it never falls from one answer to the next.
    #[prost(uint64, tag = "30")]
    pub term: u64,
    /// The answer to `Backup`.
    #[prost(bytes = "vec", tag = "80")]
    pub backup: Vec<u8>,
    /// The answer to `Damage`.
    #[prost(message, optional, tag = "81")]
    pub damage: Option<VolumeDamage>,
}
