//! The interface through which a session looks up namespaces, portals, and other queues of its
//! controller.

use super::controller::Controller;
use super::key::Keys;
use super::proto::{ACTIVE, NAMESPACES};
use crate::reserve::Access;
use base::{ClusterId, VolumeId};
use core::net::SocketAddr;

/// The asymmetric namespace access (ANA) state of the path that a host uses (base 8.20.3).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Path {
    /// This gateway serves the host.
    #[default]
    Optimized,
    /// Another gateway serves the host.
    Inaccessible,
}

/// A namespace, as one host sees it. Its id is that of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// The volume.
    pub volume: VolumeId,
    /// Size of the volume in bytes. A last part that does not fill a block is not exported.
    pub size: u64,
    /// True if the host may only read.
    pub read_only: bool,
    /// The access that reservations leave to the host.
    pub access: Access,
    /// The state of this path.
    pub path: Path,
}

/// An address at which hosts reach the subsystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// The address, as hosts reach it.
    pub address: SocketAddr,
    /// The id of the port: the number of its gateway + 1.
    pub port: u16,
}

/// The owner's answers to a session's questions.
pub trait Subsystem {
    /// Returns the cluster.
    fn cluster(&self) -> ClusterId;

    /// Returns the version of what [`Subsystem::portals`] lists: a number that rises with each
    /// change of the list, and that is the same at all gateways with the same list.
    fn version(&self) -> u64;

    /// Returns the namespace with this id, if there is one that the host may use.
    fn namespace(&self, nsid: u32) -> Option<Namespace>;

    /// Returns the namespace with the lowest id above `after`.
    fn next(&self, after: u32) -> Option<Namespace>;

    /// Visits each portal of each gateway.
    fn portals(&self, visit: &mut dyn FnMut(Portal));

    /// Returns true if this host may connect.
    fn admits(&self, host: &str, id: &[u8; 16]) -> bool;

    /// Returns the keys with which this host and the subsystem authenticate; `None` if the host
    /// needs none.
    fn keys(&self, host: &str) -> Option<Keys<'_>>;

    /// Returns true if no host can connect now: there is no map, or too much is in flight.
    fn is_busy(&self) -> bool;

    /// Returns the controller with this id, which another link of the same port has.
    fn controller(&self, cntlid: u16) -> Option<&Controller>;

    /// Returns true if a link has this queue of a controller.
    fn has_queue(&self, cntlid: u16, qid: u16) -> bool;
}

/// Visits the namespaces that a host may see, with ids above `after`, in ascending order.
pub(crate) fn active(subsystem: &dyn Subsystem, after: u32) -> impl Iterator<Item = Namespace> {
    let next = move |after: u32| subsystem.next(after).filter(|ns| ns.volume.0 <= NAMESPACES);
    core::iter::successors(next(after), move |ns| next(ns.volume.0)).take(ACTIVE as usize)
}
