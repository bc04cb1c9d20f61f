//! Runs a data server with one shard per device, or several data servers on one shard.
//!
//! Servers that share a shard have sockets, devices and an identity of their own, as if each had a
//! process. They share only the event loop, and they stop together.

use crate::config::{self, DeviceConfig, SdsConfig};
use crate::content::{self, Content};
use crate::device_watch::DeviceWatch;
use crate::service::{self, Job, MakeNode, Place, Running};
use crate::spec::DeviceSpec;
use anyhow::{Context, Result, bail};
use base::Limits;
use node::sds::{self, DurableConfig, Sds};
use rt::{DiskSpec, ListenAddr, Listener, Seat};
use seam::Port;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use store::durable::Tuning;

/// Runs the server of each file until the process is told to stop: one server alone, or several on
/// one shard. A SIGHUP makes a server that runs alone read its file again.
pub fn run(files: &[PathBuf], backend: Option<rt::Backend>) -> Result<()> {
    let configs = read(files, backend)?;
    let Some((first, others)) = configs.split_first() else {
        bail!("a data server needs a configuration");
    };
    let pid_files: Vec<_> = configs.iter().filter_map(|c| c.pid_file.clone()).collect();
    if others.is_empty() {
        let again = |runs: Running<'_>| {
            let now = &read(files, backend)?[0];
            let mut jobs = jobs(now, runs)?;
            jobs[0].notices.extend(elsewhere(first, now));
            Ok(jobs)
        };
        let jobs = jobs(first, &|_| None)?;
        return service::run(&first.name, &pid_files, jobs, Some(Box::new(again)));
    }
    let job = shared(&configs)?;
    service::run(&job.name.clone(), &pid_files, vec![job], None)
}

/// Returns a warning if the new file places a running server or device elsewhere.
fn elsewhere(before: &SdsConfig, now: &SdsConfig) -> Option<String> {
    let pools = |config: &SdsConfig| -> BTreeMap<u32, Option<String>> {
        config.shards().map(|(shard, device)| (shard, device.pool.clone())).collect()
    };
    let (had, has) = (pools(before), pools(now));
    let pool = |(shard, pool): (&u32, &Option<String>)| has.get(shard).is_some_and(|p| p != pool);
    let mut what = Vec::new();
    what.extend((before.domain != now.domain).then_some("`domain`"));
    what.extend((before.fault_set != now.fault_set).then_some("`fault_set`"));
    what.extend(had.iter().any(pool).then_some("the `pool` of a device"));
    (!what.is_empty()).then(|| {
        format!(
            "the file names another {}: that counts only when a server or device comes for the \
             first time, and what is there stays where it is. To move it, remove it (`gabion sds \
             remove`, `gabion device remove`) and add it again",
            what.join(", ")
        )
    })
}

fn read(files: &[PathBuf], backend: Option<rt::Backend>) -> Result<Vec<SdsConfig>> {
    let read = |file: &PathBuf| {
        let mut config: SdsConfig = config::read(file)?;
        config.backend.0 = backend.unwrap_or(config.backend.0);
        Ok(config)
    };
    files.iter().map(read).collect()
}

/// Makes one shard for each device of a server.
fn jobs(config: &SdsConfig, runs: Running<'_>) -> Result<Vec<Job<Sds>>> {
    let name = |shard: u32| format!("{}.{shard}", config.name);
    let parts = parts(config, |shard| runs(&name(shard)))?;
    parts.into_iter().map(|(shard, part)| job(name(shard), config, vec![part])).collect()
}

/// Makes one shard for all devices of several servers.
fn shared(configs: &[SdsConfig]) -> Result<Job<Sds>> {
    let (first, others) = configs.split_first().context("there is a server")?;
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
    let mut all = Vec::new();
    for config in configs {
        all.extend(parts(config, |_| None)?.into_iter().map(|(_, part)| part));
    }
    job(format!("{}+{}", first.name, others.len()), first, all)
}

/// Returns the parts of a shard for each device of a server.
fn parts(config: &SdsConfig, runs: impl Fn(u32) -> Option<u64>) -> Result<Vec<(u32, Part)>> {
    if config.device.is_empty() {
        bail!("{}: a data server needs at least one [[device]]", config.name);
    }
    let mut parts: Vec<(u32, Part)> = Vec::new();
    for (shard, device) in config.shards() {
        if parts.iter().any(|(other, _)| *other == shard) {
            bail!("{}: two devices have `shard = {shard}`", config.name);
        }
        parts.push((shard, part(config, shard, device, runs(shard))?));
    }
    Ok(parts)
}

/// The parts of a shard that come from one device.
struct Part {
    seat: Seat,
    node: MakeNode<Sds>,
    pin: Option<usize>,
    notice: Option<String>,
    grown: bool,
    file: Option<PathBuf>,
}

fn job(name: String, config: &SdsConfig, parts: Vec<Part>) -> Result<Job<Sds>> {
    let pin = parts.first().and_then(|p| p.pin);
    if parts.iter().any(|p| p.pin != pin) {
        bail!(
            "servers that share a shard stay on the same core: give their devices the same `pin`"
        );
    }
    let grown = parts.iter().any(|p| p.grown);
    let notices = parts.iter().filter_map(|p| p.notice.clone()).collect();
    let file = parts.iter().find_map(|p| p.file.clone());
    // A server that shares a shard can't end alone, so only a single device is watched.
    let device_watch = file.clone().filter(|_| parts.len() == 1).map(DeviceWatch::new);
    let (seats, nodes) = parts.into_iter().map(|p| (p.seat, p.node)).unzip();
    let config = rt::Config {
        backend: config.backend.0,
        local: !config.tcp_only,
        spin: config::spin(config.spin_us),
        seats,
        pin,
        seed: crate::random()?,
        ..rt::Config::default()
    };
    Ok(Job { notices, grown, file, device_watch, ..Job::new(name, config, nodes) })
}

