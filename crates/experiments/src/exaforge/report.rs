//! The report: curves over all phases, the table, and the claims.

use super::published::{self, Published};
use super::watch::{Sample, per_second};
use super::{Document, Phase, REBUILD_AFTER};
use crate::log::Log;
use crate::musts;
use crate::options::Mode;
use crate::report::axis::Axis;
use crate::report::claim::{Bound, Claim, Source};
use crate::report::figure::{Drawing, Figure};
use crate::report::machine::Machine;
use crate::report::plot::{Band, Plot, Series, Spot};
use crate::report::stand::{Host, Stand};
use crate::report::table::{Cell, Table};
use crate::report::{Report, samples::Samples};
use daemon::size::Size;

/// A phase must reach this part of what the disks allow.
const MUST: f64 = 0.7;
/// Seconds within which a killed server must be noticed, and one without its network link.
const KILL_NOTICED: f64 = 1.0;
const CABLE_NOTICED: f64 = 3.0;

const GIB: f64 = base::GIB as f64;

/// Returns the report, and sets what was missed in the document.
pub(crate) fn of(document: &mut Document, mode: Mode, machine: Machine, mut log: Log) -> Report {
    log.samples =
        Samples { columns: Sample::COLUMNS.to_vec(), rows: per_second(&document.samples) };
    let mut report = Report {
        name: super::NAME,
        title: "Three small servers: removal, return, loss, rebuild".into(),
        introduction: introduction(document, mode),
        machine,
        claims: claims(document, mode, &log),
        sections: Vec::new(),
        limits: limits(),
        missing: document.error.iter().cloned().collect(),
        samples: log.samples,
        transcript: log.transcript,
    };
    report.add_figure(stand());
    for figure in curves(document) {
        report.add_figure(figure);
    }
    report.add_table(phases(&document.phases));
    document.missed = report.complaint().into_iter().collect();
    report
}

fn introduction(document: &Document, mode: Mode) -> Vec<String> {
    vec![
        format!(
            "After ExaForge Labs' test of ScaleIO 1.2 (2013), in {} mode. Each server may use {} of \
             memory and a disk held at {}/s; {} of data in two copies. Every request was compared with \
             what it should be.",
            mode.name(),
            Size(document.memory_bytes),
            Size(document.disk_bytes_per_second),
            Size(document.data_bytes)
        ),
        format!(
            "I/O errors: {}. A killed server was noticed after {:.0} ms, a pulled cable after {:.0} ms. \
             Lost copies are rebuilt {REBUILD_AFTER} s after the loss; the default of a cluster is 60 s.",
            document.io_errors, document.kill_noticed_ms, document.partition_noticed_ms
        ),
    ]
}

fn claims(document: &Document, mode: Mode, log: &Log) -> Vec<Claim> {
    let mut claims = Vec::new();
    for published in published::ALL.iter().filter(|p| !p.id.is_empty()) {
        let phase = document.phases.iter().find(|p| p.name == published.name);
        let text = format!("{} gets what the disks allow", published.name);
        let mut claim = Claim::new(published.id, text);
        if let Some(ratio) = published.ratio() {
            claim = claim.published(ratio, "", Source::Derived);
        }
        let formula = "bytes per second at the disks over the rate that their control groups allow";
        let claim = claim.by(formula, "").limit(Some(1.0)).must();
        claims.push(claim.judge(phase.map(|p| p.ratio), Bound::AtLeast(MUST), mode.doubt()));
    }
    let noticed = |ms: f64| (ms > 0.0).then_some(ms / 1e3);
    let formula = "from the loss until an MDM reports it";
    let kill = Claim::new("004-24", "a killed server is noticed")
        .published(5.0, "s", Source::Stated)
        .by(formula, "s")
        .must();
    claims.push(kill.judge(
        noticed(document.kill_noticed_ms),
        Bound::AtMost(KILL_NOTICED),
        mode.doubt(),
    ));
    let cable = Claim::new("run-cable", "a pulled cable is noticed").by(formula, "s").must();
    claims.push(cable.judge(
        noticed(document.partition_noticed_ms),
        Bound::AtMost(CABLE_NOTICED),
        mode.doubt(),
    ));
    claims.extend(open(document));
    claims.extend(musts::of(log));
    claims
}

