//! `gabion up`: a whole cluster on this machine, as separate processes.

use crate::config::{self, Backend, DeviceConfig, MdmConfig, NbdAddress, SdcConfig, SdsConfig};
use crate::exit::{Exit, coded};
use crate::report::{Report, UpDown};
use crate::spec::{DeviceSpec, VolumeSpec};
use crate::statedir::StateDir;
use crate::target::Target;
use crate::{cluster, live, ports};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// More processes than that are no use on one machine.
const MAX_SDS: i64 = 512;
/// What an NBD server says first.
const NBD_GREETING: &[u8; 8] = b"NBDMAGIC";

/// Options of `gabion up`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  gabion up               3 SDSs, one volume of 1 GiB, live view
  gabion up --detach      the same in the background; `gabion down` ends it
  gabion up --sds 5 --device ram:4GiB --volume db:6GiB --volume logs:1GiB
  gabion up --sds 16 --device null:1TiB --volume bench:1TiB    to measure: keeps no data
  gabion up --sds 16 --sds-per-process 8                       the same servers in two processes

RAM and NULL devices are empty once their process has died: a stopped cluster starts anew, empty.")]
pub struct UpArgs {
    /// How many data servers (SDSs) to run
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_SDS))]
    sds: u32,

    /// SDSs that share a process and its one thread; they end together when it is killed
    #[arg(long, default_value_t = 1, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=MAX_SDS))]
    sds_per_process: u32,

    /// A device of each SDS, ram:SIZE or null:SIZE; may be given several times
    #[arg(long = "device", value_name = "SPEC", default_value = "ram:1GiB")]
    devices: Vec<DeviceSpec>,

    /// A volume to make, NAME:SIZE; may be given several times
    #[arg(long = "volume", value_name = "NAME:SIZE", default_value = "vol1:1GiB")]
    volumes: Vec<VolumeSpec>,

    /// Return when everything serves, instead of showing the cluster until Ctrl-C
    #[arg(long)]
    detach: bool,

    /// How the processes talk to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,

    /// Let the processes talk TCP to each other, as they do across hosts, instead of unix sockets
    #[arg(long)]
    tcp_only: bool,

    /// Serve NBD at this TCP address too
    #[arg(long, value_name = "IP:PORT")]
    nbd_tcp: Option<SocketAddr>,
}

/// What `cluster.toml` records, for people.
#[derive(Serialize)]
struct Asked<'a> {
    sds: u32,
    sds_per_process: u32,
    devices: &'a [DeviceSpec],
    volumes: Vec<String>,
    backend: Backend,
    tcp_only: bool,
}

