//! Measures a device for about a second, and judges it.

use super::medium::{self, Cache, Kind, Medium};
use super::scratch::{BYTES, Scratch, folder};
use super::verdict::{self, Timings, Trust, Verdict};
use crate::progress::Line;
use crate::table::{right, table};
use anyhow::{Context, Result};
use base::Prng;
use daemon::size::Size;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for which each kind of operation is measured, and the number of operations that suffices.
const STRETCH: Duration = Duration::from_millis(250);
const ENOUGH: usize = 2000;
/// Longer latencies are counted as this one, a minute.
const LONGEST_NS: u64 = 60_000_000_000;
const BLOCK: usize = 4096;
const LARGE: usize = 4 << 20;

/// The output of `gabion device probe --json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Found {
    /// The version of this document's shape.
    pub schema: u32,
    /// The path, as it was given.
    pub path: String,
    /// False if nothing is at the path. Then the file system around it was measured.
    pub exists: bool,
    /// What the kernel says of the device.
    pub medium: Medium,
    /// The file system allows direct I/O.
    pub direct: bool,
    /// One entry per kind of operation.
    pub latencies: Vec<Latency>,
    /// How much it can be trusted.
    pub verdict: Verdict,
}

/// Latencies of one kind of operation at queue depth 1, in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// The operation.
    pub what: &'static str,
    /// How many were measured.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 99 % of them took no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    fn of(what: &'static str, times: &Histogram<u64>) -> Latency {
        let us = |ns: u64| ns as f64 / 1000.0;
        Latency {
            what,
            count: times.len(),
            p50_us: us(times.value_at_quantile(0.5)),
            p99_us: us(times.value_at_quantile(0.99)),
            max_us: us(times.max()),
        }
    }
}

/// Examines and measures the device under a path.
pub fn probe(path: &Path, force: bool) -> Result<Found> {
    let scratch = Scratch::new(path, force)?;
    let exists = path.exists();
    let medium = medium::beneath(&if exists { path.to_owned() } else { folder(path) })?;
    let line = Line::new("probing");
    let failed = || format!("{} failed while it was measured", path.display());
    let mut latencies = Vec::new();
    let mut timings = None;
    if scratch.writable {
        line.say("writes and flushes");
        let measured = writes(&scratch).with_context(failed)?;
        timings = Some(measured.0);
        latencies = measured.1;
    }
    line.say("reads");
    latencies.push(Latency::of("read 4 KiB", &reads(&scratch).with_context(failed)?));
    let verdict = verdict::judge(&medium, timings);
    let (schema, direct, path) = (1, scratch.direct, path.display().to_string());
    Ok(Found { schema, path, exists, medium, direct, latencies, verdict })
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("fixed, valid bounds")
}

/// Repeats an operation until the time or the count suffices.
fn repeat(mut each: impl FnMut() -> Result<()>) -> Result<()> {
    let until = Instant::now() + STRETCH;
    for _ in 0..ENOUGH {
        each()?;
        if Instant::now() > until {
            break;
        }
    }
    Ok(())
}

fn timed(times: &mut Histogram<u64>, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    act()?;
    times.saturating_record(begun.elapsed().as_nanos() as u64);
    Ok(())
}

