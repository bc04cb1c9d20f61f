//! The devices of a data server: list, add, import, remove.
//!
//! The server's configuration is authoritative. A command changes the file and makes the process
//! read it again with SIGHUP. The MDM's status then shows the result.

use super::probe;
use crate::removal::{Removal, What};
use crate::table::{right, table};
use crate::target::Target;
use crate::{cluster, lines, ports, room};
use admin::exit::Exit;
use admin::report::{Device, Report, UpDown};
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::config::{self, DeviceConfig, SdsConfig};
use daemon::content::{self, Content};
use daemon::offline::{self, Offline};
use daemon::process::Process;
use daemon::size::Size;
use daemon::spec::DeviceSpec;
use rustix::process::Signal;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::durable::Tuning;

/// Time that a device gets to be mounted, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server whose devices are changed.
#[derive(Args, Debug)]
pub struct Server {
    /// The server's number or name, in a cluster that `gabion up` runs here
    #[arg(long, value_name = "N", required_unless_present = "config")]
    sds: Option<String>,
    /// The server's configuration, on its own host
    #[arg(long, value_name = "FILE", conflicts_with = "sds")]
    config: Option<PathBuf>,
    /// Where the new device's thread listens [default: a free port on the address of the others]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
}

/// A server's configuration, its process and its cluster.
pub(super) struct Found {
    pub file: PathBuf,
    pub config: SdsConfig,
    pub target: Target,
    /// `None` if it does not run.
    process: Option<Process>,
    /// Its log, and the length of the log when the command began; `None` if the log is not known.
    log: Option<(PathBuf, u64)>,
}

impl Server {
    /// Returns true for a server that `gabion up` runs here.
    pub fn is_local(&self) -> bool {
        self.sds.is_some()
    }

    /// Finds a server that runs.
    pub(super) fn find(&self, target: &Target) -> Result<Found> {
        let found = self.find_file(target)?;
        if found.process.is_none() {
            bail!("{} does not run: start it first (`gabion sds start`)", found.config.name);
        }
        Ok(found)
    }

    /// Finds a server, whether it runs or not.
    fn find_file(&self, target: &Target) -> Result<Found> {
        let mut log = None;
        let file = match (&self.config, &self.sds) {
            (Some(file), _) => file.clone(),
            (None, Some(which)) => {
                let dir = target.local()?;
                let name = cluster::sds_name(&dir, which)?;
                if cluster::sharing_process(&dir, &name)?.len() > 1 {
                    bail!(
                        "{name} shares its process with others: start the cluster without \
                         --sds-per-process"
                    );
                }
                let file = dir.output_file(&name);
                log = std::fs::metadata(&file).ok().map(|found| (file, found.len()));
                dir.config_file(&name)
            }
            (None, None) => bail!("say whose device it is: --sds N, or --config FILE"),
        };
        let config: SdsConfig = config::read(&file)?;
        let pid_file = config.pid_file.as_ref().with_context(|| {
            format!("{} names no `pid_file`: without it the process can't be found", file.display())
        })?;
        let process = Process::read(pid_file).filter(Process::is_alive);
        let mut target = target.clone();
        if self.config.is_some() && target.mdm.is_empty() {
            target.mdm = config.mdm.clone();
        }
        Ok(Found { file, config, target, process, log })
    }
}

impl Found {
    /// Writes the configuration, and makes the server read it, if it runs.
    pub(crate) fn change(&self) -> Result<()> {
        config::write(&self.file, &self.config)?;
        let Some(process) = &self.process else { return Ok(()) };
        if !process.signal(Signal::HUP)? {
            bail!(
                "{} has just ended; its file {} is changed",
                self.config.name,
                self.file.display()
            );
        }
        Ok(())
    }

    /// Waits until the MDM shows this device in this state.
    fn wait(&self, shard: u32, state: UpDown) -> Result<Device> {
        let refusable = state == UpDown::Up;
        self.wait_for(shard, &format!("is not {state}"), refusable, |d| d.state == state)
    }

