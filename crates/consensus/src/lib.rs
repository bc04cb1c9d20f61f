//! Agreement among the MDMs of a cluster: Raft behind a small interface. No other crate uses the
//! Raft library.
//!
//! - [`Consensus`]: one member; [`records`]: its entries, messages and membership as bytes.
//!
//! Invariants: a message that promises something (a vote, or that entries are stored) leaves only
//! after that is durable; committed entries are handed out in order, and each once per process.
//!
//! The crate has no clock (its owner calls [`Consensus::tick`]) and no I/O. It has no source of
//! random numbers either: the only random value, the election timeout, is drawn from a generator
//! that the owner passes in. It does not know what an entry means. It is not `no_std`, because the
//! library is not.
#![forbid(unsafe_code)]

pub mod records;

mod check;
mod engine;
mod memory;
mod outbox;

pub use check::Wrong;
pub use engine::{Committed, Consensus, EntryKind, Leadership, Output, Peer};
pub use records::{Base, Entry, HardState, Image, Membership, Message, Record};
