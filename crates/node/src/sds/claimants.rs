//! *Claimants*: MDMs that say that they lead, and dial this server to see whether it is alive.
//! Anyone can say that, so a hello alone changes nothing. This server dials the claimant, keeps its
//! link to the followed MDM, and changes over only after a welcome.
//!
//! Invariants:
//! - The link to the followed MDM stays until another MDM has welcomed this server.
//! - An address that neither the configuration nor the map names is dialled only if the followed
//!   MDM was asked for a sign of life, and has sent nothing for `suspect_after`. As soon as it
//!   sends something, such a claimant is dropped.
//! - There is one attempt per address, and there are at most [`STRANGE`] attempts at addresses that
//!   neither the configuration nor the map names.

use super::{PeerRole, Sds};
use crate::link::handshake::{Answer, Callee, send_hello};
use crate::mapview::is_of_before;
use crate::refusals::Reason;
use alloc::vec::Vec;
use base::{Incarnation, LinkId, Time};
use core::net::SocketAddr;
use seam::{Buf, DialId, Effect, Effects, Port};
use wire::control::Hello;
use wire::{Frame, Header};

/// Limit of claimants at unnamed addresses. One more replaces the oldest one.
pub(super) const STRANGE: usize = 4;

struct Claimant {
    to: SocketAddr,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is dialled at this time.
    Waits(Time),
    Dialled(DialId),
    /// Our hello was sent. An answer counts until this time.
    Greeted(LinkId, Time),
}

impl Claimant {
    fn is_on(&self, link: LinkId) -> bool {
        matches!(self.stage, Stage::Greeted(of, _) if of == link)
    }

    /// Returns when there is something to do.
    fn wake_at(&self) -> Option<Time> {
        match self.stage {
            Stage::Waits(at) | Stage::Greeted(_, at) => Some(at),
            Stage::Dialled(_) => None,
        }
    }
}

/// All claimants.
#[derive(Default)]
pub(super) struct Claimants(Vec<Claimant>);

impl Claimants {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns when there is something to do.
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.0.iter().filter_map(Claimant::wake_at).min()
    }

    /// Handles a dial that failed.
    pub(super) fn failed(&mut self, dial: DialId) {
        self.0.retain(|c| c.stage != Stage::Dialled(dial));
    }

    /// Removes the claimant at the end of this link, and returns its address.
    pub(super) fn take(&mut self, link: LinkId) -> Option<SocketAddr> {
        let at = self.0.iter().position(|c| c.is_on(link))?;
        Some(self.0.remove(at).to)
    }
}

impl Sds {
    /// Handles the hello of an MDM that says that it leads. If our link is to another MDM whose
    /// host has lost power, that link is dead, but TCP may retry for minutes.
    pub(super) fn mdm_asks(&mut self, now: Time, hello: &Hello, out: &mut Effects) {
        let ours = self.cluster.0 == 0 || hello.cluster == self.cluster.0;
        let followed = self.mdm.life == Incarnation(hello.incarnation);
        let Some(to) = hello.address.parse().ok().filter(|_| ours && !followed) else { return };
        if self.mdm.claimants.0.iter().any(|c| c.to == to) {
            return;
        }
        if self.mdm.finder.dialer().address() == to && self.mdm.finder.dialer().is_down() {
            return self.mdm.finder.dialer_mut().hurry();
        }
        let at = match self.mdm.finder.knows(to) {
            true => now,
            false => self.doubt_mdm(now, out),
        };
        self.mdm.claimants.0.push(Claimant { to, stage: Stage::Waits(at) });
        let strange = |c: &&Claimant| !self.mdm.finder.knows(c.to);
        if self.mdm.claimants.0.iter().filter(strange).count() > STRANGE {
            let oldest =
                self.mdm.claimants.0.iter().position(|c| strange(&c)).expect("just counted");
            self.forget_claimant(oldest, out);
        }
    }