    /// Waits until the MDM shows this device as `wanted`. If that takes too long, the error
    /// contains `yet`, which says what is missing. With `refusable`, fails as soon as the server's
    /// log says why the server gave the device up.
    pub(crate) fn wait_for(
        &self,
        shard: u32,
        yet: &str,
        refusable: bool,
        wanted: impl Fn(&Device) -> bool,
    ) -> Result<Device> {
        let (name, deadline) = (&self.config.name, Instant::now() + PATIENCE);
        loop {
            let report = self.target.report()?;
            let mut devices = devices(&report, name).iter();
            if let Some(device) = devices.find(|d| d.shard == shard && wanted(d)) {
                return Ok(device.clone());
            }
            if let Some(why) = self.refusal(shard).filter(|_| refusable) {
                bail!("{name}: {why}");
            }
            if !self.process.as_ref().is_some_and(Process::is_alive) {
                bail!("{name} has ended: see its log");
            }
            if Instant::now() > deadline {
                bail!("{name}'s device {shard} {yet} after {PATIENCE:?}: see the server's log");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the index of a device in the configuration's list.
    pub(crate) fn place(&self, device: &Device) -> Result<usize> {
        let at = self.config.shards().position(|(shard, _)| shard == device.shard);
        let (file, Device { id, shard, .. }) = (self.file.display(), device);
        at.with_context(|| format!("{file} doesn't name dev{id} (device {shard})"))
    }

    /// Returns why the server gave up this device, if its log has said so since the command began.
    fn refusal(&self, shard: u32) -> Option<String> {
        let (file, from) = self.log.as_ref()?;
        let text = std::fs::read(file).ok()?;
        let text = String::from_utf8_lossy(text.get(*from as usize..)?).into_owned();
        let named = format!(" {}.{shard}: ", self.config.name);
        let mut told = text.lines().filter_map(|line| line.split_once(&named));
        told.find_map(|(_, why)| Some(why.strip_suffix(daemon::OTHERS_GO_ON)?.to_owned()))
    }

    /// Adds a device to the configuration and waits until it is up. Otherwise removes it again.
    fn enter(
        &mut self,
        spec: DeviceSpec,
        listen: Option<SocketAddr>,
        replaced: Option<u32>,
        pool: Option<String>,
    ) -> Result<Device> {
        let before = self.config.clone();
        let shard = self.note(spec, listen, replaced, pool)?;
        self.wait(shard, UpDown::Up).or_else(|error| {
            self.config = before;
            self.change()?;
            Err(error)
        })
    }

    /// Adds a device to the configuration, in place of `replaced` if given. Returns its shard.
    fn note(
        &mut self,
        spec: DeviceSpec,
        listen: Option<SocketAddr>,
        replaced: Option<u32>,
        pool: Option<String>,
    ) -> Result<u32> {
        number(&mut self.config);
        // Shard numbers of earlier devices are not reused, because these may come back.
        let report = self.target.report()?;
        let known = devices(&report, &self.config.name).iter().map(|d| d.shard);
        let used = self.config.shards().map(|(shard, _)| shard).chain(known);
        let unused = used.max().map_or(0, |shard| shard + 1);
        let first = self.config.device.first().context("a server has a device")?;
        let (advertise, near) = (first.advertise, first.listen.ip());
        let listen = match listen {
            Some(listen) => listen,
            None => (near, ports::free(1)?[0].port()).into(),
        };
        let advertise = advertise.map(|a| (a.ip(), listen.port()).into());
        let shard = replaced.unwrap_or(unused);
        self.config.device.retain(|d| d.shard != Some(shard));
        self.config.device.push(DeviceConfig {
            pool,
            shard: Some(shard),
            spec,
            replace: replaced.is_some(),
            listen,
            advertise,
            pin: None,
        });
        self.change()?;
        Ok(shard)
    }
}

/// Writes each device's shard number into the configuration, so that it stays the same when devices
/// are added or removed.
pub(super) fn number(config: &mut SdsConfig) {
    for (place, device) in (0..).zip(&mut config.device) {
        device.shard.get_or_insert(place);
    }
}

/// Returns a server's devices that the MDM knows.
fn devices<'a>(report: &'a Report, sds: &str) -> &'a [Device] {
    report.sds.iter().find(|s| s.process_name == sds).map_or(&[], |s| &s.devices)
}

/// Returns a server's device with this id.
pub(super) fn device<'a>(report: &'a Report, sds: &str, id: u32) -> Result<&'a Device> {
    let device = devices(report, sds).iter().find(|d| d.id == id);
    device.with_context(|| format!("{sds} has no device {id}: `gabion device list` names them"))
}

