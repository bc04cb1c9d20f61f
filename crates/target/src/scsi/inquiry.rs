//! INQUIRY (SPC-4 6.6): standard data. Its pages of vital product data are in `vpd`.

use super::device::Asked;
use super::sense::Sense;
use super::step::{Answer, Step};
use super::vpd;

/// The vendor, in standard data and in the T10 identifier.
pub(super) const VENDOR: &[u8; 8] = b"GABION  ";

/// Bytes of the standard data.
const STANDARD: usize = 96;

/// Handles INQUIRY. A unit that does not exist is told by the peripheral qualifier.
pub(super) fn inquiry(asked: &Asked<'_>) -> Result<Step, Answer> {
    let (page, allocation) = (asked.cdb.byte(2), asked.cdb.number(3, 2) as usize);
    if !asked.cdb.has(1, 0x01) {
        if page != 0 {
            return Err(Sense::cdb(2, 7).into());
        }
        return Ok(asked.data(&standard(asked.exists), allocation));
    }
    match vpd::page(asked.unit, page) {
        Some(data) if asked.exists => Ok(asked.data(&data, allocation)),
        _ => Err(Sense::cdb(2, 7).into()),
    }
}

/// Returns the standard data (SPC-4 6.6.2).
fn standard(exists: bool) -> [u8; STANDARD] {
    let mut data = [0; STANDARD];
    data[0] = if exists { 0x00 } else { 0x7f };
    data[2] = 0x06; // SPC-4
    data[3] = 0x12; // HISUP, response data format 2
    data[4] = (STANDARD - 5) as u8;
    data[5] = 0x10; // TPGS 01: implicit changes of access states
    data[6] = 0x10; // MULTIP
    data[7] = 0x02; // CMDQUE
    data[8..16].copy_from_slice(VENDOR);
    data[16..32].copy_from_slice(b"VOLUME          ");
    data[32..36].copy_from_slice(b"1   ");
    // SAM-5, SPC-4, SBC-3, iSCSI
    data[58..66].copy_from_slice(&[0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
    data
}
