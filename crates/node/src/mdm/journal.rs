//! The MDM's replicated state machine: the log on its disk, the consensus with the other MDMs, and
//! the state that follows from the entries.
//!
//! One MDM leads, and only it proposes entries. It changes the state first, and proposes the
//! commands as one entry.
//!
//! Invariants:
//! - At most one entry of commands is in flight. While there is none, the whole state is committed.
//! - An MDM that loses its leadership takes back what it had proposed.
//! - After the log has failed, nothing changes any more.
//!
//! [`disk`]: what is written, and when. [`membership`]: which MDMs take part in the consensus.
//! [`alone`]: how one MDM continues when the others are lost.

mod alone;
mod disk;
mod membership;

use crate::refusals::refusal;
use alloc::string::{String, ToString};
use base::Time;
use base::mutant::{self, Mutant};
use consensus::{Committed, Consensus, EntryKind, Image, Message, Output, Wrong};
use core::time::Duration;
use mdm::command::Command;
use mdm::entry::{self, Commands, Decided};
use mdm::log::Log;
use mdm::state::{Change, State};
use wire::control::{Refusal, RefusalCode};

/// The leadership of this MDM, in one term.
#[derive(Clone, Copy, Debug)]
struct Leadership {
    term: u64,
    /// An entry of this term is committed, and so is everything before it.
    begun: bool,
    /// The entry of commands in flight. While there is one, the state is ahead of what is
    /// committed.
    proposed: Option<u64>,
}

/// The kind of a committed entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Applied {
    /// The first one of this MDM's leadership.
    Begun,
    /// The one that this MDM had in flight. The state includes it already.
    Own,
    /// Any other.
    Other,
}

/// The log, the consensus and the state.
pub(super) struct Journal {
    log: Log,
    /// Number of operations of the log's disk.
    ops: u64,
    /// `None` until the log was read and this MDM belongs to a cluster, and after the log failed.
    consensus: Option<Consensus>,
    /// The image that the consensus starts with as soon as the image is durable.
    beginning: Option<Image>,
    /// The state after the last applied entry, or after the proposed one.
    state: State,
    /// Running checksum of the committed entries.
    chain: u32,
    /// `None` while this MDM does not lead.
    leadership: Option<Leadership>,
    /// The id of the leader; 0 if it is unknown.
    leader: u64,
    /// The member that is to lead as soon as nothing is in flight.
    successor: Option<u64>,
    /// When the consensus is to be ticked next.
    tick_at: Time,
    /// The interval between two ticks.
    every: Duration,
    /// The highest level that this build knows.
    level_max: u32,
}

impl Journal {
    /// Creates a journal whose log has this length and has not been read.
    pub(super) fn new(log: u64, every: Duration, level_max: u32) -> Journal {
        Journal {
            log: Log::new(log),
            ops: 0,
            consensus: None,
            beginning: None,
            state: State::new(),
            chain: 0,
            leadership: None,
            leader: 0,
            successor: None,
            tick_at: Time::ZERO,
            every,
            level_max,
        }
    }

