//! `gabion bench rebuild`: servers die for good, and the others rebuild the lost copies.
//!
//! Measures clusters of several sizes, with the same amount of data per server. Each server's
//! device is limited to a number of bytes per second, so that the devices are the bottleneck, as on
//! separate hosts, and not this machine's processors. First one server is killed without any load.
//! The time until all data has two copies again is compared with what the devices of all other
//! servers allow, which falls as 1/(N-1). Then a second server is killed under load, and the
//! latency of requests is compared with that before. The load starts requests at a fixed rate, as
//! applications do, no matter how long earlier ones take. A load that runs as fast as it is
//! answered would reach the devices' limit by itself, and every stall would hold it up as a whole.

use crate::drive::{Jobs, Work};
use crate::load::Data;
use crate::pair::Spread;
use crate::ratio::outcome::{Outcome, Page};
use crate::ratio::rows::Target;
use crate::test_cluster::{self, Layout, TestCluster};
use crate::workload::Workload;
use crate::{interrupt, io};
use admin::exit::Exit;
use admin::report::Report;
use anyhow::{Context, Result, bail};
use base::Policy;
use clap::Args;
use daemon::size::Size;
use fleet::cgroup::{Group, Limits};
use fleet::cluster;
use fleet::progress::Line;
use fleet::statedir::StateDir;
use fleet::target::Target as ClusterTarget;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wire::control::{PolicyInfo, SetPool};

/// A rebuild reaches at least this part of what the devices allow.
const RATE: Target = Target { must: 0.8, aim: None, higher_is_better: true };
/// During a rebuild, requests take at most this many times as long as before.
const LATENCY: Target = Target { must: 2.0, aim: None, higher_is_better: false };
/// A rebuild under load takes at most this many times as long as one without.
const LOADED: Target = Target { must: 3.0, aim: None, higher_is_better: false };
/// Seconds until the copies of a lost server are rebuilt.
const REBUILD_AFTER: &str = "1";
/// How long a rebuild may take before the benchmark fails.
const PATIENCE: Duration = Duration::from_secs(900);
/// How often the status is polled.
const LOOK: Duration = Duration::from_millis(10);
/// The servers' counters are at most this old.
const HEARTBEATS: Duration = Duration::from_millis(500);
/// Default --rate: a server gets one request per second for this many bytes per second of its
/// device. Requests need about a sixth of that bandwidth.
const SHARE: u64 = 32 << 10;
/// Requests in flight per server, at most.
const DEPTH: u32 = 16;
/// Space on a device beyond its share of the data, because groups differ in size and the log needs
/// some.
const ROOM: u64 = 1 << 30;

/// Options of `bench rebuild`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Takes root: the devices' speed is held by control groups. It needs --data times the servers of the largest cluster \
in the folder.

Rows rebuild-N: the floor is what the devices of the N - 1 others need for what was copied; the ratio is that over \
what it took. Rows growth-N: the time for N servers, as 1/(N - 1) of the smallest cluster's foretells it, over what \
it took. Rows loaded-N: a rebuild under load, over what the one without load foretells. Rows p99-N: the latency that one in a hundred requests exceeds (4 KiB, 70 % reads, begun at --rate), \
during a rebuild, over what it was before. A row that misses its must: exit code 7.

Examples:
  gabion bench rebuild .                           4, 8 and 16 servers: five minutes
  gabion bench rebuild . --sds 4 --sds 8 --data 128MiB --json")]
