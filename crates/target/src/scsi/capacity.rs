//! How many blocks there are, and which of them are mapped.

use super::command::Blocks;
use super::device::Asked;
use super::plan::Plan;
use super::sense::Sense;
use super::step::{Answer, Step};
use crate::extents::Runs;
use alloc::vec::Vec;

/// Most bytes of the volume that one GET LBA STATUS looks at. The host asks for the rest with
/// another one.
const STATUS_RANGE: u64 = 64 << 20;
/// Most bytes of its answer.
const STATUS_DATA: u32 = 64 << 10;
/// Bytes in front of the descriptors.
const STATUS_HEAD: usize = 8;
/// Bytes of a descriptor.
const STATUS_DESCRIPTOR: usize = 16;

/// READ CAPACITY 10 and 16 (SBC-3 5.15, 5.16).
pub(super) fn read_capacity(asked: &Asked<'_>) -> Step {
    let unit = asked.unit;
    let (last, block) = (unit.blocks().saturating_sub(1), unit.format.block());
    if asked.cdb.len() == 10 {
        let mut data = [0; 8];
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        data[..4].copy_from_slice(&last.to_be_bytes());
        data[4..].copy_from_slice(&block.to_be_bytes());
        return asked.data(&data, data.len());
    }
    let mut data = [0; 32];
    data[..8].copy_from_slice(&last.to_be_bytes());
    data[8..12].copy_from_slice(&block.to_be_bytes());
    data[13] = unit.format.exponent();
    data[14] = 0xc0; // LBPME, LBPRZ
    asked.data(&data, asked.cdb.be32(10) as usize)
}

/// GET LBA STATUS (SBC-3 5.5).
pub(super) fn lba_status(asked: &Asked<'_>) -> Result<Step, Answer> {
    let unit = asked.unit;
    let Blocks { lba, .. } = asked.cdb.blocks();
    if lba >= unit.blocks() {
        return Err(Sense::OUT_OF_RANGE.into());
    }
    let block = u64::from(unit.format.block());
    let len = ((unit.blocks() - lba) * block).min(STATUS_RANGE) as u32;
    let allocation = asked.cdb.be32(10).min(STATUS_DATA);
    Ok(Step::Run(Plan::status(unit, lba * block, len, allocation, asked.reads)))
}

/// Returns the parameter data of GET LBA STATUS from the bitmap of a range: as many descriptors as
/// the allocation length has room for, and at least one. `None` if the bitmap is too short.
pub(super) fn status(
    bits: &[u8],
    at: u64,
    len: u32,
    block: u32,
    allocation: u32,
) -> Option<Vec<u8>> {
    let room = (allocation as usize).saturating_sub(STATUS_HEAD) / STATUS_DESCRIPTOR;
    let mut lba = at / u64::from(block);
    let mut data = Vec::from([0; STATUS_HEAD]);
    for (bytes, mapped) in Runs::new(bits, at, len)?.take(room.max(1)) {
        let count = bytes / block;
        data.extend_from_slice(&lba.to_be_bytes());
        data.extend_from_slice(&count.to_be_bytes());
        data.extend_from_slice(&[u8::from(!mapped), 0, 0, 0]);
        lba += u64::from(count);
    }
    let rest = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&rest.to_be_bytes());
    Some(data)
}
