//! What the MDMs agree on: each entry is the same everywhere, a term has one leader, states at the same
//! entry are equal, and nothing that was answered is forgotten.

use super::Failure;
use crate::plan::Who;
use crate::stage::Stage;
use crate::world::ProcId;
use std::collections::BTreeMap;

/// What MDMs said of themselves.
#[derive(Default, Debug)]
pub struct Agreement {
    /// Each entry's term, and the sum over all entries up to it.
    decided: BTreeMap<u64, (u64, u32)>,
    /// The process and life that led in each term.
    leaders: BTreeMap<u64, (ProcId, u32)>,
}

impl Agreement {
    /// An MDM has applied an entry.
    pub fn decided(
        &mut self,
        who: ProcId,
        index: u64,
        term: u64,
        chain: u32,
    ) -> Result<(), Failure> {
        match self.decided.insert(index, (term, chain)) {
            Some(before) if before != (term, chain) => {
                let text = format!(
                    "{who:?} has applied entry {index} of term {term} with sum {chain:08x}; before, it was {before:x?}"
                );
                Err(Failure::new("Mdm", text))
            }
            _ => Ok(()),
        }
    }

    /// An MDM leads.
    pub fn leading(&mut self, who: ProcId, life: u32, term: u64) -> Result<(), Failure> {
        match self.leaders.insert(term, (who, life)) {
            Some(before) if before != (who, life) => {
                let text = format!("term {term} has two leaders: {before:?} and {:?}", (who, life));
                Err(Failure::new("Mdm", text))
            }
            _ => Ok(()),
        }
    }
}

/// Compares the states of all MDMs that are at the same entry.
pub fn check(stage: &Stage) -> Result<(), Failure> {
    let mut states: BTreeMap<u64, (Who, Vec<u8>)> = BTreeMap::new();
    for i in 0..stage.plan.mdms {
        let who = Who::Mdm(i);
        let Some(mdm) = stage.mdm_at(i).filter(|m| m.is_decided()) else { continue };
        let Some(at) = mdm.consensus().map(|c| c.applied()) else { continue };
        let bytes = mdm.state().to_bytes();
        if let Some((other, before)) = states.get(&at)
            && *before != bytes
        {
            let text = format!("{who} and {other} have different states after entry {at}");
            return Err(Failure::new("Mdm", text));
        }
        states.insert(at, (who, bytes));
    }
    Ok(())
}
