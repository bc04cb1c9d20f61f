//! Converts a bitmap of blocks, the answer to `BlockKind::Extents`, to runs of equal bits.
//!
//! Invariants: no run has length 0, neighbours differ, and the lengths add up to the length of the
//! range: the first and the last run are cut where the range starts and ends within a block. Works
//! on whole bytes where possible: the bitmap of 1 GiB has 32 KiB.

use base::BLOCK;

/// The runs of a range of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Runs<'a> {
    bits: &'a [u8],
    /// Number of the range's first block, which is bit 0 of the bitmap.
    first: u64,
    at: u64,
    end: u64,
}

impl<'a> Runs<'a> {
    /// Creates the runs of `at..at + len`; `None` if the bitmap is too short.
    pub(crate) fn new(bits: &'a [u8], at: u64, len: u32) -> Option<Runs<'a>> {
        let (first, end) = (at / u64::from(BLOCK), at + u64::from(len));
        let blocks = end.div_ceil(u64::from(BLOCK)) - first;
        (bits.len() as u64 * 8 >= blocks).then_some(Runs { bits, first, at, end })
    }

    fn bit(&self, i: u64) -> bool {
        self.bits[(i / 8) as usize] >> (i % 8) & 1 == 1
    }
}

impl Iterator for Runs<'_> {
    /// Length of the run in bytes, and whether it holds data.
    type Item = (u32, bool);

    fn next(&mut self) -> Option<(u32, bool)> {
        if self.at >= self.end {
            return None;
        }
        let block = u64::from(BLOCK);
        let mut i = self.at / block - self.first;
        let blocks = self.end.div_ceil(block) - self.first;
        let data = self.bit(i);
        let whole = if data { 0xff } else { 0 };
        while i < blocks && self.bit(i) == data {
            let skip = i.is_multiple_of(8) && self.bits[(i / 8) as usize] == whole;
            i += if skip { 8 } else { 1 };
        }
        let end = ((self.first + i) * block).min(self.end);
        let len = (end - self.at) as u32; // No longer than the range.
        self.at = end;
        Some((len, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn runs(bits: &[u8], at: u64, len: u32) -> Vec<(u32, bool)> {
        Runs::new(bits, at, len).expect("long enough").collect()
    }

    #[test]
    fn runs_merge_and_end_with_the_range() {
        assert_eq!(runs(&[0b0000_0110], 0, 4 * 4096), [(4096, false), (8192, true), (4096, false)]);
        assert_eq!(runs(&[0xff, 0x01], 8192, 9 * 4096), [(9 * 4096, true)]);
        assert_eq!(
            runs(&[0xff, 0xff], 0, 4096),
            [(4096, true)],
            "bits behind the range don't count"
        );
        assert_eq!(runs(&[0b10], 4096 + 512, 4096), [(3584, false), (512, true)]);
        assert_eq!(runs(&[0; 3], 0, 20 * 4096), [(20 * 4096, false)]);
    }

    #[test]
    fn a_bitmap_that_is_too_short_is_noticed() {
        assert!(Runs::new(&[0], 512, 8 * 4096).is_none());
        assert!(Runs::new(&[], 0, 512).is_none());
    }
}
