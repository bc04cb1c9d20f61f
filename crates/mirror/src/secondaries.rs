//! This device as a secondary or joiner of groups. [`crate::stream`] takes the frames of their
//! primaries, and [`crate::fetch`] reads blocks that are damaged there.

use crate::arrival::Arrivals;
use crate::shard::Shard;
use base::Time;

/// This device's work for the primaries of its groups.
#[derive(Debug, Default)]
pub(crate) struct Secondaries {
    /// Copies that have arrived.
    pub arrivals: Arrivals,
}

impl Secondaries {
    /// Starts the next copy whose turn it is, and returns it.
    pub(crate) fn next_arrival<S>(&mut self, shard: &mut Shard<S>, now: Time) -> Option<u64> {
        self.arrivals.next(now, &mut shard.pace, &shard.limits, &shard.ops, &shard.replicas)
    }
}
