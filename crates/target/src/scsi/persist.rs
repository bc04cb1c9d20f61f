//! PERSISTENT RESERVE IN and OUT (SPC-4 6.13, 6.14): decodes requests and encodes answers. The MDM
//! keeps the table and applies changes.

use super::answer::Answer;
use super::checked::Checked;
use super::sense::Sense;
use super::step::{Report, Step, Then, What};
use crate::ident;
use crate::reserve::{Change, Identity, Kind, Table};
use alloc::vec::Vec;

/// Bytes of the parameter list of PERSISTENT RESERVE OUT, in each supported form.
const LIST: u32 = 24;

/// Capabilities (6.13.4): ATP_C, PTPL_C, TMV, PTPL_A, and all six types. Registrations are kept by
/// the MDM, so they are always persistent.
const CAPABILITIES: [u8; 8] = [0, 8, 0x05, 0x81, 0xea, 0x01, 0, 0];

/// PERSISTENT RESERVE IN.
pub(super) fn persist_in(checked: &Checked<'_>) -> Result<Step, Answer> {
    let allocation = checked.cdb.number(7, 2) as u32;
    let what = match checked.cdb.byte(1) & 0x1f {
        0x00 => What::Keys,
        0x01 => What::Reservation,
        0x02 => return Ok(checked.data(&CAPABILITIES, allocation as usize)),
        _ => What::FullStatus,
    };
    Ok(Step::Report(Report { what, allocation, room: checked.reads }))
}

/// PERSISTENT RESERVE OUT: asks for the parameter list.
pub(super) fn persist_out(checked: &Checked<'_>) -> Result<Step, Answer> {
    let (action, scope, kind) = (
        checked.cdb.byte(1) & 0x1f,
        checked.cdb.byte(2) >> 4,
        Kind::from_scsi(checked.cdb.byte(2) & 0x0f),
    );
    if matches!(action, RESERVE | RELEASE | PREEMPT | PREEMPT_AND_ABORT) {
        if scope != 0 {
            return Err(Sense::cdb(2, 7).into());
        }
        if kind.is_none() {
            return Err(Sense::cdb(2, 3).into());
        }
    }
    let len = checked.cdb.be32(5);
    if len != LIST {
        return Err(Sense::LIST_LENGTH.into());
    }
    checked.gather(len, Then::PersistOut { action, kind })
}

const RESERVE: u8 = 0x01;
const RELEASE: u8 = 0x02;
const CLEAR: u8 = 0x03;
const PREEMPT: u8 = 0x04;
const PREEMPT_AND_ABORT: u8 = 0x05;
const REGISTER_AND_IGNORE: u8 = 0x06;

/// Returns the change that a parameter list of 24 bytes asks for (6.14.3). APTPL is accepted either
/// way.
pub(super) fn change(action: u8, kind: Option<Kind>, list: &[u8]) -> Result<Step, Sense> {
    let number = |at: usize| list[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (key, other, flags) = (number(0), number(8), list[20]);
    if flags & 0x08 != 0 {
        return Err(Sense::list(20)); // SPEC_I_PT
    }
    let change = match (action, kind) {
        (RESERVE, Some(kind)) => Change::Reserve { key, kind },
        (RELEASE, Some(kind)) => Change::Release { key, kind },
        (PREEMPT | PREEMPT_AND_ABORT, Some(kind)) => Change::Preempt { key, victim: other, kind },
        (CLEAR, _) => Change::Clear { key },
        _ => Change::Register {
            key,
            new: other,
            ignore: action == REGISTER_AND_IGNORE,
            all_ports: flags & 0x04 != 0,
        },
    };
    Ok(Step::Reserve(change))
}

/// Returns the parameter data of PERSISTENT RESERVE IN.
pub(super) fn report(report: &Report, table: &Table) -> Vec<u8> {
    let mut data = Vec::from([0; 8]);
    data[..4].copy_from_slice(&table.generation.to_be_bytes());
    match report.what {
        What::Keys => {
            table.registrants.iter().for_each(|r| data.extend_from_slice(&r.key.to_be_bytes()));
        }
        What::Reservation => {
            if let Some(kind) = table.reserved {
                let holder = table.registrants.iter().find(|r| r.holds);
                data.extend_from_slice(&holder.map_or(0, |r| r.key).to_be_bytes());
                data.extend_from_slice(&[0, 0, 0, 0, 0, kind.scsi(), 0, 0]);
            }
        }
        What::FullStatus => {
            for (index, registrant) in table.registrants.iter().enumerate() {
                let kind = table.reserved.filter(|_| table.holds(index));
                let (port, transport) = address(&registrant.who);
                let flags = u8::from(port == 0) << 1 | u8::from(kind.is_some());
                data.extend_from_slice(&registrant.key.to_be_bytes());
                data.extend_from_slice(&[
                    0,
                    0,
                    0,
                    0,
                    flags,
                    kind.map_or(0, Kind::scsi),
                    0,
                    0,
                    0,
                    0,
                ]);
                data.extend_from_slice(&port.to_be_bytes());
                data.extend_from_slice(&(transport.len() as u32).to_be_bytes());
                data.extend_from_slice(&transport);
            }
        }
    }
    let len = (data.len() - 8) as u32;
    data[4..8].copy_from_slice(&len.to_be_bytes());
    data
}

/// Returns the relative target port and the TransportID (SPC-4 7.6.4) of a registrant.
fn address(who: &Identity) -> (u16, Vec<u8>) {
    match who {
        Identity::Scsi { name, isid, port } => {
            let mut name = super::inquiry::terminated(&ident::initiator_port(name, *isid));
            name.resize(name.len().max(20), 0);
            let [high, low] = (name.len() as u16).to_be_bytes();
            let mut transport = Vec::from([0x45, 0, high, low]);
            transport.extend_from_slice(&name);
            (*port, transport)
        }
        // An NVMe host has no TransportID: use its host identifier in place of a name.
        Identity::Nvme { host } => {
            let mut transport = Vec::from([0x0f, 0, 0, 0, 0, 0, 0, 0]);
            transport.extend_from_slice(host);
            (0, transport)
        }
    }
}
