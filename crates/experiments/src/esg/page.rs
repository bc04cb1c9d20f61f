//! `report.html`: one self-contained file, with light and dark styles.

use super::number::{escape, short};
use super::plot::{Plot, Series};
use super::published::{self, Kind};
use super::report::{Point, Report};
use std::fmt::Write;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --soft: #59636e; --grid: #d9dee3;
  --c0: #6b7280; --c1: #0b62c4; --c2: #b34700; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --back: #14171a; --soft: #a0a9b2;
  --grid: #343a41; --c0: #aab2bb; --c1: #6cb0ff; --c2: #ff9d5c; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
.end { text-anchor: end; } .mid { text-anchor: middle; }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); }
.line { fill: none; stroke-width: 2; } .dashed { stroke-dasharray: 6 4; stroke-width: 1.5; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.mark.c0 { fill: var(--c0); } .mark.c1 { fill: var(--c1); } .mark.c2 { fill: var(--c2); }
.mark.hollow { fill: var(--back); stroke-width: 1.5; } .hollow.c0 { stroke: var(--c0); }
.hollow.c1 { stroke: var(--c1); } .hollow.c2 { stroke: var(--c2); }
.legend span { margin-right: 1.2em; white-space: nowrap; } .key { width: 34px; vertical-align: middle; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.86rem; }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid var(--grid);
  font-variant-numeric: tabular-nums; }
th { text-align: right; vertical-align: bottom; font-weight: 600; }
td:first-child, th:first-child { text-align: left; }
.unit, .soft { color: var(--soft); font-size: 0.86rem; }
";

/// The figure that a plot shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    Total,
    PerNode,
    Cpu,
}

impl Measure {
    const ALL: [Measure; 3] = [Measure::Total, Measure::PerNode, Measure::Cpu];

    fn title(self) -> &'static str {
        match self {
            Measure::Total => "IOPS of all nodes together",
            Measure::PerNode => "IOPS per node",
            Measure::Cpu => "Processor time per I/O",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Measure::Total => "4 KiB IOPS, all nodes",
            Measure::PerNode => "4 KiB IOPS per node",
            Measure::Cpu => "microseconds of processor time per I/O",
        }
    }

    fn published(self, p: &Point) -> Option<f64> {
        match self {
            Measure::Total => p.published_iops,
            Measure::PerNode => p.published_iops_per_node,
            Measure::Cpu => p.published_cpu_us_per_io,
        }
    }

    fn ours(self, p: &Point) -> Option<f64> {
        let m = p.measured.as_ref()?;
        Some(match self {
            Measure::Total => m.iops,
            Measure::PerNode => m.iops_per_node,
            Measure::Cpu => m.cpu_us_per_io,
        })
    }

    fn floor(self, p: &Point) -> Option<f64> {
        let m = p.measured.as_ref()?;
        Some(match self {
            Measure::Total => m.floor_iops,
            Measure::PerNode => m.floor_iops / f64::from(p.nodes),
            Measure::Cpu => m.floor_us_per_io,
        })
    }
}

