//! Removal of devices and servers: gives the order and shows its progress.
//!
//! The MDM carries the removal out, also after this command is stopped; only `--keep` cancels it.

use crate::progress::Line;
use crate::target::Target;
use admin::exit::{Exit, coded};
use admin::report::{Device, Report};
use anyhow::Result;
use clap::Args;
use daemon::size::Size;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(200);
/// The command fails when only groups that no device serves were left for this long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Options of a removal.
#[derive(Args, Clone, Copy, Debug)]
pub struct Removal {
    /// Cancel the removal; rebalancing may move data back
    #[arg(long, conflicts_with = "detach")]
    keep: bool,
    /// Don't wait until it is done
    #[arg(long)]
    detach: bool,
}

/// The devices to remove.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// One device.
    Device(u32),
    /// All devices of a server.
    Server(&'a str),
}

impl What<'_> {
    fn is(self, server: &str, device: &Device) -> bool {
        match self {
            What::Device(id) => device.id == id,
            What::Server(name) => server == name,
        }
    }

    fn name(self) -> String {
        match self {
            What::Device(id) => format!("dev{id}"),
            What::Server(name) => name.to_owned(),
        }
    }
}

impl Removal {
    /// Gives the order and waits for its end. Returns true when everything is gone.
    pub fn run(self, target: &Target, what: What<'_>) -> Result<bool> {
        let (device, server) = match what {
            What::Device(id) => (id, ""),
            What::Server(name) => (0, name),
        };
        target.connect()?.remove(device, server, self.keep)?;
        if self.keep {
            println!("{} stays.", what.name());
            return Ok(false);
        }
        if self.detach {
            println!("{} is being emptied: `gabion status` shows the progress.", what.name());
            return Ok(false);
        }
        let line = Line::new("emptying");
        let mut stuck: Option<Instant> = None;
        loop {
            let report = target.report()?;
            let left: Vec<&Device> = devices(&report, what).collect();
            if left.is_empty() {
                return Ok(true);
            }
            if left.iter().all(|d| !d.leaving) {
                anyhow::bail!("another command cancelled the removal: {} stays", what.name());
            }
            let groups: u32 = left.iter().map(|d| d.groups).sum();
            let used: u64 = left.iter().map(|d| d.used_bytes).sum();
            let unserved: u32 = left.iter().map(|d| d.groups_unserved).sum();
            let since = stuck.take().unwrap_or_else(Instant::now);
            stuck = (groups > 0 && groups == unserved).then_some(since);
            if stuck.is_some_and(|since| since.elapsed() > PATIENCE) {
                return Err(coded(Exit::Unserved, waits(what, groups)));
            }
            line.say(&format!("{groups} groups with {} left", Size(used)));
            std::thread::sleep(POLL);
        }
    }
}

/// Explains why a removal does not go on, and what to do.
fn waits(what: What<'_>, groups: u32) -> String {
    let name = what.name();
    format!(
        "{name} can't be emptied now: {groups} of its groups have no copy that may serve. The \
         order stays, and the removal goes on when they are served again. `gabion volume damage \
         NAME` shows which data that is and which devices have it: start those. If they are gone \
         for good, `gabion volume accept-loss` gives up what only they had. To cancel the removal, \
         repeat the order with --keep"
    )
}

fn devices<'a>(report: &'a Report, what: What<'a>) -> impl Iterator<Item = &'a Device> {
    let all = report.sds.iter().flat_map(|s| s.devices.iter().map(move |d| (s, d)));
    all.filter(move |(s, d)| what.is(&s.name, d)).map(|(_, d)| d)
}
