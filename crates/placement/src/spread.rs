//! How often each two devices share a group, and how many partners each has.

use alloc::vec;
use alloc::vec::Vec;

/// The devices that one device shares groups with, where there are more: its scatter width.
///
/// All of them rebuild it when it fails, so more than these would not help: they copy faster than any
/// network carries. But each pair that shares groups costs a link and its beacons, and each is a pair whose
/// loss together loses data. (Cidon et al., "Copysets", USENIX ATC 2013, has the arithmetic.)
pub const PARTNERS: u32 = 16;

/// Devices are numbered from 0.
#[derive(Default)]
pub(crate) struct Spread {
    n: usize,
    pairs: Vec<u32>,
    partners: Vec<Vec<usize>>,
}

impl Spread {
    pub fn new(n: usize) -> Spread {
        Spread { n, pairs: vec![0; n * n], partners: vec![Vec::new(); n] }
    }

    /// The groups that the two share.
    pub fn pairs(&self, a: usize, b: usize) -> u32 {
        self.pairs[a * self.n + b]
    }

    /// They don't share a group, and one of them has partners enough.
    pub fn widens(&self, a: usize, b: usize) -> bool {
        self.pairs(a, b) == 0 && (self.has_enough(a) || self.has_enough(b))
    }

    /// It shares groups with as many as pays.
    pub fn has_enough(&self, device: usize) -> bool {
        self.partners[device].len() >= PARTNERS as usize
    }

    /// Those that it shares groups with, in no order.
    pub fn partners(&self, device: usize) -> &[usize] {
        &self.partners[device]
    }

    /// They share one more.
    pub fn join(&mut self, a: usize, b: usize) {
        for (one, other) in [(a, b), (b, a)] {
            if self.pairs(one, other) == 0 {
                self.partners[one].push(other);
            }
            self.pairs[one * self.n + other] += 1;
        }
    }

    /// They share one less.
    pub fn part(&mut self, a: usize, b: usize) {
        for (one, other) in [(a, b), (b, a)] {
            self.pairs[one * self.n + other] -= 1;
            if self.pairs(one, other) == 0 {
                self.partners[one].retain(|p| *p != other);
            }
        }
    }
}
