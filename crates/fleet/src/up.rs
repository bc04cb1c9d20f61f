//! `gabion up`: a whole cluster on this machine, as separate processes.

mod managers;
mod starting;

use crate::statedir::StateDir;
use crate::target::Target;
use crate::{cluster, live, ports, room, salvage};
use admin::exit::{Exit, coded};
use anyhow::{Context, Result, bail};
use clap::Args;
use daemon::config::{
    self, Backend, DeviceConfig, MdmConfig, NbdAddress, SdcConfig, SdsConfig, Sectors,
};
use daemon::files;
use daemon::process::Process;
use daemon::size::Size;
use daemon::spec::{DeviceSpec, UpDevice, VolumeSpec};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use starting::Starting;
use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Data servers of a new cluster, by default.
const SDS_DEFAULT: u32 = 3;
const FILE_DEFAULT: Size = Size(base::GIB);
/// More processes than this are useless on one machine.
const MAX_SDS: u32 = 512;

/// Options of `gabion up`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  gabion up               3 SDSs, one volume of 1 GiB, live view
  gabion up --detach      the same in the background; `gabion down` ends it
  gabion up --sds 5 --device file:40GiB --volume db:60GiB --volume logs:1GiB
  gabion up --device ram:4GiB                                  memory: fast, and empty when it ends
  gabion up --mdms 3 --detach      goes on when any one process dies
  gabion up --sds 16 --device null:1TiB --volume bench:1TiB    to measure: keeps no data
  gabion up --sds 16 --sds-per-process 8                       the same servers in two processes

Devices are sparse files in the directory (--dir): the same command starts the same cluster again, \
with its data, even after all processes have crashed. RAM and NULL devices are empty once their \
process has died: a cluster that has only those starts again empty.")]
pub struct UpArgs {
    /// Number of data servers (SDSs) to run, at least 2; a larger number than the directory's
    /// cluster has makes it grow [default: 3, or that of the directory's cluster]
    #[arg(long, value_name = "N", value_parser = servers)]
    sds: Option<u32>,

    /// Number of metadata managers (MDMs) to run: 1; 3, one of them a tie-breaker; or 5, two of
    /// them tie-breakers [default: 1, or that of the directory's cluster at its beginning]
    #[arg(long, value_name = "N", value_parser = ["1", "3", "5"])]
    mdms: Option<String>,

    /// Number of SDSs that share a process with one thread; they end together when it is killed
    #[arg(
        long,
        default_value_t = 1,
        value_name = "P",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SDS))
    )]
    sds_per_process: u32,

    /// A device of each SDS: file:SIZE, ram:SIZE or null:SIZE; may be given several times [default:
    /// file:1GiB, or those of the directory's cluster]
    #[arg(long = "device", value_name = "SPEC")]
    devices: Vec<UpDevice>,

    /// A volume to create, NAME:SIZE; may be given several times [default: vol1:1GiB for a new
    /// cluster]
    #[arg(long = "volume", value_name = "NAME:SIZE")]
    volumes: Vec<VolumeSpec>,

    /// Return when everything serves, instead of showing the cluster until Ctrl-C
    #[arg(long)]
    detach: bool,

    /// How the processes talk to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,

    /// Let the processes talk to each other over TCP, as across hosts, instead of unix sockets
    #[arg(long)]
    tcp_only: bool,

    /// Microseconds that the processes poll for more work before they sleep [default: 30]
    #[arg(long, value_name = "US")]
    spin: Option<u32>,

    /// Seconds that an SDS is away before its copies are rebuilt on others [default: 60]
    #[arg(long, value_name = "S")]
    rebuild_after: Option<u32>,

    /// Seconds for which an SDS that restarts too often is held out, the first time; 0: never
    /// [default: 5]
    #[arg(long, value_name = "S")]
    quarantine: Option<u32>,

    /// Seconds after which an unanswered request ends with an I/O error; 0: never [default: never]
    #[arg(long, value_name = "S")]
    io_timeout: Option<u32>,

    /// Serve NBD at this TCP address too
    #[arg(long, value_name = "IP:PORT")]
    nbd_tcp: Option<SocketAddr>,

    /// Serve iSCSI too, at this TCP address; without one, at 127.0.0.1:3260
    #[arg(long, value_name = "IP:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:3260")]
    iscsi: Option<SocketAddr>,

    /// The sizes of sectors that iSCSI hosts see: 512n, 512e or 4kn [default: 512e, or that of the
    /// directory's cluster]
    #[arg(long, value_name = "SIZES")]
    iscsi_sectors: Option<Sectors>,
    /// Serve NVMe/TCP too, at this TCP address; without one, at 127.0.0.1:4420
    #[arg(long, value_name = "IP:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:4420")]
    nvme: Option<SocketAddr>,
}

