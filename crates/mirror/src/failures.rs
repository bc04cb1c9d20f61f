//! Devices that have failed and can't continue as they are: this device, or others that have to
//! leave in-sync sets because an operation failed there or here (R12).
//!
//! Invariant: a device that has failed stays failed for as long as its process runs, because its
//! content is unknown. Another device is accused only while a group here needs it.

use alloc::collections::BTreeSet;
use base::DeviceId;

/// The failures that this device has noticed.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// True if this device has failed: its process must stop.
    here: bool,
    /// These devices have to leave the in-sync sets of the groups that this one leads.
    others: BTreeSet<DeviceId>,
}

impl Failures {
    /// Records that this device has failed.
    pub(crate) fn fail(&mut self) {
        self.here = true;
    }

    /// Returns true if this device has failed.
    pub(crate) fn is_here(&self) -> bool {
        self.here
    }

    /// Records that these devices have to leave in-sync sets.
    pub(crate) fn accuse(&mut self, devices: impl IntoIterator<Item = DeviceId>) {
        self.others.extend(devices);
    }

    /// Drops accusations of devices that are no longer needed.
    pub(crate) fn need(&mut self, needed: &BTreeSet<DeviceId>) {
        self.others.retain(|device| needed.contains(device));
    }

    /// Returns the devices that have to leave in-sync sets.
    pub(crate) fn accused(&self) -> impl Iterator<Item = DeviceId> {
        self.others.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_no_longer_needed_is_not_reported() {
        let mut failures = Failures::default();
        failures.accuse([3, 2, 3].map(DeviceId));
        assert!(failures.accused().eq([2, 3].map(DeviceId)) && !failures.is_here());
        failures.need(&[1, 2].map(DeviceId).into());
        assert!(failures.accused().eq([DeviceId(2)]));
        failures.fail();
        failures.need(&BTreeSet::new());
        assert!(failures.is_here() && failures.accused().count() == 0);
    }
}
