//! Chooses the free slots whose space is given back to the file system below the device (R18). The
//! file of a device is thin: a free slot needs no blocks in it.
//!
//! Invariants: a slot is given back only while it is free. It becomes free only when the record
//! that frees it is durable, so no crash restores its former content. A slot is not allocated while
//! it is being given back, because the operation might reach the device after a write to the slot.
//!
//! Giving back has a low priority:
//! - Only slots that stayed free for a while are given back. Overwrites of whole slots reuse slots
//!   that other overwrites have just freed, and a slot without blocks costs the file system an
//!   extra write to allocate them. So the number of slots to give back is the lowest number of free
//!   slots with blocks over some calls of `rest`.
//! - One operation is in flight at a time. While jobs run, there is a short burst of operations
//!   once a second, because the next write waits for the file system's journal.
//! - At least seven of eight free slots can be allocated meanwhile, however long the operation
//!   hangs.
//!
//! The device does not record which slots were given back. After a mount, every free slot may have
//! blocks, and all free slots are given back again. So a crash leaks no space.

use super::bits::Bits;
use base::{Mutant, mutant};
use core::ops::Range;

/// The most slots of one operation: 16 MiB. The file system locks the whole file meanwhile.
const MOST: u32 = 256;
/// One operation takes at most one of this many free slots.
const SHARE: u32 = 8;
/// Most operations between two calls of `rest` if nothing was written since the previous call.
const RESTING: u32 = 64;
/// The same while jobs run, and the number of calls of `rest` from one such burst to the next.
const BUSY: u32 = 8;
const BUSY_EVERY: u32 = 5;

/// The free slots of a device, and which of them to give back.
#[derive(Debug)]
pub(super) struct Holes {
    /// Free slots that may have blocks below the device.
    filled: Bits,
    /// Slots that are being given back. They count as taken.
    held: Range<u32>,
    /// Where the search for the next slots begins.
    cursor: u32,
    /// The lowest number of slots in `filled` since the present window began.
    low: u32,
    /// The lowest number of the last window, minus the slots that were given back since.
    surplus: u32,
    /// Number of calls of `rest` in the present window.
    age: u32,
    /// Number of calls of `rest` since the device rested.
    busy: u32,
    /// Number of operations that may begin before the next call of `rest`.
    credit: u32,
    /// An operation failed. Nothing more is given back until the next mount.
    stopped: bool,
}

impl Holes {
    /// Makes the state in which no slot is free.
    pub(super) fn new(slots: u32) -> Holes {
        let filled = Bits::new(slots);
        let (held, stopped, credit) = (0..0, false, 0);
        Holes { filled, held, cursor: 0, low: 0, surplus: 0, age: 0, busy: 0, credit, stopped }
    }

    /// Ends recovery with these free slots. It is not known which of them have blocks.
    pub(super) fn mounted(&mut self, free: Bits) {
        self.filled = free;
    }

    /// Records that a slot is free, and may have blocks.
    pub(super) fn freed(&mut self, slot: u32) {
        self.filled.put(slot, true);
    }

    /// Records that a slot is taken.
    pub(super) fn taken(&mut self, slot: u32) {
        if self.filled.put(slot, false) {
            self.low = self.low.min(self.filled.count());
        }
    }

    /// True for a free slot that may have blocks.
    pub(super) fn is_filled(&self, slot: u32) -> bool {
        self.filled.get(slot)
    }

    /// Returns the slots that are being given back.
    pub(super) fn held(&self) -> Range<u32> {
        self.held.clone()
    }

    /// Counts a call of `rest`. A window has `window` of them. `rests`: nothing was written since
    /// the last call.
    pub(super) fn rested(&mut self, window: u32, rests: bool) {
        self.age += 1;
        if self.age >= window {
            (self.surplus, self.low, self.age) = (self.low, self.filled.count(), 0);
        }
        self.busy = if rests { 0 } else { self.busy + 1 };
        self.credit = match self.busy {
            0 => RESTING,
            busy if busy.is_multiple_of(BUSY_EVERY) => BUSY,
            _ => 0,
        };
    }

