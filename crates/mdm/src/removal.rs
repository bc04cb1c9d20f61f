//! Graceful removal: checks which devices may be removed, and refuses orders that would break a
//! promise.
//!
//! An order is stored in the state as an intent ([`Intent`]). The healer carries it out, group by
//! group, while both copies stay, and marks the device as removed when it is empty. Until then the
//! order can be withdrawn.

use crate::command::{self, Command};
use crate::observed::Observed;
use crate::refused::Refused;
use crate::state::{Device, State};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Limits, PoolId, SdsId, beside_spare};
use wire::control::{AdmitRequest, Intent, RemoveRequest};

/// Returns the command that removes a device or all devices of a server, or withdraws such an
/// order.
pub fn removal_command(
    state: &State,
    ask: &RemoveRequest,
    seen: &Observed,
    limits: &Limits,
) -> Result<Command, Refused> {
    let meant = meant(state, ask.device, &ask.server)?;
    if !ask.keep {
        check_can_remove(state, &meant, seen, limits)?;
    }
    let intent = if ask.keep { Intent::Normal } else { Intent::Remove } as i32;
    let goes = |d: &&DeviceId| !ask.keep || state.devices[*d].intent == Intent::Remove;
    let devices = meant.iter().filter(goes).map(|d| d.0).collect();
    Ok(Command::Intend(command::Intend { devices, intent }))
}

/// Returns the command that admits a new device, or all waiting devices of a server.
pub fn admission_command(state: &State, ask: &AdmitRequest) -> Result<Command, Refused> {
    let meant = meant(state, ask.device, &ask.server)?;
    let waits = |id: &&DeviceId| state.devices[*id].intent == Intent::Waiting;
    let devices: Vec<u32> = meant.iter().filter(waits).map(|id| id.0).collect();
    if devices.is_empty() {
        return Err(Refused::NotWaiting);
    }
    Ok(Command::Intend(command::Intend { devices, intent: Intent::Normal as i32 }))
}

/// Returns one device, or all devices of the server if `device` is 0.
fn meant(state: &State, device: u32, server: &str) -> Result<BTreeSet<DeviceId>, Refused> {
    let there = state.devices.iter().filter(|(_, d)| d.intent != Intent::Removed);
    if device != 0 {
        let meant: BTreeSet<_> = there.map(|(id, _)| *id).filter(|d| d.0 == device).collect();
        return if meant.is_empty() { Err(Refused::NoDevice(device)) } else { Ok(meant) };
    }
    let none = || Refused::NoServer(String::from(server));
    let server = state.server_named(server);
    let meant: BTreeSet<_> =
        there.filter(|(_, d)| Some(d.sds) == server).map(|(id, _)| *id).collect();
    if meant.is_empty() { Err(none()) } else { Ok(meant) }
}

/// Checks that everything stays mirrored without these devices.
pub(crate) fn check_can_remove(
    state: &State,
    meant: &BTreeSet<DeviceId>,
    seen: &Observed,
    limits: &Limits,
) -> Result<(), Refused> {
    let goes = |id: &DeviceId, d: &Device| meant.contains(id) || d.intent.empties();
    let there = || state.devices.iter().filter(|(_, d)| d.intent != Intent::Removed);
    let takes = |d: &Device| d.up && d.intent == Intent::Normal;
    let stay: Vec<_> = there().filter(|(id, d)| takes(d) && !goes(id, d)).collect();
    let pools: BTreeSet<PoolId> = meant.iter().map(|d| state.devices[d].pool).collect();
    for pool in &pools {
        let of_pool = |d: &Device| d.pool == *pool || mutant::on(Mutant::CountAllPools);
        let units = stay.iter().filter(|(_, d)| of_pool(d));
        let units = units.filter_map(|(id, _)| state.unit_of(**id));
        let units: BTreeSet<SdsId> = units.collect();
        let groups = state.groups.values().any(|g| state.pool_of(g) == Some(*pool));
        if units.len() < 2 && groups {
            let plain = state.objects.fault_sets.is_empty() && state.objects.pools.len() == 1;
            let name = state.objects.pools.get(pool).map_or("?", |p| &p.name);
            return Err(match plain {
                true => Refused::TooFewLeft { left: units.len() },
                false => Refused::LastUnit { pool: String::from(name), left: units.len() },
            });
        }
    }
    let alone = |d: &DeviceId| {
        let last = |g: &&base::GroupId| state.is_used(**g) && state.groups[*g].in_sync == [*d];
        state.groups_of(*d).iter().filter(last).count()
    };
    let down = meant.iter().filter(|d| !state.is_up(**d));
    if let Some((device, groups)) = down.map(|d| (d.0, alone(d))).find(|(_, groups)| *groups > 0) {
        return Err(Refused::LastCopies { device, groups });
    }
    let used = |id: &DeviceId| {
        seen.devices.get(id).and_then(|s| s.heartbeat.as_ref()).map_or(0, |beat| beat.used)
    };
    for pool in pools {
        let of_pool = |d: &Device| d.pool == pool;
        // If the copies of a device were rebuilt while it was away, it has no data left to move,
        // even if it used space.
        let holds = |id: &DeviceId| !state.groups_of(*id).is_empty();
        let goes = there().filter(|(id, d)| of_pool(d) && goes(id, d) && holds(id));
        let needed: u64 = goes.map(|(id, _)| used(id)).sum();
        let spare = state.objects.spare(pool, limits);
        let room = |(id, d): &(&DeviceId, &Device)| {
            beside_spare(d.capacity, spare).saturating_sub(used(id))
        };
        let room: u64 = stay.iter().filter(|(_, d)| of_pool(d)).map(room).sum();
        if needed > room {
            return Err(Refused::NoRoom { needed, room });
        }
    }
    Ok(())
}
