//! Flushes, for writes that no answer waits for: many writes per flush, one flush at a time.
//!
//! Invariant: what waits while a flush runs is made durable by the next one.

use super::job::Waiter;
use super::tuning::Durability;
use alloc::vec::Vec;

/// Number of waiters that are worth a flush although more writes are in flight.
const MANY: usize = 16;

/// Operations that wait for flushes.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// Waiters for the next flush.
    waiting: Vec<Waiter>,
    /// Waiters for the running flush. `None`: no flush is running.
    running: Option<Vec<Waiter>>,
}

impl Flushes {
    /// Lets a waiter wait for the writes that have completed. Returns it if they are durable
    /// already.
    pub(super) fn wait(&mut self, waiter: Waiter, durability: Durability) -> Option<Waiter> {
        match durability {
            Durability::Flush => self.waiting.push(waiter),
            Durability::WriteThrough => return Some(waiter),
        }
        None
    }

    /// Begins a flush if one is due. Destaged data can wait until there is more of it, while more
    /// is on its way. The caller emits the operation.
    pub(super) fn begin(&mut self, more: bool) -> bool {
        let hurry = |w: &Waiter| matches!(w, Waiter::Checkpoint);
        let due = !self.waiting.is_empty()
            && (self.waiting.len() >= MANY || !more || self.waiting.iter().any(hurry));
        if !due || self.running.is_some() {
            return false;
        }
        self.running = Some(core::mem::take(&mut self.waiting));
        true
    }

    /// Ends the running flush, and returns what waited for it.
    pub(super) fn end(&mut self) -> Vec<Waiter> {
        self.running.take().expect("one flush at a time")
    }
}
