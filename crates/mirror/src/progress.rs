//! The progress of a client's write: when it can be written here, when it is acknowledged (R1), and
//! when it leaves the stream.
//!
//! Invariant: a write is acknowledged only when it is durable here and at every other in-sync
//! replica, and at a joiner in limbo. If one of them fails, the configuration ends, and the client
//! asks again (R1).

use crate::jobs::Step;
use crate::members::ReplicaSet;
use crate::op::{Caller, Local, Op, Write};
use crate::shard::Shard;
use crate::sync::Phase;
use base::{BlockSet, GroupId, Lsn, Mutant, Time, mutant};
use seam::{Effects, UnitStore};

/// The progress of a client's write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// It waits, and changes nothing yet.
    Waits,
    /// It is written here, and other replicas need its blocks whole.
    NeedsWhole,
    /// It can be written here: every needed replica has space for it.
    Starts,
    /// `answered`: the client has to be answered now. `over`: nothing is left to do.
    Is { answered: bool, over: bool },
}

impl Op {
    /// Returns the progress of a client's write. `needed`: the replicas whose answers an
    /// acknowledgement needs; `met`: all of them have answered (R1).
    #[inline]
    fn progress(&self, needed: ReplicaSet, met: bool) -> Progress {
        let &Write { answered, whole, .. } = self.write().expect("it is a write");
        if !whole.needed.is_empty() && !whole.running && self.local == Local::Done {
            return Progress::NeedsWhole;
        }
        if self.reserved && self.local == Local::NotStarted {
            // A replica that needs the blocks whole has had space for the write.
            let mut ready = self.acked;
            ready.insert(whole.needed);
            let starts = ready.contains_all(needed);
            return if starts { Progress::Starts } else { Progress::Waits };
        }
        let here = self.local == Local::Done
            || (mutant::on(Mutant::AckBeforeLocal) && self.local == Local::Running);
        let answers = met && here && !answered;
        let everywhere = self.local == Local::Done && self.acked.contains_all(self.sent);
        Progress::Is { answered: answers, over: (answered || answers) && everywhere }
    }
}

impl<S: UnitStore> Shard<S> {
    /// Continues a write after its local job or an answer of a replica: acknowledges it when R1 is
    /// met, and removes it when nothing is left to do.
    pub(crate) fn check_write(&mut self, now: Time, key: u64, out: &mut Effects) {
        let Some(op) = self.ops.get(key) else { return };
        let Some(&Write { since, .. }) = op.write() else { return };
        let group = op.group;
        let replica = self.replicas.of(group);
        let limbo = !mutant::on(Mutant::NoLimbo);
        let needed = if limbo { replica.needed() } else { replica.others };
        let down = |device| self.windows.link(device).is_none();
        let met = op.acked.contains_all(needed)
            || mutant::on(Mutant::AckAlone) && replica.config.devices(needed).any(down);
        let (answers, ends) = match op.progress(needed, met) {
            Progress::Waits => return,
            Progress::NeedsWhole => return self.read_whole(now, key, out),
            Progress::Starts => return self.start_job(now, key, out),
            Progress::Is { answered, over } => (answered, over),
        };
        let (lsn, unit, at, len) = (op.lsn, op.unit, op.at, op.len);
        if answers {
            self.pace.answered(now, since);
            self.answer_write(key, out);
        }
        if ends {
            self.discard_op(key);
            if self.store.survives() {
                let replica =
                    self.replicas.get_mut(group).expect("the operation's replica is here");
                if replica.on_all(unit, BlockSet::touching(at, len)) {
                    self.unsent.clean(group);
                }
            }
            self.leave_stream(group, lsn);
        }
    }

    /// Acknowledges a write: R1 is met. If no other replica is in sync, the written blocks become
    /// dirty, even if a joiner has them already, because it may come back without them.
    fn answer_write(&mut self, key: u64, out: &mut Effects) {
        // From here on, the work of other replicas doesn't count as an operation of a client.
        let op = self.ops.answered(key).expect("the operation lives");
        let (unit, at, len) = (op.unit, op.at, op.len);
        let (group, bytes) = (op.group, op.body.len() as u64);
        let here = op.local == Local::Done || mutant::on(Mutant::AckBeforeLocal);
        assert!(here, "a write is acknowledged when it is durable here (R1)");
        let write = op.write_mut().expect("only writes are acknowledged");
        assert!(!write.answered, "a write is acknowledged once");
        write.answered = true;
        let (requester, status) = (write.requester, write.status_when_done());
        let replica = self.replicas.get_mut(group).expect("the operation's replica is here");
        let missed = replica.is_only_in_sync();
        if missed && self.store.keeps_data() && !mutant::on(Mutant::NoSoloDirty) {
            replica.record.dirty.insert(unit, BlockSet::touching(at, len));
        }
        self.replicas.unlock(&mut self.ops, group, key);
        self.stats.writes += 1;
        self.stats.written_bytes += bytes;
        self.reply(Caller::new(requester, group), status, out);
    }

