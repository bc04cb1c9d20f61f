//! The commands of the MDMs' log.
//!
//! Protocol Buffers, as on the wire: fields can be added. Tags are part of the format: never reuse
//! one. A command that this build doesn't know is an error when the log is read, never skipped
//! ([`Command::decode`] gives `None`): the state that it would lead to isn't known either.
//!
//! Commands name ids, incarnations and chosen groups explicitly: applying one uses neither a clock
//! nor random numbers.

mod objects;

pub use objects::{
    ClearReservations, DropObject, MapVolume, PutObject, Rename, Reserve, Seat, SeatChange,
};

use alloc::string::String;
use alloc::vec::Vec;
use base::level;
use prost::Message;
use wire::control::{
    AcceptedLoss, DeviceKind, GroupInfo, IdRange, Intent, MappingInfo, MdmInfo, ObjectKind,
    StoreInfo, UnknownValue, VolumeInfo, known,
};

/// One command of a log entry.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Command {
    /// Forms the cluster. It is always the first command, and only that.
    #[prost(message, tag = "1")]
    FormCluster(FormCluster),
    /// A device registers for the first time or with a new incarnation, or is heard again after
    /// silence.
    #[prost(message, tag = "2")]
    DeviceUp(DeviceUp),
    /// A device is lost.
    #[prost(message, tag = "3")]
    DeviceDown(DeviceDown),
    /// A primary continues without a device.
    #[prost(message, tag = "4")]
    Suspect(Suspect),
    /// A primary brings a device up to date.
    #[prost(message, tag = "5")]
    Join(Join),
    /// Joiners have everything, and are in sync.
    #[prost(message, tag = "6")]
    Admit(Admit),
    /// A client registers with a new incarnation.
    #[prost(message, tag = "7")]
    RegisterSdc(RegisterSdc),
    /// Creates a volume.
    #[prost(message, tag = "8")]
    CreateVolume(CreateVolume),
    /// Grows a volume.
    #[prost(message, tag = "9")]
    ResizeVolume(ResizeVolume),
    /// Deletes a volume.
    #[prost(message, tag = "10")]
    DeleteVolume(DeleteVolume),
    /// Orders a scrub of a device.
    #[prost(message, tag = "20")]
    Scrub(Scrub),
    /// Gives groups other replicas.
    #[prost(message, tag = "30")]
    Reshape(Reshape),
    /// Changes the intent of devices: to be removed, removed, in maintenance, or none of them.
    #[prost(message, tag = "31")]
    Intend(Intend),
    /// Adds an MDM with the next free id, or gives another name or address to an existing one.
    #[prost(message, tag = "40")]
    AddMdm(MdmInfo),
    /// Removes an MDM.
    #[prost(message, tag = "41")]
    RemoveMdm(RemoveMdm),
    /// Changes which clients may use a volume.
    #[prost(message, tag = "50")]
    MapVolume(MapVolume),
    /// Renames an object.
    #[prost(message, tag = "51")]
    Rename(Rename),
    /// Creates a protection domain, a fault set or a storage pool, or changes its settings.
    #[prost(message, tag = "52")]
    PutObject(PutObject),
    /// Removes an object.
    #[prost(message, tag = "53")]
    DropObject(DropObject),
    /// Changes the reservations of a volume.
    #[prost(message, tag = "54")]
    Reserve(Reserve),
    /// Gives seats of hosts to gateways, moves them or ends them.
    #[prost(message, tag = "55")]
    Seat(Seat),
    /// Ends the reservation of a volume and all registrations.
    #[prost(message, tag = "56")]
    ClearReservations(ClearReservations),
    /// Several devices of one server are lost.
    #[prost(message, tag = "60")]
    DevicesDown(DevicesDown),
    /// After a recovery of the MDMs: what servers have reported becomes part of the state.
    #[prost(message, tag = "80")]
    Reconcile(Reconcile),
    /// Groups without a primary start again, without the lost data.
    #[prost(message, tag = "81")]
    AcceptLoss(AcceptLoss),
    /// Raises the cluster's level.
    #[prost(message, tag = "90")]
    SetLevel(SetLevel),
}

/// See [`Command::FormCluster`].
#[derive(Clone, PartialEq, Message)]
pub struct FormCluster {
    /// Its id, drawn at random; not 0.
    #[prost(uint64, tag = "1")]
    pub cluster: u64,
}