pub struct RebuildArgs {
    /// The folder, on a disk that is faster than all devices together
    folder: PathBuf,
    /// Number of servers in a cluster; may be given several times [default: 4, 8 and 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=64))]
    sds: Vec<u32>,
    /// Data per server, including copies of other servers' data
    #[arg(long, default_value = "512MiB", value_name = "SIZE")]
    data: Size,
    /// Bytes per second that each device reads, and writes; must exceed the requests' need, or they
    /// measure their own queue
    #[arg(long, default_value = "32MiB", value_name = "SIZE")]
    disk: Size,
    /// Rebuild policy of the storage pool, as in `gabion pool set` [default: that of a new pool]
    #[arg(long, value_name = "POLICY")]
    rebuild: Option<Policy>,
    /// 4 KiB requests per second and server; a higher rate measures the devices' own queue
    /// [default: what needs a sixth of --disk]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Seconds to measure requests without a rebuild
    #[arg(long, default_value_t = 5.0, value_parser = io::seconds)]
    seconds: f64,
    /// How Gabion talks to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The results of one cluster.
struct Shown {
    servers: u32,
    /// The rebuild without load: seconds, and bytes copied.
    seconds: f64,
    bytes: f64,
    /// The same of the rebuild under load.
    loaded: (f64, f64),
    /// 99th percentile of request latency in microseconds, before a rebuild and during one.
    p99: [f64; 2],
}

/// Runs `gabion bench rebuild`.
pub fn run(args: &RebuildArgs) -> Result<Exit> {
    let mut sizes = args.sds.clone();
    if sizes.is_empty() {
        sizes = vec![4, 8, 16];
    }
    sizes.sort_unstable();
    sizes.dedup();
    let mut page = Page::begin(1, args.json);
    let mut first: Option<Shown> = None;
    for servers in sizes {
        let shown = SlowCluster::new(args, servers)?.play(args)?;
        rows(args, &shown, first.as_ref()).into_iter().for_each(|row| page.tell(row));
        first.get_or_insert(shown);
    }
    page.end()
}

fn rows(args: &RebuildArgs, shown: &Shown, first: Option<&Shown>) -> Vec<Outcome> {
    let n = shown.servers;
    let row = |kind: &str, title: &str, unit, target: Target, floor: f64, ours: f64| {
        let ratio = if target.higher_is_better { floor / ours } else { ours / floor };
        let row = Outcome::new(&format!("{kind}-{n}"), title, unit, target);
        let row = Outcome { floor: Some(floor), ours: Some(ours), ..row };
        row.with_ratio(Spread { median: ratio, low: ratio, high: ratio })
    };
    let ideal = shown.bytes / (args.disk.0 as f64 * f64::from(n - 1));
    let title = "all copies of a lost server made anew, without load";
    let mut rows = vec![row("rebuild", title, "s", RATE, ideal, shown.seconds)];
    if let Some(first) = first {
        let speed = first.bytes / first.seconds * f64::from(n - 1) / f64::from(first.servers - 1);
        let title = "the same, as 1/(N - 1) foretells it";
        rows.push(row("growth", title, "s", RATE, shown.bytes / speed, shown.seconds));
    }
    let (seconds, bytes) = shown.loaded;
    let speed = shown.bytes / shown.seconds * f64::from(n - 2) / f64::from(n - 1);
    let title = "a rebuild under load, as one without foretells it";
    rows.push(row("loaded", title, "s", LOADED, bytes / speed, seconds));
    let title = "99 % of 4 KiB requests, 70 % reads: during a rebuild over before";
    rows.push(row("p99", title, "us", LATENCY, shown.p99[0], shown.p99[1]));
    rows
}

/// A cluster whose devices have limited speed.
struct SlowCluster {
    cluster: TestCluster,
    dir: StateDir,
    target: ClusterTarget,
    servers: u32,
    _groups: Vec<Group>,
}

impl SlowCluster {
    fn new(args: &RebuildArgs, servers: u32) -> Result<SlowCluster> {
        let unit = u64::from(base::UNIT);
        let size = (args.data.0 * u64::from(servers) / 2).next_multiple_of(unit);
        let device = format!("file:{}", args.data.0 * 2 + ROOM);
        let more = ["--rebuild-after", REBUILD_AFTER];
        let layout = Layout::apart(servers);
        let cluster =
            TestCluster::on(&args.folder, &device, size, layout, args.backend, false, &more)?
                .filled()?;
        let dir = StateDir::open(cluster.dir())?;
        let target = ClusterTarget { dir: cluster.dir().to_owned(), mdm: Vec::new() };
        if let Some(rebuild) = args.rebuild.map(PolicyInfo::from) {
            cluster.set_pool(SetPool { rebuild: Some(rebuild), ..SetPool::default() })?;
        }
        let (mut groups, id) = (Vec::new(), std::process::id());
        for number in 0..servers {
            let name = cluster::sds(number);
            let limits = Limits { memory: 1 << 40, disk: args.disk.0 };
            let group = Group::new(&format!("gabion-{id}-{name}"), limits, &args.folder)?;
            group.add(dir.process(&name).context("it runs")?.pid)?;
            groups.push(group);
        }
        Ok(SlowCluster { cluster, dir, target, servers, _groups: groups })
    }

