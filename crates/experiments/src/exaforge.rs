//! The fifth experiment: ScaleIO 1.2 on three tiny virtual machines, ExaForge Labs, 2013.
//!
//! It repeats the steps of that test on servers with 1 GiB of memory each and disks of a known
//! speed, and compares the throughput with the maximum of three such disks. Next to it, it shows
//! the published figures, as fractions of the maximum of their three disks.

mod demo_cluster;
mod published;
mod report;
mod watch;

use crate::log::Log;
use crate::options::{Mode, Options};
use crate::plan::{Plan, Program, Step};
use crate::report::machine::Machine;
use crate::report::{Folder, Report};
use admin::report::{Report as Status, UpDown};
use anyhow::{Context, Result, bail};
use bench::drive::{Jobs, Work};
use bench::interrupt;
use bench::load::Data;
use bench::workload::Workload;
use clap::Args;
use daemon::size::Size;
use demo_cluster::{DemoCluster, SERVERS, Sizes};
use fleet::cgroup::Limits;
use fleet::progress::Line;
use fleet::table::{right, table};
use fleet::target::Target;
use published::Published;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::{Sample, Watch};

const MIB: u64 = base::MIB;
/// Seconds until the copies of a lost server are rebuilt.
pub(crate) const REBUILD_AFTER: u32 = 3;
/// How long requests may stall after a loss was noticed before the demo fails.
const RESUMED: Duration = Duration::from_secs(30);
/// How long copying may take before the demo fails.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Name of the experiment.
pub(crate) const NAME: &str = "exaforge";
const STEPS: [&str; 4] = ["loads", "removal", "kill", "cable"];

/// Options of `experiment exaforge`, and of `demo exaforge`, which is the same.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Makes four hosts on this machine (network namespaces, so it takes root): three servers with 1 GiB of memory and a disk \
that is held at --disk bytes per second, and one that manages them. Step `loads`: reads, writes, 8 KiB half and half. \
Step `removal`: a server is removed in order and comes back empty. Step `kill`: one is killed under load and comes back. \
Step `cable`: one loses its cable. docs/operate/demo.md tells how to read the report. The exit code is 7 if a must is \
missed or the run failed.

Examples:
  gabion experiment exaforge --out report        five minutes
  gabion demo exaforge --out report              the same
  gabion experiment exaforge --short --json      one minute; no speed is judged
  gabion experiment exaforge --data 8GiB --disk 200MiB --seconds 60
  gabion experiment exaforge --plan              what it would do, and what it needs")]
pub struct ExaforgeArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Size of the volume; each server's disk is twice as large, and sparse [default: 1GiB; with
    /// --short 64MiB, with --full 8GiB]
    #[arg(long)]
    data: Option<Size>,
    /// Bytes per second that each server's disk reads, and writes [default: 64MiB; with --short
    /// 256MiB]
    #[arg(long)]
    disk: Option<Size>,
    /// Seconds per load [default: 8; with --short 0.5]
    #[arg(long, value_parser = bench::io::seconds)]
    seconds: Option<f64>,
}

/// A step of the experiment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Phase {
    pub name: &'static str,
    pub begin_seconds: f64,
    pub seconds: f64,
    /// Requests of the client.
    pub requests: u64,
    pub requests_per_second: f64,
    pub client_bytes_per_second: f64,
    /// Bytes that servers copied to each other.
    pub moved_bytes: u64,
    /// The figure that is judged: bytes at the disks, per second.
    pub disk_bytes_per_second: f64,
    /// The rate that the disks allow, in bytes per second.
    pub allowed_bytes_per_second: f64,
    /// The fraction of the allowed rate that was reached.
    pub ratio: f64,
    /// The mean latency of the requests.
    pub mean_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// The longest latency of any request.
    pub longest_ms: Option<f64>,
    /// The published figure, and its fraction of what three of their disks allowed.
    pub published: &'static str,
    pub published_ratio: Option<f64>,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Document {
    pub schema: u32,
    pub data_bytes: u64,
    pub disk_bytes_per_second: u64,
    pub memory_bytes: u64,
    /// 1 if an error ended the run, such as a failed request or wrong data; else 0.
    pub io_errors: u64,
    pub error: Option<String>,
    /// 0 where the step did not run.
    pub kill_noticed_ms: f64,
    pub partition_noticed_ms: f64,
    pub phases: Vec<Phase>,
    pub missed: Vec<String>,
    pub samples: Vec<Sample>,
}

