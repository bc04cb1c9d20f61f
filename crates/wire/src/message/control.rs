//! Handshakes, registration, the map, orders, and messages between MDMs. Most of them say
//! everything in the body, which is a control message (`crate::control`).

use super::layout::message;
use crate::control::{self, AdminRequest};
use crate::header::Kind;
use base::MapVersion;

/// A control message: the body of all frames of one kind, and of no others.
pub trait Control: prost::Message + Default {
    /// The kind.
    const KIND: Kind;
}

macro_rules! bodies {
    ($($message:ty: $kind:ident,)*) => {
        $(impl Control for $message { const KIND: Kind = Kind::$kind; })*
    };
}

bodies! {
    control::MapPage: MapPage,
    AdminRequest: Admin,
    control::AdminReply: AdminReply,
}

/// Makes messages whose headers say nothing but the kind.
macro_rules! controls {
    ($($(#[$doc:meta])* $kind:ident,)*) => { $(
        message! {
            $(#[$doc])*
            $kind {}
            flags {}
            body: SUMMED
        }
        bodies! { control::$kind: $kind, }
    )* };
}

controls! {
    /// The first frame from the side that dialled; identifies it. Body: `control::Hello`.
    Hello,
    /// The answer to a hello that is accepted. Body: `control::Welcome`.
    Welcome,
    /// The answer to a hello that is refused; the link closes after it. Body: `control::Refusal`.
    Refusal,
    /// SDS to MDM: registration. Body: `control::Register`.
    Register,
    /// SDC to MDM: registration. Body: `control::RegisterSdc`.
    RegisterSdc,
    /// MDM: the answer to a registration. Body: `control::Registered`.
    Registered,
    /// SDS or SDC to MDM. Body: `control::Heartbeat`.
    Heartbeat,
    /// SDS to MDM: proposes changes, until the map shows them. Body: `control::Proposal`.
    Proposal,
    /// SDS to MDM, before it registers, if the welcome asks for it. Body: `control::Report`.
    Report,
    /// SDC to MDM: changes the reservations of a volume. Body: `control::Reserve`.
    Reserve,
    /// The answer to `Reserve`. Body: `control::Reserved`.
    Reserved,
    /// SDC to MDM: asks for seats of hosts. Body: `control::TakeSeats`.
    TakeSeats,
    /// The answer to `TakeSeats`. Body: `control::SeatsTaken`.
    SeatsTaken,
}

message! {
    /// Asks an MDM, or another server, for everything that is newer than the map of the sender.
    MapPull {
        /// The sender's number for the question. The answer carries the same.
        op: u64, @ 24;
        /// The version of the map that the sender has.
        have: MapVersion, @ 104;
    }
    flags {
        /// Answer once there is something newer.
        wait: 8;
    }
    body: NONE
}

message! {
    /// The answer to `MapPull`, or a part of it. Body: `control::MapPage`.
    MapPage {
        /// The number of the question; 0 if there was none: no question has this number.
        op: u64, @ 24;
        /// The version of the map that this page leads to; 0 if there is no map.
        map: MapVersion, @ 104;
    }
    flags {}
    body: SUMMED
}

message! {
    /// Command line or gateway to MDM. Body: `control::AdminRequest`.
    Admin {
        /// The sender's number for the order. The answer carries the same.
        op: u64, @ 24;
    }
    flags {}
    body: SUMMED
}

message! {
    /// The answer to `Admin`. Body: `control::AdminReply`.
    AdminReply {
        /// The number of the order.
        op: u64, @ 24;
    }
    flags {}
    body: SUMMED
}

message! {
    /// MDM to MDM, on the link that the sender dialled: a part of a consensus message.
    Raft {
        /// The number that the receiver has given the sender in its hello
        /// ([`control::Hello::secret`](crate::control::Hello)).
        secret: u64, @ 24;
        /// The number of the message on this link.
        number: u64, @ 64;
        /// Offset of the part in the message.
        at: u32, @ 84;
        /// Length of the whole message.
        len: u32, @ 88;
    }
    flags {}
    body: SUMMED
}
