//! The report as one self-contained HTML file, with curves drawn as SVG and a table.

use super::watch::Sample;
use super::{Document, Phase};
use daemon::size::Size;
use std::fmt::Write as _;

/// Size of a chart in pixels, and its left margin.
const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 70.0;
const GIB: f64 = base::GIB as f64;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.5em}h2{font-size:1.1em;margin:1.6em 0 .3em}table{border-collapse:collapse;font-size:13px}\
td,th{border-bottom:1px solid #ddd;padding:.3em .7em;text-align:right}td:first-child,th:first-child{text-align:left}\
.bad{color:#b00020;font-weight:600}.good{color:#0a7d32;font-weight:600}svg text{font:11px system-ui,sans-serif;fill:#555}";

/// One curve of a chart.
struct Curve {
    name: &'static str,
    color: &'static str,
    of: fn(&Sample) -> f64,
}

/// Returns the page.
pub(crate) fn html(document: &Document) -> String {
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Gabion: ExaForge, re-enacted</title>\
         <style>{STYLE}</style><h1>Three small servers: removal, return, loss, rebuild</h1>\
         <p>After ExaForge Labs' test of ScaleIO 1.2 (2013). Each server may use {} of memory and a disk held at {}/s; \
         {} of data in two copies. Every request was compared with what it should be.</p>",
        Size(document.memory_bytes),
        Size(document.disk_bytes_per_second),
        Size(document.data_bytes),
    );
    let _ = match document.missed.is_empty() {
        true => write!(page, "<p class=good>No I/O error, and every must is met.</p>"),
        false => write!(page, "<p class=bad>Missed: {}</p>", escape(&document.missed.join("; "))),
    };
    let _ = write!(
        page,
        "<p>I/O errors: {}. A killed server was noticed after {:.0} ms (about 5 s in 2013), a pulled cable after {:.0} ms.</p>",
        document.io_errors, document.kill_noticed_ms, document.partition_noticed_ms
    );
    let clients = Curve { name: "clients", color: "#1668b8", of: |s| s.bytes_per_second / 1e6 };
    let moved = Curve {
        name: "copied between servers",
        color: "#d9822b",
        of: |s| s.moved_bytes_per_second / 1e6,
    };
    page += &chart("Throughput, MB/s", document, &[clients, moved]);
    let latency = Curve { name: "mean", color: "#7b3fa0", of: |s| s.latency_ms };
    page += &chart("Latency of requests, ms", document, &[latency]);
    let protected =
        Curve { name: "protected", color: "#0a7d32", of: |s| s.protected_bytes as f64 / GIB };
    let degraded =
        Curve { name: "degraded", color: "#d9a300", of: |s| s.degraded_bytes as f64 / GIB };
    let failed = Curve { name: "failed", color: "#b00020", of: |s| s.failed_bytes as f64 / GIB };
    page +=
        &chart("Data by protection, GiB of both copies", document, &[protected, degraded, failed]);
    page += &phases(&document.phases);
    page += "<h2>How it was taken</h2><p>What counts is bytes at the servers' disks: clients' reads once; writes of 1 MiB \
             twice, as there are two copies; writes of 8 KiB four times, as each copy goes through a log; what servers \
             copy to each other once, where it is written. What the disks allow: three times their speed for \
             loads, twice for a removal or a rebuild, which two servers take, once for a server that comes back. The \
             published figures are compared with disks of 120 MB/s, which is our assumption: the publication names \
             none. All servers run on one machine, so processors and the network are shared.</p></html>";
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Draws a chart of curves, with the phases as numbered stripes behind them.
fn chart(title: &str, document: &Document, curves: &[Curve]) -> String {
    let end = document.samples.last().map_or(1.0, |s| s.seconds).max(1.0);
    let values = curves.iter().flat_map(|c| document.samples.iter().map(c.of));
    let top = values.fold(0.0, f64::max).max(1e-9) * 1.05;
    let x = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT);
    let y = |value: f64| HEIGHT - value / top * HEIGHT;
    let mut svg = format!(
        "<h2>{title}</h2><svg viewBox='0 0 {WIDTH} {}' width='100%' role=img aria-label='{title}'>",
        HEIGHT + 40.0
    );
    for (number, phase) in document.phases.iter().enumerate() {
        let (from, to) = (x(phase.begin_seconds), x(phase.begin_seconds + phase.seconds));
        let fill = if number % 2 == 0 { "#f2f4f7" } else { "#e8ecf1" };
        let _ = write!(
            svg,
            "<rect x='{from:.1}' y='0' width='{:.1}' height='{HEIGHT}' fill='{fill}'><title>{2}</title></rect>\
             <text x='{from:.1}' y='{1:.0}'>{3}</text>",
            to - from,
            HEIGHT + if number % 2 == 0 { 14.0 } else { 30.0 },
            escape(phase.name),
            number + 1
        );
    }
    for (at, label) in [(0.0, "0".to_owned()), (top / 2.0, number(top / 2.0)), (top, number(top))] {
        let _ = write!(svg, "<text x='4' y='{:.1}'>{label}</text>", y(at).clamp(10.0, HEIGHT));
    }
    for (place, curve) in curves.iter().enumerate() {
        let points: Vec<String> = (document.samples.iter())
            .map(|s| format!("{:.1},{:.1}", x(s.seconds), y((curve.of)(s))))
            .collect();
        let _ = write!(
            svg,
            "<polyline fill='none' stroke='{0}' stroke-width='1.5' points='{1}'/>\
             <text x='{2}' y='12' style='fill:{0}'>{3}</text>",
            curve.color,
            points.join(" "),
            LEFT + 8.0 + 160.0 * place as f64,
            curve.name
        );
    }
    svg + "</svg>"
}

fn number(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn phases(phases: &[Phase]) -> String {
    let mut rows = String::new();
    let some = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.1}"));
    for (place, p) in phases.iter().enumerate() {
        let ratio =
            if p.allowed_bytes_per_second > 0.0 { format!("{:.2}", p.ratio) } else { "-".into() };
        let theirs = p.published_ratio.map_or("-".into(), |r| format!("{r:.2}"));
        let _ = write!(
            rows,
            "<tr><td>{}. {}<td>{:.1}<td>{:.0}<td>{:.1}<td>{}<td>{:.1}<td>{ratio}<td>{}<td>{}<td>{}<td>{theirs}",
            place + 1,
            escape(p.name),
            p.seconds,
            p.requests_per_second,
            p.client_bytes_per_second / 1e6,
            Size(p.moved_bytes),
            p.disk_bytes_per_second / 1e6,
            some(p.p99_ms),
            some(p.longest_ms),
            escape(p.published),
        );
    }
    format!(
        "<h2>Phases</h2><table><tr><th>phase<th>seconds<th>requests/s<th>clients, MB/s<th>copied<th>at the disks, MB/s\
         <th>of what they allow<th>p99, ms<th>longest, ms<th>published, 2013<th>of what theirs allowed{rows}</table>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_curves_for_every_sample_and_a_row_for_every_phase() {
        let sample = |seconds| Sample { seconds, bytes_per_second: 5e7, ..Sample::default() };
        let phase = Phase {
            name: "read <all>",
            begin_seconds: 0.0,
            seconds: 2.0,
            requests: 100,
            requests_per_second: 50.0,
            client_bytes_per_second: 5e7,
            moved_bytes: 0,
            disk_bytes_per_second: 5e7,
            allowed_bytes_per_second: 1e8,
            ratio: 0.5,
            p99_ms: Some(1.5),
            longest_ms: None,
            published: "125 MB/s",
            published_ratio: Some(0.35),
        };
        let document = Document {
            schema: 1,
            data_bytes: 1 << 30,
            disk_bytes_per_second: 1 << 26,
            memory_bytes: 1 << 30,
            io_errors: 0,
            error: None,
            kill_noticed_ms: 12.0,
            partition_noticed_ms: 1000.0,
            phases: vec![phase],
            missed: vec!["read".into()],
            samples: vec![sample(0.5), sample(1.0), sample(2.0)],
        };
        let page = html(&document);
        assert_eq!(page.matches("<polyline").count(), 6);
        assert_eq!(page.matches("<tr>").count(), 2);
        assert!(page.contains("read &lt;all&gt;") && page.contains("class=bad"));
        assert!(!page.contains("http"), "it needs nothing from elsewhere");
    }
}
