//! Formation of the MDM cluster: the first MDM begins a new cluster and adds the others.

use admin::Admin;
use anyhow::Result;
use std::net::SocketAddr;

/// An MDM that is to be part of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// Its name, unique among the MDMs.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// It leads only while no manager can.
    pub tie_breaker: bool,
}

/// Adds the MDMs that a new cluster lacks. Returns true if the cluster is new: then all of them are
/// to vote. An MDM missing from a cluster that already has volumes or devices was removed on
/// purpose, and stays out.
pub(crate) fn take_in(connect: impl Fn() -> Result<Admin>, members: &[Member]) -> Result<bool> {
    let info = connect()?.status()?;
    if info.mdms.len() >= members.len() || info.volumes.len() + info.devices.len() > 0 {
        return Ok(false);
    }
    let known =
        |name: &str| info.mdms.iter().filter_map(|m| m.info.as_ref()).any(|m| m.name == name);
    for member in members.iter().filter(|m| !known(&m.name)) {
        connect()?.add_mdm(&member.name, member.address, member.tie_breaker)?;
    }
    Ok(true)
}

/// Returns true when at least `count` MDMs vote.
pub(crate) fn vote(admin: &mut Admin, count: usize) -> Result<bool> {
    Ok(admin.status()?.mdms.iter().filter(|m| m.voter).count() >= count)
}
