//! Copies of syncs at the primary: the order of the groups, the number of running copies, and one
//! copy from its turn to its end.
//!
//! Groups with blocks to copy take turns, as far as the pace of each purpose allows. Copies that
//! arrive at a joiner are in [`crate::arrival`].
//!
//! Invariant: at most [`Pace::most`] copies run.
//!
//! Each sync is in the queue at most once. Its group may be there more often, because a sync that
//! ended leaves its entry behind. The turn of such an entry then finds less to do. While the
//! group's stream is full, its entries stay, so each question that is asked meanwhile may add one,
//! of 4 bytes.

use crate::members::ReplicaSet;
use crate::op::{Copying, Local, Op, Work};
use crate::pace::{End, Pace, Purpose, Turn};
use crate::peers::Peers;
use crate::replica::Role;
use crate::shard::Shard;
use alloc::collections::VecDeque;
use base::{BLOCK, BlockSet, Duration, GroupId, Limits, Lsn, Mutant, Time, mutant};
use seam::{Buf, Effects, Note, UnitStore};

/// How long to wait before a copy of unreadable blocks is tried once more.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// The copies that this device sends as a primary.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Groups with blocks to copy, served in turn.
    queue: VecDeque<GroupId>,
    /// Copies that have begun and not ended.
    running: u32,
    /// When copies that are delayed may begin; `None` while the queue is empty.
    at: Option<Time>,
    /// `next` has found no copy that may begin. No group was queued and no copy has ended since.
    settled: bool,
}

impl Copies {
    /// Queues a group that has blocks to copy and whose sync is not in the queue.
    pub(crate) fn queue(&mut self, group: GroupId) {
        self.queue.push_back(group);
        self.settled = false;
    }

    /// Returns true if no group waits for its turn.
    #[inline]
    pub(crate) fn none_wait(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns true unless a group was queued or a copy has ended, and `next` was not asked since.
    pub(crate) fn is_settled(&self) -> bool {
        self.queue.is_empty() || self.settled
    }

    /// Takes the first group in turn whose copies may begin, with their purpose. `purpose` returns
    /// the purpose of a group's copies, or `None` while its stream has no room for them.
    pub(crate) fn next(
        &mut self,
        now: Time,
        pace: &Pace,
        limits: &Limits,
        purpose: impl Fn(GroupId) -> Option<Purpose>,
    ) -> Option<(GroupId, Purpose)> {
        (self.at, self.settled) = (None, true);
        if self.queue.is_empty() || self.running >= Pace::most(limits) {
            return None;
        }
        let turn = |p| (p, pace.turn(now, End::Source, p, self.running, limits));
        let turns = Purpose::ALL.map(turn);
        let may = |group: &GroupId| purpose(*group).filter(|p| turns.contains(&(*p, Turn::Now)));
        let first = self.queue.iter().enumerate().find_map(|(at, group)| Some((at, may(group)?)));
        if first.is_none() {
            let at = |t: &(Purpose, Turn)| if let Turn::At(at) = t.1 { Some(at) } else { None };
            self.at = turns.iter().filter_map(at).min();
        }
        let (place, purpose) = first?;
        self.settled = false;
        Some((self.queue.remove(place)?, purpose))
    }

    /// Records that a copy begins.
    pub(crate) fn begins(&mut self) {
        self.running += 1;
    }

    /// Records that a copy has ended, with any result.
    pub(crate) fn ends(&mut self) {
        assert!(self.running > 0, "a copy ends once");
        self.running -= 1;
        self.settled = false;
    }

    /// Returns the number of copies that run.
    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    /// Returns when copies that are delayed may begin.
    #[inline]
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.at
    }
}

