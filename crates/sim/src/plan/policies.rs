//! Policies of storage pools in plans: at the start and later on. In most of these plans, clients
//! keep sending requests while a dead server's copies are rebuilt: the copies must yield to the
//! clients and still be completed.

use super::{Action, Plan, Timed};
use base::{Policy, Prng};
use std::time::Duration;

/// Adds policies to some plans.
pub(super) fn draw(plan: &mut Plan, r: &mut Prng) {
    if !r.chance(0.4) {
        return;
    }
    plan.busy = r.chance(0.7);
    for i in 0..r.range(1, 4) {
        let micros = if i == 0 { 0 } else { r.below(plan.length.as_micros() as u64) };
        let action = Action::Policies(policy(r), policy(r));
        plan.steps.push(Timed { at: Duration::from_micros(micros), action });
    }
}

/// Draws a policy. Floors are high enough to copy a plan's data in a few seconds.
fn policy(r: &mut Prng) -> Policy {
    let floor = *r.pick(&[1 << 20, 4 << 20, 64 << 20]);
    match r.below(8) {
        0 => Policy::UNLIMITED,
        1 => Policy::concurrent(r.range(1, 4) as u32),
        2 | 3 => Policy::favour(*r.pick(&[1, 3, 100]), floor),
        4 | 5 => Policy::latency_percent(*r.pick(&[110, 200, 1000]), floor),
        // Mostly less than any request takes, so that copies run at the floor.
        _ => Policy::latency_micros(*r.pick(&[50, 50, 1000, 20_000]), floor),
    }
}
