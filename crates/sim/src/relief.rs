//! Space for the writes that wait for it: when some have waited for a while, the servers' devices grow, one
//! after the other, if the plan says so; else the clients give back what they have written. The waiting
//! writes must end.
//!
//! One discard of everything may not be enough: what gets in takes the space again. So this goes on as
//! long as writes are held. What is lost can't be discarded, and may leave nothing but the spare of a device: that is
//! given up at last.

use crate::admin::Order;
use crate::plan::{Death, IoKind, Who};
use crate::stage::Stage;
use base::{SECTOR, Time, UNIT};
use std::time::Duration;

/// How long writes wait until space is made for them; longer than a client waits to ask again.
const PATIENCE: Duration = Duration::from_millis(600);
/// How often everything is discarded before the spare is given up.
const ROUNDS: u32 = 8;

/// Since when writes are held without a break, or since when space was made.
#[derive(Debug, Default)]
pub struct Relief {
    since: Option<Time>,
    first: usize,
    /// Servers whose devices have grown.
    grown: u8,
    /// How often everything was discarded.
    rounds: u32,
}

impl Relief {
    /// Looks, and makes space when it is time to.
    pub fn look(&mut self, stage: &mut Stage) {
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
        // Unit by unit, as some may be lost; others first each time, as not all may get in at once.
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

    /// Lets the next server's device grow; false: all of them have.
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
