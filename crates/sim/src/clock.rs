//! A process's own clock: it starts anywhere and runs a little fast or slow.

use base::Time;

const MILLION: i128 = 1_000_000;

/// Translates between the world's time and one process's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The process's time when the world's is zero.
    offset: u64,
    /// Local nanoseconds per million of the world's.
    rate: i128,
}

impl Clock {
    /// A clock that is `offset` ahead and gains `drift_ppm` millionths.
    pub fn new(offset: u64, drift_ppm: i64) -> Clock {
        let rate = MILLION + i128::from(drift_ppm);
        assert!(rate > 0, "a clock that stands still");
        Clock { offset, rate }
    }

    /// What this clock shows when the world's shows `at`.
    pub fn local(&self, at: Time) -> Time {
        Time(self.offset + (i128::from(at.0) * self.rate / MILLION) as u64)
    }

    /// The first moment at which this clock shows `local` or more.
    pub fn world(&self, local: Time) -> Time {
        let ahead = i128::from(local.0.saturating_sub(self.offset));
        let mut at = Time(u64::try_from(ahead * MILLION / self.rate).unwrap_or(u64::MAX / 2));
        while self.local(at) < local {
            at.0 += 1;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_is_never_early_and_at_most_a_tick_late() {
        for ppm in [-100_000, -3, 0, 7, 99_999] {
            let clock = Clock::new(17_000_000_123, ppm);
            for local in (17_000_000_123u64..).step_by(1_234_567).take(1000) {
                let at = clock.world(Time(local));
                assert!(clock.local(at) >= Time(local));
                assert!(at.0 == 0 || clock.local(Time(at.0 - 1)) < Time(local));
            }
        }
    }
}
