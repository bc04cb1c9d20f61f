//! Clients of a volume have fewer rights from now on. Every device that serves the volume has to
//! know before the order is answered. A former primary that may not know that it is replaced may
//! hold leases from them, which have to run out first (rule R3).

use super::links::Links;
use base::{DeviceId, Duration, MapVersion, Mutant, Time, VolumeId, mutant};
use mdm::group::Doubt;
use mdm::state::{Device, State};
use wire::control::Intent;

/// How long the answer to a mapping order waits for the devices that serve the volume. A silent
/// device is declared down within this time, and then others confirm, unless it has the last copy.
const CONFIRM: Duration = Duration::from_secs(5);

/// What the answer to a mapping order waits for.
pub(super) struct Fence {
    volume: VolumeId,
    /// The map version with the change.
    map: MapVersion,
    /// After this time the answer names a device that has not confirmed.
    until: Time,
    /// Since when all devices that grant leases know.
    known: Option<Time>,
}

impl Fence {
    /// Creates the fence of a change that this version of the map has.
    pub(super) fn new(now: Time, volume: VolumeId, map: MapVersion) -> Fence {
        let hasty = mutant::on(Mutant::ConfirmNothing);
        let confirm = if hasty { Duration::ZERO } else { CONFIRM };
        Fence { volume, map, until: now + confirm, known: None }
    }

    /// Records whether all devices know by now.
    pub(super) fn look(&mut self, now: Time, state: &State, links: &Links) {
        if self.known.is_none() && self.holder(state, links).is_none() {
            self.known = Some(now);
        }
    }

    /// Returns when no device serves by an older map any more, or when the answer says that one
    /// may.
    pub(super) fn over_at(&self, state: &State, links: &Links, grace: Duration) -> Time {
        let Some(known) = self.known else { return self.until };
        let there = state.devices.iter().filter(|(id, d)| {
            // A removed device ends as soon as it hears of its removal.
            d.intent != Intent::Removed || links.has_device(**id)
        });
        let all = there.map(|(id, _)| *id).all(|device| self.confirms(device, state, links));
        let blind = mutant::on(Mutant::UnmapBlindly);
        if all || blind { known } else { known + grace }
    }

    /// Returns the device that the answer names, if it leaves without being confirmed.
    pub(super) fn unconfirmed(&self, state: &State, links: &Links) -> Option<DeviceId> {
        self.holder(state, links).filter(|_| self.known.is_none())
    }

    /// Returns true if the device has a map with the change, or is dead.
    fn confirms(&self, device: DeviceId, state: &State, links: &Links) -> bool {
        let link = links.device(device).and_then(|s| links.get(s.link));
        let dead = state.devices.get(&device).is_none_or(|d| d.dead);
        dead || link.is_some_and(|l| l.have >= self.map)
    }

    /// Returns a device that may serve by an older map, or grant leases by it: it is in sync in a
    /// group of the volume. For a group in doubt it may be any device.
    fn holder(&self, state: &State, links: &Links) -> Option<DeviceId> {
        if mutant::on(Mutant::UnmapBlindly) {
            return None;
        }
        let volume = state.volumes.get(&self.volume)?;
        let groups = || volume.slots.iter().filter_map(|g| state.groups.get(g));
        let doubt = groups().any(|g| g.doubt != Doubt::None);
        let any = |d: &Device| doubt && d.intent != Intent::Removed;
        let all = state.devices.iter().filter(|(_, d)| any(d)).map(|(id, _)| *id);
        let mut serve = groups().flat_map(|g| g.in_sync.iter().copied()).chain(all);
        serve.find(|device| !self.confirms(*device, state, links))
    }
}
