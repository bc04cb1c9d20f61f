//! `gabion device scrub`: starts a pass, and waits for its end.

use crate::progress::Line;
use crate::target::Target;
use admin::exit::Exit;
use admin::report::{Device, Report, Scrub, UpDown};
use anyhow::{Result, bail};
use daemon::size::Size;
use std::collections::BTreeMap;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(200);

/// Runs `gabion device scrub`, for one device or for all.
pub fn run(target: &Target, id: Option<u32>, detach: bool) -> Result<Exit> {
    let before = lives(&target.report()?, id);
    if before.is_empty() {
        bail!("nothing to scrub: RAM and NULL devices have no checksums (`gabion device list`)");
    }
    target.connect()?.scrub(id)?;
    if detach {
        println!("Scrubbing: `gabion device list --json` shows the progress.");
        return Ok(Exit::Ok);
    }
    let line = Line::new("scrubbing");
    let (report, left) = loop {
        let report = target.report()?;
        let known = || scrubbed(&report, id).filter(|(_, s)| s.begun >= s.asked);
        let (done, held) =
            known().fold((0, 0), |(done, held), (_, s)| (done + s.done_bytes, held + s.held_bytes));
        let percent = done * 100 / held.max(1);
        line.say(&format!("{percent:3} %, {} of {}", Size(done), Size(held)));
        let now = lives(&report, id);
        // A device that went down, or whose process was restarted, is not waited for.
        let left: Vec<u32> = before
            .iter()
            .filter(|(id, life)| now.get(id) != Some(life))
            .map(|(id, _)| *id)
            .collect();
        let ended: Vec<u32> = known().filter(|(_, s)| !s.running).map(|(d, _)| d.id).collect();
        if before.keys().all(|id| left.contains(id) || ended.contains(id)) {
            break (report, left);
        }
        std::thread::sleep(POLL);
    };
    drop(line);
    tell(&report, id, &left)
}

fn tell(report: &Report, id: Option<u32>, left: &[u32]) -> Result<Exit> {
    let sum = |of: fn(&Scrub) -> u64| scrubbed(report, id).map(|(_, s)| of(s)).sum::<u64>();
    let (done, damaged) = (sum(|s| s.done_bytes), sum(|s| s.damaged_bytes));
    let (repaired, lost) = (sum(|s| s.repaired_bytes), sum(|s| s.unrepairable_bytes));
    println!(
        "Read {} on {} devices: {} damaged, {} repaired.",
        Size(done),
        scrubbed(report, id).count(),
        Size(damaged),
        Size(repaired)
    );
    if lost > 0 {
        bail!(
            "{} stay damaged, because there was no other good copy. With the device's server \
             stopped, `gabion inspect DEVICE verify` shows the places; blocks that clients write \
             again are whole again",
            Size(lost)
        );
    }
    if let Some(first) = left.first() {
        let names: Vec<String> = left.iter().map(|id| format!("dev{id}")).collect();
        bail!(
            "not everything was read: {} went down meanwhile. When it is up again: `gabion device \
             scrub {first}`",
            names.join(", ")
        );
    }
    let skipped = sum(|s| s.skipped_bytes);
    if skipped > 0 {
        bail!(
            "not everything was read: copies of {} are not up to date yet. When `gabion status` \
             says healthy: `gabion device scrub`",
            Size(skipped)
        );
    }
    Ok(Exit::Ok)
}

/// Returns the chosen devices that are up.
fn up(report: &Report, id: Option<u32>) -> impl Iterator<Item = &Device> {
    let devices = report.sds.iter().flat_map(|s| &s.devices);
    let asked = devices.filter(move |d| id.is_none_or(|id| d.id == id));
    asked.filter(|d| d.state == UpDown::Up)
}

/// Returns the chosen devices that are up and have a scrubber.
fn scrubbed(report: &Report, id: Option<u32>) -> impl Iterator<Item = (&Device, &Scrub)> {
    up(report, id).filter_map(|d| Some((d, d.scrub.as_ref()?)))
}

/// Returns the incarnations of the chosen devices that are up and keep checksums.
fn lives(report: &Report, id: Option<u32>) -> BTreeMap<u32, u64> {
    let durable = up(report, id).filter(|d| d.kind == "durable");
    durable.map(|d| (d.id, d.incarnation)).collect()
}
