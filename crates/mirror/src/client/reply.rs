//! Handles the answers of primaries.

use super::op::Place;
use super::routes::Hint;
use super::{Client, Hangup, Leader, Topology, Turn};
use base::DeviceId;
use seam::{BlockError, BlockKind, Buf};
use wire::Status;
use wire::message::Reply;

impl<T: Copy> Client<T> {
    /// Takes an answer that came on the device's present link.
    pub fn reply<M: Topology>(
        &mut self,
        device: DeviceId,
        reply: &Reply,
        body: Buf,
        turn: &mut Turn<'_, M, T>,
    ) {
        self.answered(device, reply, body, turn);
        self.work(turn);
        self.pump(device, turn);
    }

    /// Handles an answer that arrived damaged on the device's present link.
    pub fn bad_reply<M: Topology>(&mut self, device: DeviceId, turn: &mut Turn<'_, M, T>) {
        self.hang_up(device, Hangup::BadBody, turn);
        self.work(turn);
        self.pump(device, turn);
    }

    fn answered<M: Topology>(
        &mut self,
        device: DeviceId,
        reply: &Reply,
        body: Buf,
        turn: &mut Turn<'_, M, T>,
    ) {
        let (key, status) = (reply.op, reply.status);
        let Some(op) = self.ops.get_mut(key) else { return }; // Its request is over.
        if op.place != Place::Sent(device) {
            let session = self.devices.get(device).map_or(0, |d| d.session());
            op.ghost = op.ghost.filter(|ghost| *ghost != (device, session));
            return;
        }
        let request = self.requests.get(op.request).expect("operations end before their request");
        if status == Status::Ok {
            if body.len() != request.answer_len(op) {
                return self.hang_up(device, Hangup::Nonsense, turn);
            }
            return self.finish(key, Ok(body), turn);
        }
        if status == Status::Miscompare {
            let compares = request.request.kind == BlockKind::CompareWrite;
            let at = Reply::miscompared_at(&body).filter(|at| compares && *at < op.len);
            return match at {
                Some(at) => self.finish(key, Err(BlockError::Miscompare(at)), turn),
                None => self.hang_up(device, Hangup::Nonsense, turn),
            };
        }
        let failed = request.error;
        self.free(key);
        if let Some(error) = failed {
            return self.finish(key, Err(error), turn);
        }
        self.refused(key, device, reply, turn);
    }

    /// Decides whether an operation that was not done fails, or is sent again.
    fn refused<M: Topology>(
        &mut self,
        key: u64,
        device: DeviceId,
        reply: &Reply,
        turn: &mut Turn<'_, M, T>,
    ) {
        match reply.status {
            Status::Ok | Status::Miscompare => unreachable!("dealt with"),
            Status::Full => self.hold(key, reply.part_done, turn),
            Status::Lost => self.finish(key, Err(BlockError::Lost), turn),
            Status::Media => self.finish(key, Err(BlockError::Media), turn),
            Status::Superseded => self.finish(key, Err(BlockError::Superseded), turn),
            Status::Forgotten => self.finish(key, Err(BlockError::Forgotten), turn),
            Status::Behind | Status::Busy => self.ops.put_off(key, turn.now),
            // Servers say `SendWhole` only to each other.
            Status::Damaged | Status::SendWhole => self.again(key, turn),
            Status::Stale => self.stale(key, device, reply, turn),
            Status::NoVolume | Status::OutOfRange | Status::ReadOnly => {
                match self.verdict(key, turn.map) {
                    Some(error) => self.finish(key, Err(error), turn),
                    None => {
                        self.need_map(reply.map, turn);
                        self.ops.put_off(key, turn.now);
                    }
                }
            }
        }
    }

    /// Sends an operation again whose body arrived damaged: at once the first time, later after
    /// that.
    fn again<M: Topology>(&mut self, key: u64, turn: &mut Turn<'_, M, T>) {
        let op = self.ops.get_mut(key).expect("it was just answered");
        if op.delays == 0 {
            op.delays = 1;
            self.ops.set_loose(key);
        } else {
            self.ops.put_off(key, turn.now);
        }
    }

    /// Returns what this client's own map says about the volume and range that a device doesn't
    /// accept.
    fn verdict(&self, key: u64, map: &impl Topology) -> Option<BlockError> {
        let request = self.requests.get(self.ops.get(key)?.request)?;
        super::request::place(&request.request, map).err()
    }

    /// Handles a device that doesn't serve the group in the epoch that was named.
    fn stale<M: Topology>(
        &mut self,
        key: u64,
        device: DeviceId,
        reply: &Reply,
        turn: &mut Turn<'_, M, T>,
    ) {
        let op = self.ops.get(key).expect("it was just answered");
        let (group, asked) = (op.group, op.epoch);
        let (epoch, map) = (reply.epoch, reply.map);
        if let Some(leader) = reply.leader.filter(|_| epoch > asked) {
            self.routes.learn(group, Hint { device: leader, epoch, map });
        } else {
            self.routes.denies(group, device, asked);
        }
        self.need_map(map, turn);
        match self.routes.leader(group, turn.map) {
            Leader::At(at, epoch) if (at, epoch) == (device, asked) => {
                self.ops.put_off(key, turn.now)
            }
            _ => self.ops.set_loose(key),
        }
    }
}
