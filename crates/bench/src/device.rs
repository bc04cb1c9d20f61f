//! `gabion bench device`: compares the durable store on a device with `fio` on the same device.
//!
//! There is no network and no replication: this thread drives a store on a file. `fio` writes with
//! O_DSYNC and io_uring to another file beside it, so that both give the same guarantee. The two
//! take turns, and only their ratio is meaningful: a machine's disk changes from one minute to the
//! next.

use crate::interrupt;
use anyhow::{Context, Result, bail};
use base::{BLOCK, ClusterId, DeviceId, GroupId, Prng, UNIT, UnitKey, VolumeId};
use clap::Args;
use daemon::offline::{self, Offline};
use daemon::size::Size;
use fleet::progress::Line;
use fleet::table::{right, table};
use rt::{Backend, DiskSpec, OfflineDevice};
use seam::{Buf, Job, Started};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use store::durable::{Durability, Identity, Stats, Tuning};

/// Options of `bench device`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  gabion bench device /var/lib/gabion            a scratch file there, and fio beside it
  gabion bench device . --rounds 5 --only write  one figure, more often
  gabion bench device . --write-through          durable writes (O_DSYNC) instead of flushes")]
pub struct DeviceArgs {
    /// The folder for two scratch files
    folder: PathBuf,
    /// Amount of data to write and read
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    data: Size,
    /// Requests in flight
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Seconds per measurement
    #[arg(long, default_value_t = 3.0, value_name = "S", value_parser = crate::io::seconds)]
    seconds: f64,
    /// Rounds; in each, fio and the store take turns
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measure only this load: write, read, seq-write or seq-read
    #[arg(long, value_name = "LOAD")]
    only: Option<String>,
    /// Make each write durable instead of flushing
    #[arg(long)]
    write_through: bool,
    /// Don't measure fio
    #[arg(long)]
    no_fio: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// One load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Load {
    name: &'static str,
    fio: &'static str,
    write: bool,
    random: bool,
    bytes: u32,
}

const LOADS: [Load; 4] = [
    Load { name: "write", fio: "randwrite", write: true, random: true, bytes: BLOCK },
    Load { name: "read", fio: "randread", write: false, random: true, bytes: BLOCK },
    Load { name: "seq-write", fio: "write", write: true, random: false, bytes: UNIT },
    Load { name: "seq-read", fio: "read", write: false, random: false, bytes: UNIT },
];

/// The result of one load: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    load: &'static str,
    /// Operations per second.
    ours: f64,
    fio: Option<f64>,
    ratio: Option<f64>,
    /// The lowest and the highest ratio of all rounds.
    worst: Option<f64>,
    best: Option<f64>,
    /// Log records per batch, and flushes per second.
    records_per_batch: f64,
    flushes_per_second: f64,
}

/// Two scratch files, removed when this is dropped.
struct Files {
    ours: PathBuf,
    raw: PathBuf,
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.ours);
        let _ = std::fs::remove_file(&self.raw);
    }
}

/// Runs `gabion bench device`.
pub fn run(args: &DeviceArgs) -> Result<()> {
    let loads: Vec<Load> =
        LOADS.into_iter().filter(|l| args.only.as_ref().is_none_or(|o| o == l.name)).collect();
    if loads.is_empty() {
        bail!("no such load: write, read, seq-write or seq-read");
    }
    let fio = !args.no_fio && has_fio();
    let pid = std::process::id();
    let name = |what: &str| args.folder.join(format!(".gabion-bench-{pid}-{what}"));
    let files = Files { ours: name("device"), raw: name("raw") };
    let units = (args.data.0 / u64::from(UNIT)).clamp(1, 1 << 20) as u32;
    let line = Line::new("device");
    line.say("filling");
    if fio {
        fill(&files.raw, units).context("filling fio's file")?;
    }
    let mut device = prepare(&files.ours, units, args.write_through)?;
    let mut rows = Vec::new();
    for load in loads {
        let mut rounds = Vec::new();
        for round in 1..=args.rounds {
            line.say(&format!("{}, round {round}: fio", load.name));
            let theirs = fio.then(|| run_fio(&files.raw, units, load, args)).transpose()?;
            line.say(&format!("{}, round {round}: the store", load.name));
            rounds.push((theirs, run_store(&mut device, units, load, args, u64::from(round))?));
            interrupt::check()?;
        }
        rows.push(row(load, &rounds));
    }
    drop(line);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", text(&rows));
        if !fio {
            println!("No fio here to compare with: `apt install fio`.");
        }
    }
    Ok(())
}

