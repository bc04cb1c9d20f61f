//! The block requests that one command needs, one after another, and its final answer.

use super::answer::Answer;
use super::command::Residual;
use super::failure::Failure;
use super::ranges::{self, Descriptor};
use super::unit::Unit;
use seam::{BlockError, BlockKind, Buf, BufPool};

/// Most bytes of one request that has data.
const PIECE: u32 = 256 << 10;

/// A request to the volume.
#[derive(Clone, Debug)]
pub struct Request {
    /// The operation.
    pub kind: BlockKind,
    /// Start of the range in bytes. A multiple of 512.
    pub at: u64,
    /// Length of the range in bytes. A multiple of 512, and never 0.
    pub len: u32,
    /// The data of a write (`len` bytes) or of a compare and write (`2 * len` bytes).
    pub body: Buf,
}

/// Requests of one command. At any time exactly one of them is under way.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of a logical block.
    block: u32,
    /// The residual of an answer without data for the host.
    residual: Residual,
    rest: Rest,
}

#[derive(Clone, Debug)]
enum Rest {
    /// Make one range zero.
    Zero { at: u64, len: u32, hole: bool },
    /// Write copies of one buffer of whole blocks.
    Fill { at: u64, left: u32, copies: Buf },
    /// Free the range of each descriptor from `index` on. The one at `index` is not empty.
    Unmap { list: Buf, index: usize, next: Descriptor },
    /// Compare, and write.
    CompareWrite { at: u64, len: u32, body: Buf },
    /// Read, and discard the data.
    Check { at: u64, left: u32 },
    /// Report which blocks are mapped, in at most the allocation length of the host.
    Status { at: u64, len: u32, allocation: u32, room: u32 },
}

impl Plan {
    fn new(unit: &Unit, rest: Rest) -> Plan {
        Plan { block: unit.format.block(), residual: Residual::None, rest }
    }

    /// Returns the same plan for a host that has announced data which its command does not move.
    pub(super) fn with(self, residual: Residual) -> Plan {
        Plan { residual, ..self }
    }

    pub(super) fn zero(unit: &Unit, at: u64, len: u32, hole: bool) -> Plan {
        Plan::new(unit, Rest::Zero { at, len, hole })
    }

    pub(super) fn check(unit: &Unit, at: u64, len: u32) -> Plan {
        Plan::new(unit, Rest::Check { at, left: len })
    }

    pub(super) fn compare_write(unit: &Unit, at: u64, len: u32, body: Buf) -> Plan {
        Plan::new(unit, Rest::CompareWrite { at, len, body })
    }

    pub(super) fn status(unit: &Unit, at: u64, len: u32, allocation: u32, room: u32) -> Plan {
        // An answer without data is that of a failure.
        Plan::new(unit, Rest::Status { at, len, allocation, room }).with(Residual::of(room, 0))
    }

    /// Fills a range with copies of one block. A block of zeros becomes a hole if `hole` is set.
    pub(super) fn write_same(
        unit: &Unit,
        at: u64,
        len: u32,
        hole: bool,
        block: &[u8],
        pool: &BufPool,
    ) -> Plan {
        if block.iter().all(|byte| *byte == 0) {
            return Plan::zero(unit, at, len, hole);
        }
        let mut copies = pool.alloc(len.min(PIECE) as usize);
        copies.as_mut().chunks_exact_mut(block.len()).for_each(|copy| copy.copy_from_slice(block));
        Plan::new(unit, Rest::Fill { at, left: len, copies })
    }

    /// Frees the ranges of a checked list; `None` if all of them are empty.
    pub(super) fn unmap(unit: &Unit, list: Buf) -> Option<Plan> {
        let (index, next) = full(&list, 0)?;
        Some(Plan::new(unit, Rest::Unmap { list, index, next }))
    }

    /// Returns the data that the plan holds.
    pub fn held(&self) -> Option<&Buf> {
        match &self.rest {
            Rest::Fill { copies: body, .. }
            | Rest::Unmap { list: body, .. }
            | Rest::CompareWrite { body, .. } => Some(body),
            Rest::Zero { .. } | Rest::Check { .. } | Rest::Status { .. } => None,
        }
    }

    /// Returns the request that is due.
    pub fn request(&self) -> Request {
        let (kind, at, len, body) = match &self.rest {
            Rest::Zero { at, len, hole } => {
                (BlockKind::Zero { hole: *hole }, *at, *len, Buf::EMPTY)
            }
            Rest::Fill { at, left, copies } => {
                let len = (*left).min(copies.len() as u32);
                (BlockKind::Write, *at, len, copies.slice(0..len as usize))
            }
            Rest::Unmap { next, .. } => {
                let at = next.lba * u64::from(self.block);
                (BlockKind::Zero { hole: true }, at, next.count * self.block, Buf::EMPTY)
            }
            Rest::CompareWrite { at, len, body } => {
                (BlockKind::CompareWrite, *at, *len, body.clone())
            }
            Rest::Check { at, left } => (BlockKind::Read, *at, (*left).min(PIECE), Buf::EMPTY),
            Rest::Status { at, len, .. } => (BlockKind::Extents, *at, *len, Buf::EMPTY),
        };
        Request { kind, at, len, body }
    }

    /// Takes the result of that request: the data of a read, or the bitmap of extents. Returns the
    /// answer of the command, or `None` if another request is due.
    pub fn done(&mut self, result: Result<Buf, Failure>, pool: &BufPool) -> Option<Answer> {
        let request = self.request();
        let data = match result {
            Ok(data) => data,
            Err(failure) => return Some(self.failed(failure, request.at)),
        };
        match &mut self.rest {
            Rest::Zero { .. } | Rest::CompareWrite { .. } => Some(self.good()),
            Rest::Check { .. } if data.len() != request.len as usize => {
                Some(self.failed(BlockError::Media.into(), request.at))
            }
            Rest::Fill { at, left, .. } | Rest::Check { at, left } => {
                *at += u64::from(request.len);
                *left -= request.len;
                (*left == 0).then(|| self.good())
            }
            Rest::Unmap { list, index, next } => match full(list, *index + 1) {
                Some((i, descriptor)) => {
                    (*index, *next) = (i, descriptor);
                    None
                }
                None => Some(self.good()),
            },
            Rest::Status { at, len, allocation, room } => {
                let (allocation, room) = (*allocation, *room);
                let status = ranges::status(&data, *at, *len, self.block, allocation);
                Some(match status {
                    Some(status) => Answer::copy(&status, allocation as usize, room, pool),
                    None => self.failed(BlockError::Media.into(), request.at),
                })
            }
        }
    }

    fn good(&self) -> Answer {
        Answer::good().with(self.residual)
    }

    fn failed(&self, failure: Failure, at: u64) -> Answer {
        let writes = !matches!(self.rest, Rest::Check { .. } | Rest::Status { .. });
        failure.answer(writes, at / u64::from(self.block)).with(self.residual)
    }
}

/// Returns the first descriptor that is not empty, from this index on.
fn full(list: &[u8], from: usize) -> Option<(usize, Descriptor)> {
    ranges::descriptors(list).enumerate().skip(from).find(|(_, descriptor)| descriptor.count > 0)
}
