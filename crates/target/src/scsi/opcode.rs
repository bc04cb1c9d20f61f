//! The table of commands: the supported CDBs, the bits that may be set in each, and the access that
//! each needs. A CDB that is not in the table is refused.
//!
//! Invariants: entries of one operation code are adjacent, and all or none of them have a service
//! action. A bit that is not in the usage map is refused, and REPORT SUPPORTED OPERATION CODES
//! reports exactly these maps.

use super::sense::Sense;
use super::unit::Unit;

/// A command, whatever the length of its CDB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ModeSelect,
    ModeSense,
    StartStop,
    SendDiagnostic,
    PreventAllow,
    ReadCapacity,
    Read,
    Write,
    WriteVerify,
    Verify,
    Prefetch,
    Synchronize,
    ReadDefects,
    WriteSame,
    Unmap,
    PersistIn,
    PersistOut,
    CompareWrite,
    LbaStatus,
    ReportLuns,
    PortGroups,
    SetPortGroups,
    SupportedOpcodes,
    SupportedTasks,
}

/// The access that a command needs: reservations of other hosts must allow it (SPC-4 5.13.1, SBC-3
/// 4.17). Also says whether the command changes the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    /// Nothing.
    Nothing,
    /// Access for reading.
    Read,
    /// Access for writing, though no data is changed.
    Control,
    /// Access for writing, and a volume that is not read-only.
    Write,
}

/// One supported CDB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) opcode: u8,
    pub(super) action: Option<u8>,
    pub(super) name: Name,
    pub(super) needs: Needs,
    /// True if it works in standby (SPC-4 5.15.2.4).
    pub(super) standby: bool,
    /// The length of the CDB.
    pub(super) len: usize,
    /// The bits that may be set, without the operation code and the service action.
    usage: [u8; 16],
    /// The bits that may be set in 16 bytes that begin with the CDB, with the first one on top.
    allowed: u128,
}

/// The bits of a service action in byte 1.
const ACTION: u8 = 0x1f;

impl Entry {
    const fn with_action(self, action: u8) -> Entry {
        let allowed = self.allowed | (ACTION as u128) << (14 * 8);
        Entry { action: Some(action), allowed, ..self }
    }

    const fn in_standby(self) -> Entry {
        Entry { standby: true, ..self }
    }

    /// Checks that only bits of the usage map are set. The CDB is long enough.
    #[inline]
    pub(super) fn check(&self, cdb: &[u8]) -> Result<(), Sense> {
        // One comparison, as a rule: transports pad CDBs to 16 bytes.
        match cdb.first_chunk() {
            Some(bytes) if u128::from_be_bytes(*bytes) & !self.allowed == 0 => Ok(()),
            _ => self.check_bytes(cdb),
        }
    }

    #[cold]
    fn check_bytes(&self, cdb: &[u8]) -> Result<(), Sense> {
        for (i, byte) in cdb.iter().enumerate().take(self.len).skip(1) {
            let action = if i == 1 && self.action.is_some() { ACTION } else { 0 };
            let wrong = byte & !(self.usage[i] | action);
            if wrong != 0 {
                return Err(Sense::cdb(i as u16, 7 - wrong.leading_zeros() as u8));
            }
        }
        Ok(())
    }

    /// Returns the CDB usage data (SPC-4 6.35.3).
    pub(super) fn usage(&self) -> [u8; 16] {
        let mut usage = self.usage;
        usage[0] = self.opcode;
        usage[1] |= self.action.unwrap_or(0);
        usage
    }

    /// Returns true if this unit has the command.
    pub(super) fn is_in(&self, unit: &Unit) -> bool {
        match self.name {
            Name::PersistIn | Name::PersistOut | Name::SetPortGroups => unit.asks,
            _ => true,
        }
    }
}

