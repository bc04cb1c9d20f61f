//! The common part of `mdm run`, `sds run` and `sdc run`: shard threads, signals, the log.
//!
//! The main thread waits on one channel. Shards send their notes and their end to it, and a thread
//! that waits for signals sends those. A shard never waits for the log: notes that don't fit into
//! the channel are only counted.
//!
//! A shard whose file system is full ends, and starts again when there is space. The process stays.
//!
//! Invariants: a shard whose device has failed ends alone. The process ends with its last shard, or
//! when a shard panics or ends unasked. On SIGHUP the shards become those that the configuration
//! names now, and a shard whose device has grown is restarted.

use crate::device_watch::{self, DeviceWatch};
use crate::files;
use crate::notes::Notes;
use crate::process::Process;
use crate::supervised::{Supervised, Verdict, Watch};
use anyhow::{Context, Result, bail};
use rt::{ListenAddr, RtError, Stop};
use seam::{DiskId, Node, Note};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Capacity of the channel, in messages.
const BACKLOG: usize = 4096;
/// The end of the log line about a single shard that has ended.
pub const OTHERS_GO_ON: &str = ". The other devices go on";
/// How long an address may be in use before that is an error.
const BIND_PATIENCE: Duration = Duration::from_secs(2);

/// The resources that a shard has for a node.
pub(crate) struct Place {
    /// The addresses where it listens.
    pub at: Vec<ListenAddr>,
    /// Bytes of its device, if it has one.
    pub disk_bytes: u64,
}

/// Makes a node when its shard has its sockets and devices.
pub(crate) type MakeNode<N> = Box<dyn FnOnce(&Place) -> N + Send>;

/// Bytes that must be free before a device on a full file system is opened again.
const ROOM: u64 = 64 << 20;
/// Interval of that check.
const ROOM_PAUSE: Duration = Duration::from_secs(2);

/// The description of one shard to run.
pub(crate) struct Job<N> {
    /// The name of its thread.
    pub name: String,
    /// Its sockets and devices.
    pub config: rt::Config,
    /// One per seat. They are called on the shard's own thread.
    pub nodes: Vec<MakeNode<N>>,
    /// Messages for people, logged before it starts.
    pub notices: Vec<String>,
    /// For a running shard: its device has grown, so it must be reopened.
    pub grown: bool,
    /// The file that is its disk.
    pub file: Option<PathBuf>,
    /// Watches for damage to that file by others, every [`device_watch::EVERY`].
    pub device_watch: Option<DeviceWatch>,
}

impl<N> Job<N> {
    /// A job without notices or a watched file.
    pub(crate) fn new(name: String, config: rt::Config, nodes: Vec<MakeNode<N>>) -> Job<N> {
        Job {
            name,
            config,
            nodes,
            notices: Vec::new(),
            grown: false,
            file: None,
            device_watch: None,
        }
    }
}

enum Message {
    Bound {
        shard: String,
        backend: rt::Backend,
        at: Vec<ListenAddr>,
        disk_bytes: u64,
        notice: Option<String>,
    },
    Note(Note),
    Verdict {
        shard: String,
        verdict: Verdict,
    },
    Ended {
        shard: String,
        why: Option<RtError>,
    },
    Signal(i32),
}

/// Returns a job for each shard that the configuration names now. Its argument tells which shards
/// run: a job for one of these is used only if its device has grown.
pub(crate) type Reload<'a, N> = Box<dyn FnMut(Running<'_>) -> Result<Vec<Job<N>>> + 'a>;

/// Returns the size in bytes with which the device of a running shard was opened; 0 until that is
/// known, `None` if the shard does not run.
pub(crate) type Running<'a> = &'a dyn Fn(&str) -> Option<u64>;

/// Runs the shards until a signal stops them, the last one ends, or one panics. Roles that share
/// the process have a pid file each.
///
/// With `reload`, a SIGHUP starts the shards that it names and that don't run, stops those that it
/// does not name, and restarts those whose device has grown. Shards are identified by name.
pub(crate) fn run<N: Node + Watch + 'static>(
    role: &str,
    pid_files: &[PathBuf],
    jobs: Vec<Job<N>>,
    reload: Option<Reload<'_, N>>,
) -> Result<()> {
    let _pid_files = pid_files.iter().map(|f| PidFile::write(f)).collect::<Result<Vec<_>>>()?;
    let log = Log::new(role);
    log.line(&format!("gabion {} starts, pid {}", env!("CARGO_PKG_VERSION"), std::process::id()));
    let (report, inbox) = sync_channel(BACKLOG);
    watch_signals(report.clone())?;
    let mut shards = Shards {
        report,
        lost: Arc::default(),
        running: BTreeMap::new(),
        waiting: BTreeMap::new(),
        out_of_space: BTreeMap::new(),
    };
    for job in jobs {
        shards.start(&log, job)?;
    }
    let outcome = follow(&log, &inbox, &mut shards, reload);
    shards.stop_all();
    // Without the receiver, a shard that ends can't block on its last report.
    drop(inbox);
    for (_, shard) in shards.running {
        if shard.thread.join().is_err() {
            bail!("a shard panicked; its message is above. Please report it");
        }
    }
    log.line("ended");
    outcome
}

