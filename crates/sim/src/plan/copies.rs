//! Plans in which a copy of a server's device is started: in another server's place while the
//! original is in service, or later in the original's own place.

use super::{Action, Plan, Timed};
use crate::tamper::Tamper;
use crate::weather::Weather;
use base::Prng;
use std::time::Duration;

/// Adds such copies to some plans, and removes other faults from them: a copy is refused only while
/// the original counts as up.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("copies");
    let keeps = plan.durable && plan.memory == 0;
    let tight = plan.capacity < plan.volumes.iter().sum();
    if !keeps || tight || plan.is_one_story() || !r.chance(0.03) {
        return;
    }
    let stays = |a: &Action| matches!(a, Action::Io { .. } | Action::Idle(..) | Action::Lie(..));
    plan.steps.retain(|s| stays(&s.action));
    (plan.weather, plan.growth) = (Weather::FAIR, 0);
    for _ in 0..r.range(1, 3) {
        let at = plan.moment(&mut r);
        let i = r.below(plan.sds.into()) as u8;
        if r.chance(0.5) {
            plan.steps.push(Timed { at, action: Action::Snapshot(i) });
            let at = at + Duration::from_micros(r.range(1_000, 3_000_000));
            plan.steps.push(Timed { at, action: Action::Tamper(i, Tamper::SetBack) });
            continue;
        }
        let j = (i + r.range(1, u64::from(plan.sds) - 1) as u8) % plan.sds;
        plan.steps.push(Timed { at, action: Action::Tamper(i, Tamper::CopyOf(j)) });
    }
}
