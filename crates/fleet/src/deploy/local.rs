//! Hosts that are network namespaces of this machine, each with its own address on a bridge.
//!
//! The plan is written to a file before anything is created, so that all of it can be removed.

use super::topology::{Host, Topology};
use anyhow::{Context, Result, bail};
use daemon::files;
use daemon::process::Process;
use daemon::spec::DeviceSpec;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The networks to choose from: 10.199.N.0/24.
const NETWORK: [u8; 2] = [10, 199];
/// Time that a process gets to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A cluster in namespaces, as its folder records it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Local {
    /// The third byte of its addresses.
    network: u8,
    /// Its hosts, with the addresses and folders that they have here.
    pub topology: Topology,
}

/// Takes the lock under which a network is chosen and created: two deployments at the same time
/// would choose the same one.
pub fn lock() -> Result<File> {
    let path = std::env::temp_dir().join("gabion-deploy.lock");
    let file = files::lock(&path);
    let file = file.with_context(|| format!("can't open {}", path.display()))?;
    file.lock().with_context(|| format!("can't lock {}", path.display()))?;
    Ok(file)
}

/// Returns the first unused network, starting at `first`.
fn choose(first: u8) -> Result<u8> {
    let taken = ip(&["-o", "-4", "addr"])?;
    let used = |n: &u8| taken.contains(&format!("{}.{}.{n}.", NETWORK[0], NETWORK[1]));
    let network = (0..=255).map(|n| first.wrapping_add(n)).find(|n| !used(n));
    let network = network.context("all networks 10.199.N.0/24 are in use")?;
    // A cable exists for a moment longer than the namespace at its far end.
    let deadline = Instant::now() + PATIENCE;
    let left = |n: u8| ip(&["-o", "link"]).map(|links| links.contains(&format!(" gab{n}.")));
    while left(network)? {
        if Instant::now() > deadline {
            bail!("a link called gab{network}.0 or so was left behind: `ip link del` it");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(network)
}

impl Local {
    /// Chooses an unused network, and gives each host its address and its folder.
    pub fn new(folder: &Path, mut topology: Topology) -> Result<Local> {
        if topology.hosts.len() > 200 {
            bail!("at most 200 hosts fit into one network");
        }
        files::make_folder(folder).with_context(|| format!("can't make {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        // The same folder gets the same network if possible, because several MDMs find each other
        // only at their earlier addresses.
        let first = base::crc::crc32c(folder.as_os_str().as_encoded_bytes()) as u8;
        let network = choose(first)?;
        for (number, host) in (11..).zip(&mut topology.hosts) {
            host.address = IpAddr::V4(address(network, number));
            host.root = folder.join(&host.name);
            host.devices.iter_mut().for_each(|device| below(&host.root, &mut device.spec));
        }
        Ok(Local { network, topology })
    }

    /// Reads the record in a folder; `None` if there is no cluster.
    pub fn open(folder: &Path) -> Result<Option<Local>> {
        let file = file(folder);
        match file.exists() {
            true => daemon::config::read(&file).map(Some),
            false => Ok(None),
        }
    }

    /// Returns the prefix of its namespaces' names.
    pub fn prefix(&self) -> String {
        format!("gabion{}-", self.network)
    }

    /// Returns the name of a host's namespace.
    pub fn space(&self, host: &Host) -> String {
        format!("{}{}", self.prefix(), host.name)
    }

    fn bridge(&self) -> String {
        format!("gabion{}", self.network)
    }

    /// Returns the name of the near end of a host's cable.
    fn cable(&self, number: usize) -> String {
        format!("gab{}.{number}", self.network)
    }

    /// Creates the namespaces.
    pub fn make(&self, folder: &Path) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!(
                "network namespaces need root: use sudo, or `gabion up`, which does without them"
            );
        }
        daemon::config::write(&file(folder), self)?;
        let (bridge, own) = (self.bridge(), format!("{}/24", address(self.network, 1)));
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["addr", "add", &own, "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"])?;
        for (number, host) in self.topology.hosts.iter().enumerate() {
            self.add(number, host)?;
        }
        Ok(())
    }

    fn add(&self, number: usize, host: &Host) -> Result<()> {
        let (space, bridge) = (self.space(host), self.bridge());
        let cable = self.cable(number);
        let address = format!("{}/24", host.address);
        ip(&["netns", "add", &space])?;
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
        ip(&["link", "set", &cable, "master", &bridge, "up"])?;
        ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])?;
        ip(&["-n", &space, "link", "set", "eth0", "up"])?;
        ip(&["-n", &space, "link", "set", "lo", "up"])?;
        Ok(())
    }

    /// Ends the processes and removes the namespaces. The data stays.
    pub fn remove(&self, folder: &Path) -> Result<()> {
        let pid_file = |host: &Host, role| host.path(&format!("run/gabion/{role}.pid"));
        let pid_files = self.topology.hosts.iter().flat_map(|host| {
            ["sdc", "sds", "mdm"].into_iter().map(move |role| pid_file(host, role))
        });
        let running: Vec<Process> =
            pid_files.filter_map(|f| Process::read(&f)).filter(Process::is_alive).collect();
        for process in &running {
            process.signal(Signal::TERM)?;
        }
        for process in &running {
            if !process.wait_gone(PATIENCE) {
                process.signal(Signal::KILL)?;
                process.wait_gone(PATIENCE);
            }
        }
        for (number, host) in self.topology.hosts.iter().enumerate() {
            // Errors mean that it does not exist any more. The cable is deleted first, because the
            // kernel destroys a namespace some time after its name is gone, and its cable with it.
            let _ = ip(&["link", "del", &self.cable(number)]);
            let _ = ip(&["netns", "del", &self.space(host)]);
        }
        let _ = ip(&["link", "del", &self.bridge()]);
        fs::remove_file(file(folder)).context("can't remove the record of the cluster")
    }
}

/// Moves a file device into its host's own folder. The hosts share this machine's file system.
fn below(root: &Path, device: &mut DeviceSpec) {
    if let DeviceSpec::File(path, _) = device {
        *path = root.join(path.strip_prefix("/").unwrap_or(path));
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("local.toml")
}

fn address(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK[0], NETWORK[1], network, host)
}

/// Runs `ip`, and returns its output.
pub fn ip(arguments: &[&str]) -> Result<String> {
    let ran = Command::new("ip").args(arguments).output().context("can't start `ip` (iproute2)")?;
    if !ran.status.success() {
        let why = String::from_utf8_lossy(&ran.stderr);
        bail!("`ip {}`: {}", arguments.join(" "), why.trim());
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
