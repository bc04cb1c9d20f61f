//! The MDMs among themselves: each dials all others, and speaks on the links that it dialled; what it hears
//! comes on links that others dialled.
//!
//! Invariants:
//! - A member says who it is, where it listens, who is meant and what it has, before anything else; one that was set
//!   back, was removed, or takes another one's place, is refused and ends. Only a leader that knows no older term
//!   than the member's says that it was set back.
//! - Members are those that the state names, where it names them; those that one of them names; and, for an MDM that
//!   has nothing yet, whoever calls it. Nobody else is dialled, and from nobody else a message is taken.
//! - A message counts only with the secret that was sent to the member's address: who listens elsewhere doesn't know it.
//!   A link that was proven so is replaced by one that wasn't only when the member itself, at its address, refuses
//!   what it is sent. While none is proven, the newest [`UNPROVEN`] are kept: any of them may be the member's.
//! - A message is sent as a whole, in parts that fit into frames, or not at all; that one was lost is told to the
//!   consensus.

use super::{Mdm, Peer};
use crate::links::{Dialer, MUTE, NOT_OFFERED, agreed, hello, refusal, send_welcome, welcome};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use base::{LinkId, MapVersion, Time};
use consensus::{Image, Message, Wrong};
use core::net::SocketAddr;
use mdm::log::IMAGE_MAX;
use mdm::members::MAX_MEMBERS;
use prost::Message as _;
use seam::{DialId, Effect, Effects, Note};
use wire::control::{BuildInfo, Hello, MdmInfo, Refusal, RefusalCode, Role, Welcome};
use wire::{Header, Kind, PeerLink};

/// The longest message that is believed: the longest state that a log takes, and 1 MiB for the rest of the message.
/// All other messages are shorter.
pub(super) const MESSAGE_MAX: usize = IMAGE_MAX as usize + (1 << 20);
/// Bytes of one part.
const PART: usize = 1 << 20;

/// Links that say to be one member's, and have not proven it: the oldest goes when one more comes.
pub(super) const UNPROVEN: usize = 16;

/// A member, as somebody to be dialled.
struct Contact {
    dialer: Dialer,
    /// The number of the last message on the present link.
    sent: u64,
    /// What it has to say in front of each message to this one.
    secret: u64,
}

/// What a member wants to read in front of each message to it.
struct Told {
    /// The link on which it said so.
    link: LinkId,
    secret: u64,
    /// It came with this MDM's own secret: so it was the one that listens where the member is.
    proven: bool,
}

/// Everybody else.
#[derive(Default)]
pub(super) struct Peers {
    contacts: BTreeMap<u32, Contact>,
    dials: BTreeMap<DialId, u32>,
    links: BTreeMap<LinkId, u32>,
    /// Where somebody said to listen whom the state may not name any more when he is dialled: it called when this one had
    /// nothing yet, or it is removed and is still needed.
    heard_of: BTreeMap<u32, SocketAddr>,
    /// Whom members name, by the member that does.
    named: BTreeMap<u32, Vec<(u32, SocketAddr)>>,
    told: BTreeMap<u32, Told>,
    /// The version of the list of members that the others were told.
    announced: MapVersion,
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

    /// True for a member that has welcomed us on the present link.
    pub fn is_up(&self, member: u32) -> bool {
        self.contacts.get(&member).is_some_and(|c| c.dialer.up().is_some())
    }

    /// All links that this MDM dialled.
    pub fn all_links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// The number of MDMs that called before the state named them.
    pub fn heard_of(&self) -> usize {
        self.heard_of.len()
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
        let mute = self.peers.contacts.values().filter_map(|c| c.dialer.mute(now));
        for link in mute.collect::<Vec<_>>() {
            out.note(Note::Refused { link, why: MUTE });
            out.push(Effect::Close { link });
            if let Some(member) = self.peers.lost(link) {
                self.member_lost(now, member, out);
            }
        }
        let Some(consensus) = &self.consensus else { return };
        let (list, empty) = (&self.state.members, consensus.last() == 0);
        // Who was removed is needed until it does not count any more.
        let needed = |id: &u32| list.was_removed(*id) && consensus.counts(u64::from(*id));
        self.peers.heard_of.retain(|id, _| empty || needed(id));
        let heard_of = &self.peers.heard_of;
        self.peers.named.retain(|by, _| list.list.contains_key(by) || heard_of.contains_key(by));
        let contacts = self.peers.contacts.iter();
        let mut wanted: BTreeMap<u32, SocketAddr> = contacts
            .map(|(id, c)| (*id, c.dialer.address()))
            .filter(|(id, _)| needed(id))
            .collect();
        wanted.extend(heard_of);
        let named = self.peers.named.values().flatten().copied();
        wanted.extend(named.filter(|(id, _)| !list.was_removed(*id)));
        for (id, member) in &list.list {
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
            let new = || Contact {
                dialer: Dialer::to_mdm(to, limits),
                sent: 0,
                secret: out.prng().next_u64(),
            };
            let contact = self.peers.contacts.entry(id).or_insert_with(new);
            let dial = DialId(self.dials);
            if contact.dialer.poll(now, dial, out) {
                self.dials += 1;
                self.peers.dials.insert(dial, id);
            }
        }
    }