impl Report {
    /// Returns the page.
    pub(crate) fn html(&self) -> String {
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Gabion: ESG Lab's ScaleIO test, re-enacted</title>\n<style>{STYLE}</style>\n</head>\n\
             <body>\n<h1>ESG Lab's test of ScaleIO (2015), re-enacted with Gabion</h1>\n"
        );
        out += &self.introduction();
        out += &self.one_node();
        for measure in Measure::ALL {
            for kind in Kind::ALL {
                let plot = self.plot(measure, kind);
                let _ = writeln!(
                    out,
                    "<h2>{}</h2>\n{}{}<div class=\"scroll\">\n{}</div>",
                    escape(&plot.title),
                    plot.svg(),
                    plot.legend(),
                    plot.table()
                );
            }
        }
        out += &self.growth();
        out += &self.arithmetic();
        out += &self.all_points();
        out += "<h2>What this can't show</h2>\n<ul>\n";
        for limit in &self.limits {
            let _ = writeln!(out, "<li>{}</li>", escape(limit));
        }
        out + "</ul>\n</body>\n</html>\n"
    }

    fn introduction(&self) -> String {
        let m = &self.machine;
        let kind = if m.virtual_machine { "a virtual machine with" } else { "a machine with" };
        format!(
            "<p>The original ran 3 to 128 hosts of 20 cores (2.8 GHz) with NULL devices, each a data server \
             and a client: 4 KiB at random places, 100 % read and 70/30. Here all nodes share one machine, \
             so its <b>sums are no match for the original's</b>; what can be compared is what an I/O costs, \
             and whether that grows with the number of nodes. The dashed floor is what bare TCP frames in \
             the same pattern cost here, with the same number of connections.</p>\n\
             <p class=\"soft\">Gabion {} on {kind} {} cores ({}, {:.1} GiB of memory, Linux {}, {}), load \
             average {} at the beginning. Depth {} per SDS, over TCP; medians of {} rounds of {} s, each \
             between two floors.</p>\n",
            escape(self.gabion),
            m.cores,
            escape(&m.processor),
            m.memory_bytes as f64 / f64::from(1 << 30),
            escape(&m.kernel),
            escape(&m.backend),
            escape(&m.load_average),
            self.depth_per_sds,
            self.rounds,
            self.seconds
        )
    }

    /// Returns the names of the layouts, in the order of measurement.
    fn layouts(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for p in &self.scaling {
            if !all.contains(&p.layout.as_str()) {
                all.push(&p.layout);
            }
        }
        all
    }

    fn points(&self, kind: Kind) -> impl Iterator<Item = &Point> {
        self.scaling.iter().filter(move |p| p.workload == kind)
    }

    fn line(
        &self,
        kind: Kind,
        layout: Option<&str>,
        name: &str,
        colour: usize,
        dashed: bool,
        of: impl Fn(&Point) -> Option<f64>,
    ) -> Series {
        let here = self.points(kind).filter(|p| layout.is_none_or(|l| l == p.layout));
        let mut points: Vec<(f64, f64)> =
            here.filter_map(|p| Some((f64::from(p.nodes), of(p)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by_key(|p| p.0);
        Series { name: name.to_owned(), colour, dashed, points }
    }

    fn plot(&self, measure: Measure, kind: Kind) -> Plot {
        let published = "ScaleIO, published";
        let mut series = vec![self.line(kind, None, published, 0, true, |p| measure.published(p))];
        for (i, layout) in self.layouts().into_iter().enumerate() {
            let (ours, floor) = (format!("Gabion, {layout}"), format!("floor, {layout}"));
            series.push(self.line(kind, Some(layout), &ours, i + 1, false, |p| measure.ours(p)));
            series.push(self.line(kind, Some(layout), &floor, i + 1, true, |p| measure.floor(p)));
        }
        Plot {
            title: format!("{}, {}", measure.title(), kind.title()),
            x: "nodes".into(),
            y: measure.unit().into(),
            series,
        }
    }

    /// Returns the figures per node in the smallest cluster, next to the published ones for one
    /// host.
    fn one_node(&self) -> String {
        let mut out = format!(
            "<h2>One node</h2>\n<div class=\"scroll\">\n<table>\n\
             <tr><th>4 KiB read</th><th>IOPS per node</th><th>CPU per I/O, us</th></tr>\n\
             <tr><td>ScaleIO, published: one PCIe flash card</td><td>{}</td><td>-</td></tr>\n\
             <tr><td>ScaleIO, published: NULL devices</td><td>{}</td><td>{}</td></tr>\n",
            short(published::FLASH_CARD),
            short(published::NULL_DEVICE),
            short(published::CPU_US_PER_READ)
        );
        for layout in self.layouts() {
            let here = self.points(Kind::Read).filter(|p| p.layout == layout);
            let Some((p, m)) =
                here.filter_map(|p| Some((p, p.measured.as_ref()?))).min_by_key(|(p, _)| p.nodes)
            else {
                continue;
            };
            let cores = self.machine.cores;
            let _ = writeln!(
                out,
                "<tr><td>Gabion, {}, one of {} nodes on {cores} cores</td><td>{}</td><td>{}</td></tr>",
                escape(layout),
                p.nodes,
                short(m.iops_per_node),
                short(m.cpu_us_per_io)
            );
        }
        out += "</table>\n</div>\n<p class=\"soft\">On 70/30 the original's card and its NULL devices were \
                15 % apart. Gabion has NULL devices only, so there is no second figure of ours.</p>\n";
        out
    }

    /// Plots Gabion's cost over the floor's: a rising line means that Gabion's cost grows faster.
    fn growth(&self) -> String {
        let mut out = String::new();
        for kind in Kind::ALL {
            let series = self.layouts().into_iter().enumerate().map(|(i, layout)| {
                let name = format!("Gabion over its floor, {layout}");
                self.line(kind, Some(layout), &name, i + 1, false, |p| {
                    Some(p.measured.as_ref()?.ratio)
                })
            });
            let plot = Plot {
                title: format!("Gabion's processor time over the floor's, {}", kind.title()),
                x: "nodes".into(),
                y: "ratio (no unit)".into(),
                series: series.collect(),
            };
            let _ = writeln!(
                out,
                "<h2>{}</h2>\n{}{}<div class=\"scroll\">\n{}</div>",
                escape(&plot.title),
                plot.svg(),
                plot.legend(),
                plot.table()
            );
        }
        out
    }

    fn arithmetic(&self) -> String {
        let mut out = "<h2>Arithmetic, not a measurement</h2>\n<p>What a node of 20 cores would do if \
                       nothing but processor time limited it, at the processor time per I/O that was \
                       measured here: 20 000 000 us per second, divided.</p>\n<div class=\"scroll\">\n\
                       <table>\n<tr><th>nodes</th><th>workload</th><th>layout</th>\
                       <th>IOPS per node, computed</th><th>ScaleIO, published</th></tr>\n"
            .to_owned();
        for a in &self.arithmetic {
            let published = published::iops(a.workload, a.nodes).map(|n| n / f64::from(a.nodes));
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                a.nodes,
                a.workload.title(),
                escape(&a.layout),
                short(a.iops_per_node),
                published.map_or("-".to_owned(), short)
            );
        }
        out + "</table>\n</div>\n"
    }

    fn all_points(&self) -> String {
        let mut out = "<h2>All figures</h2>\n<div class=\"scroll\">\n<table>\n<tr><th>nodes</th>\
                       <th>workload</th><th>layout</th><th>processes</th><th>IOPS</th>\
                       <th>CPU us per I/O</th><th>machine us per I/O</th><th>floor: CPU us</th>\
                       <th>floor: machine us</th><th>ratio (lowest-highest)</th><th>median latency, us</th>\
                       <th>99 %, us</th><th>steal, %</th></tr>\n"
            .to_owned();
        for p in &self.scaling {
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
                p.nodes,
                p.workload.title(),
                escape(&p.layout),
                p.processes
            );
            let Some(m) = &p.measured else {
                let why = p.note.as_deref().unwrap_or_default();
                let _ = writeln!(out, "<td colspan=\"9\">not measured: {}</td></tr>", escape(why));
                continue;
            };
            for n in [
                m.iops,
                m.cpu_us_per_io,
                m.machine_us_per_io,
                m.floor_us_per_io,
                m.floor_machine_us_per_io,
            ] {
                let _ = write!(out, "<td>{}</td>", short(n));
            }
            let [low, high] = m.ratio_spread;
            let _ = write!(out, "<td>{:.2} ({low:.2}-{high:.2})</td>", m.ratio);
            for n in [m.latency_p50_us, m.latency_p99_us, m.steal_percent] {
                let _ = write!(out, "<td>{}</td>", short(n));
            }
            out += "</tr>\n";
        }
        out + "</table>\n</div>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;

    #[test]
    fn the_page_needs_nothing_else_and_hides_nothing() {
        let html = example().html();
        for outside in ["http:", "https:", "src=", "href=", "@import", "url(", "<script", "NaN"] {
            assert!(!html.contains(outside), "{outside}");
        }
        for inside in [
            "prefers-color-scheme: dark",
            "Gabion, packed",
            "floor, apart",
            "ScaleIO, published",
            "not measured: it &lt;did&gt; not start",
            "Arithmetic, not a measurement",
            "context switches",
        ] {
            assert!(html.contains(inside), "{inside}");
        }
        for tag in ["svg", "table", "div", "ul", "p", "h2", "span"] {
            let open = html.matches(&format!("<{tag}>")).count()
                + html.matches(&format!("<{tag} ")).count();
            assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        // Three measures and one ratio, each for two workloads.
        assert_eq!(html.matches("role=\"img\"").count(), 8);
    }
}
