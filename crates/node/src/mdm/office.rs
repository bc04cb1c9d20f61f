//! What it means that this MDM leads. Its leadership begins when the first entry of its term is
//! committed, and ends when the consensus says so, whatever is in flight then.

use super::gather::Gathered;
use super::outlet::Answer;
use super::{Mdm, Peer};
use crate::refusals::refusal;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{LinkId, Time};
use consensus::{Committed, EntryKind, Output};
use mdm::detector::Detector;
use mdm::entry::{self, Decided};
use mdm::healer::Healer;
use mdm::observed::Observed;
use mdm::reach::Reach;
use mdm::slowness::Slowness;
use seam::{Effects, Note};
use wire::control::{Refusal, RefusalCode};

/// The leadership of this MDM, in one term.
#[derive(Clone, Copy, Debug)]
pub(super) struct Office {
    term: u64,
    /// An entry of this term is committed, and so is everything before it.
    begun: bool,
    /// The entry of commands in flight. While there is one, the state is ahead of what is
    /// committed.
    proposed: Option<u64>,
}

impl Mdm {
    /// Returns the index of the entry of commands in flight.
    pub(super) fn proposed(&self) -> Option<u64> {
        self.office.and_then(|o| o.proposed)
    }

    /// Returns the term in which this MDM leads; 0 if it does not lead.
    pub(super) fn term(&self) -> u64 {
        self.office.map_or(0, |o| o.term)
    }