    /// Returns the state. If [`Journal::is_decided`], all of it is committed.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn consensus(&self) -> Option<&Consensus> {
        self.consensus.as_ref()
    }

    /// Returns the running checksum of the committed entries.
    pub(super) fn chain(&self) -> u32 {
        self.chain
    }

    /// Returns this MDM's id; 0 while it belongs to no cluster.
    pub(super) fn id(&self) -> u32 {
        self.consensus.as_ref().map_or(0, |c| c.id() as u32)
    }

    /// Returns true if the log has no entry: this MDM has promised nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.consensus.as_ref().is_none_or(|c| c.last() == 0)
    }

    /// Returns the term in which this MDM leads; 0 if it does not lead.
    pub(super) fn term(&self) -> u64 {
        self.leadership.map_or(0, |l| l.term)
    }

    /// Returns true if the state contains only committed entries.
    pub(super) fn is_decided(&self) -> bool {
        self.proposed().is_none()
    }

    /// Returns true if nothing waits for the disk or for the others.
    pub(super) fn is_settled(&self) -> bool {
        let written = self.consensus.as_ref().is_some_and(|c| !c.is_due());
        self.log.is_idle() && self.is_decided() && written
    }

    /// Returns true if it is not known yet, but will be soon, whether this MDM leads. `serves`
    /// tells whether it already serves as leader.
    pub(super) fn is_undecided(&self, serves: bool) -> bool {
        let Some(consensus) = &self.consensus else {
            return self.log.is_recovering() || self.beginning.is_some();
        };
        !serves && (consensus.role().leads || consensus.is_only_voter())
    }

    /// Returns true if a removed member may still be needed.
    pub(super) fn counts(&self, id: u64) -> bool {
        self.consensus.as_ref().is_some_and(|c| c.counts(id))
    }

    /// Returns a refusal that names the leader.
    pub(super) fn not_leader(&self) -> Refusal {
        let (leader, me) = (self.leader as u32, self.id());
        let address = self.state.members.list.get(&leader).filter(|_| leader != me);
        let address = address.map(|m| m.address.clone()).unwrap_or_default();
        let text = match (self.consensus.is_some(), address.is_empty()) {
            (false, _) => String::from(
                "this MDM belongs to no cluster yet: take it in with `gabion mdm add`, or use another address",
            ),
            (true, true) => String::from(
                "this MDM does not lead, and it knows nobody who does: try the others, or wait until most \
                 of the MDMs are there",
            ),
            (true, false) => alloc::format!("this MDM does not lead: the one at {address} does"),
        };
        Refusal { leader: address, ..refusal(RefusalCode::NotLeader, text.to_string()) }
    }

    // ---- the consensus ----

    /// Returns the output of the consensus, if there is one. A sole voter elects itself first.
    pub(super) fn turn(&mut self) -> Option<Output> {
        let turn = self.consensus.as_mut()?.turn();
        let idle = turn.committed.is_empty() && turn.send.is_empty() && turn.confirmed.is_empty();
        (!idle || turn.restored.is_some() || self.stand_alone()).then_some(turn)
    }

    /// Starts an election if this MDM is the only voter: it has no other to wait for. Returns true
    /// if it just did.
    fn stand_alone(&mut self) -> bool {
        let Some(consensus) = &mut self.consensus else { return false };
        if consensus.is_only_voter()
            && !consensus.role().leads
            && self.log.is_idle()
            && !consensus.is_due()
        {
            consensus.campaign();
            return consensus.is_due_soon();
        }
        false
    }

    /// Replaces the state by one that another MDM has sent. An error says which part of it this
    /// build does not know.
    pub(super) fn restore(&mut self, data: &[u8]) -> Result<(), String> {
        let decided = Decided::from_bytes(data, self.level_max)?;
        (self.state, self.chain) = (decided.state, decided.chain);
        Ok(())
    }

    /// Applies a committed entry. An error says which part of it this build does not know.
    pub(super) fn apply(&mut self, committed: Committed) -> Result<Applied, String> {
        let Committed { index, term, meaning } = committed;
        match (meaning, &mut self.leadership) {
            (EntryKind::Nothing, Some(own)) if own.term == term => {
                own.begun = true;
                Ok(Applied::Begun)
            }
            (EntryKind::Data(data), Some(own)) if own.proposed == Some(index) => {
                self.chain = entry::chain(self.chain, &data);
                own.proposed = None;
                Ok(Applied::Own)
            }
            (EntryKind::Data(data), _) => {
                self.chain = entry::chain(self.chain, &data);
                entry::apply(&mut self.state, &data, self.level_max)?;
                Ok(Applied::Other)
            }
            (EntryKind::Nothing | EntryKind::Members, _) => Ok(Applied::Other),
        }
    }

    /// Takes a message of another MDM.
    pub(super) fn step(&mut self, message: Message) -> Result<(), Wrong> {
        self.consensus.as_mut().map_or(Ok(()), |consensus| consensus.step(message))
    }

    /// Records that messages to a member may be lost.
    pub(super) fn unreachable(&mut self, member: u64) {
        if let Some(consensus) = &mut self.consensus {
            consensus.unreachable(member);
        }
    }

    // ---- leading ----

    /// Returns true if this MDM's leadership is over.
    pub(super) fn has_lost_lead(&self) -> bool {
        let Some(role) = self.consensus.as_ref().map(Consensus::role) else { return false };
        self.leadership.is_some_and(|l| !role.leads || l.term != role.term)
    }

    /// Begins to lead, if the consensus says so. Returns the term then.
    pub(super) fn take_lead(&mut self) -> Option<u64> {
        let role = self.consensus.as_ref()?.role();
        if !role.leads || self.leadership.is_some() {
            return None;
        }
        assert!(role.term > 0, "a leader was elected");
        let leadership = Leadership { term: role.term, begun: false, proposed: None };
        self.leadership = Some(leadership);
        Some(role.term)
    }

    /// Returns true if another MDM leads than before.
    pub(super) fn see_leader(&mut self) -> bool {
        let Some(role) = self.consensus.as_ref().map(Consensus::role) else { return false };
        core::mem::replace(&mut self.leader, role.leader) != role.leader
    }

    /// Returns true while this MDM leads.
    pub(super) fn leads(&self) -> bool {
        self.leadership.is_some()
    }

    /// Ends the leadership.
    pub(super) fn resign(&mut self) {
        self.take_back();
        (self.leadership, self.successor) = (None, None);
    }

    /// Stops: nothing changes any more. Returns true if no other MDM can lead: an MDM that is in
    /// the list but has no vote can't.
    pub(super) fn stop(&mut self) -> bool {
        self.take_back();
        self.consensus.as_ref().is_none_or(|c| c.is_only_voter())
    }

    /// Leaves the consensus, after [`Journal::stop`].
    pub(super) fn leave(&mut self) {
        self.consensus = None;
    }

    /// Takes back uncommitted proposals: resets the state to the committed one.
    fn take_back(&mut self) {
        let proposed = self.leadership.as_mut().and_then(|l| l.proposed.take());
        if proposed.is_none() || mutant::on(Mutant::MdmStaleState) {
            return;
        }
        let Some(consensus) = &self.consensus else { return };
        let (base, entries) = consensus.decided();
        let decided = Decided::from_base(base, self.level_max);
        let mut decided = decided.expect("it was a state before");
        for data in entries {
            decided.apply(&data, self.level_max).expect("it was applied before");
        }
        assert_eq!(decided.chain, self.chain, "these are the entries that were committed");
        self.state = decided.state;
    }

    fn proposed(&self) -> Option<u64> {
        self.leadership.and_then(|l| l.proposed)
    }

    /// Returns true if commands may be proposed.
    pub(super) fn may_propose(&self) -> bool {
        let Some(consensus) = &self.consensus else { return false };
        let image = self.log.wants_switch() || consensus.is_image_wanted();
        let free = self.log.is_idle() && !image && !consensus.is_due();
        let may = self.leadership.is_some_and(|l| l.begun && l.proposed.is_none());
        free && may && !consensus.is_handing_over()
    }

    /// Makes a change of the state, and puts its command into the batch that is proposed next.
    pub(super) fn make(&mut self, change: Change, batch: &mut Commands) -> Command {
        assert!(self.is_decided(), "one entry is in flight at a time");
        assert!(batch.push(&change, self.state.level), "a batch has room for one more input");
        self.state.make(change)
    }

    /// Proposes commands that have changed the state.
    pub(super) fn propose(&mut self, commands: Commands) {
        assert!(self.is_decided(), "one entry is in flight at a time");
        let consensus = self.consensus.as_mut().expect("it leads");
        let index =
            consensus.propose(commands.into_data()).expect("it leads and hands nothing over");
        self.leadership.as_mut().expect("it leads").proposed = Some(index);
    }

    /// Asks the consensus to confirm that this MDM leads.
    pub(super) fn confirm(&mut self, question: u64) {
        self.consensus.as_mut().expect("it leads").confirm(question);
    }

    /// Returns true if the first entry of its term is committed and none is in flight.
    pub(super) fn may_send_committed(&self) -> bool {
        let early = mutant::on(Mutant::MdmAnswerEarly);
        self.leadership.is_some_and(|l| l.begun && (early || l.proposed.is_none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Prng;
    use mdm::command::FormCluster;

    /// Returns the journal of the only MDM, which has read an empty log.
    fn sole() -> Journal {
        let mut journal = Journal::new(1 << 20, Duration::from_millis(50), 2);
        let image = Image::first(1, entry::to_bytes(&State::new(), 0));
        journal.start(Time(1), image, Prng::new(1));
        journal
    }

    #[test]
    fn an_mdm_without_a_consensus_waits_for_its_log_and_names_no_leader() {
        let mut journal = Journal::new(1 << 20, Duration::from_millis(50), 2);
        assert!(journal.is_undecided(false) && journal.is_empty() && !journal.may_propose());
        assert!(journal.turn().is_none() && !journal.see_leader() && journal.take_lead().is_none());
        assert!(journal.not_leader().text.contains("belongs to no cluster yet"));
        assert!(sole().not_leader().text.contains("does not lead"));
    }

    #[test]
    fn nothing_is_proposed_before_the_leadership_has_begun() {
        let journal = sole();
        assert_eq!((journal.id(), journal.term()), (1, 0));
        assert!(journal.is_decided() && !journal.may_propose() && !journal.may_send_committed());
    }

    #[test]
    fn a_change_is_made_once_and_kept_in_the_batch() {
        let (mut journal, mut batch) = (sole(), Commands::default());
        let form = || Command::FormCluster(FormCluster { cluster: 7 });
        let change = journal.state().change(form()).unwrap();
        journal.make(change, &mut batch);
        assert_eq!(journal.state().cluster.0, 7);
        assert!(!batch.is_empty());
        assert!(journal.state().change(form()).is_ok_and(|again| again.is_nothing()));
    }
}
