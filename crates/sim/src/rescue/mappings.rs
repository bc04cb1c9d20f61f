//! Judges which clients and hosts may use a volume after a recovery: those on the newest map that a
//! server kept since the loss, or those on a newer map of a server that has died since, which may
//! have reported it. If there is no such map, it is those in the log or backup with which the
//! recovery began. Later orders may be undone by that.

use crate::check::Failure;
use crate::check::errors::User;
use crate::plan::Who;
use crate::stage::Stage;
use base::{SdcId, VolumeId};
use mdm::State;
use mdm::mapping::Mapping;
use mdm::recovery::JUMP;
use node::mapview::MapView;
use node::sds::Sds;
use std::collections::BTreeSet;

impl Stage {
    /// Checks that the mappings of the newest map that a server kept hold, if it is newer
    /// than what the MDM had.
    pub(super) fn judge_mappings(
        &self,
        state: &State,
        heard: &BTreeSet<u8>,
    ) -> Result<(), Failure> {
        let same = |i: &u8| {
            let life = self.rescue.lives.get(usize::from(*i));
            life == Some(&Some(self.world.life(self.proc(Who::Sds(*i)))))
        };
        // A server does not report a map that does not know its present incarnation.
        let named = |s: &&Sds| {
            let device = s.map().devices.get(&s.id());
            device.is_some_and(|d| d.incarnation == s.incarnation())
        };
        let servers = heard.iter().copied().filter(same).filter_map(|i| self.sds(i));
        let maps = servers.filter(named).map(Sds::map);
        let before = state.recovery.version;
        let old = |map: &&MapView| (before.0..before.0 + JUMP).contains(&map.version.0);
        let newest = maps.filter(old).max_by_key(|map| map.version);
        let Some(map) = newest.filter(|map| map.version > before) else { return Ok(()) };
        for (id, volume) in &state.volumes {
            let Some(told) = map.volumes.get(id) else { continue };
            let newer = self.rescue.maps.iter().filter(|(version, _)| *version > map.version);
            let same = |of: &Mapping| {
                differs(of, &volume.mapping, state.sdcs.keys()).is_none()
                    && hosts_differ(of, &volume.mapping).is_none()
            };
            if newer.filter_map(|(_, volumes)| volumes.get(id)).any(same) {
                continue;
            }
            if let Some(host) = hosts_differ(&told.mapping, &volume.mapping) {
                let text = format!(
                    "a server kept the map {} of {id}, by which `{host}` has {:?}; after the recovery it has {:?}",
                    map.version,
                    told.mapping.hosts().get(host),
                    volume.mapping.hosts().get(host)
                );
                return Err(Failure::new("recovery", text));
            }
            if let Some(sdc) = differs(&told.mapping, &volume.mapping, state.sdcs.keys()) {
                let text = format!(
                    "a server kept the map {} of {id}, by which {sdc} has {:?}; after the recovery it has {:?}",
                    map.version,
                    told.mapping.grant(sdc),
                    volume.mapping.grant(sdc)
                );
                return Err(Failure::new("recovery", text));
            }
        }
        Ok(())
    }

    /// Lets clients use what the MDM maps to them now, whatever was ordered before.
    pub(super) fn heed_mappings(&mut self) {
        (0..self.volumes.len() as u8).for_each(|v| self.heed_mapping(v));
    }

    /// Lets clients use a volume if the MDM maps it to them now, whatever was ordered before.
    pub(crate) fn heed_mapping(&mut self, v: u8) {
        let Some(id) = self.volumes[usize::from(v)].id else { return };
        let clients: BTreeSet<u8> =
            (0..self.plan.clients).filter(|i| self.is_mapped(id, *i)).collect();
        self.given_back(v, clients.iter().fold(0, |bits, i| bits | 1 << i));
        for client in (0..self.plan.clients).filter(|i| !clients.contains(i)) {
            self.volumes[usize::from(v)].mapped = true;
            self.denials.take(User::Client(client), id);
        }
        self.cuts.retain(|(user, of), _| {
            *of != id || !matches!(user, User::Client(client) if clients.contains(client))
        });
        self.heed_hosts(v);
        let back = |op: &&mut crate::history::Record| {
            op.volume == id && op.answer.is_none() && clients.contains(&op.client)
        };
        let ops = self.history.ops.iter_mut().filter(back);
        let undone = ops.filter_map(|op| op.cut.take()).count();
        if undone > 0 {
            self.marks.meet("sim: an unmapping was undone by a recovery");
        }
    }