    /// Does what the consensus asks for.
    pub(super) fn advance(&mut self, now: Time, out: &mut Effects) {
        loop {
            self.follow_role(now, out);
            let Some(consensus) = &mut self.consensus else { return };
            let turn = consensus.turn();
            let idle =
                turn.committed.is_empty() && turn.send.is_empty() && turn.confirmed.is_empty();
            if idle && turn.restored.is_none() {
                if !self.stand_alone() {
                    return;
                }
                continue;
            }
            self.take_turn(turn, out);
        }
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

    fn take_turn(&mut self, turn: Output, out: &mut Effects) {
        if let Some(data) = turn.restored {
            match Decided::from_bytes(&data, self.level_max()) {
                Ok(decided) => (self.state, self.chain) = (decided.state, decided.chain),
                Err(what) => return self.not_understood(&what, out),
            }
        }
        for committed in turn.committed {
            if let Err(what) = self.apply(committed, out) {
                return self.not_understood(&what, out);
            }
        }
        self.questions.1 = turn.confirmed.into_iter().fold(self.questions.1, u64::max);
        self.send_all(turn.send, out);
    }

    /// Applies a committed entry. An error says what this build does not know in it.
    fn apply(&mut self, committed: Committed, out: &mut Effects) -> Result<(), String> {
        let Committed { index, term, meaning } = committed;
        match meaning {
            EntryKind::Nothing => {
                if let Some(office) = self.office.as_mut().filter(|o| o.term == term) {
                    office.begun = true;
                    self.form(out);
                }
            }
            EntryKind::Members => {}
            EntryKind::Data(data) => {
                self.chain = entry::chain(self.chain, &data);
                match self.office.as_mut() {
                    Some(office) if office.proposed == Some(index) => {
                        office.proposed = None;
                        self.answers.iter_mut().for_each(Answer::committed);
                    }
                    _ => {
                        let level_max = self.level_max();
                        entry::apply(&mut self.state, &data, level_max)?;
                    }
                }
            }
        }
        out.note(Note::Decided { index, term, chain: self.chain });
        Ok(())
    }

    /// Stops this MDM before the rest of what was decided is applied, and before anything is sent:
    /// it does not have the state that the others have now.
    fn not_understood(&mut self, what: &str, out: &mut Effects) {
        let why = alloc::format!(
            "the leading MDM has sent something that this build doesn't know ({what}): update this MDM"
        );
        self.fail(why, out);
    }

    /// Starts or ends the leadership, as the consensus says.
    fn follow_role(&mut self, now: Time, out: &mut Effects) {
        let Some(consensus) = &self.consensus else { return };
        let role = consensus.role();
        if self.office.is_some_and(|o| !role.leads || o.term != role.term) {
            self.resign(out);
        }
        if role.leads && self.office.is_none() {
            out.note(Note::Leading { term: role.term });
            self.office = Some(Office { term: role.term, begun: false, proposed: None });
        }
        if self.peers.leader != role.leader {
            self.peers.leader = role.leader;
            self.settle_hellos(now, out);
        }
    }

    /// Ends the leadership: forgets what was in flight, and sends all peers to the new leader.
    pub(super) fn resign(&mut self, out: &mut Effects) {
        if self.office.is_none() {
            return;
        }
        out.note(Note::Resigned);
        self.take_back();
        self.office = None;
        self.ready = false;
        self.peers.successor = None;
        self.inputs.clear();
        self.gathered = Gathered::default();
        self.revived.clear();
        self.answers.clear();
        self.observed = Observed::default();
        self.detector = Detector::new(&self.config.limits);
        self.held_back = false;
        self.slowness = Slowness::default();
        self.reach = Reach::default();
        (self.healer, self.rebuilds_held) = (Healer::default(), false);
        self.words.clear();
        self.devices.clear();
        self.sdcs.clear();
        let guests: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, l)| !matches!(l.peer, Peer::Mdm(_) | Peer::Stranger) || l.hello.is_some())
            .map(|(link, _)| *link)
            .collect();
        let why = self.not_leader();
        guests.into_iter().for_each(|link| self.refuse(link, &why, out));
    }

    /// Takes back what is proposed and not committed: resets the state to what is committed.
    pub(super) fn take_back(&mut self) {
        let proposed = self.office.as_mut().and_then(|office| office.proposed.take());
        if proposed.is_none() || mutant::on(Mutant::MdmStaleState) {
            return;
        }
        let Some(consensus) = &self.consensus else { return };
        let (base, entries) = consensus.decided();
        let decided = Decided::from_base(base, self.level_max());
        let mut decided = decided.expect("it was a state before");
        for data in entries {
            decided.apply(&data, self.level_max()).expect("it was applied before");
        }
        assert_eq!(decided.chain, self.chain, "these are the entries that were committed");
        self.state = decided.state;
    }

    /// Returns a refusal that names the leader.
    pub(super) fn not_leader(&self) -> Refusal {
        let leader = self.peers.leader as u32;
        let me = self.consensus.as_ref().map_or(0, |c| c.id()) as u32;
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

    /// Returns true while hellos have to wait a moment: it will be known soon whether this MDM
    /// leads.
    pub(super) fn is_undecided(&self) -> bool {
        let Some(consensus) = &self.consensus else {
            return self.log.is_recovering() || self.beginning.is_some() || self.moved.is_some();
        };
        !self.ready && (consensus.role().leads || consensus.is_only_voter())
    }

    /// Returns true if inputs may be worked on.
    pub(super) fn may_propose(&self) -> bool {
        let Some(consensus) = &self.consensus else { return false };
        let image = self.log.wants_switch() || consensus.is_image_wanted();
        let free = self.log.is_idle() && !image && !consensus.is_due();
        let may = self.office.is_some_and(|o| o.begun && o.proposed.is_none());
        free && may && !consensus.is_handing_over()
    }

    /// Works on waiting inputs, and proposes the result.
    pub(super) fn propose(&mut self, now: Time, out: &mut Effects) {
        let commands = self.work(now, out);
        let consensus = self.consensus.as_mut().expect("asked before");
        if commands.is_empty() {
            return self.ask_for_the_new();
        }
        let index =
            consensus.propose(commands.into_data()).expect("it leads and hands nothing over");
        self.office.as_mut().expect("it leads").proposed = Some(index);
    }

    /// Asks the consensus to confirm that this MDM leads, for answers to orders that changed
    /// nothing: they are true only if it does.
    fn ask_for_the_new(&mut self) {
        let new = |a: &Answer| a.question == u64::MAX;
        if !self.answers.iter().any(new) {
            return;
        }
        self.questions.0 += 1;
        let question = match mutant::on(Mutant::MdmStaleAnswer) {
            true => 0,
            false => self.questions.0,
        };
        self.answers.iter_mut().filter(|a| new(a)).for_each(|a| a.question = question);
        self.consensus.as_mut().expect("it leads").confirm(self.questions.0);
    }

    /// Returns true if the first entry of its term is committed and none is in flight.
    pub(super) fn may_let_out(&self) -> bool {
        let early = mutant::on(Mutant::MdmAnswerEarly);
        self.office.is_some_and(|o| o.begun && (early || o.proposed.is_none()))
    }
}