impl ExaforgeArgs {
    fn sizes(&self) -> (u64, u64, f64) {
        let (data, disk, seconds) = match self.options.mode() {
            Mode::Short => (64 * MIB, 256 * MIB, 0.5),
            Mode::Default => (1024 * MIB, 64 * MIB, 8.0),
            Mode::Full => (8192 * MIB, 64 * MIB, 8.0),
        };
        let or = |size: Option<Size>, usual: u64| size.map_or(usual, |s| s.0);
        (or(self.data, data), or(self.disk, disk), self.seconds.unwrap_or(seconds))
    }

    /// Returns what a run does and needs.
    pub(crate) fn plan(&self) -> Plan {
        let (data, disk, seconds) = self.sizes();
        let (data_at_disk, gib) = (data as f64 / disk as f64, Size(data));
        let all = [
            (format!("read, write, 8 KiB half and half on {gib}"), 3.0 * seconds + 5.0),
            ("node3 is removed, and comes back empty".into(), data_at_disk * 1.2 + 5.0),
            // Copies yield to clients.
            ("node2 is killed under load, and comes back".into(), data_at_disk * 6.0 + 10.0),
            ("node1's cable is pulled under load".into(), 10.0),
        ];
        let steps = STEPS.into_iter().zip(all);
        let steps = steps.map(|(name, (what, seconds))| Step { name, what, seconds });
        let program = |name| Program { name, package: "iproute2" };
        Plan {
            steps: steps.filter(|s| self.options.wants(s.name)).collect(),
            disk_bytes: data * 6,
            folder: self.options.out(NAME),
            root: Some("network namespaces and control groups"),
            programs: vec![program("ip")],
        }
    }
}

/// The hosts' files, which are removed when this is dropped.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the experiment, writes its report and returns it.
pub(crate) fn run(target: &Target, args: &ExaforgeArgs) -> Result<Report> {
    if !target.mdm.is_empty() {
        bail!("the experiment makes a cluster of its own: leave out --mdm");
    }
    Plan::check_names(&STEPS, &args.options.only)?;
    args.plan().check()?;
    let out = args.options.out(NAME);
    let mut folder = Folder::make(&out)?;
    let machine = Machine::this(rt::Backend::Auto);
    let (data, disk, seconds) = args.sizes();
    let limits = Limits { memory: 1 << 30, disk };
    let files = Files(out.join(format!("exaforge-{}", std::process::id())));
    let sizes = Sizes { device: data * 2, volume: data, limits, rebuild_after: REBUILD_AFTER };
    let mut log = Log::begin();
    log.transcript.add("gabion deploy: four hosts in network namespaces");
    let cluster = DemoCluster::new(&files.0, &sizes)?;
    let mut demo = Demo::new(cluster, Duration::from_secs_f64(seconds), limits, data, log);
    let outcome = demo.play(&args.options);
    // An interrupted run writes no report.
    interrupt::check()?;
    let (mut document, mut log) = demo.end(outcome.err().map(|why| format!("{why:#}")));
    drop(files);
    log.transcript.add("the hosts are taken away");
    let report = report::of(&mut document, args.options.mode(), machine, log);
    let json = report.json(&document)?;
    report.write(&mut folder, &json)?;
    match args.options.json {
        true => println!("{}", serde_json::to_string_pretty(&json)?),
        false => println!("{}", document.page()),
    }
    Ok(report)
}

struct Demo {
    cluster: DemoCluster,
    watch: Watch,
    window: Duration,
    limits: Limits,
    data: u64,
    phases: Vec<Phase>,
    kill_noticed: Duration,
    cable_noticed: Duration,
    log: Log,
}

