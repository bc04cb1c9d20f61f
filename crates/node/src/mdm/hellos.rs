//! Answers hellos of servers, clients, administrators and other MDMs.
//!
//! Invariants: no hello is answered before the log is read, nor while this MDM may be about to
//! lead. One hello per link is kept.

use super::links::Peer;
use super::{Mdm, work};
use crate::link::handshake::{check_hello, send_welcome};
use crate::link::{PeerId, welcome};
use crate::refusals::refusal;
use base::{LinkId, Time};
use mdm::controller::superseded;
use seam::{Effect, Effects, Note};
use wire::control::{Hello, Refusal, RefusalCode, Role};

impl Mdm {
    /// Handles the first hello on a link. The status shows some of the reasons for a refusal.
    pub(super) fn first_hello(
        &mut self,
        now: Time,
        link: LinkId,
        hello: Hello,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let (name, role) = (hello.name.clone(), hello.role());
        self.hello(link, hello, out).inspect_err(|why| {
            let shown = matches!(
                (role, why.code()),
                (Role::Sds, RefusalCode::WrongCluster | RefusalCode::WrongVersion)
                    | (Role::Mdm, RefusalCode::TooOld)
            );
            if shown {
                self.refused_servers.put(now, &name, 0, "", &why.text);
            }
        })
    }

    /// Answers the waiting hellos that can be answered by now.
    pub(super) fn settle_hellos(&mut self, out: &mut Effects) {
        let waiting = self.links.iter_mut().filter_map(|(link, l)| Some((link, l.hello.take()?)));
        for (link, hello) in waiting.collect::<alloc::vec::Vec<_>>() {
            if let Err(why) = self.hello(link, hello, out) {
                self.refuse(link, &why, out);
            }
        }
    }

    fn hello(&mut self, link: LinkId, hello: Hello, out: &mut Effects) -> Result<(), Refusal> {
        if self.failed.is_some() {
            return self.greet(link, &hello, out);
        }
        let member = hello.role() == Role::Mdm;
        let wait = match member {
            true => self.journal.is_recovering() || self.moved.is_some(),
            false => self.is_undecided(),
        };
        if wait {
            self.links.open_mut(link).hello = Some(hello);
            return Ok(());
        }
        if member {
            return self.greet_member(link, hello, out);
        }
        if !self.watch.serves() {
            check_hello(&self.config.dialect, &hello, self.state().cluster)?;
            let direct = hello.role() == Role::Admin && hello.direct;
            if !direct || self.journal.consensus().is_none() {
                return Err(self.journal.not_leader());
            }
        }
        self.greet(link, &hello, out)
    }

    /// Returns true while hellos have to wait a moment, because it will soon be known whether this
    /// MDM leads.
    pub(super) fn is_undecided(&self) -> bool {
        self.journal.is_undecided(self.watch.serves()) || self.moved.is_some()
    }

    /// Answers another MDM's hello.
    fn greet_member(
        &mut self,
        link: LinkId,
        hello: Hello,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let (_, version) = check_hello(&self.config.dialect, &hello, self.state().cluster)?;
        // A proposed entry may still be dropped.
        if self.journal.is_decided() {
            work::check_build(self.journal.state(), &hello.name, hello.build.as_ref())?;
            self.refused_servers.remove(&hello.name, 0);
        }
        if !self.peers.hello(&hello, &mut self.journal)? {
            self.links.open_mut(link).hello = Some(hello);
            return Ok(());
        }
        let from = self.links.open_mut(link);
        (from.version, from.build) = (version, hello.build);
        self.peers.add_link(link, hello.id, hello.secret, &mut self.links, out);
        out.push(Effect::Welcome { link });
        self.peers.welcome(self.links.peer_link(link), &self.journal, out);
        Ok(())
    }

    /// Answers the hello of a server, a client or an administrator.
    fn greet(&mut self, link: LinkId, hello: &Hello, out: &mut Effects) -> Result<(), Refusal> {
        let state = self.journal.state();
        let (peer, version) = check_hello(&self.config.dialect, hello, state.cluster)?;
        let role = hello.role();
        let stop = self.failed.as_ref().filter(|stop| role != Role::Admin || !stop.alone);
        if let Some(stop) = stop {
            return Err(refusal(RefusalCode::Unknown, stop.why.clone()));
        }
        let newest = match peer {
            PeerId::Device(device, _) => state.devices.get(&device).map(|d| d.incarnation),
            PeerId::Client(sdc, _) => state.sdcs.get(&sdc).map(|s| s.incarnation),
            PeerId::Admin => None,
            PeerId::Unknown | PeerId::Mdm(_) => {
                return Err(refusal(
                    RefusalCode::NotMe,
                    "this is an MDM; it serves SDSs, SDCs and orders",
                ));
            }
        };
        if hello.incarnation != 0 && newest.is_some_and(|i| hello.incarnation < i.0) {
            return Err(refusal(RefusalCode::Superseded, superseded(&hello.name)));
        }
        let mut answer = welcome(state.cluster, Role::Mdm, version);
        (answer.incarnation, answer.map) = (self.life.0, state.version.0);
        if state.recovery.open {
            answer.map = state.index; // no map has this version yet
        }
        answer.recovers = role == Role::Sds && state.wants_reports();
        if answer.recovers {
            answer.recovered = state.recovery.lost.end.0;
        }
        if role == Role::Admin {
            let end = self.journal.consensus().map(|c| (c.last_term(), c.last()));
            (answer.last_term, answer.last) = end.unwrap_or_default();
            answer.mdms = state.members.infos();
        }
        let guest = self.links.open_mut(link);
        (guest.peer, guest.version) = (Peer::Guest(role), version);
        if role == Role::Admin {
            self.take_admin(link, out);
        }
        send_welcome(link, &answer, out);
        Ok(())
    }

    /// Welcomes a link for orders. Servers and clients are strangers until they have registered.
    fn take_admin(&mut self, link: LinkId, out: &mut Effects) {
        if let Some(oldest) = self.links.oldest_admin() {
            out.note(Note::Crowded);
            out.push(Effect::Close { link: oldest });
            self.forget(oldest, out);
        }
        self.links.add_admin(link);
        out.push(Effect::Welcome { link });
    }
}
