//! The processes of a cluster that `up` runs on this machine: started, found, killed one by one.
//!
//! Each is this very binary with `ROLE run --config FILE`, in a process group of its own, so that a
//! Ctrl-C at the terminal reaches `up` only. Names: `mdm`, `sdc`, `sds1` to `sdsN`.

use crate::process::Process;
use crate::statedir::StateDir;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to stop when asked.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The subcommand that runs this process.
fn role(name: &str) -> &str {
    if name.starts_with("sds") { "sds" } else { name }
}

/// Starts a process; returns once it runs, not yet when it serves.
pub fn spawn(dir: &StateDir, name: &str) -> Result<Child> {
    let (config, output) = (dir.config_file(name), dir.output_file(name));
    let log = File::options()
        .create(true)
        .append(true)
        .open(&output)
        .with_context(|| format!("can't write {}", output.display()))?;
    let binary = std::env::current_exe().context("this binary can't be found")?;
    Command::new(binary)
        .args([role(name), "run", "--config"])
        .arg(&config)
        .current_dir(dir.root())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("can't start {name}"))
}

/// Stops processes: asks, waits, kills. Returns those that had to be killed.
pub fn stop(processes: &[(String, Process)]) -> Result<Vec<String>> {
    for (_, process) in processes {
        process.signal(Signal::TERM)?;
        // A stopped process (SIGSTOP) would sleep on.
        process.signal(Signal::CONT)?;
    }
    let deadline = Instant::now() + STOP_TIMEOUT;
    let mut killed = Vec::new();
    for (name, process) in processes {
        if !process.wait_gone(deadline.saturating_duration_since(Instant::now())) {
            process.signal(Signal::KILL)?;
            process.wait_gone(STOP_TIMEOUT);
            killed.push(name.clone());
        }
    }
    Ok(killed)
}

/// Forgets pid files and the socket of processes that are gone.
pub fn sweep(dir: &StateDir) -> Result<()> {
    for name in dir.recorded()? {
        if dir.process(&name).is_none() {
            remove(&dir.pid_file(&name))?;
        }
    }
    remove(&dir.nbd_socket())
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("can't remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// The last lines that a process said, for an error message.
pub fn last_words(dir: &StateDir, name: &str) -> String {
    let file = dir.output_file(name);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(5)..];
    format!("{}:\n  {}", file.display(), tail.join("\n  "))
}

/// The name of the data server that a person calls `2` or `sds2`.
pub fn sds_name(dir: &StateDir, which: &str) -> Result<String> {
    let name = if which.parse::<u32>().is_ok() { format!("sds{which}") } else { which.to_owned() };
    if role(&name) != "sds" || !dir.config_file(&name).exists() {
        bail!("no SDS is called {which} in {}: `gabion sds list` names them", dir.root().display());
    }
    Ok(name)
}

/// Kills a process as a power cut would: SIGKILL, without a word.
pub fn kill(dir: &StateDir, name: &str) -> Result<u32> {
    let _lock = dir.lock()?;
    let Some(process) = dir.process(name) else { bail!("{name} does not run") };
    process.signal(Signal::KILL)?;
    if !process.wait_gone(STOP_TIMEOUT) {
        bail!("{name} (pid {}) did not end within {STOP_TIMEOUT:?}", process.pid);
    }
    Ok(process.pid)
}

/// Starts a process of the cluster that does not run now; `ready` says when it serves.
pub fn start(
    dir: &StateDir,
    name: &str,
    timeout: Duration,
    mut ready: impl FnMut() -> bool,
) -> Result<u32> {
    let _lock = dir.lock()?;
    if let Some(process) = dir.process(name) {
        bail!("{name} runs already, pid {}", process.pid);
    }
    if !dir.config_file(name).exists() {
        bail!("no cluster was started in {}: `gabion up` does", dir.root().display());
    }
    let mut child = spawn(dir, name)?;
    let deadline = Instant::now() + timeout;
    while !ready() {
        if let Some(status) = child.try_wait()? {
            bail!("{name} ended ({status}). {}", last_words(dir, name));
        }
        if Instant::now() > deadline {
            bail!("{name} runs, but does not serve after {timeout:?}. {}", last_words(dir, name));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(child.id())
}
