//! A split queue (VIRTIO 1.2, 2.7): takes the available chains of the driver, and gives used chains
//! back.
//!
//! Invariants:
//! - Each chain is given back once. A chain that is under way is not taken again, so the number of
//!   chains under way is at most that of the queue's descriptors.
//! - A used entry is complete before the used index includes it.
//! - The driver is signalled after a chain was given back, unless it has suppressed signals.

use super::{Broken, Chain, Memory};
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};

/// The largest queue, in descriptors.
pub const QUEUE_MAX: u16 = 1024;

/// The driver asks for no signals (2.7.7.1), where event indices are not negotiated.
const NO_INTERRUPT: u16 = 1;

/// The guest addresses of the rings of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Descriptors, and entries of either ring.
    pub size: u16,
    /// The table of descriptors.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

impl Rings {
    /// Checks them against the rules and the memory.
    fn check(&self, memory: &impl Memory) -> Result<(), Broken> {
        if !self.size.is_power_of_two() || self.size > QUEUE_MAX {
            return Err(Broken::Size(self.size));
        }
        let size = u64::from(self.size);
        let is_there =
            |at: u64, align: u64, len: u64| at.is_multiple_of(align) && memory.has(at, len);
        // Each ring has its flags and index before its entries, and one number after them.
        let all = is_there(self.descriptors, 16, 16 * size)
            && is_there(self.available, 2, 6 + 2 * size)
            && is_there(self.used, 4, self.used_bytes());
        if all { Ok(()) } else { Err(Broken::Rings) }
    }

    /// Returns the length of the used ring in bytes.
    pub fn used_bytes(&self) -> u64 {
        6 + 8 * u64::from(self.size)
    }

    /// Returns the slot of an index in a ring.
    fn slot(&self, index: u16) -> u64 {
        u64::from(index & (self.size - 1))
    }
}

/// A queue that is served.
#[derive(Debug)]
pub struct Queue {
    rings: Rings,
    /// Signals go by event indices (2.7.10).
    event_idx: bool,
    /// The index of the next chain to be taken.
    next: u16,
    /// The index after the last chain that was given back.
    used: u16,
    /// The value of `used` at the last signal to the driver.
    signalled: u16,
    /// The heads of the chains that are under way.
    busy: Vec<bool>,
    in_flight: u16,
}

impl Queue {
    /// Starts to serve a queue. `next`: the index of the next chain to be taken.
    pub fn new(
        rings: Rings,
        event_idx: bool,
        next: u16,
        memory: &impl Memory,
    ) -> Result<Queue, Broken> {
        rings.check(memory)?;
        let used = memory.load(rings.used + 2).ok_or(Broken::Rings)?;
        let busy = vec![false; rings.size.into()];
        Ok(Queue { rings, event_idx, next, used, signalled: used, busy, in_flight: 0 })
    }

    /// Records that an earlier process took this many chains and did not give them back. The caller
    /// takes them again with [`Queue::take`]. The next new chain is the one after them.
    pub fn repeats(&mut self, chains: u16) {
        self.next = self.used.wrapping_add(chains);
    }

    /// Returns the index of the used ring.
    pub fn used(&self) -> u16 {
        self.used
    }

    /// Returns the index of the next chain.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Returns the number of chains that are under way.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Returns the index after the last chain that the driver has made available.
    pub fn offered(&self, memory: &impl Memory) -> Result<u16, Broken> {
        memory.load(self.rings.available + 2).ok_or(Broken::Rings)
    }

    /// Takes the next available chain, and returns its head.
    pub fn pop(&mut self, memory: &impl Memory, chain: &mut Chain) -> Result<Option<u16>, Broken> {
        let waiting = self.offered(memory)?.wrapping_sub(self.next);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.rings.size {
            return Err(Broken::TooMany);
        }
        let at = self.rings.available + 4 + 2 * self.rings.slot(self.next);
        let head = memory.load(at).ok_or(Broken::Rings)?;
        self.take(memory, head, chain)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(head))
    }

    /// Takes the chain with this head, which an earlier process had taken.
    pub fn take(
        &mut self,
        memory: &impl Memory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), Broken> {
        match self.busy.get(usize::from(head)) {
            None => return Err(Broken::Index(head.into())),
            Some(true) => return Err(Broken::Twice(head)),
            Some(false) => {}
        }
        chain.follow(memory, &self.rings, head)?;
        self.busy[usize::from(head)] = true;
        self.in_flight += 1;
        Ok(())
    }

    /// Gives a chain back, after the device wrote `len` bytes to it.
    ///
    /// # Panics
    /// When the chain is not under way.
    pub fn push(&mut self, memory: &impl Memory, head: u16, len: u32) -> Result<(), Broken> {
        let busy = core::mem::take(&mut self.busy[usize::from(head)]);
        assert!(busy, "chain {head} is not under way");
        self.in_flight -= 1;
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        let at = self.rings.used + 4 + 8 * self.rings.slot(self.used);
        self.used = self.used.wrapping_add(1);
        let done = memory.write(at, &entry) && memory.store(self.rings.used + 2, self.used);
        if done { Ok(()) } else { Err(Broken::Rings) }
    }

    /// Returns true if the driver needs a signal. Call it once after chains were given back.
    pub fn signals(&mut self, memory: &impl Memory) -> Result<bool, Broken> {
        let signalled = core::mem::replace(&mut self.signalled, self.used);
        if signalled == self.used {
            return Ok(false);
        }
        // The driver writes the value that is read here, and then reads the used index.
        fence(Ordering::SeqCst);
        let available = self.rings.available;
        if self.event_idx {
            let at = available + 4 + 2 * u64::from(self.rings.size);
            let event = memory.load(at).ok_or(Broken::Rings)?;
            return Ok(is_passed(event, signalled, self.used));
        }
        let flags = memory.load(available).ok_or(Broken::Rings)?;
        Ok(flags & NO_INTERRUPT == 0)
    }

    /// Asks the driver for a signal with the next chain. Returns true if a chain is already there.
    pub fn listen(&mut self, memory: &impl Memory) -> Result<bool, Broken> {
        if self.event_idx {
            let at = self.rings.used + 4 + 8 * u64::from(self.rings.size);
            if !memory.store(at, self.next) {
                return Err(Broken::Rings);
            }
        }
        fence(Ordering::SeqCst);
        Ok(self.offered(memory)? != self.next)
    }
}

/// Returns true if an index that went from `old` to `new` has passed `event` (2.7.10.1).
fn is_passed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_passed_also_where_indices_begin_again() {
        assert!(is_passed(5, 5, 6) && is_passed(5, 3, 9) && is_passed(8, 3, 9));
        assert!(!is_passed(9, 3, 9) && !is_passed(2, 3, 9) && !is_passed(5, 6, 6));
        assert!(is_passed(u16::MAX, u16::MAX, 0) && is_passed(u16::MAX, 65000, 3));
        assert!(!is_passed(3, u16::MAX, 3) && is_passed(2, u16::MAX, 3));
    }
}
