//! Builds in plans: some processes are of the next release, restarts change that, and the level of
//! the cluster rises at any time.

use super::episode::{Episode, while_away};
use super::{Action, Plan, Timed, Who};
use base::Prng;
use std::time::Duration;

impl Who {
    /// Returns the bit of this process in [`Plan::newer`].
    pub fn build_bit(self) -> u64 {
        match self {
            Who::Mdm(i) => 1 << i,
            Who::Sds(i) => 1 << (8 + i),
            Who::Sdc(i) => 1 << (32 + i),
            Who::Admin => 0,
        }
    }
}

/// Adds a second build to some plans.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("versions");
    let rescue = plan.steps.iter().any(|s| matches!(s.action, Action::Lose(..)));
    let other = plan.is_one_story() && !rescue || plan.copies_devices();
    if other || !r.chance(if rescue { 0.3 } else { 0.1 }) {
        return;
    }
    let share = *r.pick(&[0.0, 0.5, 0.5, 1.0]);
    let everybody = Episode { plan, at: Duration::ZERO, careful: true }.everybody();
    for who in &everybody {
        plan.newer |= if r.chance(share) { who.build_bit() } else { 0 };
    }
    // Processes are replaced one after the other, in no order; sometimes all, by the next release.
    let all = r.chance(0.4);
    // Whole microseconds, because the text format of plans keeps no fractions of them.
    let mut at = Duration::from_micros(plan.moment(&mut r).as_micros() as u64 / 2);
    for who in everybody {
        if all || r.chance(0.4) {
            let newer = all || r.chance(0.5);
            let mut e = Episode { plan, at, careful: true };
            e.push(Duration::ZERO, Action::Become(who, newer));
            e.crash(who, true, while_away(&mut r), &mut r);
            at += Duration::from_micros(r.range(1_000, 400_000));
        }
    }
    for _ in 0..r.range(1, 4) {
        let at = plan.moment(&mut r);
        plan.steps.push(Timed { at, action: Action::Level });
    }
    if all {
        plan.steps.push(Timed { at: at.min(plan.length), action: Action::Level });
    }
}
