//! Plans in which a stranger sends MDMs and servers messages that only accepted peers may send.

use super::{Action, Plan, Timed, Who};
use crate::lies::Lie;
use base::Prng;

/// Adds such forged messages to some plans.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("lies");
    if plan.is_one_story() || !r.chance(0.08) {
        return;
    }
    for _ in 0..r.range(1, 40) {
        let at = plan.moment(&mut r);
        let who = match r.chance(0.5) {
            true => Who::Sds(r.below(plan.sds.into()) as u8),
            false => Who::Mdm(r.below(plan.mdms.into()) as u8),
        };
        plan.steps.push(Timed { at, action: Action::Lie(who, *r.pick(&Lie::ALL)) });
    }
}
