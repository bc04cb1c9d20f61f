//! Older processes of devices. A replaced process may still run, for instance on a host that was
//! only paused. It may hold leases that other devices granted before they heard of the newer
//! process (rule R4). What the newer process confirms says nothing about the older one.

use base::{Duration, MapVersion, Time};

/// When the last leases of replaced processes end.
#[derive(Debug, Default)]
pub(super) struct OlderProcesses {
    /// The map version that names the newest process of each device.
    named: MapVersion,
    /// When every device was known to have that map. From then on none grants a lease to an older
    /// process.
    refused: Option<Time>,
}

impl OlderProcesses {
    /// Records that a process may have replaced an older one. The map of this version names the new
    /// one.
    pub(super) fn replaced(&mut self, map: MapVersion) {
        (self.named, self.refused) = (map, None);
    }

    /// Returns the version of the map that makes devices refuse all older processes. `None` once
    /// every device is known to have it.
    pub(super) fn awaited(&self) -> Option<MapVersion> {
        self.refused.is_none().then_some(self.named)
    }

    /// Records that every device has the map that [`OlderProcesses::awaited`] returned.
    pub(super) fn known_to_all(&mut self, now: Time) {
        self.refused = Some(now);
    }

    /// Returns when the last lease of an older process has ended, if leases end within `grace`.
    /// `None`: devices may still grant such leases.
    pub(super) fn ended_at(&self, grace: Duration) -> Option<Time> {
        self.refused.map(|at| at + grace)
    }
}