    fn play(self, args: &RebuildArgs) -> Result<Shown> {
        let n = self.servers;
        let (begin, moved) = self.lose(n - 1, "without load", || Ok(()))?;
        let (seconds, bytes) = (begin.as_secs_f64(), moved as f64);
        let rate = args.rate.unwrap_or((args.disk.0 / SHARE).clamp(1, 100_000) as u32);
        let work = Work {
            workload: Workload::Randrw,
            mix: 70,
            block: base::BLOCK,
            depth: n * DEPTH,
            rate: Some(rate.saturating_mul(n)),
            jobs: 1,
            data: Data::Shared,
        };
        let window = Duration::from_secs_f64(args.seconds);
        let processes = test_cluster::processes(&self.target.report()?);
        let before = self.cluster.volume.measure("before", &work, &processes, window);
        let before = before?.latency_us.p99;
        let mut jobs = Jobs::start(&self.cluster.volume, &work, None)?;
        jobs.wait_begun()?;
        let record = |on| jobs.counters().iter().for_each(|c| c.record(on));
        let (took, copied) = self.lose(n - 2, "under load", || {
            record(true);
            jobs.check()
        })?;
        record(false);
        let during = jobs.end()?.both().context("requests were answered")?.p99;
        let loaded = (took.as_secs_f64(), copied as f64);
        Ok(Shown { servers: n, seconds, bytes, loaded, p99: [before, during] })
    }

    /// Kills a server for good and waits until all data has two copies again. Returns the time
    /// since the start of the rebuild, and the bytes copied.
    fn lose(
        &self,
        number: u32,
        how: &str,
        begins: impl FnOnce() -> Result<()>,
    ) -> Result<(Duration, u64)> {
        let name = cluster::sds(number);
        let before = self.moved(&name)?;
        cluster::kill(&self.dir, &name)?;
        let what = format!("{} SDSs, {name} is lost, {how}", self.servers);
        let line = Line::new(&what);
        self.until(&line, |report| report.moves.groups > 0)?;
        let begin = Instant::now();
        begins()?;
        self.until(&line, |r| {
            r.groups.degraded == 0 && r.moves.groups == 0 && r.moves.waiting_groups == 0
        })?;
        let took = begin.elapsed();
        interrupt::sleep(HEARTBEATS)?;
        Ok((took, self.moved(&name)?.saturating_sub(before)))
    }

    fn until(&self, line: &Line, is: impl Fn(&Report) -> bool) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let report = self.target.report()?;
            if is(&report) {
                return Ok(());
            }
            if report.moves.held_back {
                bail!("so many servers are away that nothing is rebuilt");
            }
            line.say(&format!("{} left", Size(report.moves.remaining_bytes)));
            interrupt::sleep(LOOK)?;
        }
        bail!("not within {PATIENCE:?}")
    }

    /// Returns the bytes that all servers except this one have copied.
    fn moved(&self, but: &str) -> Result<u64> {
        let report = self.target.report()?;
        let others = report.sds.iter().filter(|s| s.name != but);
        Ok(others.flat_map(|s| &s.devices).map(|d| d.resync_moved_bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: RebuildArgs,
    }

    #[test]
    fn rates_are_compared_with_the_devices_of_the_others_and_with_the_smallest_cluster() {
        let args = Command::parse_from(["x", ".", "--disk", "1MiB"]).args;
        let mib = (1 << 20) as f64;
        let shown = |servers, seconds| {
            let (bytes, loaded) = (30.0 * mib, (37.5, 40.0 * mib));
            Shown { servers, seconds, bytes, loaded, p99: [100.0, 250.0] }
        };
        let first = shown(4, 12.5);
        let told = rows(&args, &first, None);
        assert_eq!(told.len(), 3);
        assert_eq!((told[0].floor, told[0].ratio, told[0].ok), (Some(10.0), Some(0.8), true));
        let near = |value: Option<f64>| value.map(|v| (v * 1000.0).round() as i64);
        assert_eq!((told[1].name.as_str(), near(told[1].floor)), ("loaded-4", Some(25_000)));
        assert_eq!((near(told[1].ratio), told[1].ok), (Some(1_500), true));
        assert_eq!((told[2].name.as_str(), told[2].ratio, told[2].ok), ("p99-4", Some(2.5), false));
        let told = rows(&args, &shown(16, 4.0), Some(&first));
        assert_eq!((told[0].floor, told[0].ratio, told[0].ok), (Some(2.0), Some(0.5), false));
        assert_eq!((told[1].name.as_str(), told[1].floor), ("growth-16", Some(2.5)));
    }
}
