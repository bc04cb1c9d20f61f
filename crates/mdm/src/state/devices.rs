//! Devices: their registration, loss, scrubs and intents.

use super::{Device, Edits, LIVES, PAST, Server, State, survives};
use crate::command;
use crate::group::{Doubt, Group};
use crate::refused::MAX_DEVICES;
use crate::state::groups;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, DomainId, FaultSetId, GroupId, Incarnation, MapVersion, PoolId, SdsId};
use wire::control::{DeviceKind, Intent};

// Long: one check after the other, then the new entry and the groups that change with it.
pub(super) fn device_up(state: &State, c: &command::DeviceUp) -> Option<Edits> {
    let (id, sds) = (DeviceId(c.device), SdsId(c.sds));
    let old = state.devices.get(&id);
    let server = match state.servers.get(&sds) {
        Some(server) if server.own == c.name => None,
        None => Some((sds, new_server(state, c)?)),
        _ => return None,
    };
    let home = server.as_ref().map(|(_, s)| s).or_else(|| state.servers.get(&sds))?;
    let pool = old.map_or(PoolId(c.pool.max(1)), |d| d.pool);
    // A device may have moved to another server, but not to one of another domain.
    if state.objects.pools.get(&pool).is_none_or(|p| p.domain != home.domain) {
        return None;
    }
    let kind = DeviceKind::try_from(c.kind).unwrap_or(DeviceKind::Unknown);
    let place = (sds, c.shard);
    // One place may have had several devices that keep their content, one after the other.
    let taken = state.devices.iter().any(|(d, v)| {
        let alone = v.up || !(survives(v.kind) || survives(kind));
        *d != id && (v.sds, v.shard) == place && alone && v.intent != Intent::Removed
    });
    let known = match old {
        Some(d) => {
            let moved = survives(kind) && survives(d.kind) && d.store == c.store && !d.is_in_use();
            ((d.sds, d.shard) == place || moved)
                && d.incarnation.0 <= c.incarnation
                && d.intent != Intent::Removed
        }
        None => {
            let lost = state.may_be_lost_device(id);
            (id == state.next_device() || lost) && state.devices_there() < MAX_DEVICES
        }
    };
    if taken || !known || !(1..LIVES).contains(&c.incarnation) {
        return None;
    }
    let new_life = old.is_none_or(|d| d.incarnation.0 < c.incarnation);
    let mut past = old.map_or_else(Vec::new, |d| d.past.clone());
    if let Some(d) = old.filter(|d| new_life && d.nonce != c.nonce) {
        past.push(d.nonce);
        past.drain(..past.len().saturating_sub(PAST));
    }
    let entry = Device {
        sds,
        shard: c.shard,
        address: c.address.clone(),
        incarnation: Incarnation(c.incarnation),
        nonce: c.nonce,
        past,
        store: c.store,
        kind,
        capacity: c.capacity,
        pid: c.pid,
        release: c.release.clone(),
        up: true,
        dead: false,
        scrub: old.map_or(0, |d| d.scrub),
        intent: old.map_or(first_intent(state, pool), |d| d.intent),
        pool,
        changed_at: old.map_or(MapVersion(0), |d| d.changed_at),
    };
    let emptied = old.is_some_and(|d| d.store != c.store);
    let up = |d: DeviceId| d == id || state.is_up(d);
    // R2: a new incarnation takes part in new epochs only.
    let raise = new_life && (emptied || !mutant::on(Mutant::ResumeSameEpoch));
    let mut groups = groups::changed(state, state.groups_of(id), raise, &up, |group| {
        if emptied { group.emptied(id, &up) } else { group.restarted_if(new_life, id, &up) }
    });
    let awaited = state.recovery.is_awaited(id, c.store);
    if emptied && !awaited {
        groups.extend(without_evidence(state, id));
    }
    let replaced = (emptied && awaited && state.wants_reports()).then_some(id);
    let devices = (old != Some(&entry)).then_some((id, entry)).into_iter().collect();
    Some(Edits { devices, server, groups, replaced, ..Edits::default() })
}

/// Returns the intent of a new device.
fn first_intent(state: &State, pool: PoolId) -> Intent {
    if state.has_to_wait(pool) { Intent::Waiting } else { Intent::Normal }
}