/// The running shards.
struct Shards<N> {
    report: SyncSender<Message>,
    /// Notes dropped because the channel was full.
    lost: Arc<AtomicU64>,
    running: BTreeMap<String, Shard>,
    /// Shards that start when the running ones of the same name have ended.
    waiting: BTreeMap<String, Job<N>>,
    /// Shards that have ended, or are ending, because their file system is full; and their files.
    out_of_space: BTreeMap<String, Option<PathBuf>>,
}

struct Shard {
    thread: thread::JoinHandle<()>,
    stop: Stop,
    disk_bytes: u64,
    file: Option<PathBuf>,
}

impl<N: Node + Watch + 'static> Shards<N> {
    fn start(&mut self, log: &Log, mut job: Job<N>) -> Result<()> {
        job.notices.iter().for_each(|notice| log.line(notice));
        let (report, lost, stop) = (self.report.clone(), self.lost.clone(), Stop::new());
        let (name, until, file) = (job.name.clone(), stop.clone(), job.file.clone());
        if let Some(watch) = job.device_watch.take() {
            watch_device(watch, name.clone(), stop.clone(), report.clone())?;
        }
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || run_shard(job, &until, &report, &lost))?;
        self.running.insert(name, Shard { thread, stop, disk_bytes: 0, file });
        Ok(())
    }

    /// Stops all shards, and cancels all waiting starts.
    fn stop_all(&mut self) {
        self.waiting.clear();
        self.out_of_space.clear();
        self.running.values().for_each(|shard| shard.stop.stop());
    }

    /// Applies a configuration that was read again. If that fails, the running shards, and those
    /// that wait for space, stay as they are.
    fn reread(&mut self, log: &Log, named: Result<Vec<Job<N>>>) {
        let followed = named.and_then(|jobs| {
            self.out_of_space.clear();
            self.become_those(log, jobs)
        });
        if let Err(why) = followed {
            log.line(&format!("the configuration was not read again: {why:#}"));
        }
    }

    /// Changes the set of shards to exactly these.
    fn become_those(&mut self, log: &Log, jobs: Vec<Job<N>>) -> Result<()> {
        self.waiting.clear();
        for (name, shard) in &self.running {
            if !shard.stop.is_set() && !jobs.iter().any(|job| job.name == *name) {
                log.line(&format!("{name} is not in the configuration any more: stopping it"));
                shard.stop.stop();
            }
        }
        for job in jobs {
            match self.running.get(&job.name) {
                None => {
                    log.line(&format!("{} is new in the configuration: starting it", job.name));
                    self.start(log, job)?;
                }
                Some(shard) if job.grown || shard.stop.is_set() => {
                    if !shard.stop.is_set() {
                        log.line(&format!("{}'s device has grown: opening it again", job.name));
                    }
                    shard.stop.stop();
                    self.waiting.insert(job.name.clone(), job);
                }
                Some(_) => job.notices.iter().for_each(|notice| log.line(notice)),
            }
        }
        Ok(())
    }

    /// Stops a shard whose file system is full, until there is space.
    fn wait_for_space(&mut self, log: &Log, name: &str, why: &str) {
        let Some(shard) = self.running.get(name) else { return };
        log.line(&format!("{name}: {why}. It is opened again when there is space{OTHERS_GO_ON}"));
        shard.stop.stop();
        self.out_of_space.insert(name.to_owned(), shard.file.clone());
    }

    /// Returns the shards that ended for lack of space and now have it.
    fn with_space_again(&self) -> Vec<String> {
        let free = |file: &PathBuf| files::free(file).unwrap_or(u64::MAX);
        let has_room = |file: &Option<PathBuf>| file.as_ref().is_none_or(|f| free(f) >= ROOM);
        let ready =
            self.out_of_space.iter().filter(|(_, file)| has_room(file)).map(|(name, _)| name);
        ready.filter(|name| !self.running.contains_key(*name)).cloned().collect()
    }

    /// Starts these shards again.
    fn start_again(&mut self, log: &Log, names: &[String], jobs: Vec<Job<N>>) -> Result<()> {
        self.out_of_space.retain(|name, _| !names.contains(name));
        for job in jobs.into_iter().filter(|job| names.contains(&job.name)) {
            log.line(&format!("there is room again: opening {}", job.name));
            self.start(log, job)?;
        }
        Ok(())
    }

    /// Handles the end of a shard, and starts the job that waits for it. Returns true if the shard
    /// was asked to end.
    fn ended(&mut self, log: &Log, name: &str) -> Result<bool> {
        let Some(shard) = self.running.remove(name) else { return Ok(true) };
        if shard.thread.join().is_err() {
            bail!("{name} panicked; its message is above. Please report it");
        }
        if let Some(job) = self.waiting.remove(name) {
            log.line(&format!("starting {name} again"));
            self.start(log, job)?;
        }
        Ok(shard.stop.is_set())
    }
}

