//! Plans in which one server is slow at last: nothing of it fails, and everything waits for it (rule R12).

use super::{Outcast, Plan, Who};
use base::Prng;
use std::time::Duration;

/// What makes slow in these plans: more than any calm weather does.
const SLOW: Duration = Duration::from_millis(100);

/// Makes a server without a fate slow.
pub(super) fn slow(plan: &mut Plan, r: &mut Prng) {
    let who = r.below(u64::from(plan.sds)) as u8;
    let disk = plan.keeps(Who::Sds(who)) && r.chance(0.5);
    plan.outcast = Some((who, if disk { Outcast::SlowDisk } else { Outcast::SlowLinks }));
    plan.limits.slow = SLOW;
    plan.limits.slow_for = Duration::from_millis(r.range(300, 1000));
    plan.limits.quarantine = Duration::from_millis(30);
    // Enough for two of them to need its leases.
    plan.limits.groups_per_device = plan.limits.groups_per_device.max(3);
}

impl Outcast {
    /// How much longer frames travel, and operations of the disk take; none: it isn't slow, it is away.
    pub fn slowness(self) -> Option<(Duration, Duration)> {
        match self {
            Outcast::SlowLinks => Some((SLOW, Duration::ZERO)),
            Outcast::SlowDisk => Some((Duration::ZERO, SLOW * 2)),
            Outcast::Dead
            | Outcast::Cut
            | Outcast::Unheard
            | Outcast::Heard
            | Outcast::Dark
            | Outcast::Frozen => None,
        }
    }
}
