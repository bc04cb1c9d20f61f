//! The messages by which a virtual machine monitor hands a device to a process (vhost-user, QEMU's
//! `docs/interop/vhost-user.rst`): the frontend is the monitor, the backend is this side.
//!
//! | module | content |
//! |---|---|
//! | [`message`] | the messages of the frontend |
//! | [`log`] | which pages of the guest's memory were written, for a migration |
//! | [`reply`] | the messages of the backend |
//!
//! A message is a head of 12 bytes and a body, on a unix socket. File descriptors accompany it.
//! Their number is checked here, their kind is not.
//!
//! Invariant: a message is either decoded completely, or is a [`Fault`].

pub mod log;
pub mod message;
pub mod reply;

pub use message::{Head, Message};

use core::fmt;

/// Protocol features (not those of the device).
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// The log of written pages comes as a file.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// Any message may ask for an answer.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The backend may send requests to the frontend.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration space is read from the backend.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests that are under way are noted in memory that outlives the backend.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// All features that this backend supports.
    pub const ALL: u64 =
        MQ | LOG_SHMFD | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE;
}

/// The device feature that announces protocol features.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// The device feature by which a frontend switches the [`log`] of written pages on and off, also
/// while queues are served.
pub const LOG_ALL: u64 = 1 << 26;

/// Why a message of the frontend is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A message of another version of the protocol.
    Version(u32),
    /// A body that is longer than that of any message.
    Long(u32),
    /// A body of the wrong length for this request.
    Length {
        /// The request.
        request: u32,
        /// The length.
        len: usize,
    },
    /// The wrong number of file descriptors for this request.
    Files {
        /// The request.
        request: u32,
        /// Their number.
        files: usize,
    },
    /// A request that is unknown, or whose feature was not negotiated.
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
