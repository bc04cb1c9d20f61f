//! The commands that report the number of blocks, and which of them are mapped.

use super::answer::Answer;
use super::checked::Checked;
use super::command::Blocks;
use super::plan::Plan;
use super::sense::Sense;
use super::step::Step;

/// Most bytes of the volume that one GET LBA STATUS covers. The host asks for the rest with another
/// one.
const STATUS_RANGE: u64 = 64 << 20;
/// Most bytes of its answer.
const STATUS_DATA: u32 = 64 << 10;
/// READ CAPACITY 10 and 16 (SBC-3 5.15, 5.16).
pub(super) fn read_capacity(checked: &Checked<'_>) -> Step {
    let unit = checked.unit;
    let (last, block) = (unit.blocks().saturating_sub(1), unit.format.block());
    if checked.cdb.len() == 10 {
        let mut data = [0; 8];
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        data[..4].copy_from_slice(&last.to_be_bytes());
        data[4..].copy_from_slice(&block.to_be_bytes());
        return checked.data(&data, data.len());
    }
    let mut data = [0; 32];
    data[..8].copy_from_slice(&last.to_be_bytes());
    data[8..12].copy_from_slice(&block.to_be_bytes());
    data[13] = unit.format.exponent();
    data[14] = 0xc0; // LBPME, LBPRZ
    checked.data(&data, checked.cdb.be32(10) as usize)
}

/// GET LBA STATUS (SBC-3 5.5).
pub(super) fn lba_status(checked: &Checked<'_>) -> Result<Step, Answer> {
    let unit = checked.unit;
    let Blocks { lba, .. } = checked.cdb.blocks();
    if lba >= unit.blocks() {
        return Err(Sense::OUT_OF_RANGE.into());
    }
    let block = u64::from(unit.format.block());
    let len = ((unit.blocks() - lba) * block).min(STATUS_RANGE) as u32;
    let allocation = checked.cdb.be32(10).min(STATUS_DATA);
    Ok(Step::Run(Plan::status(unit, lba * block, len, allocation, checked.reads)))
}
