//! Runs a data server with one shard per device, or several data servers on one shard.
//!
//! Servers that share a shard have sockets, devices and an identity of their own, as if each had a
//! process; what they share is the loop, and its end.

use crate::config::{DeviceConfig, SdsConfig};
use crate::service::{self, Job, MakeNode};
use crate::spec::DeviceSpec;
use anyhow::{Result, bail};
use base::Limits;
use node::sds::{self, Sds};
use rt::{DiskSpec, ListenAddr, Listener, Seat};
use seam::Port;
use std::net::SocketAddr;

/// Runs until it is told to stop: one server, or several on one shard.
pub fn run(configs: &[SdsConfig]) -> Result<()> {
    let Some((first, others)) = configs.split_first() else {
        bail!("a data server needs a configuration");
    };
    let mut parts = Vec::new();
    for config in configs {
        if config.device.is_empty() {
            bail!("{}: a data server needs at least one [[device]]", config.name);
        }
        // One for each server: it tells this life of it from others.
        let nonce = crate::random()?;
        for (shard, device) in config.device.iter().enumerate() {
            parts.push(part(config, shard as u32, device, nonce)?);
        }
    }
    let pid_files: Vec<_> = configs.iter().filter_map(|c| c.pid_file.clone()).collect();
    if others.is_empty() {
        let names = (0..parts.len()).map(|shard| format!("{}.{shard}", first.name));
        let jobs = names.zip(parts).map(|(name, part)| job(name, first, vec![part]));
        return service::run(&first.name, &pid_files, jobs.collect::<Result<_>>()?);
    }
    if let Some(other) =
        others.iter().find(|c| (c.backend, c.tcp_only) != (first.backend, first.tcp_only))
    {
        let (a, b) = (&first.name, &other.name);
        bail!("{a} and {b} share a shard: give them the same `backend` and `tcp_only`");
    }
    if let Some(other) =
        others.iter().find(|c| configs.iter().filter(|d| d.name == c.name).count() > 1)
    {
        bail!("two of these servers are called {}", other.name);
    }
    let role = format!("{}+{}", first.name, others.len());
    service::run(&role, &pid_files, vec![job(role.clone(), first, parts)?])
}

/// What one device gives to a shard.
struct Part {
    seat: Seat,
    node: MakeNode<Sds>,
    pin: Option<usize>,
}

fn job(name: String, config: &SdsConfig, parts: Vec<Part>) -> Result<Job<Sds>> {
    let pin = parts.first().and_then(|p| p.pin);
    if parts.iter().any(|p| p.pin != pin) {
        bail!(
            "servers that share a shard stay on the same core: give their devices the same `pin`"
        );
    }
    let (seats, nodes) = parts.into_iter().map(|p| (p.seat, p.node)).unzip();
    let config = rt::Config {
        backend: config.backend.0,
        local: !config.tcp_only,
        seats,
        pin,
        seed: crate::random()?,
        ..rt::Config::default()
    };
    Ok(Job { name, config, nodes })
}

fn part(config: &SdsConfig, shard: u32, device: &DeviceConfig, nonce: u64) -> Result<Part> {
    if device.listen.ip().is_unspecified() && device.advertise.is_none() {
        bail!(
            "device {shard} listens on {}: say with `advertise` which address others dial",
            device.listen
        );
    }
    let (disk, kind) = match device.spec {
        DeviceSpec::Ram(size) => {
            (DiskSpec::Ram(size.0), sds::DeviceConfig::Ram { capacity: size.0 })
        }
        DeviceSpec::Null(size) => {
            (DiskSpec::Null(size.0), sds::DeviceConfig::Null { capacity: size.0 })
        }
    };
    let (name, mdm, advertise) = (config.name.clone(), config.mdm.clone(), device.advertise);
    let listen = device.listen;
    let node = move |at: &[ListenAddr]| {
        Sds::new(sds::SdsConfig {
            name,
            shard,
            mdm,
            address: advertise.unwrap_or_else(|| bound(at).unwrap_or(listen)),
            device: kind,
            nonce,
            pid: std::process::id(),
            limits: Limits::SHIPPED,
        })
    };
    let listeners = vec![Listener { port: Port::Peer, at: listen.into() }];
    Ok(Part { seat: Seat { listeners, disks: vec![disk] }, node: Box::new(node), pin: device.pin })
}

/// The real address, when the kernel has chosen the port.
fn bound(at: &[ListenAddr]) -> Option<SocketAddr> {
    at.first().and_then(ListenAddr::tcp)
}
