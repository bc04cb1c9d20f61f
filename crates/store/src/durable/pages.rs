//! The pages of map and checksums on the device. Each one is there twice; the root has the checksum
//! of the copy that counts.
//!
//! Only the mount reads pages of the map. Pages of checksums are read when a job or the checkpoint
//! needs them. The checkpoint writes a page to its other copy, which counts from then on: in memory
//! at once, on the device when the root says so.
//!
//! Invariant: a page that is being read has readers, and is read once for all of them.

use super::bits::Bits;
use super::format::page_sum;
use super::job::{Fetch, Op, Piece, Reader};
use super::layout::{Layout, MAP_ENTRIES, PAGE, SLOT_BLOCKS, SUM_ENTRIES};
use super::ops::Ops;
use super::sums::{SumPage, Sums};
use super::unitmap::UnitMap;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use seam::{Buf, DiskError, Effects};
use zerocopy::IntoBytes;

/// Number of reads of single copies of a page, in turn, after the device failed to read both.
const TRIES: u32 = 6;

/// The pages of one device.
#[derive(Debug)]
pub(super) struct Pages {
    uuid: [u64; 2],
    /// Checksums of the pages of the map, then of the pages of checksums. 0: never written.
    root: Vec<u32>,
    /// By page, as in the root: the copy that counts.
    copies: Bits,
    /// The checksums in memory.
    pub sums: Sums,
    /// By page of checksums that is being read: what waits for it.
    loading: BTreeMap<u32, Vec<Reader>>,
    /// Number of pages of checksums without a whole copy.
    lost: u64,
}

impl Pages {
    /// Makes the state that recovery found.
    pub(super) fn new(uuid: [u64; 2], root: Vec<u32>, copies: Bits, sums: Sums) -> Pages {
        Pages { uuid, root, copies, sums, loading: BTreeMap::new(), lost: 0 }
    }

    /// Returns the number of pages of checksums that had no whole copy.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the root as bytes.
    pub(super) fn root(&self, out: &mut Effects) -> Buf {
        let mut root = out.alloc(self.root.len() * 4);
        for (bytes, sum) in root.as_mut().chunks_exact_mut(4).zip(&self.root) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        root
    }

    // ---- reading checksums ----

