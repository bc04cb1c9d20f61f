//! Plans with the shipped limits and the shipped tuning of devices: lists are not short and windows
//! do not fill up, but times and sizes are those of real clusters.

use super::{Action, Plan};
use base::{Limits, Prng};

/// Changes one plan in fifty. Of the limits that were drawn only the time limit of requests stays:
/// families that were drawn before made other limits smaller, or a quarantine shorter, so that rare
/// paths are met more often, and their faults and judges do without that.
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
