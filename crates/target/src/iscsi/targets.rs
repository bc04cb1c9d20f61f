//! The interface through which a session looks up targets, hosts and other sessions. The session
//! queries it during login and discovery, and keeps only what it told the initiator. It does not
//! assign names or ids.

use super::chap::Credentials;
use crate::scsi::Unit;
use alloc::string::String;
use base::VolumeId;
use core::net::SocketAddr;

/// One target: a volume, as logical unit 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The properties of the volume that the host sees, with the target's name.
    pub unit: Unit,
    /// The volume's name, for people; may be empty. At most 255 bytes.
    pub alias: String,
}

/// A place where a target is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// The address, as the initiator reaches it.
    pub address: SocketAddr,
    /// The portal group: one per gateway.
    pub group: u16,
}

/// The fields that identify a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nexus {
    /// The name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session's id.
    pub isid: [u8; 6],
    /// The target's part.
    pub tsih: u16,
    /// The volume; `None` in a discovery session.
    pub volume: Option<VolumeId>,
    /// The connection.
    pub cid: u16,
}

/// Reason why a host can't log in here now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// This gateway has just started, and does not know the volumes yet. The host tries again.
    NotReady,
    /// This gateway is stopping.
    Stopping,
    /// There are too many sessions, or too little memory. A host that replaces its own session is
    /// accepted nevertheless.
    Full,
    /// Another gateway serves this host.
    Elsewhere(SocketAddr),
}

/// Authentication is required, and this host has no secret: its login is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stranger;

/// Targets, hosts and sessions of a gateway.
pub trait Targets {
    /// Returns the portal group of this gateway. That of a gateway without a number is 1.
    fn group(&self) -> u16 {
        1
    }

    /// Returns the target with this name, as this initiator sees it, if it is served here.
    fn find(&self, initiator: &str, name: &str) -> Option<Target>;

    /// Visits the name of each target that this initiator may use, in an order that depends only
    /// on the state.
    fn each(&self, initiator: &str, visit: &mut dyn FnMut(&str));

    /// Visits each portal of each gateway that serves the target.
    fn portals(&self, target: &str, visit: &mut dyn FnMut(Portal));

    /// Returns true if the initiator may use the target.
    fn admits(&self, initiator: &str, target: &str) -> bool;

    /// Returns the credentials that the initiator must prove, if any. A discovery has no target.
    /// The answer does not depend on whether the target exists, so a stranger can't find that out.
    fn credentials(
        &self,
        initiator: &str,
        target: Option<&str>,
    ) -> Result<Option<Credentials<'_>>, Stranger>;

    /// Visits each session of this gateway that is logged in, this one excepted.
    fn sessions(&self, visit: &mut dyn FnMut(&Nexus));

    /// Returns the reason why this host can't log in now, if there is one.
    fn closed(&self, initiator: &str, target: Option<&str>) -> Option<Closed>;
}
