//! Control messages: Protocol Buffers (proto3), so that fields can be added and old builds skip
//! them. Tags are part of the format: never reuse one.

mod build;
mod check;
mod counts;
mod damage;
mod map;
mod objects;
mod orders;
mod recovery;
mod reserve;
mod seats;
mod status;
mod value;

pub use build::{BuildInfo, SetLevelRequest, level_of};
pub use counts::{ClientCounts, IoCounts, PathCounts, TimeCounts, VolumeCounts};
pub use damage::{AcceptLoss, AcceptedLoss, DamageRequest, Unserved, UnservedGroup, VolumeDamage};
pub use map::{
    ClientInfo, DeviceInfo, GroupInfo, IdRange, Intent, LostRange, MapPage, MdmInfo, VolumeInfo,
};
pub use objects::{
    Access, CreateObject, GrantInfo, HostGrant, HostsInfo, MapRequest, MapTo, MapToHost,
    MappingInfo, Media, MovePath, ObjectKind, ObjectStatus, PolicyInfo, PoolInfo, RemoveObject,
    RenameRequest, SetPool, UnmapRequest,
};
pub use orders::{
    AddMdm, AdminError, AdminReply, AdminRequest, AdmitRequest, Ask, CreateVolume, DeleteVolume,
    MaintainRequest, RemoveMdm, RemoveRequest, ResizeVolume, ScrubRequest, StatusRequest,
    SwitchMdm,
};
pub use recovery::{BackupRequest, GroupReport, RecoverMdm, RecoveryStatus, Report, StoreInfo};
pub use reserve::{
    ClearReservations, HostInfo, RegistrantInfo, ReservationInfo, ReservationKind, Reserve,
    ReserveAction, ReserveChange, ReserveOutcome, Reserved,
};
pub use seats::{
    GatewayInfo, HostNames, SEATS_PER_MESSAGE, SeatInfo, SeatWish, SeatsTaken, TakeSeats,
};
pub use status::{
    DeviceStatus, FullStatus, MdmStatus, MovesStatus, RefusedServer, SdcStatus, SeatStatus,
    SlowDevice, StatusInfo, VolumeStatus,
};
pub use value::{UnknownValue, known};

use alloc::string::String;
use alloc::vec::Vec;

/// The role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Role {
    /// A role that this build does not know.
    Unknown = 0,
    /// A metadata manager.
    Mdm = 1,
    /// One shard of a data server.
    Sds = 2,
    /// A data client.
    Sdc = 3,
    /// A command line or a gateway.
    Admin = 4,
}

/// The first frame on a link, from the side that dialled.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// The cluster that the sender belongs to; 0 if it does not know yet.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// Role of the sender.
    #[prost(enumeration = "Role", tag = "2")]
    pub role: i32,
    /// Its device id (SDS) or SDC id; 0 if it has none yet.
    #[prost(uint32, tag = "3")]
    pub id: u32,
    /// Its incarnation; 0 if it has none yet. An MDM draws its own at random.
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
    /// The number of this connection in its incarnation. It ends all lower ones (rule R8).
    #[prost(uint64, tag = "5")]
    pub session: u64,
    /// The oldest protocol version that the sender supports.
    #[prost(uint32, tag = "6")]
    pub version_min: u32,
    /// The newest protocol version that the sender supports.
    #[prost(uint32, tag = "7")]
    pub version_max: u32,
    /// The version of the sender's map.
    #[prost(uint64, tag = "8")]
    pub map: u64,
    /// For authentication; empty for now.
    #[prost(bytes = "vec", tag = "9")]
    pub auth: Vec<u8>,
    /// The sender's name, for people.
    #[prost(string, tag = "10")]
    pub name: String,
    /// The address at which an MDM listens, `ip:port`.
    #[prost(string, tag = "20")]
    pub address: String,
    /// To an MDM from another one: the id of the MDM that is meant (`id` is the sender's). To a
    /// data server: the device that is meant; 0 means any device at that address.
    #[prost(uint32, tag = "21")]
    pub to: u32,
    /// MDM to MDM: the last log entry that the sender has.
    #[prost(uint64, tag = "22")]
    pub last: u64,
    /// MDM to MDM: the sender leads, and `to` does not vote yet, so an MDM without a log may take
    /// this place. A voter without a log has forgotten its promises.
    #[prost(bool, tag = "23")]
    pub newcomer: bool,
    /// MDM to MDM: the number that `to` has to put in front of each message to the sender
    /// ([`Raft::secret`](crate::message::Raft::secret)). Only the process that listens at the
    /// address that the sender dialled knows it.
    #[prost(uint64, tag = "24")]
    pub secret: u64,
    /// MDM to MDM: the newest term that the sender knows. The leader of an older term does not know
    /// whether the entries that it sent to the sender are still valid.
    #[prost(uint64, tag = "25")]
    pub term: u64,
    /// From a command line: this particular MDM is meant, even if it does not lead.
    #[prost(bool, tag = "80")]
    pub direct: bool,
    /// MDM to MDM: the sender's build.
    #[prost(message, optional, tag = "90")]
    pub build: Option<BuildInfo>,
}

