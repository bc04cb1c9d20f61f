//! MODE SENSE and MODE SELECT (SPC-4 6.9 to 6.12, 7.5; SBC-3 6.5). No parameter can be changed, so
//! MODE SELECT accepts only the present values.

use super::answer::Answer;
use super::checked::Checked;
use super::sense::Sense;
use super::step::{Step, Then};
use super::unit::Unit;
use alloc::vec::Vec;

/// The pages with their values, ascending: caching (no write cache), control (unrestricted
/// reordering), informational exceptions (DEXCPT).
static PAGES: [&[u8]; 3] = [
    &[0x08, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    &[0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0],
    &[0x1c, 0x0a, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

/// All pages.
const ALL: u8 = 0x3f;

/// MODE SENSE 6, 10.
pub(super) fn sense(checked: &Checked<'_>) -> Result<Step, Answer> {
    let cdb = checked.cdb;
    let ten = cdb.len() == 10;
    let (control, page, subpage) = (cdb.byte(2) >> 6, cdb.byte(2) & 0x3f, cdb.byte(3));
    if control == 3 {
        return Err(Sense::NO_SAVING.into());
    }
    if !matches!(subpage, 0x00 | 0xff) {
        return Err(Sense::cdb(3, 7).into());
    }
    if page != ALL && PAGES.iter().all(|p| p[0] != page) {
        return Err(Sense::cdb(2, 5).into());
    }
    let changeable = control == 1;
    let mut data = Vec::from([0; 8]);
    if !cdb.has(1, 0x08) {
        data.extend_from_slice(&descriptor(checked.unit, ten && cdb.has(1, 0x10)));
    }
    let descriptor = data.len() - 8;
    for bytes in PAGES.iter().filter(|p| page == ALL || p[0] == page) {
        let (head, body) = bytes.split_at(2);
        data.extend_from_slice(head);
        data.extend(body.iter().map(|value| if changeable { 0 } else { *value }));
    }
    let specific = u8::from(checked.unit.read_only) << 7 | 0x10; // WP, DPOFUA
    let allocation = if ten {
        let len = (data.len() - 2) as u16;
        data[..2].copy_from_slice(&len.to_be_bytes());
        data[3] = specific;
        data[4] = u8::from(descriptor == 16); // LONGLBA
        data[7] = descriptor as u8;
        cdb.number(7, 2) as usize
    } else {
        data.drain(..4); // The head has four bytes only.
        let len = (data.len() - 1) as u8;
        data[..4].copy_from_slice(&[len, 0, specific, descriptor as u8]);
        cdb.byte(4).into()
    };
    Ok(checked.data(&data, allocation))
}

/// Returns the block descriptor, short or long.
fn descriptor(unit: &Unit, long: bool) -> Vec<u8> {
    let block = unit.format.block().to_be_bytes();
    if long {
        return [&unit.blocks().to_be_bytes()[..], &[0; 4], &block].concat();
    }
    let count = u32::try_from(unit.blocks()).unwrap_or(u32::MAX);
    [count.to_be_bytes(), block].concat()
}

/// MODE SELECT 6, 10: asks for the parameter list.
pub(super) fn select_begin(checked: &Checked<'_>) -> Result<Step, Answer> {
    let ten = checked.cdb.len() == 10;
    if !checked.cdb.has(1, 0x10) {
        return Err(Sense::cdb(1, 4).into());
    }
    let len = if ten { checked.cdb.number(7, 2) } else { checked.cdb.number(4, 1) };
    match len as u32 {
        0 => Ok(checked.good()),
        len => checked.gather(len, Then::ModeSelect { ten }),
    }
}

/// Checks the parameter list of MODE SELECT: all values must be the present ones.
pub(super) fn select(unit: &Unit, list: &[u8], ten: bool) -> Result<Step, Sense> {
    let head = if ten { 8 } else { 4 };
    if list.len() < head {
        return Err(Sense::LIST_LENGTH);
    }
    let medium = if ten { 2 } else { 1 };
    if list[medium] != 0 {
        return Err(Sense::list(medium as u16));
    }
    let (long, len) = if ten {
        (list[4] & 1 == 1, usize::from(u16::from_be_bytes([list[6], list[7]])))
    } else {
        (false, usize::from(list[3]))
    };
    let present = descriptor(unit, long);
    if len != 0 && len != present.len() {
        return Err(Sense::list(head as u16 - 1));
    }
    let sent = list.get(head..head + len).ok_or(Sense::LIST_LENGTH)?;
    if !sent.is_empty() {
        let (count, block) = sent.split_at(if long { 8 } else { 4 });
        let (now, size) = present.split_at(count.len());
        let unchanged =
            count == now || count.iter().all(|b| *b == 0) || count.iter().all(|b| *b == 0xff);
        if !unchanged || block != size {
            return Err(Sense::list(head as u16));
        }
    }
    let mut at = head + len;
    while at < list.len() {
        let code = list[at] & 0x7f; // without PS
        let page = PAGES.iter().find(|page| page[0] == code).ok_or(Sense::list(at as u16))?;
        let sent = list.get(at..at + page.len()).ok_or(Sense::LIST_LENGTH)?;
        if let Some(wrong) = (1..page.len()).find(|i| sent[*i] != page[*i]) {
            return Err(Sense::list((at + wrong) as u16));
        }
        at += page.len();
    }
    Ok(Step::Answer(Answer::good()))
}
