//! A cluster that a test owns: started with `gabion up --detach`, removed when the test ends.

use crate::folder::Folder;
use crate::nbd::Nbd;
use crate::run::{Ran, gabion};
use crate::{secs, wait};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options for starting a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of data servers.
    pub sds: u32,
    /// The device of each server.
    pub device: &'static str,
    /// Volumes.
    pub volumes: &'static [&'static str],
    /// Further arguments of `up`.
    pub more: &'static [&'static str],
}

impl Default for Options {
    fn default() -> Options {
        Options { sds: 3, device: "ram:1GiB", volumes: &["vol1:512MiB"], more: &[] }
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The output of `up`.
    pub printed: String,
    /// Folder for the test's own files.
    pub folder: Folder,
    dir: PathBuf,
}

impl Cluster {
    /// Starts a cluster. Returns when it serves.
    pub fn start(options: &Options) -> Result<Cluster> {
        Cluster::start_in(Folder::new()?, options)
    }

    /// Starts a cluster in the subfolder `c` of this folder.
    pub fn start_in(folder: Folder, options: &Options) -> Result<Cluster> {
        let dir = folder.join("c");
        let mut cluster = Cluster { printed: String::new(), folder, dir };
        let (dir, sds) = (cluster.dir().to_owned(), options.sds.to_string());
        let mut args = vec!["up", "--detach", "--dir", &dir, "--sds", &sds];
        if !options.more.contains(&"--quarantine") {
            args.extend(["--quarantine", "0"]); // tests kill more often than real faults do
        }
        args.extend(["--device", options.device]);
        args.extend(options.volumes.iter().flat_map(|v| ["--volume", v]));
        args.extend(options.more);
        cluster.printed = gabion(args)?.ok()?;
        Ok(cluster)
    }

    /// Starts it again after a crash, with the same command without options.
    pub fn start_again(&self) -> Result<()> {
        self.gabion(&["up", "--detach"])?.ok().map(drop)
    }

    /// Kills all processes at the same moment.
    pub fn kill_all(&self) -> Result<()> {
        kill_and_wait(&self.running())
    }

    /// Returns the path of a file in the cluster's directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the cluster's directory.
    pub fn dir(&self) -> &str {
        self.dir.to_str().expect("a temporary path is text")
    }

    /// Runs `gabion ARGS --dir DIR`.
    pub fn gabion(&self, args: &[&str]) -> Result<Ran> {
        gabion(args.iter().copied().chain(["--dir", self.dir()]))
    }

    /// Does the same with the arguments in one string, separated by spaces.
    pub fn say(&self, line: &str) -> Result<Ran> {
        self.gabion(&line.split(' ').collect::<Vec<_>>())
    }

    /// Returns the output of `status --json` in any state.
    pub fn status(&self) -> Result<Value> {
        let ran = self.gabion(&["status", "--json"])?;
        if ![0, 3, 4].contains(&ran.code) {
            bail!("status ended with {}: {}", ran.code, ran.stderr);
        }
        serde_json::from_str(&ran.stdout).context("status --json is JSON")
    }

    /// Returns a number of the status by its JSON pointer, such as `/resync/moved_bytes`.
    pub fn number(&self, pointer: &str) -> Result<u64> {
        let status = self.status()?;
        let value = status.pointer(pointer).and_then(Value::as_u64);
        value.with_context(|| format!("{pointer} is a number in {status:#}"))
    }

    /// Waits until the status has this state and nothing is left to copy.
    pub fn wait_state(&self, state: &str, limit: Duration) -> Result<Value> {
        wait(&format!("the cluster is {state}"), limit, || {
            let status = self.status()?;
            let there = status["state"] == state;
            if !there {
                bail!("{status:#}");
            }
            Ok(Some(status))
        })
    }

