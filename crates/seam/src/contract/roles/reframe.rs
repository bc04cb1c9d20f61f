//! Roles that change how the frames of a link are cut.

use super::Role;
use crate::contract::probe::Stage;
use crate::effect::Effect;
use crate::event::Event;
use alloc::format;
use alloc::string::String;

/// Lengths of the bodies, by round.
const SIZES: [usize; 5] = [0, 1, 100, 4096, 70_000];

/// Sends one frame in each mode, and waits for the answer before the next one.
pub(in crate::contract) struct Asker {
    peer: usize,
    rounds: u32,
    answered: u32,
}

impl Asker {
    pub(in crate::contract) fn new(peer: usize, rounds: u32) -> Asker {
        Asker { peer, rounds, answered: 0 }
    }
}

impl Role for Asker {
    fn start(&mut self, stage: &mut Stage<'_>) {
        stage.dial(1, self.peer);
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        let link = match event {
            Event::Tick => return,
            Event::LinkUp { link, .. } => link,
            Event::Frame { link, head, body } => {
                stage.verify(link, self.answered, head, &body);
                self.answered += 1;
                link
            }
            other => return stage.check(false, || format!("unexpected: {other:?}")),
        };
        if self.answered < self.rounds {
            let (round, mode) = (self.answered, self.answered % 256);
            stage.send_in(mode as u8, link, round, SIZES[round as usize % SIZES.len()]);
        }
    }

    fn is_done(&self) -> bool {
        self.answered == self.rounds
    }

    fn status(&self) -> String {
        format!("{} of {} answers", self.answered, self.rounds)
    }
}

/// Expects the frames of an [`Asker`], and takes the next mode before each answer.
pub(in crate::contract) struct Answerer {
    rounds: u32,
    received: u32,
}

impl Answerer {
    pub(in crate::contract) fn new(rounds: u32) -> Answerer {
        Answerer { rounds, received: 0 }
    }
}

impl Role for Answerer {
    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::Tick | Event::LinkUp { .. } => {}
            Event::Frame { link, head, body } => {
                stage.verify(link, self.received, head, &body);
                self.received += 1;
                stage.out.push(Effect::Reframe { link, mode: self.received % 256 });
                stage.send(link, self.received - 1, 10);
            }
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.received == self.rounds
    }

    fn status(&self) -> String {
        format!("{} of {} frames", self.received, self.rounds)
    }
}
