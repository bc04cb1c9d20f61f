//! Loads a volume from this process, with one thread and one SDC per job.

use crate::cpu::Processes;
use crate::figures::{Figures, measure};
use crate::interrupt;
use crate::load::{Data, Load, Loader, Shared};
use crate::name;
use crate::tally::{Counters, Tally};
use crate::workload::{Requests, Workload};
use anyhow::{Context, Result, bail};
use node::sdc::{Sdc, SdcConfig};
use rt::{HeldName, RtError, Stop};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the first answer may take.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a pass over a volume may go without an answer.
const FILL_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes per request while a volume is filled, and requests in flight.
const FILL_BLOCK: u32 = base::UNIT;
const FILL_DEPTH: u32 = 16;

/// A volume of a running cluster.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Addresses of its MDMs.
    pub mdm: Vec<SocketAddr>,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// How the loading SDCs talk to the kernel.
    pub backend: rt::Backend,
    /// Use TCP even to processes on this machine, as to other hosts.
    pub tcp_only: bool,
}

/// The load of a volume.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Order and kind of the requests.
    pub workload: Workload,
    /// Percentage of reads in `randrw`.
    pub mix: u32,
    /// Bytes per request.
    pub block: u32,
    /// Requests in flight per job.
    pub depth: u32,
    /// Requests per second and job, at least 1; `None`: as many as possible.
    pub rate: Option<u32>,
    /// Number of jobs.
    pub jobs: u32,
    /// How data is handled.
    pub data: Data,
}

/// The threads of a load. They are stopped when this is dropped.
pub struct Jobs {
    stop: Stop,
    shared: Vec<Arc<Shared>>,
    threads: Vec<JoinHandle<Result<(), RtError>>>,
    /// The clients' names, reserved until the threads have ended.
    names: Vec<HeldName>,
}

impl Volume {
    /// Loads the volume and measures.
    pub fn measure(
        &self,
        title: &str,
        work: &Work,
        processes: &Processes,
        window: Duration,
    ) -> Result<Figures> {
        self.watched(title, work, processes, window, |_| Ok(()))
    }

    /// Does the same. `look` sees the counters ten times a second.
    pub fn watched(
        &self,
        title: &str,
        work: &Work,
        processes: &Processes,
        window: Duration,
        mut look: impl FnMut(&[Arc<Counters>]) -> Result<()>,
    ) -> Result<Figures> {
        let mut jobs = Jobs::start(self, work, None)?;
        jobs.wait_begun()?;
        let counters = jobs.counters();
        let window = measure(title, &counters, processes, window, || {
            jobs.check()?;
            look(&counters)
        })?;
        Figures::new(&window, &jobs.end()?, work.block.into())
    }

    /// Writes every byte once, so that reads find data.
    pub fn fill(&self, data: Data) -> Result<()> {
        let (workload, block, depth) = (Workload::Write, FILL_BLOCK, FILL_DEPTH);
        self.once(&Work { workload, mix: 0, block, depth, rate: None, jobs: 1, data })
    }

    /// Makes one pass over the whole volume.
    pub fn once(&self, work: &Work) -> Result<()> {
        let mut jobs = Jobs::start(self, work, Some(self.size / u64::from(work.block)))?;
        let (mut deadline, mut before) = (Instant::now() + FILL_TIMEOUT, 0);
        while !jobs.shared.iter().all(|s| s.done.load(Ordering::Relaxed)) {
            jobs.check()?;
            let answered = jobs.answered();
            if answered > before {
                (deadline, before) = (Instant::now() + FILL_TIMEOUT, answered);
            }
            if Instant::now() > deadline {
                bail!("volume {}: no request was answered for {FILL_TIMEOUT:?}", self.name);
            }
            interrupt::sleep(Duration::from_millis(5))?;
        }
        jobs.end().map(drop)
    }
}

impl Jobs {
    /// Starts to load a volume. With `total`, each job makes this many requests.
    pub fn start(volume: &Volume, work: &Work, total: Option<u64>) -> Result<Jobs> {
        let mut jobs =
            Jobs { stop: Stop::new(), shared: Vec::new(), threads: Vec::new(), names: Vec::new() };
        for job in 0..work.jobs {
            let place = (job, work.jobs);
            let requests = Requests::new(
                work.workload,
                work.mix,
                work.block,
                volume.size,
                place,
                daemon::random()?,
            )
            .with_context(|| {
                format!(
                    "volume {} is too small: {} jobs need a request of {} bytes each",
                    volume.name, work.jobs, work.block
                )
            })?;
            let load = Load {
                volume: volume.name.clone(),
                requests,
                block: work.block,
                depth: work.depth,
                rate: work.rate,
                data: work.data,
                total,
            };
            jobs.spawn(volume, job, load)?;
        }
        Ok(jobs)
    }

    fn spawn(&mut self, volume: &Volume, job: u32, load: Load) -> Result<()> {
        let shard = rt::Shard::bind(rt::Config {
            backend: volume.backend,
            local: !volume.tcp_only,
            seed: daemon::random()?,
            ..rt::Config::default()
        })?;
        let name = name::first_free()?;
        let config = SdcConfig::program(
            name.text.clone(),
            volume.mdm.clone(),
            daemon::random()?,
            std::process::id(),
        );
        let shared = Arc::new(Shared::default());
        let (tell, halt) = (shared.clone(), self.stop.clone());
        let thread =
            std::thread::Builder::new().name(format!("bench{}", job + 1)).spawn(move || {
                shard.run(vec![Loader::new(Sdc::new(config), load, tell)], &halt, |_, _, _| {})
            })?;
        self.threads.push(thread);
        self.names.push(name);
        self.shared.push(shared);
        Ok(())
    }

    /// Returns the number of requests answered so far.
    fn answered(&self) -> u64 {
        self.shared.iter().flat_map(|s| s.counters.answered()).sum()
    }

    /// Returns the counters of each job.
    pub fn counters(&self) -> Vec<Arc<Counters>> {
        self.shared.iter().map(|s| s.counters.clone()).collect()
    }

    /// Returns an error if a job has failed.
    pub fn check(&self) -> Result<()> {
        if let Some(why) = self.shared.iter().find_map(|s| s.error.get()) {
            bail!("{why}");
        }
        if self.threads.iter().any(JoinHandle::is_finished) {
            bail!("a loading thread has ended before its time; its message is above");
        }
        Ok(())
    }

    /// Waits until each job has received an answer.
    pub fn wait_begun(&self) -> Result<()> {
        let deadline = Instant::now() + BEGIN_TIMEOUT;
        while self.shared.iter().any(|s| s.counters.answered() == [0, 0]) {
            self.check()?;
            if Instant::now() > deadline {
                bail!(
                    "no request was answered within {BEGIN_TIMEOUT:?}. See `gabion status`: does the \
                     cluster serve?"
                );
            }
            interrupt::sleep(Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// Stops all jobs and returns the recorded latencies.
    pub fn end(&mut self) -> Result<Tally> {
        self.stop.stop();
        let mut sum = Tally::default();
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(outcome) => outcome?,
                Err(_) => bail!("the load panicked; its message is above. Please report it"),
            }
        }
        self.shared.iter().filter_map(|s| s.tally.get()).for_each(|tally| sum.merge(tally));
        Ok(sum)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
