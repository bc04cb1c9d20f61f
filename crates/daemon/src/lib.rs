//! The processes of the roles: `gabion mdm run`, `gabion sds run` and `gabion sdc run`.
//!
//! `role_mdm`, `role_sds` and `role_sdc` turn a configuration file into the node of a role, and
//! `service` runs it: threads, signals, the log. The rest is what such a process needs: `config`
//! and `spec` (its file), `files` and `process` (what it leaves on disk), `notes` (its log),
//! `supervised` and `device_watch` (when it has to end), `safety` (what keeps it running when
//! memory is short). `offline`, `content` and `inspect` examine a device that no process serves.
//!
//! This crate does not know how many processes a cluster has, or where they run: `fleet` starts
//! them. It asks no MDM, prints nothing but a role's log, and decides nothing about data: the
//! nodes do.
#![forbid(unsafe_code)]

pub mod config;
pub mod content;
mod device_watch;
pub mod files;
pub mod inspect;
pub mod lost_log;
mod notes;
pub mod offline;
pub mod process;
pub mod role_mdm;
pub mod role_sdc;
pub mod role_sds;
pub mod safety;
pub mod secrets;
mod service;
pub mod size;
pub mod spec;
mod supervised;
pub mod written;

pub use service::{InUse, OTHERS_GO_ON};

use anyhow::{Context, Result};

/// Returns 64 random bits from the kernel.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the kernel gives no random numbers")?;
    Ok(u64::from_ne_bytes(bytes))
}
