//! `gabion experiment esg`: re-enacts ESG Lab's test of ScaleIO (2015) on this machine.
//!
//! It measures 3 to 128 data servers on NULL devices, 4 KiB at random offsets, 100 % read and
//! 70/30, with the same depth per server; and three and six servers with other media. Each figure
//! is measured beside what limits it: bare frames of the same layout, or fio on the same disk.

mod bed;
mod claims;
mod figures;
mod media;
mod point;
mod published;
mod scaling;
mod slope;
mod tables;

use crate::log::Log;
use crate::musts;
use crate::options::{Mode, Options};
use crate::plan::{Plan, Program, Step};
use crate::report::machine::Machine;
use crate::report::{Folder, Report};
use anyhow::Result;
use bed::{Medium, Setup};
use bench::interrupt;
use bench::io::seconds;
use bench::ratio::rows::{BLOCK, DEPTH_PER_SDS};
use clap::Args;
use media::MediaPoint;
use point::{Arithmetic, Point};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::time::Duration;

/// Name of the experiment.
pub(crate) const NAME: &str = "esg";
const STEPS: [&str; 2] = ["media", "scaling"];

/// Options of `experiment esg`, and of `bench esg`, which is the same.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Step `media` runs 3 and 6 nodes on NULL devices, memory and files; step `scaling` 3 to 128 nodes on NULL \
devices, in two layouts: as few processes as possible, and one process per SDS, or the one that \
--sds-per-process says. Beside each figure stands its limit: bare TCP frames of the same layout, or fio on \
the same disk. The report is report.html, with plots, tables and a verdict for each claim; report.json, \
tables/ and figures/ have the same for programs. The exit code is 7 if a must is missed, or a figure could \
not be measured.

Examples:
  gabion experiment esg --out report          some 15 minutes
  gabion bench esg --out report               the same
  gabion experiment esg --short --out report  everything, in less than two minutes; no speed is judged
  gabion experiment esg --only scaling --nodes 3,6 --rounds 1 --seconds 1
  gabion experiment esg --plan                what it would do, and what it needs")]
pub struct EsgArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Numbers of data servers, separated by commas [default: 3,32,64,128; with --short 3,6,16]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=512))]
    nodes: Vec<u32>,
    /// Media of step `media`
    #[arg(
        long,
        value_name = "MEDIUM",
        value_delimiter = ',',
        value_enum,
        default_value = "null,ram,file"
    )]
    media: Vec<Medium>,
    /// Devices of each data server
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    devices_per_sds: u32,
    /// Data clients that share the load
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Servers per process [default: both layouts, as few processes as possible and one per SDS]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=512))]
    sds_per_process: Option<u32>,
    /// Measurements of Gabion, each between two of its limit [default: 3; with --short 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Seconds per measurement, after a warm-up [default: 3; with --short 0.5, with --full 10]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// How Gabion talks to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,
}

/// The fields of `report.json` that only this experiment has.
#[derive(Debug, Serialize)]
struct Document {
    mode: &'static str,
    rounds: usize,
    seconds: f64,
    block_bytes: u32,
    depth_per_sds: u32,
    devices_per_sds: u32,
    clients: u32,
    published: Published,
    media: Vec<MediaPoint>,
    scaling: Vec<Point>,
    /// Not measured: the IOPS of a host with the published cores at our processor time per I/O.
    arithmetic: Vec<Arithmetic>,
}

/// The published figures that don't depend on the number of nodes.
#[derive(Debug, Serialize)]
struct Published {
    cores_per_node: f64,
    iops_per_node_null_device: f64,
    iops_per_node_flash_card: f64,
    cpu_us_per_read: f64,
}

impl EsgArgs {
    fn nodes(&self) -> Vec<u32> {
        match (self.nodes.is_empty(), self.options.mode()) {
            (false, _) => self.nodes.clone(),
            (_, Mode::Short) => vec![3, 6, 16],
            _ => published::NODES.to_vec(),
        }
    }

