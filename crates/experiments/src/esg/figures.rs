//! The publication's figures with ours: Figures 1 to 6, and what an I/O costs.

use super::bed::{Medium, Setup};
use super::media::{MediaPoint, NODES};
use super::point::{Measured, PACKED, Point};
use super::published::{self, Kind};
use crate::report::axis::Axis;
use crate::report::bars::{BarSeries, Bars};
use crate::report::figure::{Drawing, Figure};
use crate::report::plot::{Plot, Series, Spot};
use crate::report::stand::{Host, Stand};

const PUBLISHED: &str = "ScaleIO, published";

/// Returns Figure 1: the stand.
pub(crate) fn stand(setup: &Setup, nodes: u32) -> Figure {
    let mut parts = vec!["SDS".to_owned()];
    parts.extend((1..=setup.devices_per_sds).map(|i| format!("device {i}")));
    let mut hosts: Vec<Host> =
        (1..=nodes).map(|i| Host { name: format!("node {i}"), parts: parts.clone() }).collect();
    let here = vec!["MDM".to_owned(), format!("{} SDCs", setup.clients)];
    hosts.insert(0, Host { name: "beside the nodes".into(), parts: here });
    Figure {
        id: "figure-1".into(),
        title: "Figure 1: the stand".into(),
        note:
            "In the publication every node was a client, too. Here all nodes are processes of one \
               machine."
                .into(),
        drawing: Drawing::Stand(Stand { hosts, network: "TCP over the loopback interface".into() }),
    }
}

/// Returns Figure 2: three nodes, reads, by medium.
pub(crate) fn three_nodes(media: &[MediaPoint]) -> Figure {
    let ours = |medium: Medium| {
        let is = |p: &&MediaPoint| (p.nodes, p.workload) == (NODES[0], Kind::Read);
        media.iter().filter(is).find(|p| p.medium == medium)
    };
    let published = [Some(published::NULL_DEVICE), Some(published::FLASH_CARD), None];
    let all = [Medium::Null, Medium::Ram, Medium::File];
    let bars = |name: &str, colour, values: Vec<Option<f64>>| BarSeries {
        name: name.into(),
        colour,
        values,
    };
    let times = |v: Option<f64>| v.map(|v| v * f64::from(NODES[0]));
    Figure {
        id: "figure-2".into(),
        title: "Figure 2: three nodes, 4 KiB reads, by medium".into(),
        note: "Published: NULL devices, and one flash card per node, with which RAM devices stand \
               side by side. Three nodes of the publication had 60 cores."
            .into(),
        drawing: Drawing::Bars(Bars {
            x: "medium".into(),
            y: Axis::linear("4 KiB IOPS"),
            groups: all.map(|m| m.name().to_owned()).to_vec(),
            series: vec![
                bars("ScaleIO per node, published", 0, published.to_vec()),
                bars("ScaleIO in all, published", 6, published.map(times).to_vec()),
                bars("Gabion per node", 1, all.map(|m| Some(ours(m)?.iops_per_node)).to_vec()),
                bars("Gabion in all", 2, all.map(|m| Some(ours(m)?.iops)).to_vec()),
            ],
        }),
    }
}

/// Returns Figure 3: who used the cores at the largest load.
pub(crate) fn cores(scaling: &[Point], cores: usize) -> Figure {
    let with = scaling.iter().filter_map(|p| Some((p, p.measured.as_ref()?)));
    let packed = with.filter(|(p, _)| p.layout == PACKED && p.workload == Kind::Read);
    let largest = packed.max_by_key(|(p, _)| p.nodes);
    let (mut groups, mut user, mut system) = (Vec::new(), Vec::new(), Vec::new());
    let mut title = "Figure 3: use of the cores at the largest load".to_owned();
    if let Some((point, m)) = largest {
        title += &format!(", {} nodes, reads", point.nodes);
        let percent = |us: f64| us * m.iops / 1e4 / cores.max(1) as f64;
        for kind in &m.cpu {
            groups.push(kind.kind.name().to_owned());
            user.push(Some(percent(kind.user_us_per_io)));
            system.push(Some(percent(kind.system_us_per_io)));
        }
        groups.push("whole machine".into());
        user.push(None);
        system.push(Some(percent(m.machine_us_per_io)));
    }
    let series =
        [("in the processes", 1, user), ("in the kernel, or both for the machine", 2, system)];
    let series =
        series.map(|(name, colour, values)| BarSeries { name: name.into(), colour, values });
    Figure {
        id: "figure-3".into(),
        title,
        note:
            "The publication's figure has no numbers: nearly all cores of the storage share were \
               used, and the rest stayed for others."
                .into(),
        drawing: Drawing::Bars(Bars {
            x: "role".into(),
            y: Axis::linear("percent of all cores"),
            groups,
            series: series.to_vec(),
        }),
    }
}

