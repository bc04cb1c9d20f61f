//! The mapping of a volume: which clients and which hosts may use it, and how. It is mapped to all
//! clients or to those that are named, and to all hosts or to those that are named. A host needs
//! both: a permission of its own, and one of the client through which it reaches the volume.
//!
//! **Generations** separate I/O before a change from I/O after it. A volume's generation rises with
//! every change that takes access away. A grant carries two of them:
//! - `since`: the generation at which the permission began. Requests of a lower one belong to an
//!   earlier permission, and end. A client that keeps its access keeps this number, and notices
//!   nothing when others lose theirs.
//! - `generation`: servers refuse I/O with a lower one. It is above `since` if a reservation, a
//!   moved seat or a change of the hosts has taken access from hosts meanwhile: then all I/O under
//!   way is refused, and clients repeat what still may be done, under the new number.
//!
//! Servers know clients only. Clients enforce the permissions of their hosts, and when a host loses
//! access, its seat ends (docs/design/0012-seats.md).
//!
//! Invariants: no grant has a higher generation than its volume, and none began after its
//! generation.

use crate::seat::{SEATS, is_host_name};
use alloc::collections::BTreeMap;
use alloc::string::String;
use base::SdcId;
use base::mutant::{self, Mutant};
use wire::control::{Access, GrantInfo, HostGrant, HostsInfo, MappingInfo};

/// The most hosts to which a volume may be mapped by name: as many as may have seats.
pub const NAMED_HOSTS: usize = SEATS;

/// The access of a client or a host, and the generation since which it has that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The kind of access.
    pub access: Access,
    /// I/O of a lower generation is refused.
    pub generation: u32,
    /// The generation at which this permission began.
    pub since: u32,
}

impl Grant {
    /// Returns a permission that begins at this generation.
    pub fn new(access: Access, generation: u32) -> Grant {
        Grant { access, generation, since: generation }
    }

    /// Returns true if this is the permission that `older` was, perhaps under a higher generation.
    pub fn continues(&self, older: &Grant) -> bool {
        (self.access, self.since) == (older.access, older.since)
    }

    /// Returns what a host may do through a client that has this grant.
    fn for_host(&self, host: &Grant) -> Grant {
        // Of two accesses, read-only is the greater value.
        let access = self.access.max(host.access);
        Grant { access, since: self.since.max(host.since), ..*self }
    }

    /// Returns true if a change to `new` takes nothing away.
    fn is_kept(&self, new: Option<Grant>) -> bool {
        new.is_some_and(|new| self.access >= new.access)
    }
}

/// Permissions of clients or of hosts: for all of them, or for those that are named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permissions<K> {
    all: Option<Grant>,
    /// The named ones. If all have a permission: those that had one before the others, and keep the
    /// generation of that grant.
    named: BTreeMap<K, Grant>,
}