/// Creates an entry; `usage` begins with byte 1, and ends with the CDB.
const fn entry(opcode: u8, name: Name, needs: Needs, bits: &[u8]) -> Entry {
    let mut usage = [0; 16];
    // The operation code is known, and what follows the CDB does not count.
    let mut allowed = [F; 16];
    let mut i = 0;
    while i < bits.len() {
        usage[i + 1] = bits[i];
        allowed[i + 1] = bits[i];
        i += 1;
    }
    let len = bits.len() + 1;
    let allowed = u128::from_be_bytes(allowed);
    Entry { opcode, action: None, name, needs, standby: false, len, usage, allowed }
}

/// A whole byte.
const F: u8 = 0xff;
/// DPO, FUA and FUA_NV: accepted, and without effect (SBC-3 5.8).
const DPOFUA: u8 = 0x1a;
/// DPO, and BYTCHK 0 or 1 (SBC-3 5.30).
const BYTCHK: u8 = 0x12;
/// A group number, which is ignored.
const GROUP: u8 = 0x1f;

/// Returns the usage of a 10-byte CDB with a range.
const fn range10(flags: u8) -> [u8; 9] {
    [flags, F, F, F, F, GROUP, F, F, 0]
}

/// Returns the usage of a 12-byte CDB with a range.
const fn range12(flags: u8) -> [u8; 11] {
    [flags, F, F, F, F, F, F, F, F, GROUP, 0]
}

/// Returns the usage of a 16-byte CDB with a range.
const fn range16(flags: u8) -> [u8; 15] {
    [flags, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0]
}

/// All commands, in the order of their operation codes (SPC-4 6, SBC-3 5).
pub(super) static TABLE: &[Entry] = {
    use Name::*;
    use Needs::{Control, Nothing, Read as Reads, Write as Writes};
    &[
        entry(0x00, TestUnitReady, Nothing, &[0, 0, 0, 0, 0]),
        entry(0x03, RequestSense, Nothing, &[0x01, 0, 0, F, 0]).in_standby(),
        entry(0x08, Read, Reads, &[0x1f, F, F, F, 0]),
        entry(0x0a, Write, Writes, &[0x1f, F, F, F, 0]),
        entry(0x12, Inquiry, Nothing, &[0x01, F, F, F, 0]).in_standby(),
        entry(0x15, ModeSelect, Control, &[0x10, 0, 0, F, 0]).in_standby(),
        entry(0x1a, ModeSense, Reads, &[0x08, F, F, F, 0]).in_standby(),
        entry(0x1b, StartStop, Control, &[0x01, 0, 0x0f, 0xf7, 0]),
        entry(0x1d, SendDiagnostic, Control, &[0x17, 0, 0, 0, 0]),
        entry(0x1e, PreventAllow, Control, &[0, 0, 0, 0x03, 0]),
        entry(0x25, ReadCapacity, Nothing, &[0, 0, 0, 0, 0, 0, 0, 0, 0]).in_standby(),
        entry(0x28, Read, Reads, &range10(DPOFUA)),
        entry(0x2a, Write, Writes, &range10(DPOFUA)),
        entry(0x2e, WriteVerify, Writes, &range10(BYTCHK)),
        entry(0x2f, Verify, Reads, &range10(BYTCHK)),
        entry(0x34, Prefetch, Reads, &range10(0x02)),
        entry(0x35, Synchronize, Control, &range10(0x06)),
        entry(0x37, ReadDefects, Reads, &[0, 0x1f, 0, 0, 0, 0, F, F, 0]),
        entry(0x41, WriteSame, Writes, &range10(0x08)),
        entry(0x42, Unmap, Writes, &[0, 0, 0, 0, 0, GROUP, F, F, 0]),
        entry(0x55, ModeSelect, Control, &[0x10, 0, 0, 0, 0, 0, F, F, 0]).in_standby(),
        entry(0x5a, ModeSense, Reads, &[0x18, F, F, 0, 0, 0, F, F, 0]).in_standby(),
        persist_in(0x00),
        persist_in(0x01),
        persist_in(0x02),
        persist_in(0x03),
        persist_out(0x00),
        persist_out(0x01),
        persist_out(0x02),
        persist_out(0x03),
        persist_out(0x04),
        persist_out(0x05),
        persist_out(0x06),
        entry(0x88, Read, Reads, &range16(DPOFUA)),
        entry(0x89, CompareWrite, Writes, &[DPOFUA, F, F, F, F, F, F, F, F, 0, 0, 0, F, GROUP, 0]),
        entry(0x8a, Write, Writes, &range16(DPOFUA)),
        entry(0x8e, WriteVerify, Writes, &range16(BYTCHK)),
        entry(0x8f, Verify, Reads, &range16(BYTCHK)),
        entry(0x90, Prefetch, Reads, &range16(0x02)),
        entry(0x91, Synchronize, Control, &range16(0x06)),
        entry(0x93, WriteSame, Writes, &range16(0x09)),
        entry(0x9e, ReadCapacity, Nothing, &[0, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0])
            .with_action(0x10)
            .in_standby(),
        entry(0x9e, LbaStatus, Reads, &[0, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0])
            .with_action(0x12),
        entry(0xa0, ReportLuns, Nothing, &[0, F, 0, 0, 0, F, F, F, F, 0, 0]).in_standby(),
        entry(0xa3, PortGroups, Nothing, &[0x20, 0, 0, 0, 0, F, F, F, F, 0, 0])
            .with_action(0x0a)
            .in_standby(),
        entry(0xa3, SupportedOpcodes, Nothing, &[0, 0x87, F, F, F, F, F, F, F, 0, 0])
            .with_action(0x0c)
            .in_standby(),
        entry(0xa3, SupportedTasks, Nothing, &[0, 0x80, 0, 0, 0, F, F, F, F, 0, 0])
            .with_action(0x0d)
            .in_standby(),
        entry(0xa4, SetPortGroups, Nothing, &[0, 0, 0, 0, 0, F, F, F, F, 0, 0])
            .with_action(0x0a)
            .in_standby(),
        entry(0xa8, Read, Reads, &range12(DPOFUA)),
        entry(0xaa, Write, Writes, &range12(DPOFUA)),
        entry(0xae, WriteVerify, Writes, &range12(BYTCHK)),
        entry(0xaf, Verify, Reads, &range12(BYTCHK)),
        entry(0xb7, ReadDefects, Reads, &[0x1f, F, F, F, F, F, F, F, F, 0, 0]),
    ]
};

