//! How the MDMs of a new cluster come together: the first one begins it, and takes the others in.

use crate::admin::Admin;
use anyhow::Result;
use std::net::SocketAddr;

/// An MDM that is to belong to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its name among them.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// It leads only while no manager can.
    pub tie_breaker: bool,
}

/// Takes those in that a new cluster lacks; true when it is new: then all of them are to vote. Once it has anything,
/// whoever is not in it was removed, and stays out.
pub fn take_in(connect: impl Fn() -> Result<Admin>, members: &[Member]) -> Result<bool> {
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

/// True when so many vote.
pub fn vote(admin: &mut Admin, count: usize) -> Result<bool> {
    Ok(admin.status()?.mdms.iter().filter(|m| m.voter).count() >= count)
}