/// Checks that a new device's storage pool exists, and that it is given if there are several. A
/// replacement is in the pool of the device that it replaces.
fn check_pool(report: &Report, sds: &str, pool: Option<&str>, replaces: bool) -> Result<()> {
    if let Some(pool) = pool.filter(|name| report.storage_pools.iter().all(|p| p.name != *name)) {
        bail!("there is no storage pool `{pool}`: `gabion pool list` shows those that exist");
    }
    let server = report.sds.iter().find(|s| s.process_name == sds);
    let domain = server.map(|s| s.protection_domain.as_str());
    let pools =
        report.storage_pools.iter().filter(|p| domain.is_none_or(|d| p.protection_domain == d));
    let names: Vec<&str> = pools.map(|p| p.name.as_str()).collect();
    if pool.is_none() && !replaces && names.len() > 1 {
        bail!("there are several storage pools ({}): say which, with --pool", names.join(", "));
    }
    Ok(())
}

/// Runs `gabion device add`.
// Long: one order, with the checks before it and the steps after it.
pub fn add(
    target: &Target,
    server: &Server,
    spec: &DeviceSpec,
    pool: Option<String>,
    replace: Option<u32>,
    force: bool,
) -> Result<Exit> {
    // If the lost device is the server's only one, the server can't run.
    let mut found = match replace {
        Some(_) => server.find_file(target)?,
        None => server.find(target)?,
    };
    let spec = spec.clone().absolute()?;
    let report = found.target.report()?;
    check_pool(&report, &found.config.name, pool.as_deref(), replace.is_some())?;
    let replaced =
        replace.map(|id| given_up(&report, &found.config.name, id, force)).transpose()?;
    refuse_twice(&found.config, &spec, replaced)?;
    if let Some(path) = spec.path() {
        let cluster = report.cluster;
        if matches!(spec, DeviceSpec::Block(_)) && !path.exists() {
            bail!("there is no {}: is the disk connected?", path.display());
        }
        let content = content::of(path)?;
        content::check_place(&spec)?;
        match content {
            Content::Nothing => {}
            Content::Device { cluster: None } if !force => bail!(
                "{} holds a device that can't be read (`gabion inspect` says why): --force would \
                 destroy it",
                path.display()
            ),
            Content::Device { cluster: Some(of) } if of == cluster && !force => bail!(
                "{} holds a device of this cluster: `gabion device import` brings it back with its \
                 data; --force would destroy that",
                path.display()
            ),
            Content::Device { cluster: Some(of) } if !force => bail!(
                "{} holds a device of cluster {of}: use it there, or destroy it with --force",
                path.display()
            ),
            Content::Foreign if !force => bail!(
                "{} is not empty, and what is on it is not Gabion's: --force would destroy it",
                path.display()
            ),
            Content::Device { .. } | Content::Foreign => content::erase(path)?,
        }
        if let DeviceSpec::File(path, Some(size)) = &spec {
            let others = found.config.device.iter().filter_map(|d| match &d.spec {
                DeviceSpec::File(path, size) => Some((path.clone(), size.as_ref()?.0)),
                _ => None,
            });
            let all: Vec<_> = others.chain([(path.clone(), size.0)]).collect();
            room::warnings(&all).iter().for_each(|line| println!("{line}"));
        }
        let probed = probe::probe(path, force)?;
        if probed.verdict.is_refused() && !force {
            print!("{}", probed.text());
            bail!("{} can't be trusted with data: not added (--force does)", path.display());
        }
    }
    if let (None, Some(id)) = (&found.process, replace) {
        let name = found.config.name.clone();
        found.note(spec.clone(), server.listen, replaced, pool)?;
        println!("{name} takes {spec} in the place of dev{id} when it is started.");
        match &server.config {
            None => println!("Start it with `gabion sds start {name}`."),
            Some(file) => println!("Then take `replace` out of {} again.", file.display()),
        }
        return Ok(Exit::Ok);
    }
    let device = found.enter(spec, server.listen, replaced, pool)?;
    cluster::forget_replaced(&found.file)?;
    println!(
        "dev{} of {} is there, with {}. {}",
        device.id,
        found.config.name,
        Size(device.capacity_bytes),
        match replaced {
            Some(_) => "It is filled from the other copies now: see `gabion status`.",
            None if device.waiting => "It gets data when it is admitted: `gabion device admit`.",
            None => "It gets its share of the data now, bit by bit: see `gabion status`.",
        }
    );
    Ok(Exit::Ok)
}

