//! The measurements of `bench ratio`: pairs of a load and its floor, and the rows from each pair.

use crate::drive::Work;
use crate::figures::Figures;
use crate::floor::{Floor, Pattern};
use crate::load::Data;
use crate::pair::Pair;
use crate::test_cluster::Layout;
use crate::workload::Workload;

/// The layout of all rows except those with many servers.
pub const BASIC: Layout = Layout { servers: 3, per_process: 1 };
/// Numbers of servers in the other rows.
pub const SIZES: [u32; 5] = [3, 16, 32, 64, 128];
/// Requests in flight per server in the other rows.
pub const DEPTH_PER_SDS: u32 = 16;
/// Percentage of reads in a mix.
pub const MIX: u32 = 70;
/// Bytes per request in the other rows.
pub const BLOCK: u32 = 4096;

/// A bound that a ratio must meet, and one that it should meet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Target {
    /// The ratio that is promised.
    pub must: f64,
    /// A better ratio that is aimed at.
    pub aim: Option<f64>,
    /// A ratio above the bounds meets them; otherwise, one below.
    pub higher_is_better: bool,
}

const fn at_most(must: f64, aim: f64) -> Target {
    Target { must, aim: Some(aim), higher_is_better: false }
}

const fn at_least(must: f64, aim: f64) -> Target {
    Target { must, aim: Some(aim), higher_is_better: true }
}

const CPU: Target = at_most(2.0, 1.5);
/// Growth of the ratio from the smallest to the largest number of servers.
pub const GROWTH: Target = at_most(1.1, 0.8);
/// In percent of one core.
pub const IDLE: Target = Target { must: 1.0, aim: None, higher_is_better: false };
/// Over the cost of `nbdkit null`.
pub const NBD: Target = at_most(1.5, 1.2);

/// Over the cost of NBD over TCP.
const HOST: Target = at_most(1.15, 1.08);
/// The same with digests of heads and data.
const HOST_DIGESTS: Target = at_most(1.25, 1.15);
/// Over the cost of NBD over a unix socket.
const LOCAL: Target = at_most(0.9, 0.8);

/// A protocol that is compared with NBD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostProtocol {
    /// iSCSI.
    Iscsi,
    /// NVMe/TCP.
    Nvme,
    /// A virtio disk (vhost-user).
    Vhost,
}

impl HostProtocol {
    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            HostProtocol::Iscsi => "iSCSI",
            HostProtocol::Nvme => "NVMe/TCP",
            HostProtocol::Vhost => "virtio disk",
        }
    }
}

/// A row that compares a protocol with NBD, both over TCP and loaded by hosts of our own. A virtio
/// disk is compared with NBD over a unix socket.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostRow {
    /// Its name.
    pub name: &'static str,
    /// The protocol.
    pub protocol: HostProtocol,
    /// The load, for people.
    pub load: &'static str,
    /// Digests of heads and data.
    pub digests: bool,
    /// Percentage of reads.
    pub mix: u32,
    /// Requests under way. With one, the median latency is compared; else the processor time of the
    /// data client.
    pub depth: u32,
    /// Its bounds.
    pub target: Target,
}

impl HostRow {
    /// Returns its title for people.
    pub fn title(&self) -> String {
        let digests = if self.digests { " with digests" } else { "" };
        format!("{}{digests}, {}, over NBD", self.protocol.name(), self.load)
    }
}

/// Returns the rows of one protocol.
const fn host_rows(protocol: HostProtocol, names: [&'static str; 4]) -> [HostRow; 4] {
    let (mix, depth, digests, target) = (100, 32, false, HOST);
    let load = "4 KiB read, depth 32";
    let read = HostRow { name: names[0], protocol, load, digests, mix, depth, target };
    let mixed = HostRow { name: names[1], load: "4 KiB 70/30, depth 32", mix: MIX, ..read };
    let checked = HostRow { name: names[2], digests: true, target: HOST_DIGESTS, ..mixed };
    let single = HostRow { name: names[3], load: "4 KiB read, depth 1", depth: 1, ..read };
    [read, mixed, checked, single]
}

const ISCSI: [HostRow; 4] =
    host_rows(HostProtocol::Iscsi, ["iscsi-read", "iscsi-mixed", "iscsi-digests", "iscsi-latency"]);
const NVME: [HostRow; 4] =
    host_rows(HostProtocol::Nvme, ["nvme-read", "nvme-mixed", "nvme-digests", "nvme-latency"]);
const VHOST: [HostRow; 2] = {
    let names = ["vhost-read", "vhost-mixed", "", ""];
    let [read, mixed, ..] = host_rows(HostProtocol::Vhost, names);
    [HostRow { target: LOCAL, ..read }, HostRow { target: LOCAL, ..mixed }]
};

/// The figure that a row compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// The machine's busy time per I/O.
    Machine,
    /// All processes' time per I/O.
    Process,
    /// The median latency, because other work on the machine dominates the mean.
    Latency,
    /// Bytes per second.
    Bytes,
    /// Requests per second.
    Iops,
}

