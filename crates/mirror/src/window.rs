//! Windows: the operations in flight to each replica's device, and the operations that wait for
//! room there.
//!
//! A link whose queue is too long is closed. If all unanswered operations were sent again at once
//! when the link is back, the queue could become too long again and again. So every unanswered
//! operation takes room in the replica's **window**, which is half as large as the queue. An
//! operation that finds no room waits, in order, until answers free some. While it waits, clients'
//! writes to that replica wait, too. So a replica that is slower than the clients slows them down,
//! and keeps its link. Later writes of any group wait behind those that wait already. Otherwise a
//! busy group with a low number would leave no room to other groups.
//!
//! An operation may end here before a replica has answered it, because the configuration ended or a
//! joiner was cut off. Its bytes may still wait in the link's queue. They take room until the
//! replica answers something that was sent later, because a link keeps its order. Furthermore the
//! replica's device may hang. If the replica will be asked for its state in that group, the bytes
//! take room until it has answered that question. It answers when it has done the operations.
//! Otherwise a joiner would get a full window from each group in turn. A joiner that hangs in its
//! seal has no operations to do in that group, and answers the question when the seal is durable.
//!
//! Each operation takes at least as much room as if `shard_ops` of them filled the window. Small
//! writes that only a joiner lacks are answered already, and count against no other limit.
//!
//! Invariants:
//! - Bytes that take room are in exactly one of three states: in flight; ended and perhaps not
//!   read; ended and perhaps not done.
//! - The bytes that take room in all windows are the sum over the devices. So while one window
//!   would have room for all of them, every window has, and none has to be looked up.
//! - Operations that wait at a device are sent in the order in which they came.

use crate::op::Op;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::{DeviceId, Duration, GroupId, IdMap, Limits, Mutant, Time, UNIT, mutant};
use wire::PeerLink;

/// A device that this one has dialled as a primary, with the operations in flight to it.
#[derive(Debug, Default)]
struct Peer {
    /// `None` while no dialled link is welcomed there; then nothing is in flight.
    link: Option<PeerLink>,
    /// Bytes of operations of streams that were sent on it and are not answered.
    in_flight: u64,
    /// Bytes of operations that were sent on it and ended without an answer. They may still wait in
    /// its queue.
    abandoned: u64,
    /// The number of the last operation that was sent when the last of these ended.
    fence: u64,
    /// By group: such operations, if the device will be asked for its state in the group. They
    /// count until it has answered.
    undone: BTreeMap<GroupId, Undone>,
    /// Bytes of all operations in `undone`.
    left: u64,
    /// Operations of streams that wait for room, in order.
    backlog: VecDeque<u64>,
    /// The time since which clients wait for room, or that of the last answer after it.
    awaited: Option<Time>,
    /// The number of the operation that it answered last, and when.
    answered: Option<(u64, Time)>,
    /// Groups in which it stalled with operations or a seal to do, and has not told its state
    /// since. It is asked for its state in each of them.
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
    /// Records that an operation of this many bytes ends without an answer.
    fn abandon(&mut self, bytes: u64, sends: u64) {
        let bytes = bytes.min(self.in_flight);
        self.in_flight -= bytes;
        (self.abandoned, self.fence) = (self.abandoned + bytes, sends);
    }

    /// Like `abandon`, for an operation sent with this number in a group in which the device will
    /// be asked for its state.
    fn leave_undone(&mut self, group: GroupId, bytes: u64, number: u64) {
        let bytes = bytes.min(self.in_flight);
        self.in_flight -= bytes;
        self.left += bytes;
        let undone = self.undone.entry(group).or_default();
        *undone = Undone { bytes: undone.bytes + bytes, last: undone.last.max(number) };
    }

    /// Forgets the undone operations of this group: the device has told its state there, or will
    /// not be asked for it. Returns their bytes.
    fn forget(&mut self, group: GroupId) -> Option<u64> {
        self.stalled_in.remove(&group);
        let undone = self.undone.remove(&group)?;
        assert!(self.left >= undone.bytes, "the sum has the bytes of each group");
        self.left -= undone.bytes;
        assert!(self.left == 0 || !self.undone.is_empty(), "the sum has no bytes of other groups");
        Some(undone.bytes)
    }

