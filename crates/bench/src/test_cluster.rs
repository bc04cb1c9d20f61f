//! The cluster to be loaded: a temporary one of NULL devices on this machine, or a running one.

use crate::cpu::{Kind, Processes};
use crate::drive::Volume;
use crate::load::Data;
use crate::{interrupt, name};
use admin::report::{Report, State};
use anyhow::{Context, Result, bail};
use fleet::statedir::StateDir;
use fleet::target::Target;
use fleet::{cluster, ports};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use wire::control::{Ask, SetPool};

/// The volume of a temporary cluster.
const VOLUME: &str = "bench";
/// The volume has this many bytes per SDS, so that the SDSs share the load evenly, and a minimum.
const VOLUME_PER_SDS: u64 = 16 << 20;
const VOLUME_MIN: u64 = 512 << 20;

/// The number of servers, and their distribution over processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Data servers, or servers of the floor.
    pub servers: u32,
    /// Servers that share a process and its loop.
    pub per_process: u32,
}

impl Layout {
    /// Returns the number of processes.
    pub fn processes(self) -> u32 {
        self.servers.div_ceil(self.per_process)
    }

    /// Puts all servers into two processes. On a machine with two cores this comes closest to hosts
    /// with cores of their own.
    pub fn packed(servers: u32) -> Layout {
        Layout { servers, per_process: servers.div_ceil(2) }
    }

    /// Puts each server into its own process.
    pub fn apart(servers: u32) -> Layout {
        Layout { servers, per_process: 1 }
    }
}

/// The addresses at which a cluster serves the protocols that hosts speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// NBD over TCP.
    pub nbd: SocketAddr,
    /// iSCSI.
    pub iscsi: SocketAddr,
    /// NVMe/TCP.
    pub nvme: SocketAddr,
}

impl Ports {
    /// Finds addresses that are free now.
    pub fn free() -> Result<Ports> {
        let found = ports::free(3)?;
        Ok(Ports { nbd: found[0], iscsi: found[1], nvme: found[2] })
    }
}

/// A cluster in a temporary directory. Dropping this stops the cluster and removes the directory.
pub struct TestCluster {
    dir: Cleanup,
    /// The cluster's volume.
    pub volume: Volume,
    /// The cluster's processes, and this one.
    pub processes: Processes,
    /// The command line that started it.
    pub command: String,
}

/// Stops the cluster in a directory, then removes the directory.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        if let Ok(dir) = StateDir::open(&self.0)
            && let Ok(live) = dir.live()
        {
            let _ = cluster::stop(&live);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl TestCluster {
    /// Starts a cluster of NULL devices and fills its volume. With `tcp_only` its processes use TCP
    /// as between hosts, which the floor also does.
    pub fn start(layout: Layout, backend: rt::Backend, tcp_only: bool) -> Result<TestCluster> {
        TestCluster::serving(layout, backend, tcp_only, None)
    }

    /// Does the same. With `ports`, the cluster serves hosts there.
    pub fn serving(
        layout: Layout,
        backend: rt::Backend,
        tcp_only: bool,
        ports: Option<Ports>,
    ) -> Result<TestCluster> {
        let size = (u64::from(layout.servers) * VOLUME_PER_SDS).max(VOLUME_MIN);
        let addresses = ports.map(|Ports { nbd, iscsi, nvme }| {
            [("--nbd-tcp", nbd), ("--iscsi", iscsi), ("--nvme", nvme)]
                .map(|(option, address)| format!("{option}={address}"))
        });
        let more: Vec<&str> = addresses.iter().flatten().map(String::as_str).collect();
        TestCluster::on(&std::env::temp_dir(), "null:1TiB", size, layout, backend, tcp_only, &more)?
            .filled()
    }

    /// Starts a cluster in a new directory within `folder`, with this device for each server and an
    /// empty volume of `size` bytes. `more` are further arguments of `gabion up`.
    pub fn on(
        folder: &Path,
        device: &str,
        size: u64,
        layout: Layout,
        backend: rt::Backend,
        tcp_only: bool,
        more: &[&str],
    ) -> Result<TestCluster> {
        let name = format!("gabion-bench-{}-{:08x}", std::process::id(), daemon::random()? as u32);
        let dir = folder.join(name);
        let cleanup = Cleanup(dir.clone());
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["up", "--detach", "--device", device])
            .args(["--volume", &format!("{VOLUME}:{size}")])
            .args(["--sds", &layout.servers.to_string()])
            .args(["--sds-per-process", &layout.per_process.to_string()])
            .args(tcp_only.then_some("--tcp-only"))
            .args(more)
            .args(["--backend", &backend.to_string(), "--dir"])
            .arg(&dir)
            .env_remove("GABION_MDM");
        let up = interrupt::output(&mut command)?;
        let words = command.get_args().map(|word| word.to_string_lossy());
        let command = format!("gabion {}", words.collect::<Vec<_>>().join(" "));
        if !up.status.success() {
            let why = String::from_utf8_lossy(&up.stderr).trim().to_owned();
            bail!("a cluster of {} SDSs did not start: {why}", layout.servers);
        }
        let target = Target { dir: dir.clone(), mdm: Vec::new() };
        let report = target.report()?;
        let volume = Volume { mdm: target.mdms()?, name: VOLUME.into(), size, backend, tcp_only };
        Ok(TestCluster { dir: cleanup, volume, processes: processes(&report), command })
    }

    /// Writes the whole volume once.
    pub fn filled(self) -> Result<TestCluster> {
        self.volume.fill(Data::Shared)?;
        Ok(self)
    }

    /// Lets volumes use all the space of the devices, because nothing will be rebuilt here.
    pub fn without_spare(self) -> Result<TestCluster> {
        self.set_pool(SetPool { spare: Some(0), ..SetPool::default() })?;
        Ok(self)
    }

    /// Changes settings of the storage pool.
    pub fn set_pool(&self, set: SetPool) -> Result<()> {
        let target = Target { dir: self.dir.0.clone(), mdm: Vec::new() };
        target.connect()?.order(Ask::SetPool(set))
    }

    /// Returns true if every copy of all data is there.
    pub fn is_healthy(&self) -> Result<bool> {
        let report = Target { dir: self.dir.0.clone(), mdm: Vec::new() }.report()?;
        Ok(report.state == State::Healthy)
    }

    /// Returns the URI of the volume over NBD.
    pub fn nbd_uri(&self) -> Result<String> {
        let uri = self.published()?.nbd_uris.into_iter().next();
        uri.context("the cluster serves no volume over NBD")
    }

    /// Returns the volume as `status` publishes it.
    pub fn published(&self) -> Result<admin::report::Volume> {
        let report = Target { dir: self.dir.0.clone(), mdm: Vec::new() }.report()?;
        report.volumes.into_iter().next().context("the cluster has no volume")
    }

    /// Returns the cluster's directory.
    pub fn dir(&self) -> &Path {
        &self.dir.0
    }
}

