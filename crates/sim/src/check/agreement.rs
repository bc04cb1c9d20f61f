//! Judges that the MDMs agree: each entry is the same on all of them, a term has one leader, and
//! states after the same entry are equal. `crate::admin` compares the MDMs' answers to orders: a
//! later answer must not lack the result of an earlier one.

use super::Failure;
use crate::plan::Who;
use crate::stage::Stage;
use crate::world::ProcId;
use std::collections::BTreeMap;

/// The MDMs' reports about themselves.
#[derive(Default, Debug)]
pub struct Agreement {
    /// By entry: its term, and the checksum over all entries up to it.
    decided: BTreeMap<u64, (u64, u32)>,
    /// By term: the process that led, and its incarnation.
    leaders: BTreeMap<u64, (ProcId, u32)>,
}

impl Agreement {
    /// Processes an MDM's report that it has applied an entry.
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

    /// Processes an MDM's report that it leads.
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
