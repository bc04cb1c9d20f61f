//! Agreement among the MDMs of a cluster: Raft, behind a few words. The only crate that knows the library.
//!
//! - [`Consensus`]: one member; [`records`]: its entries, messages and configuration as bytes.
//!
//! Invariants: what is to be persisted is before a message leaves that promises it (votes, and entries that
//! are said to be there); entries are handed out when they are committed, in order, and each once in a life.
//!
//! It has no clock (its owner calls [`Consensus::tick`]), no I/O and no random source of its own: the one
//! random thing, how long a member waits before it stands for election, is drawn from a generator that its
//! owner hands in. It doesn't know what an entry means. Not `no_std`, as the library isn't.
#![forbid(unsafe_code)]

pub mod records;

mod check;
mod engine;
mod memory;
mod outbox;

pub use check::Wrong;
pub use engine::{Committed, Consensus, Meaning, Peer, Role, Turn};
pub use records::{Base, Entry, HardState, Image, Membership, Message, Record};
