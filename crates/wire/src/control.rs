//! Control messages: Protocol Buffers (proto3), so that fields can be added and old builds skip them.
//! Tags are part of the format: never reuse one.

mod objects;
mod status;

pub use objects::{
    Access, CreateObject, GrantInfo, MapAsk, MapTo, MappingInfo, Media, ObjectKind, ObjectStatus,
    PolicyInfo, PoolInfo, RemoveObject, RenameAsk, SetPool, UnmapAsk,
};
pub use status::{
    DeviceStatus, FullStatus, MdmStatus, MovesStatus, SdcStatus, SlowDevice, StatusInfo,
    VolumeStatus,
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
    /// Volumes that NBD clients have attached (SDC).
    #[prost(uint32, repeated, tag = "50")]
    pub attached: Vec<u32>,
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

/// The scrubber of one device: it reads what the device holds, and has damage repaired. Since the process started.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScrubStatus {
    /// A pass runs.
    #[prost(bool, tag = "1")]
    pub running: bool,
    /// Bytes that this pass, or the last one, has read.
    #[prost(uint64, tag = "2")]
    pub done: u64,
    /// Bytes that it had to read, as of its beginning.
    #[prost(uint64, tag = "3")]
    pub held: u64,
    /// Passes that came to their end.
    #[prost(uint64, tag = "4")]
    pub passes: u64,
    /// Milliseconds since the last one ended; 0 when there was none.
    #[prost(uint64, tag = "5")]
    pub ended_ms_ago: u64,
    /// Bytes that were found damaged.
    #[prost(uint64, tag = "6")]
    pub damaged: u64,
    /// Of these, those that were written anew.
    #[prost(uint64, tag = "7")]
    pub repaired: u64,
    /// Those for which no other copy was there.
    #[prost(uint64, tag = "8")]
    pub unrepairable: u64,
    /// Bytes that this pass has not read, as their group had no copy here that is in sync.
    #[prost(uint64, tag = "9")]
    pub skipped: u64,
    /// The last pass that was asked for and is known here: what [`DeviceInfo::scrub`] counts. It runs, or has ended.
    #[prost(uint32, tag = "10")]
    pub asked: u32,
}

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
}

impl Intent {
    /// True when what the device has is to move away.
    pub fn empties(self) -> bool {
        matches!(self, Intent::Remove | Intent::Protect)
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
    /// Last part: ids below this one that are not in `live` are gone for ever.
    #[prost(uint32, tag = "8")]
    pub next_volume: u32,
    /// Last part: all MDMs, if they changed.
    #[prost(message, repeated, tag = "20")]
    pub mdms: Vec<MdmInfo>,
    /// Last part: all storage pools, if one changed.
    #[prost(message, repeated, tag = "50")]
    pub pools: Vec<PoolInfo>,
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
}

/// What a person or program asks of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AdminRequest {
    /// The question or order.
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 20, 30, 31, 40, 41, 42, 50, 51, 52, 53, 54, 55")]
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
}
