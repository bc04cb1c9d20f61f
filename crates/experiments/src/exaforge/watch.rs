//! Samples the cluster while phases run: requests, their latency, and how much data is protected.

use admin::Admin;
use admin::report::{Report, UpDown};
use anyhow::{Result, anyhow};
use bench::interrupt;
use bench::tally::Counters;
use fleet::target::Target;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(100);

/// One sample.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Time since the start of the watch.
    pub seconds: f64,
    pub bytes_per_second: f64,
    pub requests_per_second: f64,
    /// Mean latency of the requests answered since the last sample; 0 if there were none.
    pub latency_ms: f64,
    pub protected_bytes: u64,
    pub degraded_bytes: u64,
    pub failed_bytes: u64,
    /// Bytes copied for rebuild and rebalance.
    pub moved_bytes_per_second: f64,
}

impl Sample {
    /// The columns of `samples.csv`.
    pub(crate) const COLUMNS: [&str; 9] = [
        "seconds",
        "bytes_per_second",
        "requests_per_second",
        "latency_ms",
        "queue",
        "protected_bytes",
        "degraded_bytes",
        "failed_bytes",
        "moved_bytes_per_second",
    ];
}

/// Returns one row for each second: means of the rates, and the last state.
pub(crate) fn per_second(samples: &[Sample]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for second in samples.chunk_by(|a, b| a.seconds.ceil() == b.seconds.ceil()) {
        let Some(last) = second.last() else { continue };
        let count = second.len() as f64;
        let mean = |of: fn(&Sample) -> f64| second.iter().map(of).sum::<f64>() / count;
        let queue = mean(|s| s.latency_ms * s.requests_per_second / 1e3);
        let requests = mean(|s| s.requests_per_second);
        let latency = if requests > 0.0 { queue / requests * 1e3 } else { 0.0 };
        let rates = [mean(|s| s.bytes_per_second), requests, latency, queue];
        let mut row = vec![format!("{:.0}", last.seconds.ceil())];
        row.extend(rates.map(|n| format!("{n:.3}")));
        let bytes = [last.protected_bytes, last.degraded_bytes, last.failed_bytes];
        row.extend(bytes.map(|n| n.to_string()));
        row.push(format!("{:.0}", mean(|s| s.moved_bytes_per_second)));
        rows.push(row);
    }
    rows
}

/// The present load.
#[derive(Default)]
struct Loaded {
    counters: Vec<Arc<Counters>>,
    block: u64,
    answered: u64,
    waited: u64,
}

