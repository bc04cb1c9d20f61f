//! Plans in which a server and an MDM share a machine: both freeze together, or
//! lose power together.

use super::episode::{Episode, while_away};
use super::{Action, Death, Plan};
use base::Prng;
use std::time::Duration;

/// Adds such machines to some plans.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("together");
    if plan.is_one_story() || !r.chance(0.05) {
        return;
    }
    for _ in 0..r.range(1, 5) {
        let at = plan.moment(&mut r);
        let mut e = Episode { plan, at, careful: true };
        let both = [e.sds(&mut r), e.mdm(&mut r)];
        let time = while_away(&mut r);
        // A server with memory would lose its data with the power.
        if e.plan.keeps(both[0]) && r.chance(0.3) {
            let death = Death { keep: true, power: true, ..Death::default() };
            both.into_iter().for_each(|who| e.push(Duration::ZERO, Action::Crash(who, death)));
            both.into_iter().for_each(|who| e.push(time, Action::Start(who)));
        } else {
            both.into_iter().for_each(|who| e.push(Duration::ZERO, Action::Pause(who, false)));
            both.into_iter().for_each(|who| e.push(time, Action::Resume(who)));
        }
    }
}
