//! Bits that flip on a device, while its server runs or not.
//!
//! Only data is hit: what finds the data is another matter (`docs/internals/on-disk.md`), as is the log.

use crate::bytes::Random;
use crate::gabion;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

const BLOCK: u64 = 4096;
/// How a superblock begins: one of them lies amid the data.
const MAGIC: &[u8] = b"GABNDEV1";
/// Places that are looked at for each one that is hit.
const TRIES: u64 = 200;

/// Where data lies on the devices of a cluster: their sizes are the same.
#[derive(Clone, Copy, Debug)]
pub struct Rot {
    at: u64,
    blocks: u64,
}

impl Rot {
    /// Learns it from a device that is not in use.
    pub fn learn(device: &str) -> Result<Rot> {
        let shown: Value = serde_json::from_str(&gabion(["inspect", device, "--json"])?.ok()?)?;
        let areas = shown["areas"].as_array().context("areas")?;
        let slots = areas.iter().find(|a| a["name"] == "slots").context("the slots")?;
        let number = |name: &str| slots[name].as_u64().context("a number");
        Ok(Rot { at: number("at")?, blocks: number("bytes")? / BLOCK })
    }

    /// Flips a bit in up to `count` blocks that have data, of these if any are named by how they begin;
    /// tells in how many.
    pub fn flip(
        &self,
        device: &str,
        count: u64,
        only: Option<&BTreeSet<[u8; 16]>>,
        random: &mut Random,
    ) -> Result<u64> {
        let file = File::options().read(true).write(true).open(device)?;
        let mut flipped = BTreeSet::new();
        for _ in 0..count * TRIES {
            let block = random.below(self.blocks);
            let at = self.at + block * BLOCK;
            let mut data = [0; BLOCK as usize];
            file.read_exact_at(&mut data, at)?;
            let free = data == [0; BLOCK as usize] || data.starts_with(MAGIC);
            let wanted = only.is_none_or(|only| only.contains(&data[..16]));
            if free || !wanted || !flipped.insert(block) {
                continue;
            }
            let place = random.below(BLOCK);
            file.write_all_at(&[data[place as usize] ^ 1 << random.below(8)], at + place)?;
            if flipped.len() as u64 == count {
                break;
            }
        }
        file.sync_all()?;
        Ok(flipped.len() as u64)
    }
}
