//! A cluster whose hosts are network namespaces, created with `gabion deploy --local`. Its cables
//! can be pulled.

use crate::cluster::{is_running, signal};
use crate::nbd::Nbd;
use crate::run::binary;
use crate::{Folder, Ran, gabion, secs, tool, wait};
use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Path of the device on each of the hosts `h1`, `h2`, ...
pub const DISK: &str = "var/lib/gabion/disk0";

/// A cluster in namespaces that is removed with its test. The first host serves its volumes.
#[derive(Debug)]
pub struct Spaces {
    /// Folder of all its files.
    pub folder: Folder,
    /// Addresses of the MDMs, separated by commas.
    mdm: String,
    prefix: String,
    /// Processes that were started again, as children of this process.
    again: RefCell<Vec<Child>>,
}

impl Drop for Spaces {
    fn drop(&mut self) {
        let _ = self.deploy(&["--down"]);
        for child in self.again.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns a topology; `each` adds settings to a host besides its name, roles and device.
pub fn topology(hosts: u32, disk: &str, volumes: &str, each: impl Fn(u32) -> String) -> String {
    let host = |n: u32| {
        let roles = if n == 1 { "mdm = true\nsdc = \"127.0.0.1:10809\"\n" } else { "" };
        let device = format!("devices = [\"file:/{DISK}:{disk}\"]\n");
        format!("[[host]]\nname = \"h{n}\"\n{roles}{}\n{device}", each(n))
    };
    let hosts: String = (1..=hosts).map(host).collect();
    // Without a quarantine, because tests kill more often than real faults do.
    format!("volumes = [{volumes}]\nquarantine_seconds = 0\n{hosts}")
}

impl Spaces {
    /// Creates `hosts` hosts with devices of this size, and these volumes.
    pub fn new(hosts: u32, disk: &str, volumes: &str) -> Result<Spaces> {
        Spaces::of(&topology(hosts, disk, volumes, |_| String::new()))
    }

    /// Creates the hosts of a topology, which are named `h1`, `h2`, and so on.
    pub fn of(topology: &str) -> Result<Spaces> {
        let folder = Folder::new()?;
        fs::write(folder.join("c.toml"), topology)?;
        let (mdm, prefix, again) = (String::new(), String::new(), RefCell::default());
        let mut spaces = Spaces { folder, mdm, prefix, again };
        spaces.up()?;
        Ok(spaces)
    }

    /// Returns the path of a host's file, such as `h2/var/log/gabion/sds.log`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join("data").join(name)
    }

    /// Returns the device of a host.
    pub fn device(&self, host: &str) -> String {
        self.file(&format!("{host}/{DISK}")).display().to_string()
    }

    /// Runs `gabion deploy` in the cluster's folder.
    pub fn deploy(&self, arguments: &[&str]) -> Result<Ran> {
        let dir = self.folder.join("data").display().to_string();
        gabion([&["deploy", "--dir", &dir], arguments].concat())
    }

    /// Deploys the cluster, or starts it again.
    pub fn up(&mut self) -> Result<()> {
        let topology = self.folder.join("c.toml").display().to_string();
        let said = self.deploy(&[&topology, "--local"])?.ok()?;
        let mdm = said.lines().find_map(|l| l.trim().strip_prefix("export GABION_MDM="));
        self.mdm = mdm.with_context(|| said.clone())?.to_owned();
        let network = self.mdm.split('.').nth(2).context("an address")?;
        self.prefix = format!("gabion{network}-");
        Ok(())
    }

    /// Returns true if the kernel still has a namespace or link of it.
    pub fn is_there(&self) -> Result<bool> {
        let cable = format!(" {}.", self.prefix.trim_end_matches('-').replace("gabion", "gab"));
        let spaces = tool("ip", ["netns"])?.ok()?.contains(&self.prefix);
        Ok(spaces || tool("ip", ["-o", "link"])?.ok()?.contains(&cable))
    }

    /// Returns the address of a host's MDM.
    pub fn mdm_of(&self, host: &str) -> Result<String> {
        Ok(format!("{}:7001", self.address(host)?))
    }

    fn address(&self, host: &str) -> Result<String> {
        let number: u32 = host.trim_start_matches('h').parse()?;
        let first = self.mdm.split(',').next().and_then(|at| at.rsplit_once('.'));
        let (network, _) = first.context("an address")?;
        Ok(format!("{network}.{}", 10 + number))
    }

    /// Runs a command against the cluster.
    pub fn gabion(&self, arguments: &[&str]) -> Result<Ran> {
        gabion([arguments, &["--mdm", &self.mdm]].concat())
    }

    /// Connects to a volume.
    pub fn nbd(&self, volume: &str) -> Result<Nbd> {
        let socket = self.file("h1/run/gabion/nbd.sock");
        wait("the volume is served", secs(30), || Ok(Nbd::connect(&socket, volume).ok()))
    }

    /// Returns the pid of a role on a host.
    pub fn pid(&self, host: &str, role: &str) -> Result<u32> {
        let text = fs::read_to_string(self.file(&format!("{host}/run/gabion/{role}.pid")))?;
        Ok(text.split_whitespace().next().context("a pid")?.parse()?)
    }

    /// Sends a signal to a role on a host.
    pub fn signal(&self, host: &str, role: &str, what: Signal) -> Result<()> {
        signal(self.pid(host, role)?, what)
    }

    /// Starts a role again that has ended, as an operator on that host would.
    pub fn start(&self, host: &str, role: &str) -> Result<()> {
        wait("the old process is gone", secs(10), || Ok((!self.runs(host, role)).then_some(())))?;
        let file = |name: String| self.file(&format!("{host}/{name}"));
        let log =
            fs::File::options().append(true).open(file(format!("var/log/gabion/{role}.log")))?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host)]).arg(binary());
        command.args([role, "run", "--config"]).arg(file(format!("etc/gabion/{role}.toml")));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        let started = child.id();
        self.again.borrow_mut().push(child);
        wait("it has written its pid", secs(10), || {
            Ok((self.pid(host, role)? == started).then_some(()))
        })
    }

    /// Returns true if a role runs on a host. A process that ends in order removes its pid file.
    pub fn runs(&self, host: &str, role: &str) -> bool {
        self.pid(host, role).is_ok_and(is_running)
    }

    /// Returns the log of a role on a host.
    pub fn log(&self, host: &str, role: &str) -> Result<String> {
        Ok(fs::read_to_string(self.file(&format!("{host}/var/log/gabion/{role}.log")))?)
    }

    fn space(&self, host: &str) -> String {
        format!("{}{host}", self.prefix)
    }

    /// Pulls a host's cable (`down`), or plugs it in again (`up`).
    pub fn cable(&self, host: &str, state: &str) -> Result<()> {
        tool("ip", ["-n", &self.space(host), "link", "set", "eth0", state])?.ok().map(drop)
    }

    /// Starts or stops losing all packets from one host to another.
    pub fn lose(&self, from: &str, to: &str, lost: bool) -> Result<()> {
        let route = format!("{}/32", self.address(to)?);
        let change = if lost { "add" } else { "del" };
        let space = self.space(from);
        tool("ip", ["-n", &space, "route", change, "blackhole", &route])?.ok().map(drop)
    }

    /// Returns the status that the MDM reports.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.gabion(&["status", "--json"])?.stdout)?)
    }

    /// Waits until the cluster is in this state.
    pub fn wait_state(&self, state: &str) -> Result<()> {
        wait(state, secs(90), || Ok((self.status()?["state"] == state).then_some(())))
    }
}
