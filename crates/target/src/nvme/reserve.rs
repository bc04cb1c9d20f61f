//! The reservation commands (base 6.10 to 6.13): decodes requests, and encodes the report. The MDM
//! keeps the table and applies changes; [`crate::reserve`] has the rules.
//!
//! A host is known by its host identifier, so all its controllers are one registrant. Registrations
//! are always persistent, so "change persist through power loss" is accepted either way.

use super::command::Command;
use super::proto::*;
use super::status::Status;
use crate::reserve::{Change, Identity, Kind, Refusal, Table};
use seam::{Buf, BufPool};

/// "Ignore existing key", in dword 10.
const IGNORE_KEY: u32 = 1 << 3;
/// "Extended data structure" of the report, in dword 11.
const EXTENDED: u32 = 1;
/// Bytes of the extended report before the first registrant, and of each registrant (base 6.13).
const RECORD: usize = 64;
/// The controller of a registrant: none in particular.
const DYNAMIC: u16 = 0xffff;

/// What a command changes, before its keys have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Register.
    Register,
    /// End the registration; true if the present key does not matter.
    Unregister(bool),
    /// Take another key; true if the present one does not matter.
    Replace(bool),
    /// Reserve.
    Acquire(Kind),
    /// Remove others' registrations, and reserve if they had the reservation.
    Preempt(Kind),
    /// End the reservation.
    Release(Kind),
    /// End the reservation and all registrations.
    Clear,
}

impl Wish {
    /// Decodes a command.
    pub(crate) fn of(command: &Command) -> Result<Wish, Status> {
        let ten = command.dword(10);
        let (action, ignore) = (ten & 7, ten & IGNORE_KEY != 0);
        let kind = || Kind::from_nvme((ten >> 8) as u8).ok_or(Status::INVALID_FIELD);
        match (command.opcode(), action) {
            // The value 1 of the persistence through power loss is reserved.
            (RESERVATION_REGISTER, _) if ten >> 30 == 1 => Err(Status::INVALID_FIELD),
            (RESERVATION_REGISTER, 0) => Ok(Wish::Register),
            (RESERVATION_REGISTER, 1) => Ok(Wish::Unregister(ignore)),
            (RESERVATION_REGISTER, 2) => Ok(Wish::Replace(ignore)),
            _ if ignore => Err(Status::INVALID_FIELD),
            (RESERVATION_ACQUIRE, 0) => kind().map(Wish::Acquire),
            // There is nothing to abort: after the fence, no command of a host that was preempted
            // can take effect.
            (RESERVATION_ACQUIRE, 1 | 2) => kind().map(Wish::Preempt),
            (RESERVATION_RELEASE, 0) => kind().map(Wish::Release),
            (RESERVATION_RELEASE, 1) => Ok(Wish::Clear),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Returns the bytes of its keys.
    pub(crate) fn len(self) -> u32 {
        if matches!(self, Wish::Release(_) | Wish::Clear) { 8 } else { 16 }
    }

    /// Returns the change that is asked for with these keys, of which there are
    /// [`Wish::len`] bytes at least.
    pub(crate) fn change(self, keys: &[u8]) -> Result<Change, Status> {
        let key = le64(keys, 0);
        let other = if self.len() > 8 { le64(keys, 8) } else { 0 };
        match self {
            // A key of 0 means "not registered".
            Wish::Register | Wish::Replace(_) if other == 0 => Err(Status::INVALID_FIELD),
            Wish::Register => Ok(Change::RegisterNvme { key: other }),
            Wish::Unregister(ignore) => Ok(Change::ReplaceNvme { key, new: 0, ignore }),
            Wish::Replace(ignore) => Ok(Change::ReplaceNvme { key, new: other, ignore }),
            Wish::Acquire(kind) => Ok(Change::Reserve { key, kind }),
            Wish::Preempt(kind) => Ok(Change::Preempt { key, victim: other, kind }),
            Wish::Release(kind) => Ok(Change::Release { key, kind }),
            Wish::Clear => Ok(Change::Clear { key }),
        }
    }
}

/// Returns the length of the report that a command asks for.
pub(crate) fn report_len(command: &Command, most: u32) -> Result<u32, Status> {
    if command.dword(11) & EXTENDED == 0 {
        return Err(Status::HOST_ID_FORMAT); // hosts have identifiers of 128 bits
    }
    let len = (u64::from(command.dword(10)) + 1) * 4;
    if len > u64::from(most) { Err(Status::INVALID_FIELD) } else { Ok(len as u32) }
}

/// Returns the first `len` bytes of the report of a table. Behind its end there are zeros.
pub(crate) fn report(table: &Table, len: u32, pool: &BufPool) -> Buf {
    let mut body = pool.zeroed(len as usize);
    let mut head = [0; RECORD];
    head[..4].copy_from_slice(&table.generation.to_le_bytes());
    head[4] = table.reserved.map_or(0, Kind::nvme);
    head[5..7].copy_from_slice(&(table.registrants.len() as u16).to_le_bytes());
    head[9] = 1; // PTPLS: always persistent
    let records = table.registrants.iter().enumerate().map(|(index, registrant)| {
        let mut record = [0; RECORD];
        record[..2].copy_from_slice(&DYNAMIC.to_le_bytes());
        record[2] = table.holds(index).into();
        record[8..16].copy_from_slice(&registrant.key.to_le_bytes());
        // A host that registered over iSCSI has no host identifier.
        if let Identity::Nvme { host } = &registrant.who {
            record[16..32].copy_from_slice(host);
        }
        record
    });
    let all = core::iter::once(head).chain(records);
    for (to, from) in body.as_mut().chunks_mut(RECORD).zip(all) {
        to.copy_from_slice(&from[..to.len()]);
    }
    body
}

/// Returns the status of a change that was refused.
pub(crate) fn refused(why: Refusal) -> Status {
    match why {
        Refusal::Conflict => Status::RESERVATION_CONFLICT,
        Refusal::NoVictim | Refusal::WrongKind => Status::INVALID_FIELD,
        Refusal::Full => Status::INTERNAL,
    }
}
