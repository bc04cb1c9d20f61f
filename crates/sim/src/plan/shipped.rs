//! Plans with the shipped limits and the shipped tuning of devices. Times and sizes are those of
//! real clusters. In return, lists rarely reach their bounds, and windows rarely fill up.

use super::{Action, Plan};
use base::{Limits, Prng};
use store::durable::{Durability, Tuning};

/// Tuning of devices, as small as possible, so that a short run meets every bound.
const SMALL: Tuning = Tuning {
    durability: Durability::Flush,
    overlay_bytes: 1200 << 10,
    replay_bytes: 1 << 30,
    fresh_sums: 48,
    cached_pages: 2,
    dirty_units: 64,
    executed: 96,
    sweep: 1,
    holes: 0,
};

impl Plan {
    /// Returns the tuning of the servers' files. The weather says whether they give space back.
    pub(crate) fn tuning(&self) -> Tuning {
        let tuning = if self.shipped { Tuning::SHIPPED } else { SMALL };
        Tuning { holes: self.weather.holes, ..tuning }
    }
}

/// Changes one plan in fifty. Keeps only the time limit of requests, and resets all other limits.
/// Earlier families made them smaller to reach rare paths more often, and their faults and judges
/// also work with the shipped ones.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("shipped");
    let tight = plan.capacity < plan.volumes.iter().sum();
    let slow = plan.outcast.is_some_and(|(_, how)| how.slowness().is_some());
    // The length of each clock stop was drawn for another lease.
    let halts = plan.steps.iter().any(|s| matches!(s.action, Action::Halt(..)));
    if tight || slow || halts || plan.is_one_story() || !r.chance(0.02) {
        return;
    }
    plan.shipped = true;
    plan.limits = Limits { answer_within: plan.limits.answer_within, ..Limits::SHIPPED };
}
