//! CRC-32C (Castagnoli), the only checksum on the wire and on media.
//!
//! The CRC of a body can be computed from the CRCs of its blocks, because a CRC is linear: the CRC
//! of two concatenated pieces is the CRC of the first, multiplied by x to the power of the second
//! one's length in bits, plus the CRC of the second. For blocks of one size that is a table lookup.

use crate::units::BLOCK;

/// Returns the CRC-32C of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// Returns the CRC-32C of some data plus a 4 KiB block, given the CRC of each (no data: 0).
#[inline]
pub fn append_block(data: u32, block: u32) -> u32 {
    let [a, b, c, d] = data.to_le_bytes().map(usize::from);
    BEHIND[0][a] ^ BEHIND[1][b] ^ BEHIND[2][c] ^ BEHIND[3][d] ^ block
}

/// The CRC-32C of 4 KiB of zeros.
pub const ZERO_BLOCK: u32 = zeros(BLOCK);

/// The polynomial. Here as everywhere in this file, the lowest power is in the highest bit.
const POLY: u32 = 0x82f6_3b78;
/// Indexed by byte position and byte value: that byte's part of a CRC, shifted by one block.
static BEHIND: [[u32; 256]; 4] = table();

const fn times_x(a: u32) -> u32 {
    if a & 1 == 1 { a >> 1 ^ POLY } else { a >> 1 }
}

const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 1u32 << 31);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = times_x(b);
        bit >>= 1;
    }
    product
}

const fn table() -> [[u32; 256]; 4] {
    const { assert!(BLOCK == 1 << 12) };
    let (mut shift, mut squarings) = (1 << 30, 0); // x
    while squarings < 15 {
        shift = times(shift, shift);
        squarings += 1;
    }
    let mut table = [[0; 256]; 4];
    let mut i = 0;
    while i < 1024 {
        table[i / 256][i % 256] = times(shift, ((i % 256) as u32) << (8 * (i / 256)));
        i += 1;
    }
    table
}

const fn zeros(bytes: u32) -> u32 {
    let (mut crc, mut bit) = (!0, 0);
    while bit < bytes * 8 {
        crc = times_x(crc);
        bit += 1;
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prng;
    use alloc::vec;

    #[test]
    fn matches_rfc_3720_vectors() {
        assert_eq!(crc32c(&[0u8; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xffu8; 32]), 0x62a8_ab43);
    }

    #[test]
    fn a_body_has_the_sum_of_its_blocks() {
        let mut prng = Prng::new(7);
        for blocks in 0..20 {
            let mut data = vec![0; blocks * BLOCK as usize];
            data.iter_mut().for_each(|b| *b = prng.next_u64() as u8);
            let sums = data.chunks_exact(BLOCK as usize).map(crc32c);
            assert_eq!(sums.fold(0, append_block), crc32c(&data), "{blocks} blocks");
        }
        assert_eq!(ZERO_BLOCK, crc32c(&[0; BLOCK as usize]));
        let head = crc32c(b"any length");
        let mut all = b"any length".to_vec();
        all.extend([5; BLOCK as usize]);
        assert_eq!(append_block(head, crc32c(&[5; BLOCK as usize])), crc32c(&all));
    }
}
