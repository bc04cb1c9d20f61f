//! How an MDM continues, by an operator's order, when most of the others are lost for good
//! ([`mdm::recovery`] has the rules).
//!
//! The order goes to an MDM that does not lead, on a link whose hello says so
//! ([`wire::control::Hello::direct`]). It is refused while a majority could answer. Then this MDM
//! writes an image of which it is the only member and which records the order, and starts with
//! that. The others no longer belong to it: any of them that comes back is refused, and ends.

use super::outlet::{Answer, Progress};
use super::peers::Peers;
use super::{Mdm, Peer};
use crate::link::send_answer;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::{DeviceId, LinkId, MapVersion, Time};
use consensus::{Base, HardState, Image, Membership};
use mdm::command::Command;
use mdm::entry;
use mdm::members::Member;
use mdm::recovery;
use mdm::{Refused, State};
use seam::{Effect, Effects, Note};
use wire::control::{AdminError, AdminReply, Ask, ObjectKind, RecoverMdm, Report};
use wire::{PeerLink, message};

/// Interval at which the reports of devices are evaluated.
const EVERY: base::Duration = base::Duration::from_millis(200);

impl Mdm {
    /// Handles an order at an MDM that does not serve: starts a recovery, or refuses the order.
    pub(super) fn order_here(
        &mut self,
        link: LinkId,
        op: u64,
        ask: Option<Ask>,
        out: &mut Effects,
    ) {
        let begins = |m: &RecoverMdm| !self.ready && !m.finish && m.delete.is_empty();
        let Some(Ask::RecoverMdm(order)) =
            ask.filter(|a| matches!(a, Ask::RecoverMdm(m) if begins(m)))
        else {
            let why = self.not_leader();
            return self.refuse(link, &why, out);
        };
        let link = self.peer_link(link);
        let frame = message::AdminReply { op };
        match self.recover(&order, out) {
            Ok(()) => {
                out.note(Note::Recovering { number: self.state.recovery.number });
                let (head, body) = link.control(frame, &AdminReply::default(), out.pool());
                let answer = Answer::frame(link.id, head, body);
                let progress = Progress::Proposed;
                self.answers.push(Answer { order: Some(op), progress, ..answer });
            }
            Err(text) => {
                let error = AdminError::Other as i32;
                let reply = AdminReply { error, text, ..AdminReply::default() };
                send_answer(link, frame, &reply, out);
            }
        }
    }

    /// Starts as the only MDM, as soon as that is durable.
    fn recover(&mut self, order: &RecoverMdm, out: &mut Effects) -> Result<(), String> {
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
        self.refuse_with_majority(me)?;
        if !self.log.is_idle() || self.beginning.is_some() {
            return Err(String::from("its log is being written: ask again"));
        }
        let mut state = self.with_undecided(consensus.undecided())?;
        let member = state.members.list.get(&(me as u32));
        let member = Member {
            name: member.map_or_else(|| self.config.name.clone(), |m| m.name.clone()),
            address: self.config.address.to_string(),
            tie_breaker: false,
        };
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
        self.leave_all(out);
        self.consensus = None;
        self.state = state;
        self.begin_with(Image { me, hard, base, entries: Vec::new() });
        Ok(())
    }

    /// Returns the state with all entries of this MDM's log, including those that are not known to
    /// be decided: they may have been.
    fn with_undecided(&self, entries: Vec<Vec<u8>>) -> Result<State, String> {
        let mut state = self.state.clone();
        for data in entries {
            entry::apply(&mut state, &data, self.level_max()).map_err(|what| {
                format!("its log holds an entry that this build doesn't know ({what}): update it")
            })?;
        }
        Ok(state)
    }

    fn refuse_with_majority(&self, me: u64) -> Result<(), String> {
        let Some(consensus) = &self.consensus else { return Ok(()) };
        let voters = &consensus.membership().voters;
        let there = |id: &&u64| **id == me || self.peers.is_up(**id as u32);
        let up = voters.iter().filter(there).count();
        let leader = consensus.role().leader;
        if leader != 0 || 2 * up > voters.len() {
            return Err(format!(
                "{up} of {} MDMs work, or one of them leads: wait until they have elected one, and use \
                 `gabion mdm remove` for those that are lost",
                voters.len()
            ));
        }
        Ok(())
    }

