//! Validates a request, and translates it for the volume (spec: "Request message", "Command flags",
//! "Request types", "Error values").
//!
//! Invariants: a request that passes is aligned, not empty, within the export, and has no flag that
//! its command does not support. There is no state here. The client code of the mirror checks
//! ranges again, because a volume may have changed its size since the client attached it.

use super::proto::*;
use crate::reserve::Access;
use base::{SECTOR, VolumeId};
use seam::{BlockError, BlockKind};

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) at: u64,
    pub(crate) len: u32,
}

impl Header {
    /// Returns `None` if this is not the head of a request.
    pub(crate) fn parse(head: &[u8]) -> Option<Header> {
        if head.len() != REQUEST_HEAD || be32(head, 0) != NBD_REQUEST_MAGIC {
            return None;
        }
        Some(Header {
            flags: be16(head, 4),
            command: be16(head, 6),
            cookie: be64(head, 8),
            at: be64(head, 16),
            len: be32(head, 24),
        })
    }

    /// Returns the number of bytes that follow the head.
    pub(crate) fn body_len(&self) -> usize {
        if self.command == NBD_CMD_WRITE { self.len as usize } else { 0 }
    }

    /// Returns true if this flag is set.
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The attached export, with the properties that the client was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub(crate) volume: VolumeId,
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    /// The access that reservations of other hosts leave to this client.
    pub(crate) access: Access,
    /// True if structured replies were negotiated.
    pub(crate) structured: bool,
    /// True if `base:allocation` was negotiated for this export.
    pub(crate) allocation: bool,
    /// The largest payload, in bytes.
    pub(crate) payload: u32,
}

/// The reason why a request is refused: an error value of the spec, and a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) error: u32,
    pub(crate) why: &'static str,
}

/// The treatment of a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Answer it with success; there is nothing to do.
    Succeed,
    /// Send it to the volume.
    Ask {
        kind: BlockKind,
        len: u32,
        /// Bytes of memory that it holds until its reply.
        cost: u32,
    },
}

/// Returns the longest range, in bytes, that one request for extents covers. This bounds the work,
/// and keeps the answer within the payload limit even if every other block is a hole. The client
/// asks for the rest with another request.
fn extents_max(payload: u32) -> u32 {
    (1 << 30).min((payload / 8).saturating_mul(4096)).max(4096)
}

fn refuse<T>(error: u32, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { error, why })
}

/// Returns the flags that a command supports. All support FUA ("Command flags", bit 0).
fn known_flags(command: u16, structured: bool) -> Option<u16> {
    let own = match command {
        NBD_CMD_READ if structured => NBD_CMD_FLAG_DF,
        NBD_CMD_WRITE_ZEROES => NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
        NBD_CMD_BLOCK_STATUS => NBD_CMD_FLAG_REQ_ONE,
        NBD_CMD_READ | NBD_CMD_WRITE | NBD_CMD_FLUSH | NBD_CMD_TRIM | NBD_CMD_CACHE => 0,
        _ => return None,
    };
    Some(own | NBD_CMD_FLAG_FUA)
}

/// Checks a request other than `NBD_CMD_DISC`.
pub(crate) fn check(header: &Header, export: &Attached) -> Result<Step, Refusal> {
    let Header { command, at, len, .. } = *header;
    let Some(known) = known_flags(command, export.structured) else {
        return refuse(NBD_EINVAL, "this server does not know this command");
    };
    if header.has(!known) {
        return refuse(NBD_EINVAL, "a flag is set that does not go with this command");
    }
    if command == NBD_CMD_FLUSH {
        if at != 0 || len != 0 {
            return refuse(NBD_EINVAL, "a flush has no offset and no length");
        }
        return Ok(Step::Ask { kind: BlockKind::Flush, len: 0, cost: 0 });
    }
    if command == NBD_CMD_BLOCK_STATUS && !export.allocation {
        return refuse(NBD_EINVAL, "block status was not negotiated (base:allocation)");
    }
    let writes = matches!(command, NBD_CMD_WRITE | NBD_CMD_TRIM | NBD_CMD_WRITE_ZEROES);
    if writes && export.read_only {
        return refuse(NBD_EPERM, "the export is read-only");
    }
    let reads = matches!(command, NBD_CMD_READ | NBD_CMD_BLOCK_STATUS);
    if writes && !export.access.write || reads && !export.access.read {
        return refuse(NBD_EPERM, "another host has reserved the volume");
    }
    if len == 0 {
        return refuse(NBD_EINVAL, "the length is 0");
    }
    if !at.is_multiple_of(u64::from(SECTOR)) || !len.is_multiple_of(SECTOR) {
        return refuse(NBD_EINVAL, "offset and length must be multiples of 512 bytes");
    }
    if at.checked_add(u64::from(len)).is_none_or(|end| end > export.size) {
        let error = error_value(header, export, BlockError::OutOfRange);
        return refuse(error, "the range goes beyond the end of the export");
    }
    if matches!(command, NBD_CMD_READ | NBD_CMD_WRITE) && len > export.payload {
        let error = error_value(header, export, BlockError::TooBig);
        return refuse(error, "longer than the maximum payload, which the server has told");
    }
    let (kind, len, cost) = match command {
        NBD_CMD_READ => (BlockKind::Read, len, len),
        NBD_CMD_WRITE => (BlockKind::Write, len, len),
        // The spec allows a discard to do anything between nothing and zeroing. Here it frees the
        // space and zeroes.
        NBD_CMD_TRIM => (BlockKind::Zero { hole: true }, len, 0),
        NBD_CMD_WRITE_ZEROES => {
            (BlockKind::Zero { hole: !header.has(NBD_CMD_FLAG_NO_HOLE) }, len, 0)
        }
        NBD_CMD_BLOCK_STATUS => {
            let len = len.min(extents_max(export.payload));
            (BlockKind::Extents, len, len / 512)
        }
        _ => return Ok(Step::Succeed), // NBD_CMD_CACHE: there is nothing to prefetch
    };
    Ok(Step::Ask { kind, len, cost })
}

/// Returns the error value of the spec for an error of the volume.
pub(crate) fn error_value(header: &Header, export: &Attached, error: BlockError) -> u32 {
    match (error, header.command) {
        (BlockError::OutOfRange, NBD_CMD_WRITE | NBD_CMD_WRITE_ZEROES) => NBD_ENOSPC,
        (BlockError::Full, _) => NBD_ENOSPC,
        // EOVERFLOW only applies to requests that a client may retry in smaller pieces: structured
        // reads, and commands without payload; but never a fast zero.
        (BlockError::TooBig, NBD_CMD_READ) if export.structured => NBD_EOVERFLOW,
        (BlockError::TooBig, NBD_CMD_TRIM | NBD_CMD_BLOCK_STATUS) => NBD_EOVERFLOW,
        (BlockError::TooBig, NBD_CMD_WRITE_ZEROES) if !header.has(NBD_CMD_FLAG_FAST_ZERO) => {
            NBD_EOVERFLOW
        }
        (BlockError::OutOfRange | BlockError::Misaligned | BlockError::TooBig, _) => NBD_EINVAL,
        (BlockError::Lost | BlockError::Media | BlockError::NoSuchVolume, _) => NBD_EIO,
        (BlockError::Forgotten | BlockError::Superseded | BlockError::TimedOut, _) => NBD_EIO,
        // NBD has no such request, and no second path.
        (BlockError::Miscompare(_) | BlockError::Elsewhere, _) => NBD_EIO,
        (BlockError::ReadOnly | BlockError::Reserved, _) => NBD_EPERM,
        (BlockError::Busy, _) => NBD_ENOMEM,
    }
}
