//! Writes to a device that must not change: kept in memory, and visible to reads.
//!
//! A program that repairs or replays before it reads can thus look at a device without modifying
//! it. Each written block costs 4 KiB of memory.

use crate::device::BLOCK;
use std::collections::BTreeMap;

const LEN: usize = BLOCK as usize;

/// Written blocks of 4 KiB, by block number.
#[derive(Default)]
pub(crate) struct Shadow(BTreeMap<u64, Box<[u8; LEN]>>);

impl Shadow {
    /// Keeps the data of a write. `at` is a multiple of 4 KiB.
    pub(crate) fn write(&mut self, at: u64, body: &[u8]) {
        for (number, block) in (at / BLOCK..).zip(body.chunks_exact(LEN)) {
            let kept = self.0.entry(number).or_insert_with(|| Box::new([0; LEN]));
            kept.copy_from_slice(block);
        }
    }

    /// Overlays kept writes on data that was read from the device. `at` is a multiple of 4 KiB.
    pub(crate) fn cover(&self, at: u64, data: &mut [u8]) {
        let first = at / BLOCK;
        for (number, block) in self.0.range(first..first + (data.len() / LEN) as u64) {
            let from = (number - first) as usize * LEN;
            data[from..from + LEN].copy_from_slice(&block[..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_see_what_was_written_and_the_rest_as_it_is() {
        let mut shadow = Shadow::default();
        shadow.write(8192, &[7; 8192]);
        shadow.write(12288, &[8; 4096]);
        let mut data = vec![1; 5 * LEN];
        shadow.cover(4096, &mut data);
        let by_block: Vec<u8> = data.chunks(LEN).map(|b| b[0]).collect();
        assert_eq!(by_block, [1, 7, 8, 1, 1]);
    }
}
