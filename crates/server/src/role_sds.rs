//! Runs a data server: one shard per device.

use crate::config::{DeviceConfig, SdsConfig};
use crate::service::{self, Job};
use crate::spec::DeviceSpec;
use anyhow::{Result, bail};
use base::Limits;
use node::sds::{self, Sds};
use rt::{DiskSpec, ListenAddr, Listener};
use seam::Port;
use std::net::SocketAddr;
use wire::control::DeviceKind;

/// Runs until it is told to stop.
pub fn run(config: SdsConfig) -> Result<()> {
    if config.device.is_empty() {
        bail!("a data server needs at least one [[device]]");
    }
    // One for the process: it tells this life of the server from others.
    let nonce = crate::random()?;
    let mut jobs = Vec::new();
    for (shard, device) in config.device.iter().enumerate() {
        jobs.push(job(&config, shard as u32, device, nonce)?);
    }
    service::run(&config.name, config.pid_file.as_deref(), jobs)
}

fn job(config: &SdsConfig, shard: u32, device: &DeviceConfig, nonce: u64) -> Result<Job<Sds>> {
    if device.listen.ip().is_unspecified() && device.advertise.is_none() {
        bail!(
            "device {shard} listens on {}: say with `advertise` which address others dial",
            device.listen
        );
    }
    let (disk, kind, capacity) = match device.spec {
        DeviceSpec::Ram(size) => (DiskSpec::Ram(size.0), DeviceKind::Ram, size.0),
        DeviceSpec::Null(size) => (DiskSpec::Null(size.0), DeviceKind::Null, size.0),
    };
    let (name, mdm, advertise) = (config.name.clone(), config.mdm.clone(), device.advertise);
    // Drawn anew: what lies in memory is gone with the process that wrote it.
    let (listen, store) = (device.listen, crate::random()?);
    let node = move |at: &[ListenAddr]| {
        Sds::new(sds::SdsConfig {
            name,
            shard,
            mdm,
            address: advertise.unwrap_or_else(|| bound(at).unwrap_or(listen)),
            kind,
            capacity,
            nonce,
            store,
            pid: std::process::id(),
            limits: Limits::SHIPPED,
        })
    };
    Ok(Job {
        name: format!("{}.{shard}", config.name),
        config: rt::Config {
            backend: config.backend.0,
            pin: device.pin,
            seed: crate::random()?,
            ..rt::Config::of(vec![Listener { port: Port::Peer, at: listen.into() }], vec![disk])
        },
        nodes: vec![Box::new(node)],
    })
}

/// The real address, when the kernel has chosen the port.
fn bound(at: &[ListenAddr]) -> Option<SocketAddr> {
    at.first().and_then(ListenAddr::tcp)
}
