//! What is under way to each member: at most half of what its link's queue takes.
//!
//! A link whose queue is too long is given up. If all that a member has not answered were sent at once when its link is
//! back, that could be too long again, for ever. So what a member has not answered counts against its window, and what
//! finds no room waits, in order, until answers make some. While it waits, clients' writes that would go there wait, too:
//! a member that is slower than the clients slows them down, and isn't lost by it.
//!
//! An operation may be over before a member has answered it: the configuration has changed, or a joiner was cut off. Its
//! bytes may still wait in the link's queue. They take room until something is answered that was sent later: a link
//! keeps its order. And the member's device may hang: where the member will be asked for its state in that group, they
//! take room until it has told that, as it does so when it has done them. Else a joiner would get a window of each group
//! in turn.
//!
//! Each operation takes as much room as if `shard_ops` of them filled the window: small writes that only a joiner
//! lacks are answered already, and count against no other limit.
//!
//! A joiner that no acknowledgement needs is waited for as long as it answers; one that stands still is cut off. It
//! stands still if clients wait for room and nothing is answered, or if the same operation of a group is the oldest
//! that is not answered for [`STANDS`] times as long: copies and the seal hold clients back, too.

use crate::mirror::Mirror;
use crate::op::{Asker, Local, Op, OpKind};
use crate::replica::{GroupConfig, Members, Role};
use crate::sync::{Phase, Sync};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, Duration, GroupId, Limits, Lsn, Mutant, Time, UNIT, mutant};
use seam::{Buf, Effects, Head, Journal};
use wire::{Header, Kind, PeerLink, flag};

/// So many times `suspect_after` a joiner may take for one operation.
const STANDS: u32 = 5;

/// A member that I have dialled, and what is under way to it.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// `None` while no link of mine is welcomed there: then nothing is under way.
    pub link: Option<PeerLink>,
    /// Bytes of operations of streams that were sent on it and are not answered.
    flying: u64,
    /// Bytes of operations that were sent on it and are over without an answer: they may still wait in its queue.
    sunk: u64,
    /// What [`Mirror::sends`] was when the last of them was over.
    fence: u64,
    /// By group: the same, until the member has told its state in the group.
    undone: BTreeMap<GroupId, Undone>,
    /// Bytes of all of those.
    left: u64,
    /// Operations of streams that wait for room, in order.
    backlog: VecDeque<u64>,
    /// Clients wait for room, since then or since the last answer.
    awaited: Option<Time>,
    /// The number of the operation that it answered last, and when.
    answered: Option<(u64, Time)>,
}

/// Operations of a group that are over, and that a member may still have to do.
#[derive(Clone, Copy, Debug, Default)]
struct Undone {
    bytes: u64,
    /// The number of the last one.
    last: u64,
}

impl Peer {
    /// An operation of so many bytes is answered that was sent as this number.
    fn land(&mut self, bytes: u64, number: u64, all: &mut Traffic) {
        let bytes = bytes.min(self.flying);
        self.flying -= bytes;
        all.flying -= bytes;
        self.has_read(number, all);
    }

    /// An operation of so many bytes is over, and not answered.
    fn sink(&mut self, bytes: u64, sends: u64) {
        let bytes = bytes.min(self.flying);
        self.flying -= bytes;
        (self.sunk, self.fence) = (self.sunk + bytes, sends);
    }

    /// The same, and the member will be asked for its state in this group. The operation was sent as this number.
    fn leave(&mut self, group: GroupId, bytes: u64, number: u64) {
        let bytes = bytes.min(self.flying);
        self.flying -= bytes;
        self.left += bytes;
        let undone = self.undone.entry(group).or_default();
        *undone = Undone { bytes: undone.bytes + bytes, last: undone.last.max(number) };
    }

    /// It will not be asked for its state in this group any more, or has told it: so many bytes it had still to do.
    fn forget(&mut self, group: GroupId) -> Option<u64> {
        let undone = self.undone.remove(&group)?;
        self.left -= undone.bytes;
        Some(undone.bytes)
    }

