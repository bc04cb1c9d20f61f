//! `gabion inspect DEVICE export`: writes a device's part of one volume into a sparse file.
//!
//! A device has some units of a volume; the others are on other devices. Its copy may also lack the
//! newest writes. The command reports both.

use super::slots;
use admin::exit::Exit;
use anyhow::{Context, Result, bail};
use base::{BLOCK, UNIT, VolumeId};
use daemon::files;
use daemon::inspect::{set_bytes, volumes};
use daemon::offline::Offline;
use daemon::size::Size;
use seam::UnitStore;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use store::durable::survey::HeldSlot;

/// Number of ranges that are listed for people: `--json` lists all.
const LISTED: usize = 20;

/// The output of `export --json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Exported {
    pub schema: u32,
    pub volume: u32,
    pub out: String,
    pub written_bytes: u64,
    /// The file's length: the end of the last unit on this device. The volume may be longer.
    pub length_bytes: u64,
    /// Units that are not on this device: they are on others, or were never written.
    pub missing: Vec<Range>,
    /// Damaged ranges, which are left out of the file.
    pub damaged: Vec<Range>,
    /// Bytes that may be older than those of another copy.
    pub uncertain_bytes: u64,
}

/// A range of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Range {
    pub at: u64,
    pub bytes: u64,
}

/// Runs `export`.
pub(crate) fn run(device: &mut Offline, volume: VolumeId, out: &Path, json: bool) -> Result<Exit> {
    let slots = device.store().slots().filter(|s| s.unit.volume == volume);
    let units: BTreeSet<u32> = slots.map(|s| s.unit.index).collect();
    if units.is_empty() {
        let here = volumes(device.store()).iter().map(|v| v.id.to_string()).collect::<Vec<_>>();
        match here.is_empty() {
            true => bail!("the device holds no volume at all"),
            false => bail!("the device holds nothing of {volume}; it has {}", here.join(", ")),
        }
    }
    let file = create(out)?;
    let length_bytes = units.last().map_or(0, |last| (u64::from(*last) + 1) * u64::from(UNIT));
    let failed = || format!("can't write {}", out.display());
    file.set_len(length_bytes).with_context(failed)?;
    let (written_bytes, damaged) = copy(device, volume, &file).with_context(failed)?;
    file.sync_all().and_then(|()| files::settle(out)).with_context(failed)?;
    let exported = Exported {
        schema: 1,
        volume: volume.0,
        out: super::name(out),
        written_bytes,
        length_bytes,
        missing: gaps(&units),
        damaged,
        uncertain_bytes: uncertain(device, volume),
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&exported)?);
    } else {
        print!("{}", text(&exported));
    }
    Ok(if exported.damaged.is_empty() { Exit::Ok } else { Exit::Failed })
}

fn create(out: &Path) -> Result<File> {
    files::create(out).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => {
            anyhow::anyhow!("{} is there already: name another file, or remove it", out.display())
        }
        _ => anyhow::anyhow!("can't make {}: {e}", out.display()),
    })
}

/// Copies the blocks that hold data. Returns the number of bytes copied, and the damaged ranges.
fn copy(device: &mut Offline, volume: VolumeId, file: &File) -> Result<(u64, Vec<Range>)> {
    let (mut written, mut damaged) = (0, Vec::new());
    let wanted = |held: &HeldSlot| held.unit.volume == volume;
    slots::read(device, "exporting", wanted, |held, block, data| {
        let at = held.place_in_volume(block);
        match data {
            Ok(data) => {
                file.write_all_at(data, at)?;
                written += data.len() as u64;
            }
            Err(_) => damaged.push(Range { at, bytes: BLOCK.into() }),
        }
        Ok(())
    })?;
    damaged.sort_by_key(|r| r.at);
    Ok((written, join(damaged)))
}

/// Returns the units missing before the last unit on this device, as ranges of the volume.
fn gaps(units: &BTreeSet<u32>) -> Vec<Range> {
    let unit = u64::from(UNIT);
    let mut next = 0;
    let mut gaps = Vec::new();
    for index in units.iter().map(|i| u64::from(*i)) {
        if index > next {
            gaps.push(Range { at: next * unit, bytes: (index - next) * unit });
        }
        next = index + 1;
    }
    gaps
}

/// Merges adjacent ranges.
fn join(ranges: Vec<Range>) -> Vec<Range> {
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.at + last.bytes == range.at => last.bytes += range.bytes,
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the bytes of the volume that the groups' records on this device mark dirty.
fn uncertain(device: &Offline, volume: VolumeId) -> u64 {
    let records = device.store().records();
    let dirty = records.iter().flat_map(|(_, record)| record.dirty.iter());
    dirty.filter(|(unit, _)| unit.volume == volume).map(|(_, blocks)| set_bytes(&blocks)).sum()
}

fn text(e: &Exported) -> String {
    let mut text = format!(
        "Wrote {} of volume {} to {}, a sparse file of {}.\n",
        Size(e.written_bytes),
        e.volume,
        e.out,
        Size(e.length_bytes)
    );
    if e.uncertain_bytes > 0 {
        let dirty = Size(e.uncertain_bytes);
        text += &format!("{dirty} of it may be older than what another copy has.\n");
    }
    text += &ranges(
        "Not on this device, but on another one or never written (zeros in the file):",
        &e.missing,
    );
    text += &ranges("Damaged here, and left out (zeros in the file):", &e.damaged);
    text += "Data beyond the file's end is not on this device either.\n";
    text
}

fn ranges(title: &str, ranges: &[Range]) -> String {
    if ranges.is_empty() {
        return String::new();
    }
    let mut text = format!("{title}\n");
    for r in ranges.iter().take(LISTED) {
        text += &format!("  {} at byte {}\n", Size(r.bytes), r.at);
    }
    if ranges.len() > LISTED {
        text += &format!("  and {} more: --json lists all\n", ranges.len() - LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_no_unit_covers() {
        let range = |at: u64, bytes: u64| Range { at: at << 20, bytes: bytes << 20 };
        assert_eq!(gaps(&[0, 1, 4, 5, 9].into()), [range(2, 2), range(6, 3)]);
        assert_eq!(gaps(&[3].into()), [range(0, 3)]);
        assert_eq!(gaps(&BTreeSet::new()), []);
        assert_eq!(join(vec![range(0, 1), range(1, 2), range(4, 1)]), [range(0, 3), range(4, 1)]);
    }
}
