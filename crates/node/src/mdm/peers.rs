//! The MDMs among themselves: each dials all others, and speaks on the links that it dialled; what it hears
//! comes on links that others dialled.
//!
//! Invariants: a member says who it is, where it listens, who is meant and what it has, before anything else;
//! one that was set back, was removed, or takes another one's place, is refused and ends. A message is
//! sent as a whole, in parts that fit into frames, or not at all; that one was lost is told to the consensus.

use super::Mdm;
use crate::links::{Dialer, hello, refusal};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use base::{LinkId, Time};
use consensus::{Image, Message};
use core::net::SocketAddr;
use prost::Message as _;
use seam::{DialId, Effect, Effects};
use wire::control::{Hello, Refusal, RefusalCode, Role};
use wire::{Header, Kind, frame};

/// The longest message that is believed: a state of this size takes as long to send as a link may be stuck.
const MESSAGE_MAX: usize = 1 << 30;
/// Bytes of one part.
const PART: usize = 1 << 20;

/// A member, as somebody to be dialled.
struct Contact {
    dialer: Dialer,
    /// The number of the last message on the present link.
    sent: u64,
}

/// Everybody else.
#[derive(Default)]
pub(super) struct Peers {
    contacts: BTreeMap<u32, Contact>,
    dials: BTreeMap<DialId, u32>,
    links: BTreeMap<LinkId, u32>,
    /// Where somebody said to listen whom the state doesn't name yet.
    heard_of: BTreeMap<u32, SocketAddr>,
    /// Who leads; 0: nobody knows.
    pub leader: u64,
    /// Who is to lead, as soon as nothing is under way.
    pub successor: Option<u64>,
}

impl Peers {
    /// The member that was meant by this dial, if one was; it has ended.
    pub fn dialled(&mut self, dial: DialId) -> Option<u32> {
        self.dials.remove(&dial)
    }

    /// A link is gone: the member to whom it was the way, if it was. One that a newer link has replaced at
    /// the other side was not.
    pub fn lost(&mut self, link: LinkId) -> Option<u32> {
        let member = self.links.remove(&link)?;
        let contact = self.contacts.get(&member)?;
        (contact.dialer.link() == Some(link)).then_some(member)
    }

    /// True for a link that this MDM dialled.
    pub fn has(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// When somebody is to be dialled.
    pub fn wake_at(&self) -> Option<Time> {
        self.contacts.values().filter_map(|c| c.dialer.wake_at()).min()
    }
}

impl Mdm {
    fn me(&self) -> u32 {
        self.consensus.as_ref().map_or(0, |c| c.id() as u32)
    }

    /// Keeps a contact for each member, where the state says that it is.
    pub(super) fn keep_contacts(&mut self, now: Time, out: &mut Effects) {
        let me = self.me();
        let Some(consensus) = &self.consensus else { return };
        // Who was removed is needed until it does not count any more.
        let known = self.peers.contacts.iter().map(|(id, c)| (*id, c.dialer.address()));
        let mut wanted: BTreeMap<u32, SocketAddr> = known.collect();
        wanted.extend(&self.peers.heard_of);
        wanted.retain(|id, _| {
            consensus.counts(u64::from(*id)) || !self.state.members.was_removed(*id)
        });
        for (id, member) in &self.state.members.list {
            wanted.extend(member.address.parse().ok().map(|to| (*id, to)));
        }
        wanted.remove(&me);
        let same = |id: &u32, c: &Contact| wanted.get(id) == Some(&c.dialer.address());
        let gone = self.peers.contacts.extract_if(.., |id, c| !same(id, c));
        for link in gone.filter_map(|(_, c)| c.dialer.link()).collect::<Vec<_>>() {
            self.peers.links.remove(&link);
            out.push(Effect::Close { link });
        }
        for (id, to) in wanted {
            let limits = &self.config.limits;
            let new = || Contact { dialer: Dialer::new(to, limits), sent: 0 };
            let contact = self.peers.contacts.entry(id).or_insert_with(new);
            let dial = DialId(self.dials);
            if contact.dialer.poll(now, dial, out) {
                self.dials += 1;
                self.peers.dials.insert(dial, id);
            }
        }
    }

