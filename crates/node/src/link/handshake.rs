//! The handshake on a link, of both sides.
//!
//! The side that dialled sends a hello. It names the sender, the process that the sender means, and
//! the versions that the sender speaks. The other side answers with a welcome or a refusal, at once
//! or when it can decide. A handshake may have more rounds. The dialling side gives each frame of a
//! handshake ([`wire::Kind::is_handshake`]) to [`Callee::answer`] until that returns an outcome.
//! The answering side gives each one to [`read_hello`], and keeps the hello until it can answer.
//!
//! The command line and the simulator's administrator use the same functions: nothing here needs a
//! driver, except the functions that send.

use super::send_control;
use crate::refusals::{self, NOT_OFFERED, Writer, refusal};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{ClusterId, DeviceId, Dialect, Incarnation, LinkId, Mutant, SdcId, mutant};
use prost::Message;
use seam::Effects;
use wire::control::{Hello, Refusal, RefusalCode, Role, Welcome};
use wire::{Frame, Malformed, PeerLink, common_version};

/// The process at the other end of a link, as it has introduced itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerId {
    /// An MDM.
    Mdm(u32),
    /// The process that serves a device.
    Device(DeviceId, Incarnation),
    /// A client.
    Client(SdcId, Incarnation),
    /// A command line or a gateway.
    Admin,
    /// Something in a role that this build does not know.
    Unknown,
}

impl PeerId {
    fn of(role: Role, id: u32, incarnation: u64) -> PeerId {
        match role {
            Role::Mdm => PeerId::Mdm(id),
            Role::Sds => PeerId::Device(DeviceId(id), Incarnation(incarnation)),
            Role::Sdc => PeerId::Client(SdcId(id), Incarnation(incarnation)),
            Role::Admin => PeerId::Admin,
            Role::Unknown => PeerId::Unknown,
        }
    }
}

// ---- the side that dialled ----

/// The process that a dial means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// Any MDM of the cluster.
    Mdm,
    /// The process that serves this device.
    Device(DeviceId),
}

/// The outcome of a handshake for the side that dialled.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The process that was meant has welcomed us.
    Welcome(Welcomed),
    /// It has refused us.
    Refusal(Refusal),
    /// It is not the process that was meant, or not one of ours.
    Wrong(Wrong),
}

/// A welcome by the process that was meant.
#[derive(Clone, Debug)]
pub struct Welcomed {
    /// The process.
    pub peer: PeerId,
    /// The protocol version of the link.
    pub version: u16,
    /// All of the welcome.
    pub message: Welcome,
}

/// The fault of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// It can't be read.
    Unreadable,
    /// It comes from another process than was meant.
    Other,
    /// It names a protocol version that was not offered.
    Version,
}

impl Wrong {
    /// Returns the reason in a few words, for a note.
    pub fn why(self) -> &'static str {
        match self {
            Wrong::Unreadable => "an answer to a hello that can't be read",
            Wrong::Other => "welcomed by another process than the one that was dialled",
            Wrong::Version => NOT_OFFERED,
        }
    }
}

impl Answer {
    /// Returns the reason for closing the link, for the log of `writer`; `None` for a welcome.
    pub fn why(&self, writer: Writer) -> Option<&'static str> {
        match self {
            Answer::Welcome(_) => None,
            Answer::Refusal(refusal) => Some(refusals::note(refusal.code(), writer)),
            Answer::Wrong(wrong) => Some(wrong.why()),
        }
    }
}

impl Callee {
    /// Reads a frame. `None` if it belongs to no handshake. `cluster` is 0 if it is not known yet.
    pub fn answer(
        self,
        dialect: &Dialect,
        cluster: ClusterId,
        frame: &Frame,
        body: &[u8],
    ) -> Option<Answer> {
        Some(match frame {
            Frame::Welcome(_) => match Welcome::decode(body) {
                Ok(welcome) => self.welcomed(dialect, cluster, welcome),
                Err(_) => Answer::Wrong(Wrong::Unreadable),
            },
            Frame::Refusal(_) => match Refusal::decode(body) {
                Ok(refusal) => Answer::Refusal(refusal),
                Err(_) => Answer::Wrong(Wrong::Unreadable),
            },
            _ => return None,
        })
    }

