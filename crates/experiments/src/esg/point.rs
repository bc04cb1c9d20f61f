//! The results of step `scaling`: one point per size, workload and layout.

use super::published::{self, Kind};
use bench::figures::{Figures, KindFigures};
use bench::pair::{Rounds, Spread};
use bench::test_cluster::Layout;
use serde::Serialize;

/// The layout with as few processes as possible.
pub(crate) const PACKED: &str = "in few processes";
/// The layout with a process per SDS.
pub(crate) const APART: &str = "one per process";

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
    pub iops_spread: [f64; 2],
    /// Percentage of the cores' time that the host of this virtual machine gave to others.
    pub steal_percent: f64,
    pub floor_iops: f64,
    pub floor_us_per_io: f64,
    pub floor_machine_us_per_io: f64,
    /// Processor time of Gabion over that of the adjacent floors: the median; the lowest and the
    /// highest.
    pub ratio: f64,
    pub ratio_spread: [f64; 2],
    /// Processor time by kind of process, in the last round.
    pub cpu: Vec<KindFigures>,
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

impl Measured {
    /// Computes the medians of some rounds.
    pub(crate) fn of(taken: &Rounds<Figures>, nodes: u32) -> Measured {
        let ratio: Spread = taken.ratio(|f| f.process_us_per_io);
        let (iops, spread) = (taken.ours(|f| f.iops), taken.spread(|f| f.iops));
        Measured {
            iops,
            iops_spread: [spread.low, spread.high],
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
            cpu: taken.last().map_or(Vec::new(), |f| f.cpu.clone()),
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bench::figures::sample;

    /// Makes points of two sizes in two layouts, one of them not measured. Gabion's cost grows with
    /// the size from 3 to 3.3 us per I/O, and the floor's from 2 to 2.2 us.
    pub(crate) fn example() -> Vec<Point> {
        let taken = |us: f64| {
            Rounds::take(1, |_| Ok(sample(600e3, us)), |_| Ok(sample(300e3, us * 1.5))).unwrap()
        };
        let mut points = Vec::new();
        for kind in Kind::ALL {
            for (layout, name) in [
                (Layout::packed(3), PACKED),
                (Layout::packed(32), PACKED),
                (Layout::apart(3), APART),
                (Layout::apart(32), APART),
            ] {
                let mut point = Point::new(layout, name, kind, layout.servers * 16);
                if (name, layout.servers) == (APART, 32) {
                    point.note = Some("it <did> not start".into());
                } else {
                    let us = if layout.servers == 3 { 2.0 } else { 2.2 };
                    point.measured = Some(Measured::of(&taken(us), layout.servers));
                }
                points.push(point);
            }
        }
        points
    }

    #[test]
    fn a_point_has_the_published_figure_of_its_size() {
        let points = example();
        assert_eq!(points[0].published_iops_per_node, Some(240e3));
        let measured = points[0].measured.as_ref().unwrap();
        assert_eq!((measured.iops_per_node, measured.ratio), (100e3, 1.5));
        assert!(points[3].line().contains("not measured: it <did>"));
        let reads = &Arithmetic::of(&points)[0];
        assert_eq!(reads.iops_per_node.round(), (20e6f64 / 3.0).round());
        assert!(reads.formula.contains("not a measurement"));
    }
}