/// Returns the shard of a device that is to be replaced.
fn given_up(report: &Report, sds: &str, id: u32, force: bool) -> Result<u32> {
    let device = device(report, sds, id)?;
    if device.state == UpDown::Up {
        bail!("dev{id} works: `gabion device remove {id} --sds {sds} --now` takes it out first");
    }
    if device.last_copies > 0 && !force {
        bail!(
            "dev{id} has the only good copy of {} groups: their data would be lost. Bring it back \
             with `gabion device import`, or insist with --force",
            device.last_copies
        );
    }
    Ok(device.shard)
}

/// Runs `gabion device import`.
pub fn import(target: &Target, server: &Server, spec: &DeviceSpec) -> Result<Exit> {
    let mut found = server.find(target)?;
    let spec = match spec.clone().absolute()? {
        DeviceSpec::File(path, _) => DeviceSpec::File(path, None),
        other => other,
    };
    refuse_twice(&found.config, &spec, None)?;
    let Some(path) = spec.path() else {
        bail!("only files and block devices keep data that could be imported")
    };
    let cluster = found.target.report()?.cluster;
    match content::of(path)? {
        Content::Device { cluster: Some(of) } if of != cluster => {
            bail!("{} belongs to cluster {of}, this is {cluster}: import it there", path.display())
        }
        // Checks here what the server would refuse, so that the user gets the reason.
        Content::Device { .. } => {
            Offline::mount(offline::read_only(path)?, Tuning::SHIPPED)
                .with_context(|| path.display().to_string())?;
        }
        Content::Nothing if !path.exists() => {
            bail!("there is no {}: check the path, and that its disk is mounted", path.display())
        }
        Content::Nothing | Content::Foreign => {
            bail!("{} is not a Gabion device: `gabion device add` makes one of it", path.display())
        }
    }
    let device = found.enter(spec, server.listen, None, None)?;
    println!(
        "dev{} is back, in {}, with {} of data. It is brought up to date now: see `gabion status`.",
        device.id,
        found.config.name,
        Size(device.used_bytes)
    );
    Ok(Exit::Ok)
}

fn refuse_twice(config: &SdsConfig, spec: &DeviceSpec, replaced: Option<u32>) -> Result<()> {
    let path = spec.path();
    let mut others = config.shards().filter(|(shard, _)| Some(*shard) != replaced);
    if path.is_some() && others.any(|(_, d)| d.spec.path() == path) {
        bail!("{} has {spec} already", config.name);
    }
    Ok(())
}

