//! Seats: which gateway serves a host of a volume (docs/design/0012-seats.md).

use alloc::string::String;
use alloc::vec::Vec;

/// The most seats in one [`TakeSeats`].
pub const SEATS_PER_MESSAGE: usize = 256;

/// A client that hosts connect to by iSCSI or NVMe/TCP.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GatewayInfo {
    /// The client.
    #[prost(uint32, tag = "1")]
    pub sdc: u32,
    /// Its number as a gateway, 0 to 126.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// The addresses at which hosts reach it, as URIs.
    #[prost(string, repeated, tag = "3")]
    pub uris: Vec<String>,
}

/// A seat in the map: the gateway that serves a host of a volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SeatInfo {
    /// The name of the host.
    #[prost(string, tag = "1")]
    pub host: String,
    /// The gateway's id as a client.
    #[prost(uint32, tag = "2")]
    pub sdc: u32,
    /// The generation of the volume at which the gateway got the seat.
    #[prost(uint32, tag = "3")]
    pub since: u32,
}

/// The hosts that are connected to a gateway. Connections without a volume, as those of discovery,
/// do not count.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HostNames {
    /// The names of hosts that can use each volume (NVMe), each once.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
    /// Hosts that can use one volume (iSCSI), each once for a volume.
    #[prost(message, repeated, tag = "2")]
    pub sessions: Vec<SeatWish>,
}

/// A host of a volume: a seat that a gateway asks for, or a host that is connected.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SeatWish {
    /// The volume.
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// The name of the host, which is connected to the gateway.
    #[prost(string, tag = "2")]
    pub host: String,
    /// The host wants this gateway, even if another one can serve it.
    #[prost(bool, tag = "3")]
    pub moves: bool,
}

/// A gateway asks the MDM for seats, and for their confirmation. It asks again until it is
/// answered.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TakeSeats {
    /// The gateway's number for the question.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The seats: at most [`SEATS_PER_MESSAGE`].
    #[prost(message, repeated, tag = "2")]
    pub seats: Vec<SeatWish>,
}

/// The answer to [`TakeSeats`] for one of its volumes: what hosts sent through former gateways
/// can't take effect any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SeatsTaken {
    /// The number of the question.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// A map of this version, or of a later one, has the seats.
    #[prost(uint64, tag = "2")]
    pub map: u64,
    /// For each of the seats of this volume, in their order: the generation at which the gateway
    /// got it; 0: the gateway does not have it.
    #[prost(uint32, repeated, tag = "3")]
    pub since: Vec<u32>,
    /// The volume.
    #[prost(uint32, tag = "4")]
    pub volume: u32,
}
