//! Gabion's own cost: a cluster of NULL devices in separate processes, and one loading SDC here.

use super::IoArgs;
use super::load::{Load, Loader, Progress};
use super::measure::{Figures, measure};
use crate::target::mdm_of;
use crate::{cluster, statedir::StateDir};
use anyhow::{Context, Result, bail};
use base::Limits;
use node::sdc::{Sdc, SdcConfig};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const VOLUME: &str = "bench";
const FILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster in a temporary directory, gone with this value.
struct Bench(PathBuf);

impl Drop for Bench {
    fn drop(&mut self) {
        if let Ok(dir) = StateDir::open(&self.0)
            && let Ok(live) = dir.live()
        {
            let _ = cluster::stop(&live);
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts the cluster, loads it, measures.
pub fn run(args: &IoArgs) -> Result<Figures> {
    let path = std::env::temp_dir().join(format!("gabion-bench-{}", std::process::id()));
    let bench = Bench(path.clone());
    let up = Command::new(std::env::current_exe()?)
        .args(["up", "--detach", "--device", "null:1TiB", "--volume", "bench:512MiB"])
        .args(["--sds", &args.common.servers.to_string()])
        .args(["--backend", &args.backend.to_string(), "--dir"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    if !up.success() {
        bail!("the cluster did not start");
    }
    let dir = StateDir::open(&path)?;
    let mut pids: Vec<u32> = dir.live()?.iter().map(|(_, process)| process.pid).collect();
    pids.push(std::process::id());
    let progress = Arc::new(Progress::default());
    let stop = rt::Stop::new();
    let shard = rt::Shard::bind(rt::Config {
        backend: args.backend,
        seed: crate::random()?,
        ..rt::Config::default()
    })?;
    let config = SdcConfig {
        name: "bench".into(),
        mdm: vec![mdm_of(&dir)?],
        nbd_uris: Vec::new(),
        nonce: crate::random()?,
        pid: std::process::id(),
        limits: Limits::SHIPPED,
    };
    let load = Load {
        volume: VOLUME.into(),
        pattern: args.common.pattern,
        block: u32::try_from(args.common.block.0).context("a block has less than 4 GiB")?,
        depth: args.common.depth,
    };
    let (tell, halt, seed) = (progress.clone(), stop.clone(), crate::random()?);
    let thread = std::thread::spawn(move || {
        let loader = Loader::new(Sdc::new(config), load, tell, seed);
        shard.run(vec![loader], &halt, |_, _, _| {})
    });
    let figures = wait_filled(&progress, &thread)
        .and_then(|()| measure(&progress.counters, &pids, args.common.window()));
    stop.stop();
    match thread.join() {
        Ok(outcome) => outcome?,
        Err(_) => bail!("the load panicked; its message is above"),
    }
    drop(bench);
    figures
}

fn wait_filled<T>(progress: &Progress, thread: &std::thread::JoinHandle<T>) -> Result<()> {
    let deadline = Instant::now() + FILL_TIMEOUT;
    while !progress.filled.load(Ordering::Relaxed) {
        if thread.is_finished() || Instant::now() > deadline {
            bail!("the volume could not be filled within {FILL_TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
