//! The results of the experiment, in the format of `report.json`.

use super::published::{self, Kind};
use bench::figures::Figures;
use bench::pair::{Rounds, Spread};
use bench::test_cluster::Layout;
use serde::Serialize;
use std::fs;

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub experiment: &'static str,
    pub gabion: &'static str,
    pub machine: Machine,
    pub rounds: u32,
    pub seconds: f64,
    pub block_bytes: u32,
    pub depth_per_sds: u32,
    pub published: Published,
    pub scaling: Vec<Point>,
    /// Not measured: the IOPS of a host with the published cores at our processor time per I/O.
    pub arithmetic: Vec<Arithmetic>,
    /// Explanations of what the method can't show.
    pub limits: Vec<String>,
}

/// The published figures that don't depend on the number of nodes.
#[derive(Debug, Serialize)]
pub(crate) struct Published {
    pub cores_per_node: f64,
    pub iops_per_node_null_device: f64,
    pub iops_per_node_flash_card: f64,
    pub cpu_us_per_read: f64,
}

/// The results for one size, workload and layout.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub nodes: u32,
    pub workload: Kind,
    pub layout: String,
    pub sds_per_process: u32,
    /// Processes of data servers.
    pub processes: u32,
    /// Requests in flight, at all nodes together.
    pub depth: u32,
    #[serde(flatten)]
    pub measured: Option<Measured>,
    pub published_iops: Option<f64>,
    pub published_iops_per_node: Option<f64>,
    pub published_cpu_us_per_io: Option<f64>,
    /// Why the point was not measured.
    pub note: Option<String>,
}

/// Medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub iops: f64,
    pub iops_per_node: f64,
    /// Processor time of all participating processes.
    pub cpu_us_per_io: f64,
    /// Busy time of the whole machine.
    pub machine_us_per_io: f64,
    pub latency_p50_us: f64,
    pub latency_p99_us: f64,
    /// Percentage of the cores' time that the host of this virtual machine gave to others.
    pub steal_percent: f64,
    pub floor_iops: f64,
    pub floor_us_per_io: f64,
    pub floor_machine_us_per_io: f64,
    /// Processor time of Gabion over that of the adjacent floors: the median; the lowest and the
    /// highest.
    pub ratio: f64,
    pub ratio_spread: [f64; 2],
}

/// A figure computed from a measured and a published one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Arithmetic {
    pub nodes: u32,
    pub workload: Kind,
    pub layout: String,
    /// How the figure is computed.
    pub formula: &'static str,
    pub iops_per_node: f64,
}

/// The machine of the measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub cores: usize,
    pub processor: String,
    pub virtual_machine: bool,
    pub memory_bytes: u64,
    pub kernel: String,
    /// Load average over 1, 5 and 15 minutes when the measurement began.
    pub load_average: String,
    /// How Gabion talks to the kernel.
    pub backend: String,
}

impl Measured {
    /// Computes the medians of some rounds.
    pub(crate) fn of(taken: &Rounds<Figures>, nodes: u32) -> Measured {
        let ratio: Spread = taken.ratio(|f| f.process_us_per_io);
        let iops = taken.ours(|f| f.iops);
        Measured {
            iops,
            iops_per_node: iops / f64::from(nodes),
            cpu_us_per_io: taken.ours(|f| f.process_us_per_io),
            machine_us_per_io: taken.ours(|f| f.machine_us_per_io),
            latency_p50_us: taken.ours(|f| f.latency_us.p50),
            latency_p99_us: taken.ours(|f| f.latency_us.p99),
            steal_percent: taken.ours(|f| f.steal_percent),
            floor_iops: taken.floor(|f| f.iops),
            floor_us_per_io: taken.floor(|f| f.process_us_per_io),
            floor_machine_us_per_io: taken.floor(|f| f.machine_us_per_io),
            ratio: ratio.median,
            ratio_spread: [ratio.low, ratio.high],
        }
    }
}

