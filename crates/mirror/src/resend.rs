//! Blocks that a primary sends again, because a replica could not do an operation (rule R13), or
//! because it may have done one that was taken back (rule R15).
//!
//! A replica whose answer is needed gets whole blocks. The primary reads them and sends them as
//! another write of its stream: under the name of the client's write that the replica could not do,
//! or under none for blocks that the scrubber of a secondary has found. A client's write keeps its
//! range exclusively meanwhile, so nothing that overlaps is in flight.
//!
//! Clients don't wait for a joiner that no acknowledgement needs, and no range is held for it. It
//! gets the blocks as copies of its sync.

use crate::members::ReplicaSet;
use crate::op::{Local, Op, Work, Write};
use crate::peers::Peers;
use crate::shard::Shard;
use base::{BLOCK, BlockSet, GroupId, Lsn, Time, UnitKey};
use seam::{Buf, Effects, UnitStore};
use wire::Status;

impl Peers {
    /// Handles a replica that could not do an operation: blocks that a write overwrites in part are
    /// damaged there, or the body has changed in its memory. A replica whose answer is needed is
    /// sent whole blocks, while the write has its range. The sync of a joiner copies them again.
    pub(crate) fn resend<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        member: ReplicaSet,
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("the caller has it");
        let done = op.acked.intersects(member);
        match &mut op.work {
            Work::Write(write) if done || write.whole.sent.intersects(member) => return,
            Work::Write(write) if shard.replicas.of(op.group).needed().intersects(member) => {
                write.whole.add(member);
                return shard.check_write(now, key, out);
            }
            Work::Whole { of } if !done => {
                let of = *of;
                return shard.send_whole_again(now, key, of, out);
            }
            Work::Write(_) => {}
            Work::Copy(_) if !done => {}
            _ => return,
        }
        op.acked.insert(member);
        let (group, unit, blocks) = (op.group, op.unit, BlockSet::touching(op.at, op.len));
        self.copy_again(shard, now, group, unit, blocks, out);
        self.check_sent(shard, now, key, out);
    }

    /// Copies these blocks to the joiner again: it could not write them because it has damaged
    /// ones, or it may have done a write that was taken back. Clients don't wait for it, so the
    /// write's range may be free and another write in flight there. So the blocks are copied like
    /// all others that may differ.
    pub(crate) fn copy_again<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        group: GroupId,
        unit: UnitKey,
        blocks: BlockSet,
        out: &mut Effects,
    ) {
        let Some(sync) = shard.replicas.sync_mut(group) else { return };
        if sync.add(unit, blocks) {
            shard.replicas.retry(&mut shard.ops, group);
        }
        self.advance(shard, now, group, out);
    }
}

impl<S: UnitStore> Shard<S> {
    /// Reads the blocks of a write whole for the replicas that need them. The write is done here.
    pub(crate) fn read_whole(&mut self, now: Time, key: u64, out: &mut Effects) {
        let op = self.ops.get_mut(key).expect("the caller has it");
        assert!(op.local == Local::Done, "a write that others need whole is done here");
        let write = op.write_mut().expect("only a write needs more than its own range");
        let to = write.whole.begin();
        assert!(!to.is_empty(), "blocks are read whole for some replica");
        let first = op.at / BLOCK * BLOCK;
        let len = (op.at + op.len).next_multiple_of(BLOCK) - first;
        let (group, unit, client) = (op.group, op.unit, op.client);
        let whole = Op::new(group, unit, first, len, Work::Whole { of: Some(key) });
        let whole = self.ops.insert(Op { client, sent: to, ..whole });
        self.start_job(now, whole, out);
    }

    /// Sends whole blocks, which were read, as another write of the stream.
    pub(crate) fn send_whole(&mut self, key: u64, data: Buf, crc: Option<u32>, out: &mut Effects) {
        if self.replicas.has_config_ended(self.ops.get(key)) {
            return self.drop_over(key);
        }
        if self.known.is_gone(self.ops.get(key).expect("the caller has it").unit.volume) {
            return self.end_whole(key, out);
        }
        let op = self.ops.get_mut(key).expect("the caller has it");
        let replica = self.replicas.get_mut(op.group).expect("the operation's replica is here");
        let to = ReplicaSet(op.sent.0 & replica.recipients().0);
        // Acknowledgements need these replicas, and none that they need is ever cut off.
        assert!(!to.is_empty(), "blocks were read whole for nobody");
        let primary = replica.primary().expect("only a primary reads blocks whole for others");
        op.body_crc = crc.or_else(|| Some(base::crc::crc32c(&data)));
        (op.body, op.sent) = (data, to);
        assert!(op.lsn == Lsn(0), "whole blocks get one place in the stream");
        op.lsn = primary.enter(key, to);
        self.send_operation(key, to, false, out);
    }

    /// Reads and sends the whole blocks once more, to all replicas that have not answered: the
    /// blocks have changed in a replica's memory and were not written. A secondary whose scrubber
    /// has asked for them asks again.
    fn send_whole_again(&mut self, now: Time, key: u64, of: Option<u64>, out: &mut Effects) {
        let op = self.end_op(key);
        let left = op.sent.without(op.acked);
        self.leave_stream(op.group, op.lsn);
        let Some(write) = of.and_then(|of| self.ops.get_mut(of)) else { return };
        write.acked.insert(op.sent.without(left));
        if let Some(Write { whole, .. }) = write.write_mut() {
            whole.end(left);
        }
        self.check_write(now, of.expect("it has one"), out);
    }

    /// Ends a write of a deleted volume: there is nothing to send, and it must not be acknowledged
    /// as if the other replica had it.
    fn end_whole(&mut self, key: u64, out: &mut Effects) {
        let op = self.end_op(key);
        let Work::Whole { of: Some(of) } = op.work else { return };
        if let Some(lsn) = self.ops.get(of).map(|write| write.lsn) {
            self.finish_client(of, Status::NoVolume, out);
            self.leave_stream(op.group, lsn);
        }
    }

    /// Ends the sending of whole blocks when all replicas have them, and continues the write that
    /// they belong to: the replicas have that now, too.
    pub(crate) fn check_whole(&mut self, now: Time, key: u64, of: Option<u64>, out: &mut Effects) {
        let op = self.ops.get(key).expect("the caller has it");
        if op.lsn.0 == 0 || !op.acked.contains_all(op.sent) {
            return;
        }
        let (group, lsn, sent, bytes) = (op.group, op.lsn, op.sent, op.len);
        self.remove_op(key);
        let Some(of) = of else {
            self.replicas.unlock(&mut self.ops, group, key); // the secondary counts it as repaired
            return self.leave_stream(group, lsn);
        };
        self.count_repaired(group, bytes.into(), out);
        self.leave_stream(group, lsn);
        let Some(write) = self.ops.get_mut(of) else { return };
        write.acked.insert(sent);
        if let Some(Write { whole, .. }) = write.write_mut() {
            whole.end(ReplicaSet::default());
        }
        self.check_write(now, of, out);
    }
}

#[cfg(test)]
mod tests;
