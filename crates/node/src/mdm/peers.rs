//! Links among MDMs. Each MDM dials all others, and sends on the links that it dialled. It receives
//! on links that others dialled.
//!
//! [`admission`]: which MDMs are accepted as members.
//!
//! Invariants:
//! - Members are: the MDMs that the state names, at the addresses in the state; the MDMs that one
//!   of these names; and, for an MDM with an empty log, any MDM that calls it. This MDM dials no
//!   other process, and accepts messages of no other.
//! - A message counts only with the secret that was sent to the member's address: a process that
//!   listens elsewhere does not know it. A link without that proof replaces one that has it only if
//!   the process at the member's address refuses what it is sent. While no link has proof, the
//!   newest [`UNPROVEN`] links are kept: any of them may be the member's.
//! - A message is sent whole, in parts that fit into frames, or not at all. The consensus is told
//!   if a message may be lost.

mod admission;

use super::config::Config;
use super::dials::Dials;
use super::journal::Journal;
use super::links::{Links, Peer};
use crate::link::handshake::{self, send_welcome};
use crate::link::{Answer, Callee, Directory, hello, welcome};
use crate::refusals::MUTE;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use base::{ClusterId, LinkId, MapVersion, Mutant, Time, mutant};
use consensus::{Message, Wrong};
use core::net::SocketAddr;
use mdm::log::IMAGE_MAX;
use mdm::refused::MAX_MEMBERS;
use prost::Message as _;
use seam::{DialId, Effect, Effects, Note};
use wire::control::{BuildInfo, MdmInfo, Refusal, Role, Welcome};
use wire::message::Raft;
use wire::{Frame, PeerLink};

/// The longest message that is accepted, in bytes: the longest state that a log takes, and 1 MiB
/// for the rest of the message. All other messages are shorter.
pub(super) const MESSAGE_MAX: usize = IMAGE_MAX as usize + (1 << 20);
/// Bytes of one part.
const PART: usize = 1 << 20;

/// The most links of one member without proof. When one more opens, the oldest is closed.
pub(super) const UNPROVEN: usize = 16;

/// The record of a member that this MDM dials.
#[derive(Default)]
struct Contact {
    /// The number of the last message on the current link.
    sent: u64,
    /// The secret that the member has to send in front of each message to this MDM.
    secret: u64,
}

/// The secret that a member expects in front of each message to it.
struct LinkSecret {
    /// The link whose hello contained it.
    link: LinkId,
    secret: u64,
    /// A message on the link contained this MDM's own secret, so the peer is the process that
    /// listens at the member's address.
    proven: bool,
}

/// Why a link that this MDM dialled is closed.
pub(super) enum Unwelcome {
    /// The member refuses this MDM.
    Refused(Refusal),
    /// The answer to the hello is wrong.
    Wrong(handshake::Wrong),
    /// The frame is no answer to a hello.
    NoAnswer,
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
    secrets: BTreeMap<u32, LinkSecret>,
    /// The newest list of members that was decided when this MDM last looked, and its version. All
    /// members were told.
    decided: (MapVersion, Vec<MdmInfo>),
}

impl Peers {
    /// Records that a dial has ended. Returns the member that it was for, if it was for one, and
    /// true if it counts.
    pub(super) fn dialled(&mut self, dial: DialId) -> Option<(u32, bool)> {
        self.contacts.dialled(dial)
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

    /// Returns the number of MDMs that this one dials.
    pub(super) fn contacts(&self) -> usize {
        self.contacts.iter().count()
    }

    /// Returns the number of MDMs that called before the state named them.
    pub(super) fn heard_of(&self) -> usize {
        self.heard_of.len()
    }

    /// Returns when the next member is to be dialled.
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.contacts.iter().filter_map(|(_, c)| c.wake_at()).min()
    }

    // ---- dialling ----

