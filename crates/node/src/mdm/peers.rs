//! Links among MDMs. Each MDM dials all others, and sends on the links that it dialled. It receives
//! on links that others dialled.
//!
//! Invariants:
//! - In its hello a member states its id, its address, the id of the member that it means, and the
//!   end of its log. A member that was set back, was removed, or takes another one's place, is
//!   refused and ends. Only a leader whose term is not older than the member's may find that it was
//!   set back.
//! - Members are: those that the state names, at the addresses in the state; those that one of them
//!   names; and, for an MDM with an empty log, any MDM that calls it. No other process is dialled,
//!   and messages of no other are accepted.
//! - A message counts only with the secret that was sent to the member's address: a process that
//!   listens elsewhere does not know it. A link with that proof is replaced by one without it only
//!   if the member itself, at its address, refuses what it is sent. While no link has proof, the
//!   newest [`UNPROVEN`] are kept: any of them may be the member's.
//! - A message is sent whole, in parts that fit into frames, or not at all. The consensus is told
//!   when one may be lost.

use super::{Mdm, Peer};
use crate::link::handshake::send_welcome;
use crate::link::{Answer, Callee, Directory, hello, welcome};
use crate::refusals::{MUTE, refusal};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use base::{LinkId, MapVersion, Time};
use consensus::{Image, Message, Wrong};
use core::net::SocketAddr;
use mdm::log::IMAGE_MAX;
use mdm::refused::MAX_MEMBERS;
use prost::Message as _;
use seam::{DialId, Effect, Effects, Note};
use wire::control::{BuildInfo, Hello, MdmInfo, Refusal, RefusalCode, Role, Welcome};
use wire::message::Raft;
use wire::{Frame, PeerLink};

/// The longest message that is accepted, in bytes: the longest state that a log takes, and 1 MiB
/// for the rest of the message. All other messages are shorter.
pub(super) const MESSAGE_MAX: usize = IMAGE_MAX as usize + (1 << 20);
/// Bytes of one part.
const PART: usize = 1 << 20;

/// The most links of one member without proof. When one more opens, the oldest is closed.
pub(super) const UNPROVEN: usize = 16;

/// What this MDM keeps about a member that it dials.
#[derive(Default)]
struct Contact {
    /// The number of the last message on the current link.
    sent: u64,
    /// The secret that the member has to send in front of each message to this MDM.
    secret: u64,
}

/// The secret that a member expects in front of each message to it.
struct Told {
    /// The link whose hello contained it.
    link: LinkId,
    secret: u64,
    /// A message on the link contained this MDM's own secret, so the peer is the process that
    /// listens at the member's address.
    proven: bool,
}

/// All other MDMs.
#[derive(Default)]
pub(super) struct Peers {
    contacts: Directory<u32, Contact>,
    links: BTreeMap<LinkId, u32>,
    /// Addresses from the hellos of members that the state may no longer (or not yet) name when
    /// they are dialled. Such a member called while this MDM's log was empty, or it is removed and
    /// still needed.
    heard_of: BTreeMap<u32, SocketAddr>,
    /// The members that each member names.
    named: BTreeMap<u32, Vec<(u32, SocketAddr)>>,
    told: BTreeMap<u32, Told>,
    /// The version of the list of members that was announced to the others.
    announced: MapVersion,
    /// The id of the leader; 0 if it is unknown.
    pub leader: u64,
    /// The member that is to lead as soon as nothing is in flight.
    pub successor: Option<u64>,
}

impl Peers {
    /// Records that a dial has ended. Returns the member that it was for, if it was for one, and
    /// true if it counts.
    pub(super) fn dialled(&mut self, dial: DialId) -> Option<(u32, bool)> {
        self.contacts.dialled(dial)
    }

