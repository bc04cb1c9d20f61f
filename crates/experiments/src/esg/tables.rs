//! The tables: media, growth, what a node of 20 cores would do, and all figures.

use super::media::MediaPoint;
use super::point::{Arithmetic, Point};
use super::published::{self, Kind};
use crate::report::table::{Cell, Table};

/// Returns the media at three and six nodes, with the difference from NULL devices in percent.
pub(crate) fn media(points: &[MediaPoint]) -> Table {
    let percent = |share: f64| ((1.0 - share) * 1e4).round() / 100.0;
    let row = |p: &MediaPoint| {
        let flash = p.medium == super::bed::Medium::Ram;
        let published = if flash {
            Cell::Number(percent(published::flash_share(p.workload)))
        } else {
            Cell::None
        };
        vec![
            Cell::Text(p.nodes.to_string()),
            p.workload.title().into(),
            p.medium.name().into(),
            p.iops.into(),
            p.iops_per_node.into(),
            published,
            Cell::maybe(p.over_null.map(percent)),
            p.cpu_us_per_io.into(),
            p.limit.into(),
            p.limit_iops.into(),
            p.over_limit.into(),
            p.latency_p50_us.into(),
            p.latency_p99_us.into(),
        ]
    };
    Table {
        id: "media",
        title: "Media at three and six nodes".into(),
        columns: vec![
            "nodes",
            "load",
            "medium",
            "IOPS",
            "IOPS per node",
            "below NULL, %, published (flash)",
            "below NULL, %, ours",
            "CPU us per I/O",
            "limit",
            "limit, IOPS",
            "over the limit",
            "median latency, us",
            "99 %, us",
        ],
        rows: points.iter().map(row).collect(),
        note:
            "RAM devices do all that the store does with a fast flash card: checksums of heads and \
               payloads, and copies. NULL devices keep nothing. The disk of this machine is behind \
               the file devices."
                .into(),
    }
}

/// Returns the totals at each size, published and ours.
pub(crate) fn growth(points: &[Point]) -> Table {
    let row = |p: &Point| {
        let m = p.measured.as_ref();
        let stated = |cell: Cell, nodes: u32| match cell {
            Cell::Number(n) => Cell::Number(n / f64::from(nodes)),
            Cell::Derived(n) => Cell::Derived(n / f64::from(nodes)),
            other => other,
        };
        vec![
            Cell::Text(p.nodes.to_string()),
            p.workload.title().into(),
            p.layout.clone().into(),
            published::cell(p.workload, p.nodes, false),
            Cell::maybe(m.map(|m| m.iops)),
            published::cell(p.workload, p.nodes, true),
            stated(published::cell(p.workload, p.nodes, false), p.nodes),
            Cell::maybe(m.map(|m| m.iops_per_node)),
            p.published_cpu_us_per_io.map_or(Cell::None, Cell::Derived),
            Cell::maybe(m.map(|m| m.cpu_us_per_io)),
            Cell::maybe(m.map(|m| m.ratio)),
        ]
    };
    Table {
        id: "growth",
        title: "Growth with the number of nodes".into(),
        columns: vec![
            "nodes",
            "load",
            "layout",
            "IOPS, published",
            "IOPS, ours",
            "IOPS with flash, published estimate",
            "per node, published",
            "per node, ours",
            "CPU us, published",
            "CPU us, ours",
            "ours over the floor",
        ],
        rows: points.iter().map(row).collect(),
        note:
            "The publication's summary says 26.7 M for 70/30 at 128 nodes and its text 23.7 M; 128 \
               times the 185 K of its figure is 23.7 M, which stands here."
                .into(),
    }
}

/// Returns what a node of the publication would do at our cost.
pub(crate) fn arithmetic(all: &[Arithmetic]) -> Table {
    let row = |a: &Arithmetic| {
        let published = published::iops(a.workload, a.nodes).map(|n| n / f64::from(a.nodes));
        vec![
            Cell::Text(a.nodes.to_string()),
            a.workload.title().into(),
            a.layout.clone().into(),
            published.map_or(Cell::None, Cell::Derived),
            Cell::Derived(a.iops_per_node),
        ]
    };
    Table {
        id: "arithmetic",
        title: "Arithmetic, not a measurement".into(),
        columns: vec!["nodes", "load", "layout", "IOPS per node, published", "computed from ours"],
        rows: all.iter().map(row).collect(),
        note: "What a node of 20 cores would do if nothing but processor time limited it, at the \
               processor time per I/O that was measured here: 20 000 000 us per second, divided."
            .into(),
    }
}

