//! Block requests: what a program asks of a volume, whatever protocol it came by.

use crate::buf::Buf;
use base::VolumeId;
use core::fmt;

/// What to do with a range of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Read; the reply's buffer holds `len` bytes.
    Read,
    /// Write `body`, which is `len` bytes long. Durable when answered (rule R7).
    Write,
    /// Make the range read as zeros. With `hole`, its space may be given back.
    Zero {
        /// True when space may be given back.
        hole: bool,
    },
    /// Everything that was answered is durable already; answered at once (rule R7).
    Flush,
    /// Which 4 KiB blocks of the range hold data: one bit per block that the range touches, lowest
    /// bit first, in the reply's buffer.
    Extents,
}

/// One request. `at` and `len` are bytes, multiples of 512.
#[derive(Clone, Debug)]
pub struct BlockRequest {
    /// The volume.
    pub volume: VolumeId,
    /// What to do.
    pub kind: BlockKind,
    /// Where the range starts, in bytes.
    pub at: u64,
    /// How long it is, in bytes.
    pub len: u32,
    /// The data of a write; empty otherwise.
    pub body: Buf,
}

/// Why a request failed. What can heal by itself is not here: such requests wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// The volume does not exist (any more), or not for this client.
    NoSuchVolume,
    /// The volume may only be read here.
    ReadOnly,
    /// The range leaves the volume.
    OutOfRange,
    /// `at` or `len` is not a multiple of 512, or the body's length is not `len`.
    Misaligned,
    /// Larger than this process accepts in one request.
    TooBig,
    /// There is no space for new data. A volume's client never says so: it holds the write.
    Full,
    /// Every copy of this range is lost (rule R10).
    Lost,
    /// The device failed to read or write.
    Media,
    /// More requests at once than `Limits::sdc_requests`.
    Busy,
    /// The write may have been done or not, and will not be done any more (rule R8).
    Forgotten,
    /// A newer process has this client's name (rule R8).
    Superseded,
    /// There was no answer within the time that a user has set. A write may have been done or not; it will not be
    /// done any more after anything that is asked later.
    TimedOut,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockError::NoSuchVolume => {
                "no such volume: it was deleted, is not mapped to this client, or was never made"
            }
            BlockError::ReadOnly => "the volume is mapped to this client for reading only",
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
            BlockError::TimedOut => {
                "no answer within the client's `io_timeout`: see `gabion status`; a write may have been done or not"
            }
            BlockError::Forgotten => {
                "nobody knows any more whether this write was done: read the range, or write it again"
            }
        })
    }
}

impl core::error::Error for BlockError {}
