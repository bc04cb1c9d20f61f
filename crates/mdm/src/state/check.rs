//! The invariants of a state.

use super::{Device, GroupIndex, State, Volume};
use crate::group::Doubt;
use crate::reserve::REGISTRANTS;
use crate::seat;
use crate::volume::check_size;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use base::DeviceId;
use wire::control::Intent;

impl State {
    /// Returns the first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let up = |d: DeviceId| self.is_up(d);
        for (id, group) in &self.groups {
            if group.doubt != Doubt::None {
                continue; // its decisions are partly lost
            }
            group.check(&up).map_err(|what| format!("{id}: {what}: {group:?}"))?;
            let revivable =
                group.lost && !self.is_used(*id) && group.replicas.iter().any(|d| up(*d));
            if revivable || group.epoch.0 == 0 || group.changed_at > self.version {
                return Err(format!(
                    "{id} is unused and not formed anew, or has a wrong number: {group:?}"
                ));
            }
        }
        let lives = self
            .devices
            .values()
            .map(|d| d.incarnation)
            .chain(self.sdcs.values().map(|s| s.incarnation));
        if !lives.clone().all(|i| i.0 > 0 && i < self.next_incarnation) {
            return Err(format!("a life is numbered {:?} or more", self.next_incarnation));
        }
        let removed = |id: &DeviceId, d: &Device| {
            d.intent == Intent::Removed && (d.up || !self.groups_of(*id).is_empty())
        };
        if let Some((id, _)) = self.devices.iter().find(|(id, d)| removed(id, d)) {
            return Err(format!("{id} is removed, and is up or has groups"));
        }
        if self.devices.values().any(|d| d.up && d.dead || !self.servers.contains_key(&d.sds)) {
            return Err(String::from("a device is up and dead, or has no server"));
        }
        for (id, volume) in &self.volumes {
            let slots = volume.slots.iter().all(|g| self.groups.contains_key(g))
                && !volume.slots.is_empty();
            if !slots || *id >= self.next_volume || check_size(volume.size).is_err() {
                return Err(format!("{id} has wrong slots, id or size: {volume:?}"));
            }
        }
        let generations = |v: &Volume| {
            let known = v.mapping.clients().all(|(sdc, _)| self.may_be_client(sdc));
            let reserved = v.reservations.is_sound(REGISTRANTS);
            let seated = seat::are_sound(&v.seats, v.generation);
            seated
                && reserved
                && known
                && v.mapping.newest() <= v.generation
                && v.mapping.is_sound()
        };
        if !self.volumes.values().all(generations) {
            return Err(String::from(
                "a volume is mapped to an unknown client, or its generation, table or seats are wrong",
            ));
        }
        check_objects(self)?;
        let names: BTreeSet<&str> = self.volumes.values().map(|v| &*v.name).collect();
        let again = GroupIndex::of(&self.groups, self.volumes.values());
        if names.len() != self.volumes.len() || again != self.group_index {
            return Err(String::from("two volumes have one name, or an index is wrong"));
        }
        Ok(())
    }
}

fn check_objects(state: &State) -> Result<(), String> {
    let objects = &state.objects;
    let pools = objects.pools.values().all(|p| objects.domains.contains_key(&p.domain));
    let sets = objects.fault_sets.values().all(|f| objects.domains.contains_key(&f.domain));
    if !pools || !sets || objects.pools.is_empty() || objects.domains.is_empty() {
        return Err(String::from("a pool or fault set has no domain, or there is no pool"));
    }
    let there = |d: &&Device| d.intent != Intent::Removed;
    let at_home = |d: &Device| {
        let server = state.servers.get(&d.sds);
        let pool = objects.pools.get(&d.pool);
        server.zip(pool).is_some_and(|(s, p)| s.domain == p.domain)
    };
    if !state.devices.values().filter(there).all(at_home) {
        return Err(String::from("a device's pool is not of its server's domain"));
    }
    for (id, group) in &state.groups {
        let pool = state.pool_of(group);
        let here = |d: &DeviceId| state.devices.get(d).map(|d| d.pool) == pool;
        if !group.replicas.iter().all(here) {
            return Err(format!("{id} lies in two pools: {group:?}"));
        }
    }
    let in_pool =
        |v: &Volume| v.slots.iter().all(|g| state.pool_of(&state.groups[g]) == Some(v.pool));
    if !state.volumes.values().all(in_pool) {
        return Err(String::from("a volume has a group of another pool"));
    }
    Ok(())
}
