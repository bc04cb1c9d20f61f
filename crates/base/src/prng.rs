//! A small seeded random generator (xoshiro256**, Blackman and Vigna 2018, seeded by SplitMix64).
//! Not for secrets. Nodes draw only from the generator that the driver passes to them.

/// A deterministic stream of random numbers.
#[derive(Clone, Debug)]
pub struct Prng {
    s: [u64; 4],
}

impl Prng {
    /// Creates a stream that depends only on `seed`.
    pub fn new(seed: u64) -> Prng {
        let mut x = seed;
        let s = core::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(x)
        });
        Prng { s }
    }

    /// Returns an independent stream named `label`. `self` is not advanced.
    pub fn fork(&self, label: &str) -> Prng {
        let mut h = self.s[0] ^ self.s[2].rotate_left(32);
        for b in label.bytes() {
            h = mix(h ^ u64::from(b));
        }
        Prng::new(h)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let out = self.s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = self.s[1] << 17;
        self.s[2] ^= self.s[0];
        self.s[3] ^= self.s[1];
        self.s[1] ^= self.s[2];
        self.s[0] ^= self.s[3];
        self.s[2] ^= t;
        self.s[3] = self.s[3].rotate_left(45);
        out
    }

    /// Returns a number in `0..n`. Panics if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "an empty range has no number to draw");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with probability `p` (0 to 1).
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// Returns one element of a non-empty slice.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// Mixes 64 bits thoroughly; a permutation (SplitMix64's finaliser).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_stream() {
        let (mut a, mut b) = (Prng::new(7), Prng::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(Prng::new(7).fork("net").next_u64(), Prng::new(7).fork("disk").next_u64());
    }

    #[test]
    fn below_stays_below_and_reaches_everything() {
        let mut r = Prng::new(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[r.below(7) as usize] = true;
        }
        assert!(seen.iter().all(|s| *s));
    }
}
