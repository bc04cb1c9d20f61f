//! Plans in which groups move constantly under writes. So groups often have three in-sync replicas,
//! and primaries die when the first of these is sealed (rule R6).

use super::{Action, IoKind, Plan, Timed};
use base::Prng;
use std::time::Duration;

/// Adds moves, writes and ambushes to some plans with files and at least four device processes.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("seals");
    let tampers = plan.steps.iter().any(|s| matches!(s.action, Action::Tamper(..)));
    let roomy = plan.capacity >= plan.volumes.iter().sum();
    if plan.sds < 4 || !plan.durable || tampers || !roomy || !r.chance(0.4) {
        return;
    }
    plan.memory = 0;
    plan.depth = plan.depth.max(8);
    plan.limits.client_ops = plan.limits.client_ops.max(8);
    moves(plan, &mut r);
    writes(plan, &mut r);
    // Often so small that unanswered frames have to be resent in several parts.
    plan.limits.link_queue = *r.pick(&[4 << 20, 8 << 20, plan.limits.link_queue]);
}

/// Removes or maintains servers one after the other, with ambushes of primaries after each order.
fn moves(plan: &mut Plan, r: &mut Prng) {
    let mut at = Duration::ZERO;
    while at < plan.length {
        let i = r.below(u64::from(plan.sds)) as u8;
        let protected = r.chance(0.3);
        let action = if protected { Action::Maintain(i, true) } else { Action::Remove(i) };
        plan.steps.push(Timed { at, action });
        for _ in 0..3 {
            let action = Action::Ambush(*r.pick(&[0, 1, 10, 200, 2000]), r.range(1, 600) as u32);
            plan.steps.push(Timed { at, action });
            at += Duration::from_millis(r.range(200, 500));
        }
        if protected {
            plan.steps.push(Timed { at, action: Action::Return(i) });
        }
    }
}

/// Lets all clients write without a pause, mostly to blocks that were not written recently, so that
/// a difference between copies is not overwritten soon.
fn writes(plan: &mut Plan, r: &mut Prng) {
    let gap_us = *r.pick(&[1000, 2000, 4000]);
    for client in 0..plan.clients {
        let mut at = Duration::ZERO;
        while at < plan.length {
            at += Duration::from_micros(r.below(2 * gap_us) + 1);
            let volume = r.below(plan.volumes.len() as u64) as u8;
            let units = u64::from(plan.volumes[volume as usize]);
            let sector = 8 * r.below(units * 256) as u32;
            let kind = IoKind::Write;
            let action = Action::Io { client, volume, kind, sector, sectors: 8 };
            plan.steps.push(Timed { at, action });
        }
    }
}