impl<K> Default for Permissions<K> {
    fn default() -> Permissions<K> {
        Permissions { all: None, named: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Permissions<K> {
    /// Returns this permission for all.
    pub fn to_all(access: Access, generation: u32) -> Permissions<K> {
        Permissions { all: Some(Grant::new(access, generation)), named: BTreeMap::new() }
    }

    /// Returns permissions for these only.
    pub fn only(named: BTreeMap<K, Grant>) -> Permissions<K> {
        Permissions { all: None, named }
    }

    /// Returns the permission of everyone, including those that are not known yet.
    pub fn all(&self) -> Option<Grant> {
        self.all
    }

    /// Returns the permission that this one has.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<Grant>
    where
        K: core::borrow::Borrow<Q>,
    {
        self.named.get(key).copied().or(self.all)
    }

    /// Returns the named permissions, if not everyone has one.
    pub fn named(&self) -> Option<&BTreeMap<K, Grant>> {
        self.all.is_none().then_some(&self.named)
    }

    /// Returns true if the wish takes access from somebody.
    fn is_less(&self, wish: &Permissions<K>) -> bool {
        self.all.is_some_and(|old| !old.is_kept(wish.all))
            || self.named.iter().any(|(key, old)| !old.is_kept(wish.get(key)))
    }

    /// Returns the wished permissions as a replacement of these ones. New ones begin at this
    /// generation.
    fn replaced(&self, wish: &Permissions<K>, generation: u32) -> Permissions<K> {
        let renewed = |old: Option<Grant>, new: Grant| match old.filter(|o| o.is_kept(Some(new))) {
            Some(kept) => Grant { access: new.access, ..kept },
            None => Grant::new(new.access, generation),
        };
        let all = wish.all.map(|new| renewed(self.all, new));
        let wished = wish.named.iter();
        let mut named: BTreeMap<K, Grant> =
            wished.map(|(key, new)| (key.clone(), renewed(self.get(key), *new))).collect();
        if let Some(all) = all {
            let kept = self.named.iter().map(|(key, old)| (key.clone(), renewed(Some(*old), all)));
            named = kept.filter(|(_, grant)| *grant != all).collect();
        }
        Permissions { all, named }
    }

    /// Returns the same permissions under this generation. Each began when it did.
    fn renewed(&self, generation: u32) -> Permissions<K> {
        let renewed = |grant: &Grant| Grant { generation, ..*grant };
        let named = self.named.iter().map(|(key, grant)| (key.clone(), renewed(grant)));
        Permissions { all: self.all.as_ref().map(renewed), named: named.collect() }
    }

    fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.named.values().chain(&self.all)
    }
}

/// The clients and the hosts that may use a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    sdcs: Permissions<SdcId>,
    hosts: Permissions<String>,
}

impl Mapping {
    /// Returns a mapping to all clients and all hosts, for reading and writing.
    pub fn everyone(generation: u32) -> Mapping {
        Mapping::to_all(Access::ReadWrite, generation)
    }

    /// Returns a mapping to all clients and all hosts.
    pub fn to_all(access: Access, generation: u32) -> Mapping {
        Mapping { sdcs: Permissions::to_all(access, generation), ..Mapping::nobody() }
    }

    /// Returns a mapping to no client.
    pub fn nobody() -> Mapping {
        let hosts = Permissions::to_all(Access::ReadWrite, 0);
        Mapping { sdcs: Permissions::default(), hosts }
    }

    /// Returns a mapping to these clients, and all of their hosts.
    pub fn only(sdcs: BTreeMap<SdcId, Grant>) -> Mapping {
        Mapping { sdcs: Permissions::only(sdcs), ..Mapping::nobody() }
    }

    /// Returns the same mapping with these hosts.
    pub fn with_hosts(self, hosts: Permissions<String>) -> Mapping {
        Mapping { hosts, ..self }
    }

    /// Returns what this client may do. It is called for every I/O.
    #[inline]
    pub fn grant(&self, sdc: SdcId) -> Option<Grant> {
        if self.sdcs.named.is_empty() && self.sdcs.all.is_some() {
            return self.sdcs.all; // the common case
        }
        if mutant::on(Mutant::ServeUnmapped) {
            return Some(UNFENCED);
        }
        self.sdcs.named.get(&sdc).copied().or(self.sdcs.all)
    }

    /// Returns what this host may do through a client with this grant.
    pub fn host_grant(&self, sdc: Grant, host: &str) -> Option<Grant> {
        let grant = self.hosts.named.get(host).copied().or(self.hosts.all)?;
        Some(sdc.for_host(&grant))
    }

    /// Returns true if this host may use the volume, through clients that may.
    pub fn admits(&self, host: &str) -> bool {
        self.hosts.all.is_some() || self.hosts.named.contains_key(host)
    }

    /// Returns what every client may do, including clients that are not known yet.
    pub fn all(&self) -> Option<Grant> {
        self.sdcs.all()
    }

    /// Returns the named clients, if the volume is not mapped to all.
    pub fn named(&self) -> Option<&BTreeMap<SdcId, Grant>> {
        self.sdcs.named()
    }

