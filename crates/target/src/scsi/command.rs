//! A command as a transport delivers it, and the fields of its CDB.

use crate::nbd::proto::{be16, be32, be64};

/// The task attribute of a command (SAM-5 8.9). The transport orders commands; the device only
/// refuses `Aca`, because no command ever establishes an ACA condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attribute {
    /// Simple: in any order. Untagged commands are simple ones.
    Simple,
    /// Ordered: after all older commands, before all newer ones.
    Ordered,
    /// Head of queue: before all commands that have not begun.
    HeadOfQueue,
    /// Only for a nexus with an ACA condition.
    Aca,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The logical unit number: the eight bytes of SAM-5 4.7, big-endian.
    pub lun: u64,
    /// The CDB. It may be longer than its operation code says, as transports pad it.
    pub cdb: &'a [u8],
    /// The task attribute.
    pub attribute: Attribute,
    /// Bytes that the host has room for. 0 if it announced no transfer in this direction.
    pub reads: u32,
    /// Bytes that the host is going to send. 0 if it announced no transfer in this direction.
    pub sends: u32,
}

/// The difference between the length that the host announced and the length that its command
/// transfers (RFC 7143 11.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Residual {
    /// There is none.
    #[default]
    None,
    /// Underflow: this many of the announced bytes are not transferred.
    Under(u32),
    /// Overflow: the command would transfer this many bytes more.
    Over(u32),
}

impl Residual {
    /// Compares the announced length with the length that the command transfers.
    pub fn of(announced: u32, total: u64) -> Residual {
        let announced = u64::from(announced);
        let part = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match total.cmp(&announced) {
            core::cmp::Ordering::Equal => Residual::None,
            core::cmp::Ordering::Less => Residual::Under(part(announced - total)),
            core::cmp::Ordering::Greater => Residual::Over(part(total - announced)),
        }
    }
}

/// The fields of a CDB. Callers know from the table of commands that it is long enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cdb<'a>(pub(super) &'a [u8]);

/// A range of logical blocks. Nothing is known about the unit's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Blocks {
    pub(super) lba: u64,
    pub(super) count: u64,
}

impl Cdb<'_> {
    pub(super) fn byte(self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn has(self, at: usize, bits: u8) -> bool {
        self.0[at] & bits != 0
    }

    /// Returns `len` bytes, at most eight, as a number.
    pub(super) fn number(self, at: usize, len: usize) -> u64 {
        self.0[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub(super) fn be32(self, at: usize) -> u32 {
        self.number(at, 4) as u32
    }

    /// Returns the length of the CDB, which its group code says (SPC-4 4.2.5.1).
    pub(super) fn len(self) -> usize {
        match self.0[0] >> 5 {
            0 => 6,
            1 | 2 => 10,
            5 => 12,
            _ => 16,
        }
    }

    /// Returns the range of a command that has its fields in the usual places (SPC-4 4.2.5). In a
    /// CDB of six bytes a length of 0 stands for 256 blocks.
    #[inline]
    pub(super) fn blocks(self) -> Blocks {
        let (lba, count) = match self.len() {
            6 => (self.number(1, 3) & 0x1f_ffff, (self.number(4, 1) + 255) % 256 + 1),
            10 => (be32(self.0, 2).into(), be16(self.0, 7).into()),
            12 => (self.number(2, 4), self.number(6, 4)),
            _ => (be64(self.0, 2), be32(self.0, 10).into()),
        };
        Blocks { lba, count }
    }

    /// Returns the first byte of the usual transfer length.
    pub(super) fn count_at(self) -> u16 {
        match self.len() {
            6 => 4,
            10 => 7,
            12 => 6,
            _ => 10,
        }
    }
}