    /// Records that the device has answered the operation with this number, so it has read
    /// everything that was sent before. Returns the bytes that take no room any more.
    fn has_read(&mut self, number: u64) -> u64 {
        if number > self.fence { core::mem::take(&mut self.abandoned) } else { 0 }
    }

    /// Returns true if something waits for room.
    fn is_waited_for(&self) -> bool {
        !self.backlog.is_empty() || self.awaited.is_some()
    }

    /// Returns the bytes that take room in its window.
    fn taken(&self) -> u64 {
        self.in_flight + self.abandoned + self.left
    }

    /// Returns true if there is room. One operation always has room, however large it is.
    fn has_room(&self, bytes: u64, window: u64) -> bool {
        self.in_flight == 0 || self.taken() + bytes <= window || mutant::on(Mutant::NoWindow)
    }

    /// Returns true if an operation that comes now has room, and overtakes none that waits.
    fn takes(&self, bytes: u64, window: u64) -> bool {
        self.backlog.is_empty() && self.has_room(bytes, window)
    }
}

/// The windows of all devices that this one has dialled as a primary.
#[derive(Debug)]
pub(crate) struct Windows {
    peers: IdMap<DeviceId, Peer>,
    /// The size of a window in bytes.
    window: u64,
    /// The least bytes that an operation takes.
    least: u64,
    /// Bytes that take room in all windows together.
    taken: u64,
    /// Number of operations that wait for room, plus the devices for whose room clients wait.
    waiting: u64,
    /// Number of operations of streams that were handed to links so far.
    sends: u64,
    /// Devices whose windows have room again while something waits for it.
    with_room: Vec<DeviceId>,
}

impl Windows {
    /// Creates the state in which nothing is in flight.
    pub(crate) fn new(limits: &Limits) -> Windows {
        let window = limits.link_queue / 2;
        Windows {
            peers: IdMap::default(),
            window,
            least: window / u64::from(limits.shard_ops.max(1)),
            taken: 0,
            waiting: 0,
            sends: 0,
            with_room: Vec::new(),
        }
    }

    /// Returns the largest number of bytes in flight to a device: its window, or one operation.
    pub(crate) fn most(limits: &Limits) -> u64 {
        (limits.link_queue / 2).max(wire::header::HEADER as u64 + u64::from(UNIT))
    }

    /// Returns the largest number of bytes in flight to one device.
    pub(crate) fn most_flying(&self) -> u64 {
        self.peers.values().map(|peer| peer.in_flight).max().unwrap_or(0)
    }

    /// Returns the bytes that an operation of the stream takes in a window.
    #[inline]
    pub(crate) fn bytes(&self, op: &Op) -> u64 {
        self.least.max((wire::header::HEADER + op.body.len()) as u64)
    }

    // ---- links ----

    /// Returns the link that leads to a device, while it is up.
    #[inline]
    pub(crate) fn link(&self, device: DeviceId) -> Option<PeerLink> {
        self.peers.get(device)?.link
    }

    /// Sets the new link to a device, on which nothing is in flight, or `None`. Returns true if
    /// clients waited for room there.
    pub(crate) fn connect(&mut self, device: DeviceId, link: Option<PeerLink>) -> bool {
        let peer = self.peers.get_or_insert_with(device, Peer::default);
        let before = core::mem::replace(peer, Peer { link, ..Peer::default() });
        self.free(before.taken());
        self.end_waits(before.backlog.len() as u64 + u64::from(before.awaited.is_some()));
        before.awaited.is_some()
    }

    // ---- room ----

    /// Returns the number of operations that were sent so far.
    pub(crate) fn sends(&self) -> u64 {
        self.sends
    }

    /// Returns the number of an operation that is sent now.
    #[inline]
    pub(crate) fn next_number(&mut self) -> u64 {
        self.sends += 1;
        self.sends
    }

