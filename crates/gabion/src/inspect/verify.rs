//! `gabion inspect DEVICE verify`: reads all data and compares it with its checksums.
//!
//! Mounting has already verified what it reads: a superblock, root, records, map and log. Serious
//! damage to one of these makes the mount fail, and the command ends before this code runs.

use super::page;
use super::slots;
use admin::exit::Exit;
use anyhow::Result;
use base::BLOCK;
use daemon::inspect::{Copies, Superblock};
use daemon::offline::Offline;
use daemon::size::Size;
use fleet::table::{right, table};
use seam::DiskError;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// Number of damaged blocks that are listed for people: `--json` lists all.
const LISTED: usize = 100;

/// The output of `verify --json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub schema: u32,
    pub device: String,
    /// True if nothing is damaged.
    pub ok: bool,
    pub checked_bytes: u64,
    pub seconds: f64,
    pub damaged_bytes: u64,
    pub damaged: Vec<Damage>,
    /// Damaged copies of the superblock. A server that mounts the device rewrites them.
    pub superblocks: Vec<Superblock>,
    /// Lost pages of checksums. Each makes up to 4 MiB of data look damaged.
    pub lost_checksum_pages: u64,
}

/// A block that can't be used.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Damage {
    pub volume: u32,
    /// Offset in the volume, in bytes.
    pub volume_byte: u64,
    /// Offset on the device, in bytes.
    pub device_byte: u64,
    pub group: u32,
    pub unit: u32,
    pub block: u32,
    pub what: &'static str,
}

/// Runs `verify`.
pub(crate) fn run(device: &mut Offline, path: &Path, copies: &Copies, json: bool) -> Result<Exit> {
    let begun = Instant::now();
    let (checked_bytes, damaged) = read_all(device)?;
    let superblocks = copies.damaged();
    let lost_checksum_pages = device.store().stats().lost_pages;
    let verdict = Verdict {
        schema: 1,
        device: super::name(path),
        ok: damaged.is_empty() && superblocks.is_empty() && lost_checksum_pages == 0,
        checked_bytes,
        seconds: begun.elapsed().as_secs_f64(),
        damaged_bytes: damaged.len() as u64 * u64::from(BLOCK),
        damaged,
        superblocks,
        lost_checksum_pages,
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&verdict)?);
    } else {
        print!("{}", text(&verdict));
    }
    Ok(if verdict.ok { Exit::Ok } else { Exit::Failed })
}

/// Reads all data. Returns the number of bytes read, and the damage.
fn read_all(device: &mut Offline) -> Result<(u64, Vec<Damage>)> {
    let (mut bytes, mut damaged) = (0, Vec::new());
    slots::read(
        device,
        "verifying",
        |_| true,
        |held, block, data| {
            bytes += data.map_or(u64::from(BLOCK), |data| data.len() as u64);
            let what = match data {
                Ok(_) => return Ok(()),
                Err(DiskError::Corrupt { .. }) => "wrong checksum",
                Err(_) => "can't be read",
            };
            damaged.push(Damage {
                volume: held.unit.volume.0,
                volume_byte: held.place_in_volume(block),
                device_byte: held.place(block),
                group: held.group.0,
                unit: held.unit.index,
                block,
                what,
            });
            Ok(())
        },
    )?;
    Ok((bytes, damaged))
}

fn text(v: &Verdict) -> String {
    let rate = Size((v.checked_bytes as f64 / v.seconds.max(1e-6)) as u64);
    let mut text =
        format!("Read {} of data in {:.1} s ({rate}/s).\n", Size(v.checked_bytes), v.seconds);
    if v.ok {
        text += "All checksums match.\n";
        return text;
    }
    if !v.superblocks.is_empty() {
        let table = page::superblocks(&v.superblocks);
        text += &format!(
            "\nDamaged copies of the superblock. The device can be used; its server rewrites \
             them.\n{table}\n"
        );
    }
    if v.lost_checksum_pages > 0 {
        text += &format!(
            "\n{} pages of checksums are lost: the data that they cover counts as damaged.\n",
            v.lost_checksum_pages
        );
    }
    if !v.damaged.is_empty() {
        text += &format!(
            "\n{} are damaged. A cluster with another copy repairs them when they are read, or \
             scrubbed.\n{}\n",
            Size(v.damaged_bytes),
            list(&v.damaged)
        );
    }
    text
}

fn list(damaged: &[Damage]) -> String {
    let mut rows = table(&["volume", "at byte", "device byte", "group", "unit", "block", "what"]);
    for d in damaged.iter().take(LISTED) {
        rows.add_row([
            d.volume.to_string(),
            d.volume_byte.to_string(),
            d.device_byte.to_string(),
            d.group.to_string(),
            d.unit.to_string(),
            d.block.to_string(),
            d.what.to_owned(),
        ]);
    }
    right(&mut rows, &[0, 1, 2, 3, 4, 5]);
    match damaged.len().saturating_sub(LISTED) {
        0 => rows.to_string(),
        more => format!("{rows}\nand {more} more: --json lists all"),
    }
}