/// The answer to a hello.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// The cluster of the process that sends this.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// Its role.
    #[prost(enumeration = "Role", tag = "2")]
    pub role: i32,
    /// Its device id (SDS).
    #[prost(uint32, tag = "3")]
    pub id: u32,
    /// Its incarnation. An MDM draws its own at random.
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
    /// The protocol version of this link.
    #[prost(uint32, tag = "5")]
    pub version: u32,
    /// The version of its map.
    #[prost(uint64, tag = "6")]
    pub map: u64,
    /// Operations that the client may have outstanding here.
    #[prost(uint32, tag = "7")]
    pub credit_ops: u32,
    /// Payload bytes that the client may have outstanding here.
    #[prost(uint32, tag = "8")]
    pub credit_bytes: u32,
    /// For authentication; empty for now.
    #[prost(bytes = "vec", tag = "9")]
    pub auth: Vec<u8>,
    /// From an MDM to an MDM or a command line: the cluster's MDMs. Sent again when they change.
    #[prost(message, repeated, tag = "20")]
    pub mdms: Vec<MdmInfo>,
    /// MDM to data server: send your `Report` before you register.
    #[prost(bool, tag = "80")]
    pub recovers: bool,
    /// MDM to a command line that meant this particular MDM: the last entry of its log.
    #[prost(uint64, tag = "81")]
    pub last: u64,
    /// The term of that entry. Of two logs, the one with the higher term is newer; if they are
    /// equal, the longer one.
    #[prost(uint64, tag = "82")]
    pub last_term: u64,
    /// With `recovers`: maps from this version on are of the present recovery or from after it. 0:
    /// the MDM is of a build that does not say so.
    #[prost(uint64, tag = "83")]
    pub recovered: u64,
}

/// Reason why a link is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    /// A reason that this build does not know.
    Unknown = 0,
    /// The other side belongs to another cluster.
    WrongCluster = 1,
    /// There is no common protocol version.
    WrongVersion = 2,
    /// A newer incarnation of the same process is known.
    Superseded = 3,
    /// The dialled process is not the one that was meant (another device or another role).
    NotMe = 4,
    /// The first frame was not a hello, or this role does not accept the frame.
    Unexpected = 5,
    /// The device belongs to another server, or knows of later events than this MDM.
    WrongDevice = 6,
    /// This MDM is not the leader. `Refusal.leader` is, as far as it knows.
    NotLeader = 7,
    /// The sender is no longer an MDM of the cluster, or not the one that it claims to be. It ends.
    WrongMember = 8,
    /// Its protection domain, fault set or storage pool does not exist, or it has to name one. It
    /// may try again.
    WrongPlace = 9,
    /// Its device, or another one in its place, counts as up, and was not heard. It may try again.
    Occupied = 10,
    /// The cluster accepts no more of these; something has to be removed first.
    Full = 11,
    /// The sender's build does not know the cluster's level: it has to be updated.
    TooOld = 12,
}

