//! The wire format between Gabion's own processes.
//!
//! Every frame is one fixed 128-byte [`Header`] and a body of `body_len` bytes. [`message`] has a
//! struct for each kind of frame, which says what its header means. That is everything that the
//! data path needs, so reads, writes, replication and acknowledgements never parse anything else.
//! Control messages are Protocol Buffers in the body ([`control`]), so that fields can be added.
//! `docs/internals/protocol.md` explains each frame.
//!
//! This crate defines layouts, not behaviour: other crates decide who may send a frame, and when.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod control;
pub mod frame;
pub mod header;
pub mod link;
pub mod message;
pub mod records;

pub use frame::{Body, PeerFramer, body_ok, control_frame, frame, parse};
pub use header::{Header, Kind, Status};
pub use link::{HANDSHAKE_VERSION, PeerLink, check_link, common_version};
pub use message::{Control, Fault, Frame, Malformed};

use base::Dialect;

/// The newest protocol version that this release supports.
pub const VERSION: u16 = 1;
/// The oldest protocol version that this release supports.
pub const VERSION_MIN: u16 = 1;

/// The capabilities of this release.
pub const DIALECT: Dialect = Dialect {
    release: env!("CARGO_PKG_VERSION"),
    wire_min: VERSION_MIN,
    wire_max: VERSION,
    level_max: base::level::LEVEL,
};
