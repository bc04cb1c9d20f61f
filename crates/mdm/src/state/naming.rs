//! Creates and removes protection domains, fault sets and storage pools, and renames objects of all
//! kinds.

use super::{Device, Edits, Sdc, Server, State, Volume};
use crate::command;
use crate::objects::{Domain, FaultSet, Objects, Pool};
use crate::refused::{Refused, check_name, check_object_name};
use crate::state::clients;
use alloc::collections::BTreeMap;
use base::{DomainId, FaultSetId, Policy, PoolId, SdcId, SdsId, VolumeId};
use wire::control::{Intent, ObjectKind};

pub(super) fn rename(state: &State, c: &command::Rename) -> Result<Edits, Refused> {
    let (kind, name) = (c.kind(), &c.name);
    match kind {
        ObjectKind::Volume => check_name(name)?,
        _ => check_object_name(kind, name)?,
    }
    let taken = || Err(Refused::ObjectTaken(kind, name.clone()));
    match kind {
        ObjectKind::Volume => {
            let id = VolumeId(c.id);
            let old = state.volumes.get(&id).ok_or(Refused::Outdated)?;
            if state.volume_named(name).is_some_and(|(other, _)| other != id) {
                return taken();
            }
            let volume = Volume { name: name.clone(), ..old.clone() };
            let volume = (volume != *old).then_some((id, Some(volume)));
            Ok(Edits { volume, ..Edits::default() })
        }
        ObjectKind::Sdc => {
            let id = SdcId(c.id);
            let old = state.sdcs.get(&id).ok_or(Refused::Outdated)?;
            let has = |s: &Sdc| s.name == *name || s.own == *name;
            if state.sdcs.iter().any(|(other, s)| *other != id && has(s)) {
                return taken();
            }
            let sdc = Sdc { name: name.clone(), ..old.clone() };
            Ok(Edits { sdc: (sdc != *old).then_some((id, Some(sdc))), ..Edits::default() })
        }
        ObjectKind::Sds => {
            let id = SdsId(c.id);
            let old = state.servers.get(&id).ok_or(Refused::Outdated)?;
            let has = |s: &Server| s.name == *name || s.own == *name;
            if state.servers.iter().any(|(other, s)| *other != id && has(s)) {
                return taken();
            }
            let server = Server { name: name.clone(), ..old.clone() };
            Ok(Edits { server: (server != *old).then_some((id, server)), ..Edits::default() })
        }
        _ => {
            let mut objects = state.objects.clone();
            if state.objects.named(kind, name).is_some_and(|other| other != c.id) {
                return taken();
            }
            let there = match kind {
                ObjectKind::Domain => objects.domains.get_mut(&DomainId(c.id)).map(|d| &mut d.name),
                ObjectKind::FaultSet => {
                    objects.fault_sets.get_mut(&FaultSetId(c.id)).map(|f| &mut f.name)
                }
                ObjectKind::Pool => objects.pools.get_mut(&PoolId(c.id)).map(|p| &mut p.name),
                ObjectKind::System => Some(&mut objects.system),
                _ => None,
            };
            *there.ok_or(Refused::Outdated)? = name.clone();
            Ok(edited(state, objects))
        }
    }
}

pub(super) fn put_object(state: &State, c: &command::PutObject) -> Result<Edits, Refused> {
    let kind = c.kind();
    check_object_name(kind, &c.name)?;
    if state.objects.named(kind, &c.name).is_some_and(|other| other != c.id) {
        return Err(Refused::ObjectTaken(kind, c.name.clone()));
    }
    let (domain, name) = (DomainId(c.domain), c.name.clone());
    let mut objects = state.objects.clone();
    let there = state.objects.domain_of(kind, c.id);
    let (next, full) = state.objects.next(kind);
    if full && there.is_none() {
        return Err(Refused::TooManyObjects(kind));
    }
    let fits = kind == ObjectKind::Domain || state.objects.domains.contains_key(&domain);
    if there.map_or(c.id != next, |there| there != domain) || !fits {
        return Err(Refused::Outdated);
    }
    match kind {
        ObjectKind::Domain => {
            objects.domains.insert(DomainId(c.id), Domain { name });
            objects.last_domain = objects.last_domain.max(c.id);
        }
        ObjectKind::FaultSet => {
            objects.fault_sets.insert(FaultSetId(c.id), FaultSet { name, domain });
            objects.last_fault_set = objects.last_fault_set.max(c.id);
        }
        ObjectKind::Pool => {
            if c.spare.is_some_and(|spare| spare > 90) {
                return Err(Refused::Spare(c.spare.unwrap_or(0)));
            }
            for policy in [c.rebuild, c.rebalance].into_iter().flatten() {
                Policy::from(policy).check().map_err(Refused::Policy)?;
            }
            objects.pools.insert(PoolId(c.id), Pool::new(name, domain).said(c));
            objects.last_pool = objects.last_pool.max(c.id);
        }
        _ => return Err(Refused::Unknown),
    }
    Ok(edited(state, objects))
}

