//! Plans in which all lists are short: of executed writes, and of what a group has in flight (rule R8). Links break, so that
//! answers are lost and clients ask again when their writes were forgotten.

use super::Plan;
use base::Prng;

/// Draws short lists for some plans.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("lists");
    if !r.chance(0.05) {
        return;
    }
    plan.limits.executed_window = r.range(2, 8) as u32;
    plan.limits.executed_group = r.range(1, 12) as u32;
    plan.limits.executed_device = r.range(4, 40) as u32;
    plan.limits.stream = r.range(2, 16) as u32;
    plan.weather.reset_ppm = plan.weather.reset_ppm.max(r.range(200, 4000) as u32);
}