/// Runs `gabion up`.
pub fn run(target: &Target, args: &UpArgs) -> Result<Exit> {
    if let Some(mdm) = target.mdm {
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
    clear_earlier_run(&dir)?;
    let names = write_configs(&dir, args)?;
    let mut starting = Starting { dir: &dir, children: Vec::new(), interrupted: &interrupted };
    let report = match starting.start(&names, args) {
        Ok(report) => report,
        Err(error) => {
            cluster::stop(&dir.live()?)?;
            return Err(error);
        }
    };
    drop(lock);
    print!("{}", live::how_to_use(&report, &target.dir_option(), args.detach));
    if args.detach {
        return Ok(Exit::Ok);
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

/// Stops everything that runs in the directory and says so.
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
    let live = dir.live()?;
    if live.is_empty() {
        return Ok(());
    }
    let option = target.dir_option();
    let which: Vec<String> =
        live.iter().map(|(name, p)| format!("{name} (pid {})", p.pid)).collect();
    Err(coded(
        Exit::Taken,
        format!(
            "a cluster runs in {} already: {}. See it with `gabion status{option}`, stop it with \
             `gabion down{option}`, or start another one with --dir OTHER",
            dir.root().display(),
            which.join(", ")
        ),
    ))
}

/// RAM and NULL devices died with their processes, so an earlier log would describe lost data only.
fn clear_earlier_run(dir: &StateDir) -> Result<()> {
    cluster::sweep(dir)?;
    let log = dir.mdm_log();
    if log.exists() {
        let kept = log.with_extension("log.1");
        fs::rename(&log, &kept).with_context(|| format!("can't keep {}", log.display()))?;
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
            fs::remove_file(entry?.path())?;
        }
    }
    Ok(())
}

/// Writes every role's file; returns one name per process, the MDM's first and the SDC's last.
fn write_configs(dir: &StateDir, args: &UpArgs) -> Result<Vec<String>> {
    let (backend, tcp_only) = (Backend(args.backend), args.tcp_only);
    let mut free = ports::free(1 + args.sds as usize * args.devices.len())?.into_iter();
    let mut next = || free.next().context("ran out of ports");
    let mdm = next()?;
    let pid_file = |name: &str| Some(dir.pid_file(name));
    let asked = Asked {
        sds: args.sds,
        sds_per_process: args.sds_per_process,
        devices: &args.devices,
        volumes: args.volumes.iter().map(|v| format!("{}:{}", v.name, v.size.0)).collect(),
        backend,
        tcp_only,
    };
    config::write(&dir.cluster_file(), &asked)?;
    let manager =
        MdmConfig { listen: mdm, log: dir.mdm_log(), backend, tcp_only, pid_file: pid_file("mdm") };
    config::write(&dir.config_file("mdm"), &manager)?;
    let mut names = vec!["mdm".to_owned()];
    for i in 0..args.sds {
        let name = cluster::sds(i);
        let device = |spec: &DeviceSpec| {
            Ok(DeviceConfig { spec: *spec, listen: next()?, advertise: None, pin: None })
        };
        let server = SdsConfig {
            name: name.clone(),
            mdm: vec![mdm],
            backend,
            tcp_only,
            pid_file: pid_file(&name),
            device: args.devices.iter().map(device).collect::<Result<_>>()?,
        };
        config::write(&dir.config_file(&name), &server)?;
        if i % args.sds_per_process == 0 {
            names.push(name);
        }
    }
    let mut nbd = vec![NbdAddress(rt::ListenAddr::Unix(dir.nbd_socket()))];
    nbd.extend(args.nbd_tcp.map(|at| NbdAddress(rt::ListenAddr::Tcp(at))));
    let client = SdcConfig {
        name: "sdc".into(),
        mdm: vec![mdm],
        nbd,
        backend,
        tcp_only,
        pid_file: pid_file("sdc"),
        pin: None,
    };
    config::write(&dir.config_file("sdc"), &client)?;
    names.push("sdc".into());
    Ok(names)
}

/// The steps from configurations to a cluster that serves.
struct Starting<'a> {
    dir: &'a StateDir,
    children: Vec<(String, Child)>,
    interrupted: &'a AtomicBool,
}

impl Starting<'_> {
    fn start(&mut self, names: &[String], args: &UpArgs) -> Result<Report> {
        let target = Target { dir: self.dir.root().to_owned(), mdm: None };
        let (mdm, others) = names.split_first().context("a cluster has an MDM")?;
        self.spawn(mdm)?;
        self.wait("the MDM answers", || Ok(target.connect().is_ok().then_some(())))?;
        for name in others {
            self.spawn(name)?;
        }
        self.wait("all SDSs are registered", || {
            let report = crate::status::ask(&target)?;
            Ok((report.sds_up() == args.sds as usize).then_some(()))
        })?;
        let mut admin = target.connect()?;
        for volume in &args.volumes {
            admin
                .create_volume(&volume.name, volume.size.0)
                .with_context(|| format!("can't make volume {}", volume.name))?;
        }
        let socket = self.dir.nbd_socket();
        self.wait("everything serves", || {
            let report = crate::status::ask(&target)?;
            let clients =
                !report.sdc.is_empty() && report.sdc.iter().all(|s| s.state == UpDown::Up);
            let serves = clients && report.groups.failed == 0 && greets(&socket);
            Ok(serves.then_some(report))
        })
    }

    fn spawn(&mut self, name: &str) -> Result<()> {
        self.children.push((name.to_owned(), cluster::spawn(self.dir, name)?));
        Ok(())
    }

    /// Waits for a condition, and notices when a process ends instead. An error of the condition
    /// counts as not yet.
    fn wait<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let outcome = condition();
            if let Ok(Some(value)) = outcome {
                return Ok(value);
            }
            for (name, child) in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    let words = cluster::last_words(self.dir, name);
                    let exit = match status.code() {
                        Some(code) if code == Exit::Taken as i32 => Exit::Taken,
                        _ => Exit::Failed,
                    };
                    return Err(coded(exit, format!("{name} ended ({status}). {words}")));
                }
            }
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted before {what}");
            }
            if Instant::now() > deadline {
                let why = outcome.err().map_or(String::new(), |e| format!(" ({e:#})"));
                bail!(
                    "gave up: not yet true after {START_TIMEOUT:?} that {what}{why}. The processes' \
                     logs are in {}",
                    self.dir.root().join("logs").display()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// True when an NBD server answers at the socket.
fn greets(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let mut greeting = [0; NBD_GREETING.len()];
    stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
        && stream.read_exact(&mut greeting).is_ok()
        && greeting == *NBD_GREETING
}
