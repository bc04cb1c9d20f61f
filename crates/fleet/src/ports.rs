//! Free TCP ports on the loopback address for the roles of a cluster that `up` starts.
//!
//! The ports lie below the kernel's range for outgoing connections, for two reasons. A role that
//! dials a dead role's port within that range could be given this very port as its own, and connect
//! to itself. And another program could take a dead role's port before the role is back.

use anyhow::{Context, Result, bail};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

const LOWEST: u16 = 10_000;
/// How long the address of a killed process may stay in use: the kernel tears down its io_uring,
/// and the listening socket with it, some time after the process.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns one address for each entry: the earlier one, unless another process has taken it. So
/// clients that know an address find the cluster again.
pub fn again(earlier: &[Option<SocketAddr>]) -> Result<Vec<SocketAddr>> {
    let deadline = Instant::now() + PATIENCE;
    let kept: Vec<_> = earlier.iter().map(|at| at.filter(|at| frees(*at, deadline))).collect();
    let fresh = free(earlier.len() + kept.iter().flatten().count())?;
    let mut fresh = fresh.into_iter().filter(|at| !kept.contains(&Some(*at)));
    kept.iter().map(|at| at.or_else(|| fresh.next()).context("ran out of ports")).collect()
}

/// Returns whether the address is free, now or before the deadline.
fn frees(at: SocketAddr, deadline: Instant) -> bool {
    loop {
        if is_free(at) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn is_free(at: SocketAddr) -> bool {
    TcpListener::bind(at).is_ok()
}

/// Returns `count` different addresses on 127.0.0.1 that are free now.
pub fn free(count: usize) -> Result<Vec<SocketAddr>> {
    let range = usable();
    let size = range.len();
    let start = daemon::random()? as usize % size;
    let mut found = Vec::with_capacity(count);
    for i in 0..size {
        let port = range.start + ((start + i) % size) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if is_free(address) {
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

    #[test]
    fn earlier_addresses_are_kept_unless_they_are_in_use() {
        let earlier = super::free(3).unwrap();
        let _stranger = std::net::TcpListener::bind(earlier[1]).unwrap();
        let asked = [Some(earlier[0]), Some(earlier[1]), None, Some(earlier[2])];
        let got = super::again(&asked).unwrap();
        assert_eq!((got[0], got[3]), (earlier[0], earlier[2]));
        assert!(!earlier.contains(&got[1]) && !earlier.contains(&got[2]) && got[1] != got[2]);
    }
}
