//! Plans in which addresses change hands: servers restart at other addresses, and their former
//! addresses belong to other servers, or to none.

use super::episode::{Episode, while_away};
use super::{Action, Plan, Who};
use base::Prng;
use std::time::Duration;

/// Adds address changes to some plans in which all servers keep their content.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("addresses");
    let keeps = plan.durable && plan.memory == 0;
    if !keeps || plan.is_one_story() || !r.chance(0.06) {
        return;
    }
    for _ in 0..r.range(1, 5) {
        let at = plan.moment(&mut r);
        let mut e = Episode { plan, at, careful: true };
        let sds = u64::from(e.plan.sds);
        let (i, j) = (r.below(sds) as u8, r.below(sds) as u8);
        e.push(Duration::ZERO, Action::Readdress(i, j));
        e.push(while_away(&mut r), Action::Start(Who::Sds(i)));
        e.push(while_away(&mut r), Action::Start(Who::Sds(j)));
    }
}