    /// It has answered what was sent as this number, so it has read all that was sent before.
    fn has_read(&mut self, number: u64, all: &mut Traffic) {
        if number > self.fence {
            all.flying -= core::mem::take(&mut self.sunk);
        }
    }

    /// It does what was sent before this number: it has answered such an operation within this time.
    fn is_before(&self, number: u64, now: Time, within: Duration) -> bool {
        self.answered.is_some_and(|(last, at)| last < number && now.since(at) <= within)
    }

    /// Something waits for room.
    fn is_waited_for(&self) -> bool {
        !self.backlog.is_empty() || self.awaited.is_some()
    }

    /// Bytes that take room on it.
    fn taken(&self) -> u64 {
        self.flying + self.sunk + self.left
    }

    /// One operation always has room, however large it is.
    fn has_room(&self, bytes: u64, window: u64) -> bool {
        self.flying == 0 || self.taken() + bytes <= window || mutant::on(Mutant::NoWindow)
    }

    /// An operation that comes now has room, and overtakes none that waits.
    fn takes(&self, bytes: u64, window: u64) -> bool {
        self.backlog.is_empty() && self.has_room(bytes, window)
    }
}

/// What is under way to all members together: as long as one link's window has room for all of that, each link has.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes that take room.
    flying: u64,
    /// Operations that wait for room.
    waiting: u64,
    /// Bytes that an operation takes at least.
    least: u64,
}

impl Traffic {
    /// Nothing is under way.
    pub fn new(limits: &Limits) -> Traffic {
        let least = limits.link_queue / 2 / u64::from(limits.shard_ops.max(1));
        Traffic { flying: 0, waiting: 0, least }
    }

    /// Bytes that an operation of the stream takes in a member's window.
    pub fn bytes(&self, op: &Op) -> u64 {
        self.least.max((wire::header::HEADER + op.body.len()) as u64)
    }

    /// No link is short of room for so many bytes more.
    fn is_light(&self, bytes: u64, window: u64) -> bool {
        let any = mutant::on(Mutant::NoWindow);
        self.waiting == 0 && (self.flying + bytes <= window || any)
    }
}

/// Bytes that may be under way to a member: its window, or one operation.
pub(crate) fn most(limits: &Limits) -> u64 {
    (limits.link_queue / 2).max(wire::header::HEADER as u64 + u64::from(UNIT))
}

impl<J: Journal> Mirror<J> {
    /// The most bytes that are under way to one member.
    pub(crate) fn most_flying(&self) -> u64 {
        self.peers.values().map(|peer| peer.flying).max().unwrap_or(0)
    }

    /// Bytes that may be under way to a member.
    pub(crate) fn window(&self) -> u64 {
        self.limits.link_queue / 2
    }

    /// True while my link to this device is up.
    pub(crate) fn is_linked(&self, device: DeviceId) -> bool {
        self.peers.get(device).is_some_and(|peer| peer.link.is_some())
    }

    /// True while my link to this device is up, and all that was sent on it is answered or still waited for; but for what it
    /// may still have to do in other groups, as long as that leaves half of its window.
    pub(crate) fn is_clear(&self, device: DeviceId, group: GroupId) -> bool {
        let Some(peer) = self.peers.get(device) else { return false };
        let done = peer.sunk == 0 && !peer.undone.contains_key(&group);
        peer.link.is_some() && done && !self.is_behind(device)
    }

    /// What a member may still have to do of groups in which it will be asked for its state takes more than half of its
    /// window.
    pub(crate) fn is_behind(&self, device: DeviceId) -> bool {
        self.peers.get(device).is_some_and(|peer| peer.left > self.window() / 2)
    }

    /// Sends a frame to a member, if its link is up; what it takes there is not counted.
    pub(crate) fn send_peer(&self, device: DeviceId, header: Header, body: Buf, out: &mut Effects) {
        if let Some(link) = self.peers.get(device).and_then(|peer| peer.link) {
            out.send(link.id, link.frame(header, &body), body);
        }
    }

