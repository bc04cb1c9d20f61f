//! Plans whose processes have the bounds that ship, and devices the tuning that ships: no list is short, and no window is
//! full, but times and sizes are those of users.

use super::{Action, Plan};
use base::{Limits, Prng};

/// Draws that for one plan in fifty. What another family has drawn for its own sake stays.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("shipped");
    let tight = plan.capacity < plan.volumes.iter().sum();
    let slow = plan.outcast.is_some_and(|(_, how)| how.slowness().is_some());
    // How long a clock may stand was drawn for another lease.
    let halts = plan.steps.iter().any(|s| matches!(s.action, Action::Halt(..)));
    if tight || slow || halts || plan.is_one_story() || !r.chance(0.02) {
        return;
    }
    plan.shipped = true;
    plan.limits = Limits { answer_within: plan.limits.answer_within, ..Limits::SHIPPED };
}