/// A kind of load.
#[derive(Clone, Copy)]
struct Kind {
    workload: Workload,
    block: u32,
    depth: u32,
}

const READ: Kind = Kind { workload: Workload::Read, block: 1 << 20, depth: 16 };
const WRITE: Kind = Kind { workload: Workload::Write, block: 1 << 20, depth: 16 };
const MIXED: Kind = Kind { workload: Workload::Randrw, block: 8192, depth: 64 };

/// A phase, and what its disks allow.
struct Title {
    phase: Published,
    allowed: f64,
}

impl Demo {
    fn new(cluster: DemoCluster, window: Duration, limits: Limits, data: u64, log: Log) -> Demo {
        let watch = Watch::start(&cluster.target);
        let (phases, kill_noticed, cable_noticed) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        Demo { cluster, watch, window, limits, data, phases, kill_noticed, cable_noticed, log }
    }

    fn play(&mut self, options: &Options) -> Result<()> {
        eprintln!("Filling {} with what tells its place", Size(self.data));
        self.log.transcript.add("the volume is filled with words that tell their place");
        let filled = self.cluster.volume.fill(Data::Checked);
        self.log.note_failure("filling the volume", filled)?;
        let steps: [fn(&mut Demo) -> Result<()>; 4] =
            [Demo::loads, Demo::removal, Demo::loss, Demo::cable];
        for (name, step) in STEPS.into_iter().zip(steps) {
            if options.wants(name) {
                step(self)?;
            }
        }
        eprintln!("Reading all of it");
        self.log.transcript.add("the whole volume is read and compared");
        let read = self.read_all();
        self.log.note_failure("reading all of the volume", read)?;
        self.settle()
    }

    /// Returns the title of a phase that uses this many disks.
    fn title(&self, phase: Published, disks: f64) -> Title {
        Title { phase, allowed: disks * self.limits.disk as f64 }
    }

    fn loads(&mut self) -> Result<()> {
        let window = self.window;
        let run = |_: &mut Demo| interrupt::sleep(window);
        let loads = [(published::READ, READ), (published::WRITE, WRITE), (published::MIXED, MIXED)];
        for (phase, kind) in loads {
            self.under(self.title(phase, SERVERS as f64), Some(kind), run)?;
        }
        self.settle()
    }

    fn removal(&mut self) -> Result<()> {
        self.log.transcript.add("gabion sds remove node3");
        self.under(self.title(published::REMOVE, 2.0), None, Demo::remove)?;
        self.cluster.end(3)?;
        self.log.transcript.add("node3: gabion sds run, on an empty disk");
        self.under(self.title(published::RETURN, 1.0), None, |demo| {
            demo.cluster.start(3, true)?;
            demo.level(3)
        })
    }

    fn loss(&mut self) -> Result<()> {
        self.log.transcript.add("node2: SIGKILL for its SDS and its MDM");
        self.under(self.title(published::KILL, 2.0), Some(MIXED), Demo::kill)?;
        self.settle()?;
        self.log.transcript.add("node2: gabion sds run, gabion mdm run, on its old disk");
        self.under(self.title(published::BACK, 1.0), None, |demo| {
            demo.cluster.start(2, false)?;
            demo.level(2)
        })
    }

    fn cable(&mut self) -> Result<()> {
        self.log.transcript.add("node1: ip link set eth0 down, and up again");
        self.under(self.title(published::CABLE, 0.0), Some(MIXED), Demo::pull)?;
        self.settle()
    }

