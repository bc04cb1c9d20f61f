//! Unserved bytes of volumes: lists them by ranges, and gives them up when an operator decides so.

use crate::decision::{Question, now, who};
use crate::volume::ReadAs;
use admin::Admin;
use admin::exit::Exit;
use admin::report::{device_name, when};
use anyhow::{Result, bail};
use daemon::size::Size;
use fleet::table::{right, table};
use fleet::target::Target;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use wire::control::{AcceptLoss, Ask, StatusInfo, Unserved, UnservedGroup, VolumeDamage};

const UNIT: u64 = base::UNIT as u64;

/// The number of ranges that are printed for people.
const RANGES: usize = 20;

/// Consecutive bytes that no device serves, for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Range {
    from: u64,
    length: u64,
    /// `lost`, `away` or `doubt`.
    why: &'static str,
    /// Devices that have, or may have, every write.
    waits_for: Vec<u32>,
    /// Devices that are up and have an older copy.
    older_copies: Vec<u32>,
}

/// A loss that was accepted.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Accepted {
    by: String,
    at_seconds: u64,
    groups: usize,
    /// True if the groups went on with older copies; otherwise they started empty.
    used_stale: bool,
    /// True if blocks without data are errors to read; otherwise they read as zeros.
    errors: bool,
}

/// The output of `volume damage --json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Damage {
    volume: String,
    size_bytes: u64,
    damaged_bytes: u64,
    ranges: Vec<Range>,
    /// Served ranges with an error for each block not written since its loss was accepted.
    error_ranges: Vec<Span>,
    accepted: Vec<Accepted>,
    /// MDMs are being recovered and still ask the servers, so it is not yet known what is served.
    recovering: bool,
}

/// Consecutive bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Span {
    from: u64,
    length: u64,
}

fn why(group: &UnservedGroup) -> &'static str {
    match group.why() {
        Unserved::Lost => "lost",
        Unserved::Doubt => "doubt",
        Unserved::Away | Unserved::Unknown => "away",
    }
}

/// Returns the bytes for which `what` returns a value. Its arguments are the group of a unit and
/// the unit's index. Neighbours with equal values are merged.
fn runs<T: PartialEq>(
    damage: &VolumeDamage,
    what: impl Fn(u32, u64) -> Option<T>,
) -> Vec<(Span, T)> {
    let mut runs: Vec<(Span, T)> = Vec::new();
    for unit in 0..damage.size.div_ceil(UNIT) {
        let slot = node::mapview::slot(unit as u32, damage.slots.len());
        let Some(said) = what(damage.slots[slot], unit) else { continue };
        let from = unit * UNIT;
        let length = UNIT.min(damage.size - from);
        match runs.last_mut() {
            Some((last, same)) if last.from + last.length == from && *same == said => {
                last.length += length;
            }
            _ => runs.push((Span { from, length }, said)),
        }
    }
    runs
}

/// Returns the unserved ranges. Neighbours with the same reason are merged.
fn ranges(damage: &VolumeDamage) -> Vec<Range> {
    let groups: BTreeMap<u32, &UnservedGroup> =
        damage.groups.iter().map(|g| (g.group, g)).collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let told = |group, _| groups.get(&group).map(|g| (why(g), &g.waits_for, &g.stale));
    let range = |(span, (why, waits_for, stale)): (Span, (_, &Vec<u32>, &Vec<u32>))| Range {
        from: span.from,
        length: span.length,
        why,
        waits_for: waits_for.clone(),
        older_copies: stale.clone(),
    };
    runs(damage, told).into_iter().map(range).collect()
}

/// Returns the bytes whose loss was accepted with `--read-as errors`.
fn error_ranges(damage: &VolumeDamage) -> Vec<Span> {
    let gaps: BTreeMap<u32, u32> = damage.gaps.iter().map(|g| (g.group, g.units)).collect();
    if gaps.is_empty() {
        return Vec::new();
    }
    let told = |group, unit| gaps.get(&group).filter(|units| unit < u64::from(**units)).map(|_| ());
    runs(damage, told).into_iter().map(|(span, ())| span).collect()
}

/// Runs `gabion volume damage`.
pub(crate) fn show(target: &Target, name: &str, json: bool) -> Result<Exit> {
    let mut admin = target.connect()?;
    let told = admin.damage(name)?;
    let info = admin.status()?;
    let recovering = info.recovery.as_ref().is_some_and(|r| r.open);
    let ranges = ranges(&told);
    let accepted = told.accepted.iter().map(|a| Accepted {
        by: a.by.clone(),
        at_seconds: a.at,
        groups: a.groups.len(),
        used_stale: a.stale,
        errors: a.errors,
    });
    let damage = Damage {
        volume: name.to_owned(),
        size_bytes: told.size,
        damaged_bytes: ranges.iter().map(|r| r.length).sum(),
        ranges,
        error_ranges: error_ranges(&told),
        accepted: accepted.collect(),
        recovering,
    };
    match json {
        true => println!("{}", serde_json::to_string_pretty(&damage)?),
        false => print(&damage, &info),
    }
    Ok(match (damage.ranges.is_empty(), recovering) {
        (true, false) => Exit::Ok,
        (true, true) => Exit::Degraded,
        (false, _) => Exit::Unserved,
    })
}

