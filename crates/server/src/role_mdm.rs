//! Runs a metadata manager: one shard, with its log as the only device.

use crate::config::{self, MdmConfig};
use crate::files;
use crate::service::{self, Job};
use anyhow::{Context, Result};
use base::Limits;
use node::mdm::{Config, Mdm};
use rt::{DiskSpec, Listener};
use seam::Port;
use std::time::Duration;

/// Runs until it is told to stop.
pub fn run(config: MdmConfig) -> Result<()> {
    if let Some(folder) = config.log.parent() {
        files::make_folder(folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    let shard = rt::Config {
        backend: config.backend.0,
        local: !config.tcp_only,
        spin: config::spin(config.spin_us),
        seed: crate::random()?,
        ..rt::Config::of(
            vec![Listener { port: Port::Peer, at: config.listen.into() }],
            vec![DiskSpec::Growing { path: config.log }],
        )
    };
    let mut limits = Limits::SHIPPED;
    if let Some(seconds) = config.rebuild_after_seconds {
        limits.rebuild_after = Duration::from_secs(seconds.into());
    }
    if let Some(seconds) = config.quarantine_seconds {
        limits.quarantine = Duration::from_secs(seconds.into());
    }
    let address = config.advertise.unwrap_or(config.listen);
    let (name, join) = (config.name.clone(), config.join);
    let node = move || {
        Mdm::new(Config {
            name: name.clone(),
            address,
            join,
            cluster: None,
            limits: limits.clone(),
            pid: std::process::id(),
        })
    };
    let job = Job::new("mdm".into(), shard, vec![Box::new(move |_| node())]);
    service::run("mdm", config.pid_file.as_slice(), vec![job], None)
}