impl Figure {
    /// Returns the value.
    pub fn of(self, f: &Figures) -> f64 {
        match self {
            Figure::Machine => f.machine_us_per_io,
            Figure::Process => f.process_us_per_io,
            Figure::Latency => f.latency_us.p50,
            Figure::Bytes => f.mb_per_s,
            Figure::Iops => f.iops,
        }
    }

    /// Returns the value in microseconds; for a rate, the time from one I/O to the next.
    pub fn us(self, f: &Figures) -> f64 {
        match self {
            Figure::Bytes | Figure::Iops => 1e6 / f.iops,
            other => other.of(f),
        }
    }

    /// Returns the unit of the value.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Machine => "us of the machine",
            Figure::Process => "us of our processes",
            Figure::Latency => "us median latency",
            Figure::Bytes => "MB/s",
            Figure::Iops => "IOPS",
        }
    }
}

/// One promised ratio.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The figure that is compared.
    pub figure: Figure,
    /// Its bounds.
    pub target: Target,
}

/// A pair of measurements, and the rows computed from it.
#[derive(Clone, PartialEq, Debug)]
pub struct Planned {
    /// Its title for people.
    pub title: String,
    /// The two measurements.
    pub pair: Pair,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row that compares the ratio at the largest number of servers with that at the smallest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Its name.
    pub name: String,
    /// Its title for people.
    pub title: String,
    /// The row with the smallest number of servers.
    pub start: String,
    /// The row with the largest one.
    pub end: String,
}

/// All measurements and rows of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The pairs to measure.
    pub pairs: Vec<Planned>,
    /// The rows about growth.
    pub growths: Vec<Growth>,
    /// Measure an idle cluster, too.
    pub idle: bool,
    /// Measure NBD, too.
    pub nbd: bool,
    /// The rows about iSCSI and NVMe/TCP.
    pub hosts: Vec<HostRow>,
    only: Vec<String>,
}

/// Returns the pair for random reads, or a mix of reads and writes, with the floor of the same
/// layout.
pub fn many(layout: Layout, mixed: bool) -> Pair {
    let depth = layout.servers * DEPTH_PER_SDS;
    let (pattern, workload) =
        if mixed { (Pattern::Mix, Workload::Randrw) } else { (Pattern::Read, Workload::Randread) };
    pair(layout, pattern, workload, depth, BLOCK)
}

fn pair(layout: Layout, pattern: Pattern, workload: Workload, depth: u32, block: u32) -> Pair {
    // Polling matters to a client that waits for each answer, so the floor polls in that case, too.
    let spin = depth == 1;
    Pair {
        floor: Floor { pattern, mix: MIX, layout, connections: 1, depth, block, spin },
        work: Work { workload, mix: MIX, block, depth, rate: None, jobs: 1, data: Data::Shared },
    }
}