    /// Removes a link that is down. Returns the member that it led to, unless another link to it is
    /// the current one.
    pub(super) fn lost(&mut self, link: LinkId) -> Option<u32> {
        let member = self.links.remove(&link)?;
        (self.contacts.get(member)?.link() == Some(link)).then_some(member)
    }

    /// Returns true for a link that this MDM dialled.
    pub(super) fn has(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Returns true if the member has welcomed this MDM on the current link.
    pub(super) fn is_up(&self, member: u32) -> bool {
        self.contacts.up(member).is_some()
    }

    /// Returns all links that this MDM dialled.
    pub(super) fn all_links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Returns the number of MDMs that called before the state named them.
    pub(super) fn heard_of(&self) -> usize {
        self.heard_of.len()
    }

    /// Returns when the next member is to be dialled.
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.contacts.iter().filter_map(|(_, c)| c.wake_at()).min()
    }
}

impl Mdm {
    fn me(&self) -> u32 {
        self.consensus.as_ref().map_or(0, |c| c.id() as u32)
    }

    /// Keeps a contact for each member, at the address that the state gives.
    pub(super) fn keep_contacts(&mut self, now: Time, out: &mut Effects) {
        let me = self.me();
        self.peers.contacts.look_again();
        for link in self.peers.contacts.mute(now) {
            out.note(Note::Refused { link, why: MUTE });
            out.push(Effect::Close { link });
            if let Some(member) = self.peers.lost(link) {
                self.member_lost(now, member, out);
            }
        }
        let Some(consensus) = &self.consensus else { return };
        let (list, empty) = (&self.state.members, consensus.last() == 0);
        // A removed member is needed until it no longer counts.
        let needed = |id: &u32| list.was_removed(*id) && consensus.counts(u64::from(*id));
        self.peers.heard_of.retain(|id, _| empty || needed(id));
        let heard_of = &self.peers.heard_of;
        self.peers.named.retain(|by, _| list.list.contains_key(by) || heard_of.contains_key(by));
        let contacts = self.peers.contacts.iter();
        let mut wanted: BTreeMap<u32, SocketAddr> = contacts
            .filter_map(|(id, c)| Some((id, c.address()?)))
            .filter(|(id, _)| needed(id))
            .collect();
        wanted.extend(heard_of);
        let named = self.peers.named.values().flatten().copied();
        wanted.extend(named.filter(|(id, _)| !list.was_removed(*id)));
        for (id, member) in &list.list {
            wanted.extend(member.address.parse().ok().map(|to| (*id, to)));
        }
        wanted.remove(&me);
        let contacts = self.peers.contacts.iter().filter(|(_, c)| c.address().is_some());
        let moved = contacts.filter(|(id, c)| c.address() != wanted.get(id).copied());
        for (id, link) in moved.map(|(id, c)| (id, c.link())).collect::<Vec<_>>() {
            if let Some(link) = link {
                self.peers.links.remove(&link);
                out.push(Effect::Close { link });
            }
            // With it goes its secret: no message in its name is accepted any more.
            self.peers.contacts.forget(id);
        }
        for (id, to) in wanted {
            let contact = self.peers.contacts.want(id, Contact::default);
            if contact.address().is_none() {
                contact.about = Contact { sent: 0, secret: out.prng().next_u64() };
                self.peers.contacts.locate(id, Callee::Mdm, Some(to), &self.config.limits);
            }
        }
        self.peers.contacts.dial(now, &mut self.dials, |_, _| true, out);
    }