    /// Keeps a contact for each member, at the address that the state gives.
    pub(super) fn keep(
        &mut self,
        now: Time,
        journal: &mut Journal,
        (config, dials): (&Config, &mut Dials),
        out: &mut Effects,
    ) {
        self.contacts.look_again();
        for link in self.contacts.mute(now) {
            out.note(Note::Refused { link, why: MUTE });
            out.push(Effect::Close { link });
            self.down(now, link, journal, out);
        }
        let wanted = self.wanted(journal);
        let contacts = self.contacts.iter().filter(|(_, c)| c.address().is_some());
        let moved = contacts.filter(|(id, c)| c.address() != wanted.get(id).copied());
        for (id, link) in moved.map(|(id, c)| (id, c.link())).collect::<Vec<_>>() {
            if let Some(link) = link {
                self.links.remove(&link);
                out.push(Effect::Close { link });
            }
            // Its secret is dropped, too, so no message in its name is accepted any more.
            match mutant::on(Mutant::KeepContacts) {
                true => self.contacts.locate(id, Callee::Mdm, None, &config.limits),
                false => self.contacts.forget(id),
            }
        }
        for (id, to) in wanted {
            let contact = self.contacts.want(id, Contact::default);
            if contact.address().is_none() {
                contact.about = Contact { sent: 0, secret: out.prng().next_u64() };
                self.contacts.locate(id, Callee::Mdm, Some(to), &config.limits);
            }
        }
        self.contacts.dial(now, &mut dials.next, |_, _| true, out);
    }

    /// Returns the members to dial, by the rules at the head of this file.
    fn wanted(&mut self, journal: &Journal) -> BTreeMap<u32, SocketAddr> {
        let (list, empty) = (&journal.state().members, journal.is_empty());
        // A removed member is needed until it no longer counts.
        let needed = |id: &u32| list.was_removed(*id) && journal.counts(u64::from(*id));
        self.heard_of.retain(|id, _| empty || needed(id));
        let heard_of = &self.heard_of;
        self.named.retain(|by, _| list.list.contains_key(by) || heard_of.contains_key(by));
        let contacts = self.contacts.iter();
        let mut wanted: BTreeMap<u32, SocketAddr> = contacts
            .filter_map(|(id, c)| Some((id, c.address()?)))
            .filter(|(id, _)| needed(id))
            .collect();
        wanted.extend(heard_of);
        let named = self.named.values().flatten().copied();
        wanted.extend(named.filter(|(id, _)| !list.was_removed(*id)));
        for (id, member) in &list.list {
            wanted.extend(member.address.parse().ok().map(|to| (*id, to)));
        }
        wanted.remove(&journal.id());
        wanted
    }

    /// Sends the hello after a dial to a member succeeded. `serves` says whether this MDM serves as
    /// leader.
    pub(super) fn greet(
        &mut self,
        now: Time,
        (link, member): (LinkId, u32),
        (journal, config, serves): (&mut Journal, &Config, bool),
        out: &mut Effects,
    ) {
        let Some(consensus) = journal.consensus() else {
            out.push(Effect::Close { link });
            if !mutant::on(Mutant::AwaitDial) {
                self.lost(now, member, journal, out);
            }
            return;
        };
        let state = journal.state();
        let mut hello = hello(&config.dialect, state.cluster, Role::Mdm, &config.name);
        (hello.id, hello.to) = (journal.id(), member);
        (hello.last, hello.term) = (consensus.last(), consensus.role().term);
        hello.address = config.address.to_string();
        hello.build = Some(BuildInfo::of(&config.dialect));
        let membership = consensus.membership();
        let votes =
            [&membership.voters, &membership.outgoing].iter().any(|v| v.contains(&member.into()));
        let listed = state.members.list.contains_key(&member);
        hello.newcomer = serves && journal.is_decided() && listed && !votes;
        let contact = self.contacts.change(member).expect("it was dialled");
        contact.about.sent = 0;
        hello.secret = contact.about.secret;
        let dialer = contact.dialer_mut().expect("it was dialled");
        dialer.link_up(now, link, &hello, out);
        self.links.insert(link, member);
    }

    /// Records that the link to a member is gone, or its dial failed.
    pub(super) fn lost(
        &mut self,
        now: Time,
        member: u32,
        journal: &mut Journal,
        out: &mut Effects,
    ) {
        if let Some(contact) = self.contacts.change(member) {
            contact.lost(now, out.prng());
        }
        journal.unreachable(u64::from(member));
    }

