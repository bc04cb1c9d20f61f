//! Runs a data client: one shard that serves volumes over NBD, iSCSI and NVMe/TCP.

use crate::config::{self, NbdAddress, SdcConfig};
use crate::service::{self, Job, Place};
use crate::{safety, secrets};
use anyhow::Result;
use base::Limits;
use node::sdc::{self, Sdc};
use rt::{ListenAddr, Listener};
use seam::Port;
use std::io::{Write, stderr};
use std::num::NonZeroU32;
use std::time::Duration;

/// Runs until the process is told to stop.
pub fn run(config: SdcConfig) -> Result<()> {
    if config.protect_memory {
        for warning in safety::protect() {
            let _ = writeln!(stderr(), "{warning}");
        }
    }
    let chap = config.iscsi_secrets.as_deref().map(secrets::chap).transpose()?;
    let dhchap = config.nvme_secrets.as_deref().map(secrets::dhchap).transpose()?;
    let nbd = config.nbd.iter().map(|a| Listener { port: sdc::NBD, at: a.0.clone() });
    let iscsi = config.iscsi.iter().map(|at| Listener { port: sdc::ISCSI, at: (*at).into() });
    let nvme = config.nvme.iter().map(|at| Listener { port: sdc::NVME, at: (*at).into() });
    let listeners: Vec<Listener> = nbd.chain(iscsi).chain(nvme).collect();
    let ports: Vec<Port> = listeners.iter().map(|listener| listener.port).collect();
    let shard = rt::Config {
        backend: config.backend.0,
        local: !config.tcp_only,
        spin: config::spin(config.spin_us),
        pin: config.pin,
        seed: crate::random()?,
        ..rt::Config::of(listeners, Vec::new())
    };
    let nonce = crate::random()?;
    let (name, mdm) = (config.name.clone(), config.mdm);
    let seconds = config.io_timeout_seconds.map_or(0, NonZeroU32::get);
    let answer_within = Duration::from_secs(seconds.into());
    // These addresses have the actual ports, even if the kernel chose them.
    let node = move |place: &Place| {
        Sdc::new(sdc::SdcConfig {
            name,
            mdm,
            uris: uris(&place.at, &ports),
            chap,
            dhchap,
            format: config.iscsi_sectors.0,
            nonce,
            pid: std::process::id(),
            limits: Limits { answer_within, ..Limits::SHIPPED },
            dialect: wire::DIALECT,
        })
    };
    let job = Job::new(config.name.clone(), shard, vec![Box::new(node)]);
    service::run(&config.name, config.pid_file.as_slice(), vec![job], None)
}

/// Returns the URIs of the addresses at which these ports listen.
fn uris(at: &[ListenAddr], ports: &[Port]) -> Vec<String> {
    let uri = |(at, port): (&ListenAddr, &Port)| match (*port, at) {
        (sdc::ISCSI, ListenAddr::Tcp(at)) => config::iscsi_uri(at),
        (sdc::NVME, ListenAddr::Tcp(at)) => config::nvme_uri(at),
        _ => NbdAddress(at.clone()).uri(),
    };
    at.iter().zip(ports).map(uri).collect()
}
