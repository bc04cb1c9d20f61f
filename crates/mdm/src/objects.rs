//! Protection domains, fault sets and storage pools.
//!
//! A server is in one domain, and in at most one fault set of it. A device is in one pool of its
//! server's domain. A volume is in one pool, and so are its groups. Two copies never share a
//! **fault unit**: a fault set, or a server that is in none. These assignments never change, but
//! objects can be renamed. Names are unique per kind.
//!
//! Invariants: there is always at least one domain and one pool; the first ones are called
//! `default`. Ids are never used again.

use crate::command;
use crate::refused::{MAX_OBJECTS, Refused};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::{DomainId, FaultSetId, Limits, MapVersion, Policy, PoolId};
use wire::control::{Media, ObjectKind, PolicyInfo, PoolInfo};

/// The name of the first domain and the first pool.
const DEFAULT: &str = "default";

/// A protection domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
}

/// A fault set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSet {
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domain: DomainId,
}

/// A storage pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domain: DomainId,
    /// The medium of its devices.
    pub media: Media,
    /// Percent of its space that only rebuilds may use; `None`: the limits' default.
    pub spare: Option<u8>,
    /// How copies that replace a lost one give way to clients; `None`: the limits' default.
    pub rebuild: Option<Policy>,
    /// The same for copies that only move.
    pub rebalance: Option<Policy>,
    /// New devices get no copy before an order admits them.
    pub by_order: bool,
}

impl Pool {
    /// Returns a pool with default settings.
    pub(crate) fn new(name: String, domain: DomainId) -> Pool {
        Pool {
            name,
            domain,
            media: Media::Any,
            spare: None,
            rebuild: None,
            rebalance: None,
            by_order: false,
        }
    }

    /// Returns this pool with the settings of a command.
    pub(crate) fn said(self, c: &command::PutObject) -> Pool {
        let policy = |said: Option<PolicyInfo>| said.map(Policy::from);
        Pool {
            media: c.media(),
            spare: c.spare.map(|s| s as u8),
            rebuild: policy(c.rebuild),
            rebalance: policy(c.rebalance),
            by_order: c.by_order,
            ..self
        }
    }

    /// Returns the command with the pool's present settings.
    pub(crate) fn put(&self, id: PoolId) -> command::PutObject {
        command::PutObject {
            kind: ObjectKind::Pool as i32,
            id: id.0,
            name: self.name.clone(),
            domain: self.domain.0,
            media: self.media as i32,
            spare: self.spare.map(u32::from),
            rebuild: self.rebuild.map(PolicyInfo::from),
            rebalance: self.rebalance.map(PolicyInfo::from),
            by_order: self.by_order,
        }
    }

    /// Returns the pool's entry in the map.
    pub(crate) fn info(&self, id: PoolId) -> PoolInfo {
        let policy = |said: Option<Policy>| said.map(PolicyInfo::from);
        let (rebuild, rebalance) = (policy(self.rebuild), policy(self.rebalance));
        PoolInfo { id: id.0, rebuild, rebalance, spare: self.spare.map(u32::from) }
    }
}

/// All objects of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// The cluster's name; empty at first.
    pub system: String,
    /// Protection domains.
    pub domains: BTreeMap<DomainId, Domain>,
    /// Fault sets.
    pub fault_sets: BTreeMap<FaultSetId, FaultSet>,
    /// Storage pools.
    pub pools: BTreeMap<PoolId, Pool>,
    /// The highest id of a domain so far.
    pub last_domain: u32,
    /// The highest id of a fault set so far.
    pub last_fault_set: u32,
    /// The highest id of a pool so far.
    pub last_pool: u32,
    /// The map version that changed any of them last.
    pub changed_at: MapVersion,
}

fn keep<K: Ord + Copy, V: Clone>(here: &mut BTreeMap<K, V>, there: &BTreeMap<K, V>) {
    for (id, object) in there {
        here.entry(*id).or_insert_with(|| object.clone());
    }
}

