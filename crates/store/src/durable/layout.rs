//! Where everything lies on a device, as a function of its size.
//!
//! ```text
//! 0          superblock 0              middle     superblock 2 (in the place of a slot)
//! 1 MiB      superblock 1              end        superblock 3 (the last 64 KiB)
//! 1 MiB + 64 KiB, each rounded up to 64 KiB:
//!            root 0, root 1, records 0, records 1, log, map, sums, slots
//! ```

use super::mount::MountError;
use base::{GIB, MIB};

/// What a device is written in: the size of log blocks and of pages.
pub const PAGE: u64 = 4096;
/// Bytes of a slot, the piece that is allocated.
pub const SLOT: u64 = 64 << 10;
/// Blocks in a slot.
pub const SLOT_BLOCKS: u32 = 16;
/// Slots that a whole unit takes.
pub const UNIT_CHUNKS: u32 = 16;
/// Slots that one page of the map tells about, 16 bytes each.
pub const MAP_ENTRIES: u32 = 256;
/// Slots whose checksums are in one page, 64 bytes each.
pub const SUM_ENTRIES: u32 = 64;
/// The smallest device.
pub const SMALLEST: u64 = 16 * MIB;
/// Places of superblocks from the start.
const SECOND: u64 = MIB;

/// A range of the device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Where it begins.
    pub at: u64,
    /// How long it is.
    pub len: u64,
}

/// Where everything lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The device, rounded down to 64 KiB.
    pub size: u64,
    /// One checksum per page of map and sums; two copies.
    pub root: [Area; 2],
    /// What the groups remember; two copies.
    pub records: [Area; 2],
    /// The log ring.
    pub log: Area,
    /// Which unit each slot belongs to; two copies of each page, side by side.
    pub map: Area,
    /// Checksums of blocks; two copies of each page, side by side.
    pub sums: Area,
    /// The data.
    pub slots: Area,
}

impl Layout {
    /// The layout of a device of `bytes`.
    pub fn new(bytes: u64) -> Result<Layout, MountError> {
        let size = bytes / SLOT * SLOT;
        if size < SMALLEST {
            return Err(MountError::TooSmall { bytes, needed: SMALLEST });
        }
        let most = (size / SLOT).min(u64::from(u32::MAX) / 2);
        let mut next = SECOND + SLOT;
        let mut area = |len: u64| {
            let len = len.next_multiple_of(SLOT);
            let area = Area { at: next, len };
            next += len;
            area
        };
        let map_pages = most.div_ceil(MAP_ENTRIES.into());
        let sum_pages = most.div_ceil(SUM_ENTRIES.into());
        let root_len = (map_pages + sum_pages) * 4;
        let records_len = (most * 10).max(MIB);
        let mut layout = Layout {
            size,
            root: [area(root_len), area(root_len)],
            records: [area(records_len), area(records_len)],
            log: area((size / 32).clamp(4 * MIB, 8 * GIB)),
            map: area(map_pages * 2 * PAGE),
            sums: area(sum_pages * 2 * PAGE),
            slots: Area::default(),
        };
        let end = (size - SLOT).min(next + most * SLOT);
        layout.slots = Area { at: next, len: end - next };
        Ok(layout)
    }

    /// Where the superblocks of a device of `bytes` are.
    pub fn superblocks(bytes: u64) -> [u64; 4] {
        let slots = bytes / SLOT;
        [0, SECOND, slots / 2 * SLOT, slots.max(1) * SLOT - SLOT]
    }

    /// How many slots there are, with the one that gives its place to a superblock.
    pub fn slot_count(&self) -> u32 {
        (self.slots.len / SLOT) as u32
    }

    /// Bytes for data.
    pub fn capacity(&self) -> u64 {
        u64::from(self.slot_count() - u32::from(self.hole().is_some())) * SLOT
    }

    /// The slot in whose place a superblock lies.
    pub fn hole(&self) -> Option<u32> {
        let middle = Layout::superblocks(self.size)[2];
        let inside = middle >= self.slots.at && middle < self.slots.at + self.slots.len;
        inside.then(|| ((middle - self.slots.at) / SLOT) as u32)
    }

    /// Where a slot's byte 0 is.
    pub fn slot(&self, slot: u32) -> u64 {
        self.slots.at + u64::from(slot) * SLOT
    }

    /// Pages of the map.
    pub fn map_pages(&self) -> u32 {
        self.slot_count().div_ceil(MAP_ENTRIES)
    }

    /// Pages of checksums.
    pub fn sum_pages(&self) -> u32 {
        self.slot_count().div_ceil(SUM_ENTRIES)
    }

    /// Where the two copies of a page of the map are: `2 * PAGE` bytes.
    pub fn map_page(&self, page: u32) -> u64 {
        self.map.at + u64::from(page) * 2 * PAGE
    }

    /// Where the two copies of a page of checksums are: `2 * PAGE` bytes.
    pub fn sum_page(&self, page: u32) -> u64 {
        self.sums.at + u64::from(page) * 2 * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_and_superblocks_are_apart() {
        for bytes in [SMALLEST, 17 * MIB + 4711, 64 * MIB, GIB, 1 << 40, 64 << 40] {
            let l = Layout::new(bytes).unwrap();
            let areas =
                [l.root[0], l.root[1], l.records[0], l.records[1], l.log, l.map, l.sums, l.slots];
            assert!(areas.windows(2).all(|w| w[0].at + w[0].len == w[1].at), "{l:?}");
            let [first, second, middle, last] = Layout::superblocks(bytes);
            assert!(first == 0 && second + SLOT == l.root[0].at);
            assert!(l.slots.at + l.slots.len <= last && last + SLOT <= bytes);
            let hole = l.hole().map(|s| l.slot(s));
            assert!(hole == Some(middle) || middle > l.slots.at + l.slots.len);
            assert!(l.slots.len >= bytes / 2, "{l:?}");
        }
        assert!(Layout::new(SMALLEST - 1).is_err());
    }

    #[test]
    fn metadata_takes_two_percent_of_a_large_device() {
        let l = Layout::new(1 << 40).unwrap();
        assert!((l.slots.at as f64) < 0.02 * (1u64 << 40) as f64, "{l:?}");
    }
}
