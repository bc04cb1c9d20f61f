//! Sans-I/O sessions of the standard block protocols that clients of a volume use with an SDC.
//!
//! A session is a state machine for one link. It takes frames and completions, and returns actions.
//! It does not know about links, clusters or the data of volumes.
//!
//! | module | content |
//! |---|---|
//! | `action` | what a session asks its owner to do |
//! | `extents` | converts a bitmap of blocks to runs |
//! | [`nbd`] | the session of NBD |
//! | [`iscsi`] | the session of iSCSI |
//! | [`nvme`] | the session of NVMe/TCP |
//! | [`scsi`] | the SCSI command set, without a transport |
//! | [`reserve`] | persistent reservations of one volume |
//! | [`ident`] | the identifiers by which hosts know volumes |
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod action;
mod extents;
pub mod ident;
pub mod iscsi;
pub mod nbd;
pub mod nvme;
pub mod reserve;
pub mod scsi;
pub mod vhost;
pub mod virtio;

pub use action::{Action, Cleared, Question, is_first};
