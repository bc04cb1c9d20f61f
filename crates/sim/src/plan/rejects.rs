//! Plans in which a server restarts at an address that refuses dials: its configuration names a
//! wrong address, or a firewall refuses in its name. Other servers report the refusals to the MDM,
//! which hears the server all the same (rule R4).

use super::episode::Episode;
use super::{Action, Plan, Who};
use crate::weather::Weather;
use base::Prng;
use std::time::Duration;

/// Turns some plans into this story. There are no other faults, because an MDM that had no time to
/// hear the server must take a refusal for a death.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("rejects");
    let tight = plan.capacity < plan.volumes.iter().sum();
    if plan.nbd != 0 || tight || !r.chance(0.06) {
        return;
    }
    plan.steps.retain(|s| matches!(s.action, Action::Io { .. }));
    plan.weather = Weather::FAIR;
    (plan.growth, plan.outcast) = (0, None);
    let mut at = Duration::from_micros(r.range(100_000, 1_000_000));
    for _ in 0..r.range(1, 3) {
        let i = r.below(u64::from(plan.sds)) as u8;
        let away = Duration::from_micros(r.range(100, 1_500_000));
        let time = away + plan.limits.suspect_after * 4 + Duration::from_secs(1);
        let mut e = Episode { plan, at, careful: true };
        e.push(Duration::ZERO, Action::Reject(i, time.as_millis() as u32));
        e.crash(Who::Sds(i), true, away, &mut r);
        at += time + Duration::from_micros(r.range(1_000, 1_000_000));
    }
    plan.length = plan.length.max(at);
}
