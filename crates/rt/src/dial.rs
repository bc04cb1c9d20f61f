//! Dials that have not ended yet.

use base::Time;
use seam::{DialError, DialId, Port};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::link::Pinned;

/// How long a dial may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// A connection that is being made.
pub(crate) struct Dial {
    /// Whose it is.
    pub(crate) seat: u32,
    pub(crate) dial: DialId,
    pub(crate) port: Port,
    pub(crate) socket: OwnedFd,
    /// The kernel may look at it until the connect has completed.
    pub(crate) address: Pinned<socket2::SockAddr>,
    pub(crate) until: Time,
    /// The node was told that it failed; only the kernel is not done with it.
    pub(crate) abandoned: bool,
}

/// What a failed connect means. Only a refusal proves that nobody is there.
pub(crate) fn why(error: i32) -> DialError {
    if error == libc::ECONNREFUSED { DialError::Refused } else { DialError::Unreachable }
}
