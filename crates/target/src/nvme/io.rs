//! The commands of an I/O queue (base 6).
//!
//! Order of checks: opcode, fields, namespace, the state of this path, reservations, write
//! protection, range, limits.

use super::command::Command;
use super::proto::*;
use super::queue::{Queue, Role};
use super::ranges::RANGE;
use super::reserve::{Wish, report_len};
use super::status::Status;
use super::step::Step;
use super::subsystem::{Namespace, Path, Subsystem};
use super::table::{Gather, Range, Work};
use crate::reserve::Access;
use seam::Buf;

/// Most ranges of Dataset Management.
const RANGES: u32 = 256;
/// "Deallocate" of Write Zeroes, in dword 12.
pub(crate) const DEAC: u32 = 1 << 25;
/// Protection information, in dword 12.
const PRINFO: u32 = 0xf << 26;
/// The type of a directive, in dword 12.
const DTYPE: u32 = 0xf << 20;
/// "Deallocate" of Dataset Management, in dword 11.
const DEALLOCATE: u32 = 1 << 2;

impl Queue {
    /// Handles a command.
    pub(crate) fn io(
        &mut self,
        command: &Command,
        subsystem: &dyn Subsystem,
    ) -> Result<Step, Status> {
        // What the command needs of the reservations (base 8.8), and whether it writes.
        let (read, write, writes) = match command.opcode() {
            FLUSH if command.nsid() == ALL => return Ok(Step::Answer(0)),
            FLUSH => (false, true, false),
            READ | COMPARE => (true, false, false),
            WRITE | WRITE_ZEROES | DATASET => (false, true, true),
            RESERVATION_REGISTER | RESERVATION_REPORT | RESERVATION_ACQUIRE
            | RESERVATION_RELEASE => (false, false, false),
            _ => return Err(Status::INVALID_OPCODE),
        };
        let transfers = matches!(command.opcode(), READ | WRITE | COMPARE | WRITE_ZEROES);
        if transfers && command.dword(12) & (PRINFO | DTYPE) != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let nsid = command.nsid();
        let namespace = subsystem.namespace(nsid).filter(|_| nsid <= NAMESPACES);
        let namespace = namespace.ok_or(Status::NO_NAMESPACE)?;
        if namespace.path == Path::Inaccessible {
            return Err(Status::INACCESSIBLE);
        }
        if !(Access { read, write }).is_within(namespace.access) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        if writes && namespace.read_only {
            return Err(Status::WRITE_PROTECTED);
        }
        match command.opcode() {
            FLUSH => Ok(Step::Answer(0)), // an answer means durable already (rule R7)
            DATASET => {
                if command.dword(11) & DEALLOCATE == 0 {
                    return Ok(Step::Answer(0)); // the rest are hints
                }
                // Linux sends room for all ranges, whatever their number.
                let (count, sent) = ((command.dword(10) & 0xff) + 1, command.announced());
                if !(count * RANGE..=RANGES * RANGE).contains(&sent) {
                    return Err(Status::SGL_LENGTH);
                }
                let gather = Gather::Ranges(namespace, count as u16);
                Ok(Step::Begin(Work::Gather(gather, Buf::EMPTY), sent))
            }
            RESERVATION_REPORT | RESERVATION_REGISTER | RESERVATION_ACQUIRE
            | RESERVATION_RELEASE => self.reservation(command, &namespace),
            WRITE_ZEROES => {
                let range = range(command, &namespace)?;
                Ok(Step::Begin(Work::Zero(range, command.dword(12) & DEAC != 0), 0))
            }
            _ => self.transfer(command, &namespace),
        }
    }

    /// Handles a command about reservations.
    fn reservation(&self, command: &Command, namespace: &Namespace) -> Result<Step, Status> {
        let volume = namespace.volume;
        if command.opcode() == RESERVATION_REPORT {
            let len = report_len(command, self.limits.nvme_mdts)?;
            return Ok(Step::Begin(Work::Report(Range { volume, at: 0, len }), 0));
        }
        if !matches!(self.role, Role::Io { named: true, .. }) {
            return Err(Status::SEQUENCE); // several hosts may be without an identifier
        }
        let wish = Wish::of(command)?;
        // Linux sends 16 bytes where 8 are enough.
        let sent = command.announced();
        if !(wish.len()..=RANGES * RANGE).contains(&sent) {
            return Err(Status::SGL_LENGTH);
        }
        Ok(Step::Begin(Work::Gather(Gather::Change(volume, wish), Buf::EMPTY), sent))
    }

    /// Handles a command that moves blocks.
    fn transfer(&mut self, command: &Command, namespace: &Namespace) -> Result<Step, Status> {
        let range = range(command, namespace)?;
        if range.len > self.limits.nvme_mdts {
            return Err(Status::INVALID_FIELD);
        }
        if command.fuse() != 0 {
            let fused = self.fused_range(range, command.opcode() == WRITE)?;
            let work = Work::Gather(Gather::Fused(fused), Buf::EMPTY);
            return Ok(Step::Begin(work, range.len));
        }
        Ok(match command.opcode() {
            READ => Step::Begin(Work::Read(range), 0),
            WRITE => Step::Begin(Work::Write(range), range.len),
            _ => Step::Begin(Work::Compare(range), range.len),
        })
    }
}

/// Returns the part of the volume that a command names.
fn range(command: &Command, namespace: &Namespace) -> Result<Range, Status> {
    let blocks = u64::from(command.dword(12) & 0xffff) + 1;
    let at = within(namespace, command.u64(40), blocks)?;
    Ok(Range { volume: namespace.volume, at, len: blocks as u32 * BLOCK })
}

/// Checks that the blocks exist. Returns the offset of the first one in bytes.
pub(crate) fn within(namespace: &Namespace, first: u64, blocks: u64) -> Result<u64, Status> {
    match first.checked_add(blocks) {
        Some(end) if end <= namespace.size / u64::from(BLOCK) => Ok(first * u64::from(BLOCK)),
        _ => Err(Status::OUT_OF_RANGE),
    }
}
