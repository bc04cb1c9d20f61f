//! A sole MDM at another address than its log names: it was moved, or this is a copy of a log whose owner goes on.
//! Two that decide alone would both lead, and a server would follow now the one, now the other. So before it leads it
//! asks at the address that the log names, in its own name: an MDM of this log there takes it for the copy that it is,
//! and says so. Whatever else comes of it means that this one has moved.
//!
//! Who takes the link and says nothing is waited for: it may be that MDM, standing still. One that can't be reached is
//! not noticed; only those who have a vote could see to that ([`super::peers`]).

use super::Mdm;
use crate::links::{hello, send_hello};
use alloc::string::ToString;
use base::{ClusterId, LinkId, Time};
use consensus::Image;
use core::net::SocketAddr;
use mdm::State;
use prost::Message;
use seam::{DialId, Effect, Effects, Note};
use wire::control::{Hello, Refusal, RefusalCode, Role};
use wire::{Header, Kind};

/// What waits for an answer from the address that the log names.
pub(super) struct Moved {
    /// What this MDM goes on with.
    image: Image,
    cluster: ClusterId,
    dial: DialId,
    link: Option<LinkId>,
    /// Tells the own question from others, should that address lead here.
    nonce: u64,
}

impl Mdm {
    /// Where this MDM was, if its log names another address and no other MDM.
    pub(super) fn former_address(&self, me: u32, state: &State) -> Option<SocketAddr> {
        let former = state.members.list.get(&me).filter(|_| state.members.list.len() == 1)?;
        former.address.parse().ok().filter(|at| *at != self.config.address)
    }

    /// Asks at the former address, and goes on afterwards.
    pub(super) fn ask_at(
        &mut self,
        at: SocketAddr,
        image: Image,
        cluster: ClusterId,
        out: &mut Effects,
    ) {
        out.note(Note::Moved { from: at });
        let (dial, nonce) = (DialId(self.dials), out.prng().next_u64() | 1);
        self.moved = Some(Moved { image, cluster, dial, link: None, nonce });
        self.dial(at, out);
    }

    /// True for the dial of the question.
    pub(super) fn asks_by(&self, dial: DialId) -> bool {
        self.moved.as_ref().is_some_and(|m| m.dial == dial)
    }

    /// True for the link of the question.
    pub(super) fn asks_on(&self, link: LinkId) -> bool {
        self.moved.as_ref().is_some_and(|m| m.link == Some(link))
    }

    /// Somebody listens there.
    pub(super) fn ask_whether_it_serves(&mut self, link: LinkId, out: &mut Effects) {
        let Some(moved) = &mut self.moved else { return };
        moved.link = Some(link);
        let mut hello = hello(&self.config.dialect, moved.cluster, Role::Mdm, &self.config.name);
        let me = moved.image.me as u32;
        (hello.id, hello.to, hello.last) = (me, me, moved.image.last().0);
        (hello.incarnation, hello.address) = (moved.nonce, self.config.address.to_string());
        send_hello(link, &hello, out);
    }

    /// What who listens there has answered.
    pub(super) fn answered(&mut self, now: Time, header: &Header, body: &[u8], out: &mut Effects) {
        let refusal = Refusal::decode(body).ok().filter(|_| header.kind() == Some(Kind::Refusal));
        match refusal.filter(|r| r.code() == RefusalCode::WrongMember) {
            Some(why) => {
                self.leave(out);
                self.fail(why.text, out);
            }
            None => self.go_on(now, out),
        }
    }

    /// True for this MDM's own question: that address leads here.
    pub(super) fn is_own(&self, hello: &Hello) -> bool {
        self.moved.as_ref().is_some_and(|m| m.nonce == hello.incarnation)
    }

    /// Nobody else serves there.
    pub(super) fn go_on(&mut self, now: Time, out: &mut Effects) {
        if let Some(image) = self.leave(out) {
            self.resume(now, image, out);
        }
    }

    fn leave(&mut self, out: &mut Effects) -> Option<Image> {
        let moved = self.moved.take()?;
        if let Some(link) = moved.link {
            out.push(Effect::Close { link });
        }
        Some(moved.image)
    }
}
