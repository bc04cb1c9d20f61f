//! Digests: the CRC-32C of a head, and that of a data segment with its padding.
//!
//! The digest of a data segment of whole words is the CRC that `base::crc` computes for its bytes.
//! So a known CRC can be used as a digest, and a digest as a CRC.

use super::framer::Mode;
use super::proto::*;
use base::crc::crc32c;
use seam::Head;

/// Returns the CRC-32C of data followed by `more`, given that of the data. For few bytes in `more`.
fn append(crc: u32, more: &[u8]) -> u32 {
    let mut state = !crc;
    for byte in more {
        state ^= u32::from(*byte);
        for _ in 0..8 {
            state = if state & 1 == 1 { state >> 1 ^ 0x82f6_3b78 } else { state >> 1 };
        }
    }
    !state
}

/// Returns true if `trailer` has the right digest of `data`, which arrived before it.
pub(crate) fn is_right(mode: Mode, data: &[u8], trailer: &[u8]) -> bool {
    let (padding, digest) = trailer.split_at(padding(data.len()));
    !mode.data_digest || append(crc32c(data), padding).to_le_bytes() == digest
}

/// Returns true if the head's digest at the start of `behind` is right.
pub(crate) fn is_right_head(bhs: &[u8], behind: &[u8]) -> bool {
    let segments = usize::from(bhs[4]) * 4;
    let (more, rest) = behind.split_at(segments);
    append(crc32c(bhs), more).to_le_bytes() == rest[..DIGEST]
}

/// Adds the padding and the digest of this data to a head.
pub(crate) fn end(mode: Mode, data: &[u8], head: &mut Head) {
    if data.is_empty() {
        return;
    }
    let zeros = &[0; 3][..padding(data.len())];
    head.push(zeros);
    if mode.data_digest {
        head.push(&append(crc32c(data), zeros).to_le_bytes());
    }
}

/// Returns the trailer of this data; empty if there is none.
pub(crate) fn trailer(mode: Mode, data: &[u8]) -> Head {
    let mut trailer = Head::EMPTY;
    end(mode, data, &mut trailer);
    trailer
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const BOTH: Mode = Mode { full: true, header_digest: true, data_digest: true };

    #[test]
    fn a_digest_covers_data_and_padding() {
        let data: Vec<u8> = (0..70).collect();
        for len in 0..70 {
            let all = [&data[..len], &[9, 9, 9][..padding(len)]].concat();
            assert_eq!(append(crc32c(&data[..len]), &all[len..]), crc32c(&all));
            let mut bytes = trailer(BOTH, &data[..len]).as_slice().to_vec();
            assert_eq!(bytes.len(), BOTH.trailer(len));
            if len > 0 {
                assert!(is_right(BOTH, &data[..len], &bytes));
                *bytes.last_mut().unwrap() ^= 1;
                assert!(!is_right(BOTH, &data[..len], &bytes));
            }
        }
    }

    #[test]
    fn the_digest_of_zeros_is_that_of_the_rfc() {
        assert_eq!(trailer(BOTH, &[0; 32]).as_slice(), [0xaa, 0x36, 0x91, 0x8a]);
    }
}
