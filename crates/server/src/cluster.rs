//! The processes of a cluster that `up` runs on this machine: started, found, killed one by one.
//!
//! Each is this very binary with `ROLE run --config FILE`, in a process group of its own, so that a
//! Ctrl-C at the terminal reaches `up` only. Names: `mdm`, `mdm2` to `mdmN`, `sdc`, `sds1` to `sdsN`. Several SDSs may
//! share a process (`cluster.toml` says how many): each has its own file and pid file, but they start
//! and end together, and the log is the first one's.

use crate::config::{self, SdsConfig};
use crate::files;
use crate::process::Process;
use crate::report::{Device, Report, UpDown};
use crate::statedir::StateDir;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to stop when asked.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one that was killed a moment ago may still be there.
pub const DYING: Duration = Duration::from_millis(500);

/// The subcommand that runs this process.
fn role(name: &str) -> &str {
    ["sds", "mdm"].into_iter().find(|role| name.starts_with(role)).unwrap_or(name)
}

/// What a command must know of `cluster.toml`.
#[derive(serde::Deserialize)]
struct Shape {
    sds: u32,
    #[serde(default = "one")]
    sds_per_process: u32,
}

fn one() -> u32 {
    1
}

/// Those that share the process of `name`, in order, and `name` itself.
pub fn mates(dir: &StateDir, name: &str) -> Result<Vec<String>> {
    let number = name.strip_prefix("sds").and_then(|n| n.parse::<u32>().ok());
    let Some(index) = number.and_then(|n| n.checked_sub(1)) else {
        return Ok(vec![name.to_owned()]);
    };
    let shape: Shape = config::read(&dir.cluster_file())?;
    let size = shape.sds_per_process.max(1);
    let first = index / size * size;
    Ok((first..first.saturating_add(size).min(shape.sds)).map(sds).collect())
}

/// `up` runs at most so many MDMs.
pub const MAX_MDMS: u32 = 5;

/// The name of the MDM with this index.
pub fn mdm(index: u32) -> String {
    if index == 0 { "mdm".to_owned() } else { format!("mdm{}", index + 1) }
}

/// The name of the SDS with this index.
pub fn sds(index: u32) -> String {
    format!("sds{}", index + 1)
}

/// Starts the process of `name` and its mates; returns once it runs, not yet when they serve.
pub fn spawn(dir: &StateDir, name: &str) -> Result<Child> {
    let names = mates(dir, name)?;
    let output = dir.output_file(&names[0]);
    let log = files::log(&output).with_context(|| format!("can't write {}", output.display()))?;
    let binary = std::env::current_exe().context("this binary can't be found")?;
    for other in &names[1..] {
        let link = dir.output_file(other);
        remove(&link)?;
        let to = output.file_name().context("a log has a name")?;
        symlink(to, &link).with_context(|| format!("can't make {}", link.display()))?;
    }
    let mut command = Command::new(binary);
    command.args([role(name), "run"]);
    for name in &names {
        command.arg("--config").arg(dir.config_file(name));
    }
    command
        .current_dir(dir.root())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("can't start {name}"))
}

/// Stops processes: asks, waits, kills. Returns those that had to be killed. MDMs end first: a server that ends before
/// them would count as dead, and its copies as out of date.
pub fn stop(processes: &[(String, Process)]) -> Result<Vec<String>> {
    let all = processes.iter();
    let (mdms, others): (Vec<_>, Vec<_>) = all.partition(|(name, _)| name.starts_with("mdm"));
    let mut killed = end(&mdms)?;
    killed.extend(end(&others)?);
    Ok(killed)
}

fn end(processes: &[&(String, Process)]) -> Result<Vec<String>> {
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

/// The devices, as in `sds2.0`, of the directory's servers that the MDM doesn't know in their present process, or that
/// have not told yet what they hold; `but` those
/// of servers that have ended.
pub fn unregistered(dir: &StateDir, report: &Report, but: &[String]) -> Result<Vec<String>> {
    let shape: Shape = config::read(&dir.cluster_file())?;
    let ended: Vec<_> = but.iter().map(|name| mates(dir, name)).collect::<Result<_>>()?;
    let ended = ended.concat();
    let mut list = Vec::new();
    for name in (0..shape.sds).map(sds).filter(|name| !ended.contains(name)) {
        let config: SdsConfig = config::read(&dir.config_file(&name))?;
        let process = dir.process(&name).map(|p| p.pid);
        let up = |shard| {
            report.sds.iter().any(|s| {
                let device = |d: &Device| d.shard == shard && d.state == UpDown::Up && d.told;
                s.process_name == name && Some(s.pid) == process && s.devices.iter().any(device)
            })
        };
        let down = config.shards().filter(|(shard, _)| !up(*shard));
        list.extend(down.map(|(shard, _)| format!("{name}.{shard}")));
    }
    Ok(list)
}

/// What a server's devices were to replace is replaced: from now on an empty device in their place is refused again.
pub fn forget_replaced(file: &Path) -> Result<()> {
    let mut config: SdsConfig = config::read(file)?;
    if config.device.iter().all(|device| !device.replace) {
        return Ok(());
    }
    config.device.iter_mut().for_each(|device| device.replace = false);
    config::write(file, &config)
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

/// The name of the MDM that a person calls `2` or `mdm2`; nothing: the first one.
pub fn mdm_name(dir: &StateDir, which: Option<&str>) -> Result<String> {
    let which = which.unwrap_or("1");
    let name = match which.parse::<u32>() {
        Ok(number) => mdm(number.saturating_sub(1)),
        Err(_) => which.to_owned(),
    };
    if role(&name) != "mdm" || !dir.config_file(&name).exists() {
        bail!("no MDM is called {which} in {}: `gabion mdm list` names them", dir.root().display());
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
    if let Some(process) = dir.process(name).filter(|process| !process.wait_gone(DYING)) {
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
