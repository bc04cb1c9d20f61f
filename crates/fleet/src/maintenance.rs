//! Maintenance of a server: gives the order and waits until the server may be turned off.
//!
//! The MDM carries it out. Stopping this command does not end the maintenance; `--end` does.

use crate::progress::Line;
use crate::target::Target;
use admin::report::{Device, Report};
use anyhow::Result;
use clap::Args;
use daemon::size::Size;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(200);

/// Options of maintenance.
#[derive(Args, Clone, Copy, Debug)]
pub struct Maintenance {
    /// Move its data away first, so that there are two copies all the time
    #[arg(long)]
    protected: bool,
    /// End the maintenance: the server serves its share again
    #[arg(long, conflicts_with_all = ["protected", "detach"])]
    end: bool,
    /// Don't wait until it may be turned off
    #[arg(long)]
    detach: bool,
}

impl Maintenance {
    /// Gives the order and waits until the server may be turned off.
    pub fn run(self, target: &Target, server: &str) -> Result<()> {
        target.connect()?.maintain(server, self.protected, self.end)?;
        if self.end {
            println!("{server} is back at work; it now gets the writes that it missed, if any.");
            return Ok(());
        }
        if !self.detach {
            self.wait(target, server)?;
        }
        let when =
            if self.detach { "`gabion sds list` shows when it leads nothing" } else { "now" };
        println!(
            "{server} is in maintenance. Turn it off: {when}. `gabion sds maintain {server} --end` \
             ends the maintenance."
        );
        Ok(())
    }

    fn wait(self, target: &Target, server: &str) -> Result<()> {
        let line = Line::new("preparing");
        loop {
            let report = target.report()?;
            let devices: Vec<&Device> = devices(&report, server).collect();
            if devices.iter().all(|d| d.maintenance.is_none()) {
                anyhow::bail!("another command has ended the maintenance: {server} is at work");
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
