//! Sends the operations of streams: each to the replicas that need it, as far as their windows have
//! room. An operation that finds no room is sent when there is some.

use crate::members::ReplicaSet;
use crate::op::{Copying, Local, Op, Work, Write};
use crate::pace::Purpose;
use crate::replica::{Replica, Role};
use crate::replicas::Replicas;
use crate::shard::Shard;
use crate::sync::Sync;
use crate::window::Windows;
use base::{DeviceId, GroupId, Lsn, Time};
use seam::{Buf, Effects, Head, UnitStore};
use wire::Header;
use wire::message::{Replicate, UnitRange};

impl Windows {
    /// Sends a frame to a device, if its link is up. The frame takes no room in the window.
    pub(crate) fn send_frame(
        &self,
        device: DeviceId,
        message: impl Into<Header>,
        body: Buf,
        out: &mut Effects,
    ) {
        if let Some(link) = self.link(device) {
            out.send(link.id, link.frame(message, &body), body);
        }
    }

    /// Sends an operation of a replica's stream to these other replicas. Where a link has no room
    /// it waits, unless it `has_turn`.
    #[inline]
    pub(crate) fn send_operation(
        &mut self,
        (key, op): (u64, &mut Op),
        replica: &Replica,
        to: ReplicaSet,
        has_turn: bool,
        out: &mut Effects,
    ) {
        let mut message = message(key, op, replica);
        let number = self.next_number();
        if op.in_flight.is_empty() {
            op.number = number;
        }
        let bytes = self.bytes(op);
        // Only if exactly one other replica needs it: of two, one may have done the write when the
        // other refuses it.
        let undone = op.reserved && op.local == Local::NotStarted;
        let fresh = undone.then(|| replica.needed()).filter(|n| n.is_one()).unwrap_or_default();
        // As a rule all replicas get the same frame.
        let mut sealed: Option<((u32, bool, u16), Head)> = None;
        for (member, device) in replica.config.each(to) {
            let Some(link) = self.send(device, key, bytes, has_turn) else { continue };
            op.in_flight.insert(member);
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

    /// Returns true if a client's write of this many bytes has to wait until these devices have
    /// answered more.
    #[inline]
    pub(crate) fn are_crowded(
        &mut self,
        now: Time,
        devices: impl Iterator<Item = DeviceId>,
        bytes: u64,
    ) -> bool {
        if self.are_light(bytes) {
            return false;
        }
        let mut crowded = false;
        for device in devices {
            crowded |= self.makes_wait(now, device, bytes);
        }
        crowded
    }

    /// Handles the end of an operation at the primary. Replicas that have not answered it may not
    /// have read it yet, and their answers don't count any more.
    #[cold]
    pub(crate) fn give_room(
        &mut self,
        replica: &Replica,
        group: GroupId,
        in_flight: ReplicaSet,
        (bytes, number): (u64, u64),
    ) {
        let asked = match &replica.role {
            Role::Primary(primary) => {
                primary.sync.as_ref().map_or(ReplicaSet::default(), Sync::asked)
            }
            // The configuration ends: `ask_no_more` knows which replicas will be asked.
            _ => in_flight,
        };
        for (member, device) in replica.config.each(in_flight) {
            self.ends(device, group, bytes, number, asked.intersects(member));
        }
    }
}

/// Returns the frame of an operation of the stream, except for what differs from replica to
/// replica.
#[inline]
fn message(key: u64, op: &Op, replica: &Replica) -> Replicate {
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
        // The receiver may delay such copies in favour of its own clients.
        yields: copy && matches!(replica.purpose(), Purpose::Rebuild | Purpose::Move),
        lost,
        copy,
    }
}

/// Returns the replica's bit if it still needs this operation of its backlog.
fn owed(op: Option<&Op>, replicas: &Replicas, device: DeviceId) -> Option<ReplicaSet> {
    let op = op.filter(|op| !op.is_orphan())?;
    let member = replicas.get(op.group)?.config.member(device);
    let owed = op.sent.intersects(member) && !op.acked.intersects(member);
    owed.then_some(member)
}

impl<S: UnitStore> Shard<S> {
    /// Sends an operation of the stream to these replicas, as far as their windows have room, or
    /// because it `has_turn`.
    pub(crate) fn send_operation(
        &mut self,
        key: u64,
        to: ReplicaSet,
        has_turn: bool,
        out: &mut Effects,
    ) {
        if to.is_empty() {
            return;
        }
        let op = self.ops.get_mut(key).expect("the operation lives");
        let replica = self.replicas.of(op.group);
        self.windows.send_operation((key, op), replica, to, has_turn, out);
    }

    /// Sends waiting operations that have room by now, and lets clients continue.
    pub(crate) fn use_room(&mut self, out: &mut Effects) {
        while let Some(device) = self.windows.next_with_room() {
            self.send_backlog(device, out);
        }
    }

