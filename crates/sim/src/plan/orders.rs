//! Operators' orders in a plan: servers are removed, maintained, or get larger devices; mappings of
//! volumes change; MDMs are replaced. This file also adds faults at those moments.

use super::episode::{Episode, while_away};
use super::{Action, Death, Plan, Timed, Who};
use crate::admin::ALL;
use crate::tamper::Tamper;
use base::Prng;
use std::time::Duration;

/// Removes servers, and puts others in their places. Some removals are cancelled.
pub(super) fn removal(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(1, 4) {
        let at = plan.moment(r);
        let i = r.below(u64::from(plan.sds)) as u8;
        plan.steps.push(Timed { at, action: Action::Remove(i) });
        if r.chance(0.3) {
            let at = at + Duration::from_micros(r.below(1_000_000));
            plan.steps.push(Timed { at, action: Action::Keep(i) });
        }
    }
}

/// Disturbs a cluster of several MDMs: some are away or cut off, another one is to lead,
/// or one is replaced.
pub(super) fn among_mdms(plan: &mut Plan, r: &mut Prng) {
    let busy = *r.pick(&[0.0, 0.5, 2.0, 6.0]);
    let count = (plan.length.as_secs_f64() * busy).ceil() as u64;
    for _ in 0..count {
        let at = plan.moment(r);
        let mut e = Episode { plan, at, careful: true };
        let (who, time) = (e.mdm(r), while_away(r));
        match r.below(10) {
            0..=3 => e.crash(who, true, time, r),
            4 => {
                e.push(Duration::ZERO, Action::Pause(who, r.chance(0.5)));
                e.push(time, Action::Resume(who));
            }
            5 | 6 => {
                let ways = [(true, true), (true, true), (true, false), (false, true)];
                let (inward, outward) = *r.pick(&ways);
                e.apart(who, inward, outward, time, r.chance(0.5));
            }
            7 => {
                let other = Who::Mdm(r.below(u64::from(e.plan.mdms)) as u8);
                e.push(Duration::ZERO, Action::Reset(who, other));
            }
            8 => e.push(Duration::ZERO, Action::Switch),
            _ => {
                let Who::Mdm(i) = who else { continue };
                e.push(Duration::ZERO, Action::Replace(i));
            }
        }
    }
}

/// Lets the MDMs' disks fail and stall. An MDM that gave up starts again, and some time later the
/// power fails: then all that never reached the disk is gone.
pub(super) fn mdm_disks(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("mdm disks");
    let length = plan.length.as_micros() as u64;
    if r.chance(0.1) {
        plan.weather.log_stuck_ppm = r.range(100, 20_000) as u32;
    }
    if !r.chance(0.12) {
        return;
    }
    plan.weather.log_fail_ppm = r.range(300, 30_000) as u32;
    for _ in 0..r.range(1, 6) {
        let at = Duration::from_micros(r.below(length));
        let mut e = Episode { plan, at, careful: true };
        let (who, time) = (e.mdm(&mut r), while_away(&mut r));
        let death = Death { keep: true, power: true, ..Death::default() };
        e.push(Duration::ZERO, Action::Crash(who, death));
        e.push(time, Action::Start(who));
    }
}

/// Puts servers into maintenance. Mostly they are turned off for a while, and mostly they return to
/// work before the end.
pub(super) fn maintenance(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(1, 4) {
        let at = plan.moment(r);
        let i = r.below(u64::from(plan.sds)) as u8;
        plan.steps.push(Timed { at, action: Action::Maintain(i, r.chance(0.4)) });
        let soon = Duration::from_micros(r.range(500, 300_000));
        let away = Duration::from_micros(r.range(1000, 3_000_000));
        if r.chance(0.8) && plan.keeps(Who::Sds(i)) {
            Episode { plan, at: at + soon, careful: true }.crash(Who::Sds(i), true, away, r);
        }
        if r.chance(0.8) {
            plan.steps.push(Timed { at: at + soon + away, action: Action::Return(i) });
        }
    }
}

/// Grows the devices of a few servers, mostly a moment before the server restarts.
pub(super) fn grow(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(0, 4) {
        let at = plan.moment(r);
        let i = r.below(u64::from(plan.sds)) as u8;
        plan.steps.push(Timed { at, action: Action::Grow(i, r.range(8, 40) as u32) });
        let mut e =
            Episode { plan, at: at + Duration::from_micros(r.below(50_000)), careful: true };
        if r.chance(0.8) && e.plan.keeps(Who::Sds(i)) {
            let away = Duration::from_micros(r.range(50, 30_000));
            e.crash(Who::Sds(i), true, away, r);
            // Often the server crashes once more while it takes over the new size.
            e.at += away + Duration::from_micros(r.range(100, 30_000));
            if r.chance(0.5) {
                e.crash(Who::Sds(i), true, away, r);
            }
        }
    }
}

/// Tampers with a server's device a few times.
pub(super) fn tamper(plan: &mut Plan, r: &mut Prng) {
    for _ in 0..r.range(1, 4) {
        let at = plan.moment(r);
        let i = r.below(u64::from(plan.sds)) as u8;
        let other = (i + r.range(1, u64::from(plan.sds)) as u8) % plan.sds;
        let all = [Tamper::Superblock, Tamper::Superblocks, Tamper::Shrunk, Tamper::Swapped(other)];
        plan.steps.push(Timed { at, action: Action::Tamper(i, *r.pick(&all)) });
    }
}

/// Takes volumes from clients under load, and gives them back soon or late.
pub(super) fn mapping(plan: &mut Plan, r: &mut Prng) {
    let length = plan.length.as_micros() as u64;
    for _ in 0..r.range(1, 8) {
        let v = r.below(plan.volumes.len() as u64) as u8;
        let mut at = Duration::from_micros(r.below(length));
        for _ in 0..r.range(1, 4) {
            let some = r.below(1 << plan.clients) as u8;
            let clients = if r.chance(0.3) { ALL } else { some };
            if r.chance(0.4) {
                // This server hears of the change late.
                let i = Who::Sds(r.below(u64::from(plan.sds)) as u8);
                let ms = r.range(10, 400) as u32;
                let at = at.saturating_sub(Duration::from_micros(200));
                let mdm = Who::Mdm(r.below(u64::from(plan.mdms)) as u8);
                plan.steps.push(Timed { at, action: Action::Clog(mdm, i, ms) });
            }
            plan.steps.push(Timed { at, action: Action::Map(v, clients) });
            at += Duration::from_micros(r.range(500, 150_000));
        }
    }
    plan.steps.sort_by_key(|s| s.at);
}