    /// Records that a link that this MDM dialled is down or closed.
    pub(super) fn down(
        &mut self,
        now: Time,
        link: LinkId,
        journal: &mut Journal,
        out: &mut Effects,
    ) {
        let Some(member) = self.links.remove(&link) else { return };
        let current = self.contacts.get(member).and_then(|c| c.link());
        if current == Some(link) {
            self.lost(now, member, journal, out);
        }
    }

    /// Handles a frame on a link that this MDM dialled. An error is the reason for closing it.
    pub(super) fn frame(
        &mut self,
        link: LinkId,
        frame: Option<Frame>,
        body: &[u8],
        (config, cluster): (&Config, ClusterId),
    ) -> Result<(), Unwelcome> {
        let Some(member) = self.links.get(&link).copied() else { return Ok(()) };
        let dialer = self.contacts.get(member).and_then(|c| c.dialer());
        let up = dialer.and_then(|dialer| dialer.up());
        let answer = dialer
            .zip(frame)
            .and_then(|(dialer, frame)| dialer.answer(&config.dialect, cluster, &frame, body));
        match answer {
            Some(Answer::Welcome(welcomed)) => {
                let version = welcomed.version;
                match up {
                    // A member sends its welcome again when the list of members has changed.
                    Some(up) if up.version == version => {}
                    Some(_) => return Err(Unwelcome::Wrong(handshake::Wrong::Version)),
                    None => {
                        let contact = self.contacts.change(member).expect("it has answered");
                        contact.welcomed(version).expect("it has not welcomed this MDM yet");
                    }
                }
                self.note_named(member, &welcomed.message);
                Ok(())
            }
            Some(Answer::Refusal(why)) => Err(Unwelcome::Refused(why)),
            Some(Answer::Wrong(wrong)) => Err(Unwelcome::Wrong(wrong)),
            None => Err(Unwelcome::NoAnswer),
        }
    }

    /// Records that a link is closed because the member has not welcomed this MDM: the secret that
    /// this MDM sends may be wrong.
    pub(super) fn unwelcome(
        &mut self,
        link: LinkId,
        why: &Unwelcome,
        links: &Links,
        out: &mut Effects,
    ) {
        let member = self.links.get(&link).copied();
        if let Some(member) = member.filter(|_| !matches!(why, Unwelcome::Wrong(_))) {
            self.secret_refused(member, links, out);
        }
    }

    /// Records the members that a member names in its welcome. Those that the state does not name
    /// yet were added after the last entry that this MDM has.
    fn note_named(&mut self, by: u32, welcome: &Welcome) {
        let parse = |m: &MdmInfo| Some((m.id, m.address.parse().ok()?));
        let named = welcome.mdms.iter().filter_map(parse).take(MAX_MEMBERS).collect();
        self.named.insert(by, named);
    }

    // ---- sending ----

    /// Sends the list of members to the other members, if it has changed and that is decided.
    pub(super) fn announce(&mut self, journal: &Journal, links: &Links, out: &mut Effects) {
        let members = &journal.state().members;
        if !journal.is_decided() || members.changed_at == self.decided.0 {
            return;
        }
        self.decided = (members.changed_at, members.infos());
        for link in links.which(|l| matches!(l.peer, Peer::Mdm(_))) {
            self.welcome(links.peer_link(link), journal, out);
        }
    }

    /// Welcomes another member, and tells it the newest list of members that is decided.
    pub(super) fn welcome(&self, link: PeerLink, journal: &Journal, out: &mut Effects) {
        let state = journal.state();
        let mut answer = welcome(state.cluster, Role::Mdm, link.version);
        answer.mdms = match journal.is_decided() {
            true => state.members.infos(),
            false => self.decided.1.clone(),
        };
        send_welcome(link.id, &answer, out);
    }

    /// Sends messages to members that have welcomed this MDM and have sent their secrets. The
    /// others are reported to the consensus as unreachable.
    pub(super) fn send(
        &mut self,
        messages: Vec<Message>,
        journal: &mut Journal,
        out: &mut Effects,
    ) {
        for message in messages {
            let to = message.to;
            let contact = self.contacts.change(to as u32);
            let known = self.secrets.get(&(to as u32));
            match contact.and_then(|c| Some((c.up()?, known?.secret, c))) {
                Some((link, secret, contact)) => {
                    contact.about.sent += 1;
                    send(link, secret, contact.about.sent, &message, out);
                }
                None => journal.unreachable(to),
            }
        }
    }

