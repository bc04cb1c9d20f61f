//! The parts that a program needs to administer a cluster: the client of its MDM, the report of its
//! state, and the codes with which a command ends.
//!
//! [`Admin`] finds the leading MDM and sends it one request at a time over a blocking socket.
//! [`report::Report`] is the state of a cluster, in the format of `gabion status --json`.
//! [`exit::Exit`] lists the exit codes, and [`exit::coded`] gives one to an error.
//!
//! This crate prints nothing, reads no configuration file and starts no process. `fleet` does all
//! of that. So a gateway or a driver for containers can use this crate, too.
#![forbid(unsafe_code)]

mod client;
pub mod exit;
pub mod report;

pub use client::Admin;
