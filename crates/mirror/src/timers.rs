//! When the shard's groups repeat their questions, and the groups in which joiners are filled.
//!
//! Invariant: a group whose configuration has ended is in none of the sets. [`Timers::stop`]
//! removes it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{GroupId, Time};

/// Groups that this device leads, and that wait.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Groups whose sync will repeat its question, and when.
    asking: BTreeMap<GroupId, Time>,
    /// Groups in which this device fills a joiner.
    joining: BTreeSet<GroupId>,
}

impl Timers {
    /// Drops everything about a group whose configuration ends.
    pub(crate) fn stop(&mut self, group: GroupId) {
        self.asking.remove(&group);
        self.joining.remove(&group);
    }

    /// Returns true if no group waits for an answer.
    #[inline]
    pub(crate) fn none_ask(&self) -> bool {
        self.asking.is_empty()
    }

    /// Returns when the next question is due.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.asking.values().min().copied()
    }

    // ---- questions ----

    /// Makes the group's sync repeat its question at this time.
    pub(crate) fn ask_at(&mut self, group: GroupId, at: Time) {
        self.asking.insert(group, at);
    }

    /// Records that the group's question is answered.
    pub(crate) fn ask_no_more(&mut self, group: GroupId) {
        self.asking.remove(&group);
    }

    /// Returns the groups whose questions are due.
    pub(crate) fn to_ask(&self, now: Time) -> Vec<GroupId> {
        self.asking.iter().filter(|(_, at)| **at <= now).map(|(group, _)| *group).collect()
    }

    // ---- joiners ----

    /// Records that this device fills a joiner in the group.
    pub(crate) fn join(&mut self, group: GroupId) {
        self.joining.insert(group);
    }

    /// Returns the groups in which this device fills a joiner, in order.
    pub(crate) fn joining(&self) -> impl Iterator<Item = GroupId> {
        self.joining.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_stops_waits_for_nothing() {
        let (a, b, mut timers) = (GroupId(1), GroupId(2), Timers::default());
        assert_eq!(timers.wake_at(), None);
        timers.ask_at(a, Time(30));
        timers.ask_at(b, Time(20));
        timers.join(a);
        assert_eq!((timers.wake_at(), timers.to_ask(Time(20))), (Some(Time(20)), [b].into()));
        timers.stop(a);
        assert_eq!((timers.wake_at(), timers.joining().count()), (Some(Time(20)), 0));
        timers.ask_no_more(b);
        assert_eq!(timers.wake_at(), None);
    }

    #[test]
    fn questions_are_due_when_their_time_has_come() {
        let mut timers = Timers::default();
        for (group, at) in [(3, 20), (1, 20), (2, 30), (1, 25)] {
            timers.ask_at(GroupId(group), Time(at));
        }
        for (now, due) in [(19, &[][..]), (20, &[3]), (25, &[1, 3]), (30, &[1, 2, 3])] {
            let found: Vec<u32> = timers.to_ask(Time(now)).iter().map(|group| group.0).collect();
            assert_eq!(found, due, "{now}");
        }
        assert!(!timers.none_ask(), "they are due until they are answered");
        [1, 2, 3].into_iter().for_each(|group| timers.ask_no_more(GroupId(group)));
        assert!(timers.none_ask() && timers.to_ask(Time::NEVER).is_empty());
    }
}