    /// A dial to a member came through.
    pub(super) fn greet_member(&mut self, link: LinkId, member: u32, out: &mut Effects) {
        let Some(consensus) = &self.consensus else { return out.push(Effect::Close { link }) };
        let last = consensus.last();
        let mut hello = hello(self.state.cluster, Role::Mdm, &self.config.name);
        (hello.id, hello.to, hello.last) = (self.me(), member, last);
        hello.address = self.config.address.to_string();
        let now = consensus.membership();
        let votes = [&now.voters, &now.outgoing].iter().any(|v| v.contains(&u64::from(member)));
        let listed = self.state.members.list.contains_key(&member);
        hello.newcomer = self.ready && self.proposed().is_none() && listed && !votes;
        match self.peers.contacts.get_mut(&member) {
            Some(contact) => {
                contact.sent = 0;
                contact.dialer.link_up(link, &hello, out);
                self.peers.links.insert(link, member);
            }
            None => out.push(Effect::Close { link }),
        }
    }

    /// The way to a member is gone.
    pub(super) fn member_lost(&mut self, now: Time, member: u32, out: &mut Effects) {
        if let Some(contact) = self.peers.contacts.get_mut(&member) {
            contact.dialer.lost(now, out.prng());
        }
        if let Some(consensus) = &mut self.consensus {
            consensus.unreachable(u64::from(member));
        }
    }

    /// A frame on a link that this MDM dialled.
    pub(super) fn member_frame(
        &mut self,
        now: Time,
        link: LinkId,
        header: &Header,
        body: &[u8],
        out: &mut Effects,
    ) {
        let Some(member) = self.peers.links.get(&link).copied() else { return };
        match header.kind() {
            Some(Kind::Welcome) => {
                if let Some(contact) = self.peers.contacts.get_mut(&member) {
                    contact.dialer.welcomed();
                }
            }
            kind => {
                let refusal = Refusal::decode(body).ok().filter(|_| kind == Some(Kind::Refusal));
                out.push(Effect::Close { link });
                if self.peers.lost(link).is_some() {
                    self.member_lost(now, member, out);
                }
                // Who has nothing yet may have been called by a name that is not meant any more, and waits.
                let new = self.consensus.as_ref().is_none_or(|c| c.last() == 0);
                let wrong = refusal.filter(|r| r.code() == RefusalCode::WrongMember && !new);
                if let Some(why) = wrong {
                    self.fail(why.text, out);
                }
            }
        }
    }

    /// Sends messages to those to whom there is a link.
    pub(super) fn send_all(&mut self, messages: Vec<Message>, out: &mut Effects) {
        for message in messages {
            let to = message.to;
            let contact = self.peers.contacts.get_mut(&(to as u32));
            match contact.and_then(|c| Some((c.dialer.up()?, c))) {
                Some((link, contact)) => {
                    contact.sent += 1;
                    send(link, contact.sent, &message, out);
                }
                None => {
                    if let Some(consensus) = &mut self.consensus {
                        consensus.unreachable(to);
                    }
                }
            }
        }
    }

