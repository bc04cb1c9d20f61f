//! The fields of a CDB.
//!
//! Callers know from the table of commands that the CDB is long enough.

/// A CDB of one of the fixed lengths.
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
    pub(super) fn blocks(self) -> Blocks {
        let (lba, count) = match self.len() {
            6 => (self.number(1, 3) & 0x1f_ffff, (self.number(4, 1) + 255) % 256 + 1),
            10 => (self.number(2, 4), self.number(7, 2)),
            12 => (self.number(2, 4), self.number(6, 4)),
            _ => (self.number(2, 8), self.number(10, 4)),
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
