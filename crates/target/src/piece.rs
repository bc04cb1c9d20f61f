//! The tags of requests. A tag names a command and a piece of its data.
//!
//! | bits | content |
//! |---|---|
//! | 0 to 31 | the handle of the command |
//! | 32 to 47 | where the piece begins in the command's data, in sectors |
//! | 48 to 63 | its length, in sectors |
//!
//! So a command only counts its pieces and needs no list of them. Sessions of iSCSI and NVMe use
//! these tags; sessions of NBD do not.

use base::SECTOR;
use seam::{Buf, BufPool};

/// The longest transfer in bytes: a tag has 16 bits for its sectors. No limit may exceed it.
pub(crate) const TRANSFER_MAX: u32 = 16 << 20;

/// Returns the tag of a piece of a command. Offset and length are in bytes.
#[inline]
pub(crate) fn tag(handle: u32, offset: u32, len: u32) -> u64 {
    let sectors = |bytes: u32| u64::from(bytes / SECTOR);
    debug_assert!(offset / SECTOR < 1 << 16 && len / SECTOR < 1 << 16, "at most `TRANSFER_MAX`");
    sectors(len) << 48 | sectors(offset) << 32 | u64::from(handle)
}

/// Returns the offset and the length, in bytes, of the piece that a tag names.
pub(crate) fn piece(tag: u64) -> (u32, u32) {
    let sectors = |shift: u32| u32::from((tag >> shift) as u16) * SECTOR;
    (sectors(32), sectors(48))
}

/// Most pieces of a session that may be views of much larger receive buffers. A command has one
/// piece, unless its host sends its data in small parts.
const VIEWS: u32 = 136;

/// Returns the data of a piece. If so many pieces are under way already, and the data is less than
/// half of the buffer that it keeps in memory, it gets a buffer of its own.
pub(crate) fn compact(data: Buf, under_way: u32, pool: &BufPool) -> Buf {
    let kept = |data: &Buf| data.block().map_or(0, |(_, bytes)| bytes);
    if under_way >= VIEWS && kept(&data) > 2 * data.len() { pool.copy(&data) } else { data }
}

/// Returns true if this tag of an iSCSI or NVMe session names the first request of its command, or
/// the only one. If a command makes its requests one after another, each of them counts as first.
pub fn is_first(tag: u64) -> bool {
    piece(tag).0 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_says_which_piece_it_is() {
        let last = TRANSFER_MAX - SECTOR;
        for (offset, len) in [(0, 0), (0, TRANSFER_MAX), (4 << 20, 256 << 10), (last, SECTOR)] {
            let tag = tag(0xffff_0007, offset, len);
            assert_eq!((tag as u32, piece(tag)), (0xffff_0007, (offset, len)));
            assert_eq!(is_first(tag), offset == 0);
        }
    }
}
