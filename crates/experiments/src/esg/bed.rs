//! A cluster under test, its two loads, and what limits it.

use super::published::Kind;
use crate::log::Log;
use anyhow::Result;
use bench::disk::fio::{Pattern, RawFile};
use bench::drive::Work;
use bench::figures::Figures;
use bench::floor::Floor;
use bench::load::Data;
use bench::ratio::rows;
use bench::test_cluster::{Layout, TestCluster};
use bench::workload::Workload;
use clap::ValueEnum;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Volumes have this many bytes per SDS, and at least `volume_min`.
const VOLUME_PER_SDS: u64 = 16 << 20;
/// Bytes of a device that keeps data.
const DEVICE: u64 = base::GIB;
/// The part of the permitted descriptors that links between SDSs may take.
const FILLED: f64 = 0.85;

/// What an SDS keeps data on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Medium {
    /// Nothing is kept
    Null,
    /// Memory, which stands for a fast flash card
    Ram,
    /// Files on this machine's disk
    File,
}

/// What all measurements of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub devices_per_sds: u32,
    pub clients: u32,
    pub rounds: usize,
    pub window: Duration,
    pub volume_min: u64,
    pub backend: rt::Backend,
    /// Where file devices are.
    pub folder: PathBuf,
}

/// A cluster that is ready for load.
pub(crate) struct Bed {
    pub medium: Medium,
    pub layout: Layout,
    cluster: TestCluster,
    /// fio's file, beside file devices.
    raw: Option<RawFile>,
}

impl Medium {
    /// Returns the name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Medium::Null => "null",
            Medium::Ram => "ram",
            Medium::File => "file",
        }
    }

    /// Returns the name of what limits it.
    pub(crate) fn limit(self) -> &'static str {
        match self {
            Medium::File => "fio on the same disk",
            _ => "floor",
        }
    }

    fn device(self) -> String {
        match self {
            Medium::Null => "null:1TiB".into(),
            Medium::Ram => format!("ram:{DEVICE}"),
            Medium::File => format!("file:{DEVICE}"),
        }
    }
}

impl Setup {
    /// Puts all SDSs into two processes; into more if the links between their devices need more
    /// descriptors than a process may have.
    pub(crate) fn packed(&self, servers: u32, descriptors: u64) -> Layout {
        let devices = u64::from(servers * self.devices_per_sds);
        let links = (devices * devices) as f64;
        let processes = (links / (descriptors as f64 * FILLED)).ceil().max(2.0);
        Layout { servers, per_process: (f64::from(servers) / processes).ceil() as u32 }
    }

    /// Returns the size of a cluster's volume.
    pub(crate) fn volume(&self, servers: u32) -> u64 {
        (u64::from(servers) * VOLUME_PER_SDS).max(self.volume_min)
    }

    /// Returns the floor and the load of a workload. A device has its own address and links, as a
    /// server of the floor has.
    pub(crate) fn pair(&self, layout: Layout, kind: Kind) -> (Floor, Work) {
        let mut pair = rows::many(layout, kind == Kind::Mixed);
        pair.floor.layout.servers *= self.devices_per_sds;
        pair.floor.layout.per_process *= self.devices_per_sds;
        pair.floor.connections = self.clients;
        (pair.work.depth, pair.work.jobs) = ((pair.work.depth / self.clients).max(1), self.clients);
        (pair.floor, pair.work)
    }
}

impl Bed {
    /// Starts a cluster and writes its volume once.
    pub(crate) fn start(
        setup: &Setup,
        medium: Medium,
        layout: Layout,
        log: &mut Log,
    ) -> Result<Bed> {
        let what = format!("{} SDSs start, {}", layout.servers, medium.name());
        let line = fleet::progress::Line::new(&what);
        let device = medium.device();
        let more: Vec<&str> =
            (1..setup.devices_per_sds).flat_map(|_| ["--device", device.as_str()]).collect();
        let size = setup.volume(layout.servers);
        let folder = match medium {
            Medium::File => setup.folder.clone(),
            _ => std::env::temp_dir(),
        };
        log.transcript.add(what);
        let cluster = TestCluster::on(&folder, &device, size, layout, setup.backend, true, &more)?;
        log.transcript.add(&cluster.command);
        let cluster = cluster.filled()?;
        log.transcript.add(format!("all {size} bytes of the volume are written"));
        let raw = (medium == Medium::File).then(|| RawFile::new(&folder, size)).transpose()?;
        drop(line);
        Ok(Bed { medium, layout, cluster, raw })
    }