/// Parses a number of servers.
fn servers(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (2..=MAX_SDS).contains(n));
    number.ok_or_else(|| format!("two copies need two servers: write a number from 2 to {MAX_SDS}"))
}

/// The content of `cluster.toml`: the arguments of `up`, from which the next `up` continues.
#[derive(Serialize, Deserialize)]
struct Asked {
    #[serde(default = "one")]
    mdms: u32,
    sds: u32,
    sds_per_process: u32,
    devices: Vec<UpDevice>,
    backend: Backend,
    tcp_only: bool,
    /// Its first start was completed.
    #[serde(default)]
    served: bool,
}

fn one() -> u32 {
    1
}

impl Asked {
    /// Reconstructs the arguments, as far as the files that are left tell them.
    fn left(dir: &StateDir) -> Result<Asked> {
        let devices = salvage::devices(dir, &cluster::sds(0))?;
        Ok(Asked {
            mdms: salvage::mdms(dir),
            sds: salvage::servers(dir)?,
            sds_per_process: 1,
            devices: devices.into_iter().map(|(_, size)| UpDevice::File(size)).collect(),
            backend: Backend::default(),
            tcp_only: false,
            // It is unknown whether its first volume was made, or deleted since.
            served: true,
        })
    }
}

/// The cluster to run.
struct Plan {
    asked: Asked,
    /// The directory holds this cluster's data.
    again: bool,
    /// MDMs of that cluster whose logs are gone.
    lost: Vec<String>,
    volumes: Vec<VolumeSpec>,
}

impl Plan {
    /// Combines the command line with what the directory has.
    fn new(dir: &StateDir, target: &Target, args: &UpArgs) -> Result<Plan> {
        let (backend, tcp_only, sds_per_process) =
            (Backend(args.backend), args.tcp_only, args.sds_per_process);
        let before = kept(dir, target)?;
        let again = before.is_some();
        let wanted = args.mdms.as_ref().map(|n| n.parse()).transpose()?;
        let (mdms, sds, devices, served) = match before {
            None => (wanted.unwrap_or(1), SDS_DEFAULT, vec![UpDevice::File(FILE_DEFAULT)], false),
            Some(before) => {
                refuse_other(dir, &before, args)?;
                if wanted.is_some_and(|n| n != before.mdms) {
                    bail!(
                        "{} holds the data of a cluster that began with {} MDMs: leave out --mdms, \
                         and use `gabion mdm add` and `gabion mdm remove`",
                        dir.root().display(),
                        before.mdms
                    );
                }
                (before.mdms, before.sds, before.devices, before.served)
            }
        };
        let given = |devices| if args.devices.is_empty() { devices } else { args.devices.clone() };
        let (sds, devices) = (args.sds.unwrap_or(sds), given(devices));
        let mut volumes = args.volumes.clone();
        if volumes.is_empty() && !served {
            volumes.push(VolumeSpec { name: "vol1".into(), size: FILE_DEFAULT });
        }
        let asked = Asked { mdms, sds, sds_per_process, devices, backend, tcp_only, served };
        let lost = if again { managers::without_log(dir, mdms) } else { Vec::new() };
        Ok(Plan { asked, again, lost, volumes })
    }
}

