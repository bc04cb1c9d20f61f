//! Plans in which strangers dial MDMs and servers, up to and beyond the limit of such connections,
//! and send nothing.

use super::episode::Episode;
use super::{Action, Plan};
use base::Prng;
use std::time::Duration;

/// Adds such connections to some plans.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("idle");
    if plan.is_one_story() || !r.chance(0.05) {
        return;
    }
    let most = u64::from(plan.limits.strangers) * 3;
    for _ in 0..r.range(1, 4) {
        let at = plan.moment(&mut r);
        let mut e = Episode { plan, at, careful: true };
        let who = if r.chance(0.5) { e.sds(&mut r) } else { e.mdm(&mut r) };
        let (turns, every) = (r.range(1, 20), r.range(100, 100_000));
        for turn in 0..turns {
            let count = r.range(1, most) as u32;
            e.push(Duration::from_micros(turn * every), Action::Idle(who, count));
        }
    }
}
