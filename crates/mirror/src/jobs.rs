//! Unfinished work of the unit store: changes of groups' records and their continuations, and the
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

/// What continues when a change is durable.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Waiting {
    /// Entering the configuration of this epoch, as a joiner or not.
    Entry { epoch: Epoch, joins: bool },
    /// The answer to a seal of this epoch, on this link.
    Seal { epoch: Epoch, lsn: Lsn, link: PeerLink },
    /// The answer to a wipe in this epoch, on this link.
    Wipe { epoch: Epoch, question: u64, link: PeerLink },
    /// The end of deleting a replica that left its group.
    Discard,
}

/// Work that ended in the call that began it, without the device.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The media job of an operation, with its result.
    Job(u64, Result<Buf, DiskError>),
    /// A change of a group's record.
    Change(GroupId, Waiting),
}

/// Changes and jobs of a shard that have not ended, and ended ones that were not continued yet.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// By token: changes that are not durable yet.
    changes: BTreeMap<u64, (GroupId, Waiting)>,
    /// Number of changes so far.
    count: u64,
    /// Work that ended at once. It is continued before other operations start.
    ended: VecDeque<Ended>,
    stopwatch: Stopwatch,
}

impl Jobs {
    /// Records that the media job of an operation begins.
    #[inline]
    pub(crate) fn begins(&mut self, now: Time, key: u64) {
        self.stopwatch.begins(now, key);
    }

    /// Records that a change begins, and what waits for it. Returns the change's token.
    fn change(&mut self, now: Time, group: GroupId, waiting: Waiting) -> u64 {
        self.count += 1;
        let token = self.count << 32 | CHANGE;
        self.changes.insert(token, (group, waiting));
        self.stopwatch.begins(now, token);
        token
    }

    /// Changes a group's record. `waiting` continues when that is durable.
    pub(crate) fn change_first(
        &mut self,
        store: &mut impl UnitStore,
        now: Time,
        group: GroupId,
        changes: Vec<Change>,
        waiting: Waiting,
    ) {
        if !store.survives() {
            store.change(None, group, changes);
            return self.ended_at_once(Ended::Change(group, waiting));
        }
        let token = self.change(now, group, waiting);
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

    /// Takes what waits for the change that has this token.
    pub(crate) fn take_change(&mut self, token: u64) -> Option<(GroupId, Waiting)> {
        self.changes.remove(&token)
    }

    /// Records work that ended in the call that began it.
    #[inline]
    pub(crate) fn ended_at_once(&mut self, ended: Ended) {
        self.ended.push_back(ended);
    }

    /// Takes the first work that ended at once.
    #[inline]
    pub(crate) fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Returns true if no work that ended at once is left to be continued.
    #[inline]
    pub(crate) fn none_ended(&self) -> bool {
        self.ended.is_empty()
    }

    /// Returns true while a seal of the group is not durable.
    pub(crate) fn seals(&self, group: GroupId) -> bool {
        let seals =
            |(of, what): &(GroupId, Waiting)| *of == group && matches!(what, Waiting::Seal { .. });
        self.changes.values().any(seals)
    }

    /// Returns true if the last change in progress for the group is the same. Its answer will then
    /// go to the newest question. A primary repeats its question until it is answered, and a device
    /// that hangs would get a change for each.
    pub(crate) fn joins(&mut self, group: GroupId, asked: Waiting) -> bool {
        let last = self.changes.values_mut().rev().find(|known| known.0 == group);
        let Some((_, known)) = last else { return false };
        let same = match (*known, asked) {
            (Waiting::Seal { epoch: e, lsn: l, .. }, Waiting::Seal { epoch, lsn, .. }) => {
                (e, l) == (epoch, lsn)
            }
            (
                Waiting::Wipe { epoch: e, question: q, .. },
                Waiting::Wipe { epoch, question, .. },
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
        let seal = |lsn, link| Waiting::Seal { epoch: Epoch(3), lsn: Lsn(lsn), link: on(link) };
        let wipe = Waiting::Wipe { epoch: Epoch(3), question: 0, link: on(1) };
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
        let next = Waiting::Wipe { epoch: Epoch(3), question: 1, link: on(1) };
        assert!(jobs.joins(group, wipe) && !jobs.joins(group, next), "another order");
    }
}
