//! Plans from seeds, by swarm testing: the seed draws the shape, the limits and *which kinds of
//! faults are on at all*, then how often and when each strikes.
//!
//! Each family of faults has its own file or function, and draws from its own random stream.

use super::conditions::{limits, weather};
use super::episode::trouble;
use super::orders::{among_mdms, grow, maintenance, mapping, mdm_disks, removal, tamper};
use super::workload::{duel, fill, workload};
use super::{Action, FinalFault, Plan, Who, policies};
use base::Prng;
use std::time::Duration;

/// Families of faults that do not change what was drawn before them. Each draws from its own random
/// stream. Append new ones at the end.
const FAMILIES: [fn(&mut Plan, &Prng); 27] = [
    super::seals::draw,
    super::forgeries::forgeries,
    mdm_disks,
    fates,
    super::nbd::draw,
    super::crowd::draw,
    super::clocks::draw,
    super::patience::draw,
    super::elsewhere::draw,
    super::rejects::draw,
    super::rescue::draw,
    super::together::draw,
    super::idle::draw,
    super::addresses::draw,
    super::lies::draw,
    super::copies::draw,
    super::slow::hang,
    super::overlong::draw,
    super::shipped::draw,
    super::twins::draw,
    super::queues::draw,
    super::versions::draw,
    super::swaps::draw,
    super::holes::draw,
    super::withdrawals::draw,
    super::hosts::draw,
    super::permissions::draw,
];

/// Returns true for the plans that are one long story about leases.
pub(super) fn is_duel(root: &Prng) -> bool {
    root.fork("kind").chance(0.15)
}

impl Plan {
    /// Draws a moment in phase 1, of the length drawn so far.
    pub(super) fn moment(&self, r: &mut Prng) -> Duration {
        Duration::from_micros(r.below(self.length.as_micros() as u64))
    }

