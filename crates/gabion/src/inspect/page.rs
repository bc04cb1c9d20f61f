//! The page that `gabion inspect` prints for people.

use daemon::inspect::{Growth, Report, Superblock};
use daemon::size::Size;
use fleet::table::{right, table};
use std::fmt::Write as _;

/// More groups than this are only summed up: `--json` lists all.
const GROUPS: usize = 24;

/// Formats the whole page.
pub(crate) fn of(report: &Report) -> String {
    let mut page = format!("{}, {}\n\n", report.device, Size(report.bytes));
    if let Some(id) = &report.identity {
        let _ = writeln!(
            page,
            "Device {} of cluster {}, format {}, mounted {} times\nuuid {}\n",
            id.device, id.cluster, id.format, id.life, id.uuid
        );
    }
    let _ = writeln!(page, "{}\n", superblocks(&report.superblocks));
    if !report.areas.is_empty() {
        let _ = writeln!(page, "{}\n", areas(report));
    }
    if let Some(larger) = &report.growth {
        let _ = writeln!(page, "{}", growth(larger));
    }
    if let Some(log) = &report.log {
        let _ = writeln!(
            page,
            "Log    {} to replay, in {} batches with {} records, from position {} to {} of a ring \
             of {}",
            Size(log.replay_bytes),
            log.batches,
            log.records,
            log.tail,
            log.head,
            Size(log.bytes)
        );
        if log.dropped > 0 {
            let _ = writeln!(
                page,
                "       {} records lack their data: they were never acknowledged, and don't count",
                log.dropped
            );
        }
    }
    if let Some(space) = &report.space {
        let _ = writeln!(
            page,
            "Space  {} of {} used, {} free; {} of data",
            Size(space.used_bytes),
            Size(space.capacity_bytes),
            Size(space.free_bytes),
            Size(space.data_bytes)
        );
    }
    if !report.volumes.is_empty() {
        let _ = writeln!(page, "\n{}", volumes(report));
    }
    if !report.groups.is_empty() {
        let _ = writeln!(page, "\n{}", groups(report));
    }
    page
}

/// Formats the copies of the superblock.
pub(crate) fn superblocks(copies: &[Superblock]) -> String {
    let mut rows = table(&["superblock", "at byte", "state", "checkpoint", "life"]);
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for c in copies {
        let row = [
            c.copy.to_string(),
            c.at.to_string(),
            c.state.to_owned(),
            number(c.checkpoint),
            number(c.life),
        ];
        rows.add_row(row);
    }
    right(&mut rows, &[0, 1, 3, 4]);
    rows.to_string()
}

fn areas(report: &Report) -> String {
    let mut rows = table(&["area", "at byte", "size"]);
    for area in &report.areas {
        let name = match area.extent {
            0 => area.name.to_owned(),
            growth => format!("{} of growth {growth}", area.name),
        };
        rows.add_row([name, area.at.to_string(), Size(area.bytes).to_string()]);
    }
    right(&mut rows, &[1, 2]);
    rows.to_string()
}

/// Formats what a device that has become larger uses now and later.
fn growth(growth: &Growth) -> String {
    let Growth { from_bytes, to_bytes, refused } = *growth;
    match refused {
        None => format!(
            "Growth {} are used; {} will be used after the next start of its server",
            Size(from_bytes),
            Size(to_bytes)
        ),
        Some(why) => format!("Growth {} are used, and that stays so: {why}", Size(from_bytes)),
    }
}

fn volumes(report: &Report) -> String {
    let mut rows = table(&["volume", "units", "used", "data"]);
    for v in &report.volumes {
        rows.add_row([
            v.id.to_string(),
            v.units.to_string(),
            Size(v.used_bytes).to_string(),
            Size(v.data_bytes).to_string(),
        ]);
    }
    right(&mut rows, &[0, 1, 2, 3]);
    rows.to_string()
}

fn groups(report: &Report) -> String {
    let all = &report.groups;
    let dirty: u64 = all.iter().map(|g| g.dirty_bytes).sum();
    let line = format!(
        "{} groups, {} of them with blocks that may differ from the other copy ({})",
        all.len(),
        all.iter().filter(|g| g.dirty_units > 0 || g.all_dirty).count(),
        Size(dirty)
    );
    if all.len() > GROUPS {
        return format!("{line}; --json lists them");
    }
    let mut rows = table(&["group", "used", "acted", "base", "may differ", "client writes"]);
    for g in all {
        rows.add_row([
            g.id.to_string(),
            Size(g.used_bytes).to_string(),
            g.acted.to_string(),
            g.base.to_string(),
            if g.all_dirty { "all".to_owned() } else { Size(g.dirty_bytes).to_string() },
            g.executed.to_string(),
        ]);
    }
    right(&mut rows, &[0, 1, 2, 3, 4, 5]);
    format!("{line}\n\n{rows}")
}
