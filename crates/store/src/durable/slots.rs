//! The slots of a mounted device: their content, the data in memory that waits to be written to
//! them, and the jobs and reservations that need them.
//!
//! Invariants: data that waits for a slot is the newest data of blocks that the map counts as
//! valid; a reservation pins all slots of its range until it ends.

use super::format::NO_SLOT;
use super::holes::Holes;
use super::job::Piece;
use super::layout::{SLOT, SLOT_BLOCKS};
use super::overlay::{Overlay, Run};
use super::record::{Write, WriteMode};
use super::sums::Sums;
use super::unitmap::{Access, Chunk, Pin, UnitMap};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, UnitKey, VolumeId};
use seam::Buf;

/// The range of a reservation: group, unit, first byte, number of bytes.
type Range = (GroupId, UnitKey, u32, u32);

/// All slots of a device.
#[derive(Debug)]
pub(super) struct Slots {
    map: UnitMap,
    overlay: Overlay,
    /// Slots that reservations pin.
    reserved: BTreeMap<Range, Vec<Vec<Pin>>>,
}

/// Returns the blocks of the unit's set that lie in one chunk.
fn in_chunk(blocks: BlockSet, chunk: u8) -> u16 {
    (blocks.0[chunk as usize / 4] >> (chunk % 4 * 16)) as u16
}

fn chunks(group: GroupId, unit: UnitKey, at: u32, len: u32) -> impl Iterator<Item = Chunk> {
    let chunk = SLOT as u32;
    let range = at / chunk..(at + len).div_ceil(chunk);
    range.map(move |c| Chunk { group, unit, chunk: c as u8 })
}

impl Slots {
    /// Makes the state that recovery found.
    pub(super) fn new(map: UnitMap, overlay: Overlay) -> Slots {
        Slots { map, overlay, reserved: BTreeMap::new() }
    }

    /// Returns what the slots hold.
    pub(super) fn map(&self) -> &UnitMap {
        &self.map
    }

    /// Returns which free slots to give back.
    pub(super) fn holes(&mut self) -> &mut Holes {
        self.map.holes()
    }

    /// Begins to give slots back: see [`UnitMap::begin_hole`].
    pub(super) fn begin_hole(&mut self) -> Option<core::ops::Range<u32>> {
        self.map.begin_hole()
    }

    /// These slots can be taken again.
    pub(super) fn end_hole(&mut self) {
        self.map.end_hole();
    }

    /// Returns what waits in memory.
    pub(super) fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Returns the slot of a block of a unit.
    pub(super) fn slot_of(&self, group: GroupId, unit: UnitKey, block: u32) -> Option<u32> {
        self.map.slot(Chunk { group, unit, chunk: (block / SLOT_BLOCKS) as u8 })
    }

    /// True when all slots of a range hold data.
    pub(super) fn hold(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        let holds = |slot| self.map.valid(slot) != 0;
        chunks(group, unit, at, len).all(|c| self.map.slot(c).is_some_and(holds))
    }

    // ---- pins ----

    /// Pins the slots of a range, and allocates missing ones. Returns `None`, and pins nothing, if
    /// there are too few slots, those included that a sweep has yet to free.
    pub(super) fn pin_range(
        &mut self,
        (group, unit, at, len): Range,
        access: impl Fn(u16) -> Access,
    ) -> Option<Vec<Pin>> {
        let missing = chunks(group, unit, at, len).filter(|c| self.map.slot(*c).is_none()).count();
        while missing as u32 > self.map.free() {
            if !self.map.is_sweeping() {
                return None;
            }
            self.sweep(1);
        }
        let touched = BlockSet::touching(at, len);
        // Fails at the first chunk or not at all: a unit has one owner, and slots were counted.
        let pin = |c: Chunk| self.map.pin(c, access(in_chunk(touched, c.chunk)));
        chunks(group, unit, at, len).map(pin).collect()
    }

    /// Pins those slots of a range that exist.
    pub(super) fn pin_present(
        &mut self,
        (group, unit, at, len): Range,
        access: impl Fn(u16) -> Access,
    ) -> Vec<Pin> {
        let (touched, map) = (BlockSet::touching(at, len), &mut self.map);
        let pin = |c: Chunk| {
            map.slot(c).map(|slot| map.pin_slot(slot, access(in_chunk(touched, c.chunk))))
        };
        chunks(group, unit, at, len).filter_map(pin).collect()
    }

    /// Takes and pins a second slot for a chunk: see [`UnitMap::pin_second`].
    pub(super) fn pin_second(&mut self, chunk: Chunk) -> Option<Pin> {
        self.map.pin_second(chunk)
    }

    /// Ends a pin.
    pub(super) fn unpin(&mut self, pin: Pin) {
        self.map.unpin(pin);
    }

    /// Reserves the slots of a range. Returns false if there are too few.
    pub(super) fn reserve(&mut self, range: Range) -> bool {
        let Some(pins) = self.pin_range(range, |_| Access::Hold) else { return false };
        self.reserved.entry(range).or_default().push(pins);
        true
    }

