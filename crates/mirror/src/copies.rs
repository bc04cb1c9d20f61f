//! Copies of syncs, at both ends: the order of the groups, and the number of running copies.
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

use crate::arrival::Arrivals;
use crate::pace::{End, Pace, Purpose, Turn};
use alloc::collections::VecDeque;
use base::{GroupId, Limits, Time};

/// The copies of a shard.
#[derive(Debug)]
pub(crate) struct Copies {
    pub pace: Pace,
    pub arrivals: Arrivals,
    /// Groups with blocks to copy, served in turn.
    queue: VecDeque<GroupId>,
    /// Copies that this device, as the primary, has begun and not ended.
    running: u32,
    /// When copies that are delayed may begin.
    at: Option<Time>,
}

impl Copies {
    /// Creates the state in which nothing is copied.
    pub(crate) fn new(limits: &Limits) -> Copies {
        let (pace, arrivals, queue) = (Pace::new(limits), Arrivals::default(), VecDeque::new());
        Copies { pace, arrivals, queue, running: 0, at: None }
    }

    /// Queues a group that has blocks to copy and whose sync is not in the queue.
    pub(crate) fn queue(&mut self, group: GroupId) {
        self.queue.push_back(group);
    }

    /// Returns true if no copy waits at either end, so no time has to be waited for.
    #[inline]
    pub(crate) fn none_wait(&mut self) -> bool {
        let none = self.queue.is_empty() && self.arrivals.is_empty();
        if none {
            self.at = None;
        }
        none
    }

    /// Takes the first group in turn whose copies may begin, with their purpose. `purpose` returns
    /// the purpose of a group's copies, or `None` while its stream has no room for them.
    pub(crate) fn next(
        &mut self,
        now: Time,
        limits: &Limits,
        purpose: impl Fn(GroupId) -> Option<Purpose>,
    ) -> Option<(GroupId, Purpose)> {
        self.at = None;
        if self.queue.is_empty() || self.running >= Pace::most(limits) {
            return None;
        }
        let turn = |p| (p, self.pace.turn(now, End::Source, p, self.running, limits));
        let turns = Purpose::ALL.map(turn);
        let may = |group: &GroupId| purpose(*group).filter(|p| turns.contains(&(*p, Turn::Now)));
        let first = self.queue.iter().enumerate().find_map(|(at, group)| Some((at, may(group)?)));
        if first.is_none() {
            let at = |t: &(Purpose, Turn)| if let Turn::At(at) = t.1 { Some(at) } else { None };
            self.at = turns.iter().filter_map(at).min();
        }
        let (place, purpose) = first?;
        Some((self.queue.remove(place)?, purpose))
    }

    /// Records that a copy begins.
    pub(crate) fn begins(&mut self, now: Time, purpose: Purpose) {
        self.running += 1;
        self.pace.begun(now, purpose);
    }

    /// Records that a copy has ended, with any result.
    pub(crate) fn ends(&mut self) {
        self.running -= 1;
    }

    /// Returns the number of copies that run.
    pub(crate) fn running(&self) -> u32 {
        self.running
    }

    /// Returns when copies that are delayed may begin, here as the source or as the target.
    #[inline]
    pub(crate) fn wake_at(&self) -> Option<Time> {
        Time::earliest(self.at, self.arrivals.wake_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_take_turns_and_one_without_room_holds_no_other_back() {
        let limits = Limits { copies: 2, ..Limits::TEST_MIN };
        let mut copies = Copies::new(&limits);
        [1, 2, 3].into_iter().for_each(|group| copies.queue(GroupId(group)));
        let purpose = |group: GroupId| (group != GroupId(1)).then_some(Purpose::Settle);
        let next = |copies: &mut Copies| copies.next(Time(1), &limits, purpose);
        for group in [2, 3] {
            assert_eq!(next(&mut copies), Some((GroupId(group), Purpose::Settle)));
            copies.begins(Time(1), Purpose::Settle);
        }
        assert_eq!(next(&mut copies), None, "the first one has no room");
        copies.queue(GroupId(2));
        assert_eq!(next(&mut copies), None, "two run");
        copies.ends();
        assert_eq!(next(&mut copies), Some((GroupId(2), Purpose::Settle)));
        assert_eq!(copies.running(), 1);
    }
}