/// See [`Command::DeviceUp`].
#[derive(Clone, PartialEq, Message)]
pub struct DeviceUp {
    /// The device; the next free id for a new one.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// Its server; the next free id for a new one.
    #[prost(uint32, tag = "2")]
    pub sds: u32,
    /// The server's name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Number of its shard in the server.
    #[prost(uint32, tag = "4")]
    pub shard: u32,
    /// The incarnation: a new one, or the present one after silence.
    #[prost(uint64, tag = "5")]
    pub incarnation: u64,
    /// The number that the process drew at its start.
    #[prost(uint64, tag = "6")]
    pub nonce: u64,
    /// The number that was drawn when the store was made.
    #[prost(uint64, tag = "7")]
    pub store: u64,
    /// The address where it listens.
    #[prost(string, tag = "8")]
    pub address: String,
    /// Bytes for data.
    #[prost(uint64, tag = "9")]
    pub capacity: u64,
    /// `control::DeviceKind`.
    #[prost(int32, tag = "10")]
    pub kind: i32,
    /// The process id, for people.
    #[prost(uint32, tag = "11")]
    pub pid: u32,
    /// For a new server: its protection domain. 0, from builds without domains: the first one.
    #[prost(uint32, tag = "50")]
    pub domain: u32,
    /// For a new server: its fault set; 0: none.
    #[prost(uint32, tag = "51")]
    pub fault_set: u32,
    /// For a new device: its storage pool. 0, from builds without pools: the first one.
    #[prost(uint32, tag = "52")]
    pub pool: u32,
    /// From level 2 on: the release of its process, for people.
    #[prost(string, tag = "90")]
    pub release: String,
}

/// See [`Command::DeviceDown`].
#[derive(Clone, PartialEq, Message)]
pub struct DeviceDown {
    /// The device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// The incarnation that ended. If the device has another one, nothing changes.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// There is proof that the process is dead.
    #[prost(bool, tag = "3")]
    pub dead: bool,
}

/// See [`Command::DevicesDown`].
#[derive(Clone, PartialEq, Message)]
pub struct DevicesDown {
    /// One entry per device.
    #[prost(message, repeated, tag = "1")]
    pub list: Vec<DeviceDown>,
}

/// See [`Command::Suspect`].
#[derive(Clone, PartialEq, Message)]
pub struct Suspect {
    /// The primary that proposes.
    #[prost(uint32, tag = "1")]
    pub by: u32,
    /// Its incarnation.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// The device that does not answer.
    #[prost(uint32, tag = "3")]
    pub device: u32,
}

/// See [`Command::Join`].
#[derive(Clone, PartialEq, Message)]
pub struct Join {
    /// The primary that proposes.
    #[prost(uint32, tag = "1")]
    pub by: u32,
    /// Its incarnation.
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// The device that answers again.
    #[prost(uint32, tag = "3")]
    pub device: u32,
}

/// See [`Command::Admit`].
#[derive(Clone, PartialEq, Message)]
pub struct Admit {
    /// Group by group, as the primary proposed it.
    #[prost(message, repeated, tag = "1")]
    pub list: Vec<Admission>,
}

/// One group of an [`Admit`].
#[derive(Clone, PartialEq, Eq, Message)]
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

/// See [`Command::RegisterSdc`].
#[derive(Clone, PartialEq, Message)]
pub struct RegisterSdc {
    /// The client; the next free id for a new one.
    #[prost(uint32, tag = "1")]
    pub sdc: u32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The incarnation.
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    /// The number that the process drew at its start.
    #[prost(uint64, tag = "4")]
    pub nonce: u64,
    /// The process id, for people.
    #[prost(uint32, tag = "5")]
    pub pid: u32,
    /// The addresses of its targets, for people.
    #[prost(string, repeated, tag = "6")]
    pub uris: Vec<String>,
}

/// See [`Command::CreateVolume`].
#[derive(Clone, PartialEq, Message)]
pub struct CreateVolume {
    /// Its id: the next free one.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Bytes, a multiple of 1 MiB.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// Groups to be created first; their ids are the next free ones, in order.
    #[prost(message, repeated, tag = "4")]
    pub groups: Vec<NewGroup>,
    /// The groups of its units.
    #[prost(uint32, repeated, tag = "5")]
    pub slots: Vec<u32>,
    /// The clients that may use it; absent: all.
    #[prost(message, optional, tag = "50")]
    pub mapping: Option<MappingInfo>,
    /// Its storage pool. 0, from builds without pools: the first one.
    #[prost(uint32, tag = "51")]
    pub pool: u32,
    /// Space for all of it is reserved.
    #[prost(bool, tag = "52")]
    pub thick: bool,
}

