//! The wire format between Gabion's own processes.
//!
//! Every frame is one fixed 128-byte [`Header`] and a body of `body_len` bytes. The header carries
//! all that the data path needs, so a read, a write, a replication or an acknowledgement is never
//! parsed beyond it. Control messages are Protocol Buffers in the body ([`control`]): tagged fields
//! survive rolling upgrades. Which frame means what: `docs/internals/protocol.md`.
//!
//! This crate knows layouts, not behaviour: who may send what, and when, is decided elsewhere.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod control;
pub mod frame;
pub mod header;
pub mod records;

pub use frame::{PeerFramer, body_ok, control_frame, frame, parse};
pub use header::{Header, Kind, Status, flag};

/// The newest protocol version that this build speaks, and the oldest.
pub const VERSION: u16 = 1;
/// The oldest protocol version that this build still speaks.
pub const VERSION_MIN: u16 = 1;