    /// Asks the MDM that is followed for a sign of life. Returns the time from which it counts as
    /// silent.
    fn doubt_mdm(&mut self, now: Time, out: &mut Effects) -> Time {
        let patience = self.config.limits.suspect_after;
        let Some(link) = self.mdm.finder.dialer().up() else {
            return self.mdm.heard.map_or(now, |at| now.max(at + patience));
        };
        let asked = self.mdm.claimants.0.iter().any(|c| !self.mdm.finder.knows(c.to));
        if !asked && self.mirror.is_some() {
            self.pull(link, false, out);
        }
        now + patience
    }

    /// Records a sign of life of the MDM that is followed, and drops claimants at unnamed
    /// addresses.
    pub(super) fn mdm_lives(&mut self, now: Time, out: &mut Effects) {
        self.mdm.heard = Some(now);
        while let Some(strange) =
            self.mdm.claimants.0.iter().position(|c| !self.mdm.finder.knows(c.to))
        {
            self.forget_claimant(strange, out);
        }
    }

    fn forget_claimant(&mut self, at: usize, out: &mut Effects) {
        if let Stage::Greeted(link, _) = self.mdm.claimants.0.remove(at).stage {
            self.links.remove(&link);
            out.push(Effect::Close { link });
        }
    }

    /// Dials the claimants that are due, and drops those that do not answer.
    pub(super) fn try_claimants(&mut self, now: Time, out: &mut Effects) {
        if !self.may_register() {
            return;
        }
        let due = |c: &Claimant| c.wake_at().is_some_and(|at| at <= now);
        while let Some(at) = self.mdm.claimants.0.iter().position(due) {
            if let Stage::Greeted(..) = self.mdm.claimants.0[at].stage {
                self.forget_claimant(at, out);
                continue;
            }
            let (dial, to) = (DialId(self.next_dial), self.mdm.claimants.0[at].to);
            self.next_dial += 1;
            self.mdm.claimants.0[at].stage = Stage::Dialled(dial);
            out.push(Effect::Dial { dial, to, port: Port::Ours });
        }
    }

    /// Sends a hello if this dial was one to a claimant, and returns true then.
    pub(super) fn greet_claimant(
        &mut self,
        now: Time,
        link: LinkId,
        dial: DialId,
        out: &mut Effects,
    ) -> bool {
        let until = now + self.config.limits.hello_within;
        let dialled = self.mdm.claimants.0.iter_mut().find(|c| c.stage == Stage::Dialled(dial));
        let Some(claimant) = dialled else { return false };
        claimant.stage = Stage::Greeted(link, until);
        self.links.insert(link, PeerRole::Claimant);
        send_hello(link, &self.own_hello(), out);
        true
    }

    /// Handles a frame from a claimant. Only a welcome from an MDM other than the followed one
    /// counts.
    pub(super) fn claimant_frame(
        &mut self,
        now: Time,
        link: LinkId,
        h: &Header,
        body: &Buf,
        out: &mut Effects,
    ) -> Result<(), Reason> {
        const NO_CLAIM: &str = "an MDM that says that it leads does not welcome this server";
        let frame = Frame::try_from(h)?;
        let answer = Callee::Mdm.answer(&self.config.dialect, self.cluster, &frame, body);
        let Some(Answer::Welcome(welcomed)) = answer else { return Err(NO_CLAIM.into()) };
        let welcome = &welcomed.message;
        let followed = self.mdm.life == Incarnation(welcome.incarnation);
        let news = !followed || self.mdm.finder.dialer().up().is_none();
        if !news || is_of_before(self.map.version, welcome.map) {
            return Err(NO_CLAIM.into());
        }
        let to = self.mdm.claimants.take(link).ok_or(NO_CLAIM)?;
        if let Some(old) = self.mdm.finder.dialer().link() {
            self.drop_link(now, old, out);
        }
        self.mdm.finder.adopt(now, to, link, out.prng());
        self.links.insert(link, PeerRole::Mdm);
        self.mdm_lives(now, out);
        self.welcomed_by_mdm(link, &welcomed, now, out)
    }
}