    /// Sends the hello after a dial to a member succeeded.
    pub(super) fn greet_member(&mut self, now: Time, link: LinkId, member: u32, out: &mut Effects) {
        let Some(consensus) = &self.consensus else {
            out.push(Effect::Close { link });
            return self.member_lost(now, member, out);
        };
        let (last, term) = (consensus.last(), consensus.role().term);
        let mut hello =
            hello(&self.config.dialect, self.state.cluster, Role::Mdm, &self.config.name);
        (hello.id, hello.to) = (self.me(), member);
        (hello.last, hello.term) = (last, term);
        hello.address = self.config.address.to_string();
        hello.build = Some(BuildInfo::of(&self.config.dialect));
        let config = consensus.membership();
        let votes =
            [&config.voters, &config.outgoing].iter().any(|v| v.contains(&u64::from(member)));
        let listed = self.state.members.list.contains_key(&member);
        hello.newcomer = self.ready && self.proposed().is_none() && listed && !votes;
        let contact = self.peers.contacts.change(member).expect("it was dialled");
        contact.about.sent = 0;
        hello.secret = contact.about.secret;
        let dialer = contact.dialer_mut().expect("it was dialled");
        dialer.link_up(now, link, &hello, out);
        self.peers.links.insert(link, member);
    }

    /// Records that the link to a member is gone, or its dial failed.
    pub(super) fn member_lost(&mut self, now: Time, member: u32, out: &mut Effects) {
        if let Some(contact) = self.peers.contacts.change(member) {
            contact.lost(now, out.prng());
        }
        if let Some(consensus) = &mut self.consensus {
            consensus.unreachable(u64::from(member));
        }
    }

    /// Handles a frame on a link that this MDM dialled.
    pub(super) fn member_frame(
        &mut self,
        now: Time,
        link: LinkId,
        frame: Option<Frame>,
        body: &[u8],
        out: &mut Effects,
    ) {
        let Some(member) = self.peers.links.get(&link).copied() else { return };
        let (dialect, cluster) = (&self.config.dialect, self.state.cluster);
        let contact = self.peers.contacts.get(member).and_then(|c| c.dialer());
        let answer = contact.zip(frame).and_then(|(c, f)| c.answer(dialect, cluster, &f, body));
        if let Some(Answer::Welcome(welcomed)) = &answer {
            self.note_named(member, &welcomed.message);
            let contact = self.peers.contacts.change(member).expect("it has answered");
            return contact.welcomed(welcomed.version);
        }
        out.push(Effect::Close { link });
        if !matches!(answer, Some(Answer::Wrong(_))) {
            self.doubt(member, out);
        }
        if self.peers.lost(link).is_some() {
            self.member_lost(now, member, out);
        }
        // An MDM with an empty log may have been called by an id that is out of use by now. It
        // waits to be called again.
        let new = self.consensus.as_ref().is_none_or(|c| c.last() == 0);
        match answer {
            // The members agree on the level, so an MDM that is too old for one of them is too old
            // for all. It ends with the reason, which an operator then reads.
            Some(Answer::Refusal(why)) => match why.code() {
                RefusalCode::WrongMember if !new => self.fail(why.text, out),
                RefusalCode::TooOld => self.fail(why.text, out),
                _ => {}
            },
            Some(Answer::Wrong(wrong)) => out.note(Note::Refused { link, why: wrong.why() }),
            _ => {}
        }
    }

    /// Records the members that a member names in its welcome. Those that the state does not name
    /// yet were added after the last entry that this MDM has.
    fn note_named(&mut self, by: u32, welcome: &Welcome) {
        let parse = |m: &MdmInfo| Some((m.id, m.address.parse().ok()?));
        let named = welcome.mdms.iter().filter_map(parse).take(MAX_MEMBERS).collect();
        self.peers.named.insert(by, named);
    }

    /// Tells the other members the list of members, if that has changed.
    pub(super) fn announce_members(&mut self, out: &mut Effects) {
        let now = self.state.members.changed_at;
        if core::mem::replace(&mut self.peers.announced, now) == now {
            return;
        }
        let others = self.links.iter().filter(|(_, l)| matches!(l.peer, Peer::Mdm(_)));
        let others: Vec<LinkId> = others.map(|(link, _)| *link).collect();
        others.into_iter().for_each(|link| self.welcome_member(link, out));
    }