    /// Returns true if all clients may use the volume.
    pub(crate) fn is_for_all(&self, volume: VolumeId) -> bool {
        let volume = self.mdm().and_then(|m| m.state().volumes.get(&volume));
        volume.is_none_or(|v| v.mapping.all().is_some())
    }

    fn is_mapped(&self, volume: VolumeId, client: u8) -> bool {
        let Some(state) = self.mdm().map(|m| m.state()) else { return false };
        let name = format!("sdc{client}");
        let sdc = state.sdcs.iter().find(|(_, s)| s.name == name).map(|(id, _)| *id);
        let mapping = state.volumes.get(&volume).map(|v| &v.mapping);
        mapping.is_some_and(|m| sdc.map_or(m.all(), |sdc| m.grant(sdc)).is_some())
    }
}

/// Returns the first client with different permissions in the two mappings.
fn differs<'a>(
    one: &Mapping,
    other: &Mapping,
    mut clients: impl Iterator<Item = &'a SdcId>,
) -> Option<SdcId> {
    let access = |mapping: &Mapping, sdc| mapping.grant(sdc).map(|grant| grant.access);
    clients.find(|sdc| access(one, **sdc) != access(other, **sdc)).copied()
}

/// Returns the first host with different permissions in the two mappings. An empty name stands for
/// hosts that none of them names.
fn hosts_differ<'a>(one: &'a Mapping, other: &'a Mapping) -> Option<&'a str> {
    let access = |mapping: &Mapping, host: &str| mapping.hosts().get(host).map(|g| g.access);
    let named = |mapping: &'a Mapping| mapping.hosts().named().into_iter().flat_map(|n| n.keys());
    let mut hosts = named(one).chain(named(other)).map(|host| host.as_str()).chain([""]);
    hosts.find(|host| access(one, host) != access(other, host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mdm::mapping::{Grant, Permissions};
    use wire::control::Access;

    #[test]
    fn mappings_differ_in_what_a_client_may_do() {
        let (all, clients) = (Mapping::everyone(1), [SdcId(1), SdcId(2)]);
        let grant = Grant::new(Access::ReadWrite, 7);
        let one = Mapping::only([(SdcId(1), grant)].into());
        assert_eq!(differs(&all, &Mapping::everyone(9), clients.iter()), None);
        assert_eq!(differs(&all, &one, clients.iter()), Some(SdcId(2)));
        assert_eq!(differs(&one, &Mapping::nobody(), clients.iter()), Some(SdcId(1)));
        assert_eq!(differs(&all, &one, clients[..1].iter()), None);
    }

    #[test]
    fn mappings_differ_in_what_a_host_may_do() {
        let hosts = |names: &[&str], since: u32| {
            let grant = |name: &&str| (String::from(*name), Grant::new(Access::ReadWrite, since));
            Mapping::everyone(1).with_hosts(Permissions::only(names.iter().map(grant).collect()))
        };
        let (all, one) = (Mapping::everyone(1), hosts(&["iqn.a"], 1));
        assert_eq!(hosts_differ(&all, &Mapping::everyone(7)), None);
        assert_eq!(hosts_differ(&one, &hosts(&["iqn.a"], 5)), None);
        assert_eq!(hosts_differ(&all, &one), Some(""), "the others have lost it");
        assert_eq!(hosts_differ(&one, &hosts(&["iqn.a", "iqn.b"], 1)), Some("iqn.b"));
        assert_eq!(hosts_differ(&one, &hosts(&[], 1)), Some("iqn.a"));
    }
}
