//! Writes for which there is no space (rule R15): they wait, and are sent again until there is
//! some.
//!
//! A full pool is no reason for an I/O error: an operator may delete a volume or add a device, and
//! programs may discard. A file system that has seen an error on a write is broken.
//!
//! - **A held write gives up its number.** A primary that answers `Full` has checked whether a part
//!   of the write is in the content, and says so (`Reply::part_done`). As a rule there is none, and
//!   never will be: older copies of the write belong to older sessions or epochs, and nothing of
//!   these is begun any more. So it is sent again as a new write. If it kept its number, the floor
//!   would stand still while it is held, perhaps for days, and the list of executed writes would
//!   grow with everything else that is written.
//! - **Writes leave a quarter of the requests to others.** Any write may turn out to be one that is
//!   held, so at worst all of them are. Reads, and what makes space (zeros, discards), must be
//!   admitted nevertheless. So the limit counts all writes and not only held ones, and applies when
//!   a write comes, before anything of it was tried.
//! - **Repetitions are bounded as well**: a held write is sent every 250 ms, and less often when
//!   many bytes are held.

use super::op::Op;
use super::{Action, Client, Turn};
use base::Time;
use base::mutant::{self, Mutant};
use base::prng::mix;
use base::time::Duration;

/// How long a write waits before it is sent again.
const AGAIN: Duration = Duration::from_millis(250);
/// Bytes of held writes that are sent in one such period. With more the period grows.
const BURST: u64 = 16 << 20;
/// The largest factor by which it grows. A full device must be asked often enough to report in its
/// heartbeats that it is full.
const SLOWEST: u32 = 12;

/// Data of a held write up to this length is copied into a buffer of its own.
const COPIED: usize = 128 << 10;

/// How many writes there are, and how many of them are held.
#[derive(Debug)]
pub(super) struct Held {
    /// Requests that write data.
    writes: u32,
    /// The most of them.
    most: u32,
    /// Operations that are held.
    ops: u32,
    /// Bytes of these operations.
    bytes: u64,
}

impl Held {
    /// Creates the counts for this many requests.
    pub(super) fn new(requests: usize) -> Held {
        Held { writes: 0, most: (requests - requests / 4) as u32, ops: 0, bytes: 0 }
    }

    /// Returns true if there is room for a request that writes, or for one that doesn't.
    pub(super) fn admits(&self, writes: bool) -> bool {
        !writes || self.writes < self.most
    }

    /// Counts a request that writes.
    pub(super) fn begins(&mut self) {
        self.writes += 1;
        assert!(self.writes <= self.most, "writes leave requests to others");
    }

    /// Counts a request that writes as ended.
    pub(super) fn ends(&mut self) {
        assert!(self.writes > 0, "a request that writes ends once");
        self.writes -= 1;
    }

    /// Returns the number of requests that write.
    pub(super) fn writes(&self) -> u32 {
        self.writes
    }

    /// Returns the number of operations that are held.
    pub(super) fn ops(&self) -> u32 {
        self.ops
    }

    /// Holds an operation, if it is not held already.
    fn add(&mut self, op: &mut Op) {
        if !core::mem::replace(&mut op.held, true) {
            self.ops += 1;
            self.bytes += u64::from(op.cost);
        }
    }

    /// Returns how long a held operation waits before it is sent again.
    fn period(&self) -> Duration {
        AGAIN * (1 + (self.bytes / BURST).min(u64::from(SLOWEST) - 1) as u32)
    }

    /// Removes an operation that has ended.
    pub(super) fn forget(&mut self, op: &Op) {
        if op.held {
            assert!(self.ops > 0, "an operation that is held was counted");
            self.ops -= 1;
            self.bytes -= u64::from(op.cost);
        }
    }
}

impl<T: Copy> Client<T> {
    /// Holds an operation for which there is no space now. `part`: some of it is in the content
    /// already.
    pub(super) fn hold<M>(&mut self, key: u64, part: bool, turn: &mut Turn<'_, M, T>) {
        let now = turn.now;
        let op = self.ops.get_mut(key).expect("it was just answered");
        self.held.add(op);
        let request = op.request;
        self.tell_held(request, turn);
        let op = self.ops.get_mut(key).expect("it was just answered");
        if mutant::on(Mutant::ForgetHeld) {
            return self.ops.wait(key, Time::NEVER);
        }
        op.delays = op.delays.wrapping_add(1);
        // Neither all writes nor all clients repeat at the same moment.
        let jitter = Duration::from_millis(mix(op.seq ^ u64::from(op.delays) << 56) % 50);
        if !part {
            op.seq = 0;
        }
        self.ops.wait(key, now + self.held.period() + jitter);
    }

    /// Tells the owner that a request waits, each time it is tried: an owner that had no room for
    /// waiting requests may have some later. The request's data may be a view of a much larger
    /// buffer, which must not be kept for as long.
    fn tell_held<M>(&mut self, request: u64, turn: &mut Turn<'_, M, T>) {
        let Some(request) = self.requests.get_mut(request) else { return };
        if !core::mem::replace(&mut request.held, true) && request.request.body.len() <= COPIED {
            request.request.body = turn.pool.copy(&request.request.body);
        }
        turn.out.push(Action::Held { origin: request.origin });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::UNIT;
    use seam::BlockKind;

    #[test]
    fn writes_leave_a_quarter_of_the_requests_to_others() {
        let mut held = Held::new(8);
        (0..6).for_each(|_| held.begins());
        assert!(!held.admits(true) && held.admits(false));
        held.ends();
        assert!(held.admits(true));
        assert_eq!(held.writes(), 5);
    }

    #[test]
    fn an_operation_is_held_once_and_many_bytes_are_repeated_less_often() {
        let mut held = Held::new(8);
        let mut op = Op { cost: UNIT, ..Op::new(BlockKind::Write, 0, Time::ZERO) };
        (0..2).for_each(|_| held.add(&mut op));
        assert_eq!((held.ops(), held.period()), (1, AGAIN));
        for _ in 1..2 * BURST / u64::from(UNIT) {
            held.add(&mut Op { cost: UNIT, ..Op::new(BlockKind::Write, 0, Time::ZERO) });
        }
        assert_eq!(held.period(), AGAIN * 3);
        held.forget(&op);
        assert_eq!(held.period(), AGAIN * 2);
    }
}
