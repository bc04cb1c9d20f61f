//! Control messages: Protocol Buffers (proto3), so that fields can be added and old builds skip them.
//! Tags are part of the format: never reuse one.

mod damage;
mod map;
mod objects;
mod orders;
mod recovery;
mod status;

pub use damage::{AcceptLoss, AcceptedLoss, DamageAsk, Unserved, UnservedGroup, VolumeDamage};
pub use map::{
    DeviceInfo, GapInfo, GroupInfo, IdRange, Intent, MapPage, MdmInfo, SdcInfo, VolumeInfo,
};
pub use objects::{
    Access, CreateObject, GrantInfo, MapAsk, MapTo, MappingInfo, Media, ObjectKind, ObjectStatus,
    PolicyInfo, PoolInfo, RemoveObject, RenameAsk, SetPool, UnmapAsk,
};
pub use orders::{
    AddMdm, AdminError, AdminReply, AdminRequest, AdmitAsk, Ask, CreateVolume, DeleteVolume,
    MaintainAsk, RemoveAsk, RemoveMdm, ResizeVolume, ScrubAsk, StatusAsk, SwitchMdm,
};
pub use recovery::{BackupAsk, GroupReport, RecoverMdm, RecoveryStatus, Report, StoreInfo};
pub use status::{
    DeviceStatus, FullStatus, MdmStatus, MovesStatus, SdcStatus, SlowDevice, StatusInfo,
    TurnedAway, VolumeStatus,
};

use alloc::string::String;
use alloc::vec::Vec;

/// Who a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Role {
    /// Nobody we know.
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

/// The first frame on a link, by the side that dialled.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// The cluster that the sender belongs to; 0 when it does not know yet.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// What the sender is.
    #[prost(enumeration = "Role", tag = "2")]
    pub role: i32,
    /// Its device id (SDS) or SDC id; 0 when it has none yet.
    #[prost(uint32, tag = "3")]
    pub id: u32,
    /// Its incarnation; 0 when it has none yet. An MDM draws its own.
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
    /// The number of this connection in its incarnation: a higher one ends all lower ones (rule R8).
    #[prost(uint64, tag = "5")]
    pub session: u64,
    /// The oldest protocol version that it speaks.
    #[prost(uint32, tag = "6")]
    pub version_min: u32,
    /// The newest.
    #[prost(uint32, tag = "7")]
    pub version_max: u32,
    /// The version of its map.
    #[prost(uint64, tag = "8")]
    pub map: u64,
    /// For authentication; empty for now.
    #[prost(bytes = "vec", tag = "9")]
    pub auth: Vec<u8>,
    /// Its name, for people.
    #[prost(string, tag = "10")]
    pub name: String,
    /// Where an MDM listens, `ip:port`.
    #[prost(string, tag = "20")]
    pub address: String,
    /// To an MDM by another one: the member that is meant; `id` is the sender's. To a data server: the device that is
    /// meant, 0 for whoever listens there.
    #[prost(uint32, tag = "21")]
    pub to: u32,
    /// MDM to MDM: the last entry that the sender has.
    #[prost(uint64, tag = "22")]
    pub last: u64,
    /// MDM to MDM: the sender leads, and `to` does not vote yet: an MDM that knows nothing may take this
    /// place. Who is a voter and knows nothing has forgotten what it promised.
    #[prost(bool, tag = "23")]
    pub newcomer: bool,
    /// MDM to MDM: what `to` has to say in front of each message to the sender ([`Header::op`](crate::Header)). Only
    /// who listens at the address that the sender dialled knows it.
    #[prost(uint64, tag = "24")]
    pub secret: u64,
    /// MDM to MDM: the newest term that the sender knows. A leader of an older one doesn't know what became of the
    /// entries that the sender had from it.
    #[prost(uint64, tag = "25")]
    pub term: u64,
    /// From a command line: this very MDM is meant, also if it does not lead.
    #[prost(bool, tag = "80")]
    pub direct: bool,
}

