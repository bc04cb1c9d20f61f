//! Plans whose clients have NBD connections, which break, are closed, or are not read for a while.

use super::{Action, Plan, Timed};
use base::Prng;
use std::time::Duration;

/// Adds NBD connections to some plans, and the faults of these connections.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("nbd");
    if !r.chance(0.3) {
        return;
    }
    plan.nbd = *r.pick(&[1, 2, 2, 3, 4]);
    let every = *r.pick(&[40u64, 150, 600, 3000]);
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_millis(r.below(2 * every) + 1);
        if at >= plan.length {
            return;
        }
        let client = r.below(u64::from(plan.clients)) as u8;
        let connection = r.below(u64::from(plan.nbd)) as u8;
        let action = match r.below(10) {
            0..=7 => Action::CloseNbd(client, connection),
            _ => Action::Deaf(client, connection, r.range(1, 800) as u32),
        };
        plan.steps.push(Timed { at, action });
    }
}
