//! The MDM as a node: an event comes in, a part decides, and effects go out.
//!
//! How a request takes effect: [`frames`] turns a frame into an input. [`watch`] turns a verdict
//! into one. `flush` turns [`inputs`] into commands against the newest state ([`work`]), and
//! proposes them as one entry ([`journal`]). Once the entry is committed, the MDM sends what
//! depended on it: [`answers`], map pages ([`maps`]), and welcomes ([`hellos`]).
//!
//! One of the cluster's MDMs leads ([`leading`]), and only the leader works on requests. The others
//! apply committed entries, and tell peers where the leader is. [`peers`]: how MDMs talk to each
//! other. [`links`]: the links that peers dialled. [`startup`]: from reading the log to joining the
//! consensus. [`moved`]: the question that a sole MDM asks first if its log names another address.
//! [`recovery`], [`reports`]: how one MDM continues when the others are lost.
//!
//! No part controls another: a part gets what it needs as arguments, and returns values or effects.
//! Each part has invariants of its own. The MDM as a whole has these:
//! - Nothing uncommitted leaves: between proposal and commit no answer and no page is sent.
//! - An MDM that stops leading forgets its proposals, and all that it has heard from devices and
//!   clients.
//! - After its log has failed, an MDM changes nothing any more. If it is the only voter, it answers
//!   orders with the error and refuses new servers and clients; connected ones continue with the
//!   map that they have. If other MDMs vote, too, it closes the links of connected ones as well,
//!   and refuses every hello.

mod answers;
mod config;
mod dials;
mod fence;
mod frames;
mod hellos;
mod inputs;
mod journal;
mod leading;
mod lengths;
mod links;
mod maps;
mod moved;
mod peers;
mod recovery;
mod refused_servers;
mod replaced;
mod reports;
mod startup;
mod verdicts;
mod watch;
mod work;

use crate::link::handshake::send_hello;
use crate::link::{self, hello};
use alloc::string::{String, ToString};
use base::{Incarnation, LinkId, Time};
use consensus::Consensus;
pub use mdm::log::{AREAS as LOG_AREAS, IMAGE_MAX as LOG_IMAGE_MAX, image_len as log_image_len};
use mdm::observed::Observed;
use mdm::state::State;
use seam::{BlockError, DialError, DialId, Effect, Effects, Event, Node, Note, Port, Strangers};
use wire::PeerFramer;
use wire::control::{BuildInfo, Role};

use answers::Answers;
pub use config::Config;
use dials::Dials;
use inputs::Inputs;
use journal::Journal;
pub use lengths::ListLengths;
use links::Links;
use maps::Maps;
use moved::Moved;
use peers::Peers;
use refused_servers::RefusedServers;
use reports::Reports;
use watch::Watch;

/// Why and how this MDM stopped.
#[derive(Debug)]
struct Stop {
    why: String,
    /// It was the only voter, so no other MDM can lead.
    alone: bool,
}

/// The MDM.
pub struct Mdm {
    config: Config,
    journal: Journal,
    peers: Peers,
    /// The question whether another MDM runs with the same log; `None` unless it is open.
    moved: Option<Moved>,
    links: Links,
    inputs: Inputs,
    answers: Answers,
    maps: Maps,
    watch: Watch,
    reports: Reports,
    refused_servers: RefusedServers,
    dials: Dials,
    /// This MDM's incarnation, drawn at random when it begins to serve.
    life: Incarnation,
    /// True if it was unknown at the last flush whether this MDM would lead.
    undecided: bool,
    failed: Option<Stop>,
}

impl Mdm {
    /// Creates an MDM, which first reads its log.
    pub fn new(config: Config) -> Mdm {
        let limits = &config.limits;
        Mdm {
            journal: Journal::new(limits.mdm_log, limits.mdm_tick, config.dialect.level_max),
            peers: Peers::default(),
            moved: None,
            links: Links::default(),
            inputs: Inputs::default(),
            answers: Answers::default(),
            maps: Maps::default(),
            watch: Watch::new(limits),
            reports: Reports::default(),
            refused_servers: RefusedServers::default(),
            dials: Dials::default(),
            life: Incarnation(0),
            undecided: true,
            failed: None,
            config,
        }
    }

    /// Returns what this MDM has heard from devices and clients.
    pub fn observed(&self) -> &Observed {
        self.watch.observed()
    }

    /// Returns the state, for oracles. If [`Mdm::is_settled`], all of it is committed.
    pub fn state(&self) -> &State {
        self.journal.state()
    }

    /// Returns the consensus, for oracles.
    pub fn consensus(&self) -> Option<&Consensus> {
        self.journal.consensus()
    }

    /// Returns true if the state contains only committed entries.
    pub fn is_decided(&self) -> bool {
        self.journal.consensus().is_some() && self.journal.is_decided()
    }

    /// Returns true if it serves.
    pub fn is_ready(&self) -> bool {
        self.watch.serves()
    }

    /// Returns true if it leads and nothing waits.
    pub fn is_settled(&self) -> bool {
        let idle = self.inputs.is_empty() && self.watch.is_idle();
        self.is_ready() && self.journal.is_settled() && idle
    }

    /// Returns true if every device that is up in the map has registered since this MDM began to
    /// serve, and its link is up.
    pub fn hears_all(&self) -> bool {
        let up = self.state().devices.iter().filter(|(_, d)| d.up);
        up.map(|(id, _)| *id).all(|id| self.links.has_device(id))
    }

