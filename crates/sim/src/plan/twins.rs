//! Plans in which a server's name has two processes at once: one is frozen, another one is started
//! elsewhere with empty memory, and the first one resumes with its leases and its data until it is
//! told of the newer one (rules R2 and R4).

use super::episode::Episode;
use super::{Action, Plan, Who};
use base::Prng;
use std::time::Duration;

/// Adds such pairs to some plans with one device per server, some of them memory. (A copy of a
/// device that is in use must not be started: `docs/operate/hosts.md`.)
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("twins");
    let tight = plan.capacity < plan.volumes.iter().sum();
    let of_memory: Vec<u8> = (0..plan.sds).filter(|i| !plan.keeps(Who::Sds(*i))).collect();
    let moves = |a: &Action| matches!(a, Action::Readdress(..) | Action::Tamper(..));
    let moved = plan.steps.iter().any(|s| moves(&s.action));
    let other = plan.is_one_story() || !plan.mates.is_empty() || plan.copies_devices() || moved;
    if of_memory.is_empty() || tight || other || !r.chance(0.3) {
        return;
    }
    for _ in 0..r.range(1, 5) {
        let at = plan.moment(&mut r);
        let i = *r.pick(&of_memory);
        let mut e = Episode { plan, at, careful: true };
        e.push(Duration::ZERO, Action::Double(i));
        // Mostly before its leases have run out.
        let most = if r.chance(0.7) { 300_000 } else { 2_000_000 };
        e.push(Duration::from_micros(r.range(100, most)), Action::Wake(i));
    }
}
