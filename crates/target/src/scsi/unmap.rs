//! UNMAP (SBC-3 5.28): frees ranges, which then read as zeros.
//!
//! Invariant: nothing is freed unless all descriptors are valid.

use super::device::Asked;
use super::plan::Plan;
use super::sense::Sense;
use super::step::{Answer, Step, Then};
use super::unit::Unit;
use seam::Buf;

/// Bytes in front of the descriptors.
const HEAD: usize = 8;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// Most descriptors of one command.
pub(super) const DESCRIPTORS: u32 = 256;

/// One descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Descriptor {
    pub(super) lba: u64,
    pub(super) count: u32,
}

/// Returns the descriptors of a parameter list that was checked.
pub(super) fn descriptors(list: &[u8]) -> impl Iterator<Item = Descriptor> {
    let len = list.get(2..4).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
    let all = list.get(HEAD..).unwrap_or_default();
    all[..len.min(all.len())].chunks_exact(DESCRIPTOR).map(|d| Descriptor {
        lba: d[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte)),
        count: d[8..12].iter().fold(0, |n, byte| n << 8 | u32::from(*byte)),
    })
}

/// Asks for the parameter list. None at all is no error.
pub(super) fn begin(asked: &Asked<'_>) -> Result<Step, Answer> {
    match asked.cdb.number(7, 2) as u32 {
        0 => Ok(asked.good()),
        len if (len as usize) < HEAD => Err(Sense::LIST_LENGTH.into()),
        len => asked.gather(len, Then::Unmap),
    }
}

/// Checks the parameter list, and begins.
pub(super) fn unmap(unit: &Unit, list: Buf) -> Result<Step, Sense> {
    let announced = usize::from(u16::from_be_bytes([list[2], list[3]]));
    if HEAD + announced > list.len() {
        return Err(Sense::LIST_LENGTH);
    }
    let (mut number, mut blocks) = (0, 0);
    for (i, Descriptor { lba, count }) in descriptors(&list).enumerate() {
        number += 1;
        blocks += u64::from(count);
        if number > DESCRIPTORS || blocks > u64::from(unit.unmap_max()) {
            return Err(Sense::list((HEAD + i * DESCRIPTOR) as u16));
        }
        if lba.checked_add(u64::from(count)).is_none_or(|end| end > unit.blocks()) {
            return Err(Sense::OUT_OF_RANGE);
        }
    }
    let plan = Plan::unmap(unit, list);
    Ok(plan.map_or_else(|| Step::Answer(Answer::good()), Step::Run))
}
