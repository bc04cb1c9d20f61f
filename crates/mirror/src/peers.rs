//! The peers of this device as a primary: the other replicas of the groups that it leads. This file
//! contains their answers to operations of the stream, and their links. [`crate::resync`] makes
//! them equal, [`crate::copies`] copies blocks to them, and [`crate::stall`] cuts off joiners that
//! stall.

use crate::copies::Copies;
use crate::op::Work;
use crate::replica::Role;
use crate::shard::Shard;
use crate::sync::Phase;
use crate::timers::Timers;
use alloc::vec::Vec;
use base::{DeviceId, Lsn, Time};
use seam::{Effects, UnitStore};
use wire::Status;
use wire::message::Replicated;

/// The state of this device as a primary, apart from its replicas and operations.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub timers: Timers,
    pub copies: Copies,
    /// A joiner has become ready to be admitted.
    pub ready_to_admit: bool,
}

impl Peers {
    /// Takes a replica's answer to a `Replicate`. Returns false if that gives the loop nothing to
    /// do.
    pub(crate) fn replicated<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        from: DeviceId,
        m: &Replicated,
        out: &mut Effects,
    ) -> bool {
        let Replicated { op: key, group, status, .. } = *m;
        let Some(op) = shard.ops.get_mut(key) else { return false };
        // An operation without a place in the stream was sent to no replica.
        if op.group != group || op.lsn != m.lsn || m.lsn == Lsn(0) || op.is_orphan() {
            return false;
        }
        let Some(replica) = shard.replicas.get(group) else { return false };
        if replica.config.epoch != m.epoch {
            return false;
        }
        let member = replica.config.member(from);
        let counts = op.sent.intersects(member);
        if counts && status == Status::Ok {
            op.acked.insert(member);
        }
        if op.in_flight.intersects(member) {
            op.in_flight.remove(member);
            let (bytes, number) = (shard.windows.bytes(op), op.number);
            shard.windows.answered(now, from, bytes, number);
        }
        match status {
            _ if !counts => {} // a joiner that was cut off: its answer only frees room
            Status::Ok => self.check_sent(shard, now, key, out),
            Status::Full => self.refused(shard, now, key, from, member, out),
            Status::SendWhole => self.resend(shard, now, key, member, out),
            _ if shard.replicas.of(group).config.joiners.contains(&from) => {
                self.cut(shard, now, group, out)
            }
            _ => {}
        }
        true
    }

    /// Continues an operation of the stream after an answer of a replica, or when it no longer
    /// needs one.
    pub(crate) fn check_sent<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let Some(op) = shard.ops.get(key) else { return };
        match op.work {
            Work::Write(_) => shard.check_write(now, key, out),
            Work::Copy(_) => self.check_copy(shard, now, key, out),
            Work::Whole { of } => shard.check_whole(now, key, of, out),
            _ => {}
        }
    }

    // ---- links ----

    /// Handles a new link to a device: sends again, in order, what the replica may lack, as far as
    /// there is room.
    pub(crate) fn connected<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        device: DeviceId,
        out: &mut Effects,
    ) {
        for group in shard.replicas.led() {
            let replica = shard.replicas.get(group).expect("listed");
            let member = replica.config.member(device);
            let Role::Primary(primary) = &replica.role else { continue };
            let mine = primary.sync.as_ref().filter(|s| s.members.intersects(member));
            match mine.map(|s| s.phase) {
                // While copying, the timer is for blocks that the device can't read: a link changes
                // nothing.
                None | Some(Phase::Copy) => {}
                Some(phase) => {
                    self.timers.ask_at(group, now);
                    if phase != Phase::Ask {
                        self.send_question(shard, group, out);
                    }
                }
            }
            let replica = shard.replicas.get(group).expect("listed");
            let Role::Primary(primary) = &replica.role else { continue };
            let again = primary.stream.iter().filter(|e| !e.done).map(|e| e.op);
            for key in again.collect::<Vec<u64>>() {
                let op = shard.ops.get_mut(key).expect("an operation of the stream lives");
                op.in_flight.remove(member);
                if op.sent.intersects(member) && !op.acked.intersects(member) {
                    shard.send_operation(key, member, false, out);
                }
            }
        }
        self.ask_again(shard, now, out);
    }

    /// Handles the loss of the link to a device. Cuts a joiner off, so that clients don't wait for
    /// it. Waits for an in-sync replica.
    pub(crate) fn disconnected<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        device: DeviceId,
        out: &mut Effects,
    ) {
        if shard.windows.connect(device, None) {
            shard.replicas.retry_all(&mut shard.ops);
        }
        for group in shard.replicas.led() {
            if shard.replicas.sync_mut(group).is_some_and(|s| s.joiner == Some(device)) {
                self.cut(shard, now, group, out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