/// The sampling thread.
pub(crate) struct Watch {
    begin: Instant,
    stop: Arc<AtomicBool>,
    loaded: Arc<Mutex<Loaded>>,
    moved: Arc<AtomicU64>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Watch {
    /// Starts the thread.
    pub(crate) fn start(target: &Target) -> Watch {
        let (stop, loaded) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let (begin, moved) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let (target, halt, seen) = (target.clone(), stop.clone(), loaded.clone());
        let mut look = Look { moved: moved.clone(), before: BTreeMap::new() };
        let thread = std::thread::spawn(move || look.at(&target, begin, &halt, &seen));
        Watch { begin, stop, loaded, moved, thread }
    }

    /// Returns the seconds since the start.
    pub(crate) fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Returns the bytes that servers have copied to each other so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Samples these counters from now on; a request has `block` bytes.
    pub(crate) fn load(&self, counters: Vec<Arc<Counters>>, block: u64) {
        *self.loaded.lock().expect("no thread panics with it") =
            Loaded { counters, block, ..Loaded::default() };
    }

    /// Returns the number of requests answered under the present load.
    pub(crate) fn answered(&self) -> u64 {
        let loaded = self.loaded.lock().expect("no thread panics with it");
        loaded.counters.iter().map(|c| c.answered().iter().sum::<u64>()).sum()
    }

    /// Stops the thread and returns all samples.
    pub(crate) fn end(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// The state of the sampling thread.
struct Look {
    /// Bytes that all servers have copied.
    moved: Arc<AtomicU64>,
    /// Bytes that each device had copied at the last sample. A new process counts from 0.
    before: BTreeMap<u32, u64>,
}

impl Look {
    fn at(
        &mut self,
        target: &Target,
        begin: Instant,
        halt: &AtomicBool,
        loaded: &Mutex<Loaded>,
    ) -> Vec<Sample> {
        let mut samples: Vec<Sample> = Vec::new();
        let mut last = begin;
        while !halt.load(Ordering::Relaxed) {
            std::thread::sleep(EVERY);
            let passed = last.elapsed().as_secs_f64();
            last = Instant::now();
            let mut sample = samples.last().copied().unwrap_or_default();
            sample.seconds = begin.elapsed().as_secs_f64();
            requests(&mut sample, &mut loaded.lock().expect("as above"), passed);
            sample.moved_bytes_per_second = 0.0;
            if let Ok(report) = target.report() {
                let capacity = report.capacity;
                sample.protected_bytes = capacity.protected_bytes;
                sample.degraded_bytes = capacity.degraded_bytes;
                sample.failed_bytes = capacity.failed_bytes;
                sample.moved_bytes_per_second = self.moved(&report) as f64 / passed;
            }
            samples.push(sample);
        }
        samples
    }

    /// Returns the bytes copied since the last sample.
    fn moved(&mut self, report: &Report) -> u64 {
        let mut moved = 0;
        for device in report.sds.iter().flat_map(|s| &s.devices) {
            let now = device.resync_moved_bytes;
            let before = self.before.insert(device.id, now).unwrap_or(0);
            moved += if now < before { now } else { now - before };
        }
        self.moved.fetch_add(moved, Ordering::Relaxed);
        moved
    }
}

fn requests(sample: &mut Sample, loaded: &mut Loaded, passed: f64) {
    let answered: u64 = loaded.counters.iter().map(|c| c.answered().iter().sum::<u64>()).sum();
    let waited: u64 = loaded.counters.iter().map(|c| c.waited()).sum();
    let (count, time) = (answered - loaded.answered, waited - loaded.waited);
    sample.requests_per_second = count as f64 / passed;
    sample.bytes_per_second = (count * loaded.block) as f64 / passed;
    sample.latency_ms = if count > 0 { time as f64 / count as f64 / 1e6 } else { 0.0 };
    (loaded.answered, loaded.waited) = (answered, waited);
}

/// Waits until an MDM reports a server as up, or as down, and returns the time that took. All MDMs
/// are asked in parallel, so that an unreachable one does not hide what the others know.
pub(crate) fn until(
    target: &Target,
    server: &str,
    state: UpDown,
    limit: Duration,
) -> Result<Duration> {
    let (begin, over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let (tell, seen) = sync_channel(target.mdm.len());
    for mdm in target.mdm.iter().copied() {
        let (server, tell, over) = (server.to_owned(), tell.clone(), over.clone());
        std::thread::spawn(move || {
            let is =
                |report: Report| report.sds.iter().any(|s| s.name == server && s.state == state);
            let ask = || Ok::<_, anyhow::Error>(Report::new(&Admin::connect(mdm)?.status()?, mdm));
            while !over.load(Ordering::Relaxed) {
                if ask().is_ok_and(is) {
                    let _ = tell.try_send(begin.elapsed());
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    }
    let found = loop {
        match seen.recv_timeout(Duration::from_millis(100)) {
            Ok(took) => break Ok(took),
            Err(_) if begin.elapsed() < limit => interrupt::check()?,
            Err(_) => break Err(anyhow!("{server} is not {state} after {limit:?}")),
        }
    };
    over.store(true, Ordering::Relaxed);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_per_second_has_means_and_the_last_state() {
        let sample = |seconds, requests_per_second, protected_bytes| Sample {
            seconds,
            requests_per_second,
            latency_ms: 2.0,
            protected_bytes,
            ..Sample::default()
        };
        let rows = per_second(&[sample(0.5, 100.0, 1), sample(1.0, 300.0, 2), sample(1.5, 0.0, 3)]);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], ["1", "0.000", "200.000", "2.000", "0.400", "2", "0", "0", "0"]);
        assert_eq!((rows[1][3].as_str(), rows[1].len()), ("0.000", Sample::COLUMNS.len()));
    }
}
