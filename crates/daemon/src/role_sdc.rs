//! Runs a data client: one shard that serves volumes over NBD.

use crate::config::{self, NbdAddress, SdcConfig};
use crate::service::{self, Job, Place};
use anyhow::Result;
use base::Limits;
use node::sdc::{self, Sdc};
use rt::Listener;
use std::num::NonZeroU32;
use std::time::Duration;

/// Runs until the process is told to stop.
pub fn run(config: SdcConfig) -> Result<()> {
    let listeners =
        config.nbd.iter().map(|a| Listener { port: node::sdc::NBD, at: a.0.clone() }).collect();
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
    // These addresses have the real ports, also where the kernel chose them.
    let node = move |place: &Place| {
        Sdc::new(sdc::SdcConfig {
            name,
            mdm,
            nbd_uris: place.at.iter().map(|at| NbdAddress(at.clone()).uri()).collect(),
            nonce,
            pid: std::process::id(),
            limits: Limits { answer_within, ..Limits::SHIPPED },
            dialect: wire::DIALECT,
        })
    };
    let job = Job::new(config.name.clone(), shard, vec![Box::new(node)]);
    service::run(&config.name, config.pid_file.as_slice(), vec![job], None)
}
