//! The ranges of Dataset Management (base 6.7.1.1), in parts.
//!
//! Invariant: each byte of each range is in exactly one part, unless the rest is dropped.

use super::proto::*;
use base::VolumeId;
use seam::Buf;

/// Bytes of a range in the list.
pub(crate) const RANGE: u32 = 16;
/// Most bytes of one part.
const CHUNK: u64 = 64 << 20;

/// The ranges of a command that are not freed yet.
#[derive(Debug)]
pub(crate) struct Ranges {
    volume: VolumeId,
    list: Buf,
    /// The index of the next range, and how many of its bytes are freed.
    next: (usize, u64),
    /// Parts that were taken so far.
    taken: u32,
}

impl Ranges {
    /// Takes a list of entries as a host has sent it, all of which lie in the volume.
    pub(crate) fn new(volume: VolumeId, list: Buf) -> Ranges {
        Ranges { volume, list, next: (0, 0), taken: 0 }
    }

    /// Returns the volume.
    pub(crate) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Returns the number of the next part, its offset and its length in bytes.
    pub(crate) fn take(&mut self) -> Option<(u32, u64, u32)> {
        loop {
            let entry = self.list.get(self.next.0..self.next.0 + RANGE as usize)?;
            let (first, len) = range(entry);
            let (at, left) = (first * u64::from(BLOCK) + self.next.1, len - self.next.1);
            let part = left.min(CHUNK);
            if part == left {
                self.next = (self.next.0 + RANGE as usize, 0);
            } else {
                self.next.1 += part;
            }
            if part > 0 {
                self.taken = self.taken.wrapping_add(1);
                return Some((self.taken, at, part as u32)); // 64 MiB at most
            }
        }
    }

    /// Drops the remaining ranges.
    pub(crate) fn stop(&mut self) {
        self.next = (self.list.len(), 0);
    }
}

/// Returns the first block and the length in bytes.
pub(crate) fn range(entry: &[u8]) -> (u64, u64) {
    (le64(entry, 8), u64::from(le32(entry, 4)) * u64::from(BLOCK))
}
