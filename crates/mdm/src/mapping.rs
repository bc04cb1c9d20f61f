//! Who may use a volume, and how: all clients, or those that are named.
//!
//! **Generations** tell I/O of before from I/O of after. A volume's number rises with whatever takes leave away;
//! a leave carries the number that was valid when it was given, and I/O that carries a lower one is of an
//! earlier leave: it is refused, for ever. Who keeps what it may, keeps its number, too, and notices nothing.
//!
//! Invariant: no leave has a higher generation than its volume.

use alloc::collections::BTreeMap;
use base::SdcId;
use base::mutant::{self, Mutant};
use wire::control::{Access, GrantInfo, MappingInfo};

/// What a client may do, since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// What.
    pub access: Access,
    /// I/O of a lower generation is of an earlier leave.
    pub generation: u32,
}

/// Who may use a volume: all, or those that are named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    all: Option<Grant>,
    /// Those that are named. If it is mapped to all: those that had their leave before the others, and keep its
    /// number.
    sdcs: BTreeMap<SdcId, Grant>,
}

impl Mapping {
    /// To all, for reading and writing.
    pub fn everyone(generation: u32) -> Mapping {
        Mapping::to_all(Access::ReadWrite, generation)
    }

    /// To all.
    pub fn to_all(access: Access, generation: u32) -> Mapping {
        Mapping { all: Some(Grant { access, generation }), ..Mapping::default() }
    }

    /// To nobody.
    pub fn nobody() -> Mapping {
        Mapping::default()
    }

    /// To these.
    pub fn only(sdcs: BTreeMap<SdcId, Grant>) -> Mapping {
        Mapping { all: None, sdcs }
    }

    /// What this client may do. Asked for every I/O.
    #[inline]
    pub fn grant(&self, sdc: SdcId) -> Option<Grant> {
        if self.sdcs.is_empty() && self.all.is_some() {
            return self.all; // as most are
        }
        if mutant::on(Mutant::ServeUnmapped) {
            return Some(UNFENCED);
        }
        self.sdcs.get(&sdc).copied().or(self.all)
    }

    /// What anybody may do who isn't known yet.
    pub fn all(&self) -> Option<Grant> {
        self.all
    }

    /// Those that are named, if it isn't mapped to all.
    pub fn named(&self) -> Option<&BTreeMap<SdcId, Grant>> {
        self.all.is_none().then_some(&self.sdcs)
    }

    /// Every client that it knows of.
    pub fn clients(&self) -> impl Iterator<Item = (SdcId, Grant)> + '_ {
        self.sdcs.iter().map(|(sdc, grant)| (*sdc, *grant))
    }

    /// The mapping that is wished for (whose generations don't count), in the place of this one, and the
    /// volume's generation after that.
    pub fn replaced(&self, wish: &Mapping, generation: u32) -> (Mapping, u32) {
        // Read-only is the greater one.
        let keeps = |old: Grant, new: Option<Grant>| new.is_some_and(|n| old.access >= n.access);
        let less = self.all.is_some_and(|old| !keeps(old, wish.all))
            || self.clients().any(|(sdc, old)| !keeps(old, wish.grant(sdc)));
        let raised = less && !mutant::on(Mutant::ReuseGeneration);
        let generation = if raised { generation + 1 } else { generation };
        let renewed = |old: Option<Grant>, new: Grant| {
            let kept = old.filter(|old| keeps(*old, Some(new)));
            let generation = kept.map_or(generation, |old| old.generation);
            Grant { access: new.access, generation }
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

    /// The highest generation of a leave.
    pub fn newest(&self) -> u32 {
        let named = self.sdcs.values().map(|g| g.generation);
        named.chain(self.all.map(|g| g.generation)).max().unwrap_or(0)
    }

    /// For the map, the log and snapshots.
    pub fn info(&self) -> MappingInfo {
        let info = |sdc: u32, g: &Grant| GrantInfo {
            sdc,
            access: g.access as i32,
            generation: g.generation,
        };
        MappingInfo {
            all: self.all.as_ref().map(|grant| info(0, grant)),
            sdcs: self.sdcs.iter().map(|(sdc, grant)| info(sdc.0, grant)).collect(),
        }
    }

    /// Of the map, the log or a snapshot; one that was made before there were mappings means all.
    pub fn of(info: Option<MappingInfo>) -> Mapping {
        let Some(info) = info else { return Mapping::everyone(0) };
        let grant = |g: &GrantInfo| Grant { access: g.access(), generation: g.generation };
        Mapping {
            all: info.all.as_ref().map(grant),
            sdcs: info.sdcs.iter().map(|g| (SdcId(g.sdc), grant(g))).collect(),
        }
    }
}

/// What the mutant lets through.
const UNFENCED: Grant = Grant { access: Access::ReadWrite, generation: 0 };

#[cfg(test)]
mod tests {
    use super::*;

    const A: SdcId = SdcId(1);
    const B: SdcId = SdcId(2);

    fn only(list: &[(SdcId, Access)]) -> Mapping {
        let grant = |access| Grant { access, generation: 0 };
        Mapping::only(list.iter().map(|(sdc, access)| (*sdc, grant(*access))).collect())
    }

    fn number(mapping: &Mapping, sdc: SdcId) -> Option<u32> {
        mapping.grant(sdc).map(|g| g.generation)
    }

    #[test]
    fn who_comes_back_gets_a_new_number_and_who_stays_keeps_its_own() {
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
        for mapping in [Mapping::everyone(3), Mapping::nobody(), only(&[(B, Access::ReadOnly)])] {
            assert_eq!(Mapping::of(Some(mapping.info())), mapping);
        }
        assert_eq!(Mapping::of(None), Mapping::everyone(0));
    }
}
