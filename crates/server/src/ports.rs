//! Free TCP ports on the loopback address for the roles of a cluster that `up` starts.
//!
//! Taken from below the kernel's range for outgoing connections: a role that dials the port of a
//! dead one from that range could otherwise be given the very port that it dials, and be connected
//! with itself; and a dead role's port could be gone when it comes back.

use anyhow::{Result, bail};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;

const LOWEST: u16 = 10_000;

/// `count` different addresses on 127.0.0.1 that nobody listens at now.
pub fn free(count: usize) -> Result<Vec<SocketAddr>> {
    let range = usable();
    let size = range.len();
    let start = crate::random()? as usize % size;
    let mut found = Vec::with_capacity(count);
    for i in 0..size {
        let port = range.start + ((start + i) % size) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            found.push(address);
        }
        if found.len() == count {
            return Ok(found);
        }
    }
    bail!(
        "only {} of {count} TCP ports between {} and {} are free",
        found.len(),
        range.start,
        range.end
    )
}

fn usable() -> Range<u16> {
    let outgoing = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = outgoing.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(32_768);
    if first > LOWEST + 1000 { LOWEST..first } else { LOWEST..u16::MAX }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ports_differ_and_can_be_bound() {
        let mut addresses = super::free(20).unwrap();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 20);
    }
}