/// The answer to a hello that is refused.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refusal {
    /// The reason, for programs.
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    /// The reason and what to do, for people.
    #[prost(string, tag = "2")]
    pub text: String,
    /// With `NotLeader`: the address of the leader; empty if it is not known.
    #[prost(string, tag = "3")]
    pub leader: String,
    /// With `Superseded` from a data server: the number of the newest connection of this
    /// incarnation. The rightful process continues with a higher one.
    #[prost(uint64, tag = "70")]
    pub session: u64,
}

/// The kind of storage behind a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum DeviceKind {
    /// Not known to this build.
    Unknown = 0,
    /// Memory: empty after its process has died.
    Ram = 1,
    /// NULL: stores no data, for measurements.
    Null = 2,
    /// A file or a block device: survives its process.
    Durable = 3,
}

/// The registration of an SDS shard with the MDM.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Register {
    /// The server's name. Together with `shard` it names the device until it has an id.
    #[prost(string, tag = "1")]
    pub sds: String,
    /// Number of the shard in the server, from 0.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// The address at which this shard listens, `ip:port`.
    #[prost(string, tag = "3")]
    pub address: String,
    /// Drawn at random at process start. Distinguishes a returning process from a new one.
    #[prost(uint64, tag = "4")]
    pub nonce: u64,
    /// Drawn at random when the store was created (RAM: at process start). Distinguishes kept data
    /// from an empty device.
    #[prost(uint64, tag = "5")]
    pub store: u64,
    /// Bytes for data.
    #[prost(uint64, tag = "6")]
    pub capacity: u64,
    /// The kind of the device.
    #[prost(enumeration = "DeviceKind", tag = "7")]
    pub kind: i32,
    /// The process id, for people.
    #[prost(uint32, tag = "8")]
    pub pid: u32,
    /// The highest epoch in which any of its replicas acted (rule R2).
    #[prost(uint64, tag = "9")]
    pub acted: u64,
    /// The id that is written on the device; 0 if it holds nothing yet, or is memory.
    #[prost(uint32, tag = "10")]
    pub device: u32,
    /// True if the device is empty and replaces the device that was here, whose data is given up.
    #[prost(bool, tag = "11")]
    pub replace: bool,
    /// For a new server: its protection domain; empty: the only one.
    #[prost(string, tag = "50")]
    pub domain: String,
    /// For a new server: its fault set; empty: none.
    #[prost(string, tag = "51")]
    pub fault_set: String,
    /// For a new device: its storage pool; empty: the only one of the domain.
    #[prost(string, tag = "52")]
    pub pool: String,
    /// The incarnation that an MDM gave to this process before; 0: none yet.
    #[prost(uint64, tag = "80")]
    pub incarnation: u64,
    /// One more than the highest volume id of which the device holds data; 0: it holds nothing.
    #[prost(uint32, tag = "81")]
    pub next_volume: u32,
    /// Records that the device's log has had since the device was created; 0: it has no log.
    #[prost(uint64, tag = "82")]
    pub records: u64,
    /// The sender's build.
    #[prost(message, optional, tag = "90")]
    pub build: Option<BuildInfo>,
    /// The highest level of the cluster that the sender has seen, in a map or on its device; 0:
    /// none.
    #[prost(uint32, tag = "91")]
    pub level: u32,
}

