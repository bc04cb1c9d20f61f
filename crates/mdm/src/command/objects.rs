//! Commands about objects that people name.

use super::String;
use prost::Message;
use wire::control::{MappingInfo, Media, ObjectKind, PolicyInfo, UnknownValue, known};

/// See [`super::Command::MapVolume`].
#[derive(Clone, PartialEq, Message)]
pub struct MapVolume {
    /// Which.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// Who may use it from now on; generations follow when it is applied.
    #[prost(message, optional, tag = "2")]
    pub mapping: Option<MappingInfo>,
}

/// See [`super::Command::Rename`].
#[derive(Clone, PartialEq, Message)]
pub struct Rename {
    /// What it is.
    #[prost(enumeration = "wire::control::ObjectKind", tag = "1")]
    pub kind: i32,
    /// Which.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// Its new name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// See [`super::Command::PutObject`].
#[derive(Clone, PartialEq, Message)]
pub struct PutObject {
    /// What it is.
    #[prost(enumeration = "wire::control::ObjectKind", tag = "1")]
    pub kind: i32,
    /// Which: the next free one, or one that is there and changes.
    #[prost(uint32, tag = "2")]
    pub id: u32,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The protection domain that it belongs to. It never changes.
    #[prost(uint32, tag = "4")]
    pub domain: u32,
    /// Of a pool: what its devices are.
    #[prost(enumeration = "wire::control::Media", tag = "5")]
    pub media: i32,
    /// Of a pool: how many percent of it are for rebuilds only; absent: as `Limits` say.
    #[prost(uint32, optional, tag = "6")]
    pub spare: Option<u32>,
    /// Of a pool: how copies that replace a lost one give way to clients; absent: as `Limits` say.
    #[prost(message, optional, tag = "7")]
    pub rebuild: Option<PolicyInfo>,
    /// The same for copies that only move.
    #[prost(message, optional, tag = "8")]
    pub rebalance: Option<PolicyInfo>,
    /// Of a pool: new devices wait for an order.
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
    /// What it is.
    #[prost(enumeration = "wire::control::ObjectKind", tag = "1")]
    pub kind: i32,
    /// Which. Its id never comes back.
    #[prost(uint32, tag = "2")]
    pub id: u32,
}
