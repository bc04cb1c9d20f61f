//! The metadata manager: the cluster's state, and what changes it.
//!
//! - [`command`]: what a log entry can say; [`state`]: what it means ([`State::apply`]).
//! - [`controller`]: wishes and observations become commands, or a refusal; nothing else makes them.
//! - [`healer`]: which groups get other replicas. [`detector`]: who lives. [`quarantine`]: who comes and goes too often.
//!   [`slowness`]: who takes too long.
//!   [`entry`]: commands on their way. [`log`]: how they survive. [`mapping`], [`objects`]: who may use a volume, and what
//!   people make, name and remove. [`publish`], [`snapshot`], [`status`]: the state as map pages, as bytes, and for
//!   people. [`members`]: the
//!   MDMs of the cluster. [`id_set`]: many ids in little room. [`recovery`]: how one of them goes on when the others are lost.
//!
//! **Architecture invariant:** all is decided in `apply`, by the state and the command alone; the
//! log replays to the same state in every build. What may be chosen better one day (placement, which
//! groups a volume gets) is therefore chosen by the controller and written into the command.
//!
//! Nothing here knows links, frames or time-outs of links: `node::mdm` composes it.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod command;
pub mod controller;
pub mod detector;
pub mod entry;
pub mod group;
pub mod healer;
pub mod id_set;
pub mod level;
pub mod log;
mod maintenance;
pub mod mapping;
pub mod members;
pub mod objects;
pub mod publish;
pub mod quarantine;
pub mod reach;
pub mod recovery;
pub mod refused;
pub mod removal;
pub mod slowness;
pub mod snapshot;
pub mod state;
pub mod status;

pub use command::Command;
pub use refused::Refused;
pub use state::{Outcome, State};
