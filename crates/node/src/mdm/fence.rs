//! A fence delays the answer to an order that takes rights to a volume from clients, to a
//! reservation that takes access from hosts, or to a gateway that asks for seats. Every device that
//! serves the volume has to know of the change first. A former primary may not know that it was
//! replaced, and may hold leases from these devices. Those leases have to expire first (rule R3).

use super::links::Links;
use base::{DeviceId, Duration, MapVersion, Mutant, Time, VolumeId, mutant};
use mdm::group::Doubt;
use mdm::state::{Device, State};
use wire::control::Intent;

/// How long the answer to a mapping order waits for the devices that serve the volume. A silent
/// device is declared down within this time, and then other devices confirm in its place, unless it
/// has the last copy.
const CONFIRM: Duration = Duration::from_secs(5);

/// The condition that the answer to a mapping order waits for.
pub(super) struct Fence {
    volume: VolumeId,
    /// The map version with the change.
    map: MapVersion,
    /// After this time the answer names a device that has not confirmed.
    until: Time,
    /// When it was first seen that all devices which may serve or grant leases have that map.
    known: Option<Time>,
}

impl Fence {
    /// Creates the fence of a change that is in the map from this version on.
    pub(super) fn new(now: Time, volume: VolumeId, map: MapVersion) -> Fence {
        let hasty = mutant::on(Mutant::ConfirmNothing);
        let confirm = if hasty { Duration::ZERO } else { CONFIRM };
        Fence { volume, map, until: now + confirm, known: None }
    }

    /// Records the time if all devices that matter have the map by now.
    pub(super) fn look(&mut self, now: Time, state: &State, links: &Links) {
        if self.known.is_none() && self.holder(state, links).is_none() {
            self.known = Some(now);
        }
    }

    /// Returns the time at which no process of a device serves by an older map any more, or at
    /// which the answer says that one may. Leases end within `grace`; the last one of a process
    /// that was replaced has ended at `replaced`, if that is known.
    pub(super) fn over_at(
        &self,
        (state, links): (&State, &Links),
        grace: Duration,
        replaced: Option<Time>,
    ) -> Time {
        let Some(known) = self.known else { return self.until };
        if mutant::on(Mutant::UnmapBlindly) {
            return known;
        }
        let latest = known + grace;
        if !is_everywhere(self.map, state, links) {
            return latest;
        }
        if mutant::on(Mutant::NewerConfirms) {
            return known;
        }
        replaced.map_or(latest, |at| at.clamp(known, latest))
    }

    /// Returns the device that has not confirmed, for the answer to name it; `None` if all have.
    pub(super) fn unconfirmed(&self, state: &State, links: &Links) -> Option<DeviceId> {
        self.holder(state, links).filter(|_| self.known.is_none())
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
        serve.find(|device| !has_map(*device, self.map, state, links))
    }
}

/// Returns true if every device has a map of this version, or is dead.
pub(super) fn is_everywhere(map: MapVersion, state: &State, links: &Links) -> bool {
    // A removed device ends as soon as it hears of its removal.
    let there =
        |(id, d): &(&DeviceId, &Device)| d.intent != Intent::Removed || links.has_device(**id);
    let mut there = state.devices.iter().filter(there).map(|(id, _)| *id);
    there.all(|device| has_map(device, map, state, links))
}

/// Returns true if the device has a map of this version, or is dead.
fn has_map(device: DeviceId, map: MapVersion, state: &State, links: &Links) -> bool {
    let link = links.device(device).and_then(|s| links.get(s.link));
    let dead = state.devices.get(&device).is_none_or(|d| d.dead);
    dead || link.is_some_and(|l| l.have >= map)
}

#[cfg(test)]
mod tests {
    use super::super::links::Peer;
    use super::*;
    use base::{Incarnation, LinkId};
    use mdm::command::{Command, DeviceUp};

    /// No device serves the volume, so only replaced processes may still do so.
    #[test]
    fn a_fence_waits_for_each_device_and_for_the_leases_of_older_processes() {
        let (mut state, mut links) = (State::new(), Links::default());
        let (name, address) = ("a".into(), "10.0.0.1:7000".into());
        let up =
            DeviceUp { device: 1, sds: 1, incarnation: 1, name, address, ..Default::default() };
        state.apply(1, &Command::DeviceUp(up));
        let (now, grace) = (Time(1_000_000_000), Duration::from_secs(2));
        let mut fence = Fence::new(now, VolumeId(1), MapVersion(5));
        assert_eq!(fence.over_at((&state, &links), grace, None), now + CONFIRM);
        fence.look(now, &state, &links);
        assert_eq!(fence.unconfirmed(&state, &links), None);
        let latest = now + grace;
        assert_eq!(fence.over_at((&state, &links), grace, Some(now)), latest, "it has no link");
        links.add(LinkId(1));
        links.register(LinkId(1), Peer::Device(DeviceId(1), Incarnation(1)), 1);
        links.open_mut(LinkId(1)).have = MapVersion(5);
        assert_eq!(fence.over_at((&state, &links), grace, None), latest);
        let half = now + grace / 2;
        assert_eq!(fence.over_at((&state, &links), grace, Some(half)), half);
        assert_eq!(fence.over_at((&state, &links), grace, Some(Time(1))), now);
    }
}
