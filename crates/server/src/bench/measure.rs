//! Counters that a load keeps, and what they make of a stretch of time.

use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Each power of two of nanoseconds is cut in so many parts.
const PARTS: usize = 16;
const BUCKETS: usize = 40 * PARTS;
/// How long the load runs before anything counts.
const WARM_UP: Duration = Duration::from_millis(700);

/// What the load has done so far. Written by its one thread, read by another.
#[derive(Debug)]
pub struct Counters {
    ops: AtomicU64,
    latency_ns: AtomicU64,
    histogram: [AtomicU64; BUCKETS],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            ops: AtomicU64::new(0),
            latency_ns: AtomicU64::new(0),
            histogram: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

impl Counters {
    /// One request was answered. Only one thread may call this: it doesn't pay for atomic additions.
    pub fn answered(&self, latency_ns: u64) {
        let add = |c: &AtomicU64, n: u64| c.store(c.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&self.ops, 1);
        add(&self.latency_ns, latency_ns);
        add(&self.histogram[bucket(latency_ns)], 1);
    }

    fn snapshot(&self) -> (u64, u64, Vec<u64>) {
        let load = |c: &AtomicU64| c.load(Ordering::Relaxed);
        (load(&self.ops), load(&self.latency_ns), self.histogram.iter().map(load).collect())
    }
}

fn bucket(ns: u64) -> usize {
    let power = ns.max(PARTS as u64).ilog2();
    let part = (ns.max(PARTS as u64) >> (power - PARTS.ilog2())) as usize - PARTS;
    ((power - PARTS.ilog2()) as usize * PARTS + part).min(BUCKETS - 1)
}

/// The upper end of a bucket.
fn bound(bucket: usize) -> u64 {
    ((bucket % PARTS + PARTS + 1) as u64) << (bucket / PARTS)
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub seconds: f64,
    pub ops: u64,
    pub iops: f64,
    /// User and system time of the client and all servers.
    pub process_us_per_op: f64,
    /// Busy time of all cores.
    pub machine_us_per_op: f64,
    pub latency_mean_us: f64,
    pub latency_p99_us: f64,
}

/// Measures over `window`, after a warm-up. `pids` are all processes that take part.
pub fn measure(counters: &Counters, pids: &[u32], window: Duration) -> Result<Figures> {
    std::thread::sleep(WARM_UP);
    let (start, machine, processes) = (Instant::now(), machine_us()?, processes_us(pids)?);
    let (ops, latency, histogram) = counters.snapshot();
    std::thread::sleep(window);
    let (seconds, machine) = (start.elapsed().as_secs_f64(), machine_us()? - machine);
    let processes = processes_us(pids)? - processes;
    let (ops_after, latency_after, histogram_after) = counters.snapshot();
    let ops = ops_after - ops;
    if ops == 0 {
        bail!("not one request was answered in {seconds:.1} s");
    }
    let per_op = |n: f64| n / ops as f64;
    let counts: Vec<u64> = histogram_after.iter().zip(histogram).map(|(a, b)| a - b).collect();
    Ok(Figures {
        seconds,
        ops,
        iops: ops as f64 / seconds,
        process_us_per_op: per_op(processes),
        machine_us_per_op: per_op(machine),
        latency_mean_us: per_op((latency_after - latency) as f64 / 1e3),
        latency_p99_us: percentile(&counts, 0.99) as f64 / 1e3,
    })
}

fn percentile(counts: &[u64], share: f64) -> u64 {
    let rank = (counts.iter().sum::<u64>() as f64 * share) as u64;
    let mut seen = 0;
    let reaches = |(_, n): &(usize, &u64)| {
        seen += **n;
        seen > rank
    };
    counts.iter().enumerate().find(reaches).map_or(0, |(bucket, _)| bound(bucket))
}

/// Busy time of all cores since boot: user, nice, system, interrupts.
fn machine_us() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|f| f.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|i| fields.get(*i)).sum();
    // In hundredths of a second, on every Linux that we run on.
    Ok(busy as f64 * 1e4)
}

/// Time on a processor of all threads of these processes.
fn processes_us(pids: &[u32]) -> Result<f64> {
    let mut ns = 0u64;
    for pid in pids {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))
            .with_context(|| format!("process {pid} has ended"))?;
        for task in tasks {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            ns += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        let mut last = 0;
        for ns in [0, 15, 16, 17, 31, 32, 1000, 1024, 99_999, 10_000_000_000] {
            let b = bucket(ns);
            assert!(b >= last && ns.max(16) < bound(b), "{ns} in {b}, up to {}", bound(b));
            assert!(bound(b) <= ns.max(16) * 17 / 16 + 1, "{ns} in {b}, up to {}", bound(b));
            last = b;
        }
    }

    #[test]
    fn percentiles_come_from_the_counts() {
        let counters = Counters::default();
        (0..99).for_each(|_| counters.answered(1000));
        counters.answered(1_000_000);
        let counts = counters.snapshot().2;
        assert!((1000..1100).contains(&percentile(&counts, 0.5)));
        assert!(percentile(&counts, 0.99) >= 1_000_000);
    }
}
