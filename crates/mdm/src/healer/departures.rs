//! Replicas that are to be dropped from a group, and may have led it a moment ago (rule R4).
//!
//! An earlier primary that is cut off from everything but a client serves reads until the last
//! lease that it was granted is over. Its successor waits for the end of that lease if it knows of
//! it. But a new incarnation of the successor knows only the devices among the group's replicas. So
//! a replica that is not in sync stays a replica until one of three things is true: it knows that
//! it no longer leads; it is dead; or a grace has passed since its successor knew the map. Once the
//! successor knows the map, its grants do not count as leases at the earlier primary. And the
//! earlier primary never serves without a lease from the successor, which was in sync. (A replica
//! that got in sync later was admitted by a successor that had waited.)

use crate::observed::Observed;
use crate::state::State;
use alloc::collections::BTreeMap;
use base::mutant::{self, Mutant};
use base::{DeviceId, GroupId, Limits, MapVersion, Time};

/// Replicas that wait to be dropped. A new leader begins with none, so it may wait one grace longer
/// than necessary.
#[derive(Debug, Default)]
pub(super) struct Departures(BTreeMap<(GroupId, DeviceId), Departure>);

#[derive(Debug)]
struct Departure {
    /// The first map seen in which the device is not in sync.
    map: MapVersion,
    /// When a primary that leads in its place was first seen to know that map.
    known: Option<Time>,
    /// The device no longer serves.
    over: bool,
}

impl Departures {
    /// Updates the list from all groups that are moving.
    pub(super) fn look(&mut self, now: Time, state: &State, seen: &Observed, limits: &Limits) {
        let mut before = core::mem::take(&mut self.0);
        for (id, group) in state.groups.iter().filter(|(_, g)| g.leaving.is_some()) {
            for device in group.replicas.iter().filter(|d| !group.in_sync.contains(d)) {
                let new = || Departure { map: group.changed_at, known: None, over: false };
                let mut departure = before.remove(&(*id, *device)).unwrap_or_else(new);
                let led = group.primary.is_some_and(|p| knows(p, departure.map, state, seen));
                departure.known = departure.known.or(led.then_some(now));
                let expired = departure.known.is_some_and(|since| now.since(since) >= limits.grace);
                departure.over |= expired || knows(*device, departure.map, state, seen);
                self.0.insert((*id, *device), departure);
            }
        }
    }

    /// Returns true if the device no longer serves reads of this group, or is in sync and so has
    /// followed its successor.
    pub(super) fn is_over(&self, group: GroupId, device: DeviceId) -> bool {
        self.0.get(&(group, device)).is_none_or(|p| p.over) || mutant::on(Mutant::DropAtOnce)
    }
}

/// Returns true if the device has taken over this map or a newer one, or is dead: its next
/// incarnation acts on no older one.
fn knows(device: DeviceId, map: MapVersion, state: &State, seen: &Observed) -> bool {
    let dead = state.devices.get(&device).is_none_or(|d| d.dead);
    dead || seen.devices.get(&device).is_some_and(|s| s.map >= map)
}