    /// Closes all links except those of command lines: their peers were welcomed before this MDM
    /// became the only one.
    fn leave_all(&mut self, out: &mut Effects) {
        let others = |(link, l): (&LinkId, &super::Link)| {
            (!matches!(l.peer, Peer::Guest(wire::control::Role::Admin))).then_some(*link)
        };
        let others: Vec<LinkId> = self.links.iter().filter_map(others).collect();
        for link in others {
            self.links.remove(&link);
            out.push(Effect::Close { link });
        }
        for link in self.peers.all_links() {
            out.push(Effect::Close { link });
        }
        self.peers = Peers::default();
        self.office = None;
    }

    /// Adds a part of a device's report. Returns false if it names more than there can be.
    pub(super) fn report(&mut self, link: LinkId, part: Report) -> bool {
        match self.links.get_mut(&link).filter(|_| self.state.wants_reports()) {
            Some(link) => link.word.get_or_insert_default().add(part),
            None => true,
        }
    }

    /// Takes the report of a device that has registered.
    pub(super) fn heed(&mut self, device: DeviceId, link: LinkId) {
        let word = self.links.get_mut(&link).and_then(|l| l.word.take());
        self.nothing_follows = None;
        match word {
            Some(word) => self.state.heed(&mut self.words, device, word),
            None => drop(self.words.remove(&device)),
        }
    }

    /// Returns when the reports are evaluated next.
    pub(super) fn recovery_wake(&self) -> Option<Time> {
        (self.state.recovery.open && self.may_propose()).then_some(self.recovery_due.0)
    }

    /// Returns true while devices that no report names may still register.
    pub(super) fn is_patient(&self, now: Time) -> bool {
        now < self.recovery_due.1
    }

    /// Returns the command that follows from the reports, if it is time to evaluate them.
    pub(super) fn reconciled(&mut self, now: Time, out: &mut Effects) -> Option<Command> {
        // Before this MDM serves as leader, no device can have reported.
        if !self.ready || self.recovery_due.0 > now {
            return None;
        }
        self.recovery_due.0 = now + EVERY;
        if !self.state.wants_reports() {
            self.words.clear();
            return None;
        }
        let (patient, at) = (self.is_patient(now), self.state.index);
        if self.nothing_follows == Some((at, patient)) {
            return None;
        }
        let Some(command) = recovery::plan(&self.state, &self.words, patient) else {
            self.nothing_follows = Some((at, patient));
            return None;
        };
        if let Command::Reconcile(c) = &command {
            out.note(match c.close {
                true => Note::Recovered { number: self.state.recovery.number },
                false => Note::Reconciled { groups: c.groups.len() as u32 },
            });
            if !c.close {
                self.recovery_due.0 = now; // there may be more commands
            }
        }
        Some(command)
    }

    /// Returns the result of an order that concerns a recovery (to end it with the reports so far,
    /// or to delete volumes that no device knows), or an error for an order that has to wait until
    /// it ends. `None`: the recovery does not concern the order.
    pub(super) fn while_recovering(
        &self,
        now: Time,
        ask: Option<&Ask>,
    ) -> Option<Result<Option<Command>, Refused>> {
        let open = self.state.recovery.open;
        match ask {
            Some(Ask::RecoverMdm(m)) if !m.delete.is_empty() => {
                Some(self.state.forget_command(m).map(Some))
            }
            Some(Ask::RecoverMdm(m)) if m.finish && open => {
                // Reports that just arrived come first: the next evaluation takes them in.
                let (state, words, patient) = (&self.state, &self.words, self.is_patient(now));
                let news = matches!(recovery::plan(state, words, patient),
                    Some(Command::Reconcile(c)) if !c.close);
                Some(match news {
                    true => Err(Refused::Recovering),
                    false => Ok(Some(recovery::close(state, words, patient))),
                })
            }
            Some(Ask::RecoverMdm(m)) if m.finish => Some(Err(Refused::NotRecovering)),
            Some(Ask::RecoverMdm(_)) => Some(Err(Refused::MajorityWorks)),
            Some(Ask::Status(_) | Ask::Backup(_) | Ask::Damage(_)) => None,
            // Devices that were added since then belong to such objects. Without the objects, they
            // could not register and report.
            Some(Ask::CreateObject(_)) => None,
            Some(Ask::Rename(m)) if is_home(m.kind()) => None,
            _ => open.then_some(Err(Refused::Recovering)),
        }
    }

    /// Answers a map request while there is no map to hand out: with a page that changes nothing.
    pub(super) fn empty_page(link: PeerLink, op: u64, out: &mut Effects) {
        let page = wire::control::MapPage { last: true, ..Default::default() };
        send_answer(link, message::MapPage { op, map: MapVersion(0) }, &page, out);
    }
}

/// Returns true if servers name such an object as the place of their devices.
fn is_home(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::Domain | ObjectKind::FaultSet | ObjectKind::Pool)
}