fn print(damage: &Damage, info: &StatusInfo) {
    let ids =
        |of: &[u32]| of.iter().map(|id| device_name(info, *id)).collect::<Vec<_>>().join(", ");
    if damage.recovering {
        println!(
            "The MDM still asks the servers what they know (`gabion status` shows which ones it \
             waits for): until then it is not known what of {} is served. Clients that ran go on \
             as before, and new ones wait.",
            damage.volume
        );
    }
    if damage.ranges.is_empty() && !damage.recovering {
        println!("All of {} is served.", damage.volume);
    } else if !damage.ranges.is_empty() {
        let mut t = table(&["from", "length", "why", "waits for", "older copies"]);
        right(&mut t, &[0, 1]);
        for r in damage.ranges.iter().take(RANGES) {
            let (from, length) = (r.from.to_string(), r.length.to_string());
            t.add_row([from, length, r.why.to_owned(), ids(&r.waits_for), ids(&r.older_copies)]);
        }
        println!("{t}");
        let more = damage.ranges.len().saturating_sub(RANGES);
        if more > 0 {
            println!("And {more} more ranges: --json lists them.");
        }
        let are = if damage.recovering { "may not be served" } else { "are not served" };
        println!(
            "{} of {} ({}) {are}. Lost: no copy is left. Away: it waits for those devices. Doubt: \
             the MDMs were recovered, and don't know which copy has every write. To go on without: \
             `gabion volume accept-loss --help`",
            Size(damage.damaged_bytes),
            damage.volume,
            Size(damage.size_bytes)
        );
    }
    if !damage.error_ranges.is_empty() {
        println!(
            "{} in {} ranges (--json lists them) are errors where nothing was written since their \
             loss was accepted. To read zeros there: `gabion volume accept-loss {} --read-as \
             zeros`",
            Size(damage.error_ranges.iter().map(|s| s.length).sum()),
            damage.error_ranges.len(),
            damage.volume
        );
    }
    for a in &damage.accepted {
        if a.groups == 0 {
            println!("Errors were turned into zeros: {}, {}.", a.by, when(a.at_seconds));
            continue;
        }
        let how = match (a.used_stale, a.errors) {
            (true, _) => "with older copies",
            (false, true) => "with errors",
            (false, false) => "with zeros",
        };
        println!("{} groups were started again {how}: {}, {}.", a.groups, a.by, when(a.at_seconds));
    }
}

/// Runs `gabion volume accept-loss`. Without `read_as`, uses an older copy.
pub(crate) fn accept(
    target: &Target,
    names: &[String],
    read_as: Option<ReadAs>,
    yes: bool,
) -> Result<()> {
    let mut admin = target.connect()?;
    let stale = read_as.is_none();
    let meant = |r: &&Range| (r.why == "lost") != stale && !(stale && r.older_copies.is_empty());
    let mut look = || -> Result<(Vec<Range>, u64)> {
        let (mut all, mut errors) = (Vec::new(), 0);
        for name in names {
            let told = admin.damage(name)?;
            all.extend(ranges(&told));
            errors += error_ranges(&told).iter().map(|s| s.length).sum::<u64>();
        }
        Ok((all, errors))
    };
    let sum = |all: &[Range]| all.iter().filter(meant).map(|r| r.length).sum::<u64>();
    let (before, errors) = look()?;
    let bytes = sum(&before);
    if !yes {
        let away: BTreeSet<u32> =
            before.iter().filter(meant).flat_map(|r| r.waits_for.clone()).collect();
        let mut admin = target.connect()?;
        let info = admin.status()?;
        let any = bytes > 0 || errors > 0 && read_as == Some(ReadAs::Zeros);
        refuse_in_vain(&mut admin, names, &info, stale, any)?;
        confirm(&names.join(", "), read_as, bytes, &away, &info)?;
    }
    let mut left = bytes;
    loop {
        let errors = read_as == Some(ReadAs::Errors);
        let order = AcceptLoss { volumes: names.to_vec(), by: who(), at: now(), stale, errors };
        target.connect()?.order(Ask::AcceptLoss(order))?;
        // One order covers a limited number of groups.
        let before = std::mem::replace(&mut left, sum(&look()?.0));
        if left == 0 || left >= before {
            break;
        }
    }
    let how = match read_as {
        None => "what an older copy has",
        Some(ReadAs::Zeros) => "zeros",
        Some(ReadAs::Errors) => "an error for each block until it is written",
    };
    let (names, served) = (names.join(", "), bytes.saturating_sub(left));
    if served > 0 {
        println!("{} of {names} are served again, with {how}. Check the data there.", Size(served));
    }
    if read_as == Some(ReadAs::Zeros) && errors > 0 {
        println!("{} of {names} that were errors read as zeros.", Size(errors));
    }
    if left > 0 {
        println!("{} are not: `gabion volume damage` says why.", Size(left));
    }
    Ok(())
}