    /// Takes an operation for this device. Returns the link if the operation may be sent now.
    /// Otherwise it waits for room, unless it `has_turn`, or for the link.
    #[inline]
    pub(crate) fn send(
        &mut self,
        device: DeviceId,
        key: u64,
        bytes: u64,
        has_turn: bool,
    ) -> Option<PeerLink> {
        let peer = self.peers.get_mut(device)?;
        let link = peer.link?;
        if !has_turn && !peer.takes(bytes, self.window) {
            peer.backlog.push_back(key);
            self.waiting += 1;
            return None;
        }
        peer.in_flight += bytes;
        self.taken += bytes;
        Some(link)
    }

    /// Returns true if no link can be short of room for this many bytes more.
    #[inline]
    pub(crate) fn are_light(&self, bytes: u64) -> bool {
        let any = mutant::on(Mutant::NoWindow);
        self.waiting == 0 && (self.taken + bytes <= self.window || any)
    }

    /// Returns true if a client's write of this many bytes has to wait until this device has
    /// answered more, and records the wait. Clients that wait already come first.
    pub(crate) fn makes_wait(&mut self, now: Time, device: DeviceId, bytes: u64) -> bool {
        let Some(peer) = self.peers.get_mut(device).filter(|p| p.link.is_some()) else {
            return false;
        };
        if peer.awaited.is_none() && peer.takes(bytes, self.window) {
            return false;
        }
        if peer.awaited.is_none() {
            peer.awaited = Some(now);
            self.waiting += 1;
        }
        true
    }

