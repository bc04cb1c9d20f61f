//! Unfinished work: changes of groups' records and their continuations, steps for the loop, and the
//! duration of jobs.
//!
//! Invariant: each change has a token of its own, which is no operation's key.

use crate::stopwatch::Stopwatch;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{Duration, Epoch, GroupId, Lsn, Time};
use seam::{Buf, Change, DiskError, UnitStore};
use wire::PeerLink;

/// The low half of the token of a change. No operation has this index.
const CHANGE: u64 = u32::MAX as u64;

/// The step that continues when a change is durable.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum AfterChange {
    /// Entering the configuration of this epoch, as a joiner or not.
    Entry { epoch: Epoch, joins: bool },
    /// The answer to a seal of this epoch, on this link.
    Seal { epoch: Epoch, lsn: Lsn, link: PeerLink },
    /// The answer to a wipe in this epoch, on this link.
    Wipe { epoch: Epoch, question: u64, link: PeerLink },
    /// The end of deleting a replica that left its group.
    Discard,
}

/// A task of a flow that the code at hand must not call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Seal the peers of the group: nothing is in flight in its stream any more.
    Seal(GroupId),
    /// Serve the group: it has settled.
    Activate(GroupId),
    /// Enter the group's next configuration: a job of the last one has ended.
    Enter(GroupId),
    /// Refuse this operation: its job has found no space.
    Refuse(u64),
    /// End this operation: no in-sync replica has these blocks, which it needs.
    Unreadable(u64, (u16, u16)),
}

/// A step that the loop takes before it starts other operations.
#[derive(Debug)]
pub(crate) enum Task {
    /// A step. It is done before anything else.
    Step(Step),
    /// The media job of an operation has ended in the call that began it, with this result.
    Job(u64, Result<Buf, DiskError>),
    /// A change of a group's record has ended in the call that began it.
    Change(GroupId, AfterChange),
}

/// Changes of a shard that have not ended, and what has to be continued.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// By token: changes that are not durable yet.
    changes: BTreeMap<u64, (GroupId, AfterChange)>,
    /// Number of changes so far.
    count: u64,
    /// Steps, and behind them work that ended at once.
    tasks: VecDeque<Task>,
    stopwatch: Stopwatch,
}

impl Jobs {
    /// Records that the media job of an operation begins.
    #[inline]
    pub(crate) fn begins(&mut self, now: Time, key: u64) {
        self.stopwatch.begins(now, key);
    }

    /// Records that a change begins, and what continues after it. Returns the change's token.
    fn change(&mut self, now: Time, group: GroupId, after: AfterChange) -> u64 {
        self.count += 1;
        let token = self.count << 32 | CHANGE;
        let former = self.changes.insert(token, (group, after));
        assert!(former.is_none(), "each change has a token of its own");
        self.stopwatch.begins(now, token);
        token
    }

    /// Changes a group's record. `after` continues when that is durable.
    pub(crate) fn change_first(
        &mut self,
        store: &mut impl UnitStore,
        now: Time,
        group: GroupId,
        changes: Vec<Change>,
        after: AfterChange,
    ) {
        if !store.survives() {
            store.change(None, group, changes);
            return self.tasks.push_back(Task::Change(group, after));
        }
        let token = self.change(now, group, after);
        store.change(Some(token), group, changes);
    }

    /// Returns true for the token of a change.
    #[inline]
    pub(crate) fn is_change(token: u64) -> bool {
        token & CHANGE == CHANGE
    }

    /// Records that the job or change with this token has ended.
    #[inline]
    pub(crate) fn ends(&mut self, now: Time, token: u64) {
        self.stopwatch.ends(now, token);
    }

    /// Takes what continues after the change that has this token.
    pub(crate) fn take_change(&mut self, token: u64) -> Option<(GroupId, AfterChange)> {
        self.changes.remove(&token)
    }

    /// Records that the media job of an operation has ended in the call that began it.
    #[inline]
    pub(crate) fn ended_at_once(&mut self, key: u64, result: Result<Buf, DiskError>) {
        self.tasks.push_back(Task::Job(key, result));
    }

