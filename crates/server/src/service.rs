//! What `mdm run`, `sds run` and `sdc run` have in common: shard threads, signals, the log.
//!
//! The main thread sleeps on one channel. Shards report notes and their end on it, a thread that
//! waits for signals reports those. A shard never waits for the log: what does not fit is counted.

use crate::exit::{Exit, coded};
use crate::notes::Notes;
use crate::process::Process;
use crate::watched::{Verdict, Watch, Watched};
use anyhow::{Context, Result, bail};
use rt::{ListenAddr, RtError, Stop};
use seam::{Node, Note};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Notes that may wait for the log.
const BACKLOG: usize = 4096;
/// How long an address may be in use before that is an error.
const BIND_PATIENCE: Duration = Duration::from_secs(2);

/// Makes a node out of the addresses that its shard listens at.
pub type MakeNode<N> = Box<dyn FnOnce(&[ListenAddr]) -> N + Send>;

/// One shard to be run.
pub struct Job<N> {
    /// Names its thread.
    pub name: String,
    /// What it is made of.
    pub config: rt::Config,
    /// One per seat, called on the shard's own thread.
    pub nodes: Vec<MakeNode<N>>,
}

enum Message {
    Bound { shard: String, backend: rt::Backend, at: Vec<ListenAddr>, notice: Option<String> },
    Note(Note),
    Verdict(Verdict),
    Ended { shard: String, why: Option<RtError> },
    Signal(i32),
}

/// Runs the shards until a signal asks for the end, or one of them fails. Roles that share the process
/// have a pid file each.
pub fn run<N: Node + Watch + 'static>(
    role: &str,
    pid_files: &[PathBuf],
    jobs: Vec<Job<N>>,
) -> Result<()> {
    let _pid_files = pid_files.iter().map(|f| PidFile::write(f)).collect::<Result<Vec<_>>>()?;
    let log = Log { role: role.to_owned() };
    log.line(&format!("gabion {} starts, pid {}", env!("CARGO_PKG_VERSION"), std::process::id()));
    let (report, inbox) = sync_channel(BACKLOG);
    let (stop, lost) = (Stop::new(), Arc::new(AtomicU64::new(0)));
    watch_signals(report.clone())?;
    let mut threads = Vec::new();
    for job in jobs {
        let (report, stop, lost) = (report.clone(), stop.clone(), lost.clone());
        let thread = thread::Builder::new().name(job.name.clone());
        threads.push(thread.spawn(move || run_shard(job, &stop, &report, &lost))?);
    }
    let outcome = follow(&log, &inbox, threads.len(), &lost, &stop);
    stop.stop();
    // A shard that ends needs room for its last report.
    drop(inbox);
    for thread in threads {
        if thread.join().is_err() {
            bail!("a shard panicked; its message is above. Please report it");
        }
    }
    log.line("ended");
    outcome
}

fn run_shard<N: Node + Watch>(
    job: Job<N>,
    stop: &Stop,
    report: &SyncSender<Message>,
    lost: &AtomicU64,
) {
    // Reports the end in any case, so that a panic of one shard ends the process.
    let mut end = End { report: report.clone(), shard: job.name.clone(), why: None };
    let shard = match bind(job.config, stop) {
        Ok(shard) => shard,
        Err(why) => return end.why = Some(why),
    };
    let mut at = Vec::new();
    let mut nodes = Vec::new();
    for (seat, make) in job.nodes.into_iter().enumerate() {
        let own = shard.addrs(seat);
        let verdicts = report.clone();
        nodes.push(Watched::new(make(&own), move |verdict| {
            let _ = verdicts.send(Message::Verdict(verdict));
        }));
        at.extend(own);
    }
    let (backend, notice) = (shard.backend(), shard.notice().map(str::to_owned));
    let _ = report.send(Message::Bound { shard: job.name, backend, at, notice });
    let outcome = shard.run(nodes, stop, |_, _, note| {
        if report.try_send(Message::Note(note)).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    });
    end.why = outcome.err();
}

/// Binds a shard. An address that is in use is tried again for a moment: the kernel takes down the
/// io_uring of a killed process, and the listening socket with it, some time after the process.
fn bind(config: rt::Config, stop: &Stop) -> Result<rt::Shard, RtError> {
    let deadline = Instant::now() + BIND_PATIENCE;
    loop {
        match rt::Shard::bind(config.clone()) {
            Err(RtError::InUse { .. }) if Instant::now() < deadline && !stop.is_set() => {
                thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

struct End {
    report: SyncSender<Message>,
    shard: String,
    why: Option<RtError>,
}

impl Drop for End {
    fn drop(&mut self) {
        let shard = std::mem::take(&mut self.shard);
        let _ = self.report.send(Message::Ended { shard, why: self.why.take() });
    }
}

/// Writes the log until the process should end.
fn follow(
    log: &Log,
    inbox: &Receiver<Message>,
    shards: usize,
    lost: &AtomicU64,
    stop: &Stop,
) -> Result<()> {
    let (mut notes, mut running) = (Notes::default(), shards);
    while running > 0 {
        let wait = notes.due_in().unwrap_or(Duration::from_secs(3600));
        match inbox.recv_timeout(wait) {
            Ok(Message::Bound { shard, backend, at, notice }) => {
                let at: Vec<String> = at.iter().map(ToString::to_string).collect();
                log.line(&format!("{shard} listens on {}, by {backend}", at.join(", ")));
                notice.iter().for_each(|n| log.line(n));
            }
            Ok(Message::Verdict(Verdict::Say(text))) => log.line(&text),
            Ok(Message::Verdict(Verdict::End(why))) => bail!("{why}"),
            Ok(Message::Note(note)) => {
                if let Some(line) = notes.take(note) {
                    log.line(&line);
                }
            }
            Ok(Message::Signal(signal)) => {
                log.line(&format!("signal {signal}: stopping"));
                stop.stop();
            }
            Ok(Message::Ended { shard, why }) => {
                running -= 1;
                match why {
                    Some(why @ (RtError::InUse { .. } | RtError::Locked { .. })) => {
                        return Err(coded(Exit::Taken, format!("{shard}: {why}")));
                    }
                    Some(why) => bail!("{shard}: {why}"),
                    None if !stop.is_set() => bail!("{shard} ended although nobody asked it to"),
                    None => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                notes.sum_up().iter().for_each(|line| log.line(line));
                let lost = lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    log.line(&format!("{lost} notes more came than could be told"));
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    notes.sum_up().iter().for_each(|line| log.line(line));
    Ok(())
}

/// Reports SIGTERM and SIGINT; a SIGHUP, as when a terminal closes, is nothing to a server.
fn watch_signals(report: SyncSender<Message>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
        .context("can't handle signals")?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever().filter(|s| *s != SIGHUP) {
            if report.send(Message::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

struct Log {
    role: String,
}

impl Log {
    fn line(&self, text: &str) {
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        eprintln!("{now} {} {text}", self.role);
    }
}

/// Removed when the process ends as it should; stays after a crash, for `process` to judge.
struct PidFile(PathBuf);

impl PidFile {
    fn write(path: &Path) -> Result<PidFile> {
        Process::this()?.write(path)?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
