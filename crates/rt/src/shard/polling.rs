//! When to poll for completions instead of sleeping.
//!
//! Polling has a credit: each success adds `EARNS`, each failure takes 1. So polling continues
//! while at least one in three succeeds: a success saves more (a wake-up on both sides) than a
//! failure costs.

use base::Time;
use std::time::Duration;

/// The most credit.
const TRUST: u32 = 16;
const EARNS: u32 = 2;
/// Without credit, polling is tried once in this many waits.
const RETRY: u32 = 32;

pub(super) struct Polling {
    /// How long after an event to poll.
    spin: Duration,
    trust: u32,
    waits: u32,
    pub(super) last_event: Time,
}

impl Polling {
    pub(super) fn new(spin: Duration) -> Polling {
        Polling { spin, trust: TRUST / 2, waits: 0, last_event: Time::ZERO }
    }

    /// Returns until when to poll. `None` if the last event is not recent, or polling has not paid
    /// lately and is not due for a retry.
    pub(super) fn until(&mut self, now: Time) -> Option<Time> {
        if self.spin.is_zero() || now.since(self.last_event) >= self.spin {
            return None;
        }
        self.waits = self.waits.wrapping_add(1);
        let worth = self.trust > 0 || self.waits.is_multiple_of(RETRY);
        worth.then_some(self.last_event + self.spin)
    }

    /// Records that polling has found something, or nothing.
    pub(super) fn paid(&mut self, found: bool) {
        self.trust = match found {
            true => (self.trust + EARNS).min(TRUST),
            false => self.trust.saturating_sub(1),
        };
    }
}
