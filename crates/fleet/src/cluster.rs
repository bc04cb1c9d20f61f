//! The processes of a cluster that `up` runs on this machine: starts, finds, stops and kills them.
//!
//! Each process is this very binary with `ROLE run --config FILE`, in a process group of its own,
//! so that a Ctrl-C at the terminal reaches only `up`. Names: `mdm`, `mdm2` to `mdmN`, `sdc`,
//! `sds1` to `sdsN`. Several SDSs may share a process (`cluster.toml` says how many): each has its
//! own configuration and pid file, but they start and end together, and share the log of the first.

use crate::statedir::StateDir;
use admin::report::{Device, Report, UpDown};
use anyhow::{Context, Result, bail};
use daemon::config::{self, SdsConfig};
use daemon::files;
use daemon::process::Process;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time that a process gets to stop on SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a process that was just killed may still exist.
pub const DYING: Duration = Duration::from_millis(500);

/// Returns the subcommand that runs this process.
fn role(name: &str) -> &str {
    ["sds", "mdm"].into_iter().find(|role| name.starts_with(role)).unwrap_or(name)
}

/// The part of `cluster.toml` that commands other than `up` need.
#[derive(serde::Deserialize)]
struct Shape {
    sds: u32,
    #[serde(default = "one")]
    sds_per_process: u32,
}

fn one() -> u32 {
    1
}

/// Returns the SDSs that share the process of `name`, itself included, in order.
pub fn sharing_process(dir: &StateDir, name: &str) -> Result<Vec<String>> {
    let number = name.strip_prefix("sds").and_then(|n| n.parse::<u32>().ok());
    let Some(index) = number.and_then(|n| n.checked_sub(1)) else {
        return Ok(vec![name.to_owned()]);
    };
    let shape: Shape = config::read(&dir.cluster_file())?;
    let size = shape.sds_per_process.max(1);
    let first = index / size * size;
    Ok((first..first.saturating_add(size).min(shape.sds)).map(sds).collect())
}

/// The largest number of MDMs that `up` runs.
pub const MAX_MDMS: u32 = 5;

/// Returns the name of the MDM with this index.
pub fn mdm(index: u32) -> String {
    if index == 0 { "mdm".to_owned() } else { format!("mdm{}", index + 1) }
}

/// Returns the name of the SDS with this index.
pub fn sds(index: u32) -> String {
    format!("sds{}", index + 1)
}

/// Starts the process of `name` and of the SDSs that share it. Does not wait until they serve.
pub fn spawn(dir: &StateDir, name: &str) -> Result<Child> {
    let names = sharing_process(dir, name)?;
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

/// Stops processes with SIGTERM. Kills those that don't end in time, and returns their names.
///
/// MDMs end first. They would declare a server that ends before them dead, and take its copies for
/// out of date.
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
        // A process stopped by SIGSTOP would not act on SIGTERM.
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

/// Removes the pid files and the socket of processes that are gone.
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

/// Lists the devices, such as `sds2.0`, that the MDM does not know in their present process, or
/// that have sent no heartbeat yet. `but` names servers that have ended, which are left out.
pub fn unregistered(dir: &StateDir, report: &Report, but: &[String]) -> Result<Vec<String>> {
    let shape: Shape = config::read(&dir.cluster_file())?;
    let ended: Vec<_> = but.iter().map(|name| sharing_process(dir, name)).collect::<Result<_>>()?;
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

/// Clears `replace` in a server's configuration once its devices are replaced, so that an empty
/// device in their place is refused again.
pub fn forget_replaced(file: &Path) -> Result<()> {
    let mut config: SdsConfig = config::read(file)?;
    if config.device.iter().all(|device| !device.replace) {
        return Ok(());
    }
    config.device.iter_mut().for_each(|device| device.replace = false);
    config::write(file, &config)
}

/// Returns the last five lines of a process's log, for an error message.
pub fn last_words(dir: &StateDir, name: &str) -> String {
    let file = dir.output_file(name);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(5)..];
    format!("{}:\n  {}", file.display(), tail.join("\n  "))
}

/// Returns the name of the data server that the user calls `2` or `sds2`.
pub fn sds_name(dir: &StateDir, which: &str) -> Result<String> {
    let name = if which.parse::<u32>().is_ok() { format!("sds{which}") } else { which.to_owned() };
    if role(&name) != "sds" || !dir.config_file(&name).exists() {
        bail!("no SDS is called {which} in {}: `gabion sds list` names them", dir.root().display());
    }
    Ok(name)
}

/// Returns the name of the MDM that the user calls `2` or `mdm2`; by default, the first one.
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

/// Kills a process with SIGKILL, so that it ends as abruptly as in a power cut.
pub fn kill(dir: &StateDir, name: &str) -> Result<u32> {
    let _lock = dir.lock()?;
    let Some(process) = dir.process(name) else { bail!("{name} does not run") };
    process.signal(Signal::KILL)?;
    if !process.wait_gone(STOP_TIMEOUT) {
        bail!("{name} (pid {}) did not end within {STOP_TIMEOUT:?}", process.pid);
    }
    Ok(process.pid)
}

/// Starts a process of the cluster that is not running. Waits until `ready` returns true.
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