fn run_shard<N: Node + Watch>(
    job: Job<N>,
    stop: &Stop,
    report: &SyncSender<Message>,
    lost: &AtomicU64,
) {
    // Reports the end also on a panic, so that a panic of one shard ends the process.
    let mut end = End { report: report.clone(), shard: job.name.clone(), why: None };
    let shard = match bind(job.config, stop) {
        Ok(shard) => shard,
        Err(why) => return end.why = Some(why),
    };
    let (mut at, mut disk_bytes) = (Vec::new(), 0);
    let mut nodes = Vec::new();
    for (seat, make) in job.nodes.into_iter().enumerate() {
        disk_bytes = shard.disk_bytes(seat, DiskId(0)).unwrap_or(0);
        let own = Place { at: shard.addrs(seat), disk_bytes };
        let (verdicts, name) = (report.clone(), job.name.clone());
        nodes.push(Supervised::new(make(&own), move |verdict| {
            let _ = verdicts.send(Message::Verdict { shard: name.clone(), verdict });
        }));
        at.extend(own.at);
    }
    let (backend, notice) = (shard.backend(), shard.notice().map(str::to_owned));
    let _ = report.send(Message::Bound { shard: job.name, backend, at, disk_bytes, notice });
    let outcome = shard.run(nodes, stop, |_, _, note| {
        if report.try_send(Message::Note(note)).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    });
    end.why = outcome.err();
}

/// Binds a shard. Retries for a moment when an address is in use: the kernel tears down the
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