    fn setup(&self) -> Setup {
        let (rounds, window, volume_min) = match self.options.mode() {
            Mode::Short => (1, 0.5, 128 << 20),
            Mode::Default => (3, 3.0, 512 << 20),
            Mode::Full => (3, 10.0, 2 << 30),
        };
        Setup {
            devices_per_sds: self.devices_per_sds,
            clients: self.clients,
            rounds: self.rounds.map_or(rounds, |n| n as usize),
            window: Duration::from_secs_f64(self.seconds.unwrap_or(window)),
            volume_min,
            backend: self.backend,
            folder: self.options.out(NAME),
        }
    }

    /// Returns what a run does and needs.
    pub(crate) fn plan(&self) -> Plan {
        let setup = self.setup();
        // A warm-up comes before each measurement, and a cluster takes some seconds to start.
        let once = setup.window.as_secs_f64() + 0.75;
        let rounds = setup.rounds as f64;
        let mut steps = Vec::new();
        let (mut disk_bytes, mut programs) = (0, Vec::new());
        if self.options.wants(STEPS[0]) {
            let names: Vec<&str> = self.media.iter().map(|m| m.name()).collect();
            let loads = (media::NODES.len() * self.media.len() * 2) as f64;
            steps.push(Step {
                name: STEPS[0],
                what: format!("3 and 6 nodes on {}, reads and 70/30", names.join(", ")),
                seconds: loads * rounds * 2.0 * once + 4.0 * loads / 2.0,
            });
            if self.media.contains(&Medium::File) {
                // Two copies, the logs, and fio's file.
                disk_bytes = setup.volume(6) * 4 + base::GIB;
                programs.push(Program { name: "fio", package: "fio" });
            }
        }
        if self.options.wants(STEPS[1]) {
            let layouts = scaling::plan(&setup, &self.nodes(), self.sds_per_process, descriptors());
            let sizes: Vec<String> = self.nodes().iter().map(u32::to_string).collect();
            let starts: f64 = layouts.iter().map(|(l, _)| 1.0 + f64::from(l.servers) / 8.0).sum();
            let loads = layouts.len() as f64 * 2.0;
            steps.push(Step {
                name: STEPS[1],
                what: format!("{} nodes on NULL devices, reads and 70/30", sizes.join(", ")),
                seconds: loads * (2.0 * rounds + 1.0) * once + starts,
            });
        }
        Plan { steps, disk_bytes, folder: setup.folder, root: None, programs }
    }
}

fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20)
}

/// Runs the experiment and returns its report and the content of `report.json`. With `says`, it
/// prints each row.
pub(crate) fn run(args: &EsgArgs, says: bool) -> Result<Report> {
    Plan::check_names(&STEPS, &args.options.only)?;
    args.plan().check()?;
    let mut folder = Folder::make(&args.options.out(NAME))?;
    let (setup, machine, mut log) = (args.setup(), Machine::this(args.backend), Log::begin());
    let mut missing = Vec::new();
    let media = match args.options.wants(STEPS[0]) {
        true => take_media(args, &setup, &mut log, &mut missing)?,
        false => Vec::new(),
    };
    let scaling = match args.options.wants(STEPS[1]) {
        true => take_scaling(args, &setup, says, &mut log)?,
        false => Vec::new(),
    };
    let unmeasured = scaling.iter().filter(|p| p.measured.is_none());
    missing.extend(unmeasured.map(|p| {
        format!(
            "{} nodes, {}, {}: {}",
            p.nodes,
            p.workload.name(),
            p.layout,
            p.note.as_deref().unwrap_or("")
        )
    }));
    let mode = args.options.mode();
    let document = Document {
        mode: mode.name(),
        rounds: setup.rounds,
        seconds: setup.window.as_secs_f64(),
        block_bytes: BLOCK,
        depth_per_sds: DEPTH_PER_SDS,
        devices_per_sds: setup.devices_per_sds,
        clients: setup.clients,
        published: Published {
            cores_per_node: published::CORES,
            iops_per_node_null_device: published::NULL_DEVICE,
            iops_per_node_flash_card: published::FLASH_CARD,
            cpu_us_per_read: published::CPU_US_PER_READ,
        },
        arithmetic: Arithmetic::of(&scaling),
        media,
        scaling,
    };
    let report = report(&document, &setup, mode, machine, log, missing);
    let json = report.json(&document)?;
    report.write(&mut folder, &json)?;
    if args.options.json {
        println!("{}", serde_json::to_string_pretty(&json)?);
    }
    Ok(report)
}

