//! `gabion bench esg`: re-enacts ESG Lab's test of ScaleIO (2015) on this machine, and writes a
//! report.
//!
//! It measures 3 to 128 data servers on NULL devices, 4 KiB at random offsets, 100 % read and
//! 70/30, with the same depth per server. Each figure is measured between two floors of the same
//! layout. A size that can't be measured becomes a row with the reason; the other sizes are still
//! measured.

mod number;
mod page;
mod plot;
mod published;
mod report;

use admin::exit::Exit;
use anyhow::{Context, Result};
use bench::interrupt;
use bench::io::seconds;
use bench::ratio::rows::{self, DEPTH_PER_SDS};
use bench::test_cluster::{Layout, TestCluster};
use clap::Args;
use daemon::files;
use published::Kind;
use report::{Arithmetic, Machine, Measured, Point, Published, Report};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of `bench esg`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Writes report.html (one file with plots and tables) and report.json into the directory. Each size runs in \
two layouts, all SDSs in two processes and one process per SDS, or in the one that --sds-per-process says; \
beside each figure stands the floor of the same layout: bare TCP frames, without any product logic. \
A size that can't be measured is a row that says why, and makes the exit code 7.

Examples:
  gabion bench esg --out report                    3, 32, 64 and 128 nodes: some 10 minutes
  gabion bench esg --nodes 3,6 --rounds 1 --seconds 1 --out report
  gabion bench esg --sds-per-process 8 --out report --json")]
pub struct EsgArgs {
    /// Numbers of data servers, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "3,32,64,128", value_parser = clap::value_parser!(u32).range(2..=512))]
    nodes: Vec<u32>,
    /// Servers per process [default: both layouts, all in two processes and one per process]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=512))]
    sds_per_process: Option<u32>,
    /// Measurements of Gabion, each between two of the floor
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds per measurement, after a warm-up
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Directory for the report, created if it is missing
    #[arg(long, value_name = "DIR", default_value = "gabion-esg")]
    out: PathBuf,
    /// How Gabion talks to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,
    /// Also print report.json
    #[arg(long)]
    json: bool,
}

/// Runs `gabion bench esg`.
pub fn run(args: &EsgArgs) -> Result<Exit> {
    files::make_folder(&args.out)
        .with_context(|| format!("can't make the directory {}", args.out.display()))?;
    let machine = Machine::this(args.backend);
    let mut scaling = Vec::new();
    if !args.json {
        println!("{}", Point::head());
    }
    let plan = plan(&args.nodes, args.sds_per_process);
    for (i, (layout, name)) in plan.iter().enumerate() {
        let step = format!("{} of {}", i + 1, plan.len());
        for point in measure(*layout, name, &step, args)? {
            if !args.json {
                println!("{}", point.line());
            }
            scaling.push(point);
        }
    }
    let report = Report {
        experiment: "ESG Lab, ScaleIO, 2015: scaling to 128 nodes on NULL devices",
        gabion: env!("CARGO_PKG_VERSION"),
        limits: report::limits(&machine),
        machine,
        rounds: args.rounds,
        seconds: args.seconds,
        block_bytes: rows::BLOCK,
        depth_per_sds: DEPTH_PER_SDS,
        published: Published::new(),
        arithmetic: Arithmetic::of(&scaling),
        scaling,
    };
    let json = serde_json::to_string_pretty(&report)?;
    write(&args.out.join("report.html"), &report.html())?;
    write(&args.out.join("report.json"), &format!("{json}\n"))?;
    if args.json {
        println!("{json}");
    } else {
        println!("The report is {}", args.out.join("report.html").display());
    }
    let missing = report.scaling.iter().filter(|p| p.measured.is_none()).count();
    if missing > 0 {
        eprintln!("{missing} of {} rows could not be measured", report.scaling.len());
        return Ok(Exit::Missed);
    }
    Ok(Exit::Ok)
}

fn write(file: &Path, text: &str) -> Result<()> {
    files::write(file, text).with_context(|| format!("can't write {}", file.display()))
}

/// Returns the layouts to measure, in order, with their names.
fn plan(nodes: &[u32], per_process: Option<u32>) -> Vec<(Layout, String)> {
    let mut sizes = nodes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let named = |size: u32| match per_process {
        Some(1) => vec![(Layout::apart(size), "one per process".to_owned())],
        Some(per_process) => {
            vec![(Layout { servers: size, per_process }, format!("{per_process} per process"))]
        }
        None => vec![
            (Layout::packed(size), "in two processes".to_owned()),
            (Layout::apart(size), "one per process".to_owned()),
        ],
    };
    sizes.into_iter().flat_map(named).collect()
}

/// Measures both workloads on one cluster.
fn measure(layout: Layout, name: &str, step: &str, args: &EsgArgs) -> Result<Vec<Point>> {
    let (rounds, window) = (args.rounds as usize, Duration::from_secs_f64(args.seconds));
    let cluster = {
        let _line = fleet::progress::Line::new(&format!("{step}: {} SDSs start", layout.servers));
        TestCluster::start(layout, args.backend, true)
    };
    let mut points = Vec::new();
    for kind in Kind::ALL {
        let pair = rows::many(layout, kind == Kind::Mixed);
        let mut point = Point::new(layout, name, kind, pair.work.depth);
        let title = format!("{step}: {} SDSs, {name}, {}", layout.servers, kind.name());
        let taken = match &cluster {
            Ok(cluster) => {
                pair.run(&title, cluster, rounds, window).map_err(|why| format!("{why:#}"))
            }
            Err(why) => Err(format!("{why:#}")),
        };
        // An interrupted run writes no report, so an earlier report stays.
        interrupt::check()?;
        match taken {
            Ok(taken) => point.measured = Some(Measured::of(&taken, layout.servers)),
            Err(why) => point.note = Some(why),
        }
        points.push(point);
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_run_in_order_in_both_layouts_or_in_the_one_that_was_asked_for() {
        let layouts = |plan: &[(Layout, String)]| plan.iter().map(|p| p.0).collect::<Vec<_>>();
        let both = plan(&[32, 3, 32], None);
        let expected = [Layout::packed(3), Layout::apart(3), Layout::packed(32), Layout::apart(32)];
        assert_eq!(layouts(&both), expected);
        let one = plan(&[16], Some(8));
        assert_eq!((one[0].0.processes(), one[0].1.as_str(), one.len()), (2, "8 per process", 1));
    }
}