    /// Returns the next adjacent slots to give back, at most `most`, if there are any now. The
    /// caller must not allocate them until `end`.
    pub(super) fn begin(&mut self, most: u32) -> Option<Range<u32>> {
        let most = most.min(MOST).min(self.surplus);
        if self.stopped || self.credit == 0 || most == 0 || !self.held.is_empty() {
            return None;
        }
        let from = |from| self.filled.next_set(from);
        let first = from(self.cursor).or_else(|| from(0))?;
        let count = (first..self.filled.len().min(first + most))
            .take_while(|slot| self.filled.get(*slot))
            .count() as u32;
        assert!((1..=most).contains(&count), "one operation gives back a bounded run");
        let run = first..first + count;
        run.clone().for_each(|slot| self.taken(slot));
        (self.cursor, self.credit) = (run.end, self.credit - 1);
        self.surplus -= count;
        if !mutant::on(Mutant::HoleUnawaited) {
            self.held = run.clone();
        }
        Some(run)
    }

    /// Records that a job runs: at most a few more operations follow.
    pub(super) fn yields(&mut self) {
        self.credit = self.credit.min(BUSY);
    }

    /// Records that an operation failed.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Ends the operation. Returns the slots that can be allocated again.
    pub(super) fn end(&mut self) -> Range<u32> {
        core::mem::replace(&mut self.held, 0..0)
    }
}

/// Returns how many of the `free` slots one operation may take.
pub(super) fn share(free: u32) -> u32 {
    free / SHARE
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn of(free: impl IntoIterator<Item = u32>) -> Holes {
        let mut holes = Holes::new(2000);
        free.into_iter().for_each(|slot| holes.freed(slot));
        holes
    }

    /// Calls `rest` as often as two windows take.
    fn rest(holes: &mut Holes) {
        (0..6).for_each(|_| holes.rested(3, true));
    }

    #[test]
    fn neighbours_go_together_and_one_operation_at_a_time() {
        let mut holes = of((3..5).chain(7..9).chain(100..1000));
        assert_eq!(holes.begin(99), None, "they are free for too short a time");
        rest(&mut holes);
        assert_eq!(holes.begin(99), Some(3..5));
        assert_eq!((holes.held(), holes.begin(99)), (3..5, None));
        assert_eq!(holes.end(), 3..5);
        assert!(!holes.is_filled(3) && holes.is_filled(7));
        assert_eq!((holes.begin(1), holes.end()), (Some(7..8), 7..8));
        assert_eq!((holes.begin(99), holes.end()), (Some(8..9), 8..9));
        assert_eq!((holes.begin(9999), holes.end()), (Some(100..356), 100..356));
        holes.freed(3);
        assert_eq!((holes.begin(100), holes.end()), (Some(356..456), 356..456));
        let mut given = 0;
        while let Some(run) = holes.begin(9999) {
            given += holes.end().len();
            assert!(run.len() <= 256);
            rest(&mut holes);
        }
        assert_eq!(given, 1000 - 456 + 1, "the last one was freed behind the cursor");
    }

    #[test]
    fn only_space_that_stayed_free_is_given_back() {
        let mut holes = of(0..10);
        for _ in 0..20 {
            // Overwrites take eight of them, and free eight others.
            (0..8).for_each(|slot| holes.taken(slot));
            holes.rested(3, true);
            (0..8).for_each(|slot| holes.freed(slot));
            assert!(holes.surplus <= 2, "{}", holes.surplus);
        }
        assert_eq!(holes.begin(99), Some(0..2));
        holes.end();
        assert_eq!(holes.begin(99), None);
        // Then the device rests.
        rest(&mut holes);
        assert_eq!(holes.begin(99), Some(2..10));
    }

    #[test]
    fn only_a_few_operations_follow_each_other_while_jobs_run() {
        let mut holes = of(0..2000);
        rest(&mut holes);
        let count = |holes: &mut Holes| {
            (0..100).filter(|_| holes.begin(1).map(|_| holes.end()).is_some()).count()
        };
        assert_eq!(count(&mut holes), 64);
        let bursts: Vec<usize> = (0..12)
            .map(|_| {
                holes.rested(3, false);
                count(&mut holes)
            })
            .collect();
        assert_eq!(bursts, [0, 0, 0, 0, 8, 0, 0, 0, 0, 8, 0, 0]);
        holes.rested(3, true);
        assert_eq!(count(&mut holes), 64);
    }
}
