//! Outgoing connections that are not established yet.

use base::Time;
use seam::{DialError, DialId, Port};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::link::Pinned;

/// How long a dial may take before it fails.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that is being established.
pub(crate) struct Dial {
    /// The node that dialled.
    pub(crate) seat: u32,
    pub(crate) dial: DialId,
    pub(crate) port: Port,
    pub(crate) socket: OwnedFd,
    /// The kernel may read it until the connect has completed.
    pub(crate) address: Pinned<socket2::SockAddr>,
    pub(crate) until: Time,
    /// The node has seen the failure; the entry only waits for the kernel's completion.
    pub(crate) abandoned: bool,
}

/// Returns what a failed connect means. Only a refusal proves that no process listens there.
pub(crate) fn why(error: i32) -> DialError {
    if error == libc::ECONNREFUSED { DialError::Refused } else { DialError::Unreachable }
}
