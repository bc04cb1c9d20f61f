//! Translates a request of the kernel to a request to the data client. There is no I/O here:
//! `serve` sends the requests.
//!
//! Invariant: a request to the client is within the volume's known size, and consists of whole
//! sectors.

use crate::client::{Client, Usable};
use crate::folder::Shown;
use crate::fuse::abi::{Allocate, Body, Call, Request, Wanted};
use base::{SECTOR, VolumeId};
use rustix::io::Errno;
use seam::{BlockKind, BlockRequest, Buf};

/// Most bytes that one request zeroes or searches for data.
pub(crate) const STEP: u64 = 1 << 30;
/// Bytes of a block: the client reports for each block whether it has data.
pub(crate) const BLOCK: u64 = base::BLOCK as u64;

/// How an answer is handled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    /// Skip the first `skip` bytes of the sectors that are read, and return the next `len`.
    Read {
        skip: u32,
        len: u32,
    },
    Write {
        len: u32,
    },
    /// The range from `at` to `end` is still to be zeroed.
    Zero {
        volume: VolumeId,
        at: u64,
        end: u64,
        hole: bool,
    },
    /// Blocks are searched from `at` to `end`, the end of the volume.
    Seek {
        volume: VolumeId,
        at: u64,
        end: u64,
        wanted: Wanted,
    },
}

/// The bytes of memory that a request holds until its answer.
pub(crate) fn weight(pending: Pending) -> u64 {
    match pending {
        Pending::Read { len, .. } | Pending::Write { len } => len.into(),
        Pending::Zero { .. } | Pending::Seek { .. } => 0,
    }
}

/// What to do with a request.
pub(crate) enum Outcome {
    /// It gets no answer.
    Silent,
    Reply(Body),
    Empty,
    Refuse(Errno),
    Ask(Pending, BlockRequest),
}

/// Returns the client's request for the first part of a long range.
pub(crate) fn ask(pending: Pending) -> BlockRequest {
    let (volume, kind, at, len) = match pending {
        Pending::Zero { volume, at, end, hole } => {
            (volume, BlockKind::Zero { hole }, at, within(at, STEP, end))
        }
        Pending::Seek { volume, at, end, .. } => {
            let at = at / BLOCK * BLOCK;
            (volume, BlockKind::Extents, at, within(at, STEP, end))
        }
        Pending::Read { .. } | Pending::Write { .. } => unreachable!("they have one part"),
    };
    BlockRequest { volume, kind, at, len: len as u32, body: Buf::EMPTY }
}

/// Decides what a request needs.
pub(crate) fn start(client: &mut Client, shown: Shown, request: &Request<'_>) -> Outcome {
    let node = request.node;
    let outcome = match request.call {
        Call::Silent => return Outcome::Silent,
        Call::Read { handle, at, len } => {
            shown.opened(client, node, handle).and_then(|volume| read(volume, at, len))
        }
        Call::Write { handle, at, data } => {
            shown.opened(client, node, handle).and_then(|volume| write(client, volume, at, data))
        }
        Call::Allocate { handle, at, len, how } => {
            shown.opened(client, node, handle).and_then(|volume| zero(volume, at, len, how))
        }
        Call::Seek { handle, at, wanted } => {
            shown.opened(client, node, handle).and_then(|volume| seek(volume, at, wanted))
        }
        call => shown.answer(client, node, call).map(Outcome::Reply),
    };
    outcome.unwrap_or_else(Outcome::Refuse)
}

/// Reads any range, by reading the whole sectors that contain it.
fn read(volume: Usable, at: u64, len: u32) -> Result<Outcome, Errno> {
    let len = within(at, len.into(), volume.size) as u32;
    if len == 0 {
        return Ok(Outcome::Empty);
    }
    let skip = (at % u64::from(SECTOR)) as u32;
    let ask = BlockRequest {
        volume: volume.id,
        kind: BlockKind::Read,
        at: at - u64::from(skip),
        len: (skip + len).next_multiple_of(SECTOR),
        body: Buf::EMPTY,
    };
    Ok(Outcome::Ask(Pending::Read { skip, len }, ask))
}

fn write(client: &Client, volume: Usable, at: u64, data: &[u8]) -> Result<Outcome, Errno> {
    let len = within(at, data.len() as u64, volume.size) as u32;
    if len == 0 && !data.is_empty() {
        return Err(Errno::NOSPC);
    }
    if !is_aligned(at, len.into()) {
        return Err(Errno::INVAL);
    }
    let body = client.copy(&data[..len as usize]);
    let ask = BlockRequest { volume: volume.id, kind: BlockKind::Write, at, len, body };
    Ok(Outcome::Ask(Pending::Write { len }, ask))
}

fn zero(volume: Usable, at: u64, len: u64, how: Allocate) -> Result<Outcome, Errno> {
    let Allocate::Zero { hole } = how else { return Err(Errno::OPNOTSUPP) };
    if volume.read_only {
        return Err(Errno::ROFS);
    }
    let end = at + within(at, len, volume.size);
    if end == at {
        return Ok(Outcome::Empty);
    }
    if !is_aligned(at, end) {
        return Err(Errno::INVAL);
    }
    let pending = Pending::Zero { volume: volume.id, at, end, hole };
    Ok(Outcome::Ask(pending, ask(pending)))
}

