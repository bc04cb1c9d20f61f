//! Runs a metadata manager: one shard, with its log as the only device.

use crate::config::{self, MdmConfig};
use crate::files;
use crate::service::{self, Job, Running};
use anyhow::{Context, Result};
use base::Limits;

use node::mdm::{Config, LOG_AREAS, LOG_IMAGE_MAX, Mdm, log_image_len};
use rt::{DiskSpec, Listener};
use seam::Port;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Minimum room for the log's image, in addition to the log that follows it, in bytes.
const IMAGE: u64 = 8 << 20;
/// Length of an area's header in bytes.
const HEADER: usize = 4 << 10;

/// Runs until the process is told to stop.
pub fn run(config: &MdmConfig) -> Result<()> {
    let again = |_: Running<'_>| Ok(vec![job(config)?]);
    let jobs = vec![job(config)?];
    service::run("mdm", config.pid_file.as_slice(), jobs, Some(Box::new(again)))
}

/// Makes the one shard.
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
            vec![Listener { port: Port::Ours, at: config.listen.into() }],
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
    // The reservation keeps orders and the status working when others fill the file system.
    let areas = [LOG_AREAS[0], LOG_AREAS[1]];
    let area = limits.mdm_log + room_for(image(&config.log, areas));
    let reserved = files::reserve(&config.log, &areas.map(|at| at..at + area));
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
            dialect: wire::DIALECT,
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

/// Returns the length in bytes of the longest image in these areas of a log; 0 if there is none.
fn image(log: &Path, areas: [u64; 2]) -> u64 {
    let Ok(log) = File::open(log) else { return 0 };
    let image = |at| {
        let mut header = [0; HEADER];
        log.read_exact_at(&mut header, at).map_or(0, |()| log_image_len(&header))
    };
    areas.map(image).into_iter().max().unwrap_or(0)
}

/// Returns the bytes to reserve for an image of this length: it may double until the next start.
fn room_for(image: u64) -> u64 {
    image.saturating_mul(2).clamp(IMAGE, LOG_IMAGE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_image_has_room_for_twice_as_much() {
        assert_eq!(image(Path::new("/nowhere/at/all"), [0, 1 << 30]), 0);
        assert_eq!([0, 1 << 20, 4 << 20].map(room_for), [IMAGE; 3]);
        assert_eq!(room_for(20 << 20), 40 << 20);
        assert_eq!(room_for(4 << 30), LOG_IMAGE_MAX);
    }
}
