//! The kernel's FUSE interface: its messages (`abi`), and a mounted file system (`channel`).
//!
//! It is spoken directly, on the thread of the data client, so that an I/O crosses no thread, takes
//! no lock, and is copied once at most.

pub(crate) mod abi;
pub(crate) mod channel;
