//! The fifth experiment: ScaleIO 1.2 on three tiny virtual machines, ExaForge Labs, 2013.
//!
//! It repeats the steps of that test on servers with 1 GiB of memory each and disks of a known
//! speed, and compares the throughput with the maximum of three such disks. Next to it, it shows
//! the published figures, as fractions of the maximum of their three disks.

mod demo_cluster;
mod page;
mod watch;

use admin::exit::Exit;
use admin::report::{Report, UpDown};
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
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::{Sample, Watch};

const MIB: u64 = base::MIB;
/// A phase must reach this part of what the disks allow.
const MUST: f64 = 0.7;
/// Time limits for noticing a killed server, and one without its network link.
const KILL_NOTICED: Duration = Duration::from_secs(1);
const CABLE_NOTICED: Duration = Duration::from_secs(3);
/// How long requests may stall after a loss was noticed before the demo fails.
const RESUMED: Duration = Duration::from_secs(30);
/// How long copying may take before the demo fails.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Assumed speed of the disks in the published test, a SATA disk of 2013, in bytes per second.
const THEIR_DISK: f64 = 120e6;

/// Options of `gabion demo exaforge`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes four hosts on this machine (network namespaces, so it takes root): three servers with 1 GiB of memory and a disk \
that is held at --disk bytes per second, and one that manages them. Then: reads, writes, 8 KiB half and half; a server is \
removed in order, comes back empty, is killed under load, comes back, loses its cable. docs/operate/demo.md tells how \
to read the report.

Examples:
  gabion demo exaforge                           five minutes
  gabion demo exaforge --out report --json       report/report.html, report/report.json, and that on the screen
  gabion demo exaforge --data 8GiB --disk 200MiB --seconds 60")]
pub struct ExaforgeArgs {
    /// Size of the volume; each server's disk is twice as large, and sparse
    #[arg(long, default_value = "1GiB")]
    data: Size,
    /// Bytes per second that each server's disk reads, and writes
    #[arg(long, default_value = "64MiB")]
    disk: Size,
    /// Seconds per load
    #[arg(long, default_value_t = 8.0, value_parser = bench::io::seconds)]
    seconds: f64,
    /// Directory for the report
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
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
    pub kill_noticed_ms: f64,
    pub partition_noticed_ms: f64,
    pub phases: Vec<Phase>,
    pub missed: Vec<String>,
    pub samples: Vec<Sample>,
}

/// Runs `gabion demo exaforge`.
pub fn run(target: &Target, args: &ExaforgeArgs) -> Result<Exit> {
    if !target.mdm.is_empty() {
        bail!("the demo makes a cluster of its own: leave out --mdm");
    }
    interrupt::watch()?;
    let out = args.out.clone();
    let folder = out.clone().unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("exaforge-{}", std::process::id()));
    let limits = Limits { memory: 1 << 30, disk: args.disk.0 };
    let (device, volume) = (args.data.0 * 2, args.data.0);
    let cluster = DemoCluster::new(&folder, &Sizes { device, volume, limits, rebuild_after: 3 })?;
    let window = Duration::from_secs_f64(args.seconds);
    let mut demo = Demo::new(cluster, window, limits, args.data.0);
    let outcome = demo.play();
    let document = demo.end(outcome.err().map(|why| format!("{why:#}")));
    let _ = std::fs::remove_dir_all(&folder);
    if let Some(out) = &out {
        let json = serde_json::to_string_pretty(&document)?;
        daemon::files::write(&out.join("report.json"), json).context("can't write the report")?;
        daemon::files::write(&out.join("report.html"), page::html(&document))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        println!("{}", document.page());
        if let Some(out) = &out {
            println!("{} has the curves.", out.join("report.html").display());
        }
    }
    Ok(if document.missed.is_empty() { Exit::Ok } else { Exit::Missed })
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

/// The name of a phase, what its disks allow, and the published figure.
struct Title {
    name: &'static str,
    allowed: f64,
    published: &'static str,
    published_ratio: Option<f64>,
}

impl Demo {
    fn new(cluster: DemoCluster, window: Duration, limits: Limits, data: u64) -> Demo {
        let watch = Watch::start(&cluster.target);
        let (phases, kill_noticed, cable_noticed) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        Demo { cluster, watch, window, limits, data, phases, kill_noticed, cable_noticed }
    }

