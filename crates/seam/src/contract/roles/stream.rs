//! Roles that send and receive many frames.

use super::Role;
use crate::contract::probe::{Stage, is_first};
use crate::effect::Effect;
use crate::event::Event;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use base::{LinkId, Prng, Time};
use core::time::Duration;

/// Sends a number of frames on each of its links, and expects as many from the other side.
pub(in crate::contract) struct Stream {
    links: usize,
    frames: u32,
    sizes: &'static [usize],
    dial: Option<(usize, u64)>,
    one_way: bool,
    overtaking: bool,
    flows: BTreeMap<LinkId, Flow>,
}

struct Flow {
    rng: Prng,
    sent: u32,
    received: u32,
    /// Numbers of the received frames that may overtake.
    first: BTreeSet<u32>,
}

/// One frame that may overtake is sent per this many others.
const EVERY: u32 = 5;

impl Stream {
    pub(in crate::contract) const SMALL: &'static [usize] = &[0, 0, 1, 32, 100, 200];
    pub(in crate::contract) const MEDIUM: &'static [usize] =
        &[0, 1, 512, 4096, 4097, 16384, 70_000];
    pub(in crate::contract) const BLOCKS: &'static [usize] = &[4096, 8192];
    pub(in crate::contract) const LARGE: &'static [usize] = &[100_000];
    pub(in crate::contract) const MIXED: &'static [usize] = &[
        0,
        0,
        1,
        2,
        17,
        100,
        511,
        512,
        513,
        4095,
        4096,
        4097,
        16383,
        16384,
        65536,
        100_000,
        262_144,
        1 << 20,
        (3 << 20) + 5,
    ];

    pub(in crate::contract) fn new(links: usize, frames: u32, sizes: &'static [usize]) -> Stream {
        let (one_way, overtaking) = (false, false);
        Stream { links, frames, sizes, dial: None, one_way, overtaking, flows: BTreeMap::new() }
    }

    pub(in crate::contract) fn dialing(self, peer: usize, times: u64) -> Stream {
        Stream { dial: Some((peer, times)), ..self }
    }

    pub(in crate::contract) fn one_way(self) -> Stream {
        Stream { one_way: true, ..self }
    }

    /// Adds frames that may overtake, in both directions.
    pub(in crate::contract) fn overtaking(self) -> Stream {
        Stream { overtaking: true, ..self }
    }

    fn wanted(&self) -> u32 {
        if self.one_way { 0 } else { self.frames }
    }

    fn wanted_first(&self) -> u32 {
        if self.overtaking { self.wanted().div_ceil(EVERY) } else { 0 }
    }

    fn is_sent(&self) -> bool {
        self.flows.values().all(|f| f.sent == self.frames)
    }
}

