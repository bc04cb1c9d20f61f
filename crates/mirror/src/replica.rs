//! One replica of one group: its configuration, its durable record, and its role in the present
//! epoch.
//!
//! Invariants of a primary's stream: its lsns are consecutive, its first operation is not finished,
//! and the commit point is the lsn before that one, or the last lsn if the stream is empty.

use crate::lock::Locks;
use crate::members::{GroupConfig, ReplicaSet};
use crate::op::Op;
use crate::ops::Ops;
use crate::pace::Purpose;
use crate::secondary::Secondary;
use crate::sync::Sync;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{BlockSet, DeviceId, Epoch, Limits, Lsn, MapVersion, Mutant, Time, UnitKey, mutant};
use seam::record::{Dirty, ReplicaRecord};

/// The role of a replica in its present epoch.
#[derive(Debug)]
pub(crate) enum Role {
    /// No role: the replica is not in sync, the group is down, or the configuration is about to
    /// change.
    Out,
    Primary(Primary),
    Secondary(Secondary),
}

/// The state of a primary in one epoch.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    /// True while it serves. Before that it settles, or waits until leases of a former primary have
    /// run out.
    pub active: bool,
    /// The last lsn that was assigned.
    pub last: Lsn,
    /// The number of the last question for a peer's state; 0 before the first.
    pub questions: u64,
    /// Operations with an lsn, beginning with the oldest unfinished one; lsns are consecutive.
    pub stream: VecDeque<StreamEntry>,
    /// Operations that wait for `active`, in order of arrival, without locks.
    pub waiting_for_service: VecDeque<u64>,
    /// Operations that have their range lock and wait for a lease, for room in a window, or for the
    /// end of a seal.
    pub blocked: Vec<u64>,
    /// The commit point: every in-sync replica has the writes up to here.
    pub commit: Lsn,
    /// The commit point that was sent last.
    pub commit_sent: Lsn,
    /// The group is among those with an unsent commit point ([`crate::unsent`]).
    pub commit_queued: bool,
    /// The running settle or resync.
    pub sync: Option<Sync>,
    /// Blocks that every replica has, and that the unit store still has in its dirty set.
    pub clean: Dirty,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamEntry {
    pub lsn: Lsn,
    pub op: u64,
    /// Replicas that it was sent to.
    pub to: ReplicaSet,
    pub done: bool,
}

impl Primary {
    /// Begins a sync with these replicas by a new question. `sends` is the present
    /// [`crate::window::Windows::sends`].
    pub(crate) fn ask(
        &mut self,
        members: ReplicaSet,
        joiner: Option<DeviceId>,
        sends: u64,
    ) -> &mut Sync {
        assert_eq!(
            joiner.is_some(),
            self.active,
            "a settle is before the service, a join is in it"
        );
        let idle = self.sync.as_ref().is_none_or(Sync::is_idle);
        assert!(idle, "no copy is in flight of a sync that starts over");
        self.questions += 1;
        self.sync.insert(Sync::new(members, joiner, self.questions, self.last, sends))
    }

    /// Assigns the next lsn to an operation that goes to these replicas.
    pub(crate) fn enter(&mut self, op: u64, to: ReplicaSet) -> Lsn {
        let consecutive = self.stream.back().is_none_or(|e| e.lsn == self.last);
        assert!(consecutive, "the lsns of a stream are consecutive");
        self.last = self.last.next();
        self.stream.push_back(StreamEntry { lsn: self.last, op, to, done: false });
        if let Some(sync) = &mut self.sync {
            sync.enters(self.last, to);
        }
        self.last
    }

    /// Returns the unfinished operations of the stream, the oldest first.
    pub(crate) fn in_flight<'a>(&'a self, ops: &'a Ops) -> impl Iterator<Item = &'a Op> {
        let pending = self.stream.iter().filter(|e| !e.done);
        pending.map(|e| ops.get(e.op).expect("an operation of the stream lives"))
    }

    /// Returns true if the stream takes further operations. Finished ones stay in it behind the
    /// oldest one in flight.
    pub(crate) fn has_room(&self, limits: &Limits) -> bool {
        self.stream.len() < limits.stream as usize
    }

