//! Commands about objects that people name.

use super::{String, Vec};
use prost::Message;
use wire::control::{
    HostInfo, MappingInfo, Media, ObjectKind, PolicyInfo, ReserveChange, UnknownValue, known,
};

/// See [`super::Command::MapVolume`].
#[derive(Clone, PartialEq, Message)]
pub struct MapVolume {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// The clients that may use it from now on. Their generations are set when it is applied.
    #[prost(message, optional, tag = "2")]
    pub mapping: Option<MappingInfo>,
}

/// See [`super::Command::Reserve`].
#[derive(Clone, PartialEq, Message)]
pub struct Reserve {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// The client that asks for one of its hosts.
    #[prost(uint32, tag = "2")]
    pub sdc: u32,
    /// Its incarnation.
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    /// Its number for the change.
    #[prost(uint64, tag = "4")]
    pub number: u64,
    /// The host.
    #[prost(message, required, tag = "5")]
    pub who: HostInfo,
    /// The change.
    #[prost(message, required, tag = "6")]
    pub change: ReserveChange,
    /// The table records which hosts lose the right to write ([`target::reserve::note_losses`]),
    /// and a change without effect makes no new map. Not set in logs of builds that did neither.
    #[prost(bool, tag = "7")]
    pub notes_losses: bool,
}

/// See [`super::Command::ClearReservations`].
#[derive(Clone, PartialEq, Message)]
pub struct ClearReservations {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
}

/// See [`super::Command::Seat`].
#[derive(Clone, PartialEq, Message)]
pub struct Seat {
    /// The changes. Each one is made or not, whatever becomes of the others.
    #[prost(message, repeated, tag = "1")]
    pub changes: Vec<SeatChange>,
}

/// A change of one seat.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SeatChange {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// The name of the host.
    #[prost(string, tag = "2")]
    pub host: String,
    /// The gateway that has the seat; 0: none. If another one has it, nothing is changed.
    #[prost(uint32, tag = "3")]
    pub from: u32,
    /// The gateway that gets the seat; 0: the seat ends.
    #[prost(uint32, tag = "4")]
    pub to: u32,
}

/// See [`super::Command::Rename`].
#[derive(Clone, PartialEq, Message)]
pub struct Rename {
    /// Its kind.
    #[prost(enumeration = "wire::control::ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its id.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// Its new name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// See [`super::Command::PutObject`].
#[derive(Clone, PartialEq, Message)]
pub struct PutObject {
    /// Its kind.
    #[prost(enumeration = "wire::control::ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its id: the next free one, or that of an existing object, which changes.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The protection domain that it belongs to. It never changes.
    #[prost(uint32, tag = "4")]
    pub domain: u32,
    /// For a pool: the medium of its devices.
    #[prost(enumeration = "wire::control::Media", tag = "5")]
    pub media: i32,
    /// For a pool: percent of its space that only rebuilds may use; absent: as in `Limits`.
    #[prost(uint32, optional, tag = "6")]
    pub spare: Option<u32>,
    /// For a pool: how copies that replace a lost one give way to clients; absent: as in `Limits`.
    #[prost(message, optional, tag = "7")]
    pub rebuild: Option<PolicyInfo>,
    /// The same for copies that only move.
    #[prost(message, optional, tag = "8")]
    pub rebalance: Option<PolicyInfo>,
    /// For a pool: new devices wait for an order.
    #[prost(bool, tag = "9")]
    pub by_order: bool,
}

impl PutObject {
    pub(crate) fn check(&self) -> Result<(), UnknownValue> {
        known::<ObjectKind>("ObjectKind", self.kind)?;
        known::<Media>("Media", self.media)
    }
}

/// See [`super::Command::DropObject`].
#[derive(Clone, PartialEq, Message)]
pub struct DropObject {
    /// Its kind.
    #[prost(enumeration = "wire::control::ObjectKind", tag = "1")]
    pub kind: i32,
    /// Its id, which is never used again.
    #[prost(uint32, tag = "2")]
    pub id: u32,
}