    /// Sends an operation of the stream to these members. Where a link has no room it waits, unless it `has_turn`.
    pub(crate) fn send_copies(&mut self, key: u64, to: Members, has_turn: bool, out: &mut Effects) {
        let window = self.window();
        let mut header = self.copy_header(key);
        let op = self.ops.get_mut(key).expect("the operation lives");
        let replica = &self.replicas[op.group];
        self.sends += 1;
        if op.flying.is_empty() {
            op.number = self.sends;
        }
        let (bytes, flags) = (self.traffic.bytes(op), header.flags);
        // Only where one other has to have it: of two, one may have done it when the other one refuses.
        let undone = op.reserved && op.local == Local::NotStarted;
        let fresh = undone.then(|| replica.needed()).filter(|n| n.is_one()).unwrap_or_default();
        // As a rule all of them get the same frame.
        let mut sealed: Option<((u32, u8, u16), Head)> = None;
        for (member, device) in replica.config.each(to) {
            let Some(peer) = self.peers.get_mut(device) else { continue };
            let Some(link) = peer.link else { continue };
            if !has_turn && !peer.takes(bytes, window) {
                peer.backlog.push_back(key);
                self.traffic.waiting += 1;
                continue;
            }
            peer.flying += bytes;
            self.traffic.flying += bytes;
            op.flying.insert(member);
            let skipped = match &replica.role {
                Role::Primary(primary) => primary.skipped(op.lsn, member),
                _ => 0,
            };
            let flags = flags | if fresh.intersects(member) { flag::FRESH } else { 0 };
            let differs = (skipped, flags, link.version);
            if sealed.as_ref().is_none_or(|(of, _)| *of != differs) {
                (header.skipped, header.flags) = (skipped.into(), flags);
                sealed = Some((differs, link.seal(header)));
            }
            let (_, head) = sealed.as_ref().expect("just made");
            out.send(link.id, *head, op.body.clone());
        }
    }

    /// The header of an operation of the stream, but for what differs from member to member.
    fn copy_header(&self, key: u64) -> Header {
        let op = self.ops.get(key).expect("the operation lives");
        let replica = &self.replicas[op.group];
        let mut h = self.header_in(Kind::Replicate, op.group, replica.config.epoch);
        h.op = key.into();
        h.volume = op.unit.volume.0.into();
        (h.unit, h.at, h.len) = (op.unit.index.into(), op.at.into(), op.len.into());
        h.lsn = op.lsn.0.into();
        if let Role::Primary(primary) = &replica.role {
            h.commit = primary.commit.0.into();
        }
        (h.sdc, h.seq, h.floor) =
            (op.client.sdc.0.into(), op.client.seq.into(), op.client.floor.into());
        h.incarnation = op.client.incarnation.0.into();
        let lost = op.flags & flag::LOST;
        let zero = op.kind == OpKind::Zero || op.body.is_empty() && lost == 0;
        let copy = match op.kind {
            OpKind::Copy if self.yields(op.group) => flag::COPY | flag::YIELDS,
            OpKind::Copy => flag::COPY,
            _ => 0,
        };
        h.flags = (op.flags & flag::NO_BODY_CRC) | lost | if zero { flag::ZERO } else { 0 } | copy;
        (h.body_len, h.body_crc) = ((op.body.len() as u32).into(), op.body_crc.into());
        h
    }

    /// True when a client's write of so many bytes has to wait until these members have answered more.
    pub(crate) fn is_crowded(
        &mut self,
        now: Time,
        group: GroupId,
        to: Members,
        bytes: u64,
    ) -> bool {
        let window = self.window();
        if self.traffic.is_light(bytes, window) {
            return false;
        }
        let mut crowded = false;
        for device in self.replicas[group].config.devices(to) {
            let peer = self.peers.get_mut(device).filter(|p| p.link.is_some());
            let Some(peer) = peer.filter(|p| !p.takes(bytes, window)) else { continue };
            peer.awaited = peer.awaited.or(Some(now));
            crowded = true;
        }
        crowded
    }

