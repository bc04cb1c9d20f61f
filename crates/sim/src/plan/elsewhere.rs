//! Plans in which a client's name has two processes at once: one is frozen, another one is started
//! elsewhere, and the first one resumes (rule R8).

use super::episode::Episode;
use super::{Action, Plan, Who};
use base::Prng;
use std::time::Duration;

/// Adds such pairs to some plans without NBD connections, which know a client by its address.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("elsewhere");
    if plan.nbd != 0 || !r.chance(0.2) {
        return;
    }
    for _ in 0..r.range(1, 5) {
        let at = plan.moment(&mut r);
        let mut e = Episode { plan, at, careful: true };
        let client = r.below(u64::from(e.plan.clients)) as u8;
        e.push(Duration::ZERO, Action::Elsewhere(client));
        let thaw = Duration::from_micros(r.range(1_000, 2_000_000));
        e.push(thaw, Action::Thaw(client));
        // Often all servers restart in between and forget the client's connections. They still know
        // its incarnations: these are stored with the data.
        if e.plan.durable && e.plan.memory == 0 && r.chance(0.6) {
            let begin = e.at;
            for i in 0..e.plan.sds {
                e.at = begin + Duration::from_micros(r.below(thaw.as_micros() as u64));
                let away = Duration::from_micros(r.range(100, 200_000));
                e.crash(Who::Sds(i), true, away, &mut r);
            }
        }
    }
}
