//! How this MDM begins to lead, leads, and stops. Its leadership begins when the first entry of its
//! term is committed. It ends when the consensus says so, whatever is in flight then.

use super::answers::{Answer, Progress};
use super::journal::Applied;
use super::links::Peer;
use super::watch::Watch;
use super::work::Work;
use super::{Mdm, Stop};
use crate::link::send_answer;
use alloc::format;
use alloc::string::String;
use base::{DeviceId, Incarnation, LinkId, Time};
use consensus::Output;
use mdm::entry::Commands;
use seam::{Effects, Note};
use wire::control::{AdminError, AdminReply};
use wire::message;

impl Mdm {
    /// Does what the consensus asks for.
    pub(super) fn advance(&mut self, out: &mut Effects) {
        loop {
            self.follow_role(out);
            let Some(turn) = self.journal.turn() else { return };
            if let Err(what) = self.take_turn(turn, out) {
                // The MDM stops before it applies later entries and before it sends anything: its
                // state differs from that of the others.
                let why = format!(
                    "the leading MDM has sent something that this build doesn't know ({what}): update this MDM"
                );
                self.fail(why, out);
            }
        }
    }

    /// Applies and sends what the consensus hands out. An error says which part of an entry this
    /// build does not know.
    fn take_turn(&mut self, turn: Output, out: &mut Effects) -> Result<(), String> {
        if let Some(data) = turn.restored {
            self.journal.restore(&data)?;
        }
        for committed in turn.committed {
            let (index, term) = (committed.index, committed.term);
            match self.journal.apply(committed)? {
                Applied::Begun => self.form(out),
                Applied::Own => self.answers.committed(),
                Applied::Other => {}
            }
            out.note(Note::Decided { index, term, chain: self.journal.chain() });
        }
        self.answers.confirmed(turn.confirmed);
        self.peers.send(turn.send, &mut self.journal, out);
        Ok(())
    }

    /// Starts or ends the leadership, as the consensus says.
    fn follow_role(&mut self, out: &mut Effects) {
        if self.journal.has_lost_lead() {
            self.resign(out);
        }
        if let Some(term) = self.journal.take_lead() {
            out.note(Note::Leading { term });
        }
        if self.journal.see_leader() {
            self.settle_hellos(out);
        }
    }

    /// Begins to serve as leader.
    fn begin(&mut self, now: Time, out: &mut Effects) {
        self.reports.begin(now, self.config.limits.suspect_after * 5);
        self.life = Incarnation(out.prng().next_u64() | 1);
        self.answers.replaced(self.journal.state().version);
        self.watch.begin(now, self.journal.state(), &mut self.dials, out);
    }

    /// Ends the leadership: forgets what was in flight and all that this MDM has heard, and directs
    /// all peers to the new leader.
    fn resign(&mut self, out: &mut Effects) {
        if !self.journal.leads() {
            return;
        }
        out.note(Note::Resigned);
        self.journal.resign();
        self.inputs.end();
        self.answers.take();
        self.watch = Watch::new(&self.config.limits);
        self.reports.clear();
        self.links.end_sessions();
        let guests = self
            .links
            .which(|l| !matches!(l.peer, Peer::Mdm(_) | Peer::Stranger) || l.hello.is_some());
        let why = self.journal.not_leader();
        guests.into_iter().for_each(|link| self.refuse(link, &why, out));
    }

    /// Works on the waiting inputs, and proposes the result.
    pub(super) fn propose(&mut self, now: Time, out: &mut Effects) {
        let work = Work {
            now,
            config: &self.config,
            journal: &mut self.journal,
            links: &mut self.links,
            watch: &mut self.watch,
            answers: &mut self.answers,
            reports: &mut self.reports,
            refused_servers: &mut self.refused_servers,
            inputs: &mut self.inputs,
            dials: &mut self.dials,
            batch: Commands::default(),
            out,
        };
        let commands = work.run();
        if !commands.is_empty() {
            self.journal.propose(commands);
        } else if let Some(question) = self.answers.ask() {
            self.journal.confirm(question);
        }
    }

