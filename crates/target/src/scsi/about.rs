//! Small commands that report properties of the unit or the target (SPC-4 6).

use super::answer::Answer;
use super::checked::Checked;
use super::command::Cdb;
use super::opcode::Name;
use super::sense::Sense;
use super::step::{Step, Then};
use super::unit::{Path, PortGroup, Unit};
use alloc::vec;

/// Returns true if a command that needs access for writing does not need it in this form (SBC-3
/// 4.17, table 13): START STOP UNIT that starts, PREVENT ALLOW MEDIUM REMOVAL that allows.
pub(super) fn is_harmless(name: Name, cdb: Cdb<'_>) -> bool {
    match name {
        Name::StartStop => cdb.has(4, 0x01) && !cdb.has(4, 0xf0),
        Name::PreventAllow => !cdb.has(4, 0x03),
        _ => false,
    }
}

/// Returns true if a REQUEST SENSE of a host with room for `reads` bytes gets the additional sense
/// code and its qualifier.
pub(super) fn tells_code(cdb: Cdb<'_>, reads: u32) -> bool {
    let needs = if cdb.has(1, 0x01) { 4 } else { 14 };
    u32::from(cdb.byte(4)).min(reads) >= needs
}

/// REQUEST SENSE: reports the oldest unit attention. It counts as reported if the host has room for
/// its code.
pub(super) fn request_sense(checked: &Checked<'_>) -> Step {
    let sense = match checked.pending {
        Some(attention) => attention.sense(),
        None if checked.exists => Sense::NONE,
        None => Sense::NO_UNIT,
    };
    let allocation = checked.cdb.byte(4).into();
    if checked.cdb.has(1, 0x01) {
        let (bytes, len) = sense.descriptor();
        checked.data(&bytes[..len], allocation)
    } else {
        checked.data(&sense.fixed(), allocation)
    }
}

/// REPORT LUNS (6.33): LUN 0, and no well known ones.
pub(super) fn report_luns(checked: &Checked<'_>) -> Result<Step, Answer> {
    let luns = match checked.cdb.byte(2) {
        0x00 | 0x02 => 1,
        0x01 => 0,
        _ => return Err(Sense::cdb(2, 7).into()),
    };
    let allocation = checked.cdb.be32(6) as usize;
    if allocation < 16 {
        return Err(Sense::cdb(6, 7).into());
    }
    let mut data = [0; 16];
    data[3] = 8 * luns;
    Ok(checked.data(&data[..8 + 8 * usize::from(luns)], allocation))
}

/// READ DEFECT DATA 10, 12 (SBC-3 5.17, 5.18): empty lists, in the format that the host asks for.
pub(super) fn read_defects(checked: &Checked<'_>) -> Step {
    let ten = checked.cdb.len() == 10;
    let (flags, allocation, len) = if ten {
        (checked.cdb.byte(2), checked.cdb.number(7, 2) as usize, 4)
    } else {
        (checked.cdb.byte(1), checked.cdb.be32(6) as usize, 8)
    };
    let mut data = [0; 8];
    data[1] = flags & 0x1f;
    checked.data(&data[..len], allocation)
}

/// The state active/optimized of a port group.
const OPTIMIZED: u8 = 0x0;
/// The state standby.
const STANDBY: u8 = 0x2;
/// The supported states of a port group: standby, active/optimized.
const STATES: u8 = 0x04 | 0x01;
/// "Altered implicitly": why a port group has its state.
const IMPLICITLY: u8 = 2;

/// REPORT TARGET PORT GROUPS (6.37): the group of this gateway, then those of the others. Each has
/// one port.
pub(super) fn port_groups(checked: &Checked<'_>) -> Step {
    let unit = checked.unit;
    let mut data = vec![0; 4];
    if checked.cdb.has(1, 0x20) {
        data.extend([0x10, 0, 0, 0]); // the extended header
    }
    let own = PortGroup { port: unit.port, path: unit.path };
    for group in core::iter::once(&own).chain(&unit.others) {
        let [high, low] = group.port.to_be_bytes();
        let state = match group.path {
            Path::Optimized => OPTIMIZED,
            Path::Standby => STANDBY,
        };
        data.extend([state, STATES, high, low, 0, IMPLICITLY, 0, 1, 0, 0, high, low]);
    }
    let len = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&len.to_be_bytes());
    checked.data(&data, checked.cdb.be32(6) as usize)
}

/// SET TARGET PORT GROUPS (6.45): asks for the parameter list.
pub(super) fn set_port_groups_begin(checked: &Checked<'_>) -> Result<Step, Answer> {
    match checked.cdb.be32(6) {
        0 => Ok(checked.good()),
        len => checked.gather(len, Then::SetPortGroups),
    }
}

/// Carries out the list of SET TARGET PORT GROUPS. The own group may become optimized, and others
/// may become standby, which follows from that. Hosts send this over the path that they want to
/// use.
pub(super) fn set_port_groups(unit: &Unit, list: &[u8]) -> Result<Step, Sense> {
    let (groups, rest) = list.get(4..).unwrap_or_default().as_chunks::<4>();
    if groups.is_empty() || !rest.is_empty() {
        return Err(Sense::LIST_LENGTH);
    }
    let mut wants = false;
    for ([state, _, high, low], at) in groups.iter().zip((4..).step_by(4)) {
        let group = u16::from_be_bytes([*high, *low]);
        let known = unit.others.iter().any(|other| other.port == group);
        match (state & 0x0f, group == unit.port) {
            (OPTIMIZED, true) => wants = true,
            (STANDBY, false) if known => {}
            (OPTIMIZED | STANDBY, false) if !known => return Err(Sense::list(at + 2)),
            _ => return Err(Sense::list(at)),
        }
    }
    Ok(if wants { Step::Activate } else { Step::Answer(Answer::good()) })
}
