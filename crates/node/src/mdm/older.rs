//! Older processes of devices. A process that was replaced may still run, for instance on a host
//! that was only paused, and it may hold leases that others granted it before they heard of the
//! newer process (rule R4). What the newer process confirms says nothing about the older one.

use base::{Duration, MapVersion, Time};

/// When the last leases of replaced processes end.
#[derive(Debug, Default)]
pub(super) struct OlderProcesses {
    /// The map version that names the newest process of each device.
    named: MapVersion,
    /// Since when each device has that map, and so grants no lease to an older process.
    refused: Option<Time>,
}

impl OlderProcesses {
    /// A process may have replaced an older one. The map of this version names it.
    pub(super) fn replaced(&mut self, map: MapVersion) {
        (self.named, self.refused) = (map, None);
    }

    /// Returns the version of the map from which on devices refuse all older processes, until
    /// every device is known to have it.
    pub(super) fn awaited(&self) -> Option<MapVersion> {
        self.refused.is_none().then_some(self.named)
    }

    /// Every device has the map that [`OlderProcesses::awaited`] returned.
    pub(super) fn known_to_all(&mut self, now: Time) {
        self.refused = Some(now);
    }

    /// Returns when the last lease of an older process has ended, if leases end within `grace`.
    /// `None`: others may still grant them.
    pub(super) fn ended_at(&self, grace: Duration) -> Option<Time> {
        self.refused.map(|at| at + grace)
    }
}
