//! Writes for which there is no space: they wait, and are asked again until there is.
//!
//! A pool that is full is no reason for an I/O error: somebody may delete a volume, discard, or add a
//! device, and a file system that has seen an error on a write is a broken one.
//!
//! - **A held write gives its number back.** Whoever answers `Full` has looked whether a part of it is in
//!   the content, and says so ([`PART_DONE`]); as a rule there is none, and never will be: older
//!   copies of it are of older sessions or epochs, and nothing that is asked there is begun any more. So it
//!   comes again as a new write. If it kept its number, the floor would stand still while it is held,
//!   for days perhaps, and the list of executed writes would grow with everything else that is written.
//! - **Writes leave a quarter of the requests to others.** Any write may turn out to be one that is held, so
//!   at worst all of them are. What makes space (zeros, discards), and reads, must get in nevertheless:
//!   so what is bounded is all writes, when they come and nothing of them was tried, and not held ones.
//! - **Asking again is bounded as well**: every 250 ms, and more seldom when many bytes are held.

use super::op::Op;
use super::{Action, Client, Turn};
use base::Time;
use base::mutant::{self, Mutant};
use base::prng::mix;
use base::time::Duration;

/// `Header::len` of a `Full` answer to a write of which a part is in the content already.
pub const PART_DONE: u32 = 1;

/// How long a write waits before it is sent again.
const AGAIN: Duration = Duration::from_millis(250);
/// Held payload that is sent in one such period: beyond it the period grows.
const BURST: u64 = 16 << 20;
/// By this factor at most: a device that is full must look so to its heartbeat.
const SLOWEST: u32 = 12;

/// The data of a held write up to this length is copied into a buffer of its own.
const COPIED: usize = 128 << 10;

/// The count of writes, and of those that are held.
#[derive(Debug)]
pub(super) struct Held {
    /// Requests that write data.
    pub(super) writes: u32,
    most: u32,
    /// Operations that are held.
    pub(super) ops: u32,
    bytes: u64,
}

impl Held {
    /// None yet, of so many requests.
    pub(super) fn new(requests: usize) -> Held {
        Held { writes: 0, most: (requests - requests / 4) as u32, ops: 0, bytes: 0 }
    }

    /// True when there is a place for a request that writes, or does not.
    pub(super) fn admits(&self, writes: bool) -> bool {
        !writes || self.writes < self.most
    }

    /// An operation ended.
    pub(super) fn forget(&mut self, op: &Op) {
        if op.held {
            self.ops -= 1;
            self.bytes -= u64::from(op.cost);
        }
    }
}

impl<T: Copy> Client<T> {
    /// There is no space for it now. `part`: some of it is in the content already.
    pub(super) fn hold<M>(&mut self, key: u64, part: bool, turn: &mut Turn<'_, M, T>) {
        let now = turn.now;
        let op = self.ops.get_mut(key).expect("it was just answered");
        if !core::mem::replace(&mut op.held, true) {
            self.held.ops += 1;
            self.held.bytes += u64::from(op.cost);
        }
        let request = op.request;
        self.tell_held(request, turn);
        let op = self.ops.get_mut(key).expect("it was just answered");
        if mutant::on(Mutant::ForgetHeld) {
            return self.wait(key, Time::NEVER);
        }
        op.delays = op.delays.wrapping_add(1);
        // Not all of them, nor all clients, at the same moment.
        let jitter = Duration::from_millis(mix(op.seq ^ u64::from(op.delays) << 56) % 50);
        if !part {
            op.seq = 0;
        }
        let slower = 1 + (self.held.bytes / BURST).min(u64::from(SLOWEST) - 1) as u32;
        self.wait(key, now + AGAIN * slower + jitter);
    }

    /// Tells the owner that a request waits: each time, as the owner may have no room for those that wait, and have
    /// some later. Its data may be a view of a much larger buffer, which must not wait with it.
    fn tell_held<M>(&mut self, request: u64, turn: &mut Turn<'_, M, T>) {
        let Some(request) = self.requests.get_mut(request) else { return };
        if !core::mem::replace(&mut request.held, true) && request.request.body.len() <= COPIED {
            request.request.body = turn.pool.copy(&request.request.body);
        }
        turn.out.push(Action::Held { origin: request.origin });
    }
}