    /// Runs a phase, under load if `kind` is given.
    fn under(
        &mut self,
        title: Title,
        kind: Option<Kind>,
        f: impl FnOnce(&mut Demo) -> Result<()>,
    ) -> Result<()> {
        let mut jobs = match kind {
            Some(kind) => Some(self.begin(kind)?),
            None => None,
        };
        let moved = self.watch.moved();
        let (begin, at) = (Instant::now(), self.watch.now());
        let before = jobs.as_ref().map_or([0; 2], answered);
        let name = title.phase.name;
        let done = f(self).with_context(|| format!("phase `{name}`"));
        self.log.note_failure(name, done)?;
        let seconds = begin.elapsed().as_secs_f64();
        let after = jobs.as_ref().map_or([0; 2], answered);
        let moved_bytes = self.watch.moved() - moved;
        let ended = jobs.as_mut().map(Jobs::end).transpose();
        let tally = self.log.note_failure(name, ended)?;
        self.watch.load(Vec::new(), 0);
        let block = kind.map_or(0, |k| u64::from(k.block));
        let [reads, writes] = [0, 1].map(|side| after[side] - before[side]);
        // An overwrite of a whole slot (64 KiB) goes to a new place and is written once per copy; a
        // smaller one is also written to the log.
        let times = if block < 1 << 16 { 4 } else { 2 };
        let read_alone = writes == 0 && moved_bytes == 0;
        let at_disks =
            if read_alone { reads * block } else { writes * block * times + moved_bytes };
        let latency = tally.and_then(|t| t.both());
        let rate = |bytes: u64| bytes as f64 / seconds;
        let phase = Phase {
            name,
            begin_seconds: at,
            seconds,
            requests: reads + writes,
            requests_per_second: rate(reads + writes),
            client_bytes_per_second: rate((reads + writes) * block),
            moved_bytes,
            disk_bytes_per_second: rate(at_disks),
            allowed_bytes_per_second: title.allowed,
            ratio: if title.allowed > 0.0 { rate(at_disks) / title.allowed } else { 0.0 },
            mean_ms: latency.map(|l| l.mean / 1e3),
            p99_ms: latency.map(|l| l.p99 / 1e3),
            longest_ms: latency.map(|l| l.max / 1e3),
            published: title.phase.said,
            published_ratio: title.phase.ratio(),
        };
        eprintln!("{}", line(&phase));
        self.phases.push(phase);
        Ok(())
    }

    fn begin(&self, kind: Kind) -> Result<Jobs> {
        let Kind { workload, block, depth } = kind;
        let work =
            Work { workload, mix: 50, block, depth, rate: None, jobs: 1, data: Data::Checked };
        let jobs = Jobs::start(&self.cluster.volume, &work, None)?;
        jobs.wait_begun()?;
        jobs.counters().iter().for_each(|c| c.record(true));
        self.watch.load(jobs.counters(), block.into());
        Ok(jobs)
    }

    /// Waits until no copies are missing and none are being moved.
    fn settle(&self) -> Result<()> {
        self.wait("everything has its copies", |report| {
            report.groups.degraded == 0
                && report.moves.groups == 0
                && report.moves.waiting_groups == 0
        })
    }

    fn wait(&self, what: &str, done: impl Fn(&Status) -> bool) -> Result<()> {
        let (begin, progress) = (Instant::now(), Line::new(what));
        while begin.elapsed() < PATIENCE {
            if let Ok(report) = self.cluster.status() {
                if done(&report) {
                    return Ok(());
                }
                progress.say(&format!("{} left", Size(report.moves.remaining_bytes)));
            }
            interrupt::sleep(Duration::from_millis(50))?;
        }
        bail!("{what}: not within {PATIENCE:?}")
    }

    fn remove(&mut self) -> Result<()> {
        self.cluster.target.connect()?.remove(0, "node3", false)?;
        let gone =
            |report: &Status| report.sds.iter().all(|s| s.name != "node3" || s.devices.is_empty());
        self.wait("node3 has given all away", gone)
    }

    /// Waits until a server has its share of the groups.
    fn level(&self, number: usize) -> Result<()> {
        let name = format!("node{number}");
        self.wait("it has its share", |report| {
            let groups = |s: &admin::report::Sds| s.devices.iter().map(|d| d.groups).sum::<u32>();
            let all: u32 = report.sds.iter().map(groups).sum();
            let own = report.sds.iter().find(|s| s.name == name).map_or(0, groups);
            let share = f64::from(all) / SERVERS as f64;
            let level = (f64::from(own) - share).abs() <= (share * 0.05).max(1.0);
            level && report.groups.degraded == 0 && report.moves.groups == 0
        })
    }

