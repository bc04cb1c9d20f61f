//! The target side of NVMe/TCP: the NVMe base specification 1.4 ("the base" below), NVMe over
//! Fabrics 1.1 ("fabrics"), and the TCP transport 1.0 ("the transport").
//!
//! | file | content |
//! |---|---|
//! | `proto`, `status` | the constants of the specifications; the status of a command |
//! | `framer` | splits the host's stream into frames |
//! | `command`, `step` | the submission queue entry, and what it begins |
//! | `wire` | outgoing PDUs, with their digests and the queue's head |
//! | `subsystem` | the interface through which a session learns about namespaces and other queues |
//! | `table` | the outstanding commands |
//! | `queue` | a command from its arrival to its answer |
//! | `data` | incoming data |
//! | `io`, `deallocate`, `ranges`, `fused` | the commands of an I/O queue |
//! | `reserve`, `ask` | reservations: requests and reports; the questions to the MDM |
//! | `fabrics`, `controller` | Connect, the properties of a controller |
//! | `auth`, `dhchap` | in-band authentication: its commands and its messages |
//! | `key`, `ffdhe` | keys and digests; the Diffie-Hellman group |
//! | `admin`, `identify`, `features` | the commands of an admin queue |
//! | `logs`, `events`, `notices` | what the host reads and is told of changes |
//! | `session` | the interface for the owner |
//!
//! A link is one queue: an admin queue with its controller, or an I/O queue. The owner creates an
//! [`NvmeFramer`] and a [`Session`] for each link, feeds frames and completions, and executes the
//! [`Action`](crate::Action)s in order. I/O queues find their controller through [`Subsystem`], and
//! the owner closes them when the link of their admin queue ends.
//!
//! Not supported: Verify, protection information, metadata, TLS. None of them is announced.

mod admin;
mod ask;
mod auth;
mod command;
mod controller;
mod data;
mod deallocate;
mod dhchap;
mod events;
mod fabrics;
mod features;
mod ffdhe;
mod framer;
mod fused;
mod identify;
mod io;
mod key;
mod logs;
mod notices;
pub mod proto;
mod queue;
mod ranges;
mod reserve;
mod session;
mod status;
mod step;
mod subsystem;
mod table;
mod wire;

pub use controller::{Controller, Opening};
pub use dhchap::Seed;
pub use framer::NvmeFramer;
pub use key::{BadKey, Key, Keys};
pub use session::Session;
pub use status::Status;
pub use subsystem::{Namespace, Path, Portal, Subsystem};