    /// Returns how many operations lie between this one and the last one before it that went to the
    /// replica, too. If the stream has none, returns how many lie back to the commit point, up to
    /// which the replica has everything that it needs.
    pub(crate) fn skipped(&self, lsn: Lsn, member: ReplicaSet) -> u32 {
        let Some(front) = self.stream.front() else { return 0 };
        let before = (lsn.0 - front.lsn.0) as usize;
        if before == 0 || self.stream[before - 1].to.intersects(member) {
            return 0;
        }
        let others = self.stream.range(..before).rev().take_while(|e| !e.to.intersects(member));
        others.count() as u32
    }

    /// Returns the commit point, if no frame has carried it to the secondaries. It counts as sent
    /// from then on.
    pub(crate) fn tell_commit(&mut self) -> Option<Lsn> {
        self.commit_queued = false;
        let before = core::mem::replace(&mut self.commit_sent, self.commit);
        assert!(before <= self.commit, "no commit point is sent before it is reached");
        (before != self.commit).then_some(self.commit)
    }

    /// Marks an operation as finished everywhere. If it was the oldest, the commit point advances.
    pub(crate) fn leave(&mut self, lsn: Lsn) {
        let Some(front) = self.stream.front() else { return };
        let index = (lsn.0 - front.lsn.0) as usize;
        let entry = &mut self.stream[index];
        assert!(entry.lsn == lsn && !entry.done, "an operation leaves the stream once");
        entry.done = true;
        while self.stream.front().is_some_and(|e| e.done) {
            self.stream.pop_front();
        }
        let commit = self.stream.front().map_or(self.last, |e| Lsn(e.lsn.0 - 1));
        assert!(self.commit <= commit, "the commit point never falls");
        self.commit = commit;
    }
}

/// One replica of one group.
#[derive(Debug)]
pub(crate) struct Replica {
    pub config: GroupConfig,
    /// The in-sync replicas except this one.
    pub others: ReplicaSet,
    /// The version of the map that brought the configuration.
    pub map: MapVersion,
    pub record: ReplicaRecord,
    pub role: Role,
    pub locks: Locks,
    /// Other devices that may have been the primary, and until when each may serve reads by leases
    /// that this device had granted when it learned that it is the primary now.
    pub promises: Vec<(DeviceId, Time)>,
    /// Devices that were replicas in earlier configurations and are none any more. They may have
    /// been the primary, and may still serve reads by a lease that this device granted.
    pub former: Vec<DeviceId>,
    /// Number of jobs that run on the media.
    pub local: u32,
    /// The next configuration. It is entered when no job runs and it is durable that the replica
    /// acts in it.
    pub next: Option<(GroupConfig, MapVersion)>,
    /// The highest epoch in which it acts, as far as the unit store has been told.
    pub noted: Epoch,
}

impl Replica {
    pub(crate) fn new(record: ReplicaRecord) -> Replica {
        Replica {
            config: GroupConfig::default(),
            others: ReplicaSet::default(),
            map: MapVersion(0),
            record,
            role: Role::Out,
            locks: Locks::default(),
            promises: Vec::new(),
            former: Vec::new(),
            local: 0,
            next: None,
            noted: Epoch(0),
        }
    }

    pub(crate) fn primary(&mut self) -> Option<&mut Primary> {
        match &mut self.role {
            Role::Primary(primary) => Some(primary),
            _ => None,
        }
    }

    pub(crate) fn secondary(&mut self) -> Option<&mut Secondary> {
        match &mut self.role {
            Role::Secondary(secondary) => Some(secondary),
            _ => None,
        }
    }

    /// Returns true if it is a primary that serves clients.
    #[inline]
    pub(crate) fn serves(&self) -> bool {
        matches!(&self.role, Role::Primary(primary) if primary.active)
    }

    /// Returns the newest configuration that is known here.
    #[inline]
    pub(crate) fn newest(&self) -> &GroupConfig {
        self.next.as_ref().map_or(&self.config, |(next, _)| next)
    }

