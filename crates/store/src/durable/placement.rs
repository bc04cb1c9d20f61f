//! Where the data of a write goes: the parts of its record, one per slot or block.
//!
//! - No block of the part holds data: **direct**. Data goes to the slot and the record to the log
//!   at the same time. Nothing old is overwritten, so their order does not matter.
//! - The part is a whole slot, and another slot is free: direct, to that slot. The record gives the
//!   old slot back.
//! - Anything else is **inline**: the record carries the data.
//! - Zeroed blocks are **cleared**: only the record says so.
//! - **Lost** blocks get checksums that match nothing, also in the record alone.

use super::format::{NO_SLOT, block_sum, unmatchable_sum};
use super::layout::{SLOT_BLOCKS, UNIT_CHUNKS};
use super::record::{Part, Write, WriteMode};
use super::slots::Slots;
use super::unitmap::{Chunk, Pin};
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, UnitKey};
use seam::Buf;

impl Slots {
    /// Makes one part per slot for a write with this data. `pins` are those of its slots.
    pub(super) fn place_data(&mut self, pins: &mut Vec<Pin>, write: &mut Write, data: &Buf) {
        let (group, unit) = (write.group, write.unit);
        for (i, (chunk, first, end)) in shares(write).enumerate() {
            let slot = pins[i].slot;
            let start = chunk * SLOT_BLOCKS;
            let blocks = mask(first - start, end - start);
            let at = ((first - write.first) * BLOCK) as usize;
            let data = data.slice(at..at + ((end - first) * BLOCK) as usize);
            let fresh = self.map().valid(slot) & blocks == 0;
            let (mut part, name) = (
                new_part(slot, chunk as u8, WriteMode::Inline, blocks),
                Chunk { group, unit, chunk: chunk as u8 },
            );
            if fresh && !self.overlay().is_writing(slot, blocks) {
                part.way = WriteMode::Direct;
            } else if blocks == u16::MAX
                && !self.map().is_dropped(slot)
                && let Some(other) = self.pin_second(name)
            {
                pins.push(other);
                (part.slot, part.old, part.way) = (other.slot, slot, WriteMode::Direct);
            }
            sum(&mut part, &data, unit, first);
            part.data = data;
            write.parts.push(part);
        }
    }

    /// Makes one part per slot for those blocks that are zeroed whole and hold data.
    pub(super) fn place_clears(&self, write: &mut Write, blocks: BlockSet) {
        for chunk in 0..UNIT_CHUNKS as u8 {
            let zeroed = (blocks.0[chunk as usize / 4] >> (chunk % 4 * 16)) as u16;
            let name = Chunk { group: write.group, unit: write.unit, chunk };
            let Some(slot) = self.map().slot(name).filter(|_| zeroed != 0) else { continue };
            let blocks = zeroed & self.map().valid(slot);
            if blocks == 0 {
                continue;
            }
            write.parts.push(new_part(slot, chunk, WriteMode::Clear, blocks));
        }
    }

    /// Makes a part for one block that holds data.
    pub(super) fn place_inline(&self, write: &mut Write, block: u32, data: Buf) {
        let Some(slot) = self.slot_of(write.group, write.unit, block) else { return };
        let (chunk, in_slot) = ((block / SLOT_BLOCKS) as u8, block % SLOT_BLOCKS);
        let mut part = new_part(slot, chunk, WriteMode::Inline, mask(in_slot, in_slot + 1));
        sum(&mut part, &data, write.unit, block);
        part.data = data;
        write.parts.push(part);
    }
}

/// Makes one part per slot for blocks that are lost.
pub(super) fn place_lost(pins: &[Pin], write: &mut Write) {
    for ((chunk, first, end), pin) in shares(write).zip(pins) {
        let blocks = mask(first % SLOT_BLOCKS, end - chunk * SLOT_BLOCKS);
        let mut part = new_part(pin.slot, chunk as u8, WriteMode::Lost, blocks);
        for block in first..end {
            part.sums[(block % SLOT_BLOCKS) as usize] = unmatchable_sum(write.unit, block);
        }
        write.parts.push(part);
    }
}

/// Iterates over the slots that a write touches: the chunk, the first block that is written there,
/// and the block after the last one.
fn shares(write: &Write) -> impl Iterator<Item = (u32, u32, u32)> + use<> {
    let (first, end) = (write.first, write.end);
    (first / SLOT_BLOCKS..end.div_ceil(SLOT_BLOCKS)).map(move |chunk| {
        let start = chunk * SLOT_BLOCKS;
        (chunk, first.max(start), end.min(start + SLOT_BLOCKS))
    })
}

fn new_part(slot: u32, chunk: u8, way: WriteMode, blocks: u16) -> Part {
    let (sums, data) = ([0; SLOT_BLOCKS as usize], Buf::EMPTY);
    Part { slot, old: NO_SLOT, chunk, way, blocks, sums, data }
}

/// Computes the checksums of a part whose data begins with block `first` of the unit.
fn sum(part: &mut Part, data: &[u8], unit: UnitKey, first: u32) {
    for (i, bytes) in data.chunks_exact(BLOCK as usize).enumerate() {
        let block = first + i as u32;
        part.sums[(block % SLOT_BLOCKS) as usize] = block_sum(bytes, unit, block);
    }
}

fn mask(first: u32, end: u32) -> u16 {
    (((1u32 << end) - 1) & !((1u32 << first) - 1)) as u16
}
