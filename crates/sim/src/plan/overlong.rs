//! Plans in which frames come that are longer than anybody takes: from strangers, and on connections of members, as from one
//! whose memory is damaged.

use super::{Action, Plan, Timed, Who};
use base::Prng;

/// The smallest bound of frames: a write of a whole unit, and lists.
const SMALL: u32 = (1 << 20) + (64 << 10);

/// Draws such frames for some plans, and often a smaller bound.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("overlong");
    if plan.is_one_story() || plan.copies_devices() || !r.chance(0.06) {
        return;
    }
    if r.chance(0.5) {
        plan.limits.frame_body = SMALL;
    }
    for _ in 0..r.range(1, 12) {
        let at = plan.moment(&mut r);
        let who = match r.below(5) {
            0..3 => Who::Sds(r.below(plan.sds.into()) as u8),
            3 => Who::Mdm(r.below(plan.mdms.into()) as u8),
            _ => Who::Sdc(r.below(plan.clients.into()) as u8),
        };
        // Nobody dials clients.
        let member = matches!(who, Who::Sdc(_)) || r.chance(0.5);
        plan.steps.push(Timed { at, action: Action::Overlong(who, member) });
    }
}