/// Returns Figure 4: what both media would do at more nodes, if rates per node stayed.
pub(crate) fn expected(media: &[MediaPoint]) -> Figure {
    let line = |name: String, colour, dashed, of: &dyn Fn(u32) -> Option<f64>| {
        let spot = |n: u32| Some(Spot::new(f64::from(n), of(n)?));
        let points = published::NODES.into_iter().filter_map(spot).collect();
        Series { name, colour, dashed, points }
    };
    let mut series = Vec::new();
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        let name = kind.name();
        for (j, (flash, what)) in [(false, "NULL"), (true, "flash")].into_iter().enumerate() {
            let of = |n: u32| {
                if flash { published::flash_iops(kind, n) } else { published::iops(kind, n) }
            };
            let title = format!("{PUBLISHED}, {what}, {name}");
            series.push(line(title, i * 4 + j, true, &of));
        }
        for (j, medium) in [Medium::Null, Medium::Ram].into_iter().enumerate() {
            let is = |p: &&MediaPoint| (p.nodes, p.workload) == (NODES[0], kind);
            let rate =
                media.iter().filter(is).find(|p| p.medium == medium).map(|p| p.iops_per_node);
            let title = format!("Gabion, {}, {name}", medium.name());
            series.push(line(title, i * 4 + 2 + j, false, &|n| Some(rate? * f64::from(n))));
        }
    }
    series.retain(|s| !s.points.is_empty());
    Figure {
        id: "figure-4".into(),
        title: "Figure 4: both media at up to 128 nodes, expected".into(),
        note: "Arithmetic, not a measurement: the rate of one of three nodes, times the nodes. Ours is \
               that of one of three nodes that share this machine."
            .into(),
        drawing: plot(Axis::log("nodes"), Axis::log("4 KiB IOPS, expected"), series),
    }
}

fn plot(x: Axis, y: Axis, series: Vec<Series>) -> Drawing {
    Drawing::Plot(Plot { x, y, series, bands: Vec::new() })
}

/// A figure of every point: the published value, ours, and the floor's.
struct Measure {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    published: fn(&Point) -> Option<f64>,
    ours: fn(&Point, &Measured) -> f64,
    spread: Option<fn(&Measured) -> [f64; 2]>,
    floor: Option<fn(&Point, &Measured) -> f64>,
}

const TOTAL: Measure = Measure {
    id: "iops",
    title: "IOPS of all nodes together",
    unit: "4 KiB IOPS, all nodes",
    published: |p| p.published_iops,
    ours: |_, m| m.iops,
    spread: Some(|m| m.iops_spread),
    floor: Some(|_, m| m.floor_iops),
};
const COST: Measure = Measure {
    id: "cost",
    title: "Processor time per I/O",
    unit: "microseconds of processor time per I/O",
    published: |p| p.published_cpu_us_per_io,
    ours: |_, m| m.cpu_us_per_io,
    spread: None,
    floor: Some(|_, m| m.floor_us_per_io),
};
const PER_NODE: Measure = Measure {
    id: "per-node",
    title: "IOPS per node",
    unit: "4 KiB IOPS per node",
    published: |p| p.published_iops_per_node,
    ours: |_, m| m.iops_per_node,
    spread: None,
    floor: Some(|p, m| m.floor_iops / f64::from(p.nodes)),
};
const RATIO: Measure = Measure {
    id: "ratio",
    title: "Gabion's processor time over the floor's",
    unit: "ratio (no unit)",
    published: |_| None,
    ours: |_, m| m.ratio,
    spread: Some(|m| m.ratio_spread),
    floor: None,
};

