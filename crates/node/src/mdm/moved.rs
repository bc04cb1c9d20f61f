//! A sole MDM at another address than its log names. Either it was moved, or this is a copy of a
//! log whose owner still runs. Two MDMs that each decide alone would both lead, and a server would
//! follow now one, now the other. So before this MDM leads, it asks at the address in the log, in
//! its own name. An MDM of the same log there recognizes the copy, and refuses it. Any other
//! outcome means that this MDM has moved.
//!
//! If a process accepts the link and stays silent, this MDM waits: it may be that MDM in a stall.
//! An original that cannot be reached goes unnoticed; only other voters could prevent that
//! ([`super::peers`]).

use super::Mdm;
use crate::link::handshake::send_hello;
use crate::link::{Answer, Callee, hello};
use alloc::string::ToString;
use base::{ClusterId, LinkId, Time};
use consensus::Image;
use core::net::SocketAddr;
use mdm::State;
use seam::{DialId, Effect, Effects, Note};
use wire::Frame;
use wire::control::{Hello, RefusalCode, Role};

/// The question to the address that the log names.
pub(super) struct Moved {
    /// What this MDM starts with afterwards.
    image: Image,
    cluster: ClusterId,
    dial: DialId,
    link: Option<LinkId>,
    /// Distinguishes this MDM's question from others, should that address lead back here.
    nonce: u64,
}

impl Mdm {
    /// Returns this MDM's former address, if its log names another address and no other MDM.
    pub(super) fn former_address(&self, me: u32, state: &State) -> Option<SocketAddr> {
        let former = state.members.list.get(&me).filter(|_| state.members.list.len() == 1)?;
        former.address.parse().ok().filter(|at| *at != self.config.address)
    }

    /// Asks at the former address, and starts afterwards.
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

    /// Returns true for the dial of the question.
    pub(super) fn asks_by(&self, dial: DialId) -> bool {
        self.moved.as_ref().is_some_and(|m| m.dial == dial)
    }

    /// Returns true for the link of the question.
    pub(super) fn asks_on(&self, link: LinkId) -> bool {
        self.moved.as_ref().is_some_and(|m| m.link == Some(link))
    }

    /// Sends the question: a process listens there.
    pub(super) fn ask_whether_it_serves(&mut self, link: LinkId, out: &mut Effects) {
        let Some(moved) = &mut self.moved else { return };
        moved.link = Some(link);
        let mut hello = hello(&self.config.dialect, moved.cluster, Role::Mdm, &self.config.name);
        let me = moved.image.me as u32;
        (hello.id, hello.to, hello.last) = (me, me, moved.image.last().0);
        (hello.incarnation, hello.address) = (moved.nonce, self.config.address.to_string());
        send_hello(link, &hello, out);
    }

    /// Handles the answer of the process that listens there.
    pub(super) fn answered(
        &mut self,
        now: Time,
        frame: Option<Frame>,
        body: &[u8],
        out: &mut Effects,
    ) {
        let (dialect, cluster) = (&self.config.dialect, ClusterId(0));
        match frame.and_then(|frame| Callee::Mdm.answer(dialect, cluster, &frame, body)) {
            Some(Answer::Refusal(why)) if why.code() == RefusalCode::WrongMember => {
                self.leave(out);
                self.fail(why.text, out);
            }
            _ => self.go_on(now, out),
        }
    }

    /// Returns true if the hello is this MDM's own question: that address leads back here.
    pub(super) fn is_own(&self, hello: &Hello) -> bool {
        self.moved.as_ref().is_some_and(|m| m.nonce == hello.incarnation)
    }

    /// Starts, as no other MDM of this log serves there.
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
