//! The clock of one process: it has a random offset and a drift. It stands still while the
//! process's virtual machine is stopped, and may jump ahead.

use base::Time;
use std::time::Duration;

const MILLION: i128 = 1_000_000;

/// Translates between the world's time and the time of one process.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The clock runs from this moment of the world's time on.
    from: Time,
    /// Its reading at that moment and before, in ns.
    shows: u64,
    /// Local ns per million ns of the world's time.
    rate: i128,
}

impl Clock {
    /// Creates a clock that is `offset` ns ahead and gains `drift_ppm` millionths.
    pub fn new(offset: u64, drift_ppm: i64) -> Clock {
        Clock { from: Time::ZERO, shows: offset, rate: rate(drift_ppm) }
    }

    /// Returns the reading of this clock at the world's time `at`.
    pub fn local(&self, at: Time) -> Time {
        let gone = i128::from(at.0.saturating_sub(self.from.0));
        Time(self.shows + (gone * self.rate / MILLION) as u64)
    }

    /// Returns the first moment of the world's time at which this clock reads `local` or more.
    pub fn world(&self, local: Time) -> Time {
        let ahead = i128::from(local.0.saturating_sub(self.shows));
        let gone = u64::try_from(ahead * MILLION / self.rate).unwrap_or(u64::MAX / 2);
        let mut at = Time(self.from.0.saturating_add(gone));
        while self.local(at) < local {
            at.0 += 1;
        }
        at
    }

    /// Sets the drift from `now` on.
    pub fn drift(&mut self, now: Time, drift_ppm: i64) {
        self.anchor(now);
        self.rate = rate(drift_ppm);
    }

    /// Stops the clock at `now` for `time`. If it stands still already, the later end counts.
    pub fn stand(&mut self, now: Time, time: Duration) {
        let until = self.from.max(now + time);
        self.anchor(now);
        self.from = until;
    }

    /// Ends a stop at `now`.
    pub fn go_on(&mut self, now: Time) {
        self.from = self.from.min(now);
    }

    /// Advances the clock by `by`.
    pub fn leap(&mut self, now: Time, by: Duration) {
        self.anchor(now);
        self.shows += by.as_nanos() as u64;
    }

    fn anchor(&mut self, now: Time) {
        (self.shows, self.from) = (self.local(now).0, self.from.max(now));
    }
}

fn rate(drift_ppm: i64) -> i128 {
    let rate = MILLION + i128::from(drift_ppm);
    assert!(rate > 0, "a clock that runs backwards");
    rate
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

    #[test]
    fn a_clock_stops_jumps_and_drifts_and_never_goes_back() {
        let ms = |n: u64| Time(n * 1_000_000);
        let time = Duration::from_millis;
        let mut clock = Clock::new(0, 0);
        clock.stand(ms(10), time(5));
        assert_eq!([12, 15, 16].map(|n| clock.local(ms(n))), [ms(10), ms(10), ms(11)]);
        assert_eq!(clock.world(ms(11)), ms(16));
        clock.leap(ms(12), time(100));
        assert_eq!([12, 15, 16].map(|n| clock.local(ms(n))), [ms(110), ms(110), ms(111)]);
        clock.drift(ms(25), 100_000);
        assert_eq!([25, 35].map(|n| clock.local(ms(n))), [ms(120), ms(131)]);
        clock.drift(ms(35), -100_000);
        assert_eq!([35, 45].map(|n| clock.local(ms(n))), [ms(131), ms(140)]);
        // Overlapping stops end with the later one. A clock that resumes early
        // runs from that moment.
        let mut clock = Clock::new(0, 0);
        clock.stand(ms(10), time(20));
        clock.stand(ms(15), time(5));
        assert_eq!([29, 31].map(|n| clock.local(ms(n))), [ms(10), ms(11)]);
        clock.stand(ms(40), time(20));
        clock.go_on(ms(45));
        assert_eq!([45, 46].map(|n| clock.local(ms(n))), [ms(20), ms(21)]);
    }
}