    /// Another MDM says hello; true: it is welcome; false: it has to wait.
    pub(super) fn hello_of_member(&mut self, hello: &Hello) -> Result<bool, Refusal> {
        let wrong = |text| Err(refusal(RefusalCode::WrongMember, text));
        let address: Option<SocketAddr> = hello.address.parse().ok();
        let (Some(address), true) = (address, hello.id != 0 && hello.to != 0) else {
            return Err(refusal(
                RefusalCode::NotMe,
                "this is an MDM, and serves no MDM of another cluster",
            ));
        };
        let Some(consensus) = &self.consensus else {
            if self.beginning.is_some() {
                return Ok(false);
            }
            if !hello.newcomer || !self.log.is_idle() {
                let text = format!(
                    "this MDM belongs to no cluster, and MDM {} does: has its log gone? Remove it from the \
                     cluster (`gabion mdm remove`), and add it anew",
                    hello.to
                );
                return Err(refusal(RefusalCode::NotMe, text));
            }
            self.begin_with(Image::newcomer(u64::from(hello.to)));
            return Ok(false);
        };
        let me = self.me();
        // Who has nothing has promised nothing. It may have been called by a name that is not meant any more.
        if consensus.last() == 0 && hello.newcomer && hello.to > me && self.log.is_idle() {
            self.consensus = None;
            self.begin_with(Image::newcomer(u64::from(hello.to)));
            return Ok(false);
        }
        if hello.to != me {
            let text = format!(
                "this is MDM {me}, not {}: its log is of another member. If it is to be a new one, stop it, \
                 remove its log, and start it again",
                hello.to
            );
            return Err(refusal(RefusalCode::NotMe, text));
        }
        let id = hello.id;
        let known = self.state.members.list.get(&id);
        if id == me || known.is_some_and(|m| m.address != hello.address) {
            let there = known.map_or("", |m| &m.address);
            let how = match self.state.members.list.len() {
                1 => "to move the MDM, stop the one there first",
                _ => "to move an MDM, remove it and add it anew",
            };
            return wrong(format!(
                "MDM {id} is the one at {there}: this one, at {}, has a copy of its log. Stop it; {how}",
                hello.address
            ));
        }
        // What is proposed here may still come to nothing.
        // And who still counts is needed until that is over.
        let counts = consensus.counts(u64::from(id));
        if self.proposed().is_none() && !counts && self.state.members.was_removed(id) {
            return wrong(format!(
                "MDM {id} was removed from the cluster: to use it again, stop it, remove its log, start it, and \
                 add it anew"
            ));
        }
        let matched = consensus.peers().into_iter().find(|p| p.id == u64::from(id));
        if let Some(peer) = matched.filter(|p| p.matched > hello.last) {
            return wrong(set_back(id, hello.last, peer.matched));
        }
        self.peers.heard_of.insert(id, address);
        Ok(true)
    }

    /// A part of a message of another MDM.
    pub(super) fn part(
        &mut self,
        link: LinkId,
        member: u32,
        header: &Header,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let bad = |text| Err(refusal(RefusalCode::Unexpected, text));
        let (at, len) = (header.at.get() as usize, header.len.get() as usize);
        let from = self.links.get_mut(&link).expect("looked up before");
        if at != from.parts.len() || len > MESSAGE_MAX || at + body.len() > len {
            return bad("a part of a message is missing");
        }
        from.parts.extend_from_slice(body);
        if from.parts.len() < len {
            return Ok(());
        }
        let bytes = core::mem::take(&mut from.parts);
        let Some(message) = Message::from_bytes(&bytes) else {
            return bad("this MDM doesn't know what another one says: update it");
        };
        if message.from != u64::from(member) || message.to != u64::from(self.me()) {
            return bad("a message in another member's name");
        }
        let me = self.me();
        let Some(consensus) = &mut self.consensus else { return Ok(()) };
        if let Err(behind) = consensus.step(message) {
            self.fail(set_back(me, behind.last, behind.known), out);
        }
        Ok(())
    }
}

fn set_back(id: u32, last: u64, known: u64) -> alloc::string::String {
    format!(
        "the log of MDM {id} ends at entry {last}, and it had {known} before: it was set back, as by an old copy. \
         With it the cluster could forget decisions. Remove it (`gabion mdm remove`), remove its log, and add it \
         anew"
    )
}

fn send(link: LinkId, number: u64, message: &Message, out: &mut Effects) {
    let bytes = message.encode_to_vec();
    for (i, part) in bytes.chunks(PART).enumerate() {
        let mut header = Header::new(Kind::Raft);
        header.seq = number.into();
        (header.at, header.len) = (((i * PART) as u32).into(), (bytes.len() as u32).into());
        let body = out.copy(part);
        out.send(link, frame(header, &body), body);
    }
}