    fn send_backlog(&mut self, device: DeviceId, out: &mut Effects) {
        while let Some(key) = self.windows.first_waiting(device) {
            let Some(member) = owed(self.ops.get(key), &self.replicas, device) else {
                self.windows.end_wait(device);
                continue;
            };
            let bytes = self.windows.bytes(self.ops.get(key).expect("it is owed"));
            if !self.windows.has_room(device, bytes) {
                return;
            }
            self.windows.end_wait(device);
            self.send_operation(key, member, true, out);
        }
        if self.windows.lets_clients_go_on(device) {
            self.replicas.retry_all(&mut self.ops);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::GroupConfig;
    use crate::testing::{GROUP, ME, NOW, Rig, SECOND, bits, link_to, op, write};
    use base::{BLOCK, MapVersion, UnitKey};
    use seam::ReplicaRecord;

    const MEMBER: ReplicaSet = ReplicaSet(2);
    const NONE: ReplicaSet = ReplicaSet(0);

    #[test]
    fn a_replica_is_owed_what_it_was_sent_and_has_not_acknowledged() {
        let mut replica = Replica::new(ReplicaRecord::default());
        let replicas = [ME, SECOND].to_vec();
        let config = GroupConfig { replicas, ..GroupConfig::default() };
        replica.enter(config, MapVersion(1), ME);
        let replicas = Replicas::new(ME, [(GROUP, replica)].into_iter());
        let sent_op = |group, sent, acked, work| {
            let op = Op::new(group, UnitKey::default(), 0, BLOCK, work);
            Op { sent, acked, ..op }
        };
        let whole = Work::Whole { of: None };
        let orphan = Work::Orphan { changes: false, reads: false };
        for (what, device, expected) in [
            (sent_op(GROUP, MEMBER, NONE, whole), SECOND, Some(MEMBER)),
            (sent_op(GROUP, MEMBER, MEMBER, whole), SECOND, None),
            (sent_op(GROUP, NONE, NONE, whole), SECOND, None),
            (sent_op(GROUP, MEMBER, NONE, whole), DeviceId(3), None),
            (sent_op(GroupId(8), MEMBER, NONE, whole), SECOND, None),
            (sent_op(GROUP, MEMBER, NONE, orphan), SECOND, None),
        ] {
            assert_eq!(owed(Some(&what), &replicas, device), expected, "{what:?} {device}");
        }
        assert_eq!(owed(None, &replicas, SECOND), None, "it is over");
    }

    /// What a window has room for is sent at once, and the rest in order when there is some.
    #[test]
    fn operations_without_room_are_sent_when_an_answer_makes_some() {
        let mut rig = Rig::leading(&[2], &[]);
        let limits = base::Limits { link_queue: 10_000, ..base::Limits::TEST_MIN };
        rig.shard.windows = Windows::new(&limits);
        rig.shard.windows.connect(SECOND, Some(link_to(2)));
        let keys = [0, 1, 2].map(|i| rig.send(Op { at: i * BLOCK, ..op(write()) }, &[2]));
        let in_flight = keys.map(|key| rig.op(key).in_flight.is_empty());
        assert_eq!(in_flight, [false, true, true], "two wait for room");
        // One of them is not needed there any more.
        rig.op(keys[1]).acked = bits(&[2]);
        let (bytes, number) = (rig.shard.windows.bytes(rig.shard.ops.get(keys[0]).unwrap()), 1);
        rig.shard.windows.answered(NOW, SECOND, bytes, number);
        rig.shard.use_room(&mut rig.out);
        assert_eq!(rig.left(), "Replicate 3 to 2");
    }

    /// A refusal must be possible only while no third replica can have done the write.
    #[test]
    fn a_write_may_be_refused_for_the_spare_while_nobody_else_needs_it() {
        for (others, joiner, reserved, begun, fresh) in [
            (&[2][..], None, true, false, true),
            (&[2], None, false, false, false),
            (&[2], None, true, true, false),
            (&[2, 3], None, true, false, false),
            (&[2], Some(4), true, false, true),
        ] {
            let mut rig = match joiner {
                Some(joiner) => Rig::filling(others, joiner),
                None => Rig::leading(others, &[]),
            };
            let key = rig.hold(op(write()));
            let to = rig.replica().recipients();
            rig.op(key).reserved = reserved;
            rig.op(key).local = if begun { Local::Running } else { Local::NotStarted };
            rig.op(key).lsn = rig.primary().enter(key, to);
            rig.shard.send_operation(key, to, false, &mut rig.out);
            let left = rig.left();
            assert_eq!(left.contains("fresh to 2"), fresh, "{others:?}: {left}");
            assert!(!left.contains("fresh to 3") && !left.contains("fresh to 4"), "{left}");
        }
    }
}