/// The answer to a hello.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// The receiver's cluster.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// What the receiver is.
    #[prost(enumeration = "Role", tag = "2")]
    pub role: i32,
    /// Its device id (SDS).
    #[prost(uint32, tag = "3")]
    pub id: u32,
    /// Its incarnation. An MDM draws its own.
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
    /// The protocol version to speak on this link.
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
    /// From an MDM to another one, or to a command line: the cluster's MDMs. Said again when they change.
    #[prost(message, repeated, tag = "20")]
    pub mdms: Vec<MdmInfo>,
    /// MDM to data server: tell what you know (`Report`) before you register.
    #[prost(bool, tag = "80")]
    pub recovers: bool,
    /// MDM to a command line that meant this very one: the last entry of its log.
    #[prost(uint64, tag = "81")]
    pub last: u64,
    /// The term of that entry. Of two logs the one with the higher term is the newer one; if they are equal, the longer one.
    #[prost(uint64, tag = "82")]
    pub last_term: u64,
}

/// Why a link is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    /// A reason that this build does not know.
    Unknown = 0,
    /// The other side belongs to another cluster.
    WrongCluster = 1,
    /// No protocol version in common.
    WrongVersion = 2,
    /// A newer incarnation of the same process is here.
    Superseded = 3,
    /// The dialled process is not the one that was meant (another device, another role).
    NotMe = 4,
    /// The first frame was not a hello, or a frame that this role does not take.
    Unexpected = 5,
    /// The device belongs to another server, or knows more than this MDM.
    WrongDevice = 6,
    /// This MDM doesn't lead; `Refusal.leader` does, as far as it knows.
    NotLeader = 7,
    /// The sender is no member (any more), or not the one that it says: it ends.
    WrongMember = 8,
    /// Its protection domain, fault set or storage pool is not there, or it has to say which: it may ask again.
    WrongPlace = 9,
    /// Its device, or another one in its place, counts as up, and was not heard: it may ask again.
    Occupied = 10,
    /// The cluster takes no more of these: something has to be removed first.
    Full = 11,
}

/// The answer to a hello that is not welcome.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refusal {
    /// Why, for programs.
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    /// Why and what to do, for people.
    #[prost(string, tag = "2")]
    pub text: String,
    /// With `NotLeader`: where the leader listens; empty when it isn't known.
    #[prost(string, tag = "3")]
    pub leader: String,
    /// With `Superseded`, by a data server: the number of the newest connection of this life. Whose life it is goes on
    /// above it.
    #[prost(uint64, tag = "70")]
    pub session: u64,
}

/// What a device keeps its data in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum DeviceKind {
    /// Not known to this build.
    Unknown = 0,
    /// Memory: empty once the process has died.
    Ram = 1,
    /// Nothing: keeps no data, for measuring.
    Null = 2,
    /// A file or a block device: survives.
    Durable = 3,
}