    /// Returns the permissions of hosts.
    pub fn hosts(&self) -> &Permissions<String> {
        &self.hosts
    }

    /// Returns every client that the mapping names.
    pub fn clients(&self) -> impl Iterator<Item = (SdcId, Grant)> + '_ {
        self.sdcs.named.iter().map(|(sdc, grant)| (*sdc, *grant))
    }

    /// Returns the mapping without the entry of this client, if there is one.
    pub(crate) fn without(&self, sdc: SdcId) -> Option<Mapping> {
        let mut rest = self.clone();
        rest.sdcs.named.remove(&sdc).map(|_| rest)
    }

    /// Returns the wished mapping (whose generations are ignored) as a replacement of this one, and
    /// the volume's generation after that. If hosts lose access, all clients have to repeat what
    /// they have under way: servers do not know from which host it is.
    pub fn replaced(&self, wish: &Mapping, generation: u32) -> (Mapping, u32) {
        let hosts = self.hosts.is_less(&wish.hosts);
        let less = hosts || self.sdcs.is_less(&wish.sdcs);
        let raised = less && !mutant::on(Mutant::ReuseGeneration);
        let generation = if raised { generation + 1 } else { generation };
        let mut sdcs = self.sdcs.replaced(&wish.sdcs, generation);
        if hosts && raised {
            sdcs = sdcs.renewed(generation);
        }
        (Mapping { sdcs, hosts: self.hosts.replaced(&wish.hosts, generation) }, generation)
    }

    /// Returns the same permissions under this generation. Each began when it did.
    pub fn renewed(&self, generation: u32) -> Mapping {
        Mapping { sdcs: self.sdcs.renewed(generation), hosts: self.hosts.clone() }
    }

    /// Returns the highest generation of a grant.
    pub fn newest(&self) -> u32 {
        let grants = self.sdcs.grants().chain(self.hosts.grants());
        grants.map(|grant| grant.generation).max().unwrap_or(0)
    }

    /// Returns true if every permission began at its generation or earlier, and the hosts are
    /// possible ones.
    pub(crate) fn is_sound(&self) -> bool {
        let hosts = &self.hosts.named;
        self.sdcs.grants().chain(self.hosts.grants()).all(|grant| grant.since <= grant.generation)
            && hosts.len() <= NAMED_HOSTS
            && hosts.keys().all(|host| is_host_name(host))
    }

    /// Encodes the mapping for the map, the log and snapshots.
    pub fn info(&self) -> MappingInfo {
        let info = |sdc: u32, g: &Grant| GrantInfo {
            sdc,
            access: g.access as i32,
            generation: g.generation,
            since: Some(g.since).filter(|since| *since != g.generation),
        };
        let all_hosts = Permissions::to_all(Access::ReadWrite, 0);
        MappingInfo {
            all: self.sdcs.all.as_ref().map(|grant| info(0, grant)),
            sdcs: self.sdcs.named.iter().map(|(sdc, grant)| info(sdc.0, grant)).collect(),
            hosts: (self.hosts != all_hosts).then(|| hosts_info(&self.hosts)),
        }
    }

    /// Decodes a mapping of the map, the log or a snapshot. `None`, from before there were
    /// mappings, means all clients.
    pub fn of(info: Option<MappingInfo>) -> Mapping {
        let Some(info) = info else { return Mapping::everyone(0) };
        let grant = |g: &GrantInfo| Grant {
            since: g.since.unwrap_or(g.generation),
            ..Grant::new(g.access(), g.generation)
        };
        let sdcs = Permissions {
            all: info.all.as_ref().map(grant),
            named: info.sdcs.iter().map(|g| (SdcId(g.sdc), grant(g))).collect(),
        };
        let all_hosts = || Permissions::to_all(Access::ReadWrite, 0);
        Mapping { sdcs, hosts: info.hosts.map_or_else(all_hosts, permissions) }
    }
}

impl Default for Mapping {
    fn default() -> Mapping {
        Mapping::nobody()
    }
}

