//! How operations of streams go out: each to the replicas that need it, as far as their windows
//! have room. What finds none goes when there is some.

use crate::members::{GroupConfig, ReplicaSet};
use crate::mirror::Mirror;
use crate::op::{Copying, Local, Work, Write};
use crate::replica::Role;
use crate::sync::Sync;
use base::{DeviceId, GroupId, Lsn, Time};
use seam::{Buf, Effects, Head, UnitStore};
use wire::Header;
use wire::message::{Replicate, UnitRange};

impl<S: UnitStore> Mirror<S> {
    /// Sends a frame to a device, if its link is up. The frame takes no room in the window.
    pub(crate) fn send_peer(
        &self,
        device: DeviceId,
        message: impl Into<Header>,
        body: Buf,
        out: &mut Effects,
    ) {
        if let Some(link) = self.windows.link(device) {
            out.send(link.id, link.frame(message, &body), body);
        }
    }

    /// Sends an operation of the stream to these replicas. Where a link has no room it waits,
    /// unless it `has_turn`.
    pub(crate) fn send_operation(
        &mut self,
        key: u64,
        to: ReplicaSet,
        has_turn: bool,
        out: &mut Effects,
    ) {
        let mut message = self.copy_message(key);
        let op = self.ops.get_mut(key).expect("the operation lives");
        let replica = &self.replicas[op.group];
        let number = self.windows.next_number();
        if op.in_flight.is_empty() {
            op.number = number;
        }
        let bytes = self.windows.bytes(op);
        // Only if exactly one other replica has to have it: of two, one may have done it when the
        // other refuses.
        let undone = op.reserved && op.local == Local::NotStarted;
        let fresh = undone.then(|| replica.needed()).filter(|n| n.is_one()).unwrap_or_default();
        // As a rule all replicas get the same frame.
        let mut sealed: Option<((u32, bool, u16), Head)> = None;
        for (member, device) in replica.config.each(to) {
            let Some(link) = self.windows.send(device, key, bytes, has_turn) else { continue };
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
    #[inline]
    pub(crate) fn is_crowded(
        &mut self,
        now: Time,
        group: GroupId,
        to: ReplicaSet,
        bytes: u64,
    ) -> bool {
        if self.windows.are_light(bytes) {
            return false;
        }
        let mut crowded = false;
        for device in self.replicas[group].config.devices(to) {
            crowded |= self.windows.crowd(now, device, bytes);
        }
        crowded
    }

    /// An operation ends here. Replicas that have not answered it may not have read it yet, and
    /// their answers don't count any more.
    #[cold]
    pub(crate) fn give_room(
        &mut self,
        group: GroupId,
        in_flight: ReplicaSet,
        bytes: u64,
        number: u64,
    ) {
        let Some(replica) = self.replicas.get(group) else { return };
        let asked = match &replica.role {
            Role::Primary(primary) => {
                primary.sync.as_ref().map_or(ReplicaSet::default(), Sync::asked)
            }
            // The configuration ends: `ask_no_more` knows which replicas will be asked.
            _ => in_flight,
        };
        for (member, device) in replica.config.each(in_flight) {
            self.windows.ends(device, group, bytes, number, asked.intersects(member));
        }
    }

    /// A configuration ends, and `next` takes effect: a replica that is not asked for its state in
    /// it will not tell what it has done.
    #[cold]
    pub(crate) fn ask_no_more(&mut self, group: GroupId, next: &GroupConfig) {
        let leads = next.primary == Some(self.me);
        let joiner = next.joiners.first();
        let asks = |device| next.in_sync.contains(&device) || joiner == Some(&device);
        self.windows.ask_no_more(group, |device| leads && asks(device));
    }

    /// Sends what waits for room that there is now, and lets clients go on.
    pub(crate) fn use_room(&mut self, out: &mut Effects) {
        while let Some(device) = self.windows.next_with_room() {
            self.send_backlog(device, out);
        }
    }

    fn send_backlog(&mut self, device: DeviceId, out: &mut Effects) {
        while let Some(key) = self.windows.first_waiting(device) {
            let Some(member) = self.is_owed(key, device) else {
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
            self.unpark_all();
        }
    }

    /// Returns the replica's bit if it still needs this operation of its backlog.
    fn is_owed(&self, key: u64, device: DeviceId) -> Option<ReplicaSet> {
        let op = self.ops.get(key).filter(|op| !op.is_orphan())?;
        let member = self.replicas.get(op.group)?.config.member(device);
        let owed = op.sent.intersects(member) && !op.acked.intersects(member);
        owed.then_some(member)
    }

    /// Retries everything that waits for a lease, a seal or room, in order of arrival.
    pub(crate) fn unpark_all(&mut self) {
        let before = self.ops.ready();
        while let Some(group) = self.ops.next_parked() {
            self.unpark(group);
        }
        self.ops.sort_ready(before);
    }
}