    // ---- receiving ----

    /// Adds the link to those of the member. There may be several until one is proven.
    pub(super) fn add_link(
        &mut self,
        link: LinkId,
        member: u32,
        secret: u64,
        links: &mut Links,
        out: &mut Effects,
    ) {
        let known = self.secrets.get(&member);
        let known = known.filter(|t| links.has(t.link));
        let proven = known.filter(|t| t.proven).map(|t| t.link);
        if known.is_none() {
            self.secrets.insert(member, LinkSecret { link, secret, proven: false });
        }
        let from = links.open_mut(link);
        (from.peer, from.secret) = (Peer::Mdm(member), secret);
        let mut unproven = links.of_member(member, proven);
        unproven.sort_unstable_by_key(|link| links.open(*link).opened);
        let more = unproven.len().saturating_sub(UNPROVEN);
        unproven[..more].iter().for_each(|link| close(*link, links, out));
    }

    /// Handles a refusal of what was sent to the member's address: the member expects another
    /// secret. Either it has restarted while the link of its earlier process still seems to be up,
    /// or another process has said hello in its name. This MDM does not know which link is the
    /// member's, so it chooses one at random: no process can keep the member's place for long.
    fn secret_refused(&mut self, member: u32, links: &Links, out: &mut Effects) {
        let Some(known) = self.secrets.get_mut(&member) else { return };
        known.proven = false;
        let refused = known.link;
        let others = links.of_member(member, Some(refused));
        if !others.is_empty() {
            let link = others[out.prng().below(others.len() as u64) as usize];
            let secret = links.open(link).secret;
            self.secrets.insert(member, LinkSecret { link, secret, proven: false });
        }
    }

    /// Records that a message on this link contained this MDM's secret. So the link is the
    /// member's, and all others in its name are closed.
    fn prove(&mut self, link: LinkId, member: u32, links: &mut Links, out: &mut Effects) {
        if self.secrets.get(&member).is_some_and(|t| t.proven && t.link == link) {
            return;
        }
        let secret = links.open(link).secret;
        self.secrets.insert(member, LinkSecret { link, secret, proven: true });
        let others = links.of_member(member, Some(link));
        others.into_iter().for_each(|link| close(link, links, out));
    }

    /// Handles a part of a message of another MDM. Returns the reason if this MDM has to stop. An
    /// error is the reason for closing the link, for the other side and for the log.
    pub(super) fn part(
        &mut self,
        (link, member): (LinkId, u32),
        part: Raft,
        body: &[u8],
        (journal, links): (&mut Journal, &mut Links),
        out: &mut Effects,
    ) -> Result<Option<String>, &'static str> {
        let secret = self.contacts.get(member).map(|c| c.about.secret);
        if secret != Some(part.secret) {
            return Err("a message in an MDM's name from elsewhere than where that one listens");
        }
        self.prove(link, member, links, out);
        let (at, len) = (part.at as usize, part.len as usize);
        let from = links.open_mut(link);
        if at != from.parts.len() || len > MESSAGE_MAX || at + body.len() > len {
            return Err("a part of a message is missing");
        }
        from.parts.extend_from_slice(body);
        if from.parts.len() < len {
            return Ok(None);
        }
        let bytes = core::mem::take(&mut from.parts);
        let Some(message) = Message::from_bytes(&bytes) else {
            return Err("this MDM doesn't know what another one says: update it");
        };
        let me = journal.id();
        if message.from != u64::from(member) || message.to != u64::from(me) {
            return Err("a message in another member's name");
        }
        match journal.step(message) {
            Ok(()) => Ok(None),
            Err(Wrong::Nonsense(why)) => Err(why),
            Err(Wrong::Behind { last, known }) => Ok(Some(set_back(me, last, known))),
        }
    }
}

fn close(link: LinkId, links: &mut Links, out: &mut Effects) {
    links.remove(link);
    out.push(Effect::Close { link });
}

fn set_back(id: u32, last: u64, known: u64) -> String {
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
