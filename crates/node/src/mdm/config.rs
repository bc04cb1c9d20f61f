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
    /// With an empty log: true to wait for a cluster that adds this MDM, false to start a cluster.
    pub join: bool,
    /// The id of the cluster that its log must belong to, or that a new log gets. `None`: any log
    /// is accepted, and the id of a new cluster is drawn at random.
    pub cluster: Option<ClusterId>,
    /// Its limits.
    pub limits: Limits,
    /// The id of its process, for people.
    pub pid: u32,
    /// What its build can do.
    pub dialect: Dialect,
}