/// Writes the log, and starts and stops shards, until the process has to end.
// Long: one match over all messages.
fn follow<N: Node + Watch + 'static>(
    log: &Log,
    inbox: &Receiver<Message>,
    shards: &mut Shards<N>,
    mut reload: Option<Reload<'_, N>>,
) -> Result<()> {
    let mut notes = Notes::default();
    while !shards.running.is_empty() || !shards.out_of_space.is_empty() {
        let wait = notes.due_in().unwrap_or(Duration::from_secs(3600));
        let wait = if shards.out_of_space.is_empty() { wait } else { wait.min(ROOM_PAUSE) };
        match inbox.recv_timeout(wait) {
            Ok(Message::Bound { shard, backend, at, disk_bytes, notice }) => {
                shards.running.get_mut(&shard).into_iter().for_each(|s| s.disk_bytes = disk_bytes);
                let at: Vec<String> = at.iter().map(ToString::to_string).collect();
                log.line(&format!("{shard} listens on {}, by {backend}", at.join(", ")));
                notice.iter().for_each(|n| log.line(n));
            }
            Ok(Message::Verdict { verdict: Verdict::Say(text), .. }) => log.line(&text),
            Ok(Message::Verdict { shard, verdict: Verdict::NoSpace(why) }) if reload.is_some() => {
                shards.wait_for_space(log, &shard, &why);
            }
            Ok(Message::Verdict { shard, verdict: Verdict::End(why) | Verdict::NoSpace(why) }) => {
                if shards.running.len() < 2 {
                    bail!("{shard}: {why}");
                }
                log.line(&format!("{shard}: {why}{OTHERS_GO_ON}"));
                shards.running.get(&shard).iter().for_each(|s| s.stop.stop());
            }
            Ok(Message::Note(note)) => {
                if let Some(line) = notes.take(note) {
                    log.line(&line);
                }
            }
            Ok(Message::Signal(SIGHUP)) => {
                log.reopen();
                let runs = |name: &str| shards.running.get(name).map(|s| s.disk_bytes);
                if let Some(named) = reload.as_mut().map(|reload| reload(&runs)) {
                    shards.reread(log, named);
                }
            }
            Ok(Message::Signal(signal)) => {
                log.line(&format!("signal {signal}: stopping"));
                shards.stop_all();
            }
            Ok(Message::Ended { shard, why }) => {
                let asked = shards.ended(log, &shard)?;
                match why {
                    Some(why) if shards.running.is_empty() && shards.out_of_space.is_empty() => {
                        return Err(failed(&shard, why));
                    }
                    Some(why) => log.line(&format!("{shard}: {why}{OTHERS_GO_ON}")),
                    None if !asked => bail!("{shard} ended without being asked to"),
                    None => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                notes.sum_up().iter().for_each(|line| log.line(line));
                let ready = shards.with_space_again();
                if !ready.is_empty()
                    && let Some(reload) = reload.as_mut()
                {
                    let runs = |name: &str| shards.running.get(name).map(|s| s.disk_bytes);
                    let named = reload(&runs);
                    if let Err(why) = named.and_then(|jobs| shards.start_again(log, &ready, jobs)) {
                        log.line(&format!("shards without space were not reopened: {why:#}"));
                    }
                }
                let lost = shards.lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    log.line(&format!("{lost} further notes were dropped"));
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    notes.sum_up().iter().for_each(|line| log.line(line));
    Ok(())
}

/// The error of a process that can't start, because another one has its address or its device.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InUse(String);

fn failed(shard: &str, why: RtError) -> anyhow::Error {
    match why {
        RtError::InUse { .. } | RtError::Locked { .. } => InUse(format!("{shard}: {why}")).into(),
        why => anyhow::anyhow!("{shard}: {why}"),
    }
}

/// Checks a shard's device regularly, on a thread of its own, because a read from a failing disk
/// may take long.
fn watch_device(
    mut watch: DeviceWatch,
    shard: String,
    stop: Stop,
    report: SyncSender<Message>,
) -> Result<()> {
    thread::Builder::new().name("device-watch".into()).spawn(move || {
        let mut last = None;
        while !stop.is_set() {
            let verdict = watch.look();
            if verdict != last
                && let Some(verdict) = verdict.clone()
                && report.send(Message::Verdict { shard: shard.clone(), verdict }).is_err()
            {
                return;
            }
            last = verdict;
            thread::sleep(device_watch::EVERY);
        }
    })?;
    Ok(())
}

/// Reports SIGTERM, SIGINT and SIGHUP. The last one asks to read the configuration again.
fn watch_signals(report: SyncSender<Message>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
        .context("can't handle signals")?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if report.send(Message::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

struct Log {
    role: String,
    /// The file that standard error was when the process started, if it was one.
    file: Option<PathBuf>,
}

impl Log {
    fn new(role: &str) -> Log {
        let said = std::fs::read_link("/proc/self/fd/2").ok().filter(|path| path.is_file());
        Log { role: role.to_owned(), file: said }
    }

    /// Opens the file of the same name again. It is a new file if the former was renamed.
    fn reopen(&self) {
        let Some(file) = &self.file else { return };
        let outcome = files::log(file).and_then(|to| {
            rustix::stdio::dup2_stdout(&to)?;
            rustix::stdio::dup2_stderr(&to)?;
            Ok(())
        });
        match outcome {
            Ok(()) => self.line("the log goes on here"),
            Err(why) => self.line(&format!("{} can't be opened: {why}", file.display())),
        }
    }

    fn line(&self, text: &str) {
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        // A failed write, such as on a full disk, must not end the process.
        let _ = writeln!(std::io::stderr(), "{now} {} {text}", self.role);
    }
}

/// A pid file. It is removed when the process ends in good order. After a crash it stays, and
/// `process` tells whether the pid is still valid.
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

#[cfg(test)]
mod tests {
    use super::*;
    use node::mdm::Mdm;

    /// A process whose shards all wait for space must not end while one waits.
    #[test]
    fn a_process_that_waits_for_space_goes_on_waiting_when_its_configuration_is_unreadable() {
        let (report, _inbox) = sync_channel(BACKLOG);
        let (running, waiting) = (BTreeMap::new(), BTreeMap::new());
        let out_of_space = BTreeMap::from([("mdm".to_owned(), None)]);
        let mut shards: Shards<Mdm> =
            Shards { report, lost: Arc::default(), running, waiting, out_of_space };
        shards.reread(&Log::new("mdm"), Err(anyhow::anyhow!("no such file")));
        assert_eq!(shards.with_space_again(), ["mdm"]);
        shards.reread(&Log::new("mdm"), Ok(Vec::new()));
        assert!(shards.with_space_again().is_empty(), "it is not in the configuration any more");
    }
}
