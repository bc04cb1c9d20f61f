//! Plans in which a stranger sends hellos in the names of other processes.

use super::{Action, Plan, Timed};
use crate::forge::Forgery;
use base::Prng;

/// Adds forged hellos to some plans.
pub(super) fn forgeries(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("forgeries");
    if !r.chance(0.25) {
        return;
    }
    for _ in 0..r.range(1, 8) {
        let at = plan.moment(&mut r);
        let server = r.below(u64::from(plan.sds)) as u8;
        plan.steps.push(Timed { at, action: Action::Forge(server, *r.pick(&Forgery::ALL)) });
    }
}
