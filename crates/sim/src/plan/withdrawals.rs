//! Plans whose programs are killed with requests under way, as a virtual machine is: the process
//! that served them withdraws the requests (rule R16).

use super::{Action, Plan, Timed};
use base::Prng;
use std::time::Duration;

/// Lets programs die in some plans, again and again.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("withdrawals");
    if plan.is_one_story() || plan.copies_devices() || !r.chance(0.08) {
        return;
    }
    // A short list of executed writes puts off the writes of a client.
    if r.chance(0.5) {
        plan.limits.executed_window = 2;
    }
    plan.depth = plan.depth.max(4);
    let every = *r.pick(&[10u64, 40, 200, 1000]);
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_millis(r.below(2 * every) + 1);
        if at >= plan.length {
            return;
        }
        let client = r.below(plan.clients.into()) as u8;
        let volume = r.below(plan.volumes.len() as u64) as u8;
        plan.steps.push(Timed { at, action: Action::Withdraw(client, volume) });
    }
}
