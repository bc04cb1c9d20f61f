//! The requests under way.
//!
//! Invariants:
//! - A slot is in use from the request to the answer, whatever happens to the virtual machine.
//! - Memory is bounded: while [`REQUESTS`] or [`BYTES`] are under way, no new request is taken.
//! - An orphan is a request whose queue is gone. It is withdrawn, and its answer is dropped.

use seam::RequestId;
use target::virtio::Chain;

/// Most requests under way.
const REQUESTS: u32 = 1024;
/// No request begins while this many bytes of reads and writes are under way.
const BYTES: u64 = 64 << 20;

/// The origin of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    /// The number of the connection.
    pub(crate) connection: u64,
    /// The queue.
    pub(crate) queue: usize,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// The first descriptor of its chain.
    pub(crate) head: u16,
    /// The address of its status.
    pub(crate) status: u64,
    /// The bytes that a read copies to its chain.
    pub(crate) reads: u32,
    /// The bytes of memory that the request holds.
    pub(crate) bytes: u32,
}

#[derive(Debug, Default)]
struct Slot {
    owner: Option<Owner>,
    pending: Option<Pending>,
    chain: Chain,
}

/// All slots.
#[derive(Debug)]
pub(crate) struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
    bytes: u64,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots {
            all: (0..REQUESTS).map(|_| Slot::default()).collect(),
            free: (0..REQUESTS).rev().collect(),
            bytes: 0,
        }
    }

    /// Returns true if nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.all.len()
    }

    /// Returns true if a request may be taken.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() && self.bytes < BYTES
    }

    /// Returns the chain of the next free slot, to be filled. `None`: there is no room.
    pub(crate) fn chain(&mut self) -> Option<&mut Chain> {
        let next = *self.free.last().filter(|_| self.has_room())?;
        Some(&mut self.all[next as usize].chain)
    }

    /// Takes the slot with the filled chain, and returns the number of the request.
    ///
    /// # Panics
    /// When there is no room.
    pub(crate) fn take(&mut self, owner: Owner, pending: Pending) -> RequestId {
        let next = self.free.pop().expect("there is room");
        let slot = &mut self.all[next as usize];
        (slot.owner, slot.pending) = (Some(owner), Some(pending));
        self.bytes += u64::from(pending.bytes);
        RequestId(next.into())
    }

    /// Ends a request. Returns the request and its origin, unless it is an orphan.
    pub(crate) fn end(&mut self, id: RequestId) -> Option<(Owner, Pending, &Chain)> {
        let slot = &mut self.all[id.0 as usize];
        let pending = slot.pending.take().expect("a request has one answer");
        self.bytes -= u64::from(pending.bytes);
        self.free.push(id.0 as u32);
        slot.owner.take().map(|owner| (owner, pending, &slot.chain))
    }

    /// Makes the requests of the origins for which this is true orphans. Returns their numbers in
    /// ascending order.
    pub(crate) fn orphan(&mut self, is_gone: impl Fn(Owner) -> bool) -> Vec<RequestId> {
        let owned = (0..).map(RequestId).zip(&mut self.all);
        let gone =
            owned.filter_map(|(id, slot)| slot.owner.take_if(|owner| is_gone(*owner)).map(|_| id));
        gone.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENDING: Pending = Pending { head: 0, status: 0, reads: 0, bytes: 4096 };

    fn owner(connection: u64, queue: usize) -> Owner {
        Owner { connection, queue }
    }

    #[test]
    fn an_orphan_stops_nobody_and_keeps_its_number_until_its_answer() {
        let mut slots = Slots::new();
        let all = [(1, 0), (1, 1), (2, 0)].map(|(c, q)| slots.take(owner(c, q), PENDING));
        assert_eq!(slots.orphan(|owner| owner.queue == 0), [all[0], all[2]]);
        assert_eq!(slots.orphan(|owner| owner.queue == 0), [], "each is one once");
        assert!(slots.has_room() && slots.chain().is_some());
        let next = slots.take(owner(3, 0), PENDING);
        assert!(!all.contains(&next));
        assert_eq!(slots.end(all[1]).map(|(owner, ..)| owner), Some(owner(1, 1)));
        assert!(slots.end(all[0]).is_none() && slots.end(all[2]).is_none() && !slots.is_empty());
        assert!(slots.end(next).is_some() && slots.is_empty());
    }

    #[test]
    fn requests_and_bytes_are_bounded() {
        let mut slots = Slots::new();
        let small = Pending { bytes: 1, ..PENDING };
        let all: Vec<_> = (0..REQUESTS).map(|_| slots.take(owner(1, 0), small)).collect();
        assert!(!slots.has_room());
        assert!(all.into_iter().all(|id| slots.end(id).is_some()));
        let large = Pending { bytes: BYTES as u32, ..PENDING };
        let id = slots.take(owner(1, 0), large);
        assert!(!slots.has_room() && slots.end(id).is_some() && slots.has_room());
    }
}
