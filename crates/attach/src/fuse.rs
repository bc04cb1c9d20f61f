//! The kernel's FUSE interface: its messages (`abi`), and a mounted file system (`channel`).
//!
//! The data client's thread uses the interface directly, so that an I/O crosses no thread, takes no
//! lock, and is copied at most once.

pub(crate) mod abi;
pub(crate) mod channel;
