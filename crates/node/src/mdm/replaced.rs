//! Replaced processes of devices. Such a process may still run, for instance on a host that was
//! only paused. It may hold leases that other devices granted before they heard of the newer
//! process (rule R4). What the newer process confirms says nothing about the replaced one.

use base::{Duration, MapVersion, Time};

/// When the last leases of replaced processes end.
#[derive(Debug, Default)]
pub(super) struct ReplacedProcesses {
    /// The map version that names the newest process of each device.
    named: MapVersion,
    /// When every device was known to have that map. A lease that a device grants from then on is
    /// useless to a replaced process, whose map is older.
    refused: Option<Time>,
    /// When it is worth while to look again whether each device has that map.
    look_at: Time,
}

/// Time between two looks. A look takes as long as there are devices, and a device that is down may
/// keep the others waiting for hours.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl ReplacedProcesses {
    /// Records that a process may have replaced another one. The map of this version names the new
    /// one.
    pub(super) fn add(&mut self, map: MapVersion) {
        (self.named, self.refused, self.look_at) = (map, None, Time::ZERO);
    }

    /// Returns the version of the map from which on devices refuse all replaced processes, if it is
    /// time to look whether every device has it.
    pub(super) fn awaited(&mut self, now: Time) -> Option<MapVersion> {
        if self.refused.is_some() || now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        Some(self.named)
    }

    /// Records that every device has the map that [`ReplacedProcesses::awaited`] returned.
    pub(super) fn known_to_all(&mut self, now: Time) {
        self.refused = Some(now);
    }

    /// Returns when the last lease of a replaced process has ended, if leases end within `grace`.
    /// `None`: devices may still grant such leases.
    pub(super) fn ended_at(&self, grace: Duration) -> Option<Time> {
        self.refused.map(|at| at + grace)
    }
}