pub(super) fn drop_object(state: &State, c: &command::DropObject) -> Result<Edits, Refused> {
    if c.kind() == ObjectKind::Sdc {
        return clients::drop_sdc(state, SdcId(c.id));
    }
    may_drop(state, c.kind(), c.id)?;
    let mut objects = state.objects.clone();
    match c.kind() {
        ObjectKind::Domain => drop(objects.domains.remove(&DomainId(c.id))),
        ObjectKind::FaultSet => drop(objects.fault_sets.remove(&FaultSetId(c.id))),
        _ => drop(objects.pools.remove(&PoolId(c.id))),
    }
    Ok(edited(state, objects))
}

/// Computes the servers' fault units, after a snapshot was read.
pub(crate) fn name_units(state: &mut State) {
    let mut first = BTreeMap::new();
    for (id, server) in &mut state.servers {
        server.unit = match server.fault_set {
            Some(set) => *first.entry(set).or_insert(*id),
            None => *id,
        };
    }
}

fn edited(state: &State, objects: Objects) -> Edits {
    let objects = (objects != state.objects).then_some(objects);
    Edits { objects, ..Edits::default() }
}

/// Checks that a domain, a fault set or a pool is empty and is not the last one.
fn may_drop(state: &State, kind: ObjectKind, id: u32) -> Result<(), Refused> {
    let objects = &state.objects;
    objects.domain_of(kind, id).ok_or(Refused::Outdated)?;
    let servers = |is: &dyn Fn(&Server) -> bool| {
        let there = |sds: &SdsId| has_devices(state, *sds);
        state.servers.iter().filter(|(id, s)| is(s) && there(id)).count()
    };
    let (name, what, count, last) = match kind {
        ObjectKind::Domain => {
            let domain = DomainId(id);
            let pools = objects.pools.values().filter(|p| p.domain == domain).count();
            let servers = servers(&|s| s.domain == domain);
            let (what, count) = if servers > 0 {
                ("servers", servers)
            } else {
                let sets = objects.fault_sets.values().filter(|f| f.domain == domain).count();
                ("storage pools and fault sets", pools + sets)
            };
            (&objects.domains[&domain].name, what, count, objects.domains.len() == 1)
        }
        ObjectKind::FaultSet => {
            let set = FaultSetId(id);
            let count = servers(&|s| s.fault_set == Some(set));
            (&objects.fault_sets[&set].name, "servers", count, false)
        }
        _ => {
            let pool = PoolId(id);
            let volumes = state.volumes.values().filter(|v| v.pool == pool).count();
            let there = |d: &&Device| d.intent != Intent::Removed && d.pool == pool;
            let devices = state.devices.values().filter(there).count();
            let (what, count) =
                if volumes > 0 { ("volumes", volumes) } else { ("devices", devices) };
            (&objects.pools[&pool].name, what, count, objects.pools.len() == 1)
        }
    };
    match (count, last) {
        (1.., _) => Err(Refused::NotEmpty { kind, name: name.clone(), count, what }),
        (_, true) => Err(Refused::LastObject(kind, name.clone())),
        _ => Ok(()),
    }
}

fn has_devices(state: &State, sds: SdsId) -> bool {
    state.devices.values().any(|d| d.sds == sds && d.intent != Intent::Removed)
}