impl Role for Stream {
    fn start(&mut self, stage: &mut Stage<'_>) {
        let (peer, times) = self.dial.unwrap_or((0, 0));
        (0..times).for_each(|i| stage.dial(i, peer));
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::Tick => {}
            Event::LinkUp { link, .. } => {
                let rng = Prng::new(link.0 ^ 0x5eed);
                self.flows.insert(link, Flow { rng, sent: 0, received: 0, first: BTreeSet::new() });
            }
            Event::Frame { link, head, body } => {
                let (wanted, wanted_first) = (self.wanted(), self.wanted_first());
                let Some(flow) = self.flows.get_mut(&link) else { return };
                if is_first(head) {
                    let n = stage.verify_first(link, head, &body);
                    let new = n.is_some_and(|n| n < wanted_first && flow.first.insert(n));
                    return stage.check(new, || format!("{link}: frame {n:?} came unexpected"));
                }
                stage.verify(link, flow.received, head, &body);
                flow.received += 1;
                let received = flow.received;
                stage.check(received <= wanted, || {
                    format!("{link}: {received} frames, {wanted} were sent")
                });
            }
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    /// Sends a third of the frames at once, then a few per batch, so that sends and receives mix.
    fn flush(&mut self, stage: &mut Stage<'_>) {
        for (link, flow) in &mut self.flows {
            let some = if flow.sent == 0 { self.frames / 3 } else { 8 };
            for _ in 0..some.max(1).min(self.frames - flow.sent) {
                stage.send(*link, flow.sent, *flow.rng.pick(self.sizes));
                if self.overtaking && flow.sent.is_multiple_of(EVERY) {
                    stage.send_first(*link, flow.sent / EVERY);
                }
                flow.sent += 1;
            }
        }
    }

    fn wake_at(&self) -> Option<Time> {
        (!self.is_sent()).then_some(Time::ZERO)
    }

    fn is_done(&self) -> bool {
        let wanted = (self.wanted(), self.wanted_first());
        self.flows.len() == self.links
            && self.is_sent()
            && self.flows.values().all(|f| (f.received, f.first.len() as u32) == wanted)
    }

    fn status(&self) -> String {
        let sum = |f: fn(&Flow) -> u32| self.flows.values().map(f).sum::<u32>();
        let (sent, received) = (sum(|f| f.sent), sum(|f| f.received));
        format!("{} links, {sent} frames sent and {received} received", self.flows.len())
    }
}

/// Receives a stream and pauses in the middle; or pauses until the peer is gone.
pub(in crate::contract) struct Pauser {
    frames: u32,
    received: u32,
    link: Option<LinkId>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Reading,
    /// Paused. Frames that were already received may come until this time.
    Settling(Time),
    /// Paused. No frame may come until this time.
    Silent(Time),
    Resumed,
    /// Paused until the peer is gone.
    Forever,
    Gone,
}

/// Time for frames that were already received, and time in which no frame may come.
const SETTLE: Duration = Duration::from_millis(50);

impl Pauser {
    pub(in crate::contract) fn new(frames: u32) -> Pauser {
        Pauser { frames, received: 0, link: None, phase: Phase::Reading }
    }

    pub(in crate::contract) fn forever() -> Pauser {
        Pauser { frames: 0, received: 0, link: None, phase: Phase::Forever }
    }
}

impl Role for Pauser {
    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match (event, self.phase) {
            (Event::LinkUp { link, .. }, phase) => {
                self.link = Some(link);
                stage.out.push(Effect::Resume { link }); // has no effect
                if phase == Phase::Forever {
                    stage.out.push(Effect::Pause { link });
                }
            }
            (Event::Frame { link, head, body }, phase) => {
                stage.verify(link, self.received, head, &body);
                stage.check(!matches!(phase, Phase::Silent(_)), || {
                    "a frame on a paused link".into()
                });
                self.received += 1;
                if self.received == 10 && phase == Phase::Reading {
                    stage.out.push(Effect::Pause { link });
                    stage.out.push(Effect::Pause { link });
                    self.phase = Phase::Settling(stage.now + SETTLE);
                }
            }
            (Event::Tick, Phase::Settling(_)) => {
                let all = self.received == self.frames;
                stage.check(!all, || "everything came in spite of the pause: no proof".into());
                self.phase = Phase::Silent(stage.now + SETTLE);
            }
            (Event::Tick, Phase::Silent(_)) => {
                self.phase = Phase::Resumed;
                if let Some(link) = self.link {
                    stage.out.push(Effect::Resume { link });
                }
            }
            (Event::LinkDown { .. }, Phase::Forever) => self.phase = Phase::Gone,
            (Event::Tick, _) => {}
            (other, _) => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn wake_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Settling(t) | Phase::Silent(t) => Some(t),
            _ => None,
        }
    }

    fn is_done(&self) -> bool {
        self.phase == Phase::Gone || (self.phase == Phase::Resumed && self.received == self.frames)
    }

    fn status(&self) -> String {
        format!("{:?}, {} of {} frames received", self.phase, self.received, self.frames)
    }
}