/// Returns the cluster whose data is in the directory.
fn kept(dir: &StateDir, target: &Target) -> Result<Option<Asked>> {
    if managers::with_log(dir).is_empty() {
        managers::refuse_without_log(dir, target)?;
        return Ok(None);
    }
    let file = dir.cluster_file();
    let before: Option<Asked> = match (file.exists(), files::is_emptied(&file)) {
        (true, false) => Some(config::read(&file)?),
        _ if salvage::has_devices(dir)? => Some(Asked::left(dir)?),
        _ => None,
    };
    let named = salvage::names_devices(dir)?;
    let survives = |before: &Asked| named || before.devices.iter().any(UpDevice::survives);
    let before = before.filter(survives);
    if before.is_none() {
        managers::refuse_without_log(dir, target)?;
    }
    Ok(before)
}

/// Refuses arguments that would turn the directory's cluster into another one. It may only grow.
fn refuse_other(dir: &StateDir, before: &Asked, args: &UpArgs) -> Result<()> {
    let list = |devices: &[UpDevice]| {
        devices.iter().map(|d| format!("--device {d}")).collect::<Vec<_>>().join(" ")
    };
    if !args.devices.is_empty() && args.devices != before.devices {
        bail!(
            "{} holds the data of a cluster whose servers have {}: leave out --device, choose \
             another --dir, or see `gabion device add --help`",
            dir.root().display(),
            list(&before.devices)
        );
    }
    if let Some(sds) = args.sds.filter(|sds| *sds < before.sds) {
        bail!(
            "{} holds the data of a cluster of {} servers: {sds} are too few for it. Leave out \
             --sds, or choose another --dir",
            dir.root().display(),
            before.sds
        );
    }
    Ok(())
}

/// Runs `gabion up`.
pub fn run(target: &Target, args: &UpArgs) -> Result<Exit> {
    if let Some(mdm) = target.mdm.first() {
        bail!("`up` makes a cluster of its own on this machine: leave out --mdm {mdm}");
    }
    check_names(&args.volumes)?;
    let dir = StateDir::create(&target.dir)?;
    let lock = dir.lock()?;
    refuse_second(&dir, target)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone()).context("can't handle signals")?;
    }
    let first = dir.is_blank()?;
    let mut plan = Plan::new(&dir, target, args)?;
    clear_earlier_run(&dir, plan.again)?;
    let lost = plan.lost.clone();
    let mut starting = Starting::new((&dir, target), plan.again, &lost, &interrupted);
    if plan.again {
        tell_what_was_emptied(&dir)?;
    }
    let names = write_configs(&dir, &plan, args);
    let report = match names.and_then(|names| starting.start(&names, &plan.volumes)) {
        Ok(report) => report,
        Err(error) => {
            let stopped = dir.live().and_then(|live| cluster::stop(&live));
            starting.end();
            stopped?;
            if first {
                dir.make_blank()?;
            }
            return Err(error);
        }
    };
    plan.asked.served = true;
    config::write(&dir.cluster_file(), &plan.asked)?;
    drop(lock);
    starting.missing.iter().for_each(|missing| println!("{missing}"));
    room::warnings(&sparse(&dir, plan.asked.sds)).iter().for_each(|line| println!("{line}"));
    print!("{}", live::how_to_use(&report, &target.dir_option(), args.detach));
    if args.detach {
        return Ok(if report.exit() == Exit::Unserved { Exit::Unserved } else { Exit::Ok });
    }
    let mut children = starting.children;
    live::show(target, &mut children, &interrupted)?;
    let _lock = dir.lock()?;
    stop_all(&dir)?;
    for (_, child) in &mut children {
        let _ = child.wait();
    }
    Ok(Exit::Ok)
}

