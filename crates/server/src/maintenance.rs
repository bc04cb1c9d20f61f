//! Maintenance of a server: the order, and when it may be turned off.
//!
//! The MDM does it, whoever watches: what is stopped here goes on there, until `--end`.

use crate::bench::progress::Line;
use crate::report::{Device, Report};
use crate::size::Size;
use crate::status;
use crate::target::Target;
use anyhow::Result;
use clap::Args;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(200);

/// How it is asked for.
#[derive(Args, Clone, Copy, Debug)]
pub struct Maintenance {
    /// Move its data away first, so that two copies are there all the time
    #[arg(long)]
    protected: bool,
    /// It is over: the server takes its part again
    #[arg(long, conflicts_with_all = ["protected", "detach"])]
    end: bool,
    /// Don't wait until it may be turned off
    #[arg(long)]
    detach: bool,
}

impl Maintenance {
    /// Gives the order, and waits until the server may be turned off.
    pub fn run(self, target: &Target, server: &str) -> Result<()> {
        target.connect()?.maintain(server, self.protected, self.end)?;
        if self.end {
            println!("{server} is back at work; if it misses something, it gets that now.");
            return Ok(());
        }
        if !self.detach {
            self.wait(target, server)?;
        }
        let when =
            if self.detach { "`gabion sds list` shows when it leads nothing" } else { "now" };
        println!(
            "{server} is in maintenance. Turn it off: {when}. `gabion sds maintain {server} --end` ends \
             it."
        );
        Ok(())
    }

    fn wait(self, target: &Target, server: &str) -> Result<()> {
        let line = Line::new("preparing");
        loop {
            let report = status::ask(target)?;
            let devices: Vec<&Device> = devices(&report, server).collect();
            if devices.iter().all(|d| d.maintenance.is_none()) {
                anyhow::bail!("somebody has ended it: {server} is at work");
            }
            let left: u32 =
                devices.iter().map(|d| if self.protected { d.groups } else { d.groups_led }).sum();
            if left == 0 {
                return Ok(());
            }
            let used: u64 = devices.iter().map(|d| d.used_bytes).sum();
            line.say(&match self.protected {
                true => format!("{left} groups with {} still have to move", Size(used)),
                false => format!("it still leads {left} groups"),
            });
            std::thread::sleep(POLL);
        }
    }
}

fn devices<'a>(report: &'a Report, server: &'a str) -> impl Iterator<Item = &'a Device> {
    let mine = report.sds.iter().filter(move |s| s.name == server);
    mine.flat_map(|s| s.devices.iter())
}