impl Plan {
    /// Returns all rows, with `per_process` servers per process where there are many servers.
    // Long: a table, one entry per promise.
    pub fn new(per_process: Option<u32>) -> Plan {
        let row = |name: &str, figure, target| Row { name: name.to_owned(), figure, target };
        let basic = |title: &str, pattern, workload, depth, block, rows| Planned {
            title: title.to_owned(),
            pair: pair(BASIC, pattern, workload, depth, block),
            rows,
        };
        let mut pairs = vec![
            basic(
                "4 KiB read, depth 64",
                Pattern::Read,
                Workload::Randread,
                64,
                BLOCK,
                vec![
                    row("read", Figure::Machine, CPU),
                    row("read-iops", Figure::Iops, at_least(300.0 / 656.0, 430.0 / 656.0)),
                ],
            ),
            basic(
                "4 KiB write, depth 64",
                Pattern::Mirror,
                Workload::Randwrite,
                64,
                BLOCK,
                vec![
                    row("write", Figure::Machine, CPU),
                    row("write-iops", Figure::Iops, at_least(160.0 / 320.0, 215.0 / 320.0)),
                ],
            ),
            basic(
                "4 KiB 70/30, depth 64",
                Pattern::Mix,
                Workload::Randrw,
                64,
                BLOCK,
                vec![row("mixed", Figure::Machine, CPU)],
            ),
            basic(
                "4 KiB read, depth 1",
                Pattern::Read,
                Workload::Randread,
                1,
                BLOCK,
                vec![row("read-latency", Figure::Latency, at_most(1.3, 1.15))],
            ),
            basic(
                "4 KiB write, depth 1",
                Pattern::Mirror,
                Workload::Randwrite,
                1,
                BLOCK,
                vec![row("write-latency", Figure::Latency, at_most(1.3, 1.15))],
            ),
            basic(
                "1 MiB read, depth 8",
                Pattern::Stream,
                Workload::Read,
                8,
                1 << 20,
                vec![row("sequential-read", Figure::Bytes, at_least(0.85, 0.95))],
            ),
        ];
        let mut growths = Vec::new();
        for suffix in ["", "-apart"] {
            for servers in SIZES {
                let layout = match (suffix, per_process) {
                    ("-apart", _) => Layout::apart(servers),
                    (_, Some(per_process)) => Layout { servers, per_process },
                    _ => Layout::packed(servers),
                };
                for kind in ["read", "mixed"] {
                    let processes = layout.processes();
                    pairs.push(Planned {
                        title: format!("4 KiB {kind}, {servers} SDSs in {processes} processes"),
                        pair: many(layout, kind == "mixed"),
                        // While the floor is measured, the idle cluster's heartbeats would count as
                        // the floor's machine time.
                        rows: vec![row(
                            &format!("{kind}-{servers}sds{suffix}"),
                            Figure::Process,
                            CPU,
                        )],
                    });
                }
            }
            for kind in ["read", "mixed"] {
                let name = |size: u32| format!("{kind}-{size}sds{suffix}");
                let (first, last) = (SIZES[0], SIZES[SIZES.len() - 1]);
                growths.push(Growth {
                    name: format!("growth-{kind}{suffix}"),
                    title: format!("{kind}: cost from {first} to {last} SDSs"),
                    start: name(first),
                    end: name(last),
                });
            }
        }
        let hosts = [&ISCSI[..], &NVME, &VHOST].concat();
        Plan { pairs, growths, idle: true, nbd: true, hosts, only: Vec::new() }
    }

    /// Returns the names of all rows.
    pub fn names(&self) -> Vec<String> {
        let rows = self.pairs.iter().flat_map(|p| &p.rows).map(|r| r.name.clone());
        let growths = self.growths.iter().map(|g| g.name.clone());
        let hosts = self.hosts.iter().map(|row| row.name.to_owned());
        rows.chain(growths).chain(["idle", "nbd"].map(str::to_owned)).chain(hosts).collect()
    }

    /// Returns true if a row matches `pattern`, which is a name or NAME*.
    pub fn has(&self, pattern: &str) -> bool {
        self.names().iter().any(|name| matches(pattern, name))
    }

    /// Returns true if the row was requested, and is not only needed for another one.
    pub fn is_wanted(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| matches(pattern, name))
    }

    /// Keeps the named rows and those that they need; all rows if none is named.
    pub fn keep(&mut self, only: &[String]) {
        self.only = only.to_vec();
        let wanted = |name: &str| only.is_empty() || only.iter().any(|p| matches(p, name));
        self.growths.retain(|g| wanted(&g.name));
        let growths = &self.growths;
        let needed = |name: &str| growths.iter().any(|g| g.start == name || g.end == name);
        for planned in &mut self.pairs {
            planned.rows.retain(|r| wanted(&r.name) || needed(&r.name));
        }
        self.pairs.retain(|p| !p.rows.is_empty());
        self.hosts.retain(|row| wanted(row.name));
        (self.idle, self.nbd) = (wanted("idle"), wanted("nbd"));
    }

    /// Returns the layouts of the remaining rows, each once.
    pub fn layouts(&self) -> Vec<Layout> {
        let mut layouts: Vec<Layout> = Vec::new();
        if self.idle || self.nbd || !self.hosts.is_empty() {
            layouts.push(BASIC);
        }
        for planned in &self.pairs {
            if !layouts.contains(&planned.pair.floor.layout) {
                layouts.push(planned.pair.floor.layout);
            }
        }
        layouts
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_a_growth_brings_its_ends() {
        let mut plan = Plan::new(None);
        let mut names = plan.names();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), plan.names().len());
        assert!(plan.has("idle") && plan.has("read*") && !plan.has("x*"));
        plan.keep(&["growth-read".to_owned()]);
        assert_eq!(plan.names()[..3], ["read-3sds", "read-128sds", "growth-read"]);
        assert_eq!(plan.layouts(), [Layout::packed(3), Layout::packed(128)]);
        assert!(plan.is_wanted("growth-read") && !plan.is_wanted("read-3sds"));
        assert!(!plan.idle && !plan.nbd && plan.hosts.is_empty());
    }

    #[test]
    fn both_sides_of_a_pair_have_the_same_depth_and_size() {
        for p in Plan::new(Some(8)).pairs {
            assert_eq!(
                (p.pair.floor.depth, p.pair.floor.block),
                (p.pair.work.depth, p.pair.work.block)
            );
        }
    }
}