    /// Puts this configuration, which came with this map, into force. The caller sets the role.
    pub(crate) fn enter(&mut self, config: GroupConfig, map: MapVersion, me: DeviceId) {
        assert!(matches!(self.role, Role::Out), "the role of the last configuration has ended");
        assert!(self.local == 0, "no job of the last configuration runs");
        assert!(config.epoch >= self.config.epoch, "epochs never fall (R2)");
        self.others = config.members(&config.in_sync);
        self.others.remove(config.member(me));
        (self.config, self.map, self.locks) = (config, map, Locks::default());
    }

    /// Returns true if a configuration gives this device a role.
    pub(crate) fn acts_in(config: &GroupConfig, me: DeviceId) -> bool {
        let member = config.in_sync.contains(&me) || config.joiners.contains(&me);
        !config.lost && config.primary.is_some() && member
    }

    /// Returns true if writes have to stay dirty for replicas that are out of sync: this one is the
    /// only one in sync, and others may come back for just what they missed. Beside a second
    /// in-sync replica, every joiner gets a full copy instead.
    pub(crate) fn is_only_in_sync(&self) -> bool {
        self.config.in_sync.len() < self.config.replicas.len().min(2)
    }

    /// Records that every replica has these blocks. Returns true if the unit store is to be told.
    #[inline]
    pub(crate) fn on_all(&mut self, unit: UnitKey, blocks: BlockSet) -> bool {
        let whole = !self.is_only_in_sync();
        let Some(primary) = self.primary().filter(|p| p.active && whole) else { return false };
        primary.clean.insert(unit, blocks);
        true
    }

    /// Takes the blocks that every replica has, except those that are in flight again.
    pub(crate) fn take_clean(&mut self, ops: &Ops) -> Dirty {
        match &mut self.role {
            Role::Primary(primary) => {
                let mut clean = core::mem::take(&mut primary.clean);
                for op in primary.in_flight(ops).filter(|_| !mutant::on(Mutant::EagerClean)) {
                    clean.remove(op.unit, op.blocks());
                }
                clean
            }
            Role::Secondary(secondary) => secondary.take_clean(),
            Role::Out => Dirty::default(),
        }
    }

    /// Returns the dirty set, and what is in flight to other replicas.
    pub(crate) fn dirty_and_in_flight(&self, ops: &Ops) -> Dirty {
        let mut dirty = self.record.dirty.clone();
        if let Role::Primary(primary) = &self.role {
            primary.in_flight(ops).for_each(|op| dirty.insert(op.unit, op.blocks()));
        }
        dirty
    }

    /// Makes everything in flight dirty: it is uncertain when the configuration ends.
    pub(crate) fn fold_uncertain(&mut self, ops: &Ops) {
        let dirty = &mut self.record.dirty;
        match &mut self.role {
            Role::Primary(primary) => {
                primary.in_flight(ops).for_each(|op| dirty.insert(op.unit, op.blocks()));
            }
            Role::Secondary(secondary) => secondary.fold(dirty),
            Role::Out => {}
        }
    }

    /// Clears the dirty set if `next` admits the joiner for which this primary has requested
    /// admission: the joiner has everything except what is in flight. Returns true in that case.
    pub(crate) fn fold_admitted(&mut self, next: &GroupConfig, me: DeviceId) -> bool {
        let Role::Primary(Primary { sync: Some(sync), .. }) = &self.role else { return false };
        let joined = sync.joiner.is_some_and(|joiner| next.in_sync.contains(&joiner));
        let admitted = sync.in_limbo() && joined && next.in_sync.contains(&me);
        if admitted {
            self.record.clean();
            self.record.base = self.config.epoch;
        }
        admitted
    }

    /// Returns the purpose of the copies of its sync.
    pub(crate) fn purpose(&self) -> Purpose {
        match &self.role {
            Role::Primary(Primary { sync: Some(sync), .. }) if sync.joiner.is_some() => {
                match sync.is_full() {
                    _ if !self.is_only_in_sync() => Purpose::Move,
                    true => Purpose::Rebuild,
                    false => Purpose::Return,
                }
            }
            _ => Purpose::Settle,
        }
    }