    /// Returns the socket that volumes are served at.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    /// Returns a volume's URI in the form of the documentation.
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket().display())
    }

    /// Connects to a volume.
    pub fn nbd(&self, volume: &str) -> Result<Nbd> {
        Nbd::connect(&self.socket(), volume)
    }

    /// Returns the recorded pid of `mdm`, `sdc` or `sdsN`.
    pub fn pid(&self, name: &str) -> Result<u32> {
        pid_in(&self.dir.join("run").join(format!("{name}.pid")))
    }

    /// Kills a process without the help of `gabion`, as a power cut would. Returns when it is gone.
    pub fn kill(&self, name: &str) -> Result<()> {
        kill_and_wait(&[self.pid(name)?])
    }

    /// Stops a process with SIGSTOP.
    pub fn freeze(&self, name: &str) -> Result<()> {
        signal(self.pid(name)?, Signal::STOP)
    }

    /// Lets a stopped process continue.
    pub fn thaw(&self, name: &str) -> Result<()> {
        signal(self.pid(name)?, Signal::CONT)
    }

    /// Starts a killed SDS again.
    pub fn start_sds(&self, n: u32) -> Result<()> {
        self.gabion(&["sds", "start", &n.to_string()])?.ok().map(drop)
    }

    /// Waits until the MDM has noticed that a server is down.
    pub fn wait_down(&self, name: &str) -> Result<()> {
        wait(&format!("{name} is down"), secs(10), || {
            let status = self.status()?;
            let mut sds = status["sds"].as_array().context("sds is a list")?.iter();
            Ok(sds.any(|s| s["name"] == name && s["state"] == "down").then_some(()))
        })
    }

    /// Waits until a server that was ordered to leave is removed from the cluster.
    pub fn wait_removed(&self, name: &str) -> Result<()> {
        wait(&format!("{name} is removed"), secs(20), || {
            let status = self.status()?;
            let mut sds = status["sds"].as_array().context("sds is a list")?.iter();
            Ok(sds.all(|s| s["name"] != name).then_some(()))
        })
    }

    /// Returns the pids of all recorded processes that run.
    pub fn running(&self) -> Vec<u32> {
        recorded(&self.dir).into_iter().filter(|pid| is_running(*pid)).collect()
    }

    /// Returns the file of a server's first device.
    pub fn device(&self, n: impl std::fmt::Display) -> PathBuf {
        self.file(&format!("devices/sds{n}.0"))
    }

    /// Stops the cluster, and checks the first device of each of its `servers` for consistency.
    pub fn stop_and_inspect(&self, servers: u32) -> Result<()> {
        self.gabion(&["down"])?.ok()?;
        for n in 1..=servers {
            gabion(["inspect", self.device(n).to_str().context("text")?, "verify"])?.ok()?;
        }
        Ok(())
    }

    /// Writes content to the start of a volume.
    pub fn fill(&self, volume: &str, content: &[u8]) -> Result<()> {
        self.nbd(volume)?.fill(content)
    }

    /// Reads a whole volume and compares it with the expected content.
    pub fn verify(&self, volume: &str, content: &[u8]) -> Result<()> {
        self.nbd(volume)?.verify(content).with_context(|| volume.to_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let pids = recorded(&self.dir);
        let _ = self.gabion(&["down"]);
        // Kills every process that `down` missed. Another test checks that it misses none.
        for pid in pids.into_iter().filter(|pid| is_running(*pid)) {
            let _ = signal(pid, Signal::KILL);
        }
    }
}

/// Sends a signal.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(pid as i32).context("a pid")?;
    kill_process(pid, signal).with_context(|| format!("can't signal {pid:?}"))
}

fn kill_and_wait(pids: &[u32]) -> Result<()> {
    for pid in pids {
        signal(*pid, Signal::KILL)?;
    }
    wait("what was killed is gone", secs(10), || {
        Ok((!pids.iter().any(|pid| is_running(*pid))).then_some(()))
    })
}

/// Returns true while the process exists and is not a zombie.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn pid_in(file: &Path) -> Result<u32> {
    let text = fs::read_to_string(file).with_context(|| format!("no {}", file.display()))?;
    let pid = text.split_whitespace().next().context("a pid file is not empty")?;
    Ok(pid.parse()?)
}

fn recorded(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir.join("run")) else { return Vec::new() };
    entries.filter_map(|e| pid_in(&e.ok()?.path()).ok()).collect()
}
