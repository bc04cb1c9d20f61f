//! Blocks that a secondary reads for its primary, whose copy of them is damaged (rule R13).

use crate::op::{Op, Requester, Work, fits};
use crate::secondaries::Secondaries;
use crate::shard::Shard;
use base::{BLOCK, BlockSet, DeviceId, GroupId, Time};
use seam::{Buf, Effects, UnitStore};
use wire::message::{Fetch, Fetched};
use wire::{PeerLink, Status};
use zerocopy::IntoBytes;

impl Secondaries {
    /// Takes the primary's request for blocks that are damaged there. One that it repeats is
    /// answered once, on the newest link. Returns false if that gives the loop nothing to do.
    pub(crate) fn fetch_in<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        link: PeerLink,
        from: DeviceId,
        m: &Fetch,
        out: &mut Effects,
    ) -> bool {
        match shard.replicas.check_leader(from, m.group, m.epoch) {
            Ok(()) if fits::<BLOCK>(m.range.at, m.range.len) => {
                let fetch = Op::of_fetch(m, link);
                let known = shard.ops.iter().find(|(_, op)| op.is_same_fetch(&fetch));
                if let Some((known, _)) = known {
                    shard.ops.get_mut(known).expect("just found").work = fetch.work;
                    return false;
                }
                shard.queue(fetch);
                return true;
            }
            Ok(()) => {}
            Err(status) => {
                let answer =
                    Fetched { status, ..fetched(shard, m.op, m.group, (m.range.at, m.range.len)) };
                out.send(link.id, link.frame(answer, &[]), Buf::EMPTY);
            }
        }
        false
    }

    /// Reads the requested blocks, under their range lock. Refuses to read blocks of a deleted
    /// volume: their data is gone here, so zeros would be a wrong answer.
    pub(crate) fn start_fetch<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        if let Work::Fetch(requester) = op.work
            && shard.known.is_gone(op.unit.volume)
        {
            return self.end_fetch(shard, key, requester, Status::NoVolume, out);
        }
        shard.start_job(now, key, out);
    }

    /// Answers that this replica can't provide the blocks.
    pub(crate) fn end_fetch<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        key: u64,
        to: Requester,
        why: Status,
        out: &mut Effects,
    ) {
        let op = shard.end_op(key);
        let answer = Fetched { status: why, ..fetched(shard, to.op, op.group, (op.at, op.len)) };
        out.send(to.link.id, to.link.frame(answer, &[]), Buf::EMPTY);
    }

    /// Sends the blocks, with their entries of the list of executed writes.
    pub(crate) fn fetched_here<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        to: Requester,
        data: Buf,
        out: &mut Effects,
    ) {
        let op = shard.end_op(key);
        let blocks = BlockSet::touching(op.at, op.len);
        let entries = shard.replicas.of(op.group).record.executed.of(op.unit, blocks);
        let list = shard.history.records(op.group, entries);
        let mut body = out.alloc(data.len() + list.as_bytes().len());
        body.as_mut()[..data.len()].copy_from_slice(&data);
        body.as_mut()[data.len()..].copy_from_slice(list.as_bytes());
        let answer = fetched(shard, to.op, op.group, (op.at, op.len));
        out.send(to.link.id, to.link.frame(answer, &body), body);
        self.wipe_if_idle(shard, now, op.group);
    }
}

/// Returns the answer to a request for these blocks.
fn fetched<S>(shard: &Shard<S>, op: u64, group: GroupId, (at, len): (u32, u32)) -> Fetched {
    let (epoch, sender) = (shard.replicas.epoch_of(group), shard.known.sender());
    Fetched { status: Status::Ok, op, group, epoch, at, len, sender }
}