impl Point {
    /// Creates a point that is not measured yet.
    pub(crate) fn new(layout: Layout, name: &str, kind: Kind, depth: u32) -> Point {
        let nodes = layout.servers;
        let published_iops = published::iops(kind, nodes);
        Point {
            nodes,
            workload: kind,
            layout: name.to_owned(),
            sds_per_process: layout.per_process,
            processes: layout.processes(),
            depth,
            measured: None,
            published_iops,
            published_iops_per_node: published_iops.map(|n| n / f64::from(nodes)),
            published_cpu_us_per_io: published::cpu_us(kind, nodes),
            note: None,
        }
    }

    /// Returns the point as one line for people.
    pub(crate) fn line(&self) -> String {
        let start = format!("{:>5} {:<6} {:<12}", self.nodes, self.workload.name(), self.layout);
        match &self.measured {
            None => format!("{start} not measured: {}", self.note.as_deref().unwrap_or("")),
            Some(m) => format!(
                "{start} {:>9.0} {:>9.0} {:>9.2} {:>9.2} {:>6.2} ({:.2}-{:.2})",
                m.iops,
                m.iops_per_node,
                m.cpu_us_per_io,
                m.floor_us_per_io,
                m.ratio,
                m.ratio_spread[0],
                m.ratio_spread[1]
            ),
        }
    }

    /// Returns the header of these lines.
    pub(crate) fn head() -> String {
        format!(
            "{:>5} {:<6} {:<12} {:>9} {:>9} {:>9} {:>9} {:>6} (spread)",
            "nodes", "", "layout", "IOPS", "per node", "CPU us", "floor us", "ratio"
        )
    }
}

impl Arithmetic {
    /// Computes the figures for the points that were measured.
    pub(crate) fn of(points: &[Point]) -> Vec<Arithmetic> {
        let with = points.iter().filter_map(|p| Some((p, p.measured.as_ref()?)));
        with.map(|(p, m)| Arithmetic {
            nodes: p.nodes,
            workload: p.workload,
            layout: p.layout.clone(),
            formula: "20 cores / our cpu_us_per_io: arithmetic, not a measurement",
            iops_per_node: published::CORES * 1e6 / m.cpu_us_per_io,
        })
        .collect()
    }
}

impl Published {
    /// Returns the published figures.
    pub(crate) fn new() -> Published {
        Published {
            cores_per_node: published::CORES,
            iops_per_node_null_device: published::NULL_DEVICE,
            iops_per_node_flash_card: published::FLASH_CARD,
            cpu_us_per_read: published::CPU_US_PER_READ,
        }
    }
}

impl Machine {
    /// Describes this machine. Values that the kernel does not report are empty.
    pub(crate) fn this(backend: rt::Backend) -> Machine {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let cpu = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpu.lines().find(|l| l.starts_with(name));
            line.and_then(|l| l.split_once(':')).map_or("", |(_, value)| value.trim())
        };
        let memory = read("/proc/meminfo");
        let kib = memory.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
        Machine {
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            processor: field("model name").to_owned(),
            virtual_machine: field("flags").split(' ').any(|f| f == "hypervisor"),
            memory_bytes: kib.unwrap_or(0) << 10,
            kernel: read("/proc/sys/kernel/osrelease"),
            load_average: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            backend: backend.to_string(),
        }
    }
}

