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

/// Who may use a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// Every client.
    All(Grant),
    /// These; nobody, if it is empty.
    Only(BTreeMap<SdcId, Grant>),
}

impl Mapping {
    /// To all, for reading and writing.
    pub fn everyone(generation: u32) -> Mapping {
        Mapping::All(Grant { access: Access::ReadWrite, generation })
    }

    /// To nobody.
    pub fn nobody() -> Mapping {
        Mapping::Only(BTreeMap::new())
    }

    /// What this client may do. Asked for every I/O.
    #[inline]
    pub fn grant(&self, sdc: SdcId) -> Option<Grant> {
        match self {
            Mapping::All(grant) => Some(*grant),
            Mapping::Only(_) if mutant::on(Mutant::ServeUnmapped) => Some(UNFENCED),
            Mapping::Only(list) => list.get(&sdc).copied(),
        }
    }

    /// What anybody may do who isn't known yet.
    pub fn all(&self) -> Option<Grant> {
        match self {
            Mapping::All(grant) => Some(*grant),
            Mapping::Only(_) => None,
        }
    }

    /// The mapping that is wished for (whose generations don't count), in the place of this one, and the
    /// volume's generation after that.
    pub fn replaced(&self, wish: &Mapping, generation: u32) -> (Mapping, u32) {
        let kept = |old: Option<Grant>, new: Grant| {
            old.filter(|old| old.access >= new.access) // read-only is the greater one
        };
        // Who had more, or had it and is not among the new ones.
        let less = match (self, wish) {
            (Mapping::All(old), Mapping::All(new)) => kept(Some(*old), *new).is_none(),
            (Mapping::All(_), Mapping::Only(_)) => true,
            (Mapping::Only(old), new) => old.iter().any(|(sdc, old)| {
                new.grant(*sdc).is_none_or(|new| kept(Some(*old), new).is_none())
            }),
        };
        let raised = less && !mutant::on(Mutant::ReuseGeneration);
        let generation = if raised { generation + 1 } else { generation };
        let renewed = |old: Option<Grant>, new: &Grant| {
            let generation = kept(old, *new).map_or(generation, |old| old.generation);
            Grant { access: new.access, generation }
        };
        let mapping = match wish {
            // Those who were named had different generations: they begin anew.
            Mapping::All(new) => Mapping::All(renewed(self.all(), new)),
            Mapping::Only(list) => {
                let grant = |(sdc, new): (&SdcId, &Grant)| (*sdc, renewed(self.grant(*sdc), new));
                Mapping::Only(list.iter().map(grant).collect())
            }
        };
        (mapping, generation)
    }

    /// For the map, the log and snapshots.
    pub fn info(&self) -> MappingInfo {
        let info = |sdc: u32, g: &Grant| GrantInfo {
            sdc,
            access: g.access as i32,
            generation: g.generation,
        };
        match self {
            Mapping::All(grant) => MappingInfo { all: Some(info(0, grant)), sdcs: [].into() },
            Mapping::Only(list) => MappingInfo {
                all: None,
                sdcs: list.iter().map(|(sdc, grant)| info(sdc.0, grant)).collect(),
            },
        }
    }

    /// Of the map, the log or a snapshot; one that was made before there were mappings means all.
    pub fn of(info: Option<MappingInfo>) -> Mapping {
        let Some(info) = info else { return Mapping::everyone(0) };
        let grant = |g: &GrantInfo| Grant { access: g.access(), generation: g.generation };
        match &info.all {
            Some(all) => Mapping::All(grant(all)),
            None => Mapping::Only(info.sdcs.iter().map(|g| (SdcId(g.sdc), grant(g))).collect()),
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
        Mapping::Only(list.iter().map(|(sdc, access)| (*sdc, grant(*access))).collect())
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
        assert_eq!((number(&all, A), n), (Some(4), 4));
    }

    #[test]
    fn a_mapping_survives_the_wire_and_none_means_all() {
        for mapping in [Mapping::everyone(3), Mapping::nobody(), only(&[(B, Access::ReadOnly)])] {
            assert_eq!(Mapping::of(Some(mapping.info())), mapping);
        }
        assert_eq!(Mapping::of(None), Mapping::everyone(0));
    }
}
