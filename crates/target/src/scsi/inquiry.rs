//! INQUIRY (SPC-4 6.6): standard data, and the pages of vital product data (SPC-4 7.8, SBC-3 6.6).

use super::answer::Answer;
use super::checked::Checked;
use super::ranges;
use super::sense::Sense;
use super::step::Step;
use super::unit::Unit;
use crate::ident;
use alloc::vec::Vec;
use base::BLOCK;

/// The vendor, in standard data and in the T10 identifier.
const VENDOR: &[u8; 8] = b"GABION  ";

/// Bytes of the standard data.
const STANDARD: usize = 96;

/// Handles INQUIRY. The peripheral qualifier says whether the unit exists.
pub(super) fn inquiry(checked: &Checked<'_>) -> Result<Step, Answer> {
    let (page, allocation) = (checked.cdb.byte(2), checked.cdb.number(3, 2) as usize);
    if !checked.cdb.has(1, 0x01) {
        if page != 0 {
            return Err(Sense::cdb(2, 7).into());
        }
        return Ok(checked.data(&standard(checked.unit, checked.exists), allocation));
    }
    match vital(checked.unit, page) {
        Some(data) if checked.exists => Ok(checked.data(&data, allocation)),
        _ => Err(Sense::cdb(2, 7).into()),
    }
}

/// Returns the standard data (SPC-4 6.6.2).
fn standard(unit: &Unit, exists: bool) -> [u8; STANDARD] {
    let mut data = [0; STANDARD];
    data[0] = if exists { 0x00 } else { 0x7f };
    data[2] = 0x06; // SPC-4
    data[3] = 0x12; // HISUP, response data format 2
    data[4] = (STANDARD - 5) as u8;
    // TPGS: access states change implicitly, and where the owner can ask for it, explicitly.
    data[5] = if unit.asks { 0x30 } else { 0x10 };
    data[6] = 0x10; // MULTIP
    data[7] = 0x02; // CMDQUE
    data[8..16].copy_from_slice(VENDOR);
    data[16..32].copy_from_slice(b"VOLUME          ");
    data[32..36].copy_from_slice(b"1   ");
    // SAM-5, SPC-4, SBC-3, iSCSI
    data[58..66].copy_from_slice(&[0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60]);
    data
}

/// The supported pages, ascending.
const PAGES: [u8; 7] = [0x00, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2];

/// The optimal transfer length in bytes.
const OPTIMAL: u32 = 1 << 20;

/// Returns a page with its head; `None` if there is no such page.
fn vital(unit: &Unit, code: u8) -> Option<Vec<u8>> {
    let body = match code {
        0x00 => PAGES.to_vec(),
        0x80 => ident::serial(unit.cluster, unit.volume).into_bytes(),
        0x83 => identification(unit),
        0x86 => extended().to_vec(),
        0xb0 => limits(unit).to_vec(),
        0xb1 => characteristics().to_vec(),
        0xb2 => provisioning().to_vec(),
        _ => return None,
    };
    let [high, low] = (body.len() as u16).to_be_bytes();
    let mut data = Vec::from([0x00, code, high, low]);
    data.extend_from_slice(&body);
    Some(data)
}

/// Device identification (SPC-4 7.8.6): of the logical unit, of the port, of the target.
fn identification(unit: &Unit) -> Vec<u8> {
    const UNIT: u8 = 0x00;
    const PORT: u8 = 0x90; // with protocol identifier
    const TARGET: u8 = 0xa0; // with protocol identifier
    let mut data = Vec::new();
    let (cluster, volume) = (unit.cluster, unit.volume);
    let [high, low] = unit.port.to_be_bytes();
    let t10 = [&VENDOR[..], ident::t10(cluster, volume).as_bytes()].concat();
    add(&mut data, BINARY, UNIT | 0x3, &ident::naa(cluster, volume));
    add(&mut data, ASCII, UNIT | 0x1, &t10);
    add(&mut data, UTF8, UNIT | 0x8, &terminated(&ident::unit_name(&unit.target)));
    add(&mut data, BINARY, PORT | 0x4, &[0, 0, high, low]);
    add(&mut data, BINARY, PORT | 0x5, &[0, 0, high, low]);
    add(&mut data, UTF8, PORT | 0x8, &terminated(&ident::target_port(&unit.target, unit.port)));
    add(&mut data, UTF8, TARGET | 0x8, &terminated(&unit.target));
    data
}

/// Code sets of a designator, with the protocol identifier of iSCSI.
const BINARY: u8 = 0x51;
const ASCII: u8 = 0x52;
const UTF8: u8 = 0x53;

/// Adds a designator (SPC-4 7.8.6.1).
fn add(data: &mut Vec<u8>, set: u8, kind: u8, designator: &[u8]) {
    // Without PIV the protocol identifier is reserved.
    let set = if kind & 0x80 != 0 { set } else { set & 0x0f };
    data.extend_from_slice(&[set, kind, 0, designator.len() as u8]);
    data.extend_from_slice(designator);
}

/// Returns a SCSI name string: with a terminating zero, in whole words (SPC-4 7.8.6.11).
pub(super) fn terminated(name: &str) -> Vec<u8> {
    let mut bytes = Vec::from(name.as_bytes());
    bytes.resize((name.len() + 1).next_multiple_of(4), 0);
    bytes
}

/// Extended INQUIRY data (SPC-4 7.8.7), without its head.
fn extended() -> [u8; 60] {
    let mut body = [0; 60];
    body[1] = 0x01; // SIMPSUP: the other task attributes are accepted, and order nothing
    body
}

/// Block limits (SBC-3 6.6.3), without their head.
fn limits(unit: &Unit) -> [u8; 60] {
    let block = unit.format.block();
    let whole = unit.format.per_block();
    let mut body = [0; 60];
    body[0] = 0x01; // WSNZ
    body[1] = (BLOCK / block) as u8; // maximum length of COMPARE AND WRITE
    body[2..4].copy_from_slice(&(whole as u16).to_be_bytes());
    let numbers = [
        unit.transfer / block,
        OPTIMAL.min(unit.transfer) / block,
        0, // maximum prefetch length: not limited
        unit.unmap_max(),
        ranges::DESCRIPTORS,
        whole,
        0x8000_0000, // unmap granularity alignment: valid, 0
        0,
        unit.same_max(), // the low half of eight bytes
    ];
    for (field, number) in body[4..40].chunks_exact_mut(4).zip(numbers) {
        field.copy_from_slice(&number.to_be_bytes());
    }
    body
}

/// Block device characteristics (SBC-3 6.6.2), without their head.
fn characteristics() -> [u8; 60] {
    let mut body = [0; 60];
    body[1] = 1; // non-rotating
    body
}

/// Logical block provisioning (SBC-3 6.6.4), without its head.
fn provisioning() -> [u8; 4] {
    // LBPU, LBPWS, LBPWS10, LBPRZ; thin
    [0, 0xe4, 2, 0]
}