/// Prepares one device. `runs` is the size in bytes with which it was opened, if it is in use.
fn part(config: &SdsConfig, shard: u32, device: &DeviceConfig, runs: Option<u64>) -> Result<Part> {
    if device.listen.ip().is_unspecified() && device.advertise.is_none() {
        bail!(
            "device {shard} listens on {}: set `advertise` to the address that others dial",
            device.listen
        );
    }
    let (name, mdm, advertise) = (config.name.clone(), config.mdm.clone(), device.advertise);
    let (spec, replace, listen) = (device.spec.clone(), device.replace, device.listen);
    let (notice, grown) = match enlarged(&spec) {
        Ok(bytes) => (None, runs.is_some_and(|had| had > 0 && bytes > had)),
        Err(error) => (Some(format!("{spec} is used with the size that it has: {error:#}")), false),
    };
    // Only an empty path may be formatted, so that no data is destroyed. A device in use is not
    // examined: it is locked, and the check would wait for the lock.
    let path = spec.path().filter(|_| runs.is_none());
    let format = path.is_some_and(|path| matches!(content::of(path), Ok(Content::Nothing)));
    // The nonce identifies this start of the shard; a newly formatted device gets the uuid.
    let (nonce, uuid) = (crate::random()?, [crate::random()?, crate::random()?]);
    let disk = match &spec {
        DeviceSpec::File(path, size) => DiskSpec::file(path, size.map(|s| s.0)),
        DeviceSpec::Block(path) => DiskSpec::block(path),
        DeviceSpec::Ram(size) => DiskSpec::Ram(size.0),
        DeviceSpec::Null(size) => DiskSpec::Null(size.0),
    };
    let home = sds::Home {
        domain: config.domain.clone().unwrap_or_default(),
        fault_set: config.fault_set.clone().unwrap_or_default(),
        pool: device.pool.clone().unwrap_or_default(),
    };
    let file = spec.path().map(Path::to_owned);
    let node = move |place: &Place| {
        let bytes = place.disk_bytes;
        let device = match spec {
            DeviceSpec::Ram(_) => sds::DeviceConfig::Ram { capacity: bytes },
            DeviceSpec::Null(_) => sds::DeviceConfig::Null { capacity: bytes },
            DeviceSpec::File(..) | DeviceSpec::Block(_) => {
                let mut tuning = Tuning::SHIPPED;
                if matches!(spec, DeviceSpec::Block(_)) {
                    // A disk is Gabion's alone: nobody else would use what is given back. And many
                    // disks would write zeros for it.
                    tuning.holes = 0;
                }
                sds::DeviceConfig::Durable(DurableConfig { bytes, format, replace, uuid, tuning })
            }
        };
        Sds::new(sds::SdsConfig {
            name,
            shard,
            mdm,
            address: advertise.unwrap_or_else(|| bound(&place.at).unwrap_or(listen)),
            device,
            home,
            nonce,
            pid: std::process::id(),
            limits: Limits::SHIPPED,
            dialect: wire::DIALECT,
        })
    };
    let listeners = vec![Listener { port: Port::Ours, at: listen.into() }];
    let seat = Seat { listeners, disks: vec![disk] };
    Ok(Part { seat, node: Box::new(node), pin: device.pin, notice, grown, file })
}

/// Enlarges a file to its configured size, if it is smaller. Returns the size of the device.
fn enlarged(spec: &DeviceSpec) -> Result<u64> {
    match spec {
        DeviceSpec::File(path, Some(size)) => content::enlarge(path, size.0),
        // Whatever is wrong with it is reported when the device is opened.
        DeviceSpec::File(path, None) | DeviceSpec::Block(path) => {
            Ok(content::bytes(path).unwrap_or_default())
        }
        DeviceSpec::Ram(_) | DeviceSpec::Null(_) => Ok(0),
    }
}

/// Returns the bound address, which has the real port when the kernel chose it.
fn bound(at: &[ListenAddr]) -> Option<SocketAddr> {
    at.first().and_then(ListenAddr::tcp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SDS_EXAMPLE;

    #[test]
    fn a_changed_pool_or_fault_set_of_an_existing_device_is_reported_as_without_effect() {
        let config = |text: &str| toml::from_str::<SdsConfig>(text).unwrap();
        let before = config(SDS_EXAMPLE);
        assert_eq!(elsewhere(&before, &before), None);
        let mut now = before.clone();
        now.device[0].pool = Some("fast".into());
        let text = elsewhere(&before, &now).unwrap();
        assert!(text.contains("the `pool` of a device") && !text.contains("fault_set"), "{text}");
        now.fault_set = Some("rack2".into());
        assert!(elsewhere(&before, &now).unwrap().contains("`fault_set`, the `pool`"));
        // A device that is new in the file goes to the place that the file names.
        let mut more = before.clone();
        more.device.push(DeviceConfig { shard: Some(7), ..now.device[0].clone() });
        assert_eq!(elsewhere(&before, &more), None);
    }
}