    /// Ends a reservation of exactly this range.
    pub(super) fn release(&mut self, range: Range) {
        let Some(all) = self.reserved.get_mut(&range) else { return };
        let pins = all.pop().unwrap_or_default();
        if all.is_empty() {
            self.reserved.remove(&range);
        }
        pins.into_iter().for_each(|pin| self.map.unpin(pin));
    }

    // ---- changes of the content ----

    /// Applies a write whose record and data are durable. Returns false if it has no effect because
    /// the volume was dropped while the job ran.
    pub(super) fn apply(&mut self, record: u64, write: &Write, sums: &mut Sums) -> bool {
        if write.parts.iter().any(|p| self.map.is_swept(p.slot)) {
            return false;
        }
        for part in &write.parts {
            if part.way == WriteMode::Clear {
                self.overlay.clear(part.slot, part.blocks);
                self.map.clear(part.slot, part.blocks);
                continue;
            }
            if part.old != NO_SLOT {
                self.map.replace(part.old, part.slot);
                self.clear(part.old, u16::MAX);
            }
            if part.way == WriteMode::Lost {
                self.overlay.clear(part.slot, part.blocks);
            }
            self.map.set(part.slot, part.blocks);
            sums.put(part.slot, part.blocks, &part.sums);
            if part.way == WriteMode::Inline {
                for (i, block) in part.each().enumerate() {
                    self.overlay.put(part.slot, block, record, part.block(i));
                }
            }
        }
        true
    }

    /// Marks blocks as holding no data.
    pub(super) fn clear(&mut self, slot: u32, blocks: u16) {
        self.overlay.clear(slot, blocks);
        self.map.clear(slot, blocks);
    }

    /// Drops all owners that `of` accepts: see [`UnitMap::drop_owners`].
    pub(super) fn drop_owners(&mut self, of: impl Fn(GroupId, VolumeId) -> bool) {
        self.map.drop_owners(of);
    }

    /// The drop of the owners that `of` accepts is durable: see [`UnitMap::begin_sweep`].
    pub(super) fn begin_sweep(&mut self, of: impl Fn(GroupId, VolumeId) -> bool) {
        self.map.begin_sweep(of);
    }

    /// True while wiped or dropped data is in slots that a sweep has yet to free.
    pub(super) fn is_sweeping(&mut self) -> bool {
        self.map.is_sweeping()
    }

    /// Continues to free the slots of wiped and dropped data, those of at most `most` units.
    pub(super) fn sweep(&mut self, most: u32) {
        self.map.sweep(most, |slot| self.overlay.clear(slot, u16::MAX));
    }

    /// Returns the pages of the map that have changed since the last call.
    pub(super) fn take_changed_pages(&mut self) -> super::bits::Bits {
        self.map.take_dirty()
    }

    // ---- data on its way to its slots ----

    /// Returns the first run from `from` on, or else the first of all, that can go to its slot.
    /// The slot is pinned until [`Slots::wrote`].
    pub(super) fn next_run(&mut self, from: (u32, u32)) -> Option<(Run, Pin)> {
        let run = self.overlay.next_run(from).or_else(|| self.overlay.next_run((0, 0)))?;
        let pin = self.map.pin_slot(run.slot, Access::Hold);
        Some((run, pin))
    }

    /// Records that a run was written to its slot: per block, the slot, the block and the record.
    pub(super) fn wrote(&mut self, pin: Pin, blocks: &[(u32, u32, u64)]) {
        blocks.iter().for_each(|(slot, block, record)| self.overlay.wrote(*slot, *block, *record));
        self.map.unpin(pin);
    }

    /// Records that a run is durable in its slot.
    pub(super) fn flushed(&mut self, blocks: &[(u32, u32, u64)]) {
        for (slot, block, record) in blocks {
            self.overlay.flushed(*slot, *block, *record);
        }
    }

    // ---- what to read ----

    /// Returns the pieces for those of these blocks that hold data, in order.
    pub(super) fn pieces(&self, group: GroupId, unit: UnitKey, blocks: BlockSet) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = blocks;
        while let Some(run) = rest.first_run() {
            rest.remove(BlockSet::from_range(run.clone()));
            for chunk in run.start / SLOT_BLOCKS..run.end.div_ceil(SLOT_BLOCKS) {
                let first = chunk * SLOT_BLOCKS;
                let Some(slot) = self.slot_of(group, unit, first) else { continue };
                let range = run.start.max(first)..run.end.min(first + SLOT_BLOCKS);
                range.for_each(|b| self.add_block(&mut pieces, b, slot));
            }
        }
        pieces
    }

    fn add_block(&self, pieces: &mut Vec<Piece>, block: u32, slot: u32) {
        let in_slot = block % SLOT_BLOCKS;
        if self.map.valid(slot) >> in_slot & 1 == 0 {
            return;
        }
        if let Some(data) = self.overlay.get(slot, in_slot) {
            let data = data.clone();
            return pieces.push(Piece { first: block, count: 1, slot, ready: true, data });
        }
        if let Some(p) = pieces.last_mut()
            && !p.ready
            && p.first + p.count == block
            && p.slot + block / SLOT_BLOCKS - p.first / SLOT_BLOCKS == slot
        {
            p.count += 1;
            return;
        }
        pieces.push(Piece { first: block, count: 1, slot, ready: false, data: Buf::EMPTY });
    }
}