    /// Measures the cluster.
    pub(crate) fn ours(
        &self,
        setup: &Setup,
        kind: Kind,
        title: &str,
        log: &mut Log,
    ) -> Result<Figures> {
        let (_, work) = setup.pair(self.layout, kind);
        log.transcript.add(format!("load: {title}, Gabion"));
        let processes = &self.cluster.processes;
        let mut sampler = log.sampler(title, processes);
        let look = |counters: &[_]| sampler.look(counters);
        let taken = self.cluster.volume.watched(title, &work, processes, setup.window, look);
        log.note_failure(title, taken)
    }

    /// Writes words that tell their place to a medium that keeps them, and reads all of it.
    pub(crate) fn verify(&self, log: &mut Log) -> Result<()> {
        if self.medium == Medium::Null {
            return Ok(());
        }
        let title =
            format!("{} on {}: all is read and compared", self.layout.servers, self.medium.name());
        log.transcript.add(&title);
        let data = Data::Checked;
        let read = Work {
            workload: Workload::Read,
            mix: 0,
            block: 1 << 20,
            depth: 16,
            rate: None,
            jobs: 1,
            data,
        };
        let volume = &self.cluster.volume;
        let read = volume.fill(data).and_then(|()| volume.once(&read));
        log.note_failure(&title, read)
    }

    /// Measures the requests per second of what limits it.
    pub(crate) fn limit(
        &self,
        setup: &Setup,
        kind: Kind,
        title: &str,
        log: &mut Log,
    ) -> Result<f64> {
        let Some(raw) = &self.raw else {
            return Ok(floor(setup, self.layout, kind, title, log)?.iops);
        };
        let (floor, work) = setup.pair(self.layout, kind);
        let mixed = kind == Kind::Mixed;
        let pattern = Pattern {
            rw: if mixed { "randrw" } else { "randread" },
            durable: mixed,
            mix: work.mix,
            block: work.block,
            depth: floor.depth,
        };
        let command = raw.command(&pattern, setup.window);
        let words = command.get_args().map(|word| word.to_string_lossy());
        log.transcript.add(format!("fio {}", words.collect::<Vec<_>>().join(" ")));
        raw.run(&format!("{title}, fio"), &pattern, setup.window)
    }

    /// Notes whether every copy is there at the end.
    pub(crate) fn end(&self, log: &mut Log) -> Result<()> {
        if !self.cluster.is_healthy()? {
            let (servers, medium) = (self.layout.servers, self.medium.name());
            log.unhealthy.push(format!("{servers} SDSs, {medium}: copies are missing at the end"));
        }
        Ok(())
    }
}

/// Measures the floor of a layout.
pub(crate) fn floor(
    setup: &Setup,
    layout: Layout,
    kind: Kind,
    title: &str,
    log: &mut Log,
) -> Result<Figures> {
    log.transcript.add(format!("load: {title}, floor"));
    setup.pair(layout, kind).0.measure(&format!("{title}, floor"), setup.window)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup {
            devices_per_sds: 2,
            clients: 4,
            rounds: 1,
            window: Duration::from_secs(1),
            volume_min: 512 << 20,
            backend: rt::Backend::Auto,
            folder: ".".into(),
        }
    }

    #[test]
    fn both_sides_have_the_same_requests_and_connections() {
        let (floor, work) = setup().pair(Layout::packed(32), Kind::Mixed);
        assert_eq!((floor.layout.servers, floor.layout.processes()), (64, 2));
        assert_eq!((floor.depth, work.depth * work.jobs), (32 * 16, 32 * 16));
        assert_eq!((floor.connections, work.jobs), (4, 4));
    }

    #[test]
    fn many_devices_take_as_many_processes_as_their_links_need() {
        let setup = setup();
        assert_eq!(setup.packed(3, 20_000).processes(), 2);
        assert_eq!(setup.packed(64, 20_000).processes(), 2);
        assert_eq!(setup.packed(128, 20_000).processes(), 4);
        assert_eq!(setup.packed(128, 1 << 20).processes(), 2);
        assert_eq!((setup.volume(3), setup.volume(128)), (512 << 20, 2 << 30));
    }
}