    /// Welcomes another member, and tells it the list of members.
    pub(super) fn welcome_member(&self, link: LinkId, out: &mut Effects) {
        let mut answer = welcome(self.state.cluster, Role::Mdm, self.peer_link(link).version);
        answer.mdms = self.state.members.infos();
        send_welcome(link, &answer, out);
    }

    /// Sends messages to members that have welcomed this MDM and have sent their secrets. The
    /// others are reported to the consensus as unreachable.
    pub(super) fn send_all(&mut self, messages: Vec<Message>, out: &mut Effects) {
        for message in messages {
            let to = message.to;
            let contact = self.peers.contacts.change(to as u32);
            let told = self.peers.told.get(&(to as u32));
            match contact.and_then(|c| Some((c.up()?, told?.secret, c))) {
                Some((link, secret, contact)) => {
                    contact.about.sent += 1;
                    send(link, secret, contact.about.sent, &message, out);
                }
                None => {
                    if let Some(consensus) = &mut self.consensus {
                        consensus.unreachable(to);
                    }
                }
            }
        }
    }

    /// Checks the hello of another MDM. Returns true if it is welcome, and false if it has to wait.
    // Long: one check after the other, each with the text of its refusal.
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
        // An MDM with an empty log has promised nothing. The id that it was called by may be out of
        // use by now.
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
        // A proposed removal may still be dropped, and a removed member that still counts is needed
        // until that is over.
        let counts = consensus.counts(u64::from(id));
        if self.proposed().is_none() && !counts && self.state.members.was_removed(id) {
            return wrong(format!(
                "MDM {id} was removed from the cluster: to use it again, stop it, remove its log, start it, and \
                 add it anew"
            ));
        }
        // A member with a newer term may have replaced, for that leader, entries of this one.
        let judges = hello.term <= consensus.role().term;
        let peers = consensus.peers().into_iter();
        let matched = peers.filter(|_| judges).find(|p| p.id == u64::from(id));
        if let Some(peer) = matched.filter(|p| p.matched > hello.last) {
            return wrong(set_back(id, hello.last, peer.matched));
        }
        match self.is_expected(id, address, hello.newcomer) {
            true => Ok(true),
            false => {
                let text = format!(
                    "MDM {me} knows of no MDM {id} at {address}: neither its own list of MDMs nor that of another MDM \
                     names it. If it belongs to this cluster and this lasts, stop MDM {me}, remove it from the \
                     cluster (`gabion mdm remove`), remove its log, and add it anew"
                );
                Err(refusal(RefusalCode::NotMe, text))
            }
        }
    }

    /// Returns true if this may be a member, by the rules at the head of this file.
    fn is_expected(&mut self, id: u32, address: SocketAddr, newcomer: bool) -> bool {
        let Some(consensus) = &self.consensus else { return false };
        let members = &self.state.members;
        let mut named = self.peers.named.values().flatten();
        let listed = members.list.contains_key(&id) || named.any(|n| *n == (id, address));
        let needed = members.was_removed(id) && consensus.counts(u64::from(id));
        let empty = consensus.last() == 0;
        let calls = empty && newcomer;
        let heard_of = &mut self.peers.heard_of;
        if heard_of.get(&id) == Some(&address) {
            return true;
        }
        let room = needed || heard_of.len() < MAX_MEMBERS;
        let new = (needed || calls) && room;
        // A listed member may be removed by the next entry before it is dialled, and it says hello
        // only once.
        if new || (listed && !empty) {
            heard_of.insert(id, address);
        }
        listed || new
    }

    /// Makes the link one of the member's. There may be several until one of them is proven.
    pub(super) fn seat_member(
        &mut self,
        link: LinkId,
        member: u32,
        secret: u64,
        out: &mut Effects,
    ) {
        let told = self.peers.told.get(&member);
        let told = told.filter(|t| self.links.contains_key(&t.link));
        let proven = told.filter(|t| t.proven).map(|t| t.link);
        if told.is_none() {
            self.peers.told.insert(member, Told { link, secret, proven: false });
        }
        let seat = self.links.get_mut(&link).expect("it said hello");
        (seat.peer, seat.secret) = (Peer::Mdm(member), secret);
        let mut unproven = self.links_of(member, proven);
        unproven.sort_unstable_by_key(|link| self.links[link].opened);
        let more = unproven.len().saturating_sub(UNPROVEN);
        unproven[..more].iter().for_each(|link| self.close_link(*link, out));
    }

    /// Returns the links that claim to be the member's, except `but`.
    fn links_of(&self, member: u32, but: Option<LinkId>) -> Vec<LinkId> {
        let links = self.links.iter().filter(|(_, l)| l.peer == Peer::Mdm(member));
        links.map(|(link, _)| *link).filter(|link| Some(*link) != but).collect()
    }

    fn close_link(&mut self, link: LinkId, out: &mut Effects) {
        self.links.remove(&link);
        out.push(Effect::Close { link });
    }

    /// Handles a refusal by the member of what was sent to its address: the secret is not the one
    /// that it expects. The member may have restarted while the link of its earlier process still
    /// seems to be up, or another process has said hello in its name. This MDM does not know which
    /// link is the true one, so it chooses at random: no process can stay in front of the member
    /// for long.
    fn doubt(&mut self, member: u32, out: &mut Effects) {
        let Some(told) = self.peers.told.get_mut(&member) else { return };
        told.proven = false;
        let refused = told.link;
        let others = self.links_of(member, Some(refused));
        if !others.is_empty() {
            let link = others[out.prng().below(others.len() as u64) as usize];
            let secret = self.links[&link].secret;
            self.peers.told.insert(member, Told { link, secret, proven: false });
        }
    }

    /// Records that a message on this link contained this MDM's secret: the link is the member's,
    /// and all others that claim to be are closed.
    fn prove(&mut self, link: LinkId, member: u32, out: &mut Effects) {
        if self.peers.told.get(&member).is_some_and(|t| t.proven && t.link == link) {
            return;
        }
        let secret = self.links[&link].secret;
        self.peers.told.insert(member, Told { link, secret, proven: true });
        let others = self.links_of(member, Some(link));
        others.into_iter().for_each(|link| self.close_link(link, out));
    }

    /// Handles a part of a message of another MDM. An error is for the other side and for the log.
    pub(super) fn part(
        &mut self,
        link: LinkId,
        member: u32,
        part: Raft,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), (Refusal, &'static str)> {
        let bad = |why| Err((refusal(RefusalCode::Unexpected, why), why));
        let secret = self.peers.contacts.get(member).map(|c| c.about.secret);
        if secret != Some(part.secret) {
            return bad("a message in an MDM's name from elsewhere than where that one listens");
        }
        self.prove(link, member, out);
        let (at, len) = (part.at as usize, part.len as usize);
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
        match consensus.step(message) {
            Ok(()) => Ok(()),
            Err(Wrong::Nonsense(why)) => bad(why),
            Err(Wrong::Behind { last, known }) => {
                self.fail(set_back(me, last, known), out);
                Ok(())
            }
        }
    }
}

fn set_back(id: u32, last: u64, known: u64) -> alloc::string::String {
    format!(
        "the log of MDM {id} ends at entry {last}, and it had {known} before: it was set back, as by an old copy. \
         With it the cluster could forget decisions. Remove it (`gabion mdm remove`), remove its log, and add it \
         anew"
    )
}

fn send(link: PeerLink, secret: u64, number: u64, message: &Message, out: &mut Effects) {
    let bytes = message.encode_to_vec();
    for (i, part) in bytes.chunks(PART).enumerate() {
        let (at, len) = ((i * PART) as u32, bytes.len() as u32);
        let body = out.copy(part);
        out.send(link.id, link.frame(Raft { secret, number, at, len }, &body), body);
    }
}
