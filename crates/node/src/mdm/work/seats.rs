//! Seats: gateways ask for them, and the leader moves those whose gateway is gone.
//!
//! Invariants:
//! - The answer to a gateway waits until no device can serve by a map without its seats (rule R19).
//!   That is also so if the gateway had them before: nobody knows whether an earlier answer was
//!   sent when the fence was over.
//! - What can't be answered now is not answered: the gateway asks again.

use super::Work;
use crate::mdm::answers::Answer;
use crate::mdm::fence::Fence;
use crate::mdm::links::Peer;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{LinkId, SdcId, VolumeId};
use mdm::command::Command;
use wire::control::{SeatWish, SeatsTaken, TakeSeats};
use wire::message;

impl Work<'_> {
    /// Gives a gateway the seats that it asks for and that no other one has, and confirms them.
    pub(super) fn take_seats(&mut self, link: LinkId, m: &TakeSeats) {
        let Peer::Sdc(sdc, life) = self.links.open(link).peer else { return };
        let lives = self.state().sdcs.get(&sdc).is_some_and(|s| s.incarnation == life);
        if self.state().recovery.open || !lives {
            return; // a heartbeat tells a client that its incarnation is over
        }
        self.watch.seating.asked(self.now, sdc, &m.seats);
        let (limits, wishes) = (&self.config.limits, (sdc, &m.seats[..]));
        let seats = self.watch.seating.wished(self.now, self.state(), wishes, limits);
        let changed = !seats.changes.is_empty() && self.execute(Command::Seat(seats));
        if changed {
            self.watch.seating.look(self.now);
        }
        let mut volumes: Vec<u32> = m.seats.iter().map(|wish| wish.volume).collect();
        volumes.sort_unstable();
        volumes.dedup();
        volumes.into_iter().for_each(|volume| self.answer_seats((link, sdc), m, volume, changed));
    }

    /// Answers for the seats of one volume. Each volume has a fence of its own: one whose device is
    /// away keeps no other one waiting.
    fn answer_seats(
        &mut self,
        (link, sdc): (LinkId, SdcId),
        m: &TakeSeats,
        volume: u32,
        changed: bool,
    ) {
        let wishes = m.seats.iter().filter(|wish| wish.volume == volume);
        let since: Vec<u32> = wishes.map(|wish| self.since(sdc, wish)).collect();
        let map = self.state().version;
        let fence = Fence::new(self.now, VolumeId(volume), map);
        let fences = since.iter().any(|since| *since > 0) && !mutant::on(Mutant::SeatBlindly);
        let taken = SeatsTaken { number: m.number, map: map.0, since, volume };
        let frame = message::SeatsTaken {};
        let (head, body) = self.links.peer_link(link).control(frame, &taken, self.out.pool());
        let mut answer = Answer::to_client(changed, Answer::frame(link, head, body));
        answer.fence = Some(fence).filter(|_| fences);
        self.answers.push(answer);
    }

    /// Returns the generation at which the gateway got a seat; 0 if it does not have it.
    fn since(&self, sdc: SdcId, wish: &SeatWish) -> u32 {
        let volume = self.state().volumes.get(&VolumeId(wish.volume));
        let seat = volume.and_then(|volume| volume.seats.get(&wish.host));
        seat.filter(|seat| seat.sdc == sdc).map_or(0, |seat| seat.since)
    }

    /// Moves the seats whose gateway can't serve the host any more.
    pub(super) fn move_seats(&mut self) {
        let limits = &self.config.limits;
        if let Some(seats) = self.watch.seating.moves(self.now, self.journal.state(), limits) {
            self.execute(Command::Seat(seats));
        }
    }
}
