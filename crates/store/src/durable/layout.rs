//! The layout of a device. It follows from the device's size at its format, and from each size to
//! which the device has grown since.
//!
//! ```text
//! 0          superblock 0              middle     superblock 2 (in the place of a slot)
//! 1 MiB      superblock 1              end        superblock 3 (the last 64 KiB)
//! 1 MiB + 64 KiB, each rounded up to 64 KiB:
//!            root 0, root 1, records 0, records 1, log, map, sums, slots
//! ```
//!
//! That is the first *extent*. Each growth appends another one, from the old end to the new end:
//! ```text
//! root 0, root 1, map, sums, slots, superblock 3 (the last 64 KiB)
//! ```
//! The newest extent has the root, which covers all extents. Log and records stay where they are.
//! Slot numbers continue: the first slot of an extent has a multiple of [`MAP_ENTRIES`] as its
//! number, so that no page covers two extents. At least one number before it stays unused, so that
//! slots with neighbouring numbers are always neighbours on the device.

use super::error::MountError;
use alloc::vec;
use alloc::vec::Vec;
use base::{GIB, MIB};

/// Size of pages and of log blocks, in bytes.
pub const PAGE: u64 = 4096;
/// Bytes of a slot, the smallest piece that is allocated.
pub const SLOT: u64 = 64 << 10;
/// Number of blocks in a slot.
pub const SLOT_BLOCKS: u32 = 16;
/// Number of slots that a whole unit takes.
pub const UNIT_CHUNKS: u32 = 16;
/// Number of slots that one page of the map covers, at 16 bytes each.
pub const MAP_ENTRIES: u32 = 256;
/// Number of slots that one page of checksums covers, at 64 bytes each.
pub const SUM_ENTRIES: u32 = 64;
/// Size of the smallest device, in bytes.
pub const SMALLEST: u64 = 16 * MIB;
/// The smallest growth, in bytes.
pub const SMALLEST_GROWTH: u64 = 16 * MIB;
/// Number of times that a device can grow: the superblock has no room for more.
pub const GROWTHS: usize = 16;
/// Upper bound of slot numbers, exclusive.
const MOST_SLOTS: u32 = u32::MAX / 2;
/// Place of superblock 1, in bytes from the start.
const SECOND: u64 = MIB;

/// A range of the device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Start, in bytes from the start of the device.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Area {
    /// Returns the position of the byte after the area.
    pub fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// The part of a device that its format, or one growth, laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of its first slot.
    pub first: u32,
    /// End, in bytes from the start of the device.
    pub end: u64,
    /// The unit that each slot belongs to; two copies of each page, side by side.
    pub map: Area,
    /// Checksums of blocks; two copies of each page, side by side.
    pub sums: Area,
    /// The data.
    pub slots: Area,
}

impl Extent {
    /// Returns the number after the last slot's.
    fn slot_end(&self) -> u32 {
        self.first + (self.slots.len / SLOT) as u32
    }
}

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Size of the device in bytes, rounded down to 64 KiB.
    pub size: u64,
    /// One checksum per page of map and sums; two copies.
    pub root: [Area; 2],
    /// The records of the groups; two copies.
    pub records: [Area; 2],
    /// The log ring.
    pub log: Area,
    /// The extents, in their order on the device. A device that never grew has one.
    pub extents: Vec<Extent>,
}

/// Why a larger device is used with its earlier size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotGrown {
    /// The growth is too small to be worth an extent, or the size has not changed.
    TooLittle,
    /// The superblock has no room for another growth.
    TooOften,
    /// There are no numbers for more slots.
    TooLarge,
}

impl NotGrown {
    /// Explains the reason to the operator.
    pub fn why(self) -> &'static str {
        match self {
            NotGrown::TooLittle => {
                "a device grows by at least 16 MiB, and by so much that half of it is left for data"
            }
            NotGrown::TooOften => "a device can grow 16 times, and it has",
            NotGrown::TooLarge => "it is as large as a device can be",
        }
    }
}

/// Lays out areas one after another, each rounded up to 64 KiB.
struct Areas {
    next: u64,
}

impl Areas {
    fn take(&mut self, len: u64) -> Area {
        let area = Area { at: self.next, len: len.next_multiple_of(SLOT) };
        self.next = area.end();
        area
    }

