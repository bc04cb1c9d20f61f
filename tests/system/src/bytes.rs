//! Content that is easy to generate and hard to mistake.

/// A small random generator. The tests share no code with the product.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a stream that depends only on the seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number (xorshift64*).
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    /// Returns `len` bytes without a pattern; no block of them is all zero.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|_| self.number().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

/// Returns the CRC-32C, computed bit by bit as RFC 3720 defines it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
