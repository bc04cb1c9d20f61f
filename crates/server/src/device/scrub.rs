//! `gabion device scrub`: begins a pass, and follows it to its end.

use crate::bench::progress::Line;
use crate::exit::{Exit, coded};
use crate::report::{Device, Report, Scrub};
use crate::size::Size;
use crate::status;
use crate::target::Target;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(200);

/// Runs it; `id` names one device.
pub fn run(target: &Target, id: Option<u32>, detach: bool) -> Result<Exit> {
    let before = passes(&status::ask(target)?, id);
    if before.is_empty() {
        bail!("nothing to scrub: RAM and NULL devices have no checksums (`gabion device list`)");
    }
    target.connect()?.scrub(id)?;
    if detach {
        println!("Scrubbing: `gabion device list --json` shows how it goes.");
        return Ok(Exit::Ok);
    }
    let line = Line::new("scrubbing");
    let report = loop {
        let report = status::ask(target)?;
        let all = || scrubbed(&report, id);
        let (done, held) =
            all().fold((0, 0), |(done, held), (_, s)| (done + s.done_bytes, held + s.held_bytes));
        let percent = done * 100 / held.max(1);
        line.say(&format!("{percent:3} %, {} of {}", Size(done), Size(held)));
        // A device that went down meanwhile is not waited for.
        if all().all(|(d, s)| before.get(&d.id).is_none_or(|passes| s.passes > *passes)) {
            break report;
        }
        std::thread::sleep(POLL);
    };
    drop(line);
    tell(&report, id)
}

fn tell(report: &Report, id: Option<u32>) -> Result<Exit> {
    let sum = |of: fn(&Scrub) -> u64| scrubbed(report, id).map(|(_, s)| of(s)).sum::<u64>();
    let (done, damaged) = (sum(|s| s.done_bytes), sum(|s| s.damaged_bytes));
    let (repaired, lost) = (sum(|s| s.repaired_bytes), sum(|s| s.unrepairable_bytes));
    println!(
        "Read {} on {} devices: {} damaged since their servers started, {} repaired.",
        Size(done),
        scrubbed(report, id).count(),
        Size(damaged),
        Size(repaired)
    );
    if lost > 0 {
        let text = format!("{} are damaged, and no other good copy was there", Size(lost));
        return Err(coded(Exit::Failed, text));
    }
    Ok(Exit::Ok)
}

/// The devices that are up and are scrubbed.
fn scrubbed(report: &Report, id: Option<u32>) -> impl Iterator<Item = (&Device, &Scrub)> {
    let devices = report.sds.iter().flat_map(|s| &s.devices);
    let asked = devices.filter(move |d| id.is_none_or(|id| d.id == id));
    let up = asked.filter(|d| d.state == crate::report::UpDown::Up);
    up.filter_map(|d| Some((d, d.scrub.as_ref()?)))
}

/// How many passes each of them has behind it.
fn passes(report: &Report, id: Option<u32>) -> BTreeMap<u32, u64> {
    scrubbed(report, id).map(|(d, s)| (d.id, s.passes)).collect()
}