/// A volume that is deleted when this is dropped.
pub struct Temporary {
    target: Target,
    name: String,
}

impl Temporary {
    /// Creates and fills a volume in a running cluster.
    pub fn create(
        target: &Target,
        backend: rt::Backend,
        tcp_only: bool,
    ) -> Result<(Temporary, Volume)> {
        let name = format!("bench-{:08x}", daemon::random()? as u32);
        let size = target.connect()?.create_volume(&name, VOLUME_MIN)?.size;
        let made = Temporary { target: target.clone(), name: name.clone() };
        let volume = Volume { mdm: target.mdms()?, name, size, backend, tcp_only };
        volume.fill(Data::Shared)?;
        Ok((made, volume))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let deleted = self.target.connect().and_then(|mut a| a.delete_volume(&self.name, true));
        if let Err(why) = deleted {
            let name = &self.name;
            eprintln!("volume {name} is still there: `gabion volume delete {name}` ({why:#})");
        }
    }
}

/// Returns the processes of a cluster that run on this machine, and this one.
pub fn processes(report: &Report) -> Processes {
    let mut processes = Processes::client();
    let (mut local, mut remote) = (Vec::new(), false);
    for sds in &report.sds {
        if is_here(sds.pid, Some(&sds.address)) { local.push(sds.pid) } else { remote = true }
    }
    processes.add(Kind::Sds, local);
    if remote {
        processes.unseen.push(Kind::Sds);
    }
    let mdm: Vec<u32> =
        report.mdm.iter().filter(|m| is_here(m.pid, Some(&m.address))).map(|m| m.pid).collect();
    if mdm.len() < report.mdm.len() {
        processes.unseen.push(Kind::Mdm);
    }
    let mdm_is_here = !mdm.is_empty();
    processes.add(Kind::Mdm, mdm);
    // A client reports no host address. Clients on another host take no part in this load, and
    // neither do those that load for another measurement.
    let sdc = report.sdc.iter().filter(|s| mdm_is_here && !name::is_load(&s.name));
    processes.add(Kind::Sdc, sdc.map(|s| s.pid).filter(|pid| is_here(*pid, None)));
    processes
}

/// Returns true if `pid` at `address` is a process on this machine that runs Gabion.
fn is_here(pid: u32, address: Option<&str>) -> bool {
    let name = |path: PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
        // The kernel appends this when a new build has replaced the file.
        name.map(|n| n.trim_end_matches(" (deleted)").to_owned())
    };
    let exe = fs::read_link(format!("/proc/{pid}/exe")).ok().and_then(name);
    let ours = std::env::current_exe().ok().and_then(name);
    let at_home = address.is_none_or(|a| {
        // Only an address of this machine can be bound.
        a.parse::<SocketAddr>().is_ok_and(|a| TcpListener::bind((a.ip(), 0)).is_ok())
    });
    exe.is_some() && exe == ours && at_home
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_count_their_processes() {
        assert_eq!(Layout::apart(128).processes(), 128);
        assert_eq!(Layout::packed(128).processes(), 2);
        assert_eq!(Layout::packed(3).processes(), 2);
        assert_eq!(Layout { servers: 16, per_process: 5 }.processes(), 4);
    }

    #[test]
    fn a_process_counts_only_when_it_runs_here_and_is_ours() {
        let us = std::process::id();
        assert!(is_here(us, None) && is_here(us, Some("127.0.0.1:7000")));
        assert!(!is_here(us, Some("192.0.2.1:7000")), "an address of documentation, nobody's");
        assert!(!is_here(u32::MAX, None));
        assert!(!is_here(1, None), "init is not Gabion");
    }
}