    /// Returns why it does not serve (any more) and what to do. The process may end with this text.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_ref().map(|stop| &*stop.why)
    }

    /// Returns true if it cannot continue because the file system of its log is full.
    pub fn lacks_space(&self) -> bool {
        self.journal.lacks_space()
    }

    fn link_up(&mut self, now: Time, link: LinkId, dial: Option<DialId>, out: &mut Effects) {
        let Some(dial) = dial else {
            // The driver bounds the links of strangers.
            if let Some(old) = self.links.superfluous() {
                out.note(Note::Crowded);
                out.push(Effect::Close { link: old });
                self.forget(old, out);
            }
            return self.links.add(link);
        };
        if let Some(moved) = self.moved.as_mut().filter(|m| m.asks_by(dial)) {
            return moved.ask(link, &self.config, out);
        }
        match self.peers.dialled(dial) {
            Some((member, true)) => {
                let serves = self.watch.serves();
                let place = (&mut self.journal, &self.config, serves);
                self.peers.greet(now, (link, member), place, out);
            }
            Some((_, false)) => out.push(Effect::Close { link }),
            None => {
                // The dial has shown that a process listens there. That was its only purpose.
                self.watch.answered(now, dial);
                let config = &self.config;
                let mut hello =
                    hello(&config.dialect, self.state().cluster, Role::Mdm, &config.name);
                hello.incarnation = self.life.0;
                hello.address = config.address.to_string();
                // Before a recovery it may also have been a dial to another MDM.
                hello.build = Some(BuildInfo::of(&config.dialect));
                send_hello(link, &hello, out);
                out.push(Effect::Close { link });
            }
        }
    }

    fn link_down(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        if self.asks_on(link) {
            self.go_on(now, out);
        } else if self.peers.has(link) {
            self.peers.down(now, link, &mut self.journal, out);
        } else {
            self.forget(link, out);
        }
    }

    /// Drops the state of a link that is down or about to be closed.
    fn forget(&mut self, link: LinkId, out: &mut Effects) {
        let place = (&mut self.links, self.journal.state());
        self.watch.lost(link, place, &mut self.dials, out);
    }

    fn dial_failed(&mut self, now: Time, dial: DialId, why: DialError, out: &mut Effects) {
        if self.moved.as_ref().is_some_and(|m| m.asks_by(dial)) {
            return self.go_on(now, out);
        }
        match self.peers.dialled(dial) {
            Some((member, true)) => self.peers.lost(now, member, &mut self.journal, out),
            Some((_, false)) => {}
            None => {
                let place = (self.journal.state(), &self.links);
                self.watch.dial_failed(now, (dial, why), place, &mut self.inputs);
            }
        }
    }

    /// Keeps the links to the members, ticks the consensus if that is due, and watches devices.
    fn tick(&mut self, now: Time, out: &mut Effects) {
        let serves = self.watch.serves();
        if self.journal.consensus().is_some() {
            let place = (&self.config, &mut self.dials);
            self.peers.keep(now, &mut self.journal, place, out);
            self.journal.tick(now, serves);
        }
        if serves {
            let place = (&mut self.dials, &mut self.inputs);
            self.watch.tick(now, self.journal.state(), place, out);
        }
    }

    /// Returns when to tick the consensus, or to dial a member.
    fn tick_due(&self) -> Option<Time> {
        self.journal.consensus()?;
        Time::earliest(self.journal.tick_due(self.watch.serves()), self.peers.wake_at())
    }
}

impl Node for Mdm {
    type Framer = PeerFramer;

    fn framer(&mut self, _: Port) -> PeerFramer {
        PeerFramer::speaking(&self.config.dialect, self.config.limits.frame_body)
    }

    fn strangers(&self, _: Port) -> Option<Strangers> {
        Some(link::strangers(&self.config.limits))
    }

    fn on(&mut self, now: Time, event: Event<'_>, out: &mut Effects) {
        match event {
            Event::Tick => self.tick(now, out),
            Event::LinkUp { link, dial, .. } => self.link_up(now, link, dial, out),
            Event::LinkDown { link, .. } => self.link_down(now, link, out),
            Event::DialFailed { dial, why } => self.dial_failed(now, dial, why, out),
            Event::Frame { link, head, body } => self.frame(now, link, head, &body, out),
            Event::DiskDone { op, result } => self.disk_done(now, op, result, out),
            Event::Request { id, .. } => {
                out.push(Effect::Reply { id, result: Err(BlockError::NoSuchVolume) });
            }
            Event::Withdraw { .. } => {}
        }
    }

    fn flush(&mut self, now: Time, out: &mut Effects) {
        self.advance(out);
        self.peers.announce(&self.journal, &self.links, out);
        if self.journal.may_propose() {
            self.propose(now, out);
            self.advance(out);
        }
        // Answers the hellos that had to wait until it was known whether this MDM leads.
        let undecided = self.is_undecided();
        if core::mem::replace(&mut self.undecided, undecided) && !undecided {
            self.settle_hellos(out);
        }
        self.send_committed(now, out);
        self.journal.write(out);
    }

    fn wake_at(&self) -> Option<Time> {
        if self.journal.is_unread() {
            return Some(Time::ZERO); // nothing has begun yet
        }
        if !self.is_ready() {
            return self.tick_due();
        }
        let (free, open) = (self.journal.may_propose(), self.state().recovery.open);
        let reports = (open && free).then_some(self.reports.due());
        let own = Time::earliest(self.watch.wake_at(free && !open), reports);
        Time::earliest(Time::earliest(own, self.answers.wake_at()), self.tick_due())
    }
}