    /// The link to a member is up anew, or gone: nothing is under way on it. True when clients waited for room there.
    pub(crate) fn link_peer(&mut self, device: DeviceId, link: Option<PeerLink>) -> bool {
        let peer = self.peers.get_or_insert_with(device, Peer::default);
        let before = core::mem::replace(peer, Peer { link, ..Peer::default() });
        self.traffic.flying -= before.taken();
        self.traffic.waiting -= before.backlog.len() as u64;
        before.awaited.is_some()
    }

    /// A member answered an operation that took so many bytes and was sent as this number: that makes room.
    #[inline]
    pub(crate) fn make_room(&mut self, now: Time, from: DeviceId, bytes: u64, number: u64) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.land(bytes, number, &mut self.traffic);
        peer.answered = Some((number, now));
        if peer.is_waited_for() {
            peer.awaited = peer.awaited.map(|_| now);
            self.note_room(from);
        }
    }

    /// A member told its state in this group: it has read all operations that were sent before it was asked, so many, and
    /// done those of the group.
    #[cold]
    pub(crate) fn has_told(&mut self, from: DeviceId, group: GroupId, sends: u64) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.has_read(sends + 1, &mut self.traffic);
        if peer.undone.get(&group).is_some_and(|undone| undone.last <= sends) {
            self.traffic.flying -= peer.forget(group).expect("just seen");
        }
        if peer.is_waited_for() {
            self.note_room(from);
        }
    }

    /// An operation is over: members that have not answered it never will. They may not have read it yet.
    #[cold]
    pub(crate) fn give_room(&mut self, group: GroupId, flying: Members, bytes: u64, number: u64) {
        let Some(replica) = self.replicas.get(group) else { return };
        let asked = match &replica.role {
            Role::Primary(primary) => primary.sync.as_ref().map_or(Members::default(), Sync::asked),
            // The configuration changes: `ask_no_more` knows who will be.
            _ => flying,
        };
        for (member, device) in replica.config.each(flying).collect::<Vec<_>>() {
            let Some(peer) = self.peers.get_mut(device) else { continue };
            match asked.intersects(member) {
                true => peer.leave(group, bytes, number),
                false => peer.sink(bytes, self.sends),
            }
            if peer.is_waited_for() {
                self.note_room(device);
            }
        }
    }

    /// A configuration ends, and this is the next one: whoever isn't asked for its state in that will not tell what it has done.
    #[cold]
    pub(crate) fn ask_no_more(&mut self, group: GroupId, next: &GroupConfig) {
        let joiner = next.joiners.first();
        let asks = |device| next.in_sync.contains(&device) || joiner == Some(&device);
        let leads = next.primary == Some(self.me);
        for (device, peer) in self.peers.iter_mut() {
            if !(leads && asks(device))
                && let Some(bytes) = peer.forget(group)
            {
                (peer.sunk, peer.fence) = (peer.sunk + bytes, self.sends);
            }
        }
    }

    fn note_room(&mut self, device: DeviceId) {
        if !self.roomy.contains(&device) {
            self.roomy.push(device);
        }
    }

    /// Sends what waited for room, and lets clients go on.
    pub(crate) fn use_room(&mut self, out: &mut Effects) {
        while let Some(device) = self.roomy.pop() {
            self.send_backlog(device, out);
        }
    }

    fn send_backlog(&mut self, device: DeviceId, out: &mut Effects) {
        let window = self.window();
        loop {
            let Some(peer) = self.peers.get_mut(device) else { return };
            let Some(key) = peer.backlog.front().copied() else { break };
            let Some(member) = self.is_owed(key, device) else {
                self.peers.get_mut(device).expect("as above").backlog.pop_front();
                self.traffic.waiting -= 1;
                continue;
            };
            let bytes = self.traffic.bytes(self.ops.get(key).expect("it is owed"));
            let peer = self.peers.get_mut(device).expect("as above");
            if !peer.has_room(bytes, window) {
                return;
            }
            peer.backlog.pop_front();
            self.traffic.waiting -= 1;
            self.send_copies(key, member, true, out);
        }
        let peer = self.peers.get_mut(device).expect("as above");
        // Not for each answer: all that waits is looked at.
        let roomy = peer.flying == 0 || peer.taken() <= window / 4 * 3;
        if roomy && peer.awaited.take().is_some() {
            self.unpark_all();
        }
    }

    /// Whether a member still needs an operation that waits for it; as which one of the group.
    fn is_owed(&self, key: u64, device: DeviceId) -> Option<Members> {
        let op = self.ops.get(key).filter(|op| !matches!(op.asker, Asker::Nobody))?;
        let member = self.replicas.get(op.group)?.config.member(device);
        let owed = op.sent.intersects(member) && !op.acked.intersects(member);
        owed.then_some(member)
    }

    /// Everything that waits for a lease, a seal or room is tried again.
    pub(crate) fn unpark_all(&mut self) {
        while let Some(group) = self.parked.pop_first() {
            self.unpark(group);
        }
    }

    /// Joiners that stand still are cut off. Time in which this process stood still itself says nothing.
    pub(crate) fn cut_standing(&mut self, now: Time, out: &mut Effects) {
        let awake = self.leases.awake(now);
        let groups: Vec<GroupId> = self.joining.iter().copied().collect();
        for group in groups {
            let joiner = self.sync_mut(group).and_then(|sync| sync.joiner);
            let awaited = joiner.and_then(|joiner| self.peers.get(joiner)?.awaited);
            let after = self.limits.suspect_after;
            let mute = awaited.is_some_and(|since| now.since(since.max(awake)) > after);
            if joiner.is_some_and(|joiner| self.is_stuck(now, awake, group, joiner)) || mute {
                self.cut(now, group, out);
            }
        }
    }

    /// The joiner of this group has had the same oldest operation to answer for too long, and not because of what it got
    /// before that: a window may hold more work than it does in that time, and its device may do one thing after the other.
    /// What waits for room here has not been sent.
    fn is_stuck(&mut self, now: Time, awake: Time, group: GroupId, joiner: DeviceId) -> bool {
        let Some(peer) = self.peers.get(joiner) else { return false };
        let Some(primary) = self.replicas.get_mut(group).and_then(|r| r.primary()) else {
            return false;
        };
        let Some(sync) = &mut primary.sync else { return false };
        let lacks = |key: u64| {
            let op = self.ops.get(key).expect("an operation of the stream lives");
            op.sent.intersects(sync.members) && !op.acked.intersects(sync.members)
        };
        let number = |key: u64| {
            let sent = self.ops.get(key).filter(|op| op.flying.intersects(sync.members));
            sent.map_or(u64::MAX, |op| op.number)
        };
        let owed = match sync.phase {
            Phase::Seal(lsn) => Some((lsn.next(), sync.sealed_after + 1)),
            _ => {
                let oldest = primary.stream.iter().find(|e| !e.done && lacks(e.op));
                oldest.map(|e| (e.lsn, number(e.op)))
            }
        };
        let within = self.limits.suspect_after;
        let owed = owed.filter(|(_, number)| !peer.is_before(*number, now, within));
        let owed = owed.map(|(lsn, _)| lsn);
        let before: Option<(Lsn, Time)> = sync.owes.filter(|(lsn, _)| owed == Some(*lsn));
        sync.owes = owed.map(|lsn| before.unwrap_or((lsn, now)));
        let stands = |(_, since): (Lsn, Time)| now.since(since.max(awake)) > within * STANDS;
        before.is_some_and(stands) && !mutant::on(Mutant::AwaitJoiner)
    }
}
