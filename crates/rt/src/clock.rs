//! The clock that leases are measured by.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since this host's boot. All shards of all processes share this clock.
///
/// It is `CLOCK_BOOTTIME`. It keeps running while a signal has stopped the process and while the
/// host is suspended, so that a lease that expired in the meantime is seen as expired (see
/// [`seam::Node::on`]). In a virtual machine that its host has paused, no clock runs:
/// `docs/operate/hosts.md` explains the consequences.
///
/// The kernel may measure waits by another clock, which stands still during suspend. Ticks are then
/// late, but the node compares its deadlines with this clock.
#[inline]
pub fn now() -> base::Time {
    let t = clock_gettime(ClockId::Boottime);
    base::Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boottime() -> u128 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut t) };
        assert_eq!(result, 0);
        t.tv_sec as u128 * 1_000_000_000 + t.tv_nsec as u128
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_clock_counts_the_time_in_suspend() {
        let before = boottime();
        let now = u128::from(now().0);
        assert!((before..=boottime()).contains(&now), "{now}, and it was {before} before");
    }
}
