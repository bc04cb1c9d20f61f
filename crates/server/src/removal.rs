//! Removal of devices and servers: the order, and how far it is.
//!
//! The MDM does it, whoever watches: what is stopped here goes on there, until it is taken back.

use crate::bench::progress::Line;
use crate::exit::{Exit, coded};
use crate::report::{Device, Report};
use crate::size::Size;
use crate::status;
use crate::target::Target;
use anyhow::Result;
use clap::Args;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(200);
/// When nothing but what nobody serves is left for so long, that is said.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a removal is asked for.
#[derive(Args, Clone, Copy, Debug)]
pub struct Removal {
    /// Take the order back: what has moved away comes back as it fits
    #[arg(long, conflicts_with = "detach")]
    keep: bool,
    /// Don't wait for its end
    #[arg(long)]
    detach: bool,
}

/// What is to go.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// One device.
    Device(u32),
    /// All of a server's.
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
    /// Gives the order, and follows it; true when all is gone.
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
            println!("{} empties itself: `gabion status` shows how far it is.", what.name());
            return Ok(false);
        }
        let line = Line::new("emptying");
        let mut stuck: Option<Instant> = None;
        loop {
            let report = status::ask(target)?;
            let left: Vec<&Device> = devices(&report, what).collect();
            if left.is_empty() {
                return Ok(true);
            }
            if left.iter().all(|d| !d.leaving) {
                anyhow::bail!("somebody has taken the order back: {} stays", what.name());
            }
            let groups: u32 = left.iter().map(|d| d.groups).sum();
            let used: u64 = left.iter().map(|d| d.used_bytes).sum();
            let unserved: u32 = left.iter().map(|d| d.groups_unserved).sum();
            let since = stuck.take().unwrap_or_else(Instant::now);
            stuck = (groups > 0 && groups == unserved).then_some(since);
            if stuck.is_some_and(|since| since.elapsed() > PATIENCE) {
                return Err(coded(Exit::Lost, waits(what, groups)));
            }
            line.say(&format!("{groups} groups with {} left", Size(used)));
            std::thread::sleep(POLL);
        }
    }
}

/// Why a removal does not go on, and what to do.
fn waits(what: What<'_>, groups: u32) -> String {
    let name = what.name();
    format!(
        "{name} can't be emptied now: {groups} of its groups have no copy that may serve. The order stays, and goes on by \
         itself when they are served again. `gabion volume damage NAME` shows which data that is and which devices have \
         it: start those. If they are gone for good, `gabion volume accept-loss` gives up what only they had. To take \
         the order back, give it again with --keep"
    )
}

fn devices<'a>(report: &'a Report, what: What<'a>) -> impl Iterator<Item = &'a Device> {
    let all = report.sds.iter().flat_map(|s| s.devices.iter().map(move |d| (s, d)));
    all.filter(move |(s, d)| what.is(&s.name, d)).map(|(_, d)| d)
}