fn take_media(
    args: &EsgArgs,
    setup: &Setup,
    log: &mut Log,
    missing: &mut Vec<String>,
) -> Result<Vec<MediaPoint>> {
    let mut points = Vec::new();
    for nodes in media::NODES {
        match media::measure(setup, nodes, &args.media, log) {
            Ok(some) => points.extend(some),
            Err(why) => {
                interrupt::check()?;
                missing.push(format!("media at {nodes} nodes: {why:#}"));
            }
        }
    }
    Ok(points)
}

fn take_scaling(args: &EsgArgs, setup: &Setup, says: bool, log: &mut Log) -> Result<Vec<Point>> {
    let plan = scaling::plan(setup, &args.nodes(), args.sds_per_process, descriptors());
    if says {
        println!("{}", Point::head());
    }
    let mut points = Vec::new();
    for (i, layout) in plan.iter().enumerate() {
        let step = format!("{} of {}", i + 1, plan.len());
        for point in scaling::measure(setup, layout, &step, log)? {
            if says {
                println!("{}", point.line());
            }
            points.push(point);
        }
    }
    Ok(points)
}

fn report(
    document: &Document,
    setup: &Setup,
    mode: Mode,
    machine: Machine,
    log: Log,
    missing: Vec<String>,
) -> Report {
    let (scaling, media) = (&document.scaling[..], &document.media[..]);
    let mut claims = claims::Evidence { scaling, media, doubt: mode.doubt() }.claims();
    claims.extend(musts::of(&log));
    let cores = machine.cores;
    let mut report = Report {
        name: NAME,
        title: "ESG Lab's test of ScaleIO (2015), re-enacted with Gabion".into(),
        introduction: introduction(document),
        limits: limits(cores),
        machine,
        claims,
        sections: Vec::new(),
        missing,
        samples: log.samples,
        transcript: log.transcript,
    };
    let nodes = scaling.iter().map(|p| p.nodes).max().unwrap_or(media::NODES[1]);
    report.add_figure(figures::stand(setup, nodes));
    if !media.is_empty() {
        report.add_figure(figures::three_nodes(media));
        report.add_table(tables::media(media));
        report.add_figure(figures::expected(media));
    }
    if !scaling.is_empty() {
        report.add_table(tables::one_node(scaling, cores));
        report.add_figure(figures::cores(scaling, cores));
        report.add_table(tables::growth(scaling));
        figures::growth(scaling).into_iter().for_each(|figure| report.add_figure(figure));
        report.add_table(tables::arithmetic(&document.arithmetic));
        report.add_table(tables::scaling(scaling));
    }
    report
}

fn introduction(document: &Document) -> Vec<String> {
    vec![
        "The original ran 3 to 128 hosts of 20 cores (2.8 GHz) with NULL devices, each a data server \
         and a client: 4 KiB at random places, 100 % read and 70/30. Here all nodes share one machine, \
         so its sums are no match for the original's; what can be compared is what an I/O costs, and \
         whether that grows with the number of nodes. The dashed floor is what bare TCP frames in the \
         same pattern cost here, with the same number of connections."
            .into(),
        format!(
            "A run in {} mode. Depth {} per SDS, {} devices per SDS, {} clients, over TCP; medians of {} \
             rounds of {} s, each between two floors.",
            document.mode,
            document.depth_per_sds,
            document.devices_per_sds,
            document.clients,
            document.rounds,
            document.seconds
        ),
    ]
}

