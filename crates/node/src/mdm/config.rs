//! The settings of an MDM.

use alloc::string::String;
use base::{ClusterId, Dialect, Limits};
use core::net::SocketAddr;

/// The settings of an MDM.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// The address at which it listens.
    pub address: SocketAddr,
    /// What to do with an empty log: wait until a cluster adds this MDM (true), or start a cluster
    /// (false).
    pub join: bool,
    /// The id of the cluster that its log must belong to, or that a new log gets. `None`: any log
    /// is accepted, and the id of a new cluster is drawn at random.
    pub cluster: Option<ClusterId>,
    /// Its limits.
    pub limits: Limits,
    /// The id of its process, for people.
    pub pid: u32,
    /// The capabilities of its build.
    pub dialect: Dialect,
}