/// Returns Figures 5 and 6, and the same points as cost, rate per node, and ratio to the floor.
pub(crate) fn growth(scaling: &[Point]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for measure in [TOTAL, COST, PER_NODE, RATIO] {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            let mut title = format!("{}, {}", measure.title, kind.title());
            let mut id = format!("{}-{}", measure.id, kind.name());
            if measure.id == TOTAL.id {
                title = format!("Figure {}: {title}", 5 + i);
                id = format!("figure-{}", 5 + i);
            }
            figures.push(measure.figure(id, title, scaling, kind));
        }
    }
    figures
}

impl Measure {
    fn figure(&self, id: String, title: String, scaling: &[Point], kind: Kind) -> Figure {
        let here = || scaling.iter().filter(move |p| p.workload == kind);
        let mut published: Vec<Spot> = here()
            .filter_map(|p| Some(Spot::new(f64::from(p.nodes), (self.published)(p)?)))
            .collect();
        published.sort_by(|a, b| a.x.total_cmp(&b.x));
        published.dedup_by_key(|p| p.x);
        let series = |name: &str, colour, dashed, points| Series {
            name: name.to_owned(),
            colour,
            dashed,
            points,
        };
        let mut all = vec![series(PUBLISHED, 0, true, published)];
        let mut layouts: Vec<&str> = here().map(|p| p.layout.as_str()).collect();
        layouts.dedup();
        layouts.sort_unstable();
        layouts.dedup();
        for (i, layout) in layouts.into_iter().enumerate() {
            let found = || here().filter(|p| p.layout == layout);
            let with = || found().filter_map(|p| Some((p, p.measured.as_ref()?)));
            let spot = |p: &Point, y: f64| Spot::new(f64::from(p.nodes), y);
            let ours = with().map(|(p, m)| {
                let [low, high] = self.spread.map_or([(self.ours)(p, m); 2], |of| of(m));
                Spot { low, high, ..spot(p, (self.ours)(p, m)) }
            });
            all.push(series(&format!("Gabion, {layout}"), i + 1, false, ours.collect()));
            if let Some(of) = self.floor {
                let floor = with().map(|(p, m)| spot(p, of(p, m))).collect();
                all.push(series(&format!("floor, {layout}"), i + 1, true, floor));
            }
        }
        all.retain(|s| !s.points.is_empty());
        let drawing = plot(Axis::log("nodes"), Axis::log(self.unit), all);
        Figure { id, title, note: String::new(), drawing }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{media, point};
    use super::*;

    #[test]
    fn figures_have_the_published_values_ours_and_the_floors() {
        let figures = growth(&point::tests::example());
        assert_eq!(figures.len(), 8);
        assert_eq!((figures[0].id.as_str(), figures[1].id.as_str()), ("figure-5", "figure-6"));
        let values = figures[0].values();
        // Two published sizes, and three points that were measured, with their floors.
        assert_eq!(values.len(), 2 + 3 + 3);
        assert!(values.iter().any(|v| v.series == PUBLISHED && v.y == 720e3));
    }

    #[test]
    fn the_media_make_bars_and_what_is_expected_of_them() {
        let media = media::tests::example();
        let values = three_nodes(&media).values();
        assert_eq!(values.len(), 2 + 2 + 3 + 3);
        let Drawing::Plot(plot) = expected(&media).drawing else { panic!("a plot") };
        assert_eq!(plot.series.len(), 8);
        let mut colours: Vec<usize> = plot.series.iter().map(|s| s.colour).collect();
        colours.dedup();
        assert_eq!(colours, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(three_nodes(&[]).values().len() == 4, "the published ones");
    }
}
