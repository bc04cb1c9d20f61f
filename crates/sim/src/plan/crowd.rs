//! Plans with six to twelve servers: with ten or more, the MDM does not declare all silent servers
//! lost (rule R12).

use super::episode::{Episode, trouble, while_away};
use super::{Plan, Who};
use base::Prng;
use std::time::Duration;

/// Lowest and highest number of servers of such a plan.
const SERVERS: (u64, u64) = (6, 12);

/// Gives more servers to some plans that have one device per server and one pool, and adds faults
/// that strike all of them.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("crowd");
    let tight = plan.capacity < plan.volumes.iter().sum();
    let slow = plan.outcast.is_some_and(|(_, how)| how.slowness().is_some());
    if tight || slow || !plan.mates.is_empty() || plan.pools() > 1 || !r.chance(0.03) {
        return;
    }
    plan.sds = r.range(SERVERS.0, SERVERS.1) as u8;
    trouble(plan, &mut r);
    for _ in 0..r.range(1, 4) {
        let at = plan.moment(&mut r);
        silence(plan, at, &mut r);
    }
}

/// Blocks the paths from the MDMs to some servers for a while, or the paths back, or both. All
/// other paths stay open.
fn silence(plan: &mut Plan, at: Duration, r: &mut Prng) {
    let (sds, mdms) = (u64::from(plan.sds), plan.mdms);
    let (count, first) = (r.range(1, sds), r.below(sds));
    let (inward, outward) = *r.pick(&[(true, true), (true, true), (true, false), (false, true)]);
    let time = while_away(r);
    for n in 0..count {
        let who = Who::Sds(((first + n) % sds) as u8);
        let late = Duration::from_micros(r.below(300_000));
        let mut e = Episode { plan, at: at + late, careful: true };
        for mdm in (0..mdms).map(Who::Mdm) {
            if inward {
                e.block(mdm, who, time);
            }
            if outward {
                e.block(who, mdm, time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_plans_have_more_servers_and_the_limit_of_the_mdm_is_met() {
        let plans: Vec<Plan> = (0..1000).map(Plan::generate).collect();
        let many = plans.iter().filter(|p| p.servers() > 5).count();
        let limited = plans.iter().filter(|p| p.servers() > 9).count();
        assert!((10..60).contains(&many) && limited > 3, "{many}, {limited} of them large");
    }
}
