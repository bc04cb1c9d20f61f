//! Commands that move, compare or change data (SBC-3 5).
//!
//! A command whose range exceeds the unit transfers nothing. A command of 0 blocks succeeds if its
//! range is valid. UNMAP frees nothing unless all its descriptors are valid.

use super::answer::Answer;
use super::checked::Checked;
use super::command::{Blocks, Residual};
use super::plan::Plan;
use super::ranges::{self, Descriptor};
use super::sense::Sense;
use super::step::{Step, Then, Transfer};
use super::unit::Unit;
use base::{BLOCK, SECTOR};
use seam::Buf;

/// Returns the start of the range in bytes, if the unit has all of it.
#[inline]
fn within(checked: &Checked<'_>, range: Blocks) -> Result<u64, Sense> {
    let end = range.lba.checked_add(range.count);
    if end.is_none_or(|end| end > checked.unit.blocks()) {
        return Err(Sense::OUT_OF_RANGE);
    }
    Ok(range.lba * u64::from(checked.unit.format.block()))
}

/// Returns the range of a command in bytes, if the unit has all of it, and it is not longer than
/// `most` bytes.
#[inline]
fn range(checked: &Checked<'_>, most: u64) -> Result<(u64, u32), Sense> {
    let range = checked.cdb.blocks();
    let at = within(checked, range)?;
    let len = range.count * u64::from(checked.unit.format.block());
    if len > most {
        return Err(Sense::cdb(checked.cdb.count_at(), 7));
    }
    Ok((at, len as u32))
}

/// Returns the transfer of a command of `len` bytes, given the announced length. `Err` ends the
/// command.
#[inline]
fn transfer(
    checked: &Checked<'_>,
    at: u64,
    len: u32,
    announced: u32,
    writes: bool,
) -> Result<Transfer, Answer> {
    let residual = Residual::of(announced, u64::from(len));
    let moves = len.min(announced);
    if moves == 0 {
        return Err(Answer::good().with(residual));
    }
    let block = checked.unit.format.block();
    Ok(Transfer { at, len: moves.next_multiple_of(SECTOR), moves, residual, block, writes })
}

/// Returns the transfer of a command that receives data: whole blocks of it.
fn receive(checked: &Checked<'_>, at: u64, len: u32, writes: bool) -> Result<Transfer, Answer> {
    let transfer = transfer(checked, at, len, checked.sends, writes)?;
    if !transfer.moves.is_multiple_of(transfer.block) {
        return Err(Answer::check(Sense::WRONG_LENGTH).with(transfer.residual));
    }
    Ok(transfer)
}

/// READ 6, 10, 12, 16.
pub(super) fn read(checked: &Checked<'_>) -> Result<Step, Answer> {
    let (at, len) = range(checked, u64::from(checked.unit.transfer))?;
    Ok(Step::Read(transfer(checked, at, len, checked.reads, false)?))
}

/// WRITE 6, 10, 12, 16, and WRITE AND VERIFY 10, 12, 16. The data is not read back for
/// verification: it gets a checksum on arrival, which every later read and the scrubber check.
pub(super) fn write(checked: &Checked<'_>) -> Result<Step, Answer> {
    let (at, len) = range(checked, u64::from(checked.unit.transfer))?;
    Ok(Step::Write(receive(checked, at, len, true)?))
}

/// VERIFY 10, 12, 16: compares with the host's data if BYTCHK is 1, else reads and checks.
pub(super) fn verify(checked: &Checked<'_>) -> Result<Step, Answer> {
    let (at, len) = range(checked, u64::from(checked.unit.transfer))?;
    if checked.cdb.has(1, 0x02) {
        return Ok(Step::Verify(receive(checked, at, len, false)?));
    }
    if len == 0 {
        return Ok(checked.good());
    }
    Ok(Step::Run(Plan::check(checked.unit, at, len).with(checked.nothing_moves())))
}

/// PRE-FETCH 10, 16 and SYNCHRONIZE CACHE 10, 16: there is no cache to fill, and everything that
/// was answered is durable (rule R7).
pub(super) fn nothing_to_do(checked: &Checked<'_>) -> Result<Step, Answer> {
    within(checked, checked.cdb.blocks())?;
    Ok(checked.good())
}

/// WRITE SAME 10, 16.
pub(super) fn write_same(checked: &Checked<'_>) -> Result<Step, Answer> {
    let cdb = checked.cdb;
    let most = u64::from(checked.unit.same_max()) * u64::from(checked.unit.format.block());
    let (at, len) = range(checked, most)?;
    if len == 0 {
        return Err(Sense::cdb(cdb.count_at(), 7).into()); // WSNZ is 1.
    }
    let hole = cdb.has(1, 0x08);
    let no_data = cdb.len() == 16 && cdb.has(1, 0x01);
    if !no_data {
        return checked.gather(checked.unit.format.block(), Then::WriteSame { at, len, hole });
    }
    if checked.sends != 0 {
        return Err(Answer::check(Sense::WRONG_LENGTH).with(checked.nothing_moves()));
    }
    Ok(Step::Run(Plan::zero(checked.unit, at, len, hole).with(checked.nothing_moves())))
}

/// COMPARE AND WRITE: within one block of the store, so that the store can do it atomically.
pub(super) fn compare_write(checked: &Checked<'_>) -> Result<Step, Answer> {
    let range = Blocks { lba: checked.cdb.number(2, 8), count: checked.cdb.number(13, 1) };
    let at = within(checked, range)?;
    let len = range.count as u32 * checked.unit.format.block();
    if at % u64::from(BLOCK) + u64::from(len) > u64::from(BLOCK) {
        return Err(Sense::cdb(13, 7).into());
    }
    if len == 0 && checked.sends == 0 {
        return Ok(checked.good());
    }
    if len == 0 {
        // 256 blocks do not fit in the field of one byte.
        return Err(Sense::cdb(13, 7).into());
    }
    checked.gather(2 * len, Then::CompareWrite { at, len })
}

/// UNMAP: asks for the parameter list. An empty list is not an error.
pub(super) fn unmap_begin(checked: &Checked<'_>) -> Result<Step, Answer> {
    match checked.cdb.number(7, 2) as u32 {
        0 => Ok(checked.good()),
        len if (len as usize) < ranges::HEAD => Err(Sense::LIST_LENGTH.into()),
        len => checked.gather(len, Then::Unmap),
    }
}

/// Checks the parameter list of UNMAP, and begins.
pub(super) fn unmap(unit: &Unit, list: Buf) -> Result<Step, Sense> {
    let announced = usize::from(u16::from_be_bytes([list[2], list[3]]));
    if ranges::HEAD + announced > list.len() {
        return Err(Sense::LIST_LENGTH);
    }
    let (mut number, mut blocks) = (0, 0);
    for (i, Descriptor { lba, count }) in ranges::descriptors(&list).enumerate() {
        number += 1;
        blocks += u64::from(count);
        if number > ranges::DESCRIPTORS || blocks > u64::from(unit.unmap_max()) {
            return Err(Sense::list((ranges::HEAD + i * ranges::DESCRIPTOR) as u16));
        }
        if lba.checked_add(u64::from(count)).is_none_or(|end| end > unit.blocks()) {
            return Err(Sense::OUT_OF_RANGE);
        }
    }
    let plan = Plan::unmap(unit, list);
    Ok(plan.map_or_else(|| Step::Answer(Answer::good()), Step::Run))
}
