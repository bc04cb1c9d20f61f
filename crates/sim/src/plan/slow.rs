//! Plans in which one server is slow after phase 1: nothing on it fails, but every request to it is
//! slow (rule R12). Or its disk hangs during a resync, and no request may wait for it (rule R11).

use super::{FinalFault, Plan, Who};
use base::Prng;
use std::time::Duration;

/// Extra delay of frames on slow links, and the threshold above which a device counts as slow in
/// these plans. Longer than any delay in calmed weather.
const SLOW: Duration = Duration::from_millis(100);

/// Makes one server slow, in a plan without an outcast.
pub(super) fn slow(plan: &mut Plan, r: &mut Prng) {
    let who = r.below(u64::from(plan.sds)) as u8;
    let disk = plan.keeps(Who::Sds(who)) && r.chance(0.5);
    plan.outcast = Some((who, if disk { FinalFault::SlowDisk } else { FinalFault::SlowLinks }));
    plan.limits.slow = SLOW;
    plan.limits.slow_for = Duration::from_millis(r.range(300, 1000));
    plan.limits.quarantine = Duration::from_millis(30);
    // Enough groups for two other servers to need its leases.
    plan.limits.groups_per_device = plan.limits.groups_per_device.max(3);
}

/// Makes the disk of one server hang while it receives copies, in a plan without an outcast.
pub(super) fn hang(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("hung");
    let who = r.below(u64::from(plan.sds)) as u8;
    let tight = plan.capacity < plan.volumes.iter().sum();
    let may = plan.outcast.is_none() && plan.keeps(Who::Sds(who)) && !tight;
    if may && !plan.is_one_story() && r.chance(0.1) {
        plan.outcast = Some((who, FinalFault::HungDisk));
    }
}

impl FinalFault {
    /// Returns the extra delay of frames and of disk operations; `None` for a server that is not
    /// slow but away.
    pub fn slowness(self) -> Option<(Duration, Duration)> {
        match self {
            FinalFault::SlowLinks => Some((SLOW, Duration::ZERO)),
            FinalFault::SlowDisk => Some((Duration::ZERO, SLOW * 2)),
            FinalFault::Dead
            | FinalFault::Cut
            | FinalFault::Unheard
            | FinalFault::Heard
            | FinalFault::Dark
            | FinalFault::Frozen
            | FinalFault::Mute
            | FinalFault::Deaf
            | FinalFault::FailedDisk
            | FinalFault::HungDisk => None,
        }
    }
}
