//! The target side of iSCSI, according to RFC 7143 ("the RFC" below).
//!
//! | file | content |
//! |---|---|
//! | `proto` | the constants of the RFC under their names |
//! | `framer` | splits the initiator's stream into frames |
//! | `pdu`, `reply` | the PDUs of the initiator, and those of the target |
//! | `digest` | the checksums of heads and data |
//! | `text`, `keys` | text of requests and answers; the operational keys as one table |
//! | `chap` | CHAP authentication, in one direction or both |
//! | `targets` | the interface through which a session learns about targets and hosts |
//! | `login` | the login phase |
//! | `wire` | sequence numbers, digests, and outgoing PDUs |
//! | `tasks`, `strays` | the outstanding commands; tags of those that ended early |
//! | `places` | how many requests the commands may have under way |
//! | `full` | the full feature phase: every request that is not a command |
//! | `execute` | a SCSI command from its first step to its answer |
//! | `data` | incoming data of writes, outgoing data of reads |
//! | `manage` | task management, and the end of a session |
//! | `lengths` | the lengths of a session's lists, and their bounds |
//! | `session` | the interface for the owner |
//!
//! The owner of a link creates an [`IscsiFramer`] and a [`Session`], feeds frames and completions,
//! and executes the [`Action`](crate::Action)s in order.
//!
//! Not supported: several connections per session, error recovery levels above 0, markers. All of
//! them are negotiated away.

mod chap;
mod data;
mod digest;
mod execute;
mod framer;
mod full;
mod keys;
mod lengths;
mod login;
mod manage;
mod pdu;
mod places;
pub mod proto;
mod reply;
mod session;
mod strays;
mod targets;
mod tasks;
mod text;
mod wire;

pub use chap::Credentials;
pub use framer::{IscsiFramer, Mode};
pub use lengths::ListLengths;
pub use login::Opening;
pub use session::Session;
pub use targets::{Closed, Nexus, Portal, Stranger, Target, Targets};
