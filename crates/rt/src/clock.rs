//! The process's monotonic clock.

use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since this process first asked. All shards of a process share this clock.
///
/// It is `CLOCK_MONOTONIC`: it goes on while the process is stopped by a signal, so that a lease
/// that ran out meanwhile is seen to have run out (see [`seam::Node::on`]).
pub fn now() -> base::Time {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    base::Time(start.elapsed().as_nanos() as u64)
}