/// Returns explanations of what one machine can't show, and of how to read the figures.
pub(crate) fn limits(machine: &Machine) -> Vec<String> {
    let cores = machine.cores;
    vec![
        format!(
            "One machine of {cores} cores carries all nodes and the client, so the sum can't grow with \
             the number of nodes, and the rate per node falls as their number rises. What can be compared \
             is processor time per I/O: whether it grows with the number of nodes."
        ),
        "Processor time per I/O grows with the number of connections, because batches get smaller; that is \
         so for bare frames, too. So the floor stands beside each figure: the same number of servers, \
         processes, connections, requests and bytes, without any product logic."
            .into(),
        format!(
            "With one process per SDS, N processes on {cores} cores pay for context switches that hosts \
             don't have that own their cores. With all SDSs in two processes, several SDSs share a thread, \
             each with sockets, a device and an identity of its own: it has fewer wake-ups than separate \
             hosts would have. Real hosts are between the two."
        ),
        "The network is the loopback interface: no network card, no interrupts, no switch, packets of \
         64 KiB. Copies in the kernel are included."
            .into(),
        "There is one client for all nodes. In the original every node was a client, too; its 83 us per \
         read assume that all 20 cores of each node were busy."
            .into(),
        "Devices are NULL devices, as in the original's scaling test: what is read from them carries no \
         payload checksum; what is written does. Everything else is on: heads' checksums, epochs, sessions, \
         leases, two copies."
            .into(),
        "The published sums below 128 nodes are products: reads are published as linear from 240 K per \
         node, the mix as about 220 K per node; the sums at 128 nodes are published as such. A published \
         figure stands only at 3, 32, 64 and 128 nodes."
            .into(),
        "A row called arithmetic is a product, not a measurement: it assumes that nothing but processor \
         time limits a node, and that a core of 2.8 GHz of 2015 does what a core of this machine does, \
         which is not so."
            .into(),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bench::figures::sample;

    /// A report of two sizes in two layouts, with one point that was not measured.
    pub(crate) fn example() -> Report {
        let taken =
            Rounds::take(1, |_| Ok(sample(600e3, 2.0)), |_| Ok(sample(300e3, 3.0))).unwrap();
        let mut scaling = Vec::new();
        for kind in Kind::ALL {
            for (layout, name) in [
                (Layout::packed(3), "packed"),
                (Layout::packed(32), "packed"),
                (Layout::apart(3), "apart"),
                (Layout::apart(32), "apart"),
            ] {
                let mut point = Point::new(layout, name, kind, layout.servers * 16);
                if (name, layout.servers) == ("apart", 32) {
                    point.note = Some("it <did> not start".into());
                } else {
                    point.measured = Some(Measured::of(&taken, layout.servers));
                }
                scaling.push(point);
            }
        }
        let machine = Machine::this(rt::Backend::Auto);
        Report {
            experiment: "esg",
            gabion: "0",
            limits: limits(&machine),
            machine,
            rounds: 1,
            seconds: 1.0,
            block_bytes: 4096,
            depth_per_sds: 16,
            published: Published::new(),
            arithmetic: Arithmetic::of(&scaling),
            scaling,
        }
    }

    /// The published format. This test may only be extended.
    #[test]
    fn the_published_fields_are_all_there() {
        let report = example();
        let json = serde_json::to_value(&report).unwrap();
        for field in [
            "nodes",
            "workload",
            "layout",
            "sds_per_process",
            "iops",
            "iops_per_node",
            "cpu_us_per_io",
            "machine_us_per_io",
            "floor_us_per_io",
            "floor_iops",
            "ratio",
            "published_iops_per_node",
        ] {
            assert!(json["scaling"][0].get(field).is_some(), "{field} in {json:#}");
        }
        assert_eq!(json["scaling"][0]["workload"], "read");
        assert_eq!(json["scaling"][0]["iops_per_node"], 100e3);
        assert!(json["scaling"][3]["note"].is_string() && json["scaling"][3].get("iops").is_none());
        assert!(json["limits"].as_array().unwrap().iter().all(|l| l.is_string()));
        assert!(json["machine"]["cores"].as_u64() > Some(0));
        let (reads, line) = (&report.arithmetic[0], report.scaling[3].line());
        assert_eq!(reads.iops_per_node.round(), (20e6f64 / 3.0).round());
        assert!(reads.formula.contains("not a measurement") && line.contains("not measured"));
    }
}