/// An SDS shard reports to the MDM.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Register {
    /// The server's name; with `shard` it names the device until ids are given.
    #[prost(string, tag = "1")]
    pub sds: String,
    /// Which shard of the server, from 0.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// Where this shard listens, `ip:port`.
    #[prost(string, tag = "3")]
    pub address: String,
    /// Drawn at process start: tells a returning process from a new one.
    #[prost(uint64, tag = "4")]
    pub nonce: u64,
    /// Drawn when the store was made (RAM: at process start): tells kept data from an empty device.
    #[prost(uint64, tag = "5")]
    pub store: u64,
    /// Bytes for data.
    #[prost(uint64, tag = "6")]
    pub capacity: u64,
    /// What it is.
    #[prost(enumeration = "DeviceKind", tag = "7")]
    pub kind: i32,
    /// The process, for people.
    #[prost(uint32, tag = "8")]
    pub pid: u32,
    /// The highest epoch in which any of its replicas acted (rule R2).
    #[prost(uint64, tag = "9")]
    pub acted: u64,
    /// The id that is written on the device; 0 when it holds nothing yet, or is memory.
    #[prost(uint32, tag = "10")]
    pub device: u32,
    /// It is empty, and takes the place of the device that was here, whose data is given up.
    #[prost(bool, tag = "11")]
    pub replace: bool,
    /// Of a new server: its protection domain; empty: the only one.
    #[prost(string, tag = "50")]
    pub domain: String,
    /// Of a new server: its fault set; empty: none.
    #[prost(string, tag = "51")]
    pub fault_set: String,
    /// Of a new device: its storage pool; empty: the only one of the domain.
    #[prost(string, tag = "52")]
    pub pool: String,
    /// The incarnation that an MDM gave to this life before; 0: none yet.
    #[prost(uint64, tag = "80")]
    pub incarnation: u64,
    /// The first volume's id that is above all those of which the device holds data; 0: it holds nothing.
    #[prost(uint32, tag = "81")]
    pub next_volume: u32,
    /// Records that the device's log has had in all its lives; 0: it has no log.
    #[prost(uint64, tag = "82")]
    pub records: u64,
}

/// An SDC reports to the MDM.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterSdc {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Drawn at process start.
    #[prost(uint64, tag = "2")]
    pub nonce: u64,
    /// The process, for people.
    #[prost(uint32, tag = "3")]
    pub pid: u32,
    /// NBD addresses that it serves, as URIs without an export name, for people and `status`.
    #[prost(string, repeated, tag = "4")]
    pub nbd: Vec<String>,
    /// The id that an MDM gave to this life before; 0: none yet.
    #[prost(uint32, tag = "80")]
    pub id: u32,
    /// And its incarnation.
    #[prost(uint64, tag = "81")]
    pub incarnation: u64,
}

/// The MDM's answer to both.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Registered {
    /// The cluster.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
    /// The device id or SDC id.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// The incarnation of this life.
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    /// The map version at which this life is known: act on no older map.
    #[prost(uint64, tag = "4")]
    pub map: u64,
    /// How often the device was asked to be scrubbed until now. For clients: 0.
    #[prost(uint32, tag = "5")]
    pub scrub: u32,
}

/// "I live", with what the MDM shows to people.
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
    /// True when a write was refused for lack of space in the last seconds.
    #[prost(bool, tag = "5")]
    pub full: bool,
    /// NBD connections (SDC).
    #[prost(uint32, tag = "6")]
    pub connections: u32,
    /// Operations that are held because there is no space for what they write (SDC).
    #[prost(uint32, tag = "10")]
    pub held: u32,
    /// What the scrubber has done (SDS); absent for a device that is not scrubbed.
    #[prost(message, optional, tag = "11")]
    pub scrub: Option<ScrubStatus>,
    /// Bytes of damaged blocks that were written anew, whoever met them, since the process started (SDS).
    #[prost(uint64, tag = "12")]
    pub repaired: u64,
    /// Times that damaged blocks were in no other copy that is in sync, since the process started (SDS).
    #[prost(uint64, tag = "13")]
    pub unreadable: u64,
    /// Clients' reads that were answered with data since the process started, and their bytes (SDS).
    #[prost(uint64, tag = "20")]
    pub reads: u64,
    /// Bytes of these.
    #[prost(uint64, tag = "21")]
    pub read_bytes: u64,
    /// Clients' writes that were answered as done since the process started, zeroes among them (SDS).
    #[prost(uint64, tag = "22")]
    pub writes: u64,
    /// Bytes of these, without zeroes.
    #[prost(uint64, tag = "23")]
    pub written_bytes: u64,
    /// Copies that this device makes for a newcomer, while another replica is away (SDS).
    #[prost(message, repeated, tag = "30")]
    pub moves: Vec<MoveStatus>,
    /// Devices that take long lately (SDS).
    #[prost(message, repeated, tag = "31")]
    pub slow: Vec<SlowDevice>,
    /// True when a write to a thin volume was refused in the last seconds, as only the spare is left (SDS).
    #[prost(bool, tag = "32")]
    pub only_spare: bool,
    /// So many first records of the device's log are durable, with their data; 0: it has no log
    /// (SDS).
    #[prost(uint64, tag = "33")]
    pub settled: u64,
    /// Groups of which the device has nothing that was ever whole: it is new there, or what it had was thrown away for a
    /// full copy (SDS).
    #[prost(uint32, repeated, tag = "34")]
    pub partial: Vec<u32>,
    /// Volumes that NBD clients have attached (SDC).
    #[prost(uint32, repeated, tag = "50")]
    pub attached: Vec<u32>,
    /// Devices that answered the last hello with a refusal (SDC).
    #[prost(uint32, repeated, tag = "70")]
    pub refused_by: Vec<u32>,
}