/// Returns explanations of what one machine can't show, and of how to read the figures.
// Long: a list of sentences.
fn limits(cores: usize) -> Vec<String> {
    vec![
        format!(
            "One machine of {cores} cores carries all nodes and the clients, so the sum can't grow with \
             the number of nodes, and the rate per node falls as their number rises. What can be compared \
             is processor time per I/O: whether it grows with the number of nodes."
        ),
        "Processor time per I/O grows with the number of connections, because batches get smaller; that is \
         so for bare frames, too. So the floor stands beside each figure: the same number of devices, \
         processes, connections, requests and bytes, without any product logic."
            .into(),
        format!(
            "With one process per SDS, N processes on {cores} cores pay for context switches that hosts \
             don't have that own their cores. With all SDSs in few processes, several SDSs share a thread, \
             each with sockets, devices and an identity of its own: it has fewer wake-ups than separate \
             hosts would have. Real hosts are between the two. There are two such processes, and more only \
             where the links need more descriptors than a process may have."
        ),
        "The network is the loopback interface: no network card, no interrupts, no switch, packets of \
         64 KiB. Copies in the kernel are included."
            .into(),
        "In the original every node was a client, too; its 83 us per read assume that all 20 cores of each \
         node were busy."
            .into(),
        "NULL devices say nothing of the response time of a medium: what is read from them is made up. \
         What is read carries no payload checksum; what is written does. Everything else is on: heads' \
         checksums, epochs, sessions, leases, two copies."
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
mod tests {
    use super::*;
    use crate::report::page;
    use crate::report::tests::check_page;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        esg: EsgArgs,
    }

    fn args(line: &str) -> EsgArgs {
        Cli::try_parse_from(line.split(' ')).unwrap().esg
    }

    fn example() -> (Report, serde_json::Value) {
        let (scaling, media) = (point::tests::example(), media::tests::example());
        let document = Document {
            mode: "default",
            rounds: 1,
            seconds: 1.0,
            block_bytes: 4096,
            depth_per_sds: 16,
            devices_per_sds: 2,
            clients: 1,
            published: Published {
                cores_per_node: 20.0,
                iops_per_node_null_device: 240e3,
                iops_per_node_flash_card: 220e3,
                cpu_us_per_read: 83.3,
            },
            arithmetic: Arithmetic::of(&scaling),
            media,
            scaling,
        };
        let (machine, setup) = (Machine::this(rt::Backend::Auto), args("esg").setup());
        let report = report(&document, &setup, Mode::Default, machine, Log::begin(), Vec::new());
        let json = report.json(&document).unwrap();
        (report, json)
    }

    #[test]
    fn the_page_needs_nothing_else_and_hides_nothing() {
        let html = page::html(&example().0);
        check_page(&html);
        for inside in [
            "Gabion, in few processes",
            "floor, one per process",
            "ScaleIO, published",
            "not measured: it &lt;did&gt; not start",
            "Arithmetic, not a measurement",
            "context switches",
            "reads grow linearly with the nodes: yes; 0.96",
        ] {
            assert!(html.contains(inside), "{inside}");
        }
        // Figures 1 to 6, and cost, rate per node and ratio, each for two loads.
        assert_eq!(html.matches("role=\"img\"").count(), 6 + 6);
    }

    /// The published format. This test may only be extended.
    #[test]
    fn the_published_fields_are_all_there() {
        let (_, json) = example();
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
        for list in ["claims", "figures", "tables", "media"] {
            assert!(json[list].as_array().is_some_and(|l| !l.is_empty()), "{list}");
        }
    }

    #[test]
    fn a_plan_grows_with_what_is_asked_for() {
        let seconds = |line: &str| args(line).plan().steps.iter().map(|s| s.seconds).sum::<f64>();
        assert!(seconds("esg --short") < 120.0, "{}", seconds("esg --short"));
        assert!((300.0..1200.0).contains(&seconds("esg")), "{}", seconds("esg"));
        assert!(seconds("esg --full") > seconds("esg"));
        let scaling = args("esg --only scaling").plan();
        assert_eq!((scaling.steps.len(), scaling.disk_bytes), (1, 0));
        assert!(scaling.programs.is_empty() && args("esg").plan().programs.len() == 1);
        assert!(args("esg --media null,ram").plan().programs.is_empty());
    }
}
