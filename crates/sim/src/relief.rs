//! Space for writes that wait for it. When some have waited for a while, the servers' devices grow
//! one after the other, if the plan says so; else the clients discard what they have written. The
//! waiting writes must end.
//!
//! One discard of everything may not be enough, as the next writes take the space again. So this is
//! repeated while writes are waiting. Lost groups can't be discarded, and may leave nothing but the
//! spare of a device: in the end the spare is given up.

use crate::admin::Order;
use crate::plan::{Death, IoKind, Who};
use crate::stage::Stage;
use base::{SECTOR, Time, UNIT};
use std::time::Duration;

/// Time that writes wait before space is made. Longer than the interval at which a client retries.
const PATIENCE: Duration = Duration::from_millis(600);
/// Number of discards of everything before the spare is given up.
const ROUNDS: u32 = 8;

/// State of the relief. `since` is the time since which writes wait without a break, or at which
/// space was last made.
#[derive(Debug, Default)]
pub(crate) struct Relief {
    since: Option<Time>,
    first: usize,
    /// Number of servers whose devices were grown, or were passed over.
    grown: u8,
    /// Number of discards of everything.
    rounds: u32,
}

impl Relief {
    /// Checks for waiting writes, and makes space when they have waited long enough.
    pub(crate) fn look(&mut self, stage: &mut Stage) {
        let holds = |i: &u8| stage.sdc(*i).is_some_and(|s| s.held() > 0);
        let Some(client) = (0..stage.plan.clients).find(holds) else {
            return self.since = None;
        };
        let now = stage.world.now();
        if now.since(*self.since.get_or_insert(now)) < PATIENCE {
            return;
        }
        self.since = Some(now);
        if self.grow(stage) {
            return;
        }
        self.rounds += 1;
        if self.rounds > ROUNDS && stage.spare_percent > 0 {
            stage.spare_percent = 0;
            stage.marks.meet("sim: the spare was given up");
            stage.plan.all_pools().for_each(|pool| stage.order(Order::GiveUpSpare(pool)));
        }
        stage.marks.meet("sim: space was made for held writes");
        // Unit by unit, as some may be lost; in another order each time, as not
        // all may be accepted.
        let volumes = stage.volumes.clone();
        let there = volumes.iter().filter(|v| !v.doomed).filter_map(|v| Some((v.id?, v.units)));
        let mut units: Vec<_> = there.flat_map(|(id, n)| (0..n).map(move |u| (id, u))).collect();
        self.first += 3;
        let first = self.first % units.len().max(1);
        units.rotate_left(first);
        for (id, unit) in units {
            let sectors = UNIT / SECTOR;
            stage.issue(client, id, IoKind::Discard, unit * sectors, sectors);
        }
    }

    /// Grows the next server's device; returns false when all of them have grown.
    fn grow(&mut self, stage: &mut Stage) -> bool {
        let growth = stage.plan.growth;
        while growth > 0 && self.grown < stage.plan.sds {
            let (i, who) = (self.grown, Who::Sds(self.grown));
            self.grown += 1;
            if stage.plan.keeps(who) && !stage.outcasts.contains_key(&i) {
                stage.grow(i, growth);
                stage.kill(who, Death { keep: true, ..Death::default() });
                stage.start(who);
                return true;
            }
        }
        false
    }
}
