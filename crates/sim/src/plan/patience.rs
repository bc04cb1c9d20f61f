//! Plans whose clients have a time limit: a request that takes longer ends with
//! an error (rule R16).

use super::Plan;
use base::Prng;
use std::time::Duration;

/// Sets a limit in some plans. Plans with an outcast get none, because their probes wait for a
/// first success, however long it takes.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("patience");
    if plan.outcast.is_none() && r.chance(0.25) {
        plan.limits.answer_within = Duration::from_millis(r.range(50, 2000));
    }
}
