//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 6.35,
//! 6.36).

use super::answer::Answer;
use super::checked::Checked;
use super::opcode::{self, Entry};
use super::sense::Sense;
use super::step::Step;
use alloc::vec::Vec;

/// An empty timeouts descriptor: no command has a known time-out.
const NO_TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The task management functions of iSCSI: abort task, abort task set, clear task set, logical unit
/// reset, target reset.
const TASKS: u8 = 0x80 | 0x40 | 0x10 | 0x08 | 0x02;

/// REPORT SUPPORTED OPERATION CODES.
pub(super) fn opcodes(checked: &Checked<'_>) -> Result<Step, Answer> {
    let cdb = checked.cdb;
    let timeouts = cdb.has(2, 0x80);
    let (wanted, action) = (cdb.byte(3), cdb.number(4, 2));
    let known = || opcode::all(wanted).filter(|entry| entry.is_in(checked.unit));
    let has_actions = known().any(|entry| entry.action.is_some());
    let same = |entry: &&Entry| u64::from(entry.action.unwrap_or(0)) == action;
    let data = match cdb.byte(2) & 0x07 {
        0 => all(checked, timeouts),
        // Option 1 is for operation codes without service actions, option 2 for those with them.
        1 if has_actions => return Err(Sense::cdb(2, 2).into()),
        2 if known().next().is_some() && !has_actions => return Err(Sense::cdb(2, 2).into()),
        1 => one(known().next(), timeouts),
        2 | 3 => one(known().find(same), timeouts),
        _ => return Err(Sense::cdb(2, 2).into()),
    };
    Ok(checked.data(&data, cdb.be32(6) as usize))
}

/// Lists all commands (6.35.2).
fn all(checked: &Checked<'_>, timeouts: bool) -> Vec<u8> {
    let mut data = Vec::from([0; 4]);
    for entry in opcode::TABLE.iter().filter(|entry| entry.is_in(checked.unit)) {
        let flags = u8::from(timeouts) << 1 | u8::from(entry.action.is_some());
        let (action, len) = (entry.action.unwrap_or(0), entry.len as u8);
        data.extend_from_slice(&[entry.opcode, 0, 0, action, 0, flags, 0, len]);
        if timeouts {
            data.extend_from_slice(&NO_TIMEOUTS);
        }
    }
    let len = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&len.to_be_bytes());
    data
}

/// Describes one command (6.35.3).
fn one(entry: Option<&Entry>, timeouts: bool) -> Vec<u8> {
    let Some(entry) = entry else { return Vec::from([0, 1, 0, 0]) };
    let mut data = Vec::from([0, u8::from(timeouts) << 7 | 3, 0, entry.len as u8]);
    data.extend_from_slice(&entry.usage()[..entry.len]);
    if timeouts {
        data.extend_from_slice(&NO_TIMEOUTS);
    }
    data
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub(super) fn tasks(checked: &Checked<'_>) -> Result<Step, Answer> {
    let allocation = checked.cdb.be32(6) as usize;
    if allocation < 4 {
        return Err(Sense::cdb(6, 7).into());
    }
    let mut data = [0; 16];
    data[0] = TASKS;
    if !checked.cdb.has(2, 0x80) {
        return Ok(checked.data(&data[..4], allocation));
    }
    data[3] = 0x0c;
    Ok(checked.data(&data, allocation))
}
