//! Older processes of devices. A replaced process may still run, for instance on a host that was
//! only paused. It may hold leases that other devices granted before they heard of the newer
//! process (rule R4). What the newer process confirms says nothing about the older one.

use base::{Duration, MapVersion, Time};

/// When the last leases of replaced processes end.
#[derive(Debug, Default)]
pub(super) struct OlderProcesses {
    /// The map version that names the newest process of each device.
    named: MapVersion,
    /// When every device was known to have that map. A lease that a device grants from then on is
    /// useless to an older process, whose map is older.
    refused: Option<Time>,
    /// When it is worth while to look again whether each device has that map.
    look_at: Time,
}

/// Time between two looks. A look takes as long as there are devices, and a device that is down may
/// keep the others waiting for hours.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl OlderProcesses {
    /// Records that a process may have replaced an older one. The map of this version names the new
    /// one.
    pub(super) fn replaced(&mut self, map: MapVersion) {
        (self.named, self.refused, self.look_at) = (map, None, Time::ZERO);
    }

    /// Returns the version of the map from which on devices refuse all older processes, if it is
    /// time to look whether every device has it.
    pub(super) fn awaited(&mut self, now: Time) -> Option<MapVersion> {
        if self.refused.is_some() || now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        Some(self.named)
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
