//! Reservations of volumes: who is registered, what a host asks for, and the answer.
//! `target::reserve` has the rules.

use super::{UnknownValue, known};
use alloc::string::String;
use alloc::vec::Vec;

/// A type of reservation, with the numbers of NVMe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum ReservationKind {
    /// There is no reservation.
    None = 0,
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Only registrants write.
    WriteExclusiveRegistrants = 3,
    /// Only registrants read and write.
    ExclusiveAccessRegistrants = 4,
    /// Only registrants write, and all of them hold the reservation.
    WriteExclusiveAll = 5,
    /// Only registrants read and write, and all of them hold the reservation.
    ExclusiveAccessAll = 6,
}

/// A host that registers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HostInfo {
    /// The name of an iSCSI initiator; empty for an NVMe host.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The session id of the initiator: 6 bytes. Or the identifier of the NVMe host: 16 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub id: Vec<u8>,
    /// The group of target ports that the initiator uses; 0: all of them.
    #[prost(uint32, tag = "3")]
    pub port: u32,
}

/// A registration.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegistrantInfo {
    /// Its key, which is not 0.
    #[prost(fixed64, tag = "1")]
    pub key: u64,
    /// The host that registered.
    #[prost(message, required, tag = "2")]
    pub who: HostInfo,
    /// It is the only holder of the reservation.
    #[prost(bool, tag = "3")]
    pub holds: bool,
    /// The generation of the volume at which it lost the right to write last; 0: never.
    #[prost(uint32, tag = "4")]
    pub since: u32,
}

/// The reservations of a volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReservationInfo {
    /// The number of changes to registrations.
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    /// The type of the reservation.
    #[prost(enumeration = "ReservationKind", tag = "2")]
    pub kind: i32,
    /// The registrants; the one that registered last is the last.
    #[prost(message, repeated, tag = "3")]
    pub registrants: Vec<RegistrantInfo>,
    /// The generation of the volume at which hosts without a registration lost the right to write
    /// last; 0: never.
    #[prost(uint32, tag = "4")]
    pub since: u32,
}

impl ReservationInfo {
    /// Returns an error if its type is one that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        known::<ReservationKind>("ReservationKind", self.kind)
    }
}

/// A host's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum ReserveAction {
    /// Not known to this build.
    Unknown = 0,
    /// Registers a key, replaces it, or ends the registration.
    Register = 1,
    /// Reserves the volume.
    Reserve = 2,
    /// Ends the reservation.
    Release = 3,
    /// Ends the reservation and all registrations.
    Clear = 4,
    /// Ends registrations of other hosts.
    Preempt = 5,
    /// Registers a key by the rules of NVMe.
    RegisterNvme = 6,
    /// Replaces the key, or ends the registration, by the rules of NVMe.
    ReplaceNvme = 7,
}

/// Orders that a volume's reservation and all registrations end, because their hosts are gone.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ClearReservations {
    /// The volume.
    #[prost(string, tag = "1")]
    pub volume: String,
}

/// A change of reservations.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReserveChange {
    /// The host's request.
    #[prost(enumeration = "ReserveAction", tag = "1")]
    pub action: i32,
    /// The key of the host.
    #[prost(fixed64, tag = "2")]
    pub key: u64,
    /// Its new key, or the key of the registrations to be ended.
    #[prost(fixed64, tag = "3")]
    pub other: u64,
    /// The type of the reservation, where there is one.
    #[prost(enumeration = "ReservationKind", tag = "4")]
    pub kind: i32,
    /// To register: `key` does not matter.
    #[prost(bool, tag = "5")]
    pub ignore: bool,
    /// To register: the registration counts at all ports of the target.
    #[prost(bool, tag = "6")]
    pub all_ports: bool,
}

impl ReserveChange {
    /// Returns an error if it has a value that this build does not know.
    pub fn check(&self) -> Result<(), UnknownValue> {
        known::<ReserveAction>("ReserveAction", self.action)?;
        known::<ReservationKind>("ReservationKind", self.kind)
    }
}

/// The result of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum ReserveOutcome {
    /// Not known to this build.
    Unknown = 0,
    /// It is done.
    Done = 1,
    /// The key is wrong, or another host's reservation is in the way.
    Conflict = 2,
    /// The key of the registrations to be ended is 0, which is not allowed.
    NoVictim = 3,
    /// The reservation that is to end has another type.
    WrongKind = 4,
    /// There are as many registrants as a volume may have.
    Full = 5,
    /// The volume does not exist, or the client may not use it. (Only in answers.)
    NoVolume = 6,
}

/// A client asks the MDM to change the reservations of a volume for one of its hosts. It asks again
/// until it is answered, and has one change of each volume under way.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Reserve {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// The client's number for the change, which rises with each one. A change that comes again has
    /// the same number, and is done once.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// The host.
    #[prost(message, required, tag = "3")]
    pub who: HostInfo,
    /// The change.
    #[prost(message, required, tag = "4")]
    pub change: ReserveChange,
}

/// The answer to [`Reserve`]: nothing appears any more that the change forbids.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Reserved {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// The number of the change.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// The result.
    #[prost(enumeration = "ReserveOutcome", tag = "3")]
    pub outcome: i32,
    /// A map of this version, or of a later one, has the change.
    #[prost(uint64, tag = "4")]
    pub map: u64,
}