/// Returns all figures of step `scaling`.
pub(crate) fn scaling(points: &[Point]) -> Table {
    let row = |p: &Point| {
        let mut row = vec![
            Cell::Text(p.nodes.to_string()),
            p.workload.title().into(),
            p.layout.clone().into(),
            Cell::Text(p.processes.to_string()),
        ];
        match &p.measured {
            Some(m) => {
                row.extend([m.iops, m.cpu_us_per_io, m.machine_us_per_io].map(Cell::Number));
                row.extend([m.floor_us_per_io, m.floor_machine_us_per_io].map(Cell::Number));
                let [low, high] = m.ratio_spread;
                row.push(format!("{:.2} ({low:.2}-{high:.2})", m.ratio).into());
                row.extend([m.latency_p50_us, m.latency_p99_us, m.steal_percent].map(Cell::Number));
            }
            None => {
                let why = p.note.as_deref().unwrap_or_default();
                row.push(format!("not measured: {why}").into());
                row.extend((0..8).map(|_| Cell::None));
            }
        }
        row
    };
    Table {
        id: "scaling",
        title: "All figures of the growth".into(),
        columns: vec![
            "nodes",
            "load",
            "layout",
            "processes",
            "IOPS",
            "CPU us per I/O",
            "machine us per I/O",
            "floor: CPU us",
            "floor: machine us",
            "ratio (lowest-highest)",
            "median latency, us",
            "99 %, us",
            "steal, %",
        ],
        rows: points.iter().map(row).collect(),
        note: String::new(),
    }
}

/// Returns the published figures per node next to ours in the smallest cluster.
pub(crate) fn one_node(points: &[Point], cores: usize) -> Table {
    let published = |name: &str, iops: f64, cpu: Option<f64>| {
        vec![name.into(), iops.into(), cpu.map_or(Cell::None, Cell::Derived)]
    };
    let mut rows = vec![
        published("ScaleIO, published: one PCIe flash card", published::FLASH_CARD, None),
        published(
            "ScaleIO, published: NULL devices",
            published::NULL_DEVICE,
            Some(published::CPU_US_PER_READ),
        ),
    ];
    let reads = points.iter().filter(|p| p.workload == Kind::Read);
    let with: Vec<_> = reads.filter_map(|p| Some((p, p.measured.as_ref()?))).collect();
    let smallest = with.iter().map(|(p, _)| p.nodes).min();
    for (p, m) in with.iter().filter(|(p, _)| Some(p.nodes) == smallest) {
        let name = format!("Gabion, {}, one of {} nodes on {cores} cores", p.layout, p.nodes);
        rows.push(vec![name.into(), m.iops_per_node.into(), m.cpu_us_per_io.into()]);
    }
    Table {
        id: "one-node",
        title: "One node, 4 KiB reads".into(),
        columns: vec!["node", "IOPS per node", "CPU us per I/O"],
        rows,
        note: "A node of the publication had 20 cores of 2.8 GHz.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{media as step, point};
    use super::*;

    #[test]
    fn every_row_is_as_long_as_the_head_and_a_missing_one_says_why() {
        let points = point::tests::example();
        let all = [
            media(&step::tests::example()),
            growth(&points),
            arithmetic(&Arithmetic::of(&points)),
            scaling(&points),
            one_node(&points, 2),
        ];
        for table in &all {
            assert!(!table.rows.is_empty(), "{}", table.id);
            for row in &table.rows {
                assert_eq!(row.len(), table.columns.len(), "{}: {row:?}", table.id);
            }
        }
        assert!(all[3].csv().contains("not measured: it <did> not start"));
        assert!(all[1].html().contains("720 K <span class=\"soft\">derived"));
        // RAM devices reach 0.9 of NULL devices here; the publication's flash is 9 % below.
        let csv = all[0].csv();
        assert!(csv.contains("ram,180000,60000,9,10,2,floor,400000,0.45,"), "{csv}");
    }
}
