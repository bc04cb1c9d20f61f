//! Plans with frames that announce a longer body than the receiver accepts: from strangers, and on
//! connections of accepted peers, as a peer with damaged memory would send them.

use super::{Action, Plan, Timed, Who};
use base::Prng;

/// Smallest bound of a frame's body in bytes: a write of a whole unit, and room for lists.
const SMALL: u32 = (1 << 20) + (64 << 10);

/// Adds such frames to some plans, and often a smaller bound.
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
        // Clients accept no connections, so a stranger can't send them anything.
        let member = matches!(who, Who::Sdc(_)) || r.chance(0.5);
        plan.steps.push(Timed { at, action: Action::Overlong(who, member) });
    }
}