/// Runs `gabion device remove`.
pub fn remove(target: &Target, server: &Server, id: u32, removal: Removal) -> Result<Exit> {
    let mut found = server.find(target)?;
    let report = found.target.report()?;
    let name = found.config.name.clone();
    let at = found.place(device(&report, &name, id)?)?;
    if !removal.run(&found.target, What::Device(id))? {
        return Ok(Exit::Ok);
    }
    if found.config.device.len() == 1 {
        println!("dev{id} is removed. It was the last device of {name}, which can be stopped.");
        return Ok(Exit::Ok);
    }
    number(&mut found.config);
    let gone = found.config.device.remove(at);
    found.change()?;
    println!("dev{id} is removed. {} holds nothing that is needed any more.", gone.spec);
    Ok(Exit::Ok)
}

/// Runs `gabion device remove --now`.
pub fn take_out(target: &Target, server: &Server, id: u32, force: bool) -> Result<Exit> {
    let mut found = server.find(target)?;
    let report = found.target.report()?;
    let name = found.config.name.clone();
    let device = device(&report, &name, id)?;
    if device.last_copies > 0 && !force {
        bail!(
            "dev{id} has the only good copy of {} groups: their data could not be used without it. \
             Wait for the resync (`gabion status`), or insist with --force",
            device.last_copies
        );
    }
    if found.config.device.len() == 1 {
        bail!("dev{id} is the last device of {name}: stop the server instead");
    }
    let at = found.place(device)?;
    number(&mut found.config);
    let gone = found.config.device.remove(at);
    found.change()?;
    found.wait(device.shard, UpDown::Down)?;
    println!("dev{id} does not serve any more. Its data stays where it is: {}.", gone.spec);
    if gone.spec.path().is_some() {
        println!(
            "Bring it back, here or in another server, with `gabion device import {} --sds N`.",
            gone.spec
        );
    }
    Ok(Exit::Ok)
}

/// A line of `gabion device list`.
#[derive(Serialize)]
struct Line<'a> {
    sds: &'a str,
    protection_domain: &'a str,
    fault_set: Option<&'a str>,
    /// The device in the server's configuration; only for a cluster that `up` runs here.
    spec: Option<String>,
    #[serde(flatten)]
    device: &'a Device,
}

/// Runs `gabion device list`.
pub fn list(target: &Target, json: bool) -> Result<Exit> {
    let report = target.report()?;
    let dir = target.mdm.is_empty().then(|| target.local()).transpose()?;
    let spec = |sds: &str, shard: u32| {
        let config: SdsConfig = config::read(&dir.as_ref()?.config_file(sds)).ok()?;
        config.shards().find(|(s, _)| *s == shard).map(|(_, device)| device.spec.to_string())
    };
    let devices = report.sds.iter().flat_map(|s| s.devices.iter().map(move |d| (s, d)));
    let lines: Vec<Line<'_>> = devices
        .map(|(s, device)| Line {
            sds: &s.name,
            protection_domain: &s.protection_domain,
            fault_set: s.fault_set.as_deref(),
            spec: spec(&s.process_name, device.shard),
            device,
        })
        .collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&lines)?);
        return Ok(Exit::Ok);
    }
    let mut t = table(&[
        "device",
        "sds",
        "state",
        "used",
        "of",
        "groups",
        "last copies",
        "pool",
        "where",
        "what",
    ]);
    right(&mut t, &[3, 4, 5, 6]);
    for Line { sds, protection_domain, fault_set, spec, device } in lines {
        t.add_row([
            format!("dev{}", device.id),
            format!("{sds}.{}", device.shard),
            device.state.to_string(),
            lines::used(device),
            Size(device.capacity_bytes).to_string(),
            device.groups.to_string(),
            device.last_copies.to_string(),
            device.storage_pool.clone(),
            fault_set
                .map_or_else(|| protection_domain.into(), |f| format!("{protection_domain}, {f}")),
            spec.unwrap_or_else(|| device.kind.to_owned()),
        ]);
    }
    println!("{t}");
    Ok(Exit::Ok)
}
