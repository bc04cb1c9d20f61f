//! The messages by which a virtual machine monitor hands a device to a process (vhost-user, QEMU's
//! `docs/interop/vhost-user.rst`): the frontend is the monitor, the backend is this side.
//!
//! | module | content |
//! |---|---|
//! | [`message`] | what the frontend says |
//! | [`reply`] | what the backend says |
//!
//! A message is a head of 12 bytes and a body, on a unix socket. File descriptors come beside it:
//! how many there must be is checked here, and what they are is not known.
//!
//! Invariant: a message is either read completely, or is a [`Fault`].

pub mod message;
pub mod reply;

pub use message::{Head, Message};

use core::fmt;

/// Protocol features (not those of the device).
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// Any message may ask for an answer.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The backend may tell the frontend something.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration space is read from the backend.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests that are under way are noted in memory that outlives the backend.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// All that the backend has.
    pub const ALL: u64 = MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE;
}

/// The feature by which a device says that it has protocol features.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Why the frontend's bytes are no message that the backend takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A message of another version of the protocol.
    Version(u32),
    /// A body that is longer than any can be.
    Long(u32),
    /// A body of another length than this request has.
    Length {
        /// The request.
        request: u32,
        /// The length.
        len: usize,
    },
    /// Another number of file descriptors than this request has.
    Files {
        /// The request.
        request: u32,
        /// Their number.
        files: usize,
    },
    /// A request that is not known, or whose feature was not agreed on.
    Unknown(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Version(flags) => write!(f, "a message of another version (flags {flags:#x})"),
            Fault::Long(len) => write!(f, "a message with a body of {len} bytes"),
            Fault::Length { request, len } => {
                write!(f, "request {request} with a body of {len} bytes")
            }
            Fault::Files { request, files } => {
                write!(f, "request {request} with {files} file descriptors")
            }
            Fault::Unknown(request) => write!(f, "request {request}, which is not known here"),
        }
    }
}