fn row(load: Load, rounds: &[(Option<f64>, Ours)]) -> Row {
    let ratios: Vec<f64> =
        rounds.iter().filter_map(|(fio, ours)| fio.map(|f| ours.rate / f)).collect();
    let fios: Vec<f64> = rounds.iter().filter_map(|(fio, _)| *fio).collect();
    let of = |f: fn(&Ours) -> f64| median(rounds.iter().map(|(_, o)| f(o)).collect());
    Row {
        load: load.name,
        ours: of(|o| o.rate).unwrap_or(0.0),
        fio: median(fios),
        ratio: median(ratios.clone()),
        worst: ratios.iter().copied().reduce(f64::min),
        best: ratios.iter().copied().reduce(f64::max),
        records_per_batch: of(|o| o.records_per_batch).unwrap_or(0.0),
        flushes_per_second: of(|o| o.flushes).unwrap_or(0.0),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn text(rows: &[Row]) -> String {
    let mut out = table(&[
        "load",
        "ours /s",
        "fio /s",
        "ratio",
        "worst",
        "best",
        "records/batch",
        "flushes/s",
    ]);
    let number = |n: Option<f64>, digits: usize| n.map_or("-".into(), |n| format!("{n:.digits$}"));
    for r in rows {
        out.add_row([
            r.load.to_owned(),
            number(Some(r.ours), 0),
            number(r.fio, 0),
            number(r.ratio, 2),
            number(r.worst, 2),
            number(r.best, 2),
            number(Some(r.records_per_batch), 1),
            number(Some(r.flushes_per_second), 0),
        ]);
    }
    right(&mut out, &[1, 2, 3, 4, 5, 6, 7]);
    out.to_string()
}

// ---- the store ----

/// The result of one round of the store.
#[derive(Clone, Copy, Debug)]
struct Ours {
    rate: f64,
    records_per_batch: f64,
    flushes: f64,
}

const GROUP: GroupId = GroupId(1);

fn unit(index: u32) -> UnitKey {
    UnitKey { volume: VolumeId(1), index }
}

/// Creates a device that is a quarter larger than its data (plus 128 MiB), with data in every unit.
fn prepare(path: &Path, units: u32, write_through: bool) -> Result<Offline> {
    let size = u64::from(units) * u64::from(UNIT) * 5 / 4 + (128 << 20);
    let spec = DiskSpec::File { path: path.to_owned(), size: Some(size), write_through };
    let mut drive = OfflineDevice::open(&spec, Backend::Auto)?;
    if let Some(notice) = drive.notice() {
        eprintln!("{notice}");
    }
    let uuid = [daemon::random()?, daemon::random()?];
    let identity = Identity { cluster: ClusterId(1), device: DeviceId(1), uuid };
    offline::format(&mut drive, identity, false)?;
    let durability = if write_through { Durability::WriteThrough } else { Durability::Flush };
    let mut device = Offline::mount(drive, Tuning { durability, ..Tuning::SHIPPED })?;
    let body = body(&device, UNIT);
    for first in (0..units).step_by(8) {
        for index in first..units.min(first + 8) {
            let job = Job::Write { at: 0, body: body.clone(), crc: None };
            device.start(u64::from(index), GROUP, unit(index), job);
        }
        while let Some(finished) = device.finished()? {
            finished.result.map_err(|e| anyhow::anyhow!("the device failed: {e:?}"))?;
        }
    }
    device.checkpoint()?;
    Ok(device)
}

fn body(device: &Offline, len: u32) -> Buf {
    let mut body = device.alloc(len as usize);
    let words = body.as_mut().chunks_exact_mut(8).enumerate();
    words.for_each(|(i, b)| b.copy_from_slice(&base::prng::mix(i as u64).to_le_bytes()));
    body
}

fn run_store(
    device: &mut Offline,
    units: u32,
    load: Load,
    args: &DeviceArgs,
    seed: u64,
) -> Result<Ours> {
    let body = body(device, load.bytes);
    let per_unit = UNIT / load.bytes;
    let places = u64::from(units) * u64::from(per_unit);
    let (mut random, mut next, mut running) = (Prng::new(seed), 0, BTreeSet::new());
    let before = device.store().stats();
    let (begun, mut done) = (Instant::now(), 0u64);
    let until = begun + Duration::from_secs_f64(args.seconds);
    loop {
        while running.len() < args.depth as usize && Instant::now() < until {
            next += 1;
            let place = if load.random { random.below(places) } else { next % places };
            if !running.insert(place) {
                continue;
            }
            let at = (place % u64::from(per_unit)) as u32 * load.bytes;
            let job = match load.write {
                true => Job::Write { at, body: body.clone(), crc: None },
                false => Job::Read { at, len: load.bytes },
            };
            match device.start(place, GROUP, unit((place / u64::from(per_unit)) as u32), job) {
                Started::Pending => {}
                Started::Done(_) => {
                    running.remove(&place);
                    done += 1;
                }
                Started::Full => bail!("the device is full"),
                Started::BadBody => bail!("the data has changed in memory"),
            }
        }
        let Some(finished) = device.finished()? else { break };
        finished.result.map_err(|e| anyhow::anyhow!("the device failed: {e:?}"))?;
        running.remove(&finished.token);
        done += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok(ours(done as f64 / seconds, seconds, before, device.store().stats()))
}

fn ours(rate: f64, seconds: f64, before: Stats, after: Stats) -> Ours {
    let batches = (after.batches - before.batches).max(1) as f64;
    Ours {
        rate,
        records_per_batch: (after.records - before.records) as f64 / batches,
        flushes: (after.flushes - before.flushes) as f64 / seconds,
    }
}

// ---- fio ----

fn has_fio() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Writes all of fio's file, so that fio overwrites existing data, as the store does.
fn fill(raw: &Path, units: u32) -> Result<()> {
    let mut file = std::fs::File::create(raw)?;
    let piece: Vec<u8> =
        (0..UNIT as u64 / 8).flat_map(|i| base::prng::mix(i).to_le_bytes()).collect();
    (0..units).try_for_each(|_| file.write_all(&piece))?;
    Ok(file.sync_all()?)
}

/// Returns fio's operations per second with the same load on a plain file.
fn run_fio(raw: &Path, units: u32, load: Load, args: &DeviceArgs) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=raw", "--ioengine=io_uring", "--direct=1", "--sync=dsync"]);
    command.args(["--time_based", "--output-format=json", "--norandommap", "--randrepeat=0"]);
    command.arg(format!("--filename={}", raw.display()));
    command.arg(format!("--size={}M", units));
    command.arg(format!("--rw={}", load.fio));
    command.arg(format!("--bs={}", load.bytes));
    command.arg(format!("--iodepth={}", args.depth));
    command.arg(format!("--runtime={}", args.seconds));
    let out = interrupt::output(&mut command).context("running fio")?;
    if !out.status.success() {
        bail!("fio failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    // fio prints its warnings before the report.
    let begin = out.stdout.iter().position(|b| *b == b'{').unwrap_or(0);
    let report: serde_json::Value =
        serde_json::from_slice(&out.stdout[begin..]).context("fio's report can't be read")?;
    let side = if load.write { "write" } else { "read" };
    report["jobs"][0][side]["iops"].as_f64().context("fio's report has no rate")
}
