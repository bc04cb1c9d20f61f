//! `gabion bench disk`: compares a durable cluster on a disk with `fio` on the same disk.
//!
//! The cluster has three data servers with one file device each, all in one folder, two copies of
//! all data, and durable answers. The floor is fio on a plain file in the same file system that was
//! written before, with O_DIRECT (and O_DSYNC for writes): the disk alone. The processor time that
//! the devices add is the difference from a cluster of NULL devices under the same load. Two more
//! clusters, with devices half full and almost full, show how latency depends on the fill level.
//!
//! The store without a cluster is measured elsewhere (`device`).

pub mod fio;
mod rows;

use crate::drive::Work;
use crate::figures::Figures;
use crate::io::seconds;
use crate::pair::Rounds;
use crate::ratio::outcome::{Outcome, Page};
use crate::test_cluster::{Layout, TestCluster};
use admin::exit::Exit;
use anyhow::{Result, bail};
use clap::Args;
use daemon::size::Size;
use fio::RawFile;
use rows::{Kind, LOADS, Load, ROWS, Row};
use std::path::PathBuf;
use std::time::Duration;

/// Data servers of the clusters that are compared with fio.
const SDS: u32 = 3;
/// Space on a device beyond its share of the data, because groups differ in size and the log needs
/// some.
const ROOM: u64 = 1 << 30;
/// Bytes of each device in the clusters that differ in fill level.
const SMALL: u64 = 1 << 30;
/// Two servers: each has all the data, so both are filled to exactly the same level.
const PAIR: Layout = Layout { servers: 2, per_process: 1 };

/// Options of `bench disk`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Measures fio, Gabion, fio, ... and prints the median of the ratios with the lowest and the highest. A row \
fails when it misses the must, or when it can't be measured; then the exit code is 7. In the rows that end in \
-cpu, the floor is a cluster of NULL devices, and instead of the ratio stands the difference in microseconds \
per I/O. In the row `full`, the floor is a cluster whose devices are half full.

It takes about five times --data in the folder, and 4 GiB for the row `full`.

Examples:
  gabion bench disk /var/lib/gabion                    all rows: five minutes
  gabion bench disk . --only write --only read --rounds 5
  gabion bench disk . --json")]
pub struct DiskArgs {
    /// The folder, on the disk to be measured
    folder: PathBuf,
    /// Amount of data to write and read; preferably larger than the disk's own cache
    #[arg(long, default_value = "2GiB", value_name = "SIZE")]
    data: Size,
    /// Measurements of Gabion, each between two of the floor
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds per measurement, after a warm-up
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Measure only this row; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Use TCP between the cluster's processes, as between hosts
    #[arg(long)]
    tcp_only: bool,
    /// How Gabion talks to the kernel: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    backend: rt::Backend,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `gabion bench disk`.
pub fn run(args: &DiskArgs) -> Result<Exit> {
    let names: Vec<&str> = ROWS.iter().map(|r| r.name).collect();
    if let Some(name) = args.only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no row {name}. The rows are: {}", names.join(", "));
    }
    let mut page = Page::begin(args.rounds, args.json);
    let compared: Vec<Load> = LOADS.into_iter().filter(|l| !wanted(args, l).is_empty()).collect();
    if !compared.is_empty() {
        let bench = Bench::start(args)?;
        for load in compared {
            bench.measure(load)?.into_iter().for_each(|row| page.tell(row));
        }
    }
    if let Some(row) = rows_of(args, |r| r.kind == Kind::Full).first() {
        page.tell(full(args, row)?);
    }
    page.end()
}

fn rows_of(args: &DiskArgs, of: impl Fn(&Row) -> bool) -> Vec<Row> {
    let named = |r: &Row| args.only.is_empty() || args.only.iter().any(|name| name == r.name);
    ROWS.into_iter().filter(|r| of(r) && named(r)).collect()
}

/// Returns the requested rows that are computed from a load.
fn wanted(args: &DiskArgs, load: &Load) -> Vec<Row> {
    rows_of(args, |r| matches!(r.kind, Kind::Rate(name) | Kind::Cpu(name) if name == load.name))
}

/// The file and the clusters that take turns.
struct Bench<'a> {
    args: &'a DiskArgs,
    raw: Option<RawFile>,
    durable: TestCluster,
    null: Option<TestCluster>,
}