/// Returns the claims that this run can't judge.
fn open(document: &Document) -> Vec<Claim> {
    let mixed = document.phases.iter().find(|p| p.name == published::MIXED.name);
    let mut service = Claim::new("004-17", "a request of 8 KiB takes 18 to 20 ms")
        .published(19.0, "ms", Source::Derived)
        .by("mean latency at depth 64", "ms")
        .not_judged("theirs had about 7 requests in flight, and these disks have no seeks");
    service.ours = mixed.and_then(|p| p.mean_ms);
    vec![
        service,
        Claim::new("004-12", "the volume is used by an iSCSI host")
            .not_judged("this run has no iSCSI host"),
        Claim::new("004-18", "a dashboard shows the load").not_judged("there is no web interface"),
        Claim::new("004-25", "the rebuild begins instantly")
            .not_judged(format!("this run begins it {REBUILD_AFTER} s after a loss, on purpose")),
    ]
}

fn stand() -> Figure {
    let host = |name: &str, parts: &[&str]| Host {
        name: name.into(),
        parts: parts.iter().map(|p| (*p).to_owned()).collect(),
    };
    let hosts = vec![
        host("node1", &["SDS, one disk", "MDM"]),
        host("node2", &["SDS, one disk", "MDM"]),
        host("node3", &["SDS, one disk"]),
        host("node4", &["MDM, tie-breaker", "SDC"]),
    ];
    Figure {
        id: "stand".into(),
        title: "The stand".into(),
        note: String::new(),
        drawing: Drawing::Stand(Stand { hosts, network: "a bridge of this machine".into() }),
    }
}

