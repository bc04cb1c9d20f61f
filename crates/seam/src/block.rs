//! Block requests: what a program asks of a volume, over any protocol.

use crate::buf::Buf;
use base::VolumeId;
use core::fmt;

/// The operation on a range of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Read. The reply's buffer holds `len` bytes.
    Read,
    /// Write `body`, which is `len` bytes long. Durable when answered (rule R7).
    Write,
    /// Make the range read as zeros. With `hole`, its space may be freed.
    Zero {
        /// True if the space may be freed.
        hole: bool,
    },
    /// Compare the first half of `body` with the range, and write the second half if they are
    /// equal, both as one step of the volume (rule R17). The range lies in one block of 4 KiB, and
    /// `body` is `2 * len` bytes long. Durable when answered.
    CompareWrite,
    /// Answered at once: everything that was acknowledged is durable already (rule R7).
    Flush,
    /// Report which 4 KiB blocks of the range hold data. The reply's buffer has one bit per block
    /// that the range touches, lowest bit first.
    Extents,
}

impl BlockKind {
    /// Returns true if the request changes the volume.
    #[inline]
    pub fn changes(self) -> bool {
        matches!(self, BlockKind::Write | BlockKind::Zero { .. } | BlockKind::CompareWrite)
    }

    /// Returns the length of the body of a request of this kind for `len` bytes.
    #[inline]
    pub fn body_len(self, len: u32) -> usize {
        match self {
            BlockKind::Write => len as usize,
            BlockKind::CompareWrite => 2 * len as usize,
            _ => 0,
        }
    }

    /// Returns true if the request brings data that is kept, so it may have to wait for space.
    #[inline]
    pub fn brings_data(self) -> bool {
        matches!(self, BlockKind::Write | BlockKind::CompareWrite)
    }
}

/// One request. `at` and `len` are in bytes, multiples of 512.
#[derive(Clone, Debug)]
pub struct BlockRequest {
    /// The volume.
    pub volume: VolumeId,
    /// The operation.
    pub kind: BlockKind,
    /// Start of the range, in bytes.
    pub at: u64,
    /// Length of the range, in bytes.
    pub len: u32,
    /// The data of a write, or what a compare-and-write compares and then writes; else empty.
    pub body: Buf,
}

/// The reason why a request failed. Requests wait for conditions that heal by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// The volume does not exist (any more), or is not mapped to this client.
    NoSuchVolume,
    /// The volume is mapped to this client for reading only.
    ReadOnly,
    /// Another host has reserved the volume. (Hosts reserve volumes over iSCSI and NVMe.)
    Reserved,
    /// The range leaves the volume.
    OutOfRange,
    /// `at` or `len` is not a multiple of 512, the body has another length than the kind says, or a
    /// compare-and-write leaves its block of 4 KiB.
    Misaligned,
    /// The request is larger than this process accepts.
    TooBig,
    /// There was no space for new data within the time limit of the request. Without a limit, a
    /// volume's client holds the write until there is space.
    Full,
    /// Every copy of this range is lost (rule R10).
    Lost,
    /// The device failed to read or write.
    Media,
    /// More requests at once than `Limits::sdc_requests`.
    Busy,
    /// It is unknown whether the write was done. It will not be done any more (rule R8).
    Forgotten,
    /// A newer process has this client's name (rule R8).
    Superseded,
    /// Another gateway serves this host. The request was not executed, or can't take effect any
    /// more. Only hosts with iSCSI or NVMe get this error.
    Elsewhere,
    /// There was no answer within the time limit that a user has set. It is unknown whether a write
    /// was done. It will not be done after any later request.
    TimedOut,
    /// A compare-and-write found other data, and wrote nothing. The byte at this offset of the
    /// range is the first one that differs.
    Miscompare(u32),
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockError::NoSuchVolume => {
                "no such volume: it was deleted, is not mapped to this client, or was never made"
            }
            BlockError::ReadOnly => "the volume is mapped to this client for reading only",
            BlockError::Reserved => {
                "another host has reserved the volume: it has to release it, or one of its cluster preempts it"
            }
            BlockError::OutOfRange => "the range leaves the volume",
            BlockError::Misaligned => "offset and length must be multiples of 512 bytes",
            BlockError::TooBig => "the request is larger than one request may be",
            BlockError::Full => "the storage pool is full: add a device, or delete or discard data",
            BlockError::Lost => "every copy of this range is lost; see `gabion status`",
            BlockError::Media => "the device failed",
            BlockError::Busy => "too many requests at once",
            BlockError::Superseded => {
                "a newer process has this client's name: give one of the two another, and start this one again"
            }
            BlockError::Elsewhere => "another gateway serves this host: use the path to that one",
            BlockError::TimedOut => {
                "no answer within the client's `io_timeout`: see `gabion status`; a write may have been done or not"
            }
            BlockError::Miscompare(_) => "the range has other data than was expected: read it again",
            BlockError::Forgotten => {
                "nobody knows any more whether this write was done: read the range, or write it again"
            }
        })
    }
}

impl core::error::Error for BlockError {}
