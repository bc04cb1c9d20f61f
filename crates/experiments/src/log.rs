//! What a run writes down while it runs: its transcript, and a sample every second.

use crate::report::samples::Samples;
use crate::report::transcript::Transcript;
use anyhow::Result;
use bench::cpu::{Processes, Reading};
use bench::interrupt;
use bench::tally::Counters;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two samples of a load.
const EVERY: Duration = Duration::from_secs(1);

/// The columns of a load's samples.
const COLUMNS: [&str; 10] = [
    "seconds",
    "step",
    "reads_per_second",
    "writes_per_second",
    "latency_ms",
    "queue",
    "client_cores",
    "sds_cores",
    "mdm_cores",
    "machine_cores",
];

/// The transcript and the samples.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub transcript: Transcript,
    pub samples: Samples,
    /// Loads that ended with an error, such as a failed request or wrong data.
    pub failed: Vec<String>,
    /// Clusters that lacked copies at their end.
    pub unhealthy: Vec<String>,
}

/// Samples one load.
pub(crate) struct Sampler<'a> {
    log: &'a mut Log,
    step: String,
    processes: &'a Processes,
    /// The last sample: its time, requests, their latencies, and all clocks.
    last: Option<(Instant, [u64; 2], u64, Reading)>,
}

impl Log {
    /// Begins; times count from now.
    pub(crate) fn begin() -> Log {
        let samples = Samples { columns: COLUMNS.to_vec(), rows: Vec::new() };
        let (failed, unhealthy) = (Vec::new(), Vec::new());
        Log { transcript: Transcript::begin(), samples, failed, unhealthy }
    }

    /// Passes the outcome of a load on, and notes its error. An interrupted load has not failed.
    pub(crate) fn note_failure<T>(&mut self, load: &str, outcome: Result<T>) -> Result<T> {
        interrupt::check()?;
        outcome.inspect_err(|why| self.failed.push(format!("{load}: {why:#}")))
    }

    /// Begins to sample a load.
    pub(crate) fn sampler<'a>(&'a mut self, step: &str, processes: &'a Processes) -> Sampler<'a> {
        Sampler { log: self, step: step.to_owned(), processes, last: None }
    }
}

impl Sampler<'_> {
    /// Takes a sample if it is time for one.
    pub(crate) fn look(&mut self, counters: &[Arc<Counters>]) -> Result<()> {
        if self.last.as_ref().is_some_and(|last| last.0.elapsed() < EVERY) {
            return Ok(());
        }
        let sum = counters.iter().map(|c| c.answered());
        let answered = sum.fold([0; 2], |all, one| [all[0] + one[0], all[1] + one[1]]);
        let waited: u64 = counters.iter().map(|c| c.waited()).sum();
        let now = (Instant::now(), answered, waited, Reading::take(self.processes)?);
        if let Some(before) = self.last.replace(now) {
            self.add(&before);
        }
        Ok(())
    }

    fn add(&mut self, before: &(Instant, [u64; 2], u64, Reading)) {
        use bench::cpu::Kind;
        let Some(now) = &self.last else { return };
        let passed = (now.0 - before.0).as_secs_f64();
        let [reads, writes] = [0, 1].map(|side| (now.1[side] - before.1[side]) as f64);
        let waited = now.2.wrapping_sub(before.2) as f64 / 1e9;
        let spent = before.3.until(&now.3);
        let cores = |kind: Kind| {
            let of = spent.kinds.iter().filter(|k| k.kind == kind);
            of.map(|k| k.total).sum::<f64>() / 1e6 / passed
        };
        let latency = if reads + writes > 0.0 { waited / (reads + writes) * 1e3 } else { 0.0 };
        let numbers = [
            reads / passed,
            writes / passed,
            latency,
            waited / passed,
            cores(Kind::Client),
            cores(Kind::Sds),
            cores(Kind::Mdm),
            spent.machine / 1e6 / passed,
        ];
        let head = [format!("{:.2}", self.log.transcript.seconds()), self.step.clone()];
        let row = head.into_iter().chain(numbers.map(|n| format!("{n:.3}")));
        self.log.samples.rows.push(row.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_taken_every_second_and_has_all_columns() {
        let (mut log, processes) = (Log::begin(), Processes::client());
        let counters = [Arc::new(Counters::default())];
        let mut sampler = log.sampler("load", &processes);
        sampler.look(&counters).unwrap();
        sampler.look(&counters).unwrap();
        sampler.last.as_mut().unwrap().0 -= EVERY;
        sampler.look(&counters).unwrap();
        let rows = &log.samples.rows;
        assert_eq!((rows.len(), rows[0].len()), (1, COLUMNS.len()));
        assert_eq!((rows[0][1].as_str(), rows[0][2].as_str()), ("load", "0.000"));
    }
}
