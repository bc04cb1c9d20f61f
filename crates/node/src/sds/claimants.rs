//! MDMs that say that they lead, and ask whether somebody listens here: *claimants*. Anybody can say that. So a hello
//! alone changes nothing: the claimant is dialled beside the MDM that is followed, and takes its place with a welcome.
//!
//! Invariants:
//! - The link to the MDM that is followed stays until another one has welcomed this server.
//! - An address that neither the configuration nor the map names is dialled only when the MDM that is followed has said
//!   nothing for `suspect_after`, and it was asked. As soon as it says something, such a claimant is forgotten.
//! - There is one try per address, and there are at most [`STRANGE`] of addresses that nobody has named.

use super::{Sds, Who};
use crate::links::send_control;
use crate::mapview::is_of_before;
use base::{Incarnation, LinkId, Time};
use core::net::SocketAddr;
use prost::Message;
use seam::{Buf, DialId, Effect, Effects, Port};
use wire::control::{Hello, Role, Welcome};
use wire::{Header, Kind};

/// Claimants at addresses that nobody has named: the oldest goes when one more comes.
const STRANGE: usize = 4;

/// See the file's head.
pub(super) struct Claimant {
    to: SocketAddr,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Is dialled at this time.
    Waits(Time),
    Dialled(DialId),
    /// The hello is out; until this time an answer counts.
    Greeted(LinkId, Time),
}

impl Claimant {
    fn is_on(&self, link: LinkId) -> bool {
        matches!(self.stage, Stage::Greeted(of, _) if of == link)
    }

    /// When there is something to do.
    pub(super) fn wake_at(&self) -> Option<Time> {
        match self.stage {
            Stage::Waits(at) | Stage::Greeted(_, at) => Some(at),
            Stage::Dialled(_) => None,
        }
    }
}

impl Sds {
    /// An MDM says that it leads. If our link leads to another one, whose host may have lost power, it leads nowhere,
    /// and TCP may try it for minutes.
    pub(super) fn mdm_asks(&mut self, now: Time, hello: &Hello, out: &mut Effects) {
        let ours = self.cluster.0 == 0 || hello.cluster == self.cluster.0;
        let followed = self.mdm_life == Incarnation(hello.incarnation);
        let Some(to) = hello.address.parse().ok().filter(|_| ours && !followed) else { return };
        if self.claimants.iter().any(|c| c.to == to) {
            return;
        }
        if self.mdm.dialer().address() == to && self.mdm.dialer().is_down() {
            return self.mdm.dialer_mut().hurry();
        }
        let at = match self.mdm.knows(to) {
            true => now,
            false => self.doubt_mdm(now, out),
        };
        self.claimants.push(Claimant { to, stage: Stage::Waits(at) });
        let strange = |c: &&Claimant| !self.mdm.knows(c.to);
        if self.claimants.iter().filter(strange).count() > STRANGE {
            let oldest = self.claimants.iter().position(|c| strange(&c)).expect("just counted");
            self.forget_claimant(oldest, out);
        }
    }

    /// Asks the MDM that is followed for a sign of life: from when on it counts as silent.
    fn doubt_mdm(&mut self, now: Time, out: &mut Effects) -> Time {
        let patience = self.config.limits.suspect_after;
        let Some(link) = self.mdm.dialer().up() else {
            return self.mdm_heard.map_or(now, |at| now.max(at + patience));
        };
        let asked = self.claimants.iter().any(|c| !self.mdm.knows(c.to));
        if !asked && self.mirror.is_some() {
            self.pull(link, 0, out);
        }
        now + patience
    }

    /// The MDM that is followed has said something: it needs no successor that nobody has named.
    pub(super) fn mdm_lives(&mut self, now: Time, out: &mut Effects) {
        self.mdm_heard = Some(now);
        while let Some(strange) = self.claimants.iter().position(|c| !self.mdm.knows(c.to)) {
            self.forget_claimant(strange, out);
        }
    }

    fn forget_claimant(&mut self, at: usize, out: &mut Effects) {
        if let Stage::Greeted(link, _) = self.claimants.remove(at).stage {
            self.links.remove(&link);
            out.push(Effect::Close { link });
        }
    }

    /// Dials those that are due, and gives up those that don't answer.
    pub(super) fn try_claimants(&mut self, now: Time, out: &mut Effects) {
        if !self.may_register() {
            return;
        }
        let due = |c: &Claimant| c.wake_at().is_some_and(|at| at <= now);
        while let Some(at) = self.claimants.iter().position(due) {
            if let Stage::Greeted(..) = self.claimants[at].stage {
                self.forget_claimant(at, out);
                continue;
            }
            self.next_dial += 1;
            let (dial, to) = (DialId(self.next_dial), self.claimants[at].to);
            self.claimants[at].stage = Stage::Dialled(dial);
            out.push(Effect::Dial { dial, to, port: Port::Peer });
        }
    }

    /// A dial has ended in this link: true when it was one to a claimant, which is greeted.
    pub(super) fn greet_claimant(
        &mut self,
        now: Time,
        link: LinkId,
        dial: DialId,
        out: &mut Effects,
    ) -> bool {
        let until = now + self.config.limits.hello_within;
        let dialled = self.claimants.iter_mut().find(|c| c.stage == Stage::Dialled(dial));
        let Some(claimant) = dialled else { return false };
        claimant.stage = Stage::Greeted(link, until);
        self.links.insert(link, Who::Claimant);
        send_control(link, Header::new(Kind::Hello), &self.hello_to_mdm(), out);
        true
    }

    /// A dial has failed.
    pub(super) fn claimant_failed(&mut self, dial: DialId) {
        self.claimants.retain(|c| c.stage != Stage::Dialled(dial));
    }

    /// The link to a claimant is gone.
    pub(super) fn claimant_lost(&mut self, link: LinkId) {
        self.claimants.retain(|c| !c.is_on(link));
    }

    /// A frame from a claimant: only a welcome of another MDM than the one that is followed counts.
    pub(super) fn claimant_frame(
        &mut self,
        now: Time,
        link: LinkId,
        h: &Header,
        body: &Buf,
        out: &mut Effects,
    ) {
        let welcome = Welcome::decode(&body[..]).ok().filter(|_| h.kind() == Some(Kind::Welcome));
        let welcome = welcome.filter(|w| {
            let ours = self.cluster.0 == 0 || w.cluster == self.cluster.0;
            let followed = self.mdm_life == Incarnation(w.incarnation);
            let news = !followed || self.mdm.dialer().up().is_none();
            ours && news && w.role() == Role::Mdm && !is_of_before(self.map.version, w.map)
        });
        let claimant = self.claimants.iter().find(|c| c.is_on(link));
        let (Some(welcome), Some(to)) = (welcome, claimant.map(|c| c.to)) else {
            return self.drop_link(now, link, out);
        };
        self.claimant_lost(link);
        if let Some(old) = self.mdm.dialer().link() {
            self.drop_link(now, old, out);
        }
        self.dials.retain(|_, whom| whom.is_some()); // a dial to an MDM isn't needed any more
        self.mdm.adopt(now, to, link, out.prng());
        self.links.insert(link, Who::Mdm);
        self.mdm_lives(now, out);
        self.welcomed_by_mdm(now, link, &welcome, out);
    }
}
