//! The monotonic clock.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since this host's boot, about. All shards of all processes share this clock.
///
/// It is `CLOCK_MONOTONIC`: it goes on while the process is stopped by a signal, so that a lease
/// that ran out meanwhile is seen to have run out (see [`seam::Node::on`]).
#[inline]
pub fn now() -> base::Time {
    let t = clock_gettime(ClockId::Monotonic);
    base::Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}