    /// Frees the room of an operation of this many bytes, sent with this number, which the device
    /// has answered.
    #[inline]
    pub(crate) fn answered(&mut self, now: Time, from: DeviceId, bytes: u64, number: u64) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        let bytes = bytes.min(peer.in_flight);
        peer.in_flight -= bytes;
        let free = bytes + peer.has_read(number);
        peer.answered = Some((number, now));
        let awaited = peer.is_waited_for();
        if awaited {
            peer.awaited = peer.awaited.map(|_| now);
        }
        self.free(free);
        if awaited {
            self.note_room(from);
        }
    }

    /// Records that a device has told its state in this group: it has read the first `sends`
    /// operations that were sent, and done those of the group.
    #[cold]
    pub(crate) fn state_reported(&mut self, from: DeviceId, group: GroupId, sends: u64) {
        assert!(sends <= self.sends, "a device has read no more than was sent");
        let Some(peer) = self.peers.get_mut(from) else { return };
        let mut free = peer.has_read(sends + 1);
        if peer.undone.get(&group).is_none_or(|undone| undone.last <= sends) {
            free += peer.forget(group).unwrap_or(0);
        }
        let awaited = peer.is_waited_for();
        self.free(free);
        if awaited {
            self.note_room(from);
        }
    }

    /// Records that an operation of this many bytes, sent to this device with this number, ends
    /// here. The device has not answered it, may not have read it yet, and its answer doesn't count
    /// any more. `asked`: the device will be asked for its state in the group.
    #[cold]
    pub(crate) fn ends(
        &mut self,
        device: DeviceId,
        group: GroupId,
        bytes: u64,
        number: u64,
        asked: bool,
    ) {
        assert!((1..=self.sends).contains(&number), "an operation that ends unanswered was sent");
        let Some(peer) = self.peers.get_mut(device) else { return };
        match asked {
            true => peer.leave_undone(group, bytes, number),
            false => peer.abandon(bytes, self.sends),
        }
        if peer.is_waited_for() {
            self.note_room(device);
        }
    }

    /// Handles the end of a configuration of this group. `asks` returns true for devices that are
    /// asked for their states in the next one. The others will not tell what they have done.
    #[cold]
    pub(crate) fn ask_no_more(&mut self, group: GroupId, asks: impl Fn(DeviceId) -> bool) {
        for (device, peer) in self.peers.iter_mut() {
            // The next question may have to wait for others than this device.
            peer.stalled_in.remove(&group);
            if !asks(device)
                && let Some(bytes) = peer.forget(group)
            {
                (peer.abandoned, peer.fence) = (peer.abandoned + bytes, self.sends);
            }
        }
    }

    /// Subtracts bytes that take no room any more from the sum.
    #[inline]
    fn free(&mut self, bytes: u64) {
        assert!(self.taken >= bytes, "the sum has the bytes of each window");
        self.taken -= bytes;
    }

    /// Subtracts operations and devices that do not wait any more from the sum.
    fn end_waits(&mut self, count: u64) {
        assert!(self.waiting >= count, "the sum has what waits at each device");
        self.waiting -= count;
    }

    // ---- operations that wait ----

    fn note_room(&mut self, device: DeviceId) {
        if !self.with_room.contains(&device) {
            self.with_room.push(device);
        }
    }

    /// Returns true if some device has room for an operation that waits.
    #[inline]
    pub(crate) fn have_room(&self) -> bool {
        !self.with_room.is_empty()
    }

    /// Takes a device whose window has room again.
    pub(crate) fn next_with_room(&mut self) -> Option<DeviceId> {
        self.with_room.pop()
    }

    /// Returns the operation that has waited longest for room at this device.
    pub(crate) fn first_waiting(&self, device: DeviceId) -> Option<u64> {
        self.peers.get(device)?.backlog.front().copied()
    }

    /// Returns true if the device has room for this many bytes.
    pub(crate) fn has_room(&self, device: DeviceId, bytes: u64) -> bool {
        self.peers.get(device).is_some_and(|peer| peer.has_room(bytes, self.window))
    }

    /// Removes the operation that has waited longest.
    pub(crate) fn end_wait(&mut self, device: DeviceId) {
        let first = self.peers.get_mut(device).and_then(|peer| peer.backlog.pop_front());
        self.end_waits(first.is_some().into());
    }

    /// Returns true if clients that waited for room at this device may continue. Call it when no
    /// operation waits there any more. Clients do not continue after every answer, because each
    /// time everything that waits is retried.
    pub(crate) fn lets_clients_go_on(&mut self, device: DeviceId) -> bool {
        let Some(peer) = self.peers.get_mut(device) else { return false };
        let with_room = peer.in_flight == 0 || peer.taken() <= self.window / 4 * 3;
        let go_on = with_room && peer.awaited.take().is_some();
        self.end_waits(go_on.into());
        go_on
    }

    // ---- joiners ----

    /// Returns true if the link to a device is up, and the device has read all operations that
    /// ended without an answer, and done those of this group. What it may still have to do in other
    /// groups may take half of its window.
    pub(crate) fn is_clear(&self, device: DeviceId, group: GroupId) -> bool {
        let Some(peer) = self.peers.get(device) else { return false };
        let done = peer.abandoned == 0 && !peer.undone.contains_key(&group);
        peer.link.is_some() && done && !self.is_behind(device)
    }

    /// Returns true if a device can't take the stream of one more group yet: it still has to tell
    /// its state in a group in which it stalled, or more than half of its window is taken by what
    /// it may still have to do in groups in which it will be asked for its state.
    pub(crate) fn is_behind(&self, device: DeviceId) -> bool {
        let behind = |peer: &Peer| !peer.stalled_in.is_empty() || peer.left > self.window / 2;
        self.peers.get(device).is_some_and(behind)
    }

    /// Returns since when clients wait for room at this device, or since its last answer after
    /// that.
    pub(crate) fn awaited(&self, device: DeviceId) -> Option<Time> {
        self.peers.get(device)?.awaited
    }

    /// Returns true if the device has answered an operation within this time.
    pub(crate) fn answers(&self, device: DeviceId, now: Time, within: Duration) -> bool {
        let answered = self.peers.get(device).and_then(|peer| peer.answered);
        answered.is_some_and(|(_, at)| now.since(at) <= within)
    }

    /// Returns true if the device works on operations that were sent before this number: it has
    /// answered one of them within this time.
    pub(crate) fn is_before(
        &self,
        device: DeviceId,
        number: u64,
        now: Time,
        within: Duration,
    ) -> bool {
        let answered = self.peers.get(device).and_then(|peer| peer.answered);
        answered.is_some_and(|(last, at)| last < number && now.since(at) <= within)
    }

    /// Returns true if the device may still have operations of this group to do that ended here.
    pub(crate) fn has_undone(&self, device: DeviceId, group: GroupId) -> bool {
        self.peers.get(device).is_some_and(|peer| peer.undone.contains_key(&group))
    }

    /// Records that the device stalled. It gets no stream until it has told its state in these
    /// groups, in which it is asked.
    pub(crate) fn stalls(&mut self, device: DeviceId, groups: impl Iterator<Item = GroupId>) {
        if let Some(peer) = self.peers.get_mut(device) {
            peer.stalled_in.extend(groups);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::LinkId;

    const DEVICE: DeviceId = DeviceId(2);
    const GROUP: GroupId = GroupId(1);
    const WINDOW: u64 = 1000;

    /// Creates windows of 1000 bytes, with a link to one device.
    fn windows() -> Windows {
        let limits = Limits { link_queue: 2 * WINDOW, ..Limits::TEST_MIN };
        let mut windows = Windows::new(&limits);
        windows.connect(DEVICE, Some(PeerLink::new(LinkId(1), 1)));
        windows
    }

    fn send(windows: &mut Windows, key: u64, bytes: u64) -> Option<u64> {
        let number = windows.next_number();
        windows.send(DEVICE, key, bytes, false).map(|_| number)
    }

    /// Checks that what takes room to all devices is the sum over them.
    fn check(windows: &Windows) {
        let taken: u64 = windows.peers.values().map(Peer::taken).sum();
        let waits = |p: &Peer| p.backlog.len() as u64 + u64::from(p.awaited.is_some());
        let waiting: u64 = windows.peers.values().map(waits).sum();
        assert_eq!((windows.taken, windows.waiting), (taken, waiting));
    }

    #[test]
    fn frames_without_room_wait_in_order_and_clients_wait_behind_them() {
        let mut windows = windows();
        let first = send(&mut windows, 1, 800).unwrap();
        assert!(windows.are_light(200) && !windows.are_light(201));
        assert_eq!((send(&mut windows, 2, 300), send(&mut windows, 3, 100)), (None, None));
        assert!(windows.makes_wait(Time(5), DEVICE, 1), "others wait already");
        check(&windows);
        assert!(!windows.have_room());
        windows.answered(Time(6), DEVICE, 800, first);
        assert_eq!(windows.next_with_room(), Some(DEVICE));
        for key in [2, 3] {
            assert_eq!(windows.first_waiting(DEVICE), Some(key));
            windows.end_wait(DEVICE);
            assert!(windows.send(DEVICE, key, 100, true).is_some());
        }
        assert!(windows.lets_clients_go_on(DEVICE) && !windows.lets_clients_go_on(DEVICE));
        check(&windows);
        windows.connect(DEVICE, None);
        check(&windows);
        assert!(windows.are_light(WINDOW));
    }

    #[test]
    fn an_operation_takes_room_until_it_is_known_to_be_read_and_done() {
        let mut windows = windows();
        let numbers = [1, 2].map(|key| send(&mut windows, key, 300).unwrap());
        windows.ends(DEVICE, GROUP, 300, numbers[0], false);
        windows.ends(DEVICE, GROUP, 300, numbers[1], true);
        check(&windows);
        assert!(!windows.are_light(500) && !windows.is_clear(DEVICE, GROUP));
        // An answer to something later: the first one has been read.
        let later = send(&mut windows, 3, 100).unwrap();
        windows.answered(Time(1), DEVICE, 100, later);
        check(&windows);
        assert!(windows.are_light(700) && !windows.are_light(701));
        // A state from before says nothing of the second one.
        windows.state_reported(DEVICE, GROUP, numbers[0]);
        assert!(windows.has_undone(DEVICE, GROUP));
        windows.state_reported(DEVICE, GROUP, numbers[1]);
        assert!(windows.is_clear(DEVICE, GROUP) && windows.are_light(WINDOW));
        check(&windows);
    }

    #[test]
    fn a_stalled_device_is_behind_until_it_has_reported_each_group() {
        let mut windows = windows();
        windows.stalls(DEVICE, [GROUP, GroupId(2), GroupId(3)].into_iter());
        windows.state_reported(DEVICE, GroupId(2), 0);
        windows.ask_no_more(GROUP, |_| true);
        assert!(windows.is_behind(DEVICE));
        windows.state_reported(DEVICE, GroupId(3), 0);
        assert!(!windows.is_behind(DEVICE));
    }
}
