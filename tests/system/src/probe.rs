//! Steady small I/O that detects every stall and every wrong byte.
//!
//! Each thread writes 4 KiB blocks that identify the thread and the write, reads them back at once,
//! and records them. At the end it reads all blocks again. The longest request counts as the
//! longest stall.

use crate::bytes::Random;
use crate::nbd::Nbd;
use crate::{Cluster, MIB};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;

/// A running probe.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
    /// Answered requests, by thread.
    ops: Vec<Arc<AtomicU64>>,
    worst_ns: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// The observations of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Saw {
    /// Answered requests.
    pub ops: u64,
    /// Duration of the longest request.
    pub worst: Duration,
}

impl Probe {
    /// Starts `threads` connections, each with its own part of the first `bytes` of the volume.
    pub fn start(cluster: &Cluster, volume: &str, threads: u64, bytes: u64) -> Result<Probe> {
        let mut probe = Probe {
            stop: Arc::default(),
            ops: (0..threads).map(|_| Arc::default()).collect(),
            worst_ns: Arc::default(),
            threads: Vec::new(),
        };
        for thread in 0..threads {
            let worker = Worker {
                nbd: cluster.nbd(volume)?,
                random: Random::new(thread + 1),
                thread,
                threads,
                bytes,
                written: BTreeMap::new(),
                ops: probe.ops[thread as usize].clone(),
                worst_ns: probe.worst_ns.clone(),
            };
            let stop = probe.stop.clone();
            probe.threads.push(std::thread::spawn(move || worker.work(&stop)));
        }
        probe.wait_ops(100)?;
        Ok(probe)
    }

    /// Waits until `count` more requests are answered, including at least one of each thread. So a
    /// thread that stalls is counted before the next lap.
    pub fn wait_ops(&self, count: u64) -> Result<()> {
        let answered = || self.ops.iter().map(|ops| ops.load(Ordering::Relaxed));
        let before: Vec<u64> = answered().collect();
        let goal = before.iter().sum::<u64>() + count;
        crate::wait(&format!("{count} requests more are answered"), crate::secs(30), || {
            ensure!(self.threads.iter().all(|t| !t.is_finished()), "a prober has ended");
            let each = answered().zip(&before).all(|(now, before)| now > *before);
            Ok((each && answered().sum::<u64>() >= goal).then_some(()))
        })
    }

    /// Returns the observations since the start, or since the last call.
    pub fn lap(&self) -> Saw {
        Saw {
            ops: self.ops.iter().map(|ops| ops.swap(0, Ordering::Relaxed)).sum(),
            worst: Duration::from_nanos(self.worst_ns.swap(0, Ordering::Relaxed)),
        }
    }

    /// Ends the probe, and reads everything again that it has written.
    pub fn finish(mut self) -> Result<Saw> {
        let saw = self.lap();
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a prober panicked"))??;
        }
        Ok(saw)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Worker {
    nbd: Nbd,
    random: Random,
    thread: u64,
    threads: u64,
    bytes: u64,
    written: BTreeMap<u64, u64>,
    ops: Arc<AtomicU64>,
    worst_ns: Arc<AtomicU64>,
}

impl Worker {
    fn work(mut self, stop: &AtomicBool) -> Result<()> {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            let at = self.place();
            let content = self.content(at, number);
            self.timed(|nbd| nbd.write(at, &content))
                .with_context(|| format!("writing at {at}"))?;
            self.written.insert(at, number);
            let got = self.timed(|nbd| nbd.read(at, BLOCK as usize))?;
            ensure!(got == content, "at {at} we read something else than we just wrote");
        }
        for (at, number) in std::mem::take(&mut self.written) {
            let got = self.nbd.read(at, BLOCK as usize)?;
            ensure!(got == self.content(at, number), "at {at} the last write is not there");
        }
        Ok(())
    }

    /// Returns a random block of this thread's part. Units alternate between threads, so that each
    /// thread uses all groups.
    fn place(&mut self) -> u64 {
        let units = self.bytes / MIB / self.threads;
        let unit = self.random.below(units) * self.threads + self.thread;
        unit * MIB + self.random.below(MIB / BLOCK) * BLOCK
    }

    fn content(&self, at: u64, number: u64) -> Vec<u8> {
        [self.thread, at, number]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .cycle()
            .take(BLOCK as usize)
            .collect()
    }

    fn timed<T>(&mut self, request: impl FnOnce(&mut Nbd) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let outcome = request(&mut self.nbd);
        self.worst_ns.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.ops.fetch_add(1, Ordering::Relaxed);
        outcome
    }
}