    /// Takes an operation that is finished everywhere out of the stream.
    pub(crate) fn leave_stream(&mut self, group: GroupId, lsn: Lsn) {
        let Some(replica) = self.replicas.get_mut(group) else { return };
        let Some(primary) = replica.primary() else { return };
        primary.leave(lsn);
        let drained = primary.stream.is_empty();
        let draining = primary.sync.as_ref().is_some_and(|s| s.phase == Phase::Drain);
        let news = primary.commit > primary.commit_sent;
        if news && !core::mem::replace(&mut primary.commit_queued, true) {
            self.unsent.commit(group);
        }
        if drained && draining {
            self.jobs.push_step(Step::Seal(group));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Requester, WholeBlocks, Work};
    use base::{BLOCK, LinkId, UnitKey};
    use wire::PeerLink;

    const SECOND: ReplicaSet = ReplicaSet(2);
    const JOINER: ReplicaSet = ReplicaSet(4);
    const NONE: ReplicaSet = ReplicaSet(0);

    /// Creates a write that was sent to a secondary and a joiner.
    fn write(local: Local, acked: ReplicaSet, answered: bool) -> Op {
        let requester = Requester { link: PeerLink::new(LinkId(1), 1), op: 1 };
        let (zero, retry, in_part, more) = (false, false, false, false);
        let (since, whole) = (Time::ZERO, WholeBlocks::default());
        let work =
            Work::Write(Write { requester, since, zero, retry, in_part, more, answered, whole });
        let sent = ReplicaSet(SECOND.0 | JOINER.0);
        let op = Op::new(GroupId(1), UnitKey::default(), 0, BLOCK, work);
        Op { local, acked, sent, ..op }
    }

    fn progress(op: &Op) -> Progress {
        op.progress(SECOND, op.acked.contains_all(SECOND))
    }

    #[test]
    fn a_write_is_answered_once_when_all_that_count_have_it() {
        let both = ReplicaSet(SECOND.0 | JOINER.0);
        for (local, acked, answered, now, over) in [
            (Local::Running, SECOND, false, false, false),
            (Local::Done, NONE, false, false, false),
            (Local::Done, JOINER, false, false, false),
            (Local::Done, SECOND, false, true, false), // the joiner still has to do it
            (Local::Done, SECOND, true, false, false),
            (Local::Done, both, true, false, true),
            (Local::Done, both, false, true, true),
            (Local::Asking, both, false, false, false),
        ] {
            let expected = Progress::Is { answered: now, over };
            assert_eq!(progress(&write(local, acked, answered)), expected, "{local:?} {acked:?}");
        }
    }

    #[test]
    fn a_write_that_needs_space_starts_here_when_the_others_have_space() {
        let fresh = |acked| Op { reserved: true, ..write(Local::NotStarted, acked, false) };
        assert_eq!(progress(&fresh(JOINER)), Progress::Waits);
        assert_eq!(progress(&fresh(SECOND)), Progress::Starts);
        let mut damaged = fresh(NONE);
        damaged.write_mut().unwrap().whole.add(SECOND);
        assert_eq!(progress(&damaged), Progress::Starts, "it has had space");
    }

    #[test]
    fn whole_blocks_are_sent_when_the_write_is_done_here_and_by_one_operation() {
        for (local, expected) in [
            (Local::Running, Progress::Is { answered: false, over: false }),
            (Local::Done, Progress::NeedsWhole),
        ] {
            let mut op = write(local, NONE, false);
            op.write_mut().unwrap().whole.add(SECOND);
            assert_eq!(progress(&op), expected);
        }
        let mut op = write(Local::Done, NONE, false);
        let whole = &mut op.write_mut().unwrap().whole;
        whole.add(SECOND);
        assert_eq!(whole.begin(), SECOND);
        whole.add(JOINER);
        assert_eq!(progress(&op), Progress::Is { answered: false, over: false }, "one runs");
        op.write_mut().unwrap().whole.end(SECOND);
        assert_eq!(progress(&op), Progress::NeedsWhole);
        assert_eq!(op.write_mut().unwrap().whole.begin(), ReplicaSet(SECOND.0 | JOINER.0));
    }
}