/// What two replicas of a group lack, of which one will do: the newcomer, and the one in whose place it comes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MoveStatus {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Bytes that are still to be copied to the newcomer.
    #[prost(uint64, tag = "2")]
    pub todo: u64,
    /// Bytes that were written since the other one left.
    #[prost(uint64, tag = "3")]
    pub missed: u64,
}

/// The scrubber of one device: it reads what the device holds, and has damage repaired. Its pass, or the last one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScrubStatus {
    /// A pass runs.
    #[prost(bool, tag = "1")]
    pub running: bool,
    /// Bytes that it has read.
    #[prost(uint64, tag = "2")]
    pub done: u64,
    /// Bytes that it had to read, as of its beginning.
    #[prost(uint64, tag = "3")]
    pub held: u64,
    /// Passes that came to their end since the process started.
    #[prost(uint64, tag = "4")]
    pub passes: u64,
    /// Milliseconds since the last one ended; 0 when there was none.
    #[prost(uint64, tag = "5")]
    pub ended_ms_ago: u64,
    /// Bytes that it found damaged.
    #[prost(uint64, tag = "6")]
    pub damaged: u64,
    /// Of these, those that were written anew.
    #[prost(uint64, tag = "7")]
    pub repaired: u64,
    /// Those for which no other copy was there.
    #[prost(uint64, tag = "8")]
    pub unrepairable: u64,
    /// Bytes that it has not read, as their group had no copy here that is in sync.
    #[prost(uint64, tag = "9")]
    pub skipped: u64,
    /// The last pass that was asked for and is known here: what [`DeviceInfo::scrub`] counts. It runs, or has ended.
    #[prost(uint32, tag = "10")]
    pub asked: u32,
}

/// One group whose joiner has everything.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Admission {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The epoch that is compared (rule R4).
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The joiner.
    #[prost(uint32, tag = "3")]
    pub device: u32,
}

/// What an SDS wants changed. Safe to repeat; its effect shows in the map.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Proposal {
    /// The proposing device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// Its incarnation.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Devices that do not answer: take them out of the in-sync sets of the groups that I lead.
    #[prost(uint32, repeated, tag = "3")]
    pub suspects: Vec<u32>,
    /// Devices that answer again: name them joiners in the groups that I lead.
    #[prost(uint32, repeated, tag = "4")]
    pub join: Vec<u32>,
    /// Joiners that have everything: take them into the in-sync set.
    #[prost(message, repeated, tag = "5")]
    pub admit: Vec<Admission>,
    /// Devices whose address refuses connections: evidence that the process is dead.
    #[prost(uint32, repeated, tag = "6")]
    pub refused: Vec<u32>,
    /// All devices that don't answer, also those that are out of sync; the silent and the refused ones of `suspects` are
    /// among them.
    #[prost(uint32, repeated, tag = "7")]
    pub unreached: Vec<u32>,
}
