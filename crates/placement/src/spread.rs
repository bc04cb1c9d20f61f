//! Counts how many groups any two devices share, and how many partners each device has.

use alloc::vec;
use alloc::vec::Vec;

/// Most devices that one device shares groups with: its scatter width.
///
/// When a device fails, all its partners rebuild it. More partners would not help, because this
/// many already copy faster than any network. And each pair that shares groups costs a link with
/// beacons, and loses data if both devices fail at the same time. (Cidon et al., "Copysets", USENIX
/// ATC 2013, has the arithmetic.)
pub const PARTNERS: u32 = 16;

/// The groups of each pair and the partners of each device. Devices are numbered from 0.
#[derive(Default)]
pub(crate) struct Spread {
    n: usize,
    pairs: Vec<u32>,
    partners: Vec<Vec<usize>>,
}

impl Spread {
    pub(crate) fn new(n: usize) -> Spread {
        Spread { n, pairs: vec![0; n * n], partners: vec![Vec::new(); n] }
    }

    /// Returns the number of groups that the two share.
    pub(crate) fn pairs(&self, a: usize, b: usize) -> u32 {
        self.pairs[a * self.n + b]
    }

    /// Returns true if the two share no group and one of them already has enough partners.
    pub(crate) fn widens(&self, a: usize, b: usize) -> bool {
        self.pairs(a, b) == 0 && (self.has_enough(a) || self.has_enough(b))
    }

    /// Returns true if it has [`PARTNERS`] partners.
    pub(crate) fn has_enough(&self, device: usize) -> bool {
        self.partners[device].len() >= PARTNERS as usize
    }

    /// Returns the devices that it shares groups with, in no particular order.
    pub(crate) fn partners(&self, device: usize) -> &[usize] {
        &self.partners[device]
    }

    /// Adds a group that the two share.
    pub(crate) fn join(&mut self, a: usize, b: usize) {
        for (one, other) in [(a, b), (b, a)] {
            if self.pairs(one, other) == 0 {
                self.partners[one].push(other);
            }
            self.pairs[one * self.n + other] += 1;
        }
    }

    /// Removes a group that the two share.
    pub(crate) fn part(&mut self, a: usize, b: usize) {
        for (one, other) in [(a, b), (b, a)] {
            self.pairs[one * self.n + other] -= 1;
            if self.pairs(one, other) == 0 {
                self.partners[one].retain(|p| *p != other);
            }
        }
    }
}
