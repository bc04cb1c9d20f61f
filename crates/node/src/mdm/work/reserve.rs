//! Changes of reservations, which clients request for their hosts.
//!
//! Invariants:
//! - A change that takes access is answered when no device can serve by a map without it (rule R8).
//! - A change that comes again is not done again. Its answer waits for the fence as well: the first
//!   answer may have been lost before the fence was over. So does the answer to a change that finds
//!   everything done.
//! - What can't be answered now is not answered: the client asks again.

use super::Work;
use crate::mdm::answers::Answer;
use crate::mdm::fence::Fence;
use crate::mdm::links::Peer;
use base::mutant::{self, Mutant};
use base::{LinkId, VolumeId};
use mdm::command::{self, Command};
use mdm::state::State;
use wire::control::{Reserve, ReserveOutcome, Reserved};
use wire::message;

impl Work<'_> {
    /// Handles a client's request for a change.
    pub(super) fn reserve(&mut self, link: LinkId, m: Reserve) {
        let Peer::Sdc(sdc, life) = self.links.open(link).peer else { return };
        let lives = self.state().sdcs.get(&sdc).is_some_and(|s| s.incarnation == life);
        if self.state().recovery.open || !lives {
            return; // a heartbeat tells a client that its incarnation is over
        }
        let (id, number) = (VolumeId(m.volume), m.number);
        let before = (generation(self.state(), id), self.state().version);
        let command = Command::Reserve(command::Reserve {
            volume: m.volume,
            sdc: sdc.0,
            incarnation: life.0,
            number,
            who: m.who,
            change: m.change,
            notes_losses: true,
        });
        let (outcome, changed) = match self.state().change(command) {
            Err(_) => (Some(ReserveOutcome::NoVolume), false),
            Ok(change) => {
                let changed = self.make(change);
                let volume = self.state().volumes.get(&id);
                (volume.and_then(|v| v.asked(sdc, life.0, number)), changed)
            }
        };
        // A later change of the client was executed, so the client waits for no answer to this one.
        let Some(outcome) = outcome else { return };
        let state = self.state();
        // What is done already may have been done by a change that the client has given up.
        let done = outcome == ReserveOutcome::Done && state.version == before.1;
        let fenced = generation(state, id) != before.0 || !changed || done;
        let fence = Fence::new(self.now, id, state.version);
        let (volume, map) = (m.volume, state.version.0);
        let reserved = Reserved { volume, number, outcome: outcome as i32, map };
        let frame = message::Reserved {};
        let (head, body) = self.links.peer_link(link).control(frame, &reserved, self.out.pool());
        let mut answer = Answer::to_client(changed, Answer::frame(link, head, body));
        answer.fence = Some(fence).filter(|_| fenced && !mutant::on(Mutant::ReserveBlindly));
        self.answers.push(answer);
    }
}

fn generation(state: &State, volume: VolumeId) -> Option<u32> {
    state.volumes.get(&volume).map(|v| v.generation)
}
