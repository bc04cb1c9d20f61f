//! A fixed number of bits, for sets of slots and pages.

use alloc::vec;
use alloc::vec::Vec;

/// Bits `0..len`.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    len: u32,
    count: u32,
}

impl Bits {
    /// Makes a set of `len` bits, all clear.
    pub(super) fn new(len: u32) -> Bits {
        Bits { words: vec![0; len.div_ceil(64) as usize], len, count: 0 }
    }

    /// Returns the set of the bits that are clear here. Writes only to memory where there are some.
    pub(super) fn complement(&self) -> Bits {
        let mut all = Bits::new(self.len);
        for (i, word) in self.words.iter().enumerate().filter(|(_, word)| **word != u64::MAX) {
            let left = self.len - i as u32 * 64;
            all.words[i] = !word & if left < 64 { (1 << left) - 1 } else { u64::MAX };
        }
        all.count = self.len - self.count;
        all
    }

    /// Returns the number of bits.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of bits that are set.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// True when bit `i` is set.
    pub(super) fn get(&self, i: u32) -> bool {
        self.words[i as usize / 64] >> (i % 64) & 1 == 1
    }

    /// Sets or clears bit `i`. Returns true when that changed it.
    pub(super) fn put(&mut self, i: u32, to: bool) -> bool {
        assert!(i < self.len, "bit {i} of {}", self.len);
        if self.get(i) == to {
            return false;
        }
        self.words[i as usize / 64] ^= 1 << (i % 64);
        if to {
            self.count += 1
        } else {
            self.count -= 1
        }
        true
    }

    /// Returns the first bit at or after `from` that is set.
    pub(super) fn next_set(&self, from: u32) -> Option<u32> {
        self.find(from, |w| w)
    }

    /// Returns the first bit at or after `from` that is clear.
    pub(super) fn next_clear(&self, from: u32) -> Option<u32> {
        self.find(from, |w| !w)
    }

    fn find(&self, from: u32, of: impl Fn(u64) -> u64) -> Option<u32> {
        if from >= self.len {
            return None;
        }
        let mut word = from as usize / 64;
        let mut bits = of(self.words[word]) & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = of(*self.words.get(word)?);
        }
        let i = word as u32 * 64 + bits.trailing_zeros();
        (i < self.len).then_some(i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_next_of_either_kind_and_counts() {
        let mut bits = Bits::new(130);
        assert!(bits.put(3, true) && bits.put(129, true) && !bits.put(3, true));
        assert_eq!(
            (bits.next_set(0), bits.next_set(4), bits.next_set(130)),
            (Some(3), Some(129), None)
        );
        assert_eq!((bits.next_clear(3), bits.next_clear(129), bits.count()), (Some(4), None, 2));
        let rest = bits.complement();
        assert_eq!((rest.count(), rest.next_set(0), rest.next_set(3)), (128, Some(0), Some(4)));
        assert_eq!((rest.next_set(129), rest.complement().next_set(4)), (None, Some(129)));
        assert!(bits.put(129, false) && bits.next_set(4).is_none());
    }
}
