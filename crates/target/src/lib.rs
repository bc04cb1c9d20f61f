//! Sans-I/O sessions of the standard block protocols that clients of a volume use with an SDC.
//!
//! A session is a state machine for one link. It takes frames and completions, and returns actions.
//! It does not know about links, clusters or the data of volumes.
//!
//! | module | content |
//! |---|---|
//! | `action` | the actions that a session asks its owner for |
//! | `extents` | converts a bitmap of blocks to runs |
//! | `slots` | a table of values with handles, such as commands |
//! | `piece`, `split` | the tags of requests; a sector whose data comes in several PDUs |
//! | `credit` | the bound on a session's data in flight |
//! | `base64` | binary values as text |
//! | [`nbd`] | the session of NBD |
//! | [`iscsi`] | the session of iSCSI |
//! | [`nvme`] | the session of NVMe/TCP |
//! | [`scsi`] | the SCSI command set, without a transport |
//! | [`reserve`] | persistent reservations of one volume |
//! | [`virtio`] | a block device in the memory of a guest |
//! | [`vhost`] | the messages that hand such a device to a process |
//! | [`ident`] | the identifiers by which hosts know volumes |
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod action;
mod base64;
mod credit;
mod extents;
pub mod ident;
pub mod iscsi;
pub mod nbd;
pub mod nvme;
mod piece;
pub mod reserve;
pub mod scsi;
mod slots;
mod split;
pub mod vhost;
pub mod virtio;

pub use action::{Action, Asked, Cleared, Question};
pub use piece::is_first;
