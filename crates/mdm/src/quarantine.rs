//! Quarantine: a device that comes and goes again and again is held out for a while before it is
//! filled again (rule R12). Each return costs new epochs and a resync, and is a chance to lose the
//! copy that is left.
//!
//! The first few times have no consequence, because a restart or an update looks the same. From
//! then on, each time doubles the quarantine. A device that stays for long enough starts over. The
//! leading MDM keeps this in memory: a new leader does not know earlier absences.

use base::{Duration, Time};

/// This many absences in a row have no consequence.
const FREE: u32 = 3;
/// A device that the MDM ejected counts as if it had left this many times: its quarantine is
/// sixteen times the first one.
const SENT_AWAY: u32 = FREE + 5;
/// The longest quarantine, and the time a device has to stay to be forgiven, as multiples of the
/// first quarantine.
const MOST: u32 = 128;

/// The record of one device.
#[derive(Clone, Debug, Default)]
pub struct Quarantine {
    /// How often it left.
    count: u32,
    left_at: Option<Time>,
    until: Option<Time>,
}

impl Quarantine {
    /// Records that the device left. `first` is the length of the first quarantine; with zero,
    /// there are none.
    pub fn left(&mut self, now: Time, first: Duration) {
        let forgiven = self.left_at.is_none_or(|at| now.since(at) >= first * MOST);
        self.count = if forgiven { 1 } else { self.count.saturating_add(1) };
        self.left_at = Some(now);
    }

    /// Records that the device came back. Returns the length of its quarantine, if there is one.
    pub fn returned(&mut self, now: Time, first: Duration) -> Option<Duration> {
        let times = self.count.checked_sub(FREE + 1)?;
        let long = first * 1_u32.checked_shl(times).unwrap_or(MOST).min(MOST);
        self.until = Some(now + long);
        (long > Duration::ZERO).then_some(long)
    }

    /// Records that the device is ejected for being slow. When it comes back, it is held out for
    /// long enough that its copies are rebuilt elsewhere, and longer each time.
    pub fn ejected(&mut self) {
        self.count = self.count.max(SENT_AWAY);
    }

    /// Returns how long the device is still held out; zero if it is not.
    pub fn remaining(&self, now: Time) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_times_are_forgiven_and_then_each_doubles_the_time() {
        let (first, mut now) = (Duration::from_secs(5), Time(1));
        let mut q = Quarantine::default();
        let mut flap = |q: &mut Quarantine, stays: u64| {
            now = now + Duration::from_secs(stays);
            q.left(now, first);
            now = now + Duration::from_secs(1);
            let long = q.returned(now, first);
            assert_eq!(q.remaining(now), long.unwrap_or_default());
            assert_eq!(q.remaining(now + Duration::from_secs(3600)), Duration::ZERO);
            long.map_or(0, |d| d.as_secs())
        };
        let held: [u64; 7] = core::array::from_fn(|_| flap(&mut q, 30));
        assert_eq!(held, [0, 0, 0, 5, 10, 20, 40]);
        assert_eq!([(); 6].map(|()| flap(&mut q, 30)), [80, 160, 320, 640, 640, 640]);
        assert_eq!(flap(&mut q, 700), 0, "it stayed for long enough");
    }

    #[test]
    fn an_ejected_device_is_held_out_at_once_and_longer_each_time() {
        let first = Duration::from_secs(5);
        let mut q = Quarantine::default();
        for (at, seconds) in [(1, 80), (200, 160), (500, 320)] {
            q.left(Time(at * 1_000_000_000), first);
            q.ejected();
            let long = q.returned(Time(at * 1_000_000_000), first);
            assert_eq!(long, Some(Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn without_a_length_no_device_is_held_out() {
        let mut q = Quarantine::default();
        for n in 0..100 {
            q.left(Time(n), Duration::ZERO);
            assert_eq!(q.returned(Time(n), Duration::ZERO), None);
        }
        assert_eq!(q.remaining(Time(0)), Duration::ZERO);
    }
}