    fn kill(&mut self) -> Result<()> {
        self.cluster.kill(2)?;
        self.kill_noticed = self.noticed(2, UpDown::Down)?;
        self.settle()
    }

    fn pull(&mut self) -> Result<()> {
        self.cluster.cable(1, false)?;
        let noticed = self.noticed(1, UpDown::Down);
        let resumed = self.resumed();
        interrupt::sleep(Duration::from_secs(1))?;
        self.cluster.cable(1, true)?;
        self.cable_noticed = noticed?;
        resumed?;
        self.noticed(1, UpDown::Up).map(drop)
    }

    /// Waits until more requests are answered than were in flight.
    fn resumed(&self) -> Result<()> {
        let (begin, before) = (Instant::now(), self.watch.answered());
        while self.watch.answered() <= before + u64::from(MIXED.depth) {
            interrupt::sleep(Duration::from_millis(5))?;
            if begin.elapsed() > RESUMED {
                bail!("requests are not answered again within {RESUMED:?}");
            }
        }
        Ok(())
    }

    fn noticed(&self, number: usize, state: UpDown) -> Result<Duration> {
        let name = format!("node{number}");
        watch::until(&self.cluster.target, &name, state, Duration::from_secs(30))
    }

    /// Reads the whole volume and compares every byte.
    fn read_all(&self) -> Result<()> {
        let Kind { workload, block, depth } = READ;
        let work =
            Work { workload, mix: 0, block, depth, rate: None, jobs: 1, data: Data::Checked };
        self.cluster.volume.once(&work)
    }

    fn end(self, error: Option<String>) -> (Document, Log) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let document = Document {
            schema: 1,
            data_bytes: self.data,
            disk_bytes_per_second: self.limits.disk,
            memory_bytes: self.limits.memory,
            io_errors: u64::from(error.is_some()),
            error,
            kill_noticed_ms: ms(self.kill_noticed),
            partition_noticed_ms: ms(self.cable_noticed),
            phases: self.phases,
            missed: Vec::new(),
            samples: self.watch.end(),
        };
        (document, self.log)
    }
}

fn answered(jobs: &Jobs) -> [u64; 2] {
    let counters = jobs.counters();
    let all = counters.iter().map(|c| c.answered());
    all.fold([0; 2], |sum, [r, w]| [sum[0] + r, sum[1] + w])
}

fn line(p: &Phase) -> String {
    format!("{:<24} {:>7.1} s   {}", p.name, p.seconds, Size(p.moved_bytes / MIB * MIB))
}

impl Document {
    /// Returns the report as text for people.
    fn page(&self) -> String {
        let mut t = table(&[
            "phase",
            "seconds",
            "requests/s",
            "clients",
            "moved",
            "at the disks",
            "of what they allow",
            "p99",
            "longest",
            "published (2013)",
            "of what theirs allowed",
        ]);
        right(&mut t, &[1, 2, 3, 4, 5, 6, 7, 8, 10]);
        let some =
            |value: Option<f64>, unit: &str| value.map_or("-".into(), |v| format!("{v:.1}{unit}"));
        for p in &self.phases {
            t.add_row([
                p.name.to_owned(),
                format!("{:.1}", p.seconds),
                format!("{:.0}", p.requests_per_second),
                format!("{}/s", Size(p.client_bytes_per_second as u64)),
                Size(p.moved_bytes).to_string(),
                format!("{}/s", Size(p.disk_bytes_per_second as u64)),
                if p.allowed_bytes_per_second > 0.0 {
                    format!("{:.2}", p.ratio)
                } else {
                    "-".into()
                },
                some(p.p99_ms, " ms"),
                some(p.longest_ms, " ms"),
                p.published.to_owned(),
                p.published_ratio.map_or("-".into(), |r| format!("{r:.2}")),
            ]);
        }
        format!(
            "\n{t}\n\nI/O errors: {}. A killed server was noticed after {:.0} ms (5 s then), a pulled cable after {:.0} ms.",
            self.io_errors, self.kill_noticed_ms, self.partition_noticed_ms
        )
    }
}