/// The registration of an SDC with the MDM.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterSdc {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Drawn at random at process start.
    #[prost(uint64, tag = "2")]
    pub nonce: u64,
    /// The process id, for people.
    #[prost(uint32, tag = "3")]
    pub pid: u32,
    /// The addresses where it serves NBD, iSCSI and NVMe/TCP, as URIs without the name of a volume,
    /// for people and `status`.
    #[prost(string, repeated, tag = "4")]
    pub uris: Vec<String>,
    /// The id that an MDM gave to this process before; 0: none yet.
    #[prost(uint32, tag = "80")]
    pub id: u32,
    /// The incarnation that an MDM gave to this process before.
    #[prost(uint64, tag = "81")]
    pub incarnation: u64,
    /// The sender's build.
    #[prost(message, optional, tag = "90")]
    pub build: Option<BuildInfo>,
}

/// The MDM's answer to a registration.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Registered {
    /// The cluster.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// The device id or SDC id.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// The incarnation of this process.
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    /// The map version at which this incarnation is known. Act on no older map.
    #[prost(uint64, tag = "4")]
    pub map: u64,
    /// Number of scrubs of the device that were ordered so far. For clients: 0.
    #[prost(uint32, tag = "5")]
    pub scrub: u32,
}

/// A heartbeat, with values that the MDM shows to people.
// Large: one message carries all values, so that they are of one moment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Heartbeat {
    /// Bytes of units allocated (SDS).
    #[prost(uint64, tag = "1")]
    pub used: u64,
    /// Bytes that primaries here still have to copy to joiners.
    #[prost(uint64, tag = "2")]
    pub resync_remaining: u64,
    /// Bytes that primaries here have copied to joiners since the process started.
    #[prost(uint64, tag = "3")]
    pub resync_moved: u64,
    /// Client operations served since the process started.
    #[prost(uint64, tag = "4")]
    pub ops: u64,
    /// True if a write was refused for lack of space in the last seconds.
    #[prost(bool, tag = "5")]
    pub full: bool,
    /// NBD connections (SDC).
    #[prost(uint32, tag = "6")]
    pub connections: u32,
    /// Operations that wait because there is no space for their data (SDC).
    #[prost(uint32, tag = "10")]
    pub held: u32,
    /// State of the scrubber (SDS); absent for a device that is not scrubbed.
    #[prost(message, optional, tag = "11")]
    pub scrub: Option<ScrubStatus>,
    /// Bytes of damaged blocks that were rewritten since the process started, however the damage
    /// was found (SDS).
    #[prost(uint64, tag = "12")]
    pub repaired: u64,
    /// Times that no other in-sync copy had damaged blocks intact, since the process started (SDS).
    #[prost(uint64, tag = "13")]
    pub unreadable: u64,
    /// Client reads that were answered with data since the process started (SDS).
    #[prost(uint64, tag = "20")]
    pub reads: u64,
    /// Bytes of these.
    #[prost(uint64, tag = "21")]
    pub read_bytes: u64,
    /// Client writes that were acknowledged since the process started, including zeroing (SDS).
    #[prost(uint64, tag = "22")]
    pub writes: u64,
    /// Bytes of these, without zeroing.
    #[prost(uint64, tag = "23")]
    pub written_bytes: u64,
    /// Copies that this device sends to a new replica while another replica is away (SDS).
    #[prost(message, repeated, tag = "30")]
    pub moves: Vec<MoveStatus>,
    /// Devices that were recently slow (SDS).
    #[prost(message, repeated, tag = "31")]
    pub slow: Vec<SlowDevice>,
    /// True if a write to a thin volume was refused lately because only the spare is left (SDS).
    #[prost(bool, tag = "32")]
    pub only_spare: bool,
    /// Number of records from the start of the device's log that are durable, together with their
    /// data; 0: it has no log (SDS).
    #[prost(uint64, tag = "33")]
    pub settled: u64,
    /// Groups of which the device has never had a complete copy: it is new there, or its data was
    /// deleted for a full copy (SDS).
    #[prost(uint32, repeated, tag = "34")]
    pub partial: Vec<u32>,
    /// Volumes that block clients have attached (SDC).
    #[prost(uint32, repeated, tag = "50")]
    pub attached: Vec<u32>,
    /// iSCSI sessions that have a volume (SDC).
    #[prost(uint32, tag = "51")]
    pub iscsi_sessions: u32,
    /// Devices that refused the client's last hello (SDC).
    #[prost(uint32, repeated, tag = "70")]
    pub refused_by: Vec<u32>,
    /// Hosts that are connected by iSCSI or NVMe/TCP (SDC). If they are absent, the last ones stay.
    #[prost(message, optional, tag = "71")]
    pub hosts: Option<HostNames>,
    /// Connected hosts that had no room in the last list (SDC).
    #[prost(uint32, tag = "72")]
    pub hosts_left_out: u32,
    /// Counts of block requests (SDC). If they are absent, the last ones stay.
    #[prost(message, optional, tag = "100")]
    pub counts: Option<ClientCounts>,
}

