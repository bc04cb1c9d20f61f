//! Roles that test strangers: guests that send nothing or too much, and hosts that listen.

use super::Role;
use crate::contract::probe::{Stage, head};
use crate::effect::Effect;
use crate::event::{DownReason, Event};
use crate::node::Strangers;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use base::{LinkId, Time};
use core::time::Duration;

/// Strangers that a crowded host accepts.
const MOST: u32 = 4;
/// Bytes that a host allows in a body.
const BODY: u32 = 1000;
/// How long an impatient host waits for a first frame.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a patient host waits: longer than any scenario.
const LONG: Duration = Duration::from_secs(100);

/// Dials several links one after the other. Sends nothing on them; or one frame on the first and
/// the last one; or a longer body than the host allows.
pub(in crate::contract) struct Guest {
    peer: usize,
    links: u64,
    speaks: bool,
    wordy: bool,
    dialled: u64,
    /// Number of the dial of each link that is up.
    up: BTreeMap<LinkId, u64>,
    /// Links on which the host answered.
    answered: u32,
    /// Links that the host closed.
    closed: u64,
}

impl Guest {
    fn new(peer: usize, links: u64) -> Guest {
        Guest {
            peer,
            links,
            speaks: false,
            wordy: false,
            dialled: 0,
            up: BTreeMap::new(),
            answered: 0,
            closed: 0,
        }
    }

    /// Sends nothing at all.
    pub(in crate::contract) fn silent(peer: usize, links: u64) -> Guest {
        Guest::new(peer, links)
    }

    /// Sends a frame on the first link and on the last.
    pub(in crate::contract) fn crowding(peer: usize, links: u64) -> Guest {
        Guest { speaks: true, ..Guest::new(peer, links) }
    }

    /// Sends a longer body than its host allows.
    pub(in crate::contract) fn wordy(peer: usize) -> Guest {
        Guest { wordy: true, ..Guest::new(peer, 1) }
    }

    fn dial(&mut self, stage: &mut Stage<'_>) {
        if self.dialled < self.links {
            stage.dial(self.dialled, self.peer);
            self.dialled += 1;
        }
    }
}

impl Role for Guest {
    fn start(&mut self, stage: &mut Stage<'_>) {
        self.dial(stage);
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::LinkUp { link, dial: Some(dial), .. } => {
                self.up.insert(link, dial.0);
                let ends = [0, self.links - 1];
                if self.wordy {
                    // Only the head: the host must not wait for the rest.
                    let head = head(0, 0, BODY as usize + 1, stage.now);
                    stage.out.send(link, head, crate::Buf::EMPTY);
                } else if self.speaks && ends.contains(&dial.0) {
                    stage.send(link, 0, BODY as usize);
                    return; // dials again when this link is welcome
                }
                self.dial(stage);
            }
            Event::Frame { link, .. } => {
                let dial = self.up.get(&link).copied();
                stage.check(dial.is_some(), || format!("{link} answered, and is not up"));
                self.answered += 1;
                self.dial(stage);
            }
            Event::LinkDown { link, .. } => {
                let dial = self.up.remove(&link);
                let welcome = self.speaks && [Some(0), Some(self.links - 1)].contains(&dial);
                stage.check(!welcome, || format!("{link}, which was welcome, was closed"));
                self.closed += 1;
            }
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        match self.speaks {
            // Two links are welcome, and of the others as many are left as the host accepts.
            true => self.answered == 2 && self.closed + 2 + u64::from(MOST) >= self.links,
            false => self.closed == self.links,
        }
    }

    fn status(&self) -> String {
        format!("{} dialled, {} answered, {} closed", self.dialled, self.answered, self.closed)
    }
}

/// Listens with bounds on strangers. Welcomes and answers every link that sends a frame.
pub(in crate::contract) struct Host {
    bounds: Strangers,
    /// Number of links that the driver should close.
    goes: u64,
    why: DownReason,
    /// Links that are up, with the time at which they came up.
    up: BTreeMap<LinkId, Time>,
    welcome: BTreeSet<LinkId>,
    gone: u64,
}

impl Host {
    fn new(most: u32, patience: Duration, goes: u64, why: DownReason) -> Host {
        let bounds = Strangers { most, body: BODY, patience };
        let (up, welcome) = (BTreeMap::new(), BTreeSet::new());
        Host { bounds, goes, why, up, welcome, gone: 0 }
    }

    /// Accepts many strangers, but only for a short time.
    pub(in crate::contract) fn impatient(links: u64) -> Host {
        Host::new(100, PATIENCE, links, DownReason::Stranger)
    }

    /// Accepts few strangers, for a long time. The first and the last of `links` links are welcome.
    pub(in crate::contract) fn crowded(links: u64) -> Host {
        // The last link is a stranger, too, when it comes up.
        Host::new(MOST, LONG, links - 2 - u64::from(MOST - 1), DownReason::Stranger)
    }

    /// Accepts short bodies only.
    pub(in crate::contract) fn terse() -> Host {
        Host::new(100, LONG, 1, DownReason::Garbage)
    }
}

impl Role for Host {
    fn strangers(&self) -> Option<Strangers> {
        Some(self.bounds)
    }

    fn on(&mut self, event: Event<'_>, stage: &mut Stage<'_>) {
        match event {
            Event::LinkUp { link, .. } => {
                self.up.insert(link, stage.now);
                let strangers = self.up.len() - self.welcome.len();
                // The link that is closed to make room may go down a moment later.
                let most = self.bounds.most as usize + 1;
                stage.check(strangers <= most, || format!("{strangers} strangers at once"));
            }
            Event::Frame { link, head, body } => {
                stage.verify(link, 0, head, &body);
                stage.out.push(Effect::Welcome { link });
                stage.send(link, 0, 10);
                self.welcome.insert(link);
            }
            Event::LinkDown { link, why } => {
                let came = self.up.remove(&link);
                let (expected, known) = (self.why, self.welcome.contains(&link));
                stage.check(why == expected && !known, || format!("{link}: {why:?}"));
                let oldest = self.up.iter().find(|(l, _)| !self.welcome.contains(l));
                let (came, oldest) = (came.unwrap_or(Time::NEVER), oldest.map(|(_, at)| *at));
                let first = oldest.is_none_or(|at| came <= at);
                stage.check(first, || format!("{link} was not the oldest"));
                self.gone += 1;
            }
            other => stage.check(false, || format!("unexpected: {other:?}")),
        }
    }

    fn is_done(&self) -> bool {
        self.gone == self.goes
    }

    fn status(&self) -> String {
        format!("{} of {} strangers gone", self.gone, self.goes)
    }
}
