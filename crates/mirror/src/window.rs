//! Flow control: each replica has a **window**, which bounds the bytes in flight to it to half of
//! what the queue of its link takes.
//!
//! A link whose queue is too long is closed. If everything that a replica has not answered were
//! sent at once when its link is back, the queue could be too long again, for ever. So what a
//! replica has not answered takes room in its window, and what finds no room waits, in order, until
//! answers make some. While it waits, clients' writes that would go there wait, too. So a replica
//! that is slower than the clients slows them down, and does not lose its link. Later writes wait
//! behind those that wait already, in whatever group. Otherwise a busy group with a low number
//! would leave no room to other groups.
//!
//! An operation may end here before a replica has answered it, because the configuration ended or a
//! joiner was cut off. Its bytes may still wait in the link's queue. They take room until the
//! replica answers something that was sent later, because a link keeps its order. Furthermore the
//! replica's device may hang. If the replica will be asked for its state in that group, the bytes
//! take room until it has answered that question, which it does when it has done the operations.
//! Otherwise a joiner would get a window of each group in turn. A joiner that hangs in its seal has
//! no operations to do in that group, and answers the question when the seal is durable.
//!
//! Each operation takes at least as much room as if `shard_ops` of them filled the window. Small
//! writes that only a joiner lacks are answered already, and count against no other limit.
//!
//! A joiner that no acknowledgement needs is waited for as long as it answers, and cut off when it
//! **stalls**. It stalls if clients wait for room and nothing is answered for `suspect_after`, or
//! if the same operation of a group is the oldest unacknowledged one for [`STANDS`] times as long,
//! because copies and the seal hold clients back, too.

use crate::members::{GroupConfig, Members};
use crate::mirror::Mirror;
use crate::op::{Copying, Local, Op, Work, Write};
use crate::replica::{Primary, Role};
use crate::sync::{ASK_AGAIN, Phase, Sync};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, Duration, GroupId, Limits, Lsn, Mutant, Time, UNIT, mutant};
use seam::{Buf, Effects, Head, UnitStore};
use wire::message::{Replicate, UnitRange};
use wire::{Header, PeerLink};

/// How long a joiner may take for one operation, in multiples of `suspect_after`.
const STANDS: u32 = 5;
/// The longest time until a joiner is asked again while it has too much to do, or has stalled in
/// another group.
const ASK_BEHIND: Duration = Duration::from_secs(1);

/// A device that this one has dialled as a primary, and what is in flight to it.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// `None` while no dialled link is welcomed there; then nothing is in flight.
    pub link: Option<PeerLink>,
    /// Bytes of operations of streams that were sent on it and are not answered.
    flying: u64,
    /// Bytes of operations that were sent on it and ended without an answer. They may still wait in
    /// its queue.
    sunk: u64,
    /// What [`Mirror::sends`] was when the last of these operations ended.
    fence: u64,
    /// By group: such operations, if the device will be asked for its state in the group. They
    /// count until it has answered.
    undone: BTreeMap<GroupId, Undone>,
    /// Bytes of all operations in `undone`.
    left: u64,
    /// Operations of streams that wait for room, in order.
    backlog: VecDeque<u64>,
    /// Clients wait for room, since this time or since the last answer after it.
    awaited: Option<Time>,
    /// The number of the operation that it answered last, and when.
    answered: Option<(u64, Time)>,
    /// Groups in which it stalled with operations or a seal to do, and has not told its state
    /// since. It is asked for it in each of them.
    stalled_in: BTreeSet<GroupId>,
}

/// Operations of a group that have ended here, and that a replica may still have to do.
#[derive(Clone, Copy, Debug, Default)]
struct Undone {
    bytes: u64,
    /// The number of the last of them.
    last: u64,
}

impl Peer {
    /// An operation of this many bytes is answered, which was sent with this number.
    fn land(&mut self, bytes: u64, number: u64, all: &mut Traffic) {
        let bytes = bytes.min(self.flying);
        self.flying -= bytes;
        all.flying -= bytes;
        self.has_read(number, all);
    }

