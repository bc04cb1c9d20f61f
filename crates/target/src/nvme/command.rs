//! The submission queue entry: a command, as a capsule carries it.

use super::proto::*;
use super::status::Status;

/// A command (base 4.2): 64 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    bytes: [u8; 64],
}

/// Where the data of a command is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In the capsule, from this offset on.
    Capsule(usize),
    /// In the host's memory: data PDUs move it.
    Host,
}

impl Command {
    /// Takes a command from the head of a capsule.
    pub(crate) fn of(head: &[u8]) -> Command {
        Command { bytes: *head[COMMON..].first_chunk().expect("the head of a capsule") }
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// The command's id, which the host chooses.
    pub(crate) fn cid(&self) -> u16 {
        le16(&self.bytes, 2)
    }

    /// The namespace.
    pub(crate) fn nsid(&self) -> u32 {
        le32(&self.bytes, 4)
    }

    /// The type of a fabrics command.
    pub(crate) fn fabrics_type(&self) -> u8 {
        self.bytes[4]
    }

    /// A byte of the command-specific part, which begins at offset 40.
    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    /// Two bytes of the command-specific part.
    pub(crate) fn u16(&self, at: usize) -> u16 {
        le16(&self.bytes, at)
    }

    /// Eight bytes of the command-specific part.
    pub(crate) fn u64(&self, at: usize) -> u64 {
        le64(&self.bytes, at)
    }

    /// A command dword, 10 to 15.
    pub(crate) fn dword(&self, number: usize) -> u32 {
        le32(&self.bytes, number * 4)
    }

    /// Returns which of two fused commands this is; 0 if it is not fused.
    #[inline]
    pub(crate) fn fuse(&self) -> u8 {
        self.bytes[1] & FUSE
    }

    /// Checks what all commands have in common: data by an SGL, and no fused operation except a
    /// Compare and a Write of an I/O queue (`is_io`).
    pub(crate) fn check(&self, is_io: bool) -> Result<(), Status> {
        let fused = match (self.fuse(), self.opcode()) {
            (0, _) => true,
            (FUSE_FIRST, COMPARE) | (FUSE_SECOND, WRITE) => is_io,
            _ => false,
        };
        if fused && self.bytes[1] & PSDT == PSDT_SGL { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }

    /// Returns the length of the data that the host has announced.
    pub(crate) fn announced(&self) -> u32 {
        le32(&self.bytes, 32)
    }

    /// Checks the host's buffer for `len` bytes. It may be larger.
    pub(crate) fn room(&self, len: usize) -> Result<(), Status> {
        if self.bytes[39] != SGL_TRANSPORT {
            return Err(Status::SGL_TYPE);
        }
        if (self.announced() as usize) < len { Err(Status::SGL_LENGTH) } else { Ok(()) }
    }

    /// Returns the location of the `len` bytes that the command needs. The capsule carries
    /// `carried` bytes of data, and may carry at most `most`.
    pub(crate) fn source(&self, len: u32, carried: usize, most: u32) -> Result<Place, Status> {
        if self.announced() != len {
            return Err(Status::SGL_LENGTH);
        }
        match self.bytes[39] {
            SGL_TRANSPORT if carried == 0 => Ok(Place::Host),
            SGL_IN_CAPSULE => {
                if carried > most as usize {
                    return Err(Status::SGL_LENGTH);
                }
                let offset = le64(&self.bytes, 24);
                match offset.checked_add(u64::from(len)) {
                    Some(end) if end <= carried as u64 => Ok(Place::Capsule(offset as usize)),
                    _ => Err(Status::SGL_OFFSET),
                }
            }
            _ => Err(Status::SGL_TYPE),
        }
    }
}