fn hosts_info(hosts: &Permissions<String>) -> HostsInfo {
    let info = |name: &str, grant: &Grant| HostGrant {
        name: name.into(),
        access: grant.access as i32,
        since: grant.since,
    };
    HostsInfo {
        all: hosts.all.as_ref().map(|grant| info("", grant)),
        named: hosts.named.iter().map(|(name, grant)| info(name, grant)).collect(),
    }
}

fn permissions(info: HostsInfo) -> Permissions<String> {
    let grant = |g: &HostGrant| Grant::new(g.access(), g.since);
    let all = info.all.as_ref().map(grant);
    Permissions {
        all,
        named: info.named.into_iter().map(|g| (g.name.clone(), grant(&g))).collect(),
    }
}

/// The grant that the mutant gives: no generation fences it.
const UNFENCED: Grant = Grant { access: Access::ReadWrite, generation: 0, since: 0 };

#[cfg(test)]
mod tests {
    use super::*;

    const A: SdcId = SdcId(1);
    const B: SdcId = SdcId(2);
    const GRANT: Grant = Grant { access: Access::ReadWrite, generation: 7, since: 7 };

    fn only(list: &[(SdcId, Access)]) -> Mapping {
        let grant = |access| Grant::new(access, 0);
        Mapping::only(list.iter().map(|(sdc, access)| (*sdc, grant(*access))).collect())
    }

    fn number(mapping: &Mapping, sdc: SdcId) -> Option<u32> {
        mapping.grant(sdc).map(|g| g.generation)
    }

    #[test]
    fn a_client_that_is_mapped_again_gets_a_new_generation_and_others_keep_theirs() {
        use Access::{ReadOnly, ReadWrite};
        let all = Mapping::everyone(1);
        let (both, n) = all.replaced(&only(&[(A, ReadWrite), (B, ReadWrite)]), 1);
        assert_eq!((number(&both, A), number(&both, SdcId(9)), n), (Some(1), None, 2));
        let (one, n) = both.replaced(&only(&[(B, ReadWrite)]), n);
        assert_eq!((number(&one, A), number(&one, B), n), (None, Some(1), 3));
        let (again, n) = one.replaced(&only(&[(A, ReadWrite), (B, ReadWrite)]), n);
        assert_eq!((number(&again, A), number(&again, B), n), (Some(3), Some(1), 3));
        let (less, n) = again.replaced(&only(&[(A, ReadOnly), (B, ReadWrite)]), n);
        assert_eq!((number(&less, A), number(&less, B), n), (Some(4), Some(1), 4));
        let (more, n) = less.replaced(&only(&[(A, ReadWrite), (B, ReadWrite)]), n);
        assert_eq!((number(&more, A), n), (Some(4), 4), "what was held back stays away");
        let (all, n) = more.replaced(&Mapping::everyone(0), n);
        assert_eq!((number(&all, A), number(&all, B), n), (Some(4), Some(1), 4));
        assert_eq!((number(&all, SdcId(9)), all.named()), (Some(4), None));
        let (none, n) = all.replaced(&Mapping::nobody(), n);
        let (again, n) = none.replaced(&Mapping::everyone(0), n);
        assert_eq!((number(&again, B), again.clients().count(), n), (Some(5), 0, 5));
    }

    #[test]
    fn a_mapping_survives_the_wire_and_none_means_all() {
        let renewed = Mapping {
            sdcs: Permissions { all: Some(Grant { since: 0, ..GRANT }), ..Permissions::default() },
            ..Mapping::nobody()
        };
        for mapping in
            [Mapping::everyone(3), Mapping::nobody(), only(&[(B, Access::ReadOnly)]), renewed]
        {
            assert_eq!(Mapping::of(Some(mapping.info())), mapping);
        }
        assert_eq!(Mapping::everyone(3).info().all.unwrap().since, None, "as before reservations");
        assert_eq!(Mapping::of(None), Mapping::everyone(0));
    }
}
