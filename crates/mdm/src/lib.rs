//! The metadata manager: the cluster's state, and what changes it.
//!
//! - [`command`]: the commands of log entries; [`state`]: their effects ([`State::apply`]).
//! - [`controller`]: turns orders, registrations and proposals into commands, or refuses them
//!   ([`refused`]). So do [`object_orders`], [`removal`], [`maintenance`] and [`level`], for orders
//!   of their kind. [`healer`] and [`recovery`] make the other commands.
//! - What the MDM observes: [`observed`] (what processes report), [`detector`] (lost devices),
//!   [`quarantine`] (devices that come and go too often), [`slowness`] (slow devices), [`reach`]
//!   (devices that others can't reach).
//! - Parts of the state: [`device`], [`client`], [`volume`], [`group`], [`mapping`] (the clients
//!   that may use a volume), [`reserve`] (hosts that shut others out), [`objects`] (domains, fault
//!   sets and pools), [`members`] (the MDMs of the cluster), [`id_set`].
//! - [`entry`]: commands on their way into the log. [`log`]: the log on the disk.
//! - Views of the state: [`publish`] (map pages), [`snapshot`] (bytes), [`status`] (for people).
//! - [`recovery`]: how one MDM continues when the others are lost.
//!
//! **Architecture invariant:** `apply` decides everything, by the state and the command alone, so
//! the log leads to the same state in every build. So the controller makes the choices that may
//! improve one day (placement, the groups of a volume), and writes them into the command.
//!
//! Nothing here knows links, frames or their time-outs: `node::mdm` combines this crate with them.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod client;
pub mod command;
pub mod controller;
pub mod detector;
pub mod device;
pub mod entry;
pub mod group;
pub mod healer;
pub mod id_set;
pub mod level;
pub mod log;
pub mod maintenance;
pub mod mapping;
pub mod mapping_orders;
pub mod members;
pub mod object_orders;
pub mod objects;
pub mod observed;
pub mod publish;
pub mod quarantine;
pub mod reach;
pub mod recovery;
pub mod refused;
pub mod removal;
pub mod reserve;
pub mod seat;
pub mod seating;
pub mod slowness;
pub mod snapshot;
pub mod state;
pub mod status;
pub mod volume;

pub use command::Command;
pub use refused::Refused;
pub use state::{Outcome, State};