    /// Turns the rest before `end` into at most `most` slots. Superblock 3 takes the last 64 KiB.
    fn slots(&self, end: u64, most: u64) -> Area {
        let end = end.saturating_sub(SLOT).min(self.next + most * SLOT);
        Area { at: self.next, len: end.saturating_sub(self.next) }
    }
}

impl Layout {
    /// Returns the layout of a device of `bytes` when it is formatted.
    pub fn new(bytes: u64) -> Result<Layout, MountError> {
        let size = bytes / SLOT * SLOT;
        if size < SMALLEST {
            return Err(MountError::TooSmall { bytes, needed: SMALLEST });
        }
        let most = (size / SLOT).min(MOST_SLOTS.into());
        let mut areas = Areas { next: SECOND + SLOT };
        let map_pages = most.div_ceil(MAP_ENTRIES.into());
        let sum_pages = most.div_ceil(SUM_ENTRIES.into());
        let root_len = (map_pages + sum_pages) * 4;
        let records_len = (most * 10).max(MIB);
        let root = [areas.take(root_len), areas.take(root_len)];
        let records = [areas.take(records_len), areas.take(records_len)];
        let log = areas.take((size / 32).clamp(4 * MIB, 8 * GIB));
        let map = areas.take(map_pages * 2 * PAGE);
        let sums = areas.take(sum_pages * 2 * PAGE);
        let slots = areas.slots(size, most);
        let extents = vec![Extent { first: 0, end: size, map, sums, slots }];
        Ok(Layout { size, root, records, log, extents })
    }

    /// Returns the layout after the device has grown to `bytes`.
    pub fn grown(&self, bytes: u64) -> Result<Layout, NotGrown> {
        let end = bytes / SLOT * SLOT;
        let more = end.saturating_sub(self.size);
        if more < SMALLEST_GROWTH {
            return Err(NotGrown::TooLittle);
        }
        if self.extents.len() > GROWTHS {
            return Err(NotGrown::TooOften);
        }
        if self.slot_count() > MOST_SLOTS - 2 * MAP_ENTRIES {
            return Err(NotGrown::TooLarge);
        }
        let grown = self.extended(end).ok_or(NotGrown::TooLittle)?;
        let slots = grown.extents.last().map_or(0, |e| e.slots.len);
        let all = grown.slot_count() == MOST_SLOTS;
        if slots >= more / 2 || all { Ok(grown) } else { Err(NotGrown::TooLittle) }
    }

    /// Adds an extent that reaches to `end`, whether it is worth it or not. `None`: it would have
    /// no slots.
    pub(super) fn extended(&self, end: u64) -> Option<Layout> {
        let more = end.checked_sub(self.size).filter(|more| more % SLOT == 0)?;
        let first = (self.slot_count() + 1).next_multiple_of(MAP_ENTRIES);
        let most = (more / SLOT).min(MOST_SLOTS.checked_sub(first)?.into());
        let mut areas = Areas { next: self.size };
        let map_pages = most.div_ceil(MAP_ENTRIES.into());
        let sum_pages = most.div_ceil(SUM_ENTRIES.into());
        let before = u64::from(first / MAP_ENTRIES + first / SUM_ENTRIES);
        let root_len = (before + map_pages + sum_pages) * 4;
        let root = [areas.take(root_len), areas.take(root_len)];
        let map = areas.take(map_pages * 2 * PAGE);
        let sums = areas.take(sum_pages * 2 * PAGE);
        let slots = areas.slots(end, most);
        let mut grown = Layout { size: end, root, ..self.clone() };
        grown.extents.push(Extent { first, end, map, sums, slots });
        (slots.len > 0).then_some(grown)
    }

    // ---- superblocks ----

    /// Returns the places of the superblocks on a device of `bytes` that never grew.
    pub fn superblocks(bytes: u64) -> [u64; 4] {
        let slots = bytes / SLOT;
        [0, SECOND, slots / 2 * SLOT, slots.max(1) * SLOT - SLOT]
    }

    /// Returns the places of the superblocks. The last one is at the end of the newest extent.
    pub fn places(&self) -> [u64; 4] {
        let [first, second, middle, _] = Layout::superblocks(self.extents[0].end);
        [first, second, middle, self.size - SLOT]
    }

