//! Starts the process that serves a volume, or that keeps its device connected.

use crate::record::Place;
use anyhow::{Context, Result, bail};
use daemon::files;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the process may take until it serves the volume.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts this program with these arguments, and `--pid-file`. Returns when its pid file exists and
/// `ready` is true.
pub(crate) fn start(place: &Place, args: &[&str], ready: impl Fn() -> bool) -> Result<()> {
    let log = files::log(&place.log()).context("can't make a log")?;
    let mut command = Command::new(std::env::current_exe().context("this binary can't be found")?);
    command.args(args).arg("--pid-file").arg(place.pid_file());
    command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = command.process_group(0).spawn();
    let mut child = child.with_context(|| format!("can't start `gabion {}`", args[0]))?;
    match wait(place, &mut child, ready) {
        Ok(()) => Ok(()),
        Err(error) => {
            // An error means that the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn wait(place: &Place, child: &mut Child, ready: impl Fn() -> bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while place.process().is_none() || !ready() {
        if child.try_wait().context("the serving process")?.is_some() {
            let log = fs::read_to_string(place.log()).unwrap_or_default();
            let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            bail!("{}", last.strip_prefix("error: ").unwrap_or(last));
        }
        if Instant::now() > until {
            bail!(
                "{} was not served within {PATIENCE:?}: `gabion status` shows the cluster's state",
                place.name
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