    fn welcomed(self, dialect: &Dialect, cluster: ClusterId, message: Welcome) -> Answer {
        let peer = PeerId::of(message.role(), message.id, message.incarnation);
        let meant = match (self, peer) {
            (Callee::Mdm, PeerId::Mdm(_)) => true,
            (Callee::Device(device), PeerId::Device(id, _)) => id == device,
            _ => false,
        };
        let strange = message.cluster != 0 && cluster.0 != 0 && message.cluster != cluster.0;
        if !meant || strange {
            return Answer::Wrong(Wrong::Other);
        }
        let version = match mutant::on(Mutant::IgnoreWelcome) {
            true => Some(dialect.wire_max),
            false => common_version(dialect, message.version, message.version),
        };
        match version {
            Some(version) => Answer::Welcome(Welcomed { peer, version, message }),
            None => Answer::Wrong(Wrong::Version),
        }
    }
}

/// Returns a hello with the fields that are the same for every role.
pub fn hello(dialect: &Dialect, cluster: ClusterId, role: Role, name: &str) -> Hello {
    Hello {
        cluster: cluster.0,
        role: role as i32,
        version_min: u32::from(dialect.wire_min),
        version_max: u32::from(dialect.wire_max),
        name: String::from(name),
        auth: Vec::new(),
        ..Hello::default()
    }
}

/// Sends a hello. The version of its frame is that of every handshake, however new this build is.
pub fn send_hello(link: LinkId, hello: &Hello, out: &mut Effects) {
    let newest = hello.version_max as u16;
    let as_newest = mutant::on(Mutant::NewestHello);
    let version = if as_newest { newest } else { wire::HANDSHAKE_VERSION };
    send_control(PeerLink::new(link, version), hello, out);
}

// ---- the side that was dialled ----

/// Reads the first frame of a peer that dialled.
pub fn read_hello(frame: Result<Frame, Malformed>, body: &[u8]) -> Result<Hello, Refusal> {
    let unexpected = |text| refusal(RefusalCode::Unexpected, text);
    match frame {
        Ok(Frame::Hello(_)) => {
            Hello::decode(body).map_err(|_| unexpected("the hello can't be read"))
        }
        _ => Err(unexpected("the first frame must be a hello")),
    }
}

/// Checks what every role checks of a hello: cluster and version. Returns the peer, and the version
/// of the link: the highest one that both sides speak.
pub fn check_hello(
    dialect: &Dialect,
    hello: &Hello,
    cluster: ClusterId,
) -> Result<(PeerId, u16), Refusal> {
    let strange = hello.cluster != 0 && cluster.0 != 0 && hello.cluster != cluster.0;
    if strange && !mutant::on(Mutant::AnyCluster) {
        let text = format!(
            "this is cluster {:016x}, and `{}` belongs to cluster {:016x}: \
             check the MDM's address, and paths of devices, in its configuration",
            cluster.0, hello.name, hello.cluster
        );
        return Err(refusal(RefusalCode::WrongCluster, text));
    }
    let Some(version) = common_version(dialect, hello.version_min, hello.version_max) else {
        let text = format!(
            "this side speaks protocol versions {} to {}, `{}` speaks {} to {}: update the older one",
            dialect.wire_min, dialect.wire_max, hello.name, hello.version_min, hello.version_max
        );
        return Err(refusal(RefusalCode::WrongVersion, text));
    };
    Ok((PeerId::of(hello.role(), hello.id, hello.incarnation), version))
}

/// Returns a welcome with the fields that are the same for every role. `version` is that of the
/// link ([`check_hello`]).
pub fn welcome(cluster: ClusterId, role: Role, version: u16) -> Welcome {
    Welcome {
        cluster: cluster.0,
        role: role as i32,
        version: u32::from(version),
        ..Welcome::default()
    }
}

/// Sends a welcome.
pub fn send_welcome(link: LinkId, welcome: &Welcome, out: &mut Effects) {
    let link = PeerLink::new(link, wire::HANDSHAKE_VERSION);
    send_control(link, welcome, out);
}
