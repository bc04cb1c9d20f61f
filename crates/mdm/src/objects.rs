//! Protection domains, fault sets and storage pools, and the orders that change them.
//!
//! A server is in one domain, and in at most one fault set of it. A device is in one pool of its
//! server's domain. A volume is in one pool, and so are its groups. Two copies never share a
//! **fault unit**: a fault set, or a server that is in none. None of this ever changes, but objects
//! can be renamed. Names are unique per kind.
//!
//! Invariants: there is always at least one domain and one pool; the first ones are called
//! `default`. Ids are never used again.

use crate::command::{self, Command};
use crate::refused::Refused;
use crate::state::{Change, State};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{DomainId, FaultSetId, Limits, MapVersion, Policy, PoolId, SdcId, SdsId};
use wire::control::{self, Intent, Media, ObjectKind, ObjectStatus, PolicyInfo, PoolInfo};

/// Maximum number of objects of one kind.
pub const MAX_OBJECTS: usize = 1024;

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

    /// Returns the pool with the settings of this command instead of its own.
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

    /// Returns the command that makes the pool as it is.
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

    fn id(&self, kind: ObjectKind, name: &str) -> Result<u32, Refused> {
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

impl State {
    /// Returns the command that creates a domain, a fault set or a pool.
    pub fn create_object_command(&self, m: &control::CreateObject) -> Result<Change, Refused> {
        let kind = m.kind();
        let domain = match kind {
            ObjectKind::Domain => DomainId(0),
            _ => self.objects.domain(&m.domain)?,
        };
        if self.objects.named(kind, &m.name).is_some() {
            return Err(Refused::ObjectTaken(kind, m.name.clone()));
        }
        let id = self.objects.next(kind).0;
        self.change(Command::PutObject(command::PutObject {
            kind: m.kind,
            id,
            name: m.name.clone(),
            domain: domain.0,
            media: m.media,
            spare: m.spare,
            rebuild: m.rebuild,
            rebalance: m.rebalance,
            by_order: m.by_order,
        }))
    }

    /// Returns the command that changes the settings of a pool.
    pub fn set_pool_command(&self, m: &control::SetPool) -> Result<Change, Refused> {
        let id = self.objects.pool(&m.pool, None)?;
        let old = &self.objects.pools[&id];
        let old = old.put(id);
        self.change(Command::PutObject(command::PutObject {
            media: m.media.unwrap_or(old.media),
            spare: m.spare.or(old.spare),
            rebuild: m.rebuild.or(old.rebuild),
            rebalance: m.rebalance.or(old.rebalance),
            by_order: m.by_order.unwrap_or(old.by_order),
            ..old
        }))
    }

    /// Returns the command that removes a domain, a fault set, a pool, or a client that is not
    /// connected.
    pub fn remove_object_command(
        &self,
        m: &control::RemoveObject,
        is_here: impl Fn(SdcId) -> bool,
    ) -> Result<Change, Refused> {
        let id = match m.kind() {
            ObjectKind::Sdc => {
                let none = || Refused::NoObject(ObjectKind::Sdc, m.name.chars().take(64).collect());
                let (id, sdc) = self.sdc_named(&m.name).ok_or_else(none)?;
                if is_here(id) {
                    return Err(Refused::SdcHere(sdc.name.clone()));
                }
                id.0
            }
            kind => self.objects.id(kind, &m.name)?,
        };
        self.change(Command::DropObject(command::DropObject { kind: m.kind, id }))
    }

    /// Returns the command that renames an object.
    pub fn rename_command(&self, m: &control::RenameRequest) -> Result<Change, Refused> {
        let (kind, name) = (m.kind(), &m.name);
        let shown = || name.chars().take(64).collect();
        let none = || Refused::NoObject(kind, shown());
        let id = match kind {
            ObjectKind::Volume => {
                self.volume_named(name).ok_or_else(|| Refused::NotFound(shown()))?.0.0
            }
            ObjectKind::Sdc => self.sdc_named(name).ok_or_else(none)?.0.0,
            ObjectKind::Sds => self.server_named(name).ok_or_else(|| Refused::NoServer(shown()))?.0,
            ObjectKind::System => 0,
            _ => self.objects.id(kind, name)?,
        };
        let name = m.to.clone();
        self.change(Command::Rename(command::Rename { kind: m.kind, id, name }))
    }

    /// Checks that a domain, a fault set or a pool is empty and is not the last one.
    pub(crate) fn may_drop(&self, kind: ObjectKind, id: u32) -> Result<(), Refused> {
        let objects = &self.objects;
        objects.domain_of(kind, id).ok_or(Refused::Outdated)?;
        let servers = |is: &dyn Fn(&crate::state::Server) -> bool| {
            let there = |sds: &SdsId| self.has_devices(*sds);
            self.servers.iter().filter(|(id, s)| is(s) && there(id)).count()
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
                let volumes = self.volumes.values().filter(|v| v.pool == pool).count();
                let there =
                    |d: &&crate::state::Device| d.intent != Intent::Removed && d.pool == pool;
                let devices = self.devices.values().filter(there).count();
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

    fn has_devices(&self, sds: SdsId) -> bool {
        self.devices.values().any(|d| d.sds == sds && d.intent != Intent::Removed)
    }

    /// Returns all objects, for people; `used` returns the bytes in use on a device.
    pub fn object_status(
        &self,
        limits: &Limits,
        used: impl Fn(base::DeviceId) -> u64,
    ) -> Vec<ObjectStatus> {
        let status = |kind: ObjectKind, id: u32, name: &str, domain: Option<DomainId>| {
            let is = |device: &crate::state::Device| {
                let server = self.servers.get(&device.sds);
                match kind {
                    ObjectKind::Domain => server.is_some_and(|s| s.domain.0 == id),
                    ObjectKind::FaultSet => {
                        server.is_some_and(|s| s.fault_set == Some(FaultSetId(id)))
                    }
                    _ => device.pool == PoolId(id),
                }
            };
            let there =
                || self.devices.iter().filter(|(_, d)| d.intent != Intent::Removed && is(d));
            let servers: BTreeSet<SdsId> = there().map(|(_, d)| d.sds).collect();
            let in_pool = |pool: PoolId| match kind {
                ObjectKind::Pool => pool == PoolId(id),
                ObjectKind::Domain => {
                    self.objects.pools.get(&pool).is_some_and(|p| p.domain.0 == id)
                }
                _ => false,
            };
            ObjectStatus {
                kind: kind as i32,
                id,
                name: name.into(),
                domain: domain
                    .and_then(|d| self.objects.domains.get(&d))
                    .map_or_else(String::new, |d| d.name.clone()),
                servers: servers.len() as u32,
                devices: there().count() as u32,
                volumes: self.volumes.values().filter(|v| in_pool(v.pool)).count() as u32,
                capacity: there()
                    .filter(|(_, d)| d.up && d.intent != Intent::Waiting)
                    .map(|(_, d)| d.capacity)
                    .sum(),
                used: there().map(|(id, _)| used(*id)).sum(),
                ..ObjectStatus::default()
            }
        };
        let objects = &self.objects;
        let domains = objects.domains.iter();
        let mut all: Vec<ObjectStatus> =
            domains.map(|(id, d)| status(ObjectKind::Domain, id.0, &d.name, None)).collect();
        for (id, f) in &objects.fault_sets {
            all.push(status(ObjectKind::FaultSet, id.0, &f.name, Some(f.domain)));
        }
        for (id, p) in &objects.pools {
            all.push(ObjectStatus {
                media: p.media as i32,
                spare: objects.spare(*id, limits) as u32,
                rebuild: Some(p.rebuild.unwrap_or(limits.rebuild).into()),
                rebalance: Some(p.rebalance.unwrap_or(limits.rebalance).into()),
                reserved: self.reserved(*id),
                by_order: p.by_order,
                ..status(ObjectKind::Pool, id.0, &p.name, Some(p.domain))
            });
        }
        all
    }
}
