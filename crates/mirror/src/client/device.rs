//! One primary as the client sees it: its link, its credit, and the operations that wait for it.
//!
//! Invariants: the credit in use is that of the operations that are `Sent` to the device in the
//! present session, and the queue does not let a new operation overtake one that was sent before.

use super::op::Place;
use super::ops::Ops;
use alloc::collections::VecDeque;
use base::DeviceId;

/// A device that operations go to.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// True once the owner was asked to dial it.
    wanted: bool,
    /// True while it has welcomed this client on a link that is up.
    up: bool,
    /// The number of the session: how often it has welcomed this client.
    session: u64,
    credit_ops: u32,
    credit_bytes: u32,
    used_ops: u32,
    used_bytes: u32,
    /// Operations that wait for the link or for credit, in order. Some may be gone already.
    queue: VecDeque<u64>,
}

impl Device {
    /// Starts a new session with this credit. Nothing is outstanding in it.
    pub(super) fn link_up(&mut self, ops: u32, bytes: u32) {
        self.up = true;
        self.session += 1;
        (self.credit_ops, self.credit_bytes) = (ops.max(1), bytes);
        (self.used_ops, self.used_bytes) = (0, 0);
    }

    /// Ends the session. Returns the operations that waited.
    pub(super) fn link_down(&mut self) -> VecDeque<u64> {
        self.up = false;
        core::mem::take(&mut self.queue)
    }

    /// Returns the number of the last session; 0 before the first.
    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// Returns true if this session has not ended.
    pub(super) fn is_in(&self, session: u64) -> bool {
        self.up && self.session == session
    }

    /// Returns true the first time: the owner has to dial it.
    pub(super) fn wants_dial(&mut self) -> bool {
        !core::mem::replace(&mut self.wanted, true)
    }

    // ---- the queue ----

    /// Queues an operation until there is a link and credit. One that was sent before, under the
    /// number `seq`, goes in front of those that were not.
    pub(super) fn enqueue(&mut self, key: u64, seq: u64, ops: &Ops) {
        if seq == 0 {
            return self.queue.push_back(key);
        }
        let earlier = |key: &u64| ops.get(*key).is_some_and(|o| (1..seq).contains(&o.seq));
        let place = self.queue.partition_point(earlier);
        self.queue.insert(place, key);
    }

    /// Empties the queue: a new map has come, and the caller routes all operations anew.
    pub(super) fn clear_queue(&mut self) {
        self.queue.clear();
    }

    /// Takes the next operation that waits for this `device`, if it is up and has credit for it.
    pub(super) fn next(&mut self, device: DeviceId, ops: &Ops) -> Option<u64> {
        if !self.up {
            return None;
        }
        loop {
            let key = *self.queue.front()?;
            let op = ops.get(key).filter(|op| op.place == Place::Queued(device));
            if op.is_some_and(|op| !self.take(op.cost)) {
                return None;
            }
            self.queue.pop_front();
            if op.is_some() {
                return Some(key);
            }
        }
    }

    // ---- the credit ----

    /// Takes credit for one operation; false if there is too little. An operation larger than the
    /// whole credit is sent alone.
    fn take(&mut self, bytes: u32) -> bool {
        let used = self.used_bytes.saturating_add(bytes);
        let fits =
            self.used_ops < self.credit_ops && (used <= self.credit_bytes || self.used_ops == 0);
        if fits {
            self.used_ops += 1;
            self.used_bytes = used;
        }
        fits
    }

    /// Returns the credit of one operation.
    pub(super) fn give(&mut self, bytes: u32) {
        assert!(self.used_ops > 0 && self.used_bytes >= bytes, "credit is given back once");
        self.used_ops -= 1;
        self.used_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::super::op::Op;
    use super::*;
    use alloc::vec::Vec;
    use base::Time;
    use seam::BlockKind;

    const DEVICE: DeviceId = DeviceId(1);

    /// Creates operations with these numbers and costs, which wait for the device in this order.
    fn queued(of: &[(u64, u32)]) -> (Device, Ops, Vec<u64>) {
        let (mut device, mut ops) = (Device::default(), Ops::new(8));
        for (seq, cost) in of {
            let (seq, cost, place) = (*seq, *cost, Place::Queued(DEVICE));
            ops.insert(Op { seq, cost, place, ..Op::new(BlockKind::Read, 0, Time::ZERO) });
        }
        let keys: Vec<u64> = core::iter::from_fn(|| ops.next_loose()).collect();
        for (key, (seq, _)) in keys.iter().zip(of) {
            device.enqueue(*key, *seq, &ops);
        }
        (device, ops, keys)
    }

    #[test]
    fn retries_are_sent_before_new_operations() {
        let (mut device, ops, keys) = queued(&[(0, 1), (7, 1), (0, 1), (5, 1)]);
        assert_eq!(device.next(DEVICE, &ops), None, "the link is down");
        device.link_up(9, 9);
        let order: Vec<u64> = core::iter::from_fn(|| device.next(DEVICE, &ops)).collect();
        assert_eq!(order, [3, 1, 0, 2].map(|i| keys[i]));
    }

    #[test]
    fn an_operation_larger_than_the_credit_goes_alone() {
        let (mut device, ops, keys) = queued(&[(1, 4), (2, 20), (3, 4)]);
        device.link_up(9, 10);
        assert_eq!(device.next(DEVICE, &ops), Some(keys[0]));
        assert_eq!(device.next(DEVICE, &ops), None);
        device.give(4);
        assert_eq!(device.next(DEVICE, &ops), Some(keys[1]));
        assert_eq!(device.next(DEVICE, &ops), None);
        device.give(20);
        assert_eq!(device.next(DEVICE, &ops), Some(keys[2]));
    }

    #[test]
    fn a_session_ends_once_and_withdrawn_operations_are_skipped() {
        let (mut device, mut ops, keys) = queued(&[(1, 4), (2, 4)]);
        assert!(device.wants_dial() && !device.wants_dial());
        device.link_up(9, 10);
        assert!(device.is_in(1) && !device.is_in(0));
        ops.remove(keys[0]);
        assert_eq!(device.next(DEVICE, &ops), Some(keys[1]));
        assert!(device.link_down().is_empty() && !device.is_in(1));
        assert_eq!(device.session(), 1);
    }
}
