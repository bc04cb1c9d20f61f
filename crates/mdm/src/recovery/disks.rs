//! The content that each device should have, by the maps of lost MDMs.
//!
//! A server's map names the content of all devices. For each device the newest of these maps
//! counts, within one window of versions ([`super::Recovery::lost`]).
//! Older maps tell less than the state, and newer ones repeat what this MDM has published.
//!
//! The state stores contents that a map names and that no device has registered with
//! ([`super::Recovery::awaited`]), because every process that knows of them may restart.

use super::device_report::{DeviceReport, DeviceReports, Map};
use super::{Contents, Heard};
use crate::command::Awaited;
use crate::group::Doubt;
use crate::recovery::device_report;
use crate::refused::MAX_DEVICES;
use crate::state::State;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, MapVersion, Mutant, mutant};
use core::ops::Range;
use wire::control::Intent;

impl Awaited {
    /// Returns this message as an entry of [`Contents`].
    pub(crate) fn entry(&self) -> (DeviceId, (MapVersion, u64)) {
        (DeviceId(self.device), (MapVersion(self.version), self.store))
    }

    /// Returns an entry of [`Contents`] for the log and for snapshots.
    pub(crate) fn of((device, (version, store)): (&DeviceId, &(MapVersion, u64))) -> Awaited {
        Awaited { device: device.0, version: version.0, store: *store }
    }
}

/// Returns the first values of `Recovery::lost` and `Recovery::awaited`. They are those of an
/// earlier recovery that is still open: no MDM has sent a map since it began.
pub(super) fn maps_since(decided: &State) -> (Range<MapVersion>, Contents) {
    let earlier = &decided.recovery;
    let (first, awaited) = match earlier.open {
        true => (earlier.lost.start, earlier.awaited.clone()),
        false => (MapVersion(decided.version.0 + 1), Contents::new()),
    };
    (first..first, awaited)
}

/// Returns the contents that the newest maps name: those in `reports`, and those stored in the
/// state.
pub(super) fn contents(state: &State, reports: &DeviceReports) -> Contents {
    let mut newest = state.recovery.awaited.clone();
    let maps = device_report::lost_maps(state, reports).filter(|m| is_news(state, m.version));
    for (map, (device, store)) in maps.flat_map(|m| m.stores.iter().map(move |s| (m, s))) {
        let named = map.awaited.get(device).unwrap_or(store);
        let entry = newest.entry(*device).or_default();
        *entry = (*entry).max((map.version, *named));
    }
    newest
}

/// Returns true if only lost MDMs know the map of this version.
pub(super) fn is_news(state: &State, version: MapVersion) -> bool {
    let began = state.recovery.began;
    let hidden = mutant::on(Mutant::DoubtHidesDisks) && version >= began;
    state.recovery.lost.contains(&version) && !hidden
}

/// Returns true unless the device is registered with this content.
fn awaits(state: &State, device: DeviceId, store: u64) -> bool {
    state.devices.get(&device).is_none_or(|d| d.store != store)
}

/// Returns true if the state stores a content that its device is not registered with.
pub(super) fn awaits_any(state: &State) -> bool {
    state.recovery.awaited.iter().any(|(device, (_, store))| awaits(state, *device, *store))
}

/// Returns devices that are back with an older content than the one that the maps name. Such a
/// content took part in a group in doubt. Any other content is newer than the maps, because a group
/// in doubt has no primary.
pub(super) fn older(
    state: &State,
    reports: &DeviceReports,
    contents: &Contents,
) -> BTreeSet<DeviceId> {
    let in_doubt = |id: GroupId| state.groups.get(&id).is_none_or(|g| g.doubt != Doubt::None);
    let counts = |w: &DeviceReport| w.took_part().any(|(id, acted)| acted > 0 && in_doubt(id));
    let is_old = |(d, (_, store)): &(&DeviceId, &(MapVersion, u64))| {
        let here = state.devices.get(d).is_some_and(|here| here.intent != Intent::Removed);
        here && awaits(state, **d, *store) && reports.get(d).is_some_and(counts)
    };
    let old = contents.iter().filter(|_| !mutant::on(Mutant::OldDisk));
    old.filter(is_old).map(|(d, _)| *d).collect()
}

/// Returns the contents that the state must store: those of silent devices, and newer ones in place
/// of stored ones.
pub(super) fn newly_awaited(state: &State, heard: &Heard) -> Vec<Awaited> {
    let known = &state.recovery.awaited;
    let is_new = |(device, named): &(&DeviceId, &(MapVersion, u64))| match known.get(device) {
        Some(old) => old != *named,
        None => heard.silent.contains(device) && awaits(state, **device, named.1),
    };
    let room = MAX_DEVICES.saturating_sub(known.len());
    let new = heard.contents.iter().filter(is_new).take(room);
    new.filter(|_| !mutant::on(Mutant::ForgetDisks)).map(Awaited::of).collect()
}

/// Returns true if the device is registered with this content.
pub(super) fn is_registered_with(state: &State, device: DeviceId, store: u64) -> bool {
    !awaits(state, device, store) || mutant::on(Mutant::OldDisk)
}

/// Returns true if this map of lost MDMs names the content that registered for a device.
pub(super) fn has_content_of(state: &State, map: &Map, device: DeviceId) -> bool {
    let named = map.stores.get(&device).filter(|_| map.is_before(state.recovery.lost.end));
    named.is_some_and(|store| !awaits(state, device, *store))
}