/// A curve: its name, its colour, and its value in a sample.
type Curve = (&'static str, usize, fn(&Sample) -> f64);

fn curves(document: &Document) -> Vec<Figure> {
    let throughput: [Curve; 2] = [
        ("clients", 1, |s| s.bytes_per_second / 1e6),
        ("copied between servers", 2, |s| s.moved_bytes_per_second / 1e6),
    ];
    let latency: [Curve; 1] = [("mean", 3, |s| s.latency_ms)];
    let protection: [Curve; 3] = [
        ("protected", 4, |s| s.protected_bytes as f64 / GIB),
        ("degraded", 6, |s| s.degraded_bytes as f64 / GIB),
        ("failed", 5, |s| s.failed_bytes as f64 / GIB),
    ];
    vec![
        curve(document, "throughput", "Throughput", "MB/s", &throughput),
        curve(document, "latency", "Latency of requests", "ms", &latency),
        curve(document, "protection", "Data by protection", "GiB of both copies", &protection),
    ]
}

fn curve(document: &Document, id: &str, title: &str, unit: &str, curves: &[Curve]) -> Figure {
    let spots = |of: fn(&Sample) -> f64| {
        document.samples.iter().map(move |s| Spot::new(s.seconds, of(s))).collect()
    };
    let series = curves.iter().map(|(name, colour, of)| Series {
        name: (*name).to_owned(),
        colour: *colour,
        dashed: false,
        points: spots(*of),
    });
    let band = |p: &Phase| Band {
        name: p.name.to_owned(),
        from: p.begin_seconds,
        to: p.begin_seconds + p.seconds,
    };
    Figure {
        id: id.to_owned(),
        title: format!("{title}, {unit}"),
        note: String::new(),
        drawing: Drawing::Plot(Plot {
            x: Axis::time("minutes since the beginning"),
            y: Axis::linear(unit),
            series: series.collect(),
            bands: document.phases.iter().map(band).collect(),
        }),
    }
}

fn phases(phases: &[Phase]) -> Table {
    let row = |(place, p): (usize, &Phase)| {
        let known = published::ALL.iter().find(|k| k.name == p.name);
        let derived = |of: &dyn Fn(&Published) -> Option<f64>| {
            known.and_then(of).map_or(Cell::None, Cell::Derived)
        };
        let judged = p.allowed_bytes_per_second > 0.0;
        vec![
            format!("{}. {}", place + 1, p.name).into(),
            Cell::maybe(known.and_then(|k| k.seconds)),
            p.seconds.into(),
            derived(&|k| k.seconds_at(p.ratio)),
            p.published.into(),
            known.and_then(Published::rated).map_or(Cell::None, Cell::Text),
            (p.requests_per_second).into(),
            (p.client_bytes_per_second / 1e6).into(),
            (p.moved_bytes as f64 / 1e6).into(),
            (p.disk_bytes_per_second / 1e6).into(),
            derived(&Published::ratio),
            Cell::maybe(judged.then_some(p.ratio)),
            Cell::maybe(p.mean_ms),
            Cell::maybe(p.p99_ms),
            Cell::maybe(p.longest_ms),
        ]
    };
    Table {
        id: "phases",
        title: "Phases".into(),
        columns: vec![
            "phase",
            "seconds, published",
            "seconds, ours",
            "seconds at their size and disks, computed",
            "published, 2013",
            "their rating of three such drives (derived)",
            "requests/s",
            "clients, MB/s",
            "copied, MB",
            "at the disks, MB/s",
            "of what disks allow, published",
            "of what disks allow, ours",
            "mean, ms",
            "p99, ms",
            "longest, ms",
        ],
        rows: phases.iter().enumerate().map(row).collect(),
        note: "Seconds at their size and disks are arithmetic, not a measurement: a third of 56 GB at \
               the part of the disks that was reached here."
            .into(),
    }
}

fn limits() -> Vec<String> {
    vec![
        "What counts is bytes at the servers' disks: clients' reads once; writes of 1 MiB twice, as \
         there are two copies; writes of 8 KiB four times, as each copy goes through a log; what \
         servers copy to each other once, where it is written. What the disks allow: three times their \
         speed for loads, twice for a removal or a rebuild, which two servers take, once for a server \
         that comes back."
            .into(),
        "The published figures are compared with disks of 120 MB/s, which is our assumption: the \
         publication names none. The 56 GB of its text were on the cluster, and about a third of them \
         moved; the rates of the removal and of the return are the author's own, about 48 MB/s."
            .into(),
        "All servers run on one machine, so processors and the network are shared.".into(),
        "With little data the groups are so small that the MDM's rounds take more time than the disks \
         do: use at least about 1 GiB."
            .into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::page;
    use crate::report::tests::check_page;
    use admin::exit::Exit;

    fn example(ratio: f64) -> Document {
        let sample = |seconds| Sample { seconds, bytes_per_second: 5e7, ..Sample::default() };
        let phase = |published: &Published, begin_seconds| Phase {
            name: published.name,
            begin_seconds,
            seconds: 2.0,
            requests: 100,
            requests_per_second: 50.0,
            client_bytes_per_second: 5e7,
            moved_bytes: 0,
            disk_bytes_per_second: 1e8 * ratio,
            allowed_bytes_per_second: 1e8,
            ratio,
            mean_ms: Some(1.0),
            p99_ms: Some(1.5),
            longest_ms: None,
            published: published.said,
            published_ratio: published.ratio(),
        };
        Document {
            schema: 1,
            data_bytes: 1 << 30,
            disk_bytes_per_second: 1 << 26,
            memory_bytes: 1 << 30,
            io_errors: 0,
            error: None,
            kill_noticed_ms: 12.0,
            partition_noticed_ms: 1000.0,
            phases: vec![phase(&published::READ, 0.0), phase(&published::REMOVE, 2.0)],
            missed: Vec::new(),
            samples: (1..=40).map(|i| sample(f64::from(i) / 10.0)).collect(),
        }
    }

    fn report(document: &mut Document, mode: Mode) -> Report {
        of(document, mode, Machine::this(rt::Backend::Auto), Log::begin())
    }

    #[test]
    fn the_page_has_curves_for_every_sample_and_a_row_for_every_phase() {
        let report = report(&mut example(0.9), Mode::Default);
        let html = page::html(&report);
        check_page(&html);
        assert_eq!(html.matches("class=\"line c").count(), 6 + 6, "curves, and their legends");
        assert_eq!(html.matches("class=\"band").count(), 3 * 2);
        assert!(html.contains("2. remove node3") && html.contains("0.20 <span"), "{html}");
        assert!(html.contains("a killed server is noticed: yes; 0.01 s (published 5 s"), "{html}");
        assert_eq!(report.exit(), Exit::Ok, "{:?}", report.complaint());
        assert_eq!(report.samples.rows.len(), 4);
    }

    #[test]
    fn a_slow_phase_is_a_missed_must_unless_the_run_is_short() {
        let mut document = example(0.5);
        let slow = report(&mut document, Mode::Default);
        assert_eq!(slow.exit(), Exit::Missed);
        assert!(document.missed[0].contains("read 1 MiB gets what the disks allow"));
        assert_eq!(report(&mut document, Mode::Short).exit(), Exit::Ok);
        assert!(document.missed.is_empty());
    }

    #[test]
    fn a_run_that_ended_with_an_error_misses() {
        let mut document = example(0.9);
        document.error = Some("phase `x`: no answer".into());
        assert_eq!(report(&mut document, Mode::Short).exit(), Exit::Missed);
        assert!(document.missed[0].contains("no answer"));
    }
}
