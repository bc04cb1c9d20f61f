//! What is under way to each member: at most half of what its link's queue takes.
//!
//! A link whose queue is too long is given up. If all that a member has not answered were sent at once when its link is
//! back, that could be too long again, for ever. So what a member has not answered counts against its window, and what
//! finds no room waits, in order, until answers make some. While it waits, clients' writes that would go there wait, too:
//! a member that is slower than the clients slows them down, and isn't lost by it.
//!
//! A joiner that no acknowledgement needs is waited for as long as it answers; one that stands still is cut off.

use crate::mirror::Mirror;
use crate::op::{Asker, Op};
use crate::replica::Members;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, LinkId, Time};
use seam::{Buf, Effects, Head, Journal};

/// A link that I dialled to a member, and what is under way on it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub link: LinkId,
    /// Bytes of operations of streams that were sent on it and are not answered.
    flying: u64,
    /// Operations of streams that wait for room, in order.
    backlog: VecDeque<u64>,
    /// Clients wait for room, since then or since the last answer.
    awaited: Option<Time>,
}

impl Peer {
    /// A link on which nothing was sent.
    pub fn new(link: LinkId) -> Peer {
        Peer { link, flying: 0, backlog: VecDeque::new(), awaited: None }
    }

    /// Clients' writes wait for room on it.
    pub fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// So many bytes are under way no more. True when something waits for the room.
    fn land(&mut self, bytes: u64) -> bool {
        self.flying = self.flying.saturating_sub(bytes);
        !self.backlog.is_empty() || self.awaited.is_some()
    }

    /// One operation always has room, however large it is.
    fn has_room(&self, bytes: u64, window: u64) -> bool {
        self.flying == 0 || self.flying + bytes <= window
    }
}

/// Bytes that an operation of the stream takes in a link's queue.
pub(crate) fn bytes(op: &Op) -> u64 {
    (wire::header::HEADER + op.body.len()) as u64
}

impl<J: Journal> Mirror<J> {
    fn window(&self) -> u64 {
        self.limits.link_queue / 2
    }

    /// Sends a frame to a member, if its link is up; what it takes there is not counted.
    pub(crate) fn send_peer(&self, device: DeviceId, head: Head, body: Buf, out: &mut Effects) {
        if let Some(peer) = self.peers.get(&device) {
            out.send(peer.link, head, body);
        }
    }

    /// Of these members, those that get an operation of the stream now. For the others it waits.
    pub(crate) fn take_room(&mut self, key: u64, to: Members) -> Members {
        let window = self.window();
        let op = self.ops.get_mut(key).expect("the operation lives");
        let config = &self.replicas[op.group].config;
        let bytes = bytes(op);
        let mut now = Members::default();
        for device in config.devices(to) {
            let Some(peer) = self.peers.get_mut(&device) else { continue };
            if peer.backlog.is_empty() && peer.has_room(bytes, window) {
                peer.flying += bytes;
                now.insert(config.member(device));
            } else {
                peer.backlog.push_back(key);
            }
        }
        op.flying.insert(now);
        now
    }

    /// A member answered an operation that took so many bytes: that makes room.
    pub(crate) fn make_room(&mut self, now: Time, from: DeviceId, bytes: u64) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.awaited = peer.awaited.map(|_| now);
        if peer.land(bytes) {
            self.note_room(from);
        }
    }

    /// An operation of a group is over: members that have not answered it never will.
    pub(crate) fn give_room(&mut self, group: GroupId, flying: Members, bytes: u64) {
        if flying.is_empty() {
            return;
        }
        let Some(replica) = self.replicas.get(group) else { return };
        for device in replica.config.devices(flying).collect::<Vec<_>>() {
            if self.peers.get_mut(&device).is_some_and(|peer| peer.land(bytes)) {
                self.note_room(device);
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
            let Some(peer) = self.peers.get_mut(&device) else { return };
            let Some(key) = peer.backlog.front().copied() else { break };
            let Some(member) = self.is_owed(key, device) else {
                self.peers.get_mut(&device).expect("as above").backlog.pop_front();
                continue;
            };
            let op = self.ops.get_mut(key).expect("it is owed");
            let bytes = bytes(op);
            let peer = self.peers.get_mut(&device).expect("as above");
            if !peer.has_room(bytes, window) {
                return;
            }
            peer.backlog.pop_front();
            peer.flying += bytes;
            op.flying.insert(member);
            self.send_copies_of(key, member, out);
        }
        let peer = self.peers.get_mut(&device).expect("as above");
        // Not for each answer: all that waits is looked at.
        if peer.flying <= window / 4 * 3 && peer.awaited.take().is_some() {
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

    /// Whether a client's write has to wait until members of the group have answered more.
    pub(crate) fn is_crowded(&mut self, now: Time, key: u64) -> bool {
        let window = self.window();
        let op = self.ops.get(key).expect("the operation lives");
        let (replica, bytes) = (&self.replicas[op.group], bytes(op));
        let mut crowded = false;
        for device in replica.config.devices(replica.recipients()) {
            let Some(peer) = self.peers.get_mut(&device) else { continue };
            if !peer.backlog.is_empty() || !peer.has_room(bytes, window) {
                peer.awaited = peer.awaited.or(Some(now));
                crowded = true;
            }
        }
        crowded
    }

    /// Everything that waits for a lease, a seal or room is tried again.
    pub(crate) fn unpark_all(&mut self) {
        while let Some(group) = self.parked.pop_first() {
            self.unpark(group);
        }
    }

    /// Joiners that clients wait for and that answer nothing any more are cut off.
    pub(crate) fn cut_standing(&mut self, now: Time, out: &mut Effects) {
        let stands = |peer: &Peer| {
            peer.awaited.is_some_and(|since| now.since(since) > self.limits.suspect_after)
        };
        let standing: Vec<DeviceId> =
            self.peers.iter().filter(|(_, peer)| stands(peer)).map(|(d, _)| *d).collect();
        if standing.is_empty() {
            return;
        }
        let groups: Vec<GroupId> = self.joining.iter().copied().collect();
        for group in groups {
            let joiner = self.sync_mut(group).and_then(|sync| sync.joiner);
            if joiner.is_some_and(|joiner| standing.contains(&joiner)) {
                self.cut(now, group, out);
            }
        }
    }
}