    /// Returns the replicas whose answers an acknowledgement needs (R1), and whose leases a read
    /// needs (R3).
    pub(crate) fn needed(&self) -> ReplicaSet {
        let mut needed = self.others;
        if let Role::Primary(Primary { sync: Some(sync), .. }) = &self.role
            && sync.in_limbo()
        {
            needed.insert(sync.members);
        }
        needed
    }

    /// Returns the replicas that get every new write.
    pub(crate) fn recipients(&self) -> ReplicaSet {
        let mut to = self.needed();
        if let Role::Primary(Primary { sync: Some(sync), .. }) = &self.role
            && sync.streaming
        {
            to.insert(sync.members);
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_told_how_many_of_the_stream_are_not_for_it() {
        let (second, joiner) = (ReplicaSet(2), ReplicaSet(4));
        let mut primary = Primary::default();
        let mut enter = |op, to: &[ReplicaSet]| {
            primary.enter(op, ReplicaSet(to.iter().fold(0, |all, m| all | m.0)))
        };
        let write = enter(1, &[second, joiner]);
        let copies = [enter(2, &[joiner]), enter(3, &[joiner])];
        let next = enter(4, &[second, joiner]);
        assert_eq!((primary.skipped(next, second), primary.skipped(next, joiner)), (2, 0));
        assert_eq!(primary.skipped(copies[1], joiner), 0);
        // All replicas have the operations that have left the stream: the commit point covers them.
        [write, copies[0], copies[1]].into_iter().for_each(|lsn| primary.leave(lsn));
        assert_eq!((primary.commit, primary.skipped(next, second)), (copies[1], 0));
    }

    #[test]
    fn a_seal_names_the_last_that_went_to_the_joiner() {
        let (second, joiner) = (ReplicaSet(2), ReplicaSet(4));
        let mut primary = Primary { active: true, ..Primary::default() };
        primary.ask(joiner, Some(DeviceId(3)), 0);
        let write = primary.enter(1, ReplicaSet(second.0 | joiner.0));
        let whole = primary.enter(2, second); // the secondary needs a block whole
        [write, whole].into_iter().for_each(|lsn| primary.leave(lsn));
        let sent = primary.sync.map(|sync| sync.sent);
        assert_eq!((sent, primary.commit), (Some(write), whole));
    }

    /// The commit point follows the oldest operation that is not finished, whatever the order in
    /// which they finish.
    #[test]
    fn the_commit_point_is_before_the_oldest_that_is_not_finished() {
        let to = ReplicaSet(2);
        for (leave, commits, left) in [
            (&[1, 2, 3][..], &[1, 2, 3][..], 0),
            (&[3, 2, 1], &[0, 0, 3], 0),
            (&[2, 1, 3], &[0, 2, 3], 0),
            (&[2], &[0], 3),
            (&[1], &[1], 2),
        ] {
            let mut primary = Primary::default();
            (1..=3).for_each(|op| assert_eq!(primary.enter(op, to), Lsn(op)));
            for (lsn, commit) in leave.iter().zip(commits) {
                primary.leave(Lsn(*lsn));
                assert_eq!(primary.commit, Lsn(*commit), "{leave:?}");
            }
            assert_eq!(primary.stream.len(), left, "{leave:?}");
            assert_eq!(primary.enter(9, to), Lsn(4), "{leave:?}: no lsn is used twice");
        }
    }

    #[test]
    #[should_panic = "leaves the stream once"]
    fn no_operation_leaves_the_stream_twice() {
        let mut primary = Primary::default();
        (1..=2).for_each(|op| assert!(primary.enter(op, ReplicaSet(2)) > Lsn(0)));
        [2, 2].into_iter().for_each(|lsn| primary.leave(Lsn(lsn)));
    }

    #[test]
    fn a_commit_point_is_told_once() {
        for (commit, sent, told) in
            [(0, 0, None), (3, 0, Some(Lsn(3))), (3, 2, Some(Lsn(3))), (3, 3, None)]
        {
            let mut primary =
                Primary { commit: Lsn(commit), commit_sent: Lsn(sent), ..Primary::default() };
            assert_eq!([primary.tell_commit(), primary.tell_commit()], [told, None]);
        }
    }
}