    /// Queues a step behind other steps and before all other tasks.
    #[cold]
    pub(crate) fn push_step(&mut self, step: Step) {
        let steps = self.tasks.iter().take_while(|task| matches!(task, Task::Step(_)));
        let after = steps.count();
        self.tasks.insert(after, Task::Step(step));
    }

    /// Takes the first task.
    #[inline]
    pub(crate) fn next_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    /// Returns true if the first task is a step.
    #[inline]
    pub(crate) fn has_step(&self) -> bool {
        matches!(self.tasks.front(), Some(Task::Step(_)))
    }

    /// Returns true if there is no task.
    #[inline]
    pub(crate) fn has_no_task(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Returns true while a seal of the group is not durable.
    pub(crate) fn seals(&self, group: GroupId) -> bool {
        let seals = |(of, what): &(GroupId, AfterChange)| {
            *of == group && matches!(what, AfterChange::Seal { .. })
        };
        self.changes.values().any(seals)
    }

    /// Returns true if the last change in progress for the group is the same. Its answer will then
    /// go to the newest question. A primary repeats its question until it is answered, and a device
    /// that hangs would get a change for each.
    pub(crate) fn joins(&mut self, group: GroupId, asked: AfterChange) -> bool {
        let last = self.changes.values_mut().rev().find(|known| known.0 == group);
        let Some((_, known)) = last else { return false };
        let same = match (*known, asked) {
            (AfterChange::Seal { epoch: e, lsn: l, .. }, AfterChange::Seal { epoch, lsn, .. }) => {
                (e, l) == (epoch, lsn)
            }
            (
                AfterChange::Wipe { epoch: e, question: q, .. },
                AfterChange::Wipe { epoch, question, .. },
            ) => (e, q) == (epoch, question),
            _ => false,
        };
        if same {
            *known = asked;
        }
        same
    }

    /// Returns how long jobs take; see [`Stopwatch::ask`].
    pub(crate) fn took(&mut self, now: Time) -> Option<Duration> {
        self.stopwatch.ask(now)
    }

    /// Returns for how long nothing has ended while something runs.
    pub(crate) fn stalled_for(&self, now: Time) -> Duration {
        self.stopwatch.stalled_for(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::LinkId;

    #[test]
    fn a_change_that_is_asked_for_again_is_answered_once_on_the_newest_link() {
        let on = |link| PeerLink::new(LinkId(link), 1);
        let seal = |lsn, link| AfterChange::Seal { epoch: Epoch(3), lsn: Lsn(lsn), link: on(link) };
        let wipe = AfterChange::Wipe { epoch: Epoch(3), question: 0, link: on(1) };
        let (group, other, mut jobs) = (GroupId(1), GroupId(2), Jobs::default());
        assert!(!jobs.joins(group, seal(5, 1)));
        let token = jobs.change(Time(0), group, seal(5, 1));
        assert!(Jobs::is_change(token) && jobs.seals(group) && !jobs.seals(other));
        for (of, asked) in [(other, seal(5, 2)), (group, seal(6, 2)), (group, wipe)] {
            assert!(!jobs.joins(of, asked));
        }
        assert!(jobs.joins(group, seal(5, 2)));
        assert_eq!(jobs.take_change(token), Some((group, seal(5, 2))));
        assert!(jobs.take_change(token).is_none() && !jobs.seals(group));
        assert_ne!(jobs.change(Time(0), group, wipe), token);
        let next = AfterChange::Wipe { epoch: Epoch(3), question: 1, link: on(1) };
        assert!(jobs.joins(group, wipe) && !jobs.joins(group, next), "another order");
    }

    #[test]
    fn steps_come_first_and_in_order() {
        let (mut jobs, steps) = (Jobs::default(), [1, 2].map(|g| Step::Seal(GroupId(g))));
        jobs.ended_at_once(7, Ok(Buf::EMPTY));
        assert!(!jobs.has_step());
        steps.into_iter().for_each(|step| jobs.push_step(step));
        for step in steps {
            assert!(jobs.has_step());
            assert!(matches!(jobs.next_task(), Some(Task::Step(next)) if next == step));
        }
        assert!(matches!(jobs.next_task(), Some(Task::Job(7, Ok(_)))) && jobs.has_no_task());
    }
}