    /// Sends what waited for commitment, if no entry is in flight.
    pub(super) fn send_committed(&mut self, now: Time, out: &mut Effects) {
        self.answers.rest();
        if self.failed.is_some() || !self.journal.may_send_committed() {
            return;
        }
        if !self.watch.serves() {
            if self.state().cluster.0 == 0 {
                return;
            }
            self.begin(now, out);
            self.settle_hellos(out);
        }
        let news = self.maps.note(self.journal.state(), out);
        let (state, grace) = (self.journal.state(), self.config.limits.grace);
        let counts = |id| self.journal.counts(id);
        for answer in self.answers.take_due(now, (state, &self.links, grace), counts) {
            self.send_answer(answer, out);
        }
        let state = self.journal.state();
        self.maps.hand_out(state, &mut self.links, out);
        if news {
            self.maps.tell_volumes(state, &mut self.links, out);
        }
        self.journal.hand_over();
    }

    fn send_answer(&mut self, answer: Answer, out: &mut Effects) {
        let Answer { link, order, refusal, fence, head, body, .. } = answer;
        let late = fence.and_then(|fence| fence.unconfirmed(self.journal.state(), &self.links));
        match (late, order) {
            (Some(device), Some(op)) => return self.answer_late(link, op, device, out),
            (Some(_), None) => return, // it is asked again
            (None, _) => {}
        }
        match refusal {
            _ if !self.links.has(link) => {}
            Some(why) => self.refuse(link, &why, out),
            None => out.send(link, head, body),
        }
    }

    fn answer_late(&self, link: LinkId, op: u64, device: DeviceId, out: &mut Effects) {
        if !self.links.has(link) {
            return;
        }
        let state = self.state();
        let server = state.devices.get(&device).and_then(|d| state.servers.get(&d.sds));
        let server = server.map_or("?", |s| &s.name);
        let text = format!(
            "it is done, but {device} of server `{server}` has not confirmed it: until it hears from an MDM, or is \
             stopped, it may serve those that were unmapped. Ask again when `gabion status` shows it as up"
        );
        self.answer_error(link, op, AdminError::Unconfirmed, text, out);
    }

    fn answer_error(
        &self,
        link: LinkId,
        op: u64,
        error: AdminError,
        text: String,
        out: &mut Effects,
    ) {
        let (error, applied, term) = (error as i32, self.state().index, self.journal.term());
        let reply = AdminReply { error, text, applied, term, ..AdminReply::default() };
        send_answer(self.links.peer_link(link), message::AdminReply { op }, &reply, out);
    }

    /// Stops this MDM: nothing changes any more. If other MDMs vote, they continue without it.
    pub(super) fn fail(&mut self, why: String, out: &mut Effects) {
        if self.failed.is_some() {
            return;
        }
        let alone = self.journal.stop();
        self.answer_orders(&why, alone, out);
        self.failed = Some(Stop { why, alone });
        self.watch.stop();
        if !alone {
            self.resign(out);
        }
        self.journal.leave();
        self.settle_hellos(out);
    }

    /// Answers the orders whose change is proposed or committed. If no other MDM can lead, it also
    /// answers all other orders with the reason why this one stops. Otherwise a refusal directs the
    /// senders of those to the new leader.
    fn answer_orders(&mut self, why: &str, alone: bool, out: &mut Effects) {
        let unsure = match alone {
            true => format!("{why}. After that it may have done this: look before you repeat it"),
            // The other MDMs may have the entry with the order.
            false => format!(
                "{why}. If another MDM leads now, it may have done this: look before you repeat it"
            ),
        };
        let waiting = self.answers.take();
        for answer in waiting.into_iter().filter(|a| self.links.has(a.link)) {
            let (link, Some(op)) = (answer.link, answer.order) else { continue };
            match answer.progress {
                Progress::None if alone => {
                    self.answer_error(link, op, AdminError::Log, why.into(), out);
                }
                Progress::None => {}
                Progress::Proposed => {
                    self.answer_error(link, op, AdminError::Log, unsure.clone(), out);
                }
                Progress::Committed if answer.fence.is_none() && answer.gone.is_none() => {
                    out.send(link, answer.head, answer.body);
                }
                Progress::Committed => {
                    let text = format!(
                        "it is done, but not every process that has to know has confirmed it, and this MDM \
                         has stopped: {why}"
                    );
                    self.answer_error(link, op, AdminError::Unconfirmed, text, out);
                }
            }
        }
        for (link, op) in self.inputs.end() {
            if alone && self.links.has(link) {
                self.answer_error(link, op, AdminError::Log, why.into(), out);
            }
        }
    }
}