/// The blocks that two replicas of a group lack, if one of them will be dropped: the new replica,
/// and the one that it replaces.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MoveStatus {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Bytes that are still to be copied to the newcomer.
    #[prost(uint64, tag = "2")]
    pub todo: u64,
    /// Bytes that were written since the replaced replica left.
    #[prost(uint64, tag = "3")]
    pub missed: u64,
}

/// The scrubber of one device, which reads all content and has damage repaired. Describes the
/// running pass, or the last one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScrubStatus {
    /// True while a pass runs.
    #[prost(bool, tag = "1")]
    pub running: bool,
    /// Bytes that the pass has read.
    #[prost(uint64, tag = "2")]
    pub done: u64,
    /// Bytes that the pass had to read, as known at its start.
    #[prost(uint64, tag = "3")]
    pub held: u64,
    /// Passes that were completed since the process started.
    #[prost(uint64, tag = "4")]
    pub passes: u64,
    /// Milliseconds since the last pass ended; 0 if there was none.
    #[prost(uint64, tag = "5")]
    pub ended_ms_ago: u64,
    /// Bytes that the pass found damaged.
    #[prost(uint64, tag = "6")]
    pub damaged: u64,
    /// Bytes of these that were repaired.
    #[prost(uint64, tag = "7")]
    pub repaired: u64,
    /// Bytes of these for which there was no other copy.
    #[prost(uint64, tag = "8")]
    pub unrepairable: u64,
    /// Bytes that were not read because this device had no in-sync copy of their group.
    #[prost(uint64, tag = "9")]
    pub skipped: u64,
    /// Number of the last ordered pass that is known here, as counted by [`DeviceInfo::scrub`]. It
    /// runs, or has ended.
    #[prost(uint32, tag = "10")]
    pub asked: u32,
}

/// One group whose joiner has everything.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Admission {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The expected epoch of the group (rule R4).
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The joiner.
    #[prost(uint32, tag = "3")]
    pub device: u32,
}

/// Changes that an SDS proposes. Safe to repeat; the map shows when they have taken effect.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Proposal {
    /// The proposing device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// Its incarnation.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Devices that do not answer: remove them from the in-sync sets of the groups that I lead.
    #[prost(uint32, repeated, tag = "3")]
    pub suspects: Vec<u32>,
    /// Devices that answer again: make them joiners in the groups that I lead.
    #[prost(uint32, repeated, tag = "4")]
    pub join: Vec<u32>,
    /// Joiners that have everything: add them to the in-sync set.
    #[prost(message, repeated, tag = "5")]
    pub admit: Vec<Admission>,
    /// Devices whose address refuses connections: evidence that the process is dead.
    #[prost(uint32, repeated, tag = "6")]
    pub refused: Vec<u32>,
    /// All devices that do not answer, including those that are out of sync. Includes the silent
    /// and the refused ones of `suspects`.
    #[prost(uint32, repeated, tag = "7")]
    pub unreached: Vec<u32>,
}