/// Returns the groups in doubt of which this device, now empty, may have had more than others.
fn without_evidence(state: &State, id: DeviceId) -> Vec<(GroupId, Group)> {
    let mine = state.groups_of(id).iter().map(|g| (*g, &state.groups[g]));
    let mine = mine.filter(|(_, g)| g.doubt != Doubt::None);
    let gone = |(at, g): (GroupId, &Group)| {
        let in_sync = g.in_sync.iter().copied().filter(|d| *d != id).collect();
        (at, Group { in_sync, doubt: Doubt::Gone, ..g.clone() })
    };
    mine.map(gone).collect()
}

/// Returns the new server that this device belongs to, if it may be created.
fn new_server(state: &State, c: &command::DeviceUp) -> Option<Server> {
    let (id, domain) = (SdsId(c.sds), DomainId(c.domain.max(1)));
    let fault_set = Some(FaultSetId(c.fault_set)).filter(|f| f.0 != 0);
    let taken = state.servers.values().any(|s| s.own == c.name || s.name == c.name);
    let there = state.objects.domains.contains_key(&domain)
        && fault_set
            .is_none_or(|f| state.objects.fault_sets.get(&f).is_some_and(|f| f.domain == domain));
    let mate = |s: &&Server| fault_set.is_some() && s.fault_set == fault_set;
    let unit = state.servers.values().find(mate).map_or(id, |s| s.unit);
    let (own, name) = (c.name.clone(), c.name.clone());
    (id == state.next_sds() && !taken && there).then_some(Server {
        own,
        name,
        domain,
        fault_set,
        unit,
    })
}

pub(super) fn devices_down(state: &State, list: &[command::DeviceDown]) -> Edits {
    let mut gone: BTreeMap<DeviceId, Device> = BTreeMap::new();
    for c in list {
        let id = DeviceId(c.device);
        let old = state.devices.get(&id).filter(|d| d.incarnation.0 == c.incarnation);
        let entry = |d: &Device| Device { up: false, dead: d.dead || c.dead, ..d.clone() };
        gone.extend(old.map(|d| (id, entry(d))));
    }
    let up = |d: DeviceId| !gone.contains_key(&d) && state.is_up(d);
    let groups: BTreeSet<GroupId> =
        gone.keys().flat_map(|id| state.groups_of(*id)).copied().collect();
    let went = |group: &mut Group| {
        for (id, entry) in
            gone.iter().filter(|(id, _)| group.replicas.contains(id)).collect::<Vec<_>>()
        {
            group.went_down(*id, entry.dead && !survives(entry.kind), &up);
        }
    };
    let groups = groups::changed(state, &groups, false, &up, went);
    let devices = gone.into_iter().filter(|(id, entry)| state.devices[id] != *entry).collect();
    Edits { devices, groups, ..Edits::default() }
}

pub(super) fn scrub(state: &State, c: &command::Scrub) -> Option<Edits> {
    let id = DeviceId(c.device);
    let old = state.devices.get(&id).filter(|d| d.scrub.checked_add(1) == Some(c.number))?;
    let entry = Device { scrub: c.number, ..old.clone() };
    Some(Edits { devices: Vec::from([(id, entry)]), ..Edits::default() })
}

/// An operator may change intents freely, with two exceptions: a device becomes removed only
/// from remove, when it belongs to no group, and stays removed; and a waiting device is only
/// admitted or removed.
pub(super) fn intend(state: &State, c: &command::Intend) -> Edits {
    let mut devices = Vec::new();
    for (id, old) in &state.devices {
        let intent = c.intent();
        let may = match (old.intent, intent) {
            (Intent::Remove, Intent::Removed) => state.groups_of(*id).is_empty(),
            (Intent::Removed, _) | (_, Intent::Removed | Intent::Waiting) => false,
            (Intent::Waiting, new) => matches!(new, Intent::Normal | Intent::Remove),
            (old, new) => old != new,
        };
        if may && c.devices.contains(&id.0) {
            let gone = intent == Intent::Removed;
            let entry =
                Device { intent, up: old.up && !gone, dead: old.dead && !gone, ..old.clone() };
            devices.push((*id, entry));
        }
    }
    Edits { devices, ..Edits::default() }
}

impl Group {
    /// Brings the group up to date with a device that is up again: in a new incarnation, or after
    /// silence in the same one.
    pub(super) fn restarted_if(
        &mut self,
        new_life: bool,
        device: DeviceId,
        up: &impl Fn(DeviceId) -> bool,
    ) {
        if new_life || self.primary.is_none() {
            self.restarted(device, up);
        }
    }
}
