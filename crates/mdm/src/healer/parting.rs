//! Who is to be dropped from a group, and may have led it until a moment ago (rule R4).
//!
//! Who led a group, and is cut off from everybody but a client, serves reads until the last lease that it was granted is
//! over. Its successor waits for that, as long as it knows: a new life of the successor only knows whom it finds among the
//! group's replicas. So a replica that isn't in sync stays one until it knows that it leads no more, or is dead, or a grace
//! has passed since its successor knew: what that one grants later isn't taken for a lease, and without its leases, as of one
//! that was in sync, nothing was ever served. (Who got in sync later was admitted by a successor that had waited.)

use crate::state::State;
use crate::status::Observed;
use alloc::collections::BTreeMap;
use base::mutant::{self, Mutant};
use base::{DeviceId, GroupId, Limits, MapVersion, Time};

/// See the module's text. A new MDM begins with none: it waits a grace more than it would have to.
#[derive(Debug, Default)]
pub(super) struct Partings(BTreeMap<(GroupId, DeviceId), Parting>);

#[derive(Debug)]
struct Parting {
    /// By this map it is not in sync.
    map: MapVersion,
    /// Since when one that leads instead knows that map.
    known: Option<Time>,
    /// It serves no more.
    over: bool,
}

impl Partings {
    /// Looks at all groups that are on the move.
    pub(super) fn look(&mut self, now: Time, state: &State, seen: &Observed, limits: &Limits) {
        let mut before = core::mem::take(&mut self.0);
        for (id, group) in state.groups.iter().filter(|(_, g)| g.leaving.is_some()) {
            for device in group.replicas.iter().filter(|d| !group.in_sync.contains(d)) {
                let new = || Parting { map: group.changed_at, known: None, over: false };
                let mut parting = before.remove(&(*id, *device)).unwrap_or_else(new);
                let led = group.primary.is_some_and(|p| knows(p, parting.map, state, seen));
                parting.known = parting.known.or(led.then_some(now));
                let expired = parting.known.is_some_and(|since| now.since(since) >= limits.grace);
                parting.over |= expired || knows(*device, parting.map, state, seen);
                self.0.insert((*id, *device), parting);
            }
        }
    }

    /// The device serves no reads of this group any more, or is in sync, so that it has followed its successor.
    pub(super) fn is_over(&self, group: GroupId, device: DeviceId) -> bool {
        self.0.get(&(group, device)).is_none_or(|p| p.over) || mutant::on(Mutant::PartAtOnce)
    }
}

/// The device has taken over this map, or a newer one; or it is dead, and its next life acts on no older one.
fn knows(device: DeviceId, map: MapVersion, state: &State, seen: &Observed) -> bool {
    let dead = state.devices.get(&device).is_none_or(|d| d.dead);
    dead || seen.devices.get(&device).is_some_and(|s| s.map >= map)
}