/// A group of a [`CreateVolume`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NewGroup {
    /// Its devices, the preferred primary first.
    #[prost(uint32, repeated, tag = "1")]
    pub replicas: Vec<u32>,
}

/// See [`Command::ResizeVolume`].
#[derive(Clone, PartialEq, Message)]
pub struct ResizeVolume {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// Its new size in bytes, a multiple of 1 MiB.
    #[prost(uint64, tag = "2")]
    pub size: u64,
}

/// See [`Command::DeleteVolume`].
#[derive(Clone, PartialEq, Message)]
pub struct DeleteVolume {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
}

/// See [`Command::Scrub`].
#[derive(Clone, PartialEq, Message)]
pub struct Scrub {
    /// The device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// The number of the request: one more than the device's last one.
    #[prost(uint32, tag = "2")]
    pub number: u32,
}

/// See [`Command::Reshape`].
#[derive(Clone, PartialEq, Message)]
pub struct Reshape {
    /// Group by group.
    #[prost(message, repeated, tag = "1")]
    pub list: Vec<Shape>,
}

/// One group of a [`Reshape`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Shape {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// The epoch that is compared (rule R4).
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Its replicas from now on, the preferred primary first, the one that leaves last.
    #[prost(uint32, repeated, tag = "3")]
    pub replicas: Vec<u32>,
    /// The one that leaves when the others are in sync; 0: none.
    #[prost(uint32, tag = "4")]
    pub leaving: u32,
    /// For a group in doubt: the highest epoch that any device is known to have taken part in.
    #[prost(uint64, tag = "5")]
    pub acted: u64,
}

/// See [`Command::Intend`].
#[derive(Clone, PartialEq, Message)]
pub struct Intend {
    /// The devices.
    #[prost(uint32, repeated, tag = "1")]
    pub devices: Vec<u32>,
    /// Their intent from now on: `control::Intent`.
    #[prost(enumeration = "wire::control::Intent", tag = "2")]
    pub intent: i32,
}

/// See [`Command::RemoveMdm`].
#[derive(Clone, PartialEq, Message)]
pub struct RemoveMdm {
    /// Its id, which is never used again.
    #[prost(uint32, tag = "1")]
    pub id: u32,
}

/// See [`Command::Reconcile`].
#[derive(Clone, PartialEq, Message)]
pub struct Reconcile {
    /// Groups whose in-sync replicas are known now. The epoch is the highest one that any device
    /// knew.
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<GroupInfo>,
    /// Volumes as the newest map has them.
    #[prost(message, repeated, tag = "2")]
    pub volumes: Vec<VolumeInfo>,
    /// Volumes that the newest map no longer has.
    #[prost(uint32, repeated, tag = "3")]
    pub deleted: Vec<u32>,
    /// The recovery ends: maps are handed out again.
    #[prost(bool, tag = "4")]
    pub close: bool,
    /// Groups that only a server's map has. It is not known yet which replicas have every
    /// acknowledged write.
    #[prost(message, repeated, tag = "5")]
    pub made: Vec<GroupInfo>,
    /// Lost MDMs may have given away ids of groups up to this one. 0: none is known.
    #[prost(uint32, tag = "6")]
    pub group: u32,
    /// Lost MDMs may have given away ids of volumes below this one. 0: none is known.
    #[prost(uint32, tag = "7")]
    pub next_volume: u32,
    /// At the end of the recovery: volumes that servers have reported and that this MDM does not
    /// know. Their data stays on the devices.
    #[prost(uint32, repeated, tag = "8")]
    pub left: Vec<u32>,
    /// An operator's order to delete the data of volumes that this MDM does not know.
    #[prost(message, optional, tag = "9")]
    pub forget: Option<Forget>,
    /// Lost MDMs may have given away ids of devices up to this one. 0, also from earlier builds:
    /// none is known.
    #[prost(uint32, tag = "10")]
    pub device: u32,
    /// The same for clients.
    #[prost(uint32, tag = "11")]
    pub sdc: u32,
    // An earlier build used tag 12.
    /// Groups in doubt whose data no volume can need. They start again, empty.
    #[prost(uint32, repeated, tag = "13")]
    pub unused: Vec<u32>,
    /// Contents that maps of lost MDMs name, and that no device has registered with.
    #[prost(message, repeated, tag = "14")]
    pub awaited: Vec<Awaited>,
    /// The generations of `volumes` are to be this far above those of the map: the lost MDMs may
    /// have gone on after it. 0 in logs of builds that did not know this.
    #[prost(uint32, tag = "15")]
    pub generations: u32,
    /// What reports tell of groups that stay in doubt. Servers forget it with their maps, so it
    /// becomes part of the state before they get another map.
    // An earlier build used tag 16.
    #[prost(message, repeated, tag = "17")]
    pub doubts: Vec<Doubtful>,
    /// Devices that come back with another content, and had not reported before: with the contents
    /// that they had.
    #[prost(message, repeated, tag = "18")]
    pub emptied: Vec<StoreInfo>,
    /// Ids that lost MDMs have given to volumes that are deleted, or that this MDM knows by now.
    #[prost(message, repeated, tag = "19")]
    pub known: Vec<IdRange>,
}