    /// Generates the plan of this seed.
    // Long: the order of the draws decides what later ones may depend on.
    pub fn generate(seed: u64) -> Plan {
        let root = Prng::new(seed).fork("plan");
        let mut r = root.fork("shape");
        let sds = *r.pick(&[2, 2, 2, 3, 3, 4, 5]);
        let clients = *r.pick(&[1, 2, 2, 3]);
        let mut volumes: Vec<u32> = (0..r.range(1, 2)).map(|_| r.range(1, 4) as u32).collect();
        let mut units: u32 = volumes.iter().sum();
        // Each server has space for two copies of every unit. Some runs have too little space, also
        // on the smallest file.
        let tight = r.chance(0.08);
        let mut sds = sds;
        if tight {
            let mut r = root.fork("tight");
            sds = if r.chance(0.7) { 2 } else { sds };
            volumes[0] += r.range(7, 10) as u32;
            units = volumes.iter().sum();
        }
        let capacity = if tight { units.div_ceil(2) } else { 4 * units + 8 };
        let length = Duration::from_millis(r.range(1500, 9000));
        let depth = r.range(1, 12) as u32;
        let mut plan = Plan {
            seed,
            mdms: *root.fork("mdms").pick(&[1, 1, 1, 3, 3, 5]),
            sds,
            mates: Vec::new(),
            second_pool: 0,
            second_pool_volumes: 0,
            fault_sets: 0,
            clients,
            volumes,
            durable: r.chance(0.7),
            memory: 0,
            allow_loss: false,
            capacity,
            growth: 0,
            depth,
            nbd: 0,
            hosts: Vec::new(),
            shipped: false,
            limits: limits(&mut root.fork("limits")),
            weather: weather(&mut root.fork("weather")),
            outcast: None,
            busy: false,
            newer: 0,
            length,
            steps: Vec::new(),
        };
        let mut r = root.fork("among the mdms");
        if plan.mdms > 1 {
            plan.limits.mdm_tick = Duration::from_millis(r.range(4, 50));
        }
        let mut r = root.fork("devices");
        if plan.durable && r.chance(0.2) {
            plan.memory = r.below(1 << plan.sds) as u16;
        }
        let mut r = root.fork("outcast");
        if r.chance(0.4) {
            let who = r.below(u64::from(plan.sds)) as u8;
            let how = *r.pick(&[FinalFault::Dead, FinalFault::Cut, FinalFault::Unheard]);
            let stays = how != FinalFault::Dead || plan.keeps(Who::Sds(who));
            plan.outcast = stays.then_some((who, how));
        }
        if is_duel(&root) {
            duel(&mut plan, &mut root.fork("duel"));
        } else {
            workload(&mut plan, &mut root.fork("workload"));
            trouble(&mut plan, &mut root.fork("chaos"));
        }
        if plan.mdms > 1 {
            among_mdms(&mut plan, &mut root.fork("mdm trouble"));
        }
        if plan.capacity < units {
            fill(&mut plan, &mut root.fork("space"));
        }
        let mut r = root.fork("tamper");
        if plan.durable && r.chance(0.12) {
            tamper(&mut plan, &mut r);
        }
        let mut r = root.fork("grow");
        let tight = plan.capacity < units;
        if plan.durable && r.chance(if tight { 0.6 } else { 0.1 }) {
            plan.growth = if tight { r.range(16, 40) as u32 } else { 0 };
            grow(&mut plan, &mut r);
        }
        let mut r = root.fork("removal");
        let tampers = plan.steps.iter().any(|s| matches!(s.action, Action::Tamper(..)));
        if plan.sds > 2 && !tampers && !tight && r.chance(0.3) {
            removal(&mut plan, &mut r);
        }
        let mut r = root.fork("maintenance");
        if plan.sds > 2 && !tampers && !tight && r.chance(0.25) {
            maintenance(&mut plan, &mut r);
        }
        // Each set has at least two servers, so that a lost copy can be rebuilt in its own set.
        if plan.sds > 3 && !tight && root.fork("fault sets").chance(0.5) {
            plan.fault_sets = 2;
        }
        let mut r = root.fork("mapping");
        if r.chance(0.3) {
            mapping(&mut plan, &mut r);
        }
        policies::draw(&mut plan, &mut root.fork("policies"));
        let mut r = root.fork("slow");
        if plan.sds > 2 && !tight && plan.outcast.is_none() && r.chance(0.2) {
            super::slow::slow(&mut plan, &mut r);
        }
        let slow = plan.outcast.is_some_and(|(_, how)| how.slowness().is_some());
        if !tight && !slow {
            super::pools::draw(&mut plan, &root);
        }
        if tight {
            plan.limits.spare_percent = *root.fork("spare").pick(&[0, 0, 34, 50]);
        }
        FAMILIES.iter().for_each(|draw| draw(&mut plan, &root));
        plan.steps.sort_by_key(|s| s.at);
        plan
    }
}

/// Varies the fault of the server that stays away in phase 2. Instead of a dead process there may
/// be a host without power or a failed disk, and instead of a cut-off server a frozen process: then
/// no dial is refused. A server that the MDM does not hear may be reachable by the MDMs only. A
/// path may be cut in one direction only.
fn fates(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("fates");
    plan.outcast = plan.outcast.map(|(who, how)| match how {
        FinalFault::Dead if r.chance(0.4) => (who, FinalFault::Dark),
        FinalFault::Cut if r.chance(0.4) => (who, FinalFault::Frozen),
        FinalFault::Unheard if plan.sds > 2 && r.chance(0.5) => (who, FinalFault::Heard),
        how => (who, how),
    });
    // Drawn later than the others, so that these stay as they are.
    let mut r = root.fork("more fates");
    let files = |who| plan.away(who).iter().all(|i| plan.keeps(Who::Sds(*i)));
    plan.outcast = plan.outcast.map(|(who, how)| match how {
        FinalFault::Dead if files(who) && r.chance(0.3) => (who, FinalFault::FailedDisk),
        FinalFault::Cut if r.chance(0.3) => (who, FinalFault::Mute),
        FinalFault::Heard if r.chance(0.4) => (who, FinalFault::Deaf),
        how => (who, how),
    });
    if plan.outcast.is_some_and(|(_, how)| matches!(how, FinalFault::Heard | FinalFault::Deaf)) {
        // Without a quarantine it would be chosen for copies again and again while
        // it is out of reach.
        plan.limits.quarantine = Duration::from_millis(30);
        // Enough groups for several other servers to miss it.
        plan.limits.groups_per_device = plan.limits.groups_per_device.max(3);
    }
}