impl Peers {
    /// Starts copies, group by group in turn, as far as the limits allow.
    pub(crate) fn start_copies<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        out: &mut Effects,
    ) {
        loop {
            let (replicas, limits) = (&shard.replicas, &shard.limits);
            let turn = |group| replicas.turn_to_copy(group, limits);
            let Some((group, purpose)) = self.copies.next(now, &shard.pace, limits, turn) else {
                return;
            };
            let most = (shard.pace.len(now, purpose, &shard.limits) / BLOCK).max(1);
            let Some(sync) = shard.replicas.sync_mut(group) else { continue };
            if !sync.takes_turn() {
                continue;
            }
            let Some((unit, run, more)) = sync.begin_copy(most) else {
                self.advance(shard, now, group, out); // the rest belonged to a deleted volume
                continue;
            };
            if more {
                self.copies.queue(group);
            }
            let (at, len) = (run.start * BLOCK, (run.end - run.start) * BLOCK);
            self.copies.begins();
            let few = self.copies.running() <= Pace::most(&shard.limits);
            assert!(few, "no more copies run than the limits allow");
            shard.pace.begun(now, purpose);
            let work = Copying { since: now, read: Duration::ZERO, lost: false };
            shard.queue(Op::new(group, unit, at, len, Work::Copy(work)));
        }
    }

    /// Starts a copy that has its range. Blocks without data are sent as zeros; a mixed run is
    /// split.
    pub(crate) fn start_copy<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let (group, unit, first) = (op.group, op.unit, op.at / BLOCK);
        if shard.known.is_gone(unit.volume) {
            self.drop_copy(shard, key);
            return self.advance(shard, now, group, out);
        }
        let op = shard.ops.get_mut(key).expect("the operation lives");
        let end = (op.at + op.len) / BLOCK;
        let valid = shard.store.valid(group, unit);
        let data = valid.contains(first);
        let split = (first..end).find(|b| valid.contains(*b) != data).unwrap_or(end);
        op.len = (split - first) * BLOCK;
        if let Some(sync) = shard.replicas.sync_mut(group) {
            sync.todo.insert(unit, BlockSet::from_range(split..end));
        }
        if data {
            shard.start_job(now, key, out);
        } else {
            shard.ops.get_mut(key).expect("the operation lives").local = Local::Done;
            self.send_copy(shard, now, key, Buf::EMPTY, None, out);
        }
    }

    /// Puts a copy into the stream and sends it. `data` is empty for zeros.
    pub(crate) fn send_copy<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        data: Buf,
        crc: Option<u32>,
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("the operation lives");
        if let Work::Copy(Copying { since, read, .. }) = &mut op.work {
            *read = now.since(*since);
        }
        let sum = || if data.is_empty() { 0 } else { base::crc::crc32c(&data) };
        op.body_crc = crc.or_else(|| Some(sum()));
        op.body = data;
        let replica = shard.replicas.get_mut(op.group).expect("the operation's replica is here");
        let Role::Primary(primary) = &mut replica.role else { return };
        let Some(sync) = &primary.sync else { return };
        let to = if sync.streaming { sync.members } else { ReplicaSet::default() };
        if to.is_empty() {
            // The joiner was cut off while the data was read. The next question starts over.
            return self.drop_copy(shard, key);
        }
        assert!(op.lsn == Lsn(0), "a copy gets one place in the stream");
        op.lsn = primary.enter(key, to);
        op.sent = to;
        shard.send_operation(key, to, false, out);
    }

    /// Drops a copy and frees its range.
    pub(crate) fn drop_copy<S: UnitStore>(&mut self, shard: &mut Shard<S>, key: u64) {
        let op = shard.end_op(key);
        self.copies.ends();
        if let Some(sync) = shard.replicas.sync_mut(op.group) {
            sync.end_copy();
        }
    }

    /// Ends a copy if all peers have it.
    pub(crate) fn check_copy<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the operation lives");
        let one = !op.acked.is_empty() && mutant::on(Mutant::SealOneByOne);
        if op.lsn.0 == 0 || !(one || op.acked.contains_all(op.sent)) {
            return;
        }
        let (group, lsn, sent, moved) = (op.group, op.lsn, op.sent, op.body.len() as u64);
        if let Work::Copy(Copying { since, read, .. }) = op.work {
            let (purpose, len) = (shard.replicas.of(group).purpose(), op.len);
            // Where the receiver sets the pace, its share of the time says nothing about this
            // device.
            let paced = shard.pace.is_by_latency(purpose);
            let took = if paced { read } else { now.since(since) };
            shard.pace.ended(now, End::Source, purpose, took, since, len);
        }
        self.drop_copy(shard, key);
        for peer in shard.replicas.of(group).config.devices(sent).filter(|_| moved > 0) {
            shard.stats.moved += moved;
            out.note(Note::Copied { group, peer, bytes: moved });
        }
        shard.leave_stream(group, lsn);
        self.advance(shard, now, group, out);
    }

    // ---- blocks that can't be read ----

    /// Skips blocks of a copy that the source can't read; in a settle the other copy is damaged as
    /// well. They are tried once more, because the error may pass. Then the peers are told of the
    /// damage.
    pub(crate) fn skip_copy<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        bad: BlockSet,
        out: &mut Effects,
    ) {
        let op = shard.ops.get(key).expect("the caller has it");
        let (group, unit) = (op.group, op.unit);
        let mut rest = BlockSet::touching(op.at, op.len);
        rest.remove(bad);
        let Some(sync) = shard.replicas.sync_mut(group) else { return self.drop_copy(shard, key) };
        if sync.skip(unit, bad, rest) {
            return self.copy_loss(shard, now, key, bad, out);
        }
        self.timers.ask_at(group, now + READ_AGAIN);
        self.drop_copy(shard, key);
        self.advance(shard, now, group, out);
    }

    /// Tells the peers that these blocks can't be read. Damage is copied like content, so that no
    /// peer has another content than the primary. If the primary can read the blocks some day,
    /// those of the peers are repaired like any others.
    fn copy_loss<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        bad: BlockSet,
        out: &mut Effects,
    ) {
        let run = bad.first_run().expect("something is damaged");
        let op = shard.ops.get_mut(key).expect("the caller has it");
        (op.at, op.len) = (run.start * BLOCK, (run.end - run.start) * BLOCK);
        op.local = Local::Done;
        if let Work::Copy(copy) = &mut op.work {
            copy.lost = !mutant::on(Mutant::LossAsZeros);
        }
        self.send_copy(shard, now, key, Buf::EMPTY, None, out);
    }
}

#[cfg(test)]
mod tests;
