//! The cluster of the demo: three small servers, the first two with an MDM, and a fourth host with
//! the tie-breaker and the client, in network namespaces on this machine.

use admin::report::Report;
use anyhow::{Context, Result};
use bench::drive::Volume;
use bench::interrupt;
use daemon::process::Process;
use daemon::size::Size;
use daemon::spec::{DeviceSpec, VolumeSpec};
use fleet::cgroup::{Group, Limits};
use fleet::deploy;
use fleet::deploy::local::{Local, ip};
use fleet::deploy::topology::{Host, MdmRole, Topology};
use fleet::target::Target;
use rustix::process::Signal;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of servers with a device.
pub(crate) const SERVERS: usize = 3;
/// The name of the volume.
const VOLUME: &str = "exaforge";

/// The sizes and limits of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bytes of each server's device.
    pub device: u64,
    /// Bytes of the volume.
    pub volume: u64,
    pub limits: Limits,
    /// Seconds until the copies of a lost server are rebuilt.
    pub rebuild_after: u32,
}

/// The cluster. It is taken down when this is dropped; its files stay.
pub(crate) struct DemoCluster {
    folder: PathBuf,
    local: Local,
    groups: Vec<Group>,
    pub target: Target,
    pub volume: Volume,
}

impl DemoCluster {
    /// Deploys the cluster.
    pub(crate) fn new(folder: &Path, sizes: &Sizes) -> Result<DemoCluster> {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let mut hosts = Vec::new();
        for number in 1..=SERVERS {
            let mut host = Host::new(&format!("node{number}"), nowhere);
            let disk = DeviceSpec::File("/var/lib/gabion/disk0".into(), Some(Size(sizes.device)));
            host.devices.push(disk.into());
            host.mdm = (number < SERVERS).then_some(MdmRole::Manager);
            hosts.push(host);
        }
        let mut fourth = Host::new("node4", nowhere);
        (fourth.mdm, fourth.sdc) =
            (Some(MdmRole::TieBreaker), Some(SocketAddr::from(([127, 0, 0, 1], 10809))));
        hosts.push(fourth);
        let volume = VolumeSpec { name: VOLUME.into(), size: Size(sizes.volume) };
        let topology = Topology {
            user: "root".into(),
            volumes: vec![volume.into()],
            rebuild_after_seconds: Some(sizes.rebuild_after),
            hosts,
            ..Topology::default()
        };
        let local = deploy::here(folder, topology, false, false)?.context("it was made")?;
        let mdm = local.topology.mdms_at();
        let target = Target { dir: folder.to_owned(), mdm: mdm.clone() };
        let (name, size, backend) = (VOLUME.to_owned(), sizes.volume, rt::Backend::Auto);
        let volume = Volume { mdm, name, size, backend, tcp_only: true };
        let folder = folder.canonicalize()?;
        let mut cluster = DemoCluster { folder, local, groups: Vec::new(), target, volume };
        for number in 1..=SERVERS {
            let name = cluster.local.space(cluster.host(number));
            cluster.groups.push(Group::new(&name, sizes.limits, &cluster.folder)?);
            cluster.limit(number)?;
        }
        Ok(cluster)
    }

    /// Asks the MDM for the status.
    pub(crate) fn status(&self) -> Result<Report> {
        self.target.report()
    }

    fn path(&self, number: usize, file: &str) -> PathBuf {
        self.host(number).path(file)
    }

    fn process(&self, number: usize, role: &str) -> Result<Process> {
        let file = self.path(number, &format!("run/gabion/{role}.pid"));
        Process::read(&file).with_context(|| format!("node{number} has no process of its {role}"))
    }

    fn limit(&self, number: usize) -> Result<()> {
        self.groups[number - 1].add(self.process(number, "sds")?.pid)
    }

    /// Returns the roles that run on a server.
    fn roles(&self, number: usize) -> &'static [&'static str] {
        if self.host(number).mdm.is_some() { &["sds", "mdm"] } else { &["sds"] }
    }

    /// Kills all processes of a server with SIGKILL.
    pub(crate) fn kill(&self, number: usize) -> Result<()> {
        let kill = |role: &&str| self.process(number, role)?.signal(Signal::KILL).map(drop);
        self.roles(number).iter().try_for_each(kill)
    }

    /// Ends a data server in an orderly way. One that was removed may have ended by itself.
    pub(crate) fn end(&self, number: usize) -> Result<()> {
        if let Ok(process) = self.process(number, "sds") {
            process.signal(Signal::TERM)?;
            process.wait_gone(Duration::from_secs(10));
        }
        Ok(())
    }

    /// Restarts the roles of a server; with `empty`, on a new disk.
    pub(crate) fn start(&self, number: usize, empty: bool) -> Result<()> {
        for role in self.roles(number) {
            let before = self.process(number, role).ok();
            if let Some(process) = &before {
                process.wait_gone(Duration::from_secs(10));
            }
            if *role == "sds" && empty {
                fs::remove_file(self.path(number, "var/lib/gabion/disk0"))?;
            }
            deploy::start_again(&self.local, self.host(number), role)?;
            while self.process(number, role).ok().is_none_or(|now| Some(now) == before) {
                interrupt::sleep(Duration::from_millis(10))?;
            }
        }
        self.limit(number)
    }

    fn host(&self, number: usize) -> &Host {
        &self.local.topology.hosts[number - 1]
    }

    /// Takes a server's network link down, or up again.
    pub(crate) fn cable(&self, number: usize, there: bool) -> Result<()> {
        let state = if there { "up" } else { "down" };
        ip(&["-n", &self.local.space(self.host(number)), "link", "set", "eth0", state]).map(drop)
    }
}

impl Drop for DemoCluster {
    fn drop(&mut self) {
        if let Err(why) = self.local.remove(&self.folder) {
            eprintln!("the demo's hosts could not be taken away: {why:#}");
        }
    }
}