/// What servers told of a group in doubt.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Doubtful {
    /// The group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// What they told.
    #[prost(message, required, tag = "2")]
    pub told: Told,
}

/// What the maps of lost MDMs, and devices, told of a group in doubt.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Told {
    /// The newest configuration that the map of an MDM that was sure had, if it is as new as the
    /// group's own.
    #[prost(message, optional, tag = "1")]
    pub config: Option<GroupInfo>,
    /// The version of that map.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// The contents that it named for the group's replicas.
    #[prost(message, repeated, tag = "3")]
    pub stores: Vec<StoreInfo>,
    /// The version of the newest map of an earlier recovery that was in doubt. 0: there is none
    /// that is newer than `version`.
    #[prost(uint64, tag = "4")]
    pub doubted_at: u64,
    /// The newest configuration of which an earlier recovery said that a device was emptied which
    /// may have had more. 0: there is none.
    #[prost(uint64, tag = "5")]
    pub gone: u64,
    /// The highest epoch that the group is known to have reached.
    #[prost(uint64, tag = "6")]
    pub reached: u64,
}

/// The content of a device, as a map of lost MDMs names it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Awaited {
    /// The device.
    #[prost(uint32, tag = "1")]
    pub device: u32,
    /// The version of the map.
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// The random number of the content.
    #[prost(fixed64, tag = "3")]
    pub store: u64,
}

/// An order to delete the data of unknown volumes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Forget {
    /// The ids of the volumes.
    #[prost(uint32, repeated, tag = "1")]
    pub volumes: Vec<u32>,
    /// Name of the person or program that ordered it.
    #[prost(string, tag = "2")]
    pub by: String,
    /// Time of the order: seconds since 1970, UTC.
    #[prost(uint64, tag = "3")]
    pub at: u64,
}

/// See [`Command::AcceptLoss`].
#[derive(Clone, PartialEq, Message)]
pub struct AcceptLoss {
    /// The volumes that have data in these groups.
    #[prost(uint32, repeated, tag = "1")]
    pub volumes: Vec<u32>,
    /// The acceptance: by whom, when, and of what.
    #[prost(message, required, tag = "2")]
    pub loss: AcceptedLoss,
    /// Each group's replicas from now on: the first one is in sync and becomes the primary, the
    /// other one gets a copy. The epoch is compared.
    #[prost(message, repeated, tag = "3")]
    pub groups: Vec<Shape>,
}

/// See [`Command::SetLevel`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetLevel {
    /// The level from now on.
    #[prost(uint32, tag = "1")]
    pub level: u32,
}

/// The envelope of a command in the log.
#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(
        oneof = "Command",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 31, 40, 41, 50, 51, 52, 53, 54, 55, 56, 60, 80, 81, \
                90"
    )]
    command: Option<Command>,
}

impl Command {
    /// Returns the command's bytes in the log.
    pub fn to_bytes(&self) -> Vec<u8> {
        Record { command: Some(self.clone()) }.encode_to_vec()
    }