    /// An operation of this many bytes ends without an answer.
    fn sink(&mut self, bytes: u64, sends: u64) {
        let bytes = bytes.min(self.flying);
        self.flying -= bytes;
        (self.sunk, self.fence) = (self.sunk + bytes, sends);
    }

    /// Like `sink`, for an operation sent with this number in a group in which the device will be
    /// asked for its state.
    fn leave(&mut self, group: GroupId, bytes: u64, number: u64) {
        let bytes = bytes.min(self.flying);
        self.flying -= bytes;
        self.left += bytes;
        let undone = self.undone.entry(group).or_default();
        *undone = Undone { bytes: undone.bytes + bytes, last: undone.last.max(number) };
    }

    /// The device has told its state in this group, or will not be asked for it any more. Returns
    /// the bytes that it still had to do.
    fn forget(&mut self, group: GroupId) -> Option<u64> {
        self.ends_stall(group);
        let undone = self.undone.remove(&group)?;
        self.left -= undone.bytes;
        Some(undone.bytes)
    }

    /// What is sent in other groups no longer waits for the device's state in this one.
    fn ends_stall(&mut self, group: GroupId) {
        self.stalled_in.remove(&group);
    }

    /// The device has answered what was sent with this number, so it has read everything that was
    /// sent before.
    fn has_read(&mut self, number: u64, all: &mut Traffic) {
        if number > self.fence {
            all.flying -= core::mem::take(&mut self.sunk);
        }
    }

    /// Returns true if the device works on operations that were sent before this number: it has
    /// answered one of them within this time.
    fn is_before(&self, number: u64, now: Time, within: Duration) -> bool {
        self.answered.is_some_and(|(last, at)| last < number && now.since(at) <= within)
    }

    /// Returns true if the device has answered an operation within this time.
    fn answers(&self, now: Time, within: Duration) -> bool {
        self.answered.is_some_and(|(_, at)| now.since(at) <= within)
    }

    /// Returns true if something waits for room.
    fn is_waited_for(&self) -> bool {
        !self.backlog.is_empty() || self.awaited.is_some()
    }

    /// Returns the bytes that take room in its window.
    fn taken(&self) -> u64 {
        self.flying + self.sunk + self.left
    }

    /// Returns true if there is room. One operation always has room, however large it is.
    fn has_room(&self, bytes: u64, window: u64) -> bool {
        self.flying == 0 || self.taken() + bytes <= window || mutant::on(Mutant::NoWindow)
    }

    /// Returns true if an operation that comes now has room, and overtakes none that waits.
    fn takes(&self, bytes: u64, window: u64) -> bool {
        self.backlog.is_empty() && self.has_room(bytes, window)
    }
}

/// What is in flight to all devices together. While one window has room for all of that, every
/// window has.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes that take room.
    flying: u64,
    /// Number of operations that wait for room, plus the replicas for whose room clients wait.
    waiting: u64,
    /// The least bytes that an operation takes.
    least: u64,
}

impl Traffic {
    /// Creates the state in which nothing is in flight.
    pub fn new(limits: &Limits) -> Traffic {
        let least = limits.link_queue / 2 / u64::from(limits.shard_ops.max(1));
        Traffic { flying: 0, waiting: 0, least }
    }

    /// Returns the bytes that an operation of the stream takes in a window.
    pub fn bytes(&self, op: &Op) -> u64 {
        self.least.max((wire::header::HEADER + op.body.len()) as u64)
    }

    /// Returns true if no link can be short of room for this many bytes more.
    fn is_light(&self, bytes: u64, window: u64) -> bool {
        let any = mutant::on(Mutant::NoWindow);
        self.waiting == 0 && (self.flying + bytes <= window || any)
    }
}

/// Returns the bytes that may be in flight to a device: its window, or one operation.
pub(crate) fn most(limits: &Limits) -> u64 {
    (limits.link_queue / 2).max(wire::header::HEADER as u64 + u64::from(UNIT))
}

