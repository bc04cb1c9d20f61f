//! Operations that meet damage: blocks that the unit store can't read, or a body that has changed
//! in memory (rule R13). How such an operation continues depends on its work. [`crate::repair`]
//! gets the blocks from another replica.
//!
//! If no in-sync replica has the blocks, the read or write ends with a media error, and the write
//! has changed nothing. A sync copies damage like content, for two reasons: damage must not keep a
//! joiner out for ever, and two copies must not differ once both can be read again.

use crate::flows::Flows;
use crate::op::{Local, Work, Write};
use crate::replica::Role;
use crate::shard::Shard;
use base::{BlockSet, Mutant, Time, mutant};
use seam::{DiskError, Effects, Note, UnitStore};
use wire::Status;

impl Flows {
    /// Handles a job that failed. It does not run any more.
    pub(crate) fn job_failed<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        error: DiskError,
        out: &mut Effects,
    ) {
        if error == DiskError::BadBody {
            return self.bad_body(shard, now, key, out);
        }
        let DiskError::Corrupt { first, blocks } = error else {
            // The content of the device is unknown now: this process must not continue.
            shard.failures.fail();
            return;
        };
        let op = shard.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (work, group, volume, shares) = (op.work, op.group, op.unit.volume, op.shares());
        if shard.replicas.has_config_ended(shard.ops.get(key)) || shard.known.is_gone(volume) {
            return shard.start_over(now, key, out);
        }
        let leads = matches!(shard.replicas.of(group).role, Role::Primary(_));
        if shares && leads && !mutant::on(Mutant::MendShared) {
            return shard.read_alone(key);
        }
        // At a secondary, the guard of `Work::Scrub` ends the operation: the primary repairs the
        // blocks.
        match work {
            Work::Stream(_) => {
                self.secondaries.end_replicated(shard, now, key, Status::SendWhole, out)
            }
            Work::Fetch(requester) => {
                let op = shard.ops.get(key).expect("as above");
                self.scrub.is_hopeless(now, op, (first, blocks));
                self.secondaries.end_fetch(shard, key, requester, Status::Media, out);
            }
            Work::Scrub if self.scrub.damaged(shard, now, key, (first, blocks), out) => {
                self.secondaries.wipe_if_idle(shard, now, group);
            }
            Work::Whole { of: Some(write) } if !mutant::on(Mutant::NoWriteOver) => {
                self.repairs.repair_write(shard, now, key, write, (first, blocks), out)
            }
            _ => self.repairs.ask_other(shard, now, key, (first, blocks), out),
        }
    }

    /// Handles a write whose body has changed in memory since it came. If no other replica may have
    /// done the write, its sender has to send it again. Otherwise it is unknown what else has
    /// changed in this memory, and this process must not continue.
    fn bad_body<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (group, lsn, work, sent) = (op.group, op.lsn, op.work, op.sent);
        out.note(Note::BadMemory { group });
        if shard.replicas.has_config_ended(shard.ops.get(key)) {
            return shard.drop_over(key);
        }
        match work {
            Work::Stream(_) => {
                self.secondaries.end_replicated(shard, now, key, Status::SendWhole, out)
            }
            Work::Write(_) if sent.is_empty() => {
                shard.finish_client(key, Status::Damaged, out);
                if lsn.0 > 0 {
                    shard.leave_stream(group, lsn);
                }
            }
            _ => shard.failures.fail(),
        }
    }

    // ---- after a repair ----

    /// The blocks are repaired: repeats the operation that met the damage.
    pub(crate) fn repaired<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        out: &mut Effects,
    ) {
        let op = shard.ops.get_mut(key).expect("an operation lives while its job runs");
        op.local = Local::NotStarted;
        let (group, unit) = (op.group, op.unit);
        let (repair, list) = (self.repairs.get(key), op.list.take());
        let repair = repair.expect("the operation waited for it");
        if let Some(theirs) = list {
            shard.take_list(group, (unit, repair.set()), &theirs);
        }
        shard.count_repaired(group, repair.len().into(), out);
        let op = shard.ops.get_mut(key).expect("as above");
        if matches!(op.work, Work::Scrub) {
            self.scrub.count_repaired(repair.len());
        }
        if matches!(op.work, Work::Copy(_))
            && let Some(sync) = shard.replicas.sync_mut(group)
            && sync.joiner.is_none()
        {
            // In a settle, repaired blocks may have other content than before, and the peers have
            // this replica's former list of executed writes.
            sync.ask_anew();
            self.peers.drop_copy(shard, key);
            return self.peers.advance(shard, now, group, out);
        }
        shard.start_over(now, key, out);
    }

    /// Ends an operation because no in-sync replica has the blocks.
    pub(crate) fn unreadable<S: UnitStore>(
        &mut self,
        shard: &mut Shard<S>,
        now: Time,
        key: u64,
        damage: (u16, u16),
        out: &mut Effects,
    ) {
        let (first, blocks) = damage;
        self.repairs.end(key);
        let op = shard.ops.get_mut(key).expect("the caller has it");
        let (group, work, unit, lsn) = (op.group, op.work, op.unit, op.lsn);
        out.note(Note::Unreadable { group, unit, first, blocks });
        shard.stats.unreadable += 1;
        let needed = shard.replicas.of(group).needed();
        match work {
            Work::Scrub => {
                shard.end_op(key);
                self.scrub.gives_up(now, key, damage);
            }
            // The blocks are damaged here as well: the secondary asks again, and gives up in the
            // end.
            Work::Whole { of: None } => shard.drop_over(key),
            Work::Read(..) | Work::Compare(_) => shard.finish_client(key, Status::Media, out),
            Work::Copy(_) => {
                let bad = BlockSet::from_range(first.into()..(first + blocks).into());
                self.peers.skip_copy(shard, now, key, bad, out);
            }
            // A replica may have done the write although others can't. It has to leave the in-sync
            // set before this write is answered.
            Work::Write(Write { whole, .. })
                if !whole.sent.is_empty() || !whole.needed.contains_all(needed) =>
            {
                shard.failures.accuse(shard.replicas.of(group).config.devices(needed));
            }
            // Replicas that met the damage, too, have changed nothing.
            Work::Write(_) => {
                self.peers.cut(shard, now, group, out);
                let op = shard.ops.get_mut(key).expect("nothing has ended it");
                if core::mem::take(&mut op.reserved) {
                    let (at, len) = (op.at, op.len);
                    shard.store.release(group, unit, at, len);
                }
                shard.finish_client(key, Status::Media, out);
                shard.leave_stream(group, lsn);
            }
            work => unreachable!("{work:?} asks no other replica for blocks"),
        }
    }
}

#[cfg(test)]
mod tests;
