//! How one MDM continues, by an operator's order, when most of the others are lost for good
//! ([`mdm::recovery`] has the rules).
//!
//! The order goes to an MDM that does not lead, on a link whose hello asks for this very MDM
//! ([`wire::control::Hello::direct`]). It is refused while a majority could answer. Otherwise this
//! MDM starts as the only one ([`Journal::go_on_alone`]). The others no longer belong to its
//! cluster: any that comes back is refused, and its process ends.
//!
//! [`Journal::go_on_alone`]: super::journal::Journal::go_on_alone

use super::Mdm;
use super::answers::Answer;
use super::links::Peer;
use super::peers::Peers;
use crate::link::send_answer;
use alloc::string::ToString;
use base::LinkId;
use mdm::members::Member;
use seam::{Effect, Effects, Note};
use wire::control::{AdminError, AdminReply, Ask, RecoverMdm, Refusal, Role};
use wire::message;

impl Mdm {
    /// Handles an order at an MDM that does not serve: starts a recovery, or refuses the order.
    pub(super) fn order_here(
        &mut self,
        link: LinkId,
        op: u64,
        ask: Option<Ask>,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let begins = |m: &RecoverMdm| !m.finish && m.delete.is_empty();
        let Some(Ask::RecoverMdm(order)) =
            ask.filter(|a| matches!(a, Ask::RecoverMdm(m) if begins(m)))
        else {
            return Err(self.journal.not_leader());
        };
        let own = Member {
            name: self.config.name.clone(),
            address: self.config.address.to_string(),
            tie_breaker: false,
        };
        let (link, frame) = (self.links.peer_link(link), message::AdminReply { op });
        match self.journal.go_on_alone(&order, own, |member| self.peers.is_up(member)) {
            Ok(()) => {
                self.leave_all(out);
                out.note(Note::Recovering { number: self.journal.state().recovery.number });
                let (head, body) = link.control(frame, &AdminReply::default(), out.pool());
                let answer = Answer::frame(link.id, head, body);
                self.answers.push(Answer::to_order(op, true, answer).unconfirmed());
            }
            Err(text) => {
                let error = AdminError::Other as i32;
                let reply = AdminReply { error, text, ..AdminReply::default() };
                send_answer(link, frame, &reply, out);
            }
        }
        Ok(())
    }

    /// Closes all links except those of command lines: their peers were welcomed before this MDM
    /// became the only one.
    fn leave_all(&mut self, out: &mut Effects) {
        for link in self.links.which(|l| l.peer != Peer::Guest(Role::Admin)) {
            self.links.remove(link);
            out.push(Effect::Close { link });
        }
        for link in self.peers.all_links() {
            out.push(Effect::Close { link });
        }
        self.peers = Peers::default();
    }
}
