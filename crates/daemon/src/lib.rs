//! The processes of the roles: `gabion mdm run`, `gabion sds run` and `gabion sdc run`.
//!
//! | file | content |
//! |---|---|
//! | `role_mdm`, `role_sds`, `role_sdc` | turn a configuration file into the node of a role |
//! | `service` | runs a node: threads, signals, the log |
//! | `config`, `written` | configuration files |
//! | `spec`, `size` | devices, volumes and sizes as text |
//! | `secrets` | the files with the secrets of hosts |
//! | `files`, `process` | writes files that survive a power cut; pid files |
//! | `notes` | the lines of a role's log |
//! | `supervised`, `device_watch` | reasons for which a process has to end |
//! | `lost_log` | refuses to begin a cluster where another one was |
//! | `safety` | keeps a process running when memory is short |
//! | `offline`, `content`, `inspect` | examine a device that no process serves |
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