impl<S: UnitStore> Mirror<S> {
    /// Returns the largest number of bytes in flight to one device.
    pub(crate) fn most_flying(&self) -> u64 {
        self.peers.values().map(|peer| peer.flying).max().unwrap_or(0)
    }

    /// Returns the window of a device, in bytes.
    pub(crate) fn window(&self) -> u64 {
        self.limits.link_queue / 2
    }

    /// Returns true while this device's link to the other one is up.
    pub(crate) fn is_linked(&self, device: DeviceId) -> bool {
        self.peers.get(device).is_some_and(|peer| peer.link.is_some())
    }

    /// Returns true if this device's link to the other one is up, and the other one has read all
    /// operations that ended without an answer, and done those of this group. What it may still
    /// have to do in other groups may take half of its window.
    pub(crate) fn is_clear(&self, device: DeviceId, group: GroupId) -> bool {
        let Some(peer) = self.peers.get(device) else { return false };
        let done = peer.sunk == 0 && !peer.undone.contains_key(&group);
        peer.link.is_some() && done && !self.is_behind(device)
    }

    /// Returns true if a device can't take the stream of one more group yet: it still has to tell
    /// its state in a group in which it stalled, or more than half of its window is taken by what it
    /// may still have to do in groups in which it will be asked for its state.
    pub(crate) fn is_behind(&self, device: DeviceId) -> bool {
        let behind = |peer: &Peer| !peer.stalled_in.is_empty() || peer.left > self.window() / 2;
        self.peers.get(device).is_some_and(behind)
    }

    /// A joiner that was cut off has done everything that it was sent: its stream begins again with
    /// the next question. No copy of this side runs; while one does, `ask_again` asks later.
    pub(crate) fn restart_stream(
        &mut self,
        now: Time,
        group: GroupId,
        joiner: DeviceId,
        patience: Duration,
        out: &mut Effects,
    ) {
        if self.is_behind(joiner) {
            // Its stream would find no room, or a device that hangs.
            let patience = patience.clamp(ASK_AGAIN * 10, ASK_BEHIND);
            return self.wait_for_answer(now, group, patience);
        }
        // The next answer will take as long as this one.
        self.ask_joiner(now, group, joiner, true, out);
        self.wait_for_answer(now, group, patience);
    }

    /// Sends a frame to a device, if its link is up. The frame takes no room in the window.
    pub(crate) fn send_peer(
        &self,
        device: DeviceId,
        message: impl Into<Header>,
        body: Buf,
        out: &mut Effects,
    ) {
        if let Some(link) = self.peers.get(device).and_then(|peer| peer.link) {
            out.send(link.id, link.frame(message, &body), body);
        }
    }