    fn play(&mut self) -> Result<()> {
        let (disk, servers) = (self.limits.disk as f64, SERVERS as f64);
        eprintln!("Filling {} with what tells its place", Size(self.data));
        self.cluster.volume.fill(Data::Checked)?;
        let window = self.window;
        let theirs = 3.0 * THEIR_DISK;
        let run = |_: &mut Demo| interrupt::sleep(window);
        let title = |name, allowed, published, ratio: f64| Title {
            name,
            allowed,
            published,
            published_ratio: (ratio > 0.0).then_some(ratio),
        };
        let reads = title("read 1 MiB", servers * disk, "125 MB/s", 125e6 / theirs);
        self.under(reads, Some(READ), run)?;
        let writes = title("write 1 MiB", servers * disk, "45 MB/s", 2.0 * 45e6 / theirs);
        self.under(writes, Some(WRITE), run)?;
        let mixed = title("8 KiB half and half", servers * disk, "385 IOPS", 0.0);
        self.under(mixed, Some(MIXED), run)?;
        self.settle()?;
        let remove = title(
            "remove node3",
            2.0 * disk,
            "56 GB in 6 min 44 s",
            56e9 / 404.0 / (2.0 * THEIR_DISK),
        );
        self.under(remove, None, Demo::remove)?;
        self.cluster.end(3)?;
        let add = title("node3 comes back empty", disk, "9 min 38 s", 56e9 / 578.0 / THEIR_DISK);
        self.under(add, None, |demo| {
            demo.cluster.start(3, true)?;
            demo.level(3)
        })?;
        let kill = title(
            "kill node2 under load",
            2.0 * disk,
            "7 min at 54 MB/s",
            54e6 / (2.0 * THEIR_DISK),
        );
        self.under(kill, Some(MIXED), Demo::kill)?;
        self.settle()?;
        let back = title("node2 comes back", disk, "rebalance", 0.0);
        self.under(back, None, |demo| {
            demo.cluster.start(2, false)?;
            demo.level(2)
        })?;
        let cable = title("pull node1's cable", 0.0, "-", 0.0);
        self.under(cable, Some(MIXED), Demo::pull)?;
        self.settle()?;
        eprintln!("Reading all of it");
        self.read_all()
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
        f(self).with_context(|| format!("phase `{}`", title.name))?;
        let seconds = begin.elapsed().as_secs_f64();
        let after = jobs.as_ref().map_or([0; 2], answered);
        let moved_bytes = self.watch.moved() - moved;
        let tally = jobs.as_mut().map(Jobs::end).transpose()?;
        self.watch.load(Vec::new(), 0);
        let block = kind.map_or(0, |k| u64::from(k.block));
        let [reads, writes] = [0, 1].map(|side| after[side] - before[side]);
        // An overwrite of a whole slot (64 KiB) goes to a new place and is written once per copy; a
        // smaller one is also written to the log.
        let times = if block < 1 << 16 { 4 } else { 2 };
        let read_alone = writes == 0 && moved_bytes == 0;
        let at_disks =
            if read_alone { reads * block } else { writes * block * times + moved_bytes };
        let latency = tally.and_then(|t| t.both().map(|l| (l.p99, l.max)));
        let rate = |bytes: u64| bytes as f64 / seconds;
        let phase = Phase {
            name: title.name,
            begin_seconds: at,
            seconds,
            requests: reads + writes,
            requests_per_second: rate(reads + writes),
            client_bytes_per_second: rate((reads + writes) * block),
            moved_bytes,
            disk_bytes_per_second: rate(at_disks),
            allowed_bytes_per_second: title.allowed,
            ratio: if title.allowed > 0.0 { rate(at_disks) / title.allowed } else { 0.0 },
            p99_ms: latency.map(|(p99, _)| p99 / 1e3),
            longest_ms: latency.map(|(_, max)| max / 1e3),
            published: title.published,
            published_ratio: title.published_ratio,
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

    fn wait(&self, what: &str, done: impl Fn(&Report) -> bool) -> Result<()> {
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
            |report: &Report| report.sds.iter().all(|s| s.name != "node3" || s.devices.is_empty());
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

    fn end(self, error: Option<String>) -> Document {
        let mut missed = Vec::new();
        let io_errors = u64::from(error.is_some());
        missed.extend(error.clone());
        for phase in self.phases.iter().filter(|p| p.allowed_bytes_per_second > 0.0) {
            if phase.ratio < MUST {
                missed.push(format!(
                    "{}: {:.2} of what the disks allow, must be {MUST}",
                    phase.name, phase.ratio
                ));
            }
        }
        let noticed = [
            ("kill", self.kill_noticed, KILL_NOTICED),
            ("pulled cable", self.cable_noticed, CABLE_NOTICED),
        ];
        for (what, took, must) in noticed {
            if took > must {
                missed.push(format!("the {what} was noticed after {took:.0?}, must be {must:?}"));
            }
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Document {
            schema: 1,
            data_bytes: self.data,
            disk_bytes_per_second: self.limits.disk,
            memory_bytes: self.limits.memory,
            io_errors,
            error,
            kill_noticed_ms: ms(self.kill_noticed),
            partition_noticed_ms: ms(self.cable_noticed),
            phases: self.phases,
            missed,
            samples: self.watch.end(),
        }
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
        let missed = match self.missed.is_empty() {
            true => "every must is met".to_owned(),
            false => format!("MISSED: {}", self.missed.join("; ")),
        };
        format!(
            "\n{t}\n\nI/O errors: {}. A killed server was noticed after {:.0} ms (5 s then), a pulled cable after {:.0} ms.\n{missed}",
            self.io_errors, self.kill_noticed_ms, self.partition_noticed_ms
        )
    }
}
