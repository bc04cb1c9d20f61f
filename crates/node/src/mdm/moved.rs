//! A sole MDM at another address than its log names. Either it was moved, or this is a copy of a
//! log whose owner still runs. Two MDMs that each decide alone would both lead, and a server would
//! follow sometimes one, sometimes the other. So before this MDM leads, it sends a hello in its own
//! name to the address in the log. An MDM of the same log there recognizes the copy, and refuses
//! it. Any other outcome means that this MDM has moved.
//!
//! If a process accepts the link and stays silent, this MDM waits: it may be that MDM in a stall.
//! An original that cannot be reached goes unnoticed; only other voters could prevent that
//! ([`super::peers`]).

use super::config::Config;
use crate::link::handshake::send_hello;
use crate::link::{Answer, Callee, hello};
use alloc::string::{String, ToString};
use base::{ClusterId, LinkId};
use consensus::Image;
use core::net::SocketAddr;
use mdm::State;
use seam::{DialId, Effects};
use wire::Frame;
use wire::control::{Hello, RefusalCode, Role};

/// The question that goes to the address in the log.
pub(super) struct Moved {
    /// The image that this MDM starts with afterwards.
    pub image: Image,
    cluster: ClusterId,
    dial: DialId,
    /// The link of the question, once a process has accepted it.
    pub link: Option<LinkId>,
    /// Distinguishes this MDM's question from others, should that address lead back here.
    nonce: u64,
}

impl Moved {
    /// Creates the question that goes out with this dial.
    pub(super) fn new(image: Image, cluster: ClusterId, dial: DialId, nonce: u64) -> Moved {
        Moved { image, cluster, dial, link: None, nonce }
    }

    /// Returns true for the dial of the question.
    pub(super) fn asks_by(&self, dial: DialId) -> bool {
        self.dial == dial
    }

    /// Returns true for the link of the question.
    pub(super) fn asks_on(&self, link: LinkId) -> bool {
        self.link == Some(link)
    }

    /// Sends the question, now that a process has accepted the link.
    pub(super) fn ask(&mut self, link: LinkId, config: &Config, out: &mut Effects) {
        self.link = Some(link);
        let mut hello = hello(&config.dialect, self.cluster, Role::Mdm, &config.name);
        let me = self.image.me as u32;
        (hello.id, hello.to, hello.last) = (me, me, self.image.last().0);
        (hello.incarnation, hello.address) = (self.nonce, config.address.to_string());
        send_hello(link, &hello, out);
    }

    /// Returns true if the hello is this MDM's own question: that address leads back here.
    pub(super) fn is_own(&self, hello: &Hello) -> bool {
        self.nonce == hello.incarnation
    }
}

/// Returns the former address of MDM `me` at `here`, if its log names another address and no other
/// MDM.
pub(super) fn former_address(me: u32, here: SocketAddr, state: &State) -> Option<SocketAddr> {
    let former = state.members.list.get(&me).filter(|_| state.members.list.len() == 1)?;
    former.address.parse().ok().filter(|at| *at != here)
}

/// Returns the refusal text of an MDM with the same log, if the answer comes from one.
pub(super) fn original(config: &Config, frame: Option<Frame>, body: &[u8]) -> Option<String> {
    match Callee::Mdm.answer(&config.dialect, ClusterId(0), &frame?, body)? {
        Answer::Refusal(why) if why.code() == RefusalCode::WrongMember => Some(why.text),
        _ => None,
    }
}
