//! REPORT TARGET PORT GROUPS (SPC-4 6.37): in which state the ports of the target are.

use super::device::Asked;
use super::step::Step;
use super::unit::Path;

/// The states that there are: active/optimized, standby, transitioning.
const STATES: u8 = 0x80 | 0x08 | 0x01;

/// Answers with the only port group of this gateway.
pub(super) fn groups(asked: &Asked<'_>) -> Step {
    let extended = asked.cdb.has(1, 0x20);
    let (mut data, mut len) = ([0; 20], 4);
    if extended {
        data[4] = 0x10;
        len += 4;
    }
    let [high, low] = asked.unit.port.to_be_bytes();
    let state = match asked.unit.path {
        Path::Optimized => 0x0,
        Path::Standby => 0x2,
        Path::Transition => 0xf,
    };
    // Group: state, states, number, status "altered implicitly", and one port.
    data[len..len + 12].copy_from_slice(&[state, STATES, high, low, 0, 2, 0, 1, 0, 0, high, low]);
    len += 12;
    data[3] = (len - 4) as u8;
    asked.data(&data[..len], asked.cdb.be32(6) as usize)
}
