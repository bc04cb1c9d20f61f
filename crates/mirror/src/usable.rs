//! The part of the device that clients' writes may use. [`crate::no_space`] describes the spare.

use alloc::collections::BTreeSet;
use base::{Mutant, VolumeId, mutant};

/// How much of the device may be used, and by which volumes.
#[derive(Debug)]
pub(crate) struct Usable {
    /// When this many bytes are used, the rest is the spare.
    bytes: u64,
    /// Volumes that may use the spare, too.
    thick: BTreeSet<VolumeId>,
}

impl Default for Usable {
    fn default() -> Usable {
        Usable { bytes: u64::MAX, thick: BTreeSet::new() }
    }
}

impl Usable {
    /// Reserves the space beyond the first `bytes` of the device for copies that replace lost ones
    /// and for these thick volumes. If more is used already, nothing is freed.
    pub(crate) fn keep_spare(&mut self, bytes: u64, thick: BTreeSet<VolumeId>) {
        *self = Usable { bytes, thick };
    }

    /// Returns true if a write of a client to this volume could use only the spare for new space.
    /// The device uses this many bytes.
    pub(crate) fn is_only_spare(&self, used: u64, volume: VolumeId) -> bool {
        used >= self.bytes && !self.thick.contains(&volume) && !mutant::on(Mutant::SpendSpare)
    }
}