impl Bench<'_> {
    fn start(args: &DiskArgs) -> Result<Bench<'_>> {
        let all: Vec<Row> = LOADS.iter().flat_map(|load| wanted(args, load)).collect();
        let size = args.data.0.next_multiple_of(u64::from(base::UNIT));
        let raw = fio::is_there() && all.iter().any(|r| matches!(r.kind, Kind::Rate(_)));
        let raw = raw.then(|| RawFile::new(&args.folder, size)).transpose()?;
        let layout = Layout::apart(SDS);
        let start = |device: &str| {
            TestCluster::on(&args.folder, device, size, layout, args.backend, args.tcp_only, &[])?
                .filled()
        };
        let null = all.iter().any(|r| matches!(r.kind, Kind::Cpu(_)));
        let null = null.then(|| start("null:1TiB")).transpose()?;
        let device = size * 2 / u64::from(SDS) * 5 / 4 + ROOM;
        Ok(Bench { args, raw, durable: start(&format!("file:{device}"))?, null })
    }

    /// Measures all requested rows of a load.
    fn measure(&self, load: Load) -> Result<Vec<Outcome>> {
        let rows = wanted(self.args, &load);
        rows.into_iter().map(|row| self.row(load, &row)).collect()
    }

    fn row(&self, load: Load, row: &Row) -> Result<Outcome> {
        let window = Duration::from_secs_f64(self.args.seconds);
        let (rounds, name) = (self.args.rounds as usize, row.name);
        let outcome = Outcome::new(name, row.title, row.unit, row.target);
        let of = |cluster: &TestCluster, title: &str| figures(cluster, title, &load.work, window);
        let ours = |at: &str| of(&self.durable, &format!("{name}, Gabion, {at}"));
        if matches!(row.kind, Kind::Rate(_)) {
            let Some(raw) = &self.raw else {
                return Ok(outcome.not_measured("install the Debian package fio"));
            };
            let taken = Rounds::take(
                rounds,
                |at| raw.rate(&format!("{name}, fio, {at}"), &load, window),
                |at| Ok(ours(at)?.iops),
            )?;
            let (floor, rate) = (taken.floor(|f| *f), taken.ours(|f| *f));
            let outcome = outcome.with_ratio(taken.ratio(|f| *f));
            let both = [floor, rate].map(|iops| row.rate(iops, load.work.block));
            return Ok(outcome.with_figures(both, [1e6 / floor, 1e6 / rate]));
        }
        let Some(null) = &self.null else { return Ok(outcome.not_measured("no NULL devices")) };
        let floor = |at: &str| of(null, &format!("{name}, NULL devices, {at}"));
        let taken = Rounds::take(rounds, floor, ours)?;
        let us = |f: &Figures| f.process_us_per_io;
        let both = [taken.floor(us), taken.ours(us)];
        Ok(outcome.with_ratio(taken.difference(us)).with_figures(both, both))
    }
}

fn figures(cluster: &TestCluster, title: &str, work: &Work, window: Duration) -> Result<Figures> {
    cluster.volume.measure(title, work, &cluster.processes, window)
}

/// Measures the median latency of small overwrites on almost full devices, over that on half full
/// ones.
fn full(args: &DiskArgs, row: &Row) -> Result<Outcome> {
    let filled = |percent: u64| -> Result<TestCluster> {
        let room = store::durable::layout::Layout::new(SMALL)?.capacity();
        let units = room * percent / 100 / u64::from(base::UNIT);
        let device = format!("file:{SMALL}");
        let size = units * u64::from(base::UNIT);
        let cluster =
            TestCluster::on(&args.folder, &device, size, PAIR, args.backend, args.tcp_only, &[])?;
        cluster.without_spare()?.filled()
    };
    let (half, full) = (filled(50)?, filled(99)?);
    let window = Duration::from_secs_f64(args.seconds);
    let work = rows::OVERWRITE;
    let taken = Rounds::take(
        args.rounds as usize,
        |at| figures(&half, &format!("{}, half full, {at}", row.name), &work, window),
        |at| figures(&full, &format!("{}, full, {at}", row.name), &work, window),
    )?;
    let p50 = |f: &Figures| f.latency_us.p50;
    let both = [taken.floor(p50), taken.ours(p50)];
    let outcome = Outcome::new(row.name, row.title, row.unit, row.target);
    Ok(outcome.with_ratio(taken.ratio(p50)).with_figures(both, both))
}
