//! Plans whose clocks change their drift, stand still or jump, within the limits of
//! `docs/operate/hosts.md`.

use super::episode::{Episode, while_away};
use super::{Action, Plan, Who};
use base::{Limits, Prng};
use std::time::Duration;

/// Highest drift of a clock, in ppm. Leases hold when two clocks drift apart by this much: 1.1 /
/// 0.9 is less than `grace` / `lease`.
pub const MOST_DRIFT_PPM: u32 = 100_000;

/// Returns how long a server's clock may stand still within one lease, when clocks run at most
/// `drift_ppm` fast or slow. The holder uses a lease until it has run out on a clock that is slow
/// and was stopped; its successor waits for `grace` on a clock that is fast.
pub fn may_stand(limits: &Limits, drift_ppm: u32) -> Duration {
    let scaled = |time: Duration, rate: u32| time * 1_000_000 / rate;
    let used = scaled(limits.lease, 1_000_000 - drift_ppm);
    scaled(limits.grace, 1_000_000 + drift_ppm).saturating_sub(used)
}

/// Adds clock faults to some plans.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("clocks");
    if !r.chance(0.25) {
        return;
    }
    let drift = match plan.weather.drift_ppm {
        0 => r.range(1, MOST_DRIFT_PPM.into()) as u32,
        drift => drift,
    };
    let drifts = r.chance(0.6);
    if drifts {
        change_drifts(plan, drift, &mut r);
    }
    if r.chance(0.6) {
        let drift = if drifts { drift } else { plan.weather.drift_ppm };
        stop_servers(plan, may_stand(&plan.limits, drift), &mut r);
    }
    if r.chance(0.4) {
        disturb_others(plan, &mut r);
    }
}

fn change_drifts(plan: &mut Plan, most: u32, r: &mut Prng) {
    for _ in 0..r.range(1, 30) {
        let (at, ppm) = (plan.moment(r), r.below(2 * u64::from(most) + 1) as i32 - most as i32);
        let mut e = Episode { plan, at, careful: true };
        let everybody = e.everybody();
        e.push(Duration::ZERO, Action::Drift(*r.pick(&everybody), ppm));
    }
}

/// Stops the virtual machines of servers for a moment, each at most once in two leases.
fn stop_servers(plan: &mut Plan, most: Duration, r: &mut Prng) {
    let most = most.as_micros() as u64;
    if most == 0 {
        return;
    }
    for i in 0..plan.sds {
        let mut at = Duration::ZERO;
        loop {
            at += plan.limits.lease * 2 + Duration::from_micros(r.below(2_000_000));
            if at >= plan.length {
                break;
            }
            let us = if r.chance(0.5) { most } else { r.range(1, most) };
            let mut e = Episode { plan, at, careful: true };
            e.push(Duration::ZERO, Action::Halt(Who::Sds(i), us as u32));
            e.push(Duration::from_micros(us), Action::Resume(Who::Sds(i)));
        }
    }
}

/// Lets clocks of MDMs and clients jump, and stops their virtual machines for longer: no lease
/// depends on their clocks.
fn disturb_others(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(1, 8) {
        let at = plan.moment(r);
        let mut e = Episode { plan, at, careful: true };
        let who = if r.chance(0.5) { e.mdm(r) } else { e.sdc(r) };
        if r.chance(0.5) {
            e.push(Duration::ZERO, Action::Leap(who, r.range(1, 20_000) as u32));
        } else {
            let time = while_away(r);
            e.push(Duration::ZERO, Action::Halt(who, time.as_micros() as u32));
            e.push(time, Action::Resume(who));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_may_stand_for_what_the_operator_is_told() {
        // `docs/operate/hosts.md`: a quarter of a lease minus the drift; at most 0.2 s are allowed.
        let millis = |ppm| may_stand(&Limits::SHIPPED, ppm).as_millis();
        assert_eq!(millis(0), 250);
        assert!(millis(1000) > 200, "{} ms", millis(1000));
        assert!((20..30).contains(&millis(MOST_DRIFT_PPM)), "{} ms", millis(MOST_DRIFT_PPM));
    }
}