    /// Sends an operation of the stream to these replicas. Where a link has no room it waits,
    /// unless it `has_turn`.
    pub(crate) fn send_copies(&mut self, key: u64, to: Members, has_turn: bool, out: &mut Effects) {
        let window = self.window();
        let mut message = self.copy_message(key);
        let op = self.ops.get_mut(key).expect("the operation lives");
        let replica = &self.replicas[op.group];
        self.sends += 1;
        if op.flying.is_empty() {
            op.number = self.sends;
        }
        let bytes = self.traffic.bytes(op);
        // Only if exactly one other replica has to have it: of two, one may have done it when the
        // other refuses.
        let undone = op.reserved && op.local == Local::NotStarted;
        let fresh = undone.then(|| replica.needed()).filter(|n| n.is_one()).unwrap_or_default();
        // As a rule all replicas get the same frame.
        let mut sealed: Option<((u32, bool, u16), Head)> = None;
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
            let fresh = fresh.intersects(member);
            let differs = (skipped, fresh, link.version);
            if sealed.as_ref().is_none_or(|(of, _)| *of != differs) {
                (message.skipped, message.fresh) = (skipped, fresh);
                sealed = Some((differs, link.frame_as(message, &op.body, op.body_crc)));
            }
            let (_, head) = sealed.as_ref().expect("just made");
            out.send(link.id, *head, op.body.clone());
        }
    }

    /// Returns the frame of an operation of the stream, except for what differs from replica to
    /// replica.
    fn copy_message(&self, key: u64) -> Replicate {
        let op = self.ops.get(key).expect("the operation lives");
        let replica = &self.replicas[op.group];
        let commit = match &replica.role {
            Role::Primary(primary) => primary.commit,
            _ => Lsn(0),
        };
        let copy = matches!(op.work, Work::Copy(_));
        let lost = matches!(op.work, Work::Copy(Copying { lost: true, .. }));
        let zero = matches!(op.work, Work::Write(Write { zero: true, .. }));
        Replicate {
            op: key,
            group: op.group,
            epoch: replica.config.epoch,
            lsn: op.lsn,
            commit,
            range: UnitRange { unit: op.unit, at: op.at, len: op.len },
            client: op.client,
            skipped: 0,
            fresh: false,
            zero: zero || op.body.is_empty() && !lost,
            yields: copy && self.yields(op.group),
            lost,
            copy,
        }
    }

    /// Returns true if a client's write of this many bytes has to wait until these replicas have
    /// answered more.
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
            // Clients that wait already come first.
            let full = |p: &&mut Peer| p.awaited.is_some() || !p.takes(bytes, window);
            let Some(peer) = peer.filter(full) else { continue };
            if peer.awaited.is_none() {
                peer.awaited = Some(now);
                self.traffic.waiting += 1;
            }
            crowded = true;
        }
        crowded
    }

    /// Sets the new link to a device, or that there is none: nothing is in flight on it. Returns
    /// true if clients waited for room there.
    pub(crate) fn link_peer(&mut self, device: DeviceId, link: Option<PeerLink>) -> bool {
        let peer = self.peers.get_or_insert_with(device, Peer::default);
        let before = core::mem::replace(peer, Peer { link, ..Peer::default() });
        self.traffic.flying -= before.taken();
        self.traffic.waiting -= before.backlog.len() as u64 + u64::from(before.awaited.is_some());
        before.awaited.is_some()
    }

    /// A replica has answered an operation of this many bytes, which was sent with this number:
    /// that makes room.
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

    /// A replica has told its state in this group: it has read the first `sends` operations that
    /// were sent, and done those of the group.
    #[cold]
    pub(crate) fn has_told(&mut self, from: DeviceId, group: GroupId, sends: u64) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        peer.has_read(sends + 1, &mut self.traffic);
        if peer.undone.get(&group).is_none_or(|undone| undone.last <= sends) {
            self.traffic.flying -= peer.forget(group).unwrap_or(0);
        }
        if peer.is_waited_for() {
            self.note_room(from);
        }
    }

    /// An operation ends here. Replicas that have not answered it may not have read it yet, and
    /// their answers don't count any more.
    #[cold]
    pub(crate) fn give_room(&mut self, group: GroupId, flying: Members, bytes: u64, number: u64) {
        let Some(replica) = self.replicas.get(group) else { return };
        let asked = match &replica.role {
            Role::Primary(primary) => primary.sync.as_ref().map_or(Members::default(), Sync::asked),
            // The configuration ends: `ask_no_more` knows which replicas will be asked.
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

    /// A configuration ends, and `next` takes effect: a replica that is not asked for its state in
    /// it will not tell what it has done.
    #[cold]
    pub(crate) fn ask_no_more(&mut self, group: GroupId, next: &GroupConfig) {
        let joiner = next.joiners.first();
        let asks = |device| next.in_sync.contains(&device) || joiner == Some(&device);
        let leads = next.primary == Some(self.me);
        for (device, peer) in self.peers.iter_mut() {
            // The next question may have to wait for others than this device.
            peer.ends_stall(group);
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

    /// Sends what waits for room that there is now, and lets clients go on.
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
        // Not after every answer, because this retries everything that waits.
        let roomy = peer.flying == 0 || peer.taken() <= window / 4 * 3;
        if roomy && peer.awaited.take().is_some() {
            self.traffic.waiting -= 1;
            self.unpark_all();
        }
    }

    /// Returns the replica's bit if it still needs this operation of its backlog.
    fn is_owed(&self, key: u64, device: DeviceId) -> Option<Members> {
        let op = self.ops.get(key).filter(|op| !op.is_orphan())?;
        let member = self.replicas.get(op.group)?.config.member(device);
        let owed = op.sent.intersects(member) && !op.acked.intersects(member);
        owed.then_some(member)
    }

    /// Retries everything that waits for a lease, a seal or room, in order of arrival.
    pub(crate) fn unpark_all(&mut self) {
        let before = self.ready.len();
        while let Some(group) = self.parked.pop_first() {
            self.unpark(group);
        }
        let ops = &self.ops;
        let ready = &mut self.ready.make_contiguous()[before..];
        ready.sort_by_key(|key| ops.get(*key).and_then(|op| op.work.since()));
    }

    /// Cuts off joiners that stall. One that answers nothing at all is cut off in all its groups:
    /// each group would hold its clients back for as long as the first one. One that answers other
    /// operations goes on in the other groups. Time in which this process itself stood still
    /// doesn't count.
    pub(crate) fn cut_standing(&mut self, now: Time, out: &mut Effects) {
        let awake = self.leases.awake(now);
        let join = |group: &GroupId| match &self.replicas.get(*group)?.role {
            Role::Primary(Primary { sync: Some(sync), .. }) => {
                Some((*group, sync.joiner?, matches!(sync.phase, Phase::Seal(_))))
            }
            _ => None,
        };
        let joins: Vec<(GroupId, DeviceId, bool)> = self.joining.iter().filter_map(join).collect();
        let mut stalled: BTreeMap<DeviceId, GroupId> = BTreeMap::new();
        for &(group, joiner, _) in &joins {
            if !self.stalls(now, awake, group, joiner) {
                continue;
            }
            let after = self.limits.suspect_after;
            let answers = self.peers.get(joiner).is_some_and(|peer| peer.answers(now, after));
            match answers || mutant::on(Mutant::StallInTurn) {
                true => self.cut(now, group, out),
                false => drop(stalled.entry(joiner).or_insert(group)),
            }
        }
        for (group, ..) in joins.iter().filter(|(_, joiner, _)| stalled.contains_key(joiner)) {
            self.cut(now, *group, out);
        }
        for (joiner, first) in stalled {
            let Some(peer) = self.peers.get_mut(joiner) else { continue };
            // Only where it joins is it asked. A joiner that seals has no operations to do.
            let owes = |(group, of, seals): &(GroupId, DeviceId, bool)| {
                let owes = *seals || peer.undone.contains_key(group);
                (*of == joiner && owes).then_some(*group)
            };
            let mut groups: BTreeSet<GroupId> = joins.iter().filter_map(owes).collect();
            if groups.is_empty() {
                groups.insert(first);
            }
            peer.stalled_in.append(&mut groups);
        }
    }

    /// Returns true if the joiner of this group stalls, and can be cut off.
    fn stalls(&mut self, now: Time, awake: Time, group: GroupId, joiner: DeviceId) -> bool {
        let stuck = self.is_stuck(now, awake, group, joiner);
        let awaited = self.peers.get(joiner).and_then(|peer| peer.awaited);
        let after = self.limits.suspect_after;
        let mute = awaited.is_some_and(|since| now.since(since.max(awake)) > after);
        (stuck || mute) && self.sync_mut(group).is_some_and(|sync| sync.can_be_cut())
    }

    /// Returns true if the joiner of this group has had the same oldest unacknowledged operation
    /// for too long, and not because of what was sent to it earlier: a window may hold more work
    /// than the joiner can do in that time, and its device may do one thing after the other. What
    /// waits for room here has not been sent.
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