fn seek(volume: Usable, at: u64, wanted: Wanted) -> Result<Outcome, Errno> {
    if at >= volume.size {
        return Err(Errno::NXIO);
    }
    let pending = Pending::Seek { volume: volume.id, at, end: volume.size, wanted };
    Ok(Outcome::Ask(pending, ask(pending)))
}

/// Returns the length of a range, shortened at the end of a volume of `size` bytes.
pub(crate) fn within(at: u64, len: u64, size: u64) -> u64 {
    len.min(size.saturating_sub(at))
}

/// Returns true if offset and length are whole sectors.
fn is_aligned(at: u64, len: u64) -> bool {
    at.is_multiple_of(SECTOR.into()) && len.is_multiple_of(SECTOR.into())
}

/// Returns the offset of the first block from `at` on whose bit has the wanted value. A block
/// without a bit counts as data, so it is never taken for a hole.
pub(crate) fn first(bits: &[u8], at: u64, blocks: u64, wanted: Wanted) -> Option<u64> {
    let has_data =
        |block: u64| bits.get(block as usize / 8).is_none_or(|b| b >> (block % 8) & 1 == 1);
    let found = (0..blocks).find(|block| has_data(*block) == (wanted == Wanted::Data))?;
    Some(at + found * BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: Usable = Usable { id: VolumeId(1), size: 4 << 20, since: 1, read_only: false };

    fn asked(outcome: Result<Outcome, Errno>) -> Option<(u64, u32)> {
        match outcome {
            Ok(Outcome::Ask(_, ask)) => Some((ask.at, ask.len)),
            _ => None,
        }
    }

    #[test]
    fn requests_end_at_the_end_of_the_volume() {
        assert_eq!(asked(read(VOLUME, 4096, 8192)), Some((4096, 8192)));
        assert_eq!(asked(read(VOLUME, (4 << 20) - 512, 8192)), Some(((4 << 20) - 512, 512)));
        assert!(matches!(read(VOLUME, 4 << 20, 512), Ok(Outcome::Empty)));
        assert!(matches!(read(VOLUME, u64::MAX, 512), Ok(Outcome::Empty)));
        let hole = Allocate::Zero { hole: true };
        assert_eq!(asked(zero(VOLUME, 0, u64::MAX, hole)), Some((0, 4 << 20)));
        assert!(matches!(zero(VOLUME, 5 << 20, 512, hole), Ok(Outcome::Empty)));
        assert!(matches!(seek(VOLUME, 4 << 20, Wanted::Data), Err(Errno::NXIO)));
    }

    #[test]
    fn parts_of_sectors_can_be_read() {
        assert_eq!(asked(read(VOLUME, 1, 100)), Some((0, 512)));
        assert_eq!(asked(read(VOLUME, 1000, 100)), Some((512, 1024)));
        assert_eq!(asked(read(VOLUME, (4 << 20) - 1, 100)), Some(((4 << 20) - 512, 512)));
        let Ok(Outcome::Ask(Pending::Read { skip, len }, _)) = read(VOLUME, 1000, 100) else {
            panic!("it is a read");
        };
        assert_eq!((skip, len), (488, 100));
    }

    #[test]
    fn ranges_of_parts_of_sectors_and_other_kinds_of_allocation_are_refused() {
        let hole = Allocate::Zero { hole: true };
        assert!(matches!(zero(VOLUME, 0, 100, hole), Err(Errno::INVAL)));
        assert!(matches!(zero(VOLUME, 100, 1024, hole), Err(Errno::INVAL)));
        assert!(matches!(zero(VOLUME, 0, 4096, Allocate::Other), Err(Errno::OPNOTSUPP)));
        let read_only = Usable { read_only: true, ..VOLUME };
        assert!(matches!(zero(read_only, 0, 4096, hole), Err(Errno::ROFS)));
    }

    #[test]
    fn long_ranges_are_done_in_steps_of_whole_blocks() {
        let large = Usable { size: 5 << 30, ..VOLUME };
        let hole = Allocate::Zero { hole: true };
        assert_eq!(asked(zero(large, 512, 4 << 30, hole)), Some((512, 1 << 30)));
        assert_eq!(asked(seek(large, 5000, Wanted::Data)), Some((4096, 1 << 30)));
    }

    #[test]
    fn the_first_block_that_is_wanted_is_found() {
        let bits = [0b0000_0011, 0b0000_0100];
        let found = |blocks, wanted| first(&bits, 8192, blocks, wanted);
        assert_eq!(found(11, Wanted::Data), Some(8192));
        assert_eq!(found(11, Wanted::Hole), Some(8192 + 2 * 4096));
        assert_eq!(first(&bits[1..], 0, 3, Wanted::Data), Some(2 * 4096));
        assert_eq!(first(&bits[1..], 0, 2, Wanted::Data), None);
        assert_eq!(first(&[], 0, 1, Wanted::Data), Some(0));
        assert_eq!(first(&[], 0, 1, Wanted::Hole), None);
    }
}