    /// A dial to a member came through.
    pub(super) fn greet_member(&mut self, now: Time, link: LinkId, member: u32, out: &mut Effects) {
        let Some(consensus) = &self.consensus else { return out.push(Effect::Close { link }) };
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
        match self.peers.contacts.get_mut(&member) {
            Some(contact) => {
                contact.sent = 0;
                hello.secret = contact.secret;
                contact.dialer.link_up(now, link, &hello, out);
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
                let Ok(welcome) = Welcome::decode(body) else { return };
                self.note_named(member, &welcome);
                match agreed(&self.config.dialect, &welcome) {
                    Some(version) => {
                        if let Some(contact) = self.peers.contacts.get_mut(&member) {
                            contact.dialer.welcomed(version);
                        }
                    }
                    None => {
                        out.note(Note::Refused { link, why: NOT_OFFERED });
                        out.push(Effect::Close { link });
                        if self.peers.lost(link).is_some() {
                            self.member_lost(now, member, out);
                        }
                    }
                }
            }
            kind => {
                let refusal = Refusal::decode(body).ok().filter(|_| kind == Some(Kind::Refusal));
                out.push(Effect::Close { link });
                self.doubt(member, out);
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

    /// Whom a member names. Those that the state doesn't name yet have come since this one was heard last.
    fn note_named(&mut self, by: u32, welcome: &Welcome) {
        let parse = |m: &MdmInfo| Some((m.id, m.address.parse().ok()?));
        let named = welcome.mdms.iter().filter_map(parse).take(MAX_MEMBERS).collect();
        self.peers.named.insert(by, named);
    }

    /// Tells the other members who the members are, when that has changed.
    pub(super) fn announce_members(&mut self, out: &mut Effects) {
        let now = self.state.members.changed_at;
        if core::mem::replace(&mut self.peers.announced, now) == now {
            return;
        }
        let others = self.links.iter().filter(|(_, l)| matches!(l.peer, Peer::Mdm(_)));
        let others: Vec<LinkId> = others.map(|(link, _)| *link).collect();
        others.into_iter().for_each(|link| self.welcome_member(link, out));
    }

    /// Says to another member that it is welcome, and who the members are.
    pub(super) fn welcome_member(&self, link: LinkId, out: &mut Effects) {
        let mut answer = welcome(self.state.cluster, Role::Mdm, self.peer_link(link).version);
        answer.mdms = self.state.members.infos();
        send_welcome(link, &answer, out);
    }

    /// Sends messages to those to whom there is a link, and who have said how they know them for this one's.
    pub(super) fn send_all(&mut self, messages: Vec<Message>, out: &mut Effects) {
        for message in messages {
            let to = message.to;
            let contact = self.peers.contacts.get_mut(&(to as u32));
            let told = self.peers.told.get(&(to as u32));
            match contact.and_then(|c| Some((c.dialer.up()?, told?.secret, c))) {
                Some((link, secret, contact)) => {
                    contact.sent += 1;
                    send(link, secret, contact.sent, &message, out);
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
        // Who knows a newer term may have given up for its leader what it had from this one.
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

    /// Whether this may be a member: see the file's head.
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
        // Who is named may be removed by the next entry, before he is dialled, and he says hello only once.
        if new || (listed && !empty) {
            heard_of.insert(id, address);
        }
        listed || new
    }

    /// This link says that it is the member's. It is one of several until one of them is proven.
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

    /// The links that say to be the member's, but this one.
    fn links_of(&self, member: u32, but: Option<LinkId>) -> Vec<LinkId> {
        let links = self.links.iter().filter(|(_, l)| l.peer == Peer::Mdm(member));
        links.map(|(link, _)| *link).filter(|link| Some(*link) != but).collect()
    }

    fn close_link(&mut self, link: LinkId, out: &mut Effects) {
        self.links.remove(&link);
        out.push(Effect::Close { link });
    }

    /// A member has refused what was sent to its address: what it was told to be known by isn't it. It may have begun
    /// anew while the link of its earlier life still seems to be up, or somebody else has said hello in its name. Which of
    /// its links is the true one isn't known: chance chooses, so that nobody can be in front of it for long.
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

    /// A message on this link came with this MDM's secret: it is the member's, and no other one is.
    fn prove(&mut self, link: LinkId, member: u32, out: &mut Effects) {
        if self.peers.told.get(&member).is_some_and(|t| t.proven && t.link == link) {
            return;
        }
        let secret = self.links[&link].secret;
        self.peers.told.insert(member, Told { link, secret, proven: true });
        let others = self.links_of(member, Some(link));
        others.into_iter().for_each(|link| self.close_link(link, out));
    }

    /// A part of a message of another MDM. An error is for the other side and for the log.
    pub(super) fn part(
        &mut self,
        link: LinkId,
        member: u32,
        header: &Header,
        body: &[u8],
        out: &mut Effects,
    ) -> Result<(), (Refusal, &'static str)> {
        let bad = |why| Err((refusal(RefusalCode::Unexpected, why), why));
        let secret = self.peers.contacts.get(&member).map(|c| c.secret);
        if secret != Some(header.op.get()) {
            return bad("a message in an MDM's name from elsewhere than where that one listens");
        }
        self.prove(link, member, out);
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
        let mut header = Header::new(Kind::Raft);
        (header.op, header.seq) = (secret.into(), number.into());
        (header.at, header.len) = (((i * PART) as u32).into(), (bytes.len() as u32).into());
        let body = out.copy(part);
        out.send(link.id, link.frame(header, &body), body);
    }
}