fn writes(scratch: &Scratch) -> Result<(Timings, Vec<Latency>)> {
    let mut random = Prng::new(1);
    let mut place = move |len: usize| random.below(BYTES / len as u64) * len as u64;
    let (small, large) = (scratch.buffer(BLOCK), scratch.buffer(LARGE));
    let [mut write, mut flush, mut both, mut idle, mut behind] =
        [histogram(), histogram(), histogram(), histogram(), histogram()];
    repeat(|| {
        let begun = Instant::now();
        timed(&mut write, || scratch.put(place(BLOCK), &small))?;
        timed(&mut flush, || scratch.flush())?;
        both.saturating_record(begun.elapsed().as_nanos() as u64);
        Ok(())
    })?;
    repeat(|| timed(&mut idle, || scratch.flush()))?;
    repeat(|| {
        scratch.put(place(LARGE), &large)?;
        timed(&mut behind, || scratch.flush())
    })?;
    let latencies = vec![
        Latency::of("write 4 KiB and flush", &both),
        Latency::of("write 4 KiB", &write),
        Latency::of("flush behind 4 KiB", &flush),
        Latency::of("flush behind 4 MiB", &behind),
        Latency::of("flush of nothing", &idle),
    ];
    // Uses the quick ones: a busy machine slows operations down, but nothing speeds them up.
    let quick = |times: &Histogram<u64>| times.value_at_quantile(0.1) as f64 / 1000.0;
    let (write_us, flush_us) = (quick(&write), quick(&flush));
    Ok((Timings { flush_us, write_us }, latencies))
}

fn reads(scratch: &Scratch) -> Result<Histogram<u64>> {
    let (mut random, mut times) = (Prng::new(2), histogram());
    let (first, end) = scratch.readable();
    let blocks = (end - first) / BLOCK as u64;
    let mut buf = scratch.buffer(BLOCK);
    repeat(|| {
        let at = first + random.below(blocks.max(1)) * BLOCK as u64;
        timed(&mut times, || scratch.get(at, &mut buf))
    })?;
    Ok(times)
}

impl Found {
    /// Formats the result for people.
    pub fn text(&self) -> String {
        let m = &self.medium;
        let kind = match m.kind {
            Kind::Memory => "memory",
            Kind::Rotating => "platters",
            Kind::Solid => "solid state",
            Kind::Virtual => "a virtual disk",
            Kind::Unknown => "unknown",
        };
        let cache = match m.cache {
            Some(Cache::WriteBack) => "volatile: it needs flushes",
            Some(Cache::WriteThrough) => "none that is volatile, it says",
            None => "unknown",
        };
        let bytes = |b: Option<u32>| b.map_or("unknown".to_owned(), |b| Size(b.into()).to_string());
        let atomic = match m.atomic_write {
            Some(0) => "none is promised".to_owned(),
            other => bytes(other),
        };
        let fua = m.fua.map_or("unknown", |f| if f { "yes" } else { "no" });
        let direct = if self.direct { "yes" } else { "no: put devices on ext4 or XFS" };
        let place = folder(self.path.as_ref());
        let path = match self.exists {
            true => self.path.clone(),
            false => format!(
                "There is no {}; this is the file system that a file there would lie on.\n\n{}",
                self.path,
                place.canonicalize().unwrap_or(place).display()
            ),
        };
        let mut text = format!(
            "{path}, on {}\n\nMedium          {kind}\nWrite cache     {cache}\n\
             Durable writes  {fua} (FUA)\nBlocks          {} logical, {} physical\n\
             Atomic writes   {atomic}\nDirect I/O      {direct}\n\n",
            m.name.as_deref().unwrap_or("a device that the kernel doesn't name"),
            bytes(m.logical_block),
            bytes(m.physical_block),
        );
        let mut rows = table(&["one at a time", "p50 us", "p99 us", "max us", "count"]);
        for l in &self.latencies {
            let us = |v: f64| format!("{v:.1}");
            let row = [l.what.to_owned(), us(l.p50_us), us(l.p99_us), us(l.max_us)];
            rows.add_row(row.into_iter().chain([l.count.to_string()]));
        }
        right(&mut rows, &[1, 2, 3, 4]);
        let word = match self.verdict.trust {
            Trust::Sound => "Nothing speaks against it",
            Trust::Doubtful => "DOUBTFUL",
            Trust::Lying => "REFUSED",
            Trust::Unknown => "NOT MEASURED",
        };
        text += &format!("{rows}\n\n{word}: {}.\n", self.verdict.why);
        text
    }
}
