//! Future events: a heap ordered by (time, a tie number drawn at push, sequence), so that
//! simultaneous events interleave at random and yet reproducibly.

use base::{Prng, Time};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Entry<T> {
    at: Time,
    tie: u64,
    sequence: u64,
    what: T,
}

impl<T> Entry<T> {
    fn key(&self) -> (Time, u64, u64) {
        (self.at, self.tie, self.sequence)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    /// Reversed: the greatest entry of the heap is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Future events in order of time.
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    sequence: u64,
    prng: Prng,
}

impl<T> Queue<T> {
    /// Creates an empty queue; `prng` breaks ties.
    pub(crate) fn new(prng: Prng) -> Queue<T> {
        Queue { heap: BinaryHeap::new(), sequence: 0, prng }
    }

    /// Schedules `what` at time `at`.
    pub(crate) fn push(&mut self, at: Time, what: T) {
        self.sequence += 1;
        let tie = self.prng.next_u64();
        self.heap.push(Entry { at, tie, sequence: self.sequence, what });
    }

    /// Removes and returns the next event.
    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|e| (e.at, e.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_by_time_and_ties_are_random_but_repeatable() {
        let order = |seed| {
            let mut q = Queue::new(Prng::new(seed));
            (0..20).for_each(|i| q.push(Time(5), i));
            q.push(Time(1), 99);
            std::iter::from_fn(|| q.pop().map(|e| e.1)).collect::<Vec<i32>>()
        };
        assert_eq!(order(1)[0], 99);
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