    /// Returns the places that the last superblock had before each growth. It is written there as
    /// well, so that these places never hold an old one.
    pub fn earlier_ends(&self) -> impl Iterator<Item = u64> + '_ {
        let earlier = &self.extents[..self.extents.len() - 1];
        earlier.iter().map(|extent| extent.end - SLOT)
    }

    // ---- slots ----

    /// Returns the upper bound of slot numbers. Some below it are no slots; see [`Layout::unused`].
    pub fn slot_count(&self) -> u32 {
        self.extents.last().map_or(0, Extent::slot_end)
    }

    /// Returns the number of bytes for data.
    pub fn capacity(&self) -> u64 {
        let slots: u64 = self.extents.iter().map(|e| e.slots.len).sum();
        slots - u64::from(self.hole().is_some()) * SLOT
    }

    /// Returns the slot in whose place superblock 2 lies.
    pub fn hole(&self) -> Option<u32> {
        let (middle, slots) = (self.places()[2], self.extents[0].slots);
        let inside = middle >= slots.at && middle < slots.end();
        inside.then(|| ((middle - slots.at) / SLOT) as u32)
    }

    /// Returns the numbers that are no usable slots: the one in whose place superblock 2 lies, and
    /// those between two extents.
    pub fn unused(&self) -> impl Iterator<Item = u32> + '_ {
        let gaps = self.extents.windows(2).flat_map(|e| e[0].slot_end()..e[1].first);
        self.hole().into_iter().chain(gaps)
    }

    /// True for the number of a slot, including the one in whose place superblock 2 lies.
    pub fn has_slot(&self, slot: u32) -> bool {
        slot < self.extent(slot).slot_end()
    }

    /// Returns the extent of a slot, or of the page that begins with that slot.
    fn extent(&self, slot: u32) -> &Extent {
        let later = self.extents[1..].iter().rev().find(|e| e.first <= slot);
        later.unwrap_or(&self.extents[0])
    }

    /// Returns the position of a slot's first byte.
    #[inline]
    pub fn slot(&self, slot: u32) -> u64 {
        let extent = self.extent(slot);
        extent.slots.at + u64::from(slot - extent.first) * SLOT
    }

    // ---- pages ----

    /// Returns the number of pages of the map.
    pub fn map_pages(&self) -> u32 {
        self.slot_count().div_ceil(MAP_ENTRIES)
    }

    /// Returns the number of pages of checksums.
    pub fn sum_pages(&self) -> u32 {
        self.slot_count().div_ceil(SUM_ENTRIES)
    }

    /// Returns the length of the root in bytes.
    pub fn root_len(&self) -> usize {
        (self.map_pages() + self.sum_pages()) as usize * 4
    }

    /// Returns the position of the two copies of a map page: `2 * PAGE` bytes.
    pub fn map_page(&self, page: u32) -> u64 {
        let extent = self.extent(page * MAP_ENTRIES);
        extent.map.at + u64::from(page - extent.first / MAP_ENTRIES) * 2 * PAGE
    }

    /// Returns the first map page after `page` that does not lie directly behind its predecessor on
    /// the device.
    pub fn map_run_end(&self, page: u32) -> u32 {
        let next = self.extents.iter().map(|e| e.first / MAP_ENTRIES).find(|first| *first > page);
        next.unwrap_or(self.map_pages())
    }

    /// Returns the position of the two copies of a page of checksums: `2 * PAGE` bytes.
    pub fn sum_page(&self, page: u32) -> u64 {
        let extent = self.extent(page * SUM_ENTRIES);
        extent.sums.at + u64::from(page - extent.first / SUM_ENTRIES) * 2 * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_and_superblocks_are_apart() {
        for bytes in [SMALLEST, 17 * MIB + 4711, 64 * MIB, GIB, 1 << 40, 64 << 40] {
            let l = Layout::new(bytes).unwrap();
            let Extent { map, sums, slots, .. } = l.extents[0];
            let areas = [l.root[0], l.root[1], l.records[0], l.records[1], l.log, map, sums, slots];
            assert!(areas.windows(2).all(|w| w[0].end() == w[1].at), "{l:?}");
            let [first, second, middle, last] = Layout::superblocks(bytes);
            assert!(first == 0 && second + SLOT == l.root[0].at);
            assert!(slots.end() <= last && last + SLOT <= bytes);
            let hole = l.hole().map(|s| l.slot(s));
            assert!(hole == Some(middle) || middle > slots.end());
            assert!(slots.len >= bytes / 2, "{l:?}");
            assert_eq!(l.places(), Layout::superblocks(bytes));
        }
        assert!(Layout::new(SMALLEST - 1).is_err());
    }

    #[test]
    fn metadata_takes_two_percent_of_a_large_device() {
        let l = Layout::new(1 << 40).unwrap();
        assert!((l.extents[0].slots.at as f64) < 0.02 * (1u64 << 40) as f64, "{l:?}");
    }

    /// Sizes that a device has, one after another.
    const LIVES: [&[u64]; 5] = [
        &[16 * MIB, 32 * MIB, 64 * MIB],
        &[17 * MIB + 4711, 33 * MIB + 4712, GIB, GIB + 17 * MIB],
        &[GIB, 1 << 40, 2 << 40],
        &[1 << 40, (1 << 40) + 64 * MIB],
        &[100 << 40, 127 << 40, 130 << 40],
    ];

    #[test]
    fn each_growth_appends_areas_and_moves_nothing_but_root_and_last_superblock() {
        for sizes in LIVES {
            let mut l = Layout::new(sizes[0]).unwrap();
            for bytes in &sizes[1..] {
                let before = l.clone();
                l = l.grown(*bytes).unwrap();
                let e = *l.extents.last().unwrap();
                assert_eq!((&l.records, l.log, l.size), (&before.records, before.log, e.end));
                assert_eq!(l.extents[..before.extents.len()], before.extents);
                let areas = [l.root[0], l.root[1], e.map, e.sums, e.slots];
                assert!(areas.windows(2).all(|w| w[0].end() == w[1].at), "{l:?}");
                assert!(l.root[0].at == before.size && e.slots.end() <= l.places()[3]);
                assert!(l.places()[..3] == before.places()[..3] && *bytes - l.size < SLOT);
                assert!(l.earlier_ends().last() == Some(before.places()[3]));
                assert!(l.root[0].len >= l.root_len() as u64, "{l:?}");
                assert!(l.capacity() > before.capacity());
            }
        }
    }

    #[test]
    fn every_slot_and_page_is_inside_its_extent_and_neighbours_by_number_are_neighbours() {
        for sizes in LIVES {
            let l = Layout::new(sizes[0]).unwrap();
            let l = sizes[1..].iter().fold(l, |l, bytes| l.grown(*bytes).unwrap());
            for e in &l.extents {
                let last = e.slot_end() - 1;
                assert_eq!((l.slot(e.first), l.slot(last) + SLOT), (e.slots.at, e.slots.end()));
                assert!(l.has_slot(last) && !l.has_slot(last + 1));
                let (map, sum) = (last + 1, last + 1); // an unused number, which has a page
                assert!(l.map_page(e.first / MAP_ENTRIES) == e.map.at);
                assert!(l.map_page(map / MAP_ENTRIES) + 2 * PAGE <= e.map.end());
                assert!(l.sum_page(e.first / SUM_ENTRIES) == e.sums.at);
                assert!(l.sum_page(sum / SUM_ENTRIES) + 2 * PAGE <= e.sums.end());
                assert!(l.map_run_end(e.first / MAP_ENTRIES) > last / MAP_ENTRIES);
            }
            let gaps = l.unused().filter(|s| Some(*s) != l.hole()).count() as u32;
            let slots: u32 = l.extents.iter().map(|e| e.slot_end() - e.first).sum();
            assert_eq!(gaps + slots, l.slot_count());
            let hole = l.hole().is_some();
            assert_eq!(l.capacity(), (u64::from(slots) - u64::from(hole)) * SLOT);
        }
    }

    #[test]
    fn too_small_and_too_many_growths_are_refused() {
        let mut l = Layout::new(SMALLEST).unwrap();
        for less in [0, SMALLEST - 1, SMALLEST, SMALLEST + SMALLEST_GROWTH - 1] {
            assert_eq!(l.grown(less), Err(NotGrown::TooLittle));
        }
        // The root alone would take most of it.
        let large = Layout::new(100 << 40).unwrap();
        assert_eq!(large.grown((100 << 40) + SMALLEST_GROWTH), Err(NotGrown::TooLittle));
        for i in 2..=1 + GROWTHS as u64 {
            l = l.grown(i * SMALLEST_GROWTH).unwrap();
        }
        assert_eq!(l.grown(GIB), Err(NotGrown::TooOften));
        let largest = Layout::new(256 << 40).unwrap();
        assert_eq!(largest.grown(300 << 40), Err(NotGrown::TooLarge));
    }
}
