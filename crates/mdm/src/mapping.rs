//! The mapping of a volume: which clients may use it, and how. It is mapped to all clients or to
//! those that are named.
//!
//! **Generations** separate I/O before a change from I/O after it. A volume's generation rises with
//! every change that takes access away. A grant carries two of them:
//! - `since`: the generation at which the permission began. Requests of a lower one belong to an
//!   earlier permission, and end. A client that keeps its access keeps this number, and notices
//!   nothing when others lose theirs.
//! - `generation`: servers refuse I/O with a lower one. It is above `since` if a reservation has
//!   taken access from hosts meanwhile: then all I/O under way is refused, and clients repeat what
//!   still may be done, under the new number.
//!
//! Invariants: no grant has a higher generation than its volume, and none began after its
//! generation.

use alloc::collections::BTreeMap;
use base::SdcId;
use base::mutant::{self, Mutant};
use wire::control::{Access, GrantInfo, MappingInfo};

/// A client's access, and the generation since which it has that.
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
}

/// The clients that may use a volume: all, or those that are named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    all: Option<Grant>,
    /// Named clients. If the volume is mapped to all: clients that had access before the others,
    /// and keep the generation of that grant.
    sdcs: BTreeMap<SdcId, Grant>,
}

impl Mapping {
    /// Returns a mapping to all clients, for reading and writing.
    pub fn everyone(generation: u32) -> Mapping {
        Mapping::to_all(Access::ReadWrite, generation)
    }

    /// Returns a mapping to all clients.
    pub fn to_all(access: Access, generation: u32) -> Mapping {
        Mapping { all: Some(Grant::new(access, generation)), ..Mapping::default() }
    }

    /// Returns a mapping to no client.
    pub fn nobody() -> Mapping {
        Mapping::default()
    }

    /// Returns a mapping to these clients.
    pub fn only(sdcs: BTreeMap<SdcId, Grant>) -> Mapping {
        Mapping { all: None, sdcs }
    }

    /// Returns what this client may do. It is called for every I/O.
    #[inline]
    pub fn grant(&self, sdc: SdcId) -> Option<Grant> {
        if self.sdcs.is_empty() && self.all.is_some() {
            return self.all; // the common case
        }
        if mutant::on(Mutant::ServeUnmapped) {
            return Some(UNFENCED);
        }
        self.sdcs.get(&sdc).copied().or(self.all)
    }

    /// Returns what every client may do, including clients that are not known yet.
    pub fn all(&self) -> Option<Grant> {
        self.all
    }

    /// Returns the named clients, if the volume is not mapped to all.
    pub fn named(&self) -> Option<&BTreeMap<SdcId, Grant>> {
        self.all.is_none().then_some(&self.sdcs)
    }

    /// Returns every client that the mapping names.
    pub fn clients(&self) -> impl Iterator<Item = (SdcId, Grant)> + '_ {
        self.sdcs.iter().map(|(sdc, grant)| (*sdc, *grant))
    }

    /// Returns the wished mapping (whose generations are ignored) as a replacement of this one, and
    /// the volume's generation after that.
    pub fn replaced(&self, wish: &Mapping, generation: u32) -> (Mapping, u32) {
        // Of two accesses, read-only is the greater value.
        let keeps = |old: Grant, new: Option<Grant>| new.is_some_and(|n| old.access >= n.access);
        let less = self.all.is_some_and(|old| !keeps(old, wish.all))
            || self.clients().any(|(sdc, old)| !keeps(old, wish.grant(sdc)));
        let raised = less && !mutant::on(Mutant::ReuseGeneration);
        let generation = if raised { generation + 1 } else { generation };
        let renewed =
            |old: Option<Grant>, new: Grant| match old.filter(|old| keeps(*old, Some(new))) {
                Some(kept) => Grant { access: new.access, ..kept },
                None => Grant::new(new.access, generation),
            };
        let all = wish.all.map(|new| renewed(self.all, new));
        let before = |sdc: SdcId| {
            let old = self.sdcs.get(&sdc).copied();
            old.or(self.all)
        };
        let mut sdcs: BTreeMap<SdcId, Grant> =
            wish.clients().map(|(sdc, new)| (sdc, renewed(before(sdc), new))).collect();
        if let Some(all) = all {
            let kept = self.clients().map(|(sdc, old)| (sdc, renewed(Some(old), all)));
            sdcs = kept.filter(|(_, grant)| *grant != all).collect();
        }
        (Mapping { all, sdcs }, generation)
    }

    /// Returns the same permissions under this generation. Each began when it did.
    pub fn renewed(&self, generation: u32) -> Mapping {
        let renewed = |grant: &Grant| Grant { generation, ..*grant };
        Mapping {
            all: self.all.as_ref().map(renewed),
            sdcs: self.sdcs.iter().map(|(sdc, grant)| (*sdc, renewed(grant))).collect(),
        }
    }

    /// Returns the highest generation of a grant.
    pub fn newest(&self) -> u32 {
        let named = self.sdcs.values().map(|g| g.generation);
        named.chain(self.all.map(|g| g.generation)).max().unwrap_or(0)
    }

    /// Returns true if every permission began at its generation or earlier.
    pub(crate) fn is_sound(&self) -> bool {
        self.sdcs.values().chain(&self.all).all(|grant| grant.since <= grant.generation)
    }

    /// Encodes the mapping for the map, the log and snapshots.
    pub fn info(&self) -> MappingInfo {
        let info = |sdc: u32, g: &Grant| GrantInfo {
            sdc,
            access: g.access as i32,
            generation: g.generation,
            since: Some(g.since).filter(|since| *since != g.generation),
        };
        MappingInfo {
            all: self.all.as_ref().map(|grant| info(0, grant)),
            sdcs: self.sdcs.iter().map(|(sdc, grant)| info(sdc.0, grant)).collect(),
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
        Mapping {
            all: info.all.as_ref().map(grant),
            sdcs: info.sdcs.iter().map(|g| (SdcId(g.sdc), grant(g))).collect(),
        }
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
        let renewed = Mapping { all: Some(Grant { since: 0, ..GRANT }), ..Mapping::default() };
        for mapping in
            [Mapping::everyone(3), Mapping::nobody(), only(&[(B, Access::ReadOnly)]), renewed]
        {
            assert_eq!(Mapping::of(Some(mapping.info())), mapping);
        }
        assert_eq!(Mapping::everyone(3).info().all.unwrap().since, None, "as before reservations");
        assert_eq!(Mapping::of(None), Mapping::everyone(0));
    }
}
