//! Flips bits on a device, with or without its server running.
//!
//! Only data is hit, not the log or other metadata (`docs/internals/on-disk.md`).

use crate::bytes::Random;
use crate::gabion;
use anyhow::{Context, Result};
use rustix::fs::OFlags;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const BLOCK: u64 = 4096;
/// Start of a superblock: one superblock lies in the middle of the data.
const MAGIC: &[u8] = b"GABNDEV1";
/// Places that are tried for each one that is hit.
const TRIES: u64 = 200;

/// Opens a device as its server does, with direct I/O if the file system allows it. If one process
/// writes through the page cache and another one bypasses it, they collide, and the kernel reports
/// I/O errors to both although no disk failed.
pub fn past_the_cache(device: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(device);
    direct.or_else(|_| options.open(device))
}

/// An aligned block of memory for direct I/O.
#[derive(Debug)]
pub struct Room(Vec<u8>);

impl Room {
    /// Creates a block of zeros.
    #[expect(clippy::new_without_default, reason = "it is no plain value")]
    pub fn new() -> Room {
        Room(vec![0; 2 * BLOCK as usize])
    }

    /// Returns the block.
    pub fn block(&mut self) -> &mut [u8] {
        let at = self.0.as_ptr().align_offset(BLOCK as usize);
        &mut self.0[at..at + BLOCK as usize]
    }
}

/// The place of data on the devices of a cluster, which all have the same size.
#[derive(Clone, Copy, Debug)]
pub struct Rot {
    at: u64,
    blocks: u64,
}

impl Rot {
    /// Reads the place from a device that is not in use.
    pub fn learn(device: &str) -> Result<Rot> {
        let shown: Value = serde_json::from_str(&gabion(["inspect", device, "--json"])?.ok()?)?;
        let areas = shown["areas"].as_array().context("areas")?;
        let slots = areas.iter().find(|a| a["name"] == "slots").context("the slots")?;
        let number = |name: &str| slots[name].as_u64().context("a number");
        Ok(Rot { at: number("at")?, blocks: number("bytes")? / BLOCK })
    }

    /// Flips a bit in up to `count` blocks with data. If `only` is set, only in blocks that start
    /// with one of these values. Returns the number of flipped blocks.
    pub fn flip(
        &self,
        device: &str,
        count: u64,
        only: Option<&BTreeSet<[u8; 16]>>,
        random: &mut Random,
    ) -> Result<u64> {
        let file = past_the_cache(Path::new(device))?;
        let (mut room, mut flipped) = (Room::new(), BTreeSet::new());
        for _ in 0..count * TRIES {
            let block = random.below(self.blocks);
            let at = self.at + block * BLOCK;
            let data = room.block();
            file.read_exact_at(data, at)?;
            let free = data.iter().all(|byte| *byte == 0) || data.starts_with(MAGIC);
            let wanted = only.is_none_or(|only| only.contains(&data[..16]));
            if free || !wanted || !flipped.insert(block) {
                continue;
            }
            data[random.below(BLOCK) as usize] ^= 1 << random.below(8);
            file.write_all_at(data, at)?;
            if flipped.len() as u64 == count {
                break;
            }
        }
        file.sync_all()?;
        Ok(flipped.len() as u64)
    }
}
