//! Runs a metadata manager: one shard, with its log as the only device.

use crate::config::{self, MdmConfig};
use crate::files;
use crate::service::{self, Job, Running};
use anyhow::{Context, Result};
use base::Limits;

use node::mdm::{Config, LOG_AREAS, Mdm};
use rt::{DiskSpec, Listener};
use seam::Port;
use std::time::Duration;

/// What the log's image may need, beside what comes after it, in bytes.
const IMAGE: u64 = 8 << 20;

/// Runs until it is told to stop.
pub fn run(config: &MdmConfig) -> Result<()> {
    let again = |_: Running<'_>| Ok(vec![job(config)?]);
    let jobs = vec![job(config)?];
    service::run("mdm", config.pid_file.as_slice(), jobs, Some(Box::new(again)))
}

/// The one shard.
fn job(config: &MdmConfig) -> Result<Job<Mdm>> {
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
            vec![DiskSpec::Growing { path: config.log.clone() }],
        )
    };
    let mut limits = Limits::SHIPPED;
    if let Some(seconds) = config.rebuild_after_seconds {
        limits.rebuild_after = Duration::from_secs(seconds.into());
    }
    if let Some(seconds) = config.quarantine_seconds {
        limits.quarantine = Duration::from_secs(seconds.into());
    }
    // A file system that others fill leaves the MDM its room: orders and status go on.
    let area = limits.mdm_log + IMAGE;
    let reserved =
        files::reserve(&config.log, &[LOG_AREAS[0], LOG_AREAS[1]].map(|at| at..at + area));
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
    let notice = reserved.err().map(|why| {
        format!(
            "no room could be reserved for {} ({why}): on a full file system it can't go on",
            config.log.display()
        )
    });
    let (notices, file) = (notice.into_iter().collect(), Some(config.log.clone()));
    Ok(Job { notices, file, ..job })
}
