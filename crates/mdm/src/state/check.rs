//! What always holds of a state.

use super::{Device, State, check_size};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use base::DeviceId;
use wire::control::Intent;

impl State {
    /// The first invariant that doesn't hold.
    pub fn check(&self) -> Result<(), String> {
        let up = |d: DeviceId| self.is_up(d);
        for (id, group) in &self.groups {
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
            d.intent == Intent::Removed && (d.up || self.by_device.contains_key(id))
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
        let names: BTreeSet<&str> = self.volumes.values().map(|v| &*v.name).collect();
        let mut again =
            State { by_device: BTreeMap::new(), by_pair: BTreeMap::new(), ..self.clone() };
        again.index_all();
        if names.len() != self.volumes.len() || again != *self {
            return Err(String::from("two volumes have one name, or an index is wrong"));
        }
        Ok(())
    }
}
