//! How an MDM continues alone when most of the others are lost for good. It starts with an image in
//! which it is the only member, and which records the order ([`mdm::recovery`] has the rules).

use super::Journal;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use consensus::{Base, HardState, Image, Membership};
use mdm::State;
use mdm::entry;
use mdm::members::Member;
use wire::control::RecoverMdm;

impl Journal {
    /// Starts as the only MDM, as soon as that is durable. `own` is this MDM as configured; its
    /// name counts only if the state has none for it. `is_up` returns true for a member with a
    /// link. An error is for the operator.
    pub(in crate::mdm) fn go_on_alone(
        &mut self,
        order: &RecoverMdm,
        own: Member,
        is_up: impl Fn(u32) -> bool,
    ) -> Result<(), String> {
        let Some(consensus) = &self.consensus else {
            return Err(String::from(
                "this MDM belongs to no cluster: there is nothing that it could go on with",
            ));
        };
        let me = consensus.id();
        if consensus.last() == 0 || self.state.cluster.0 == 0 {
            return Err(String::from(
                "this MDM was never told anything: there is nothing that it could go on with",
            ));
        }
        let voters = &consensus.membership().voters;
        let up = voters.iter().filter(|id| **id == me || is_up(**id as u32)).count();
        if consensus.role().leader != 0 || 2 * up > voters.len() {
            return Err(format!(
                "{up} of {} MDMs work, or one of them leads: wait until they have elected one, and use \
                 `gabion mdm remove` for those that are lost",
                voters.len()
            ));
        }
        if !self.log.is_idle() || self.beginning.is_some() {
            return Err(String::from("its log is being written: ask again"));
        }
        let mut state = self.with_undecided(consensus.undecided())?;
        let name = state.members.list.get(&(me as u32)).map(|member| member.name.clone());
        let member = Member { name: name.unwrap_or_else(|| own.name.clone()), ..own };
        state.recover(&self.state, me as u32, member, &order.by, order.at);
        state.check().map_err(|what| format!("what this MDM has can't be used: {what}"))?;
        let (term, index) = (consensus.hard().term + 1, consensus.last() + 1);
        let voters = Vec::from([me]);
        let base = Base {
            index,
            term,
            membership: Membership { voters, ..Membership::default() },
            data: entry::to_bytes(&state, self.chain),
        };
        let hard = HardState { term, vote: 0, commit: index };
        (self.consensus, self.leadership) = (None, None);
        (self.leader, self.successor) = (0, None);
        self.state = state;
        self.begin_with(Image { me, hard, base, entries: Vec::new() });
        Ok(())
    }

    /// Returns the state after all entries of this MDM's log, including those that are not known to
    /// be decided: they may have been decided.
    fn with_undecided(&self, entries: Vec<Vec<u8>>) -> Result<State, String> {
        let mut state = self.state.clone();
        for data in entries {
            entry::apply(&mut state, &data, self.level_max).map_err(|what| {
                format!("its log holds an entry that this build doesn't know ({what}): update it")
            })?;
        }
        Ok(state)
    }
}
