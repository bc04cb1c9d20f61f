//! iSCSI and NVMe/TCP against NBD, all over TCP: the same hosts, volume and data client. And a
//! virtio disk against NBD, both over unix sockets: the same program makes the load.

use super::outcome::Outcome;
use super::rows::{BLOCK, HostProtocol, HostRow};
use crate::cpu::{Kind, Processes};
use crate::figures::Figures;
use crate::hosts::local::{self, LocalNbd};
use crate::hosts::{self, Iscsi, Nbd, Nvme, Vhost, Work};
use crate::interrupt;
use crate::pair::Rounds;
use crate::test_cluster::{Ports, TestCluster};
use anyhow::{Context, Result, bail};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long `gabion vhost` may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The socket at which a cluster of `gabion up` serves NBD, in its directory.
const NBD_SOCKET: &str = "nbd.sock";

/// Measures NBD and the row's protocol in turn.
pub(crate) fn measure(
    row: &HostRow,
    cluster: &TestCluster,
    ports: Ports,
    rounds: usize,
    window: Duration,
) -> Result<Outcome> {
    let work = Work { mix: row.mix, block: BLOCK, depth: row.depth };
    let (processes, size) = (&cluster.processes, cluster.volume.size);
    let volume = cluster.published()?;
    let (name, title) = (row.protocol.name(), row.title());
    let virtio = match row.protocol {
        HostProtocol::Vhost => Some(Backend::start(cluster)?),
        _ => None,
    };
    let socket = cluster.dir().join(NBD_SOCKET);
    let taken = Rounds::take(
        rounds,
        |at| {
            let title = format!("{title}, NBD, {at}");
            if virtio.is_some() {
                let (socket, export) = (socket.clone(), volume.name.clone());
                let attach = move || LocalNbd::attach(&socket, &export, BLOCK);
                return local::load(&title, attach, size, work, processes, window);
            }
            let host = Nbd::new(&volume.name, BLOCK);
            hosts::load(&title, host, (ports.nbd, size), work, processes, window)
        },
        |at| {
            let title = format!("{title}, {name}, {at}");
            match (row.protocol, &virtio) {
                (HostProtocol::Iscsi, _) => {
                    let host = Iscsi::new(&volume.iscsi_target, row.digests);
                    hosts::load(&title, host, (ports.iscsi, size), work, processes, window)
                }
                (HostProtocol::Nvme, _) => {
                    let host = Nvme::new(&volume.nvme_subsystem, volume.id, row.digests);
                    hosts::load(&title, host, (ports.nvme, size), work, processes, window)
                }
                (HostProtocol::Vhost, virtio) => {
                    let backend = virtio.as_ref().context("it was started above")?;
                    let (socket, processes) = (backend.socket.clone(), backend.processes());
                    let attach = move || Vhost::attach(&socket);
                    local::load(&title, attach, size, work, &processes, window)
                }
            }
        },
    )?;
    let figure = |f: &Figures| if row.depth == 1 { f.latency_us.p50 } else { client_us(f) };
    let unit = if row.depth == 1 { "us median latency" } else { "us of the SDC" };
    let (us, ours_us) = (taken.floor(figure), taken.ours(figure));
    Ok(Outcome {
        note: Some(format!(
            "IOPS: NBD {:.0}, {name} {:.0}",
            taken.floor(|f| f.iops),
            taken.ours(|f| f.iops)
        )),
        process_ratio: Some(taken.ratio(|f| f.process_us_per_io).median),
        machine_ratio: Some(taken.ratio(|f| f.machine_us_per_io).median),
        ..Outcome::new(row.name, &title, unit, row.target)
            .with_figures([us, ours_us], [us, ours_us])
            .with_ratio(taken.ratio(figure))
    })
}

/// Returns the processor time of the data client per request.
fn client_us(figures: &Figures) -> f64 {
    figures.cpu.iter().filter(|k| k.kind == Kind::Sdc).map(|k| k.us_per_io).sum()
}

/// A process of `gabion vhost` that serves the cluster's volume. Dropping it ends the process.
struct Backend {
    child: Child,
    socket: PathBuf,
}

impl Backend {
    /// Starts it, and returns when it listens.
    fn start(cluster: &TestCluster) -> Result<Backend> {
        let socket = cluster.dir().join("vhost.sock");
        let child = Command::new(std::env::current_exe()?)
            .args(["vhost", &cluster.volume.name, "--dir"])
            .arg(cluster.dir())
            .arg("--socket")
            .arg(&socket)
            .env_remove("GABION_MDM")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut backend = Backend { child, socket };
        let deadline = Instant::now() + START_TIMEOUT;
        while UnixStream::connect(&backend.socket).is_err() {
            if let Some(status) = backend.child.try_wait()? {
                bail!("`gabion vhost` has ended: {status}");
            }
            if Instant::now() > deadline {
                bail!("`gabion vhost` did not start within {START_TIMEOUT:?}");
            }
            interrupt::sleep(Duration::from_millis(5))?;
        }
        Ok(backend)
    }

    /// Returns this process and the backend, which is a data client.
    fn processes(&self) -> Processes {
        let mut processes = Processes::client();
        processes.add(Kind::Sdc, [self.child.id()]);
        processes
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