/// Refuses, before the user is asked, what the MDM would refuse: there is nothing to give up, or
/// other volumes would lose data, too.
fn refuse_in_vain(
    admin: &mut Admin,
    names: &[String],
    info: &StatusInfo,
    stale: bool,
    any: bool,
) -> Result<()> {
    let meant =
        |g: &&UnservedGroup| (g.why() == Unserved::Lost) != stale && !(stale && g.stale.is_empty());
    let mut groups = BTreeSet::new();
    for name in names {
        groups.extend(admin.damage(name)?.groups.iter().filter(meant).map(|g| g.group));
    }
    let mut others = Vec::new();
    for volume in info.volumes.iter().filter(|v| !names.contains(&v.name)) {
        let touched = admin.damage(&volume.name)?.slots.iter().any(|g| groups.contains(g));
        others.extend(touched.then(|| volume.name.clone()));
    }
    if !others.is_empty() {
        bail!(
            "other volumes have data in the same groups, and would lose it, too: {}. Name all of \
             them, or delete those that are not needed any more",
            others.join(" ")
        );
    }
    if !any {
        bail!(
            "nothing of {} can be given up like this: --read-as is for lost data, --use-stale for \
             data that waits for a device while an older copy is there. `gabion volume damage` \
             shows what is not served, and why",
            names.join(", ")
        );
    }
    Ok(())
}

fn confirm(
    names: &str,
    read_as: Option<ReadAs>,
    bytes: u64,
    away: &BTreeSet<u32>,
    info: &StatusInfo,
) -> Result<()> {
    let bytes = Size(bytes);
    let warning = match read_as {
        None => {
            let away: Vec<String> = away.iter().map(|id| device_name(info, *id)).collect();
            format!(
                "{bytes} of {names} go on with an older copy. What only {} had is given up for \
                 good, even if they come back. Stop their servers first if these may still run: \
                 one that is only cut off from the MDM may go on answering clients, and all of \
                 that is given up, too.\n",
                away.join(", ")
            )
        }
        Some(ReadAs::Zeros) => {
            format!("{bytes} of {names} are given up for good, and read as zeros from then on.\n")
        }
        Some(ReadAs::Errors) => format!(
            "{bytes} of {names} are given up for good. Reading them is an error until they are \
             written.\n"
        ),
    };
    let unasked = format!("this gives up data of {names} for good");
    let (unasked, refused) = (unasked.as_str(), "nothing was done");
    Question { warning: &warning, word: "accept", unasked, refused }.ask()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::control::LostRange;

    #[test]
    fn ranges_are_exactly_the_units_of_unserved_groups() {
        let group =
            |group, why: Unserved| UnservedGroup { group, why: why as i32, ..Default::default() };
        let damage = VolumeDamage {
            size: 8 * UNIT,
            slots: vec![1, 2],
            groups: vec![group(2, Unserved::Lost)],
            gaps: vec![LostRange { group: 1, units: 6 }],
            ..VolumeDamage::default()
        };
        let lost = |unit: u64| damage.slots[node::mapview::slot(unit as u32, 2)] == 2;
        let found = ranges(&damage);
        let covers = |unit: u64| {
            found.iter().any(|r| r.from <= unit * UNIT && unit * UNIT < r.from + r.length)
        };
        assert!((0..8).all(|unit| lost(unit) == covers(unit)), "{found:?}");
        let errors = error_ranges(&damage);
        let covers = |unit: u64| {
            errors.iter().any(|s| s.from <= unit * UNIT && unit * UNIT < s.from + s.length)
        };
        assert!((0..8).all(|unit| (!lost(unit) && unit < 6) == covers(unit)), "{errors:?}");
        let all = VolumeDamage {
            groups: vec![group(1, Unserved::Lost), group(2, Unserved::Lost)],
            ..damage
        };
        assert_eq!(ranges(&all).len(), 1, "neighbours are one range");
    }
}