    /// Returns the level that a cluster needs for this command and the fields that it uses.
    pub fn level(&self) -> u32 {
        let bytes = self.to_bytes();
        let (tag, _) = prost::encoding::decode_key(&mut &bytes[..]).expect("just encoded");
        let fields = match self {
            Command::DeviceUp(c) if !c.release.is_empty() => level::of_field("DeviceUp.release"),
            _ => level::FIRST,
        };
        level::of_command(tag).expect("`base::level` lists every command").max(fields)
    }

    /// Returns an error if a value in it is one that this build does not know: what the command
    /// would do is not known either.
    pub fn check(&self) -> Result<(), UnknownValue> {
        let mapping = |m: &Option<MappingInfo>| m.as_ref().map_or(Ok(()), MappingInfo::check);
        match self {
            Command::DeviceUp(c) => known::<DeviceKind>("DeviceKind", c.kind),
            Command::Intend(c) => known::<Intent>("Intent", c.intent),
            Command::CreateVolume(c) => mapping(&c.mapping),
            Command::MapVolume(c) => mapping(&c.mapping),
            Command::Reserve(c) => c.change.check(),
            Command::Rename(c) => known::<ObjectKind>("ObjectKind", c.kind),
            Command::DropObject(c) => known::<ObjectKind>("ObjectKind", c.kind),
            Command::PutObject(c) => c.check(),
            Command::Reconcile(c) => {
                let doubts = c.doubts.iter().filter_map(|d| d.told.config.as_ref());
                c.groups.iter().chain(&c.made).chain(doubts).try_for_each(GroupInfo::check)?;
                c.volumes.iter().try_for_each(VolumeInfo::check)
            }
            _ => Ok(()),
        }
    }

    /// Returns the command as a build of this level reads it: without the fields of later levels,
    /// which such a build skips. A command that uses one is only made in a cluster of that level.
    pub fn as_known_at(mut self, level: u32) -> Command {
        if let Command::DeviceUp(c) = &mut self
            && level < level::of_field("DeviceUp.release")
        {
            c.release.clear();
        }
        self
    }

    /// Returns the command of these bytes; `None` if they are damaged or from a newer build.
    pub fn from_bytes(bytes: &[u8]) -> Option<Command> {
        Record::decode(bytes).ok()?.command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format, byte by byte. A change here makes existing logs unreadable.
    #[test]
    fn golden_commands() {
        let down = Command::DeviceDown(DeviceDown { device: 3, incarnation: 300, dead: true });
        assert_eq!(down.to_bytes(), [0x1a, 7, 8, 3, 0x10, 0xac, 2, 0x18, 1]);
        let list = Vec::from([Admission { group: 1, epoch: 2, device: 3 }]);
        let admit = Command::Admit(Admit { list });
        assert_eq!(admit.to_bytes(), [0x32, 8, 0x0a, 6, 8, 1, 0x10, 2, 0x18, 3]);
        for command in [down, admit, Command::DeleteVolume(DeleteVolume { volume: 9 })] {
            assert_eq!(Command::from_bytes(&command.to_bytes()), Some(command));
        }
    }

    #[test]
    fn every_command_has_a_level() {
        for tag in 1..200 {
            // A message without fields is a command if the tag is one.
            let mut bytes = Vec::new();
            prost::encoding::encode_key(
                tag,
                prost::encoding::WireType::LengthDelimited,
                &mut bytes,
            );
            bytes.push(0);
            let known = Record::decode(&bytes[..]).is_ok_and(|r| r.command.is_some());
            let known = known || [54, 81].contains(&tag); // they have required fields
            assert_eq!(level::of_command(tag).is_some(), known, "tag {tag}");
        }
        let up = DeviceUp::default();
        assert_eq!(Command::DeviceUp(up.clone()).level(), 1);
        let up = Command::DeviceUp(DeviceUp { release: "0.9.0".into(), ..up });
        assert_eq!((up.level(), up.clone().as_known_at(1).level()), (2, 1));
        assert_eq!(up.clone().as_known_at(2), up);
    }

    #[test]
    fn commands_of_a_newer_build_are_not_taken_for_nothing() {
        assert_eq!(Command::from_bytes(&[0xf2, 6, 0]), None, "tag 110");
        assert_eq!(Command::from_bytes(&[]), None);
        assert_eq!(Command::from_bytes(&[0x1a, 200]), None);
    }
}