/// Returns the file devices of the cluster, and their sizes.
fn sparse(dir: &StateDir, servers: u32) -> Vec<(std::path::PathBuf, u64)> {
    let config = |i| config::read::<SdsConfig>(&dir.config_file(&cluster::sds(i))).ok();
    let devices = (0..servers).filter_map(config).flat_map(|server| server.device);
    let file = |device: DeviceConfig| match device.spec {
        DeviceSpec::File(path, size) => Some((path, size?.0)),
        _ => None,
    };
    devices.filter_map(file).collect()
}

/// Stops everything that runs in the directory, and reports it.
pub fn stop_all(dir: &StateDir) -> Result<usize> {
    let live = dir.live()?;
    let killed = cluster::stop(&live)?;
    cluster::sweep(dir)?;
    let mut pids: Vec<u32> = live.iter().map(|(_, process)| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    if !pids.is_empty() {
        println!("Stopped {} processes.", pids.len());
    }
    if !killed.is_empty() {
        println!("These did not stop when asked and were killed: {}.", killed.join(", "));
    }
    Ok(live.len())
}

fn check_names(volumes: &[VolumeSpec]) -> Result<()> {
    for (i, volume) in volumes.iter().enumerate() {
        if volumes[..i].iter().any(|v| v.name == volume.name) {
            bail!("two volumes are called {}", volume.name);
        }
    }
    Ok(())
}

fn refuse_second(dir: &StateDir, target: &Target) -> Result<()> {
    let mut live = dir.live()?;
    // A process that was killed a moment ago may still exist.
    live.retain(|(_, process): &(String, Process)| !process.wait_gone(cluster::DYING));
    if live.iter().all(|(name, _)| name.starts_with("mdm")) {
        // After a recovery without servers only an MDM runs: it is started again with the rest.
        return cluster::stop(&live).map(drop);
    }
    let option = target.dir_option();
    let which: Vec<String> =
        live.iter().map(|(name, p)| format!("{name} (pid {})", p.pid)).collect();
    Err(coded(
        Exit::InUse,
        format!(
            "a cluster runs in {} already: {}. See it with `gabion status{option}`, stop it with \
             `gabion down{option}`, or start another one with --dir OTHER",
            dir.root().display(),
            which.join(", ")
        ),
    ))
}

/// Removes what is left of the run before, unless the cluster goes on. RAM and NULL devices died
/// with their processes, so an MDM's log of a cluster of these would describe only lost data.
fn clear_earlier_run(dir: &StateDir, again: bool) -> Result<()> {
    cluster::sweep(dir)?;
    if again {
        return Ok(());
    }
    for name in managers::with_log(dir) {
        let log = dir.mdm_log(&name);
        let mut names = (1..).map(|i: u32| log.with_extension(format!("log.{i}")));
        let kept = names.find(|name| !name.exists()).context("all names are taken")?;
        files::rename(&log, &kept).with_context(|| format!("can't keep {}", log.display()))?;
        if name != "mdm" {
            continue;
        }
        println!(
            "The cluster that ran in {} before is gone, and its data with it: RAM and NULL devices \
             are empty once their processes have ended. Starting a new, empty one; the old MDM log \
             is kept as {}.",
            dir.root().display(),
            kept.display()
        );
    }
    for part in ["config", "logs"] {
        for entry in fs::read_dir(dir.root().join(part))? {
            files::remove(&entry?.path())?;
        }
    }
    Ok(())
}

/// Reports which files a power cut has emptied, and what can't be restored.
fn tell_what_was_emptied(dir: &StateDir) -> Result<()> {
    let emptied = salvage::emptied(dir)?;
    if emptied.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = emptied.iter().map(|file| file.display().to_string()).collect();
    println!(
        "A power cut has emptied these files, which are written again: {}. Devices that `gabion \
         device add` has put elsewhere than into {} come back with `gabion device import`.",
        names.join(", "),
        dir.root().join("devices").display()
    );
    Ok(())
}

/// Writes every role's file. Returns one name per process, the MDMs' first and the SDC's last.
/// Existing servers keep their devices, also those that were added since. Addresses stay the same
/// if possible.
// Long: one file per role, from the same addresses.
fn write_configs(dir: &StateDir, plan: &Plan, args: &UpArgs) -> Result<Vec<String>> {
    let Asked { backend, tcp_only, sds_per_process, .. } = plan.asked;
    let servers: Vec<(String, Vec<DeviceConfig>)> =
        (0..plan.asked.sds).map(|i| devices(dir, plan, cluster::sds(i))).collect::<Result<_>>()?;
    let listens = servers.iter().flat_map(|(_, devices)| devices).map(|device| device.listen);
    let earlier = listens.map(|at| Some(at).filter(|at| at.port() != 0));
    let managers: Vec<String> = (0..plan.asked.mdms).map(cluster::mdm).collect();
    let mut addresses = Vec::new();
    for index in (0..plan.asked.mdms).filter(|_| plan.again) {
        addresses.push(salvage::listened(dir, index)?);
    }
    addresses.resize(managers.len(), None);
    let earlier: Vec<_> = addresses.into_iter().chain(earlier).collect();
    let mut addresses = ports::again(&earlier)?.into_iter();
    let mut next = || addresses.next().context("ran out of ports");
    let mdm: Vec<SocketAddr> = managers.iter().map(|_| next()).collect::<Result<_>>()?;
    let pid_file = |name: &str| Some(dir.pid_file(name));
    let spin_us = args.spin;
    config::write(&dir.cluster_file(), &plan.asked)?;
    for (name, listen) in managers.iter().zip(&mdm) {
        // A setting holds until another one is given.
        let kept: Option<MdmConfig> = config::read(&dir.config_file(name)).ok();
        let manager = MdmConfig {
            name: name.clone(),
            listen: *listen,
            advertise: None,
            log: dir.mdm_log(name),
            join: managers::joins(dir, plan.again, name, kept.as_ref())?,
            backend,
            tcp_only,
            spin_us,
            pid_file: pid_file(name),
            rebuild_after_seconds: args
                .rebuild_after
                .or_else(|| kept.as_ref()?.rebuild_after_seconds),
            quarantine_seconds: args.quarantine.or_else(|| kept.as_ref()?.quarantine_seconds),
        };
        config::write(&dir.config_file(name), &manager)?;
    }
    let mut names: Vec<String> =
        managers.into_iter().filter(|name| !plan.lost.contains(name)).collect();
    for (i, (name, mut device)) in (0..).zip(servers) {
        for one in &mut device {
            one.listen = next()?;
        }
        let pid_file = pid_file(&name);
        let server = SdsConfig {
            domain: None,
            fault_set: None,
            name: name.clone(),
            mdm: mdm.clone(),
            backend,
            tcp_only,
            spin_us,
            pid_file,
            device,
        };
        config::write(&dir.config_file(&name), &server)?;
        if i % sds_per_process == 0 {
            names.push(name);
        }
    }
    let mut nbd = vec![NbdAddress(rt::ListenAddr::Unix(dir.nbd_socket()))];
    nbd.extend(args.nbd_tcp.map(|at| NbdAddress(rt::ListenAddr::Tcp(at))));
    let kept: Option<SdcConfig> = config::read(&dir.config_file("sdc")).ok();
    let client = SdcConfig {
        name: "sdc".into(),
        mdm,
        nbd,
        iscsi: args.iscsi.into_iter().collect(),
        iscsi_secrets: kept.as_ref().and_then(|kept| kept.iscsi_secrets.clone()),
        iscsi_sectors: args
            .iscsi_sectors
            .or_else(|| kept.as_ref().map(|kept| kept.iscsi_sectors))
            .unwrap_or_default(),
        nvme: args.nvme.into_iter().collect(),
        nvme_secrets: kept.as_ref().and_then(|kept| kept.nvme_secrets.clone()),
        backend,
        tcp_only,
        spin_us,
        pid_file: pid_file("sdc"),
        protect_memory: kept.as_ref().is_some_and(|kept| kept.protect_memory),
        io_timeout_seconds: match args.io_timeout {
            Some(seconds) => NonZeroU32::new(seconds),
            None => kept.and_then(|kept| kept.io_timeout_seconds),
        },
        pin: None,
    };
    config::write(&dir.config_file("sdc"), &client)?;
    names.push("sdc".into());
    Ok(names)
}

/// Returns the devices of a server: those of its file, if it has one already.
fn devices(dir: &StateDir, plan: &Plan, name: String) -> Result<(String, Vec<DeviceConfig>)> {
    let file = dir.config_file(&name);
    if plan.again && file.exists() && !files::is_emptied(&file) {
        let before: SdsConfig = config::read(&file)?;
        return Ok((name, before.device));
    }
    let left = if plan.again { salvage::devices(dir, &name)? } else { Vec::new() };
    let device = |(shard, device): (u32, UpDevice)| {
        let spec = match device {
            UpDevice::File(size) => DeviceSpec::File(dir.device_file(&name, shard), Some(size)),
            UpDevice::Memory(memory) => memory,
        };
        let listen = (std::net::Ipv4Addr::LOCALHOST, 0).into();
        DeviceConfig {
            pool: None,
            shard: Some(shard),
            spec,
            replace: false,
            listen,
            advertise: None,
            pin: None,
        }
    };
    let devices = match left.is_empty() {
        true => (0..).zip(plan.asked.devices.iter().cloned()).map(device).collect(),
        false => left.into_iter().map(|(n, size)| (n, UpDevice::File(size))).map(device).collect(),
    };
    Ok((name, devices))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in which a cluster with RAM devices ran.
    fn of_memory(name: &str) -> StateDir {
        let root = std::env::temp_dir().join(format!("gabion-up-{name}-{}", std::process::id()));
        let dir = StateDir::create(&root).unwrap();
        let asked = Asked {
            mdms: 1,
            sds: 2,
            sds_per_process: 1,
            devices: vec!["ram:1GiB".parse().unwrap()],
            backend: Backend::default(),
            tcp_only: false,
            served: true,
        };
        config::write(&dir.cluster_file(), &asked).unwrap();
        files::write(&dir.mdm_log("mdm"), "log").unwrap();
        dir
    }

    fn target(dir: &StateDir) -> Target {
        Target { dir: dir.root().to_owned(), mdm: Vec::new() }
    }

    fn server(dir: &StateDir, device: &str) {
        let text = format!(
            "name = \"sds1\"\nmdm = [\"127.0.0.1:1\"]\n[[device]]\nspec = \"{device}\"\n\
             listen = \"127.0.0.1:2\"\n"
        );
        files::write(&dir.config_file("sds1"), text).unwrap();
    }

    #[test]
    fn a_cluster_of_memory_with_a_disk_that_was_added_is_not_forgotten() {
        let dir = of_memory("added");
        server(&dir, "ram:1GiB");
        assert!(kept(&dir, &target(&dir)).unwrap().is_none());
        server(&dir, "file:/data/a:10GiB");
        assert!(kept(&dir, &target(&dir)).unwrap().is_some());
        fs::remove_dir_all(dir.root()).unwrap();
    }

    #[test]
    fn no_log_that_was_kept_is_overwritten() {
        let dir = of_memory("twice");
        for text in ["first", "second", "third"] {
            files::write(&dir.mdm_log("mdm"), text).unwrap();
            clear_earlier_run(&dir, false).unwrap();
        }
        for (i, text) in (1..).zip(["first", "second", "third"]) {
            let kept = dir.root().join(format!("mdm.log.{i}"));
            assert_eq!(fs::read_to_string(kept).unwrap(), text);
        }
        fs::remove_dir_all(dir.root()).unwrap();
    }
}