impl Default for Objects {
    /// Returns the objects of a new cluster. A cluster from before there were objects has the same.
    fn default() -> Objects {
        let domain = Domain { name: DEFAULT.into() };
        let pool = Pool::new(DEFAULT.into(), DomainId(1));
        Objects {
            system: String::new(),
            domains: [(DomainId(1), domain)].into(),
            fault_sets: BTreeMap::new(),
            pools: [(PoolId(1), pool)].into(),
            last_domain: 1,
            last_fault_set: 0,
            last_pool: 1,
            changed_at: MapVersion(0),
        }
    }
}

impl Objects {
    /// Adds the objects of `other` that are missing here.
    pub(crate) fn keep(&mut self, other: &Objects) {
        keep(&mut self.domains, &other.domains);
        keep(&mut self.fault_sets, &other.fault_sets);
        keep(&mut self.pools, &other.pools);
    }

    /// Returns the id of the object with this name.
    pub fn named(&self, kind: ObjectKind, name: &str) -> Option<u32> {
        match kind {
            ObjectKind::Domain => {
                self.domains.iter().find(|(_, d)| d.name == name).map(|(id, _)| id.0)
            }
            ObjectKind::FaultSet => {
                self.fault_sets.iter().find(|(_, f)| f.name == name).map(|(id, _)| id.0)
            }
            ObjectKind::Pool => self.pools.iter().find(|(_, p)| p.name == name).map(|(id, _)| id.0),
            _ => None,
        }
    }

    /// Returns the domain of an existing object; 0 for a domain itself.
    pub(crate) fn domain_of(&self, kind: ObjectKind, id: u32) -> Option<DomainId> {
        match kind {
            ObjectKind::Domain => self.domains.get(&DomainId(id)).map(|_| DomainId(0)),
            ObjectKind::FaultSet => self.fault_sets.get(&FaultSetId(id)).map(|f| f.domain),
            ObjectKind::Pool => self.pools.get(&PoolId(id)).map(|p| p.domain),
            _ => None,
        }
    }

    /// Returns the next new object's id, and whether there are too many objects already.
    pub(crate) fn next(&self, kind: ObjectKind) -> (u32, bool) {
        let (last, count) = match kind {
            ObjectKind::Domain => (self.last_domain, self.domains.len()),
            ObjectKind::FaultSet => (self.last_fault_set, self.fault_sets.len()),
            _ => (self.last_pool, self.pools.len()),
        };
        (last + 1, count >= MAX_OBJECTS)
    }

    pub(crate) fn id(&self, kind: ObjectKind, name: &str) -> Result<u32, Refused> {
        self.named(kind, name)
            .ok_or_else(|| Refused::NoObject(kind, name.chars().take(64).collect()))
    }

    /// Returns the domain with this name; without a name, the only one.
    pub fn domain(&self, name: &str) -> Result<DomainId, Refused> {
        match self.domains.first_key_value() {
            Some((id, _)) if name.is_empty() && self.domains.len() == 1 => Ok(*id),
            _ if name.is_empty() => Err(Refused::Which(ObjectKind::Domain)),
            _ => self.id(ObjectKind::Domain, name).map(DomainId),
        }
    }

    /// Returns the pool with this name; without a name, the only one of the domain, or of all.
    pub fn pool(&self, name: &str, domain: Option<DomainId>) -> Result<PoolId, Refused> {
        if !name.is_empty() {
            return self.id(ObjectKind::Pool, name).map(PoolId);
        }
        let mut there = self.pools.iter().filter(|(_, p)| domain.is_none_or(|d| d == p.domain));
        match (there.next(), there.next()) {
            (Some((id, _)), None) => Ok(*id),
            _ => Err(Refused::Which(ObjectKind::Pool)),
        }
    }

    /// Returns all storage pools as the map has them.
    pub(crate) fn infos(&self) -> Vec<PoolInfo> {
        self.pools.iter().map(|(id, p)| p.info(*id)).collect()
    }

    /// Returns the percent of a pool's space that only rebuilds may use.
    pub fn spare(&self, pool: PoolId, limits: &Limits) -> u64 {
        let said = self.pools.get(&pool).and_then(|p| p.spare);
        u64::from(said.unwrap_or(limits.spare_percent as u8))
    }
}