    /// Notes the checksums of a job's blocks that are in memory. Returns the pages of the others.
    pub(super) fn resolve(&mut self, fetch: &mut Fetch) -> Vec<u32> {
        let mut missing: Vec<u32> = Vec::new();
        let Fetch { pieces, sums, .. } = fetch;
        let all = pieces.iter().filter(|p| !p.ready).flat_map(blocks);
        for (sum, (slot, block)) in sums.iter_mut().zip(all).filter(|(sum, _)| sum.is_none()) {
            *sum = self.sums.get(slot, block);
            if sum.is_none() {
                missing.push(slot / SUM_ENTRIES);
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    /// Reads a page of checksums for a waiting reader.
    pub(super) fn load(
        &mut self,
        page: u32,
        reader: Reader,
        layout: &Layout,
        ops: &mut Ops,
        out: &mut Effects,
    ) {
        let readers = self.loading.entry(page).or_default();
        readers.push(reader);
        if readers.len() == 1 {
            self.read(page, 0, layout, ops, out);
        }
    }

    /// Reads both copies of a page, or one of them on a retry.
    fn read(&self, page: u32, tries: u32, layout: &Layout, ops: &mut Ops, out: &mut Effects) {
        let wanted = self.root[(layout.map_pages() + page) as usize];
        let (first, count) = copies_of(tries);
        let at = layout.sum_page(page) + first as u64 * PAGE;
        ops.read(at, count * PAGE as u32, Op::SumPage { page, wanted, tries }, out);
    }

    /// Takes the copies of a page that were read, and returns what waited for them; nothing if they
    /// are read again. If the device failed to read them, each copy is tried alone, several times,
    /// because the next checkpoint would save a page that counts as lost. If neither copy is the
    /// one that the root names, the checksums of its blocks are unknown. These blocks will fail
    /// their checks, and be repaired one by one.
    pub(super) fn take(
        &mut self,
        (page, asked, tries): (u32, u32, u32),
        result: Result<Buf, DiskError>,
        layout: &Layout,
        ops: &mut Ops,
        out: &mut Effects,
    ) -> Vec<Reader> {
        let index = layout.map_pages() + page;
        let wanted = self.root[index as usize];
        if self.sums.page(page).is_none() {
            if wanted != asked {
                self.read(page, 0, layout, ops, out); // saved and evicted while it was read
                return Vec::new();
            }
            let read = result.as_deref().unwrap_or(&[]);
            let found = self.find(page, wanted, tries, read, layout);
            if found.is_none() && (result.is_err() || tries > 0) && tries < TRIES {
                self.read(page, tries + 1, layout, ops, out);
                return Vec::new();
            }
            self.lost += u64::from(found.is_none());
            self.sums.insert(page, found.unwrap_or_else(empty_page));
        }
        self.loading.remove(&page).unwrap_or_default()
    }

    /// Returns the copy that counts, if it was among those that were read.
    fn find(
        &mut self,
        page: u32,
        wanted: u32,
        tries: u32,
        read: &[u8],
        layout: &Layout,
    ) -> Option<SumPage> {
        let mut sums = empty_page();
        if wanted == 0 {
            return Some(sums);
        }
        let found = whole_copy(read, wanted, self.uuid, layout.sum_page(page))?;
        let copy = copies_of(tries).0 + found;
        self.copies.put(layout.map_pages() + page, copy == 1);
        let bytes = &read[found * PAGE as usize..][..PAGE as usize];
        for (sum, b) in sums.iter_mut().zip(bytes.chunks_exact(4)) {
            *sum = u32::from_le_bytes(b.try_into().expect("four bytes"));
        }
        Some(sums)
    }

    // ---- saving pages ----

    /// Writes a page of the map to its other copy.
    pub(super) fn save_map(
        &self,
        page: u32,
        map: &UnitMap,
        layout: &Layout,
        ops: &mut Ops,
        out: &mut Effects,
    ) {
        let mut body = out.alloc(PAGE as usize);
        let slots = page * MAP_ENTRIES..(page + 1) * MAP_ENTRIES;
        for (bytes, slot) in body.as_mut().chunks_exact_mut(16).zip(slots) {
            bytes.copy_from_slice(map.entry(slot).as_bytes());
        }
        let both = layout.map_page(page);
        let sum = page_sum(&body, self.uuid, both);
        ops.write(self.other_copy(page, both), body, Op::SaveMap { page, sum }, out);
    }

    /// Writes a page of checksums, which is in memory, to its other copy.
    pub(super) fn save_sums(&self, page: u32, layout: &Layout, ops: &mut Ops, out: &mut Effects) {
        let mut sums = self.sums.page(page).map_or_else(empty_page, |p| Box::new(**p));
        self.sums.merge(page, &mut sums);
        let mut body = out.alloc(PAGE as usize);
        for (bytes, sum) in body.as_mut().chunks_exact_mut(4).zip(sums.iter()) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        let both = layout.sum_page(page);
        let sum = page_sum(&body, self.uuid, both);
        let at = self.other_copy(layout.map_pages() + page, both);
        ops.write(at, body, Op::SaveSums { page, sum, sums }, out);
    }

    /// Returns the place of the copy of a page that doesn't count. `both` is the place of the pair.
    fn other_copy(&self, index: u32, both: u64) -> u64 {
        if self.copies.get(index) { both } else { both + PAGE }
    }

    /// Records that a page was written to its other copy.
    pub(super) fn saved(&mut self, index: u32, sum: u32) {
        self.root[index as usize] = sum;
        let other = !self.copies.get(index);
        self.copies.put(index, other);
    }
}

/// Returns the copies of a page that this try reads: the first one, and how many.
fn copies_of(tries: u32) -> (usize, u32) {
    match tries {
        0 => (0, 2),
        _ => (1 - tries as usize % 2, 1),
    }
}

/// Returns a page that was never written.
pub(super) fn empty_page() -> SumPage {
    let page: Box<[u32]> = vec![0; (SUM_ENTRIES * SLOT_BLOCKS) as usize].into_boxed_slice();
    page.try_into().expect("as long as a page")
}

/// Returns which of two copies, side by side at `at`, has this checksum.
pub(super) fn whole_copy(both: &[u8], wanted: u32, uuid: [u64; 2], at: u64) -> Option<usize> {
    both.chunks_exact(PAGE as usize).position(|copy| page_sum(copy, uuid, at) == wanted)
}

/// Iterates over the blocks of a piece: the slot, and the block in the slot.
fn blocks(piece: &Piece) -> impl Iterator<Item = (u32, u32)> + use<> {
    let (first, slot) = (piece.first, piece.slot);
    let home = first / SLOT_BLOCKS;
    (first..first + piece.count).map(move |b| (slot + b / SLOT_BLOCKS - home, b % SLOT_BLOCKS))
}