const fn persist_in(action: u8) -> Entry {
    entry(0x5e, Name::PersistIn, Needs::Nothing, &[0, 0, 0, 0, 0, 0, F, F, 0])
        .with_action(action)
        .in_standby()
}

const fn persist_out(action: u8) -> Entry {
    entry(0x5f, Name::PersistOut, Needs::Nothing, &[0, F, 0, 0, F, F, F, F, 0])
        .with_action(action)
        .in_standby()
}

/// For each operation code, the index of its first entry, or `NONE`.
static FIRST: [u8; 256] = {
    let mut first = [NONE; 256];
    let mut i = TABLE.len();
    while i > 0 {
        i -= 1;
        first[TABLE[i].opcode as usize] = i as u8;
    }
    first
};

const NONE: u8 = 0xff;

/// Returns the entries of an operation code.
pub(super) fn all(opcode: u8) -> impl Iterator<Item = &'static Entry> {
    let first = TABLE.get(usize::from(FIRST[usize::from(opcode)])..).unwrap_or_default();
    first.iter().take_while(move |entry| entry.opcode == opcode)
}

/// Finds the entry of a CDB, which is then long enough.
pub(super) fn find(cdb: &[u8], unit: &Unit) -> Result<&'static Entry, Sense> {
    let &opcode = cdb.first().ok_or(Sense::OPCODE)?;
    let mut known = false;
    for entry in all(opcode).filter(|entry| entry.is_in(unit)) {
        known = true;
        if cdb.len() < entry.len {
            return Err(Sense::IN_CDB);
        }
        if entry.action.is_none_or(|action| action == cdb[1] & ACTION) {
            return Ok(entry);
        }
    }
    Err(if known { Sense::cdb(1, 4) } else { Sense::OPCODE })
}
