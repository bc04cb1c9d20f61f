//! Locations of a plan's devices: their servers, fault units and storage pools. Also plans in which
//! servers have two devices, or in which there are two pools.
//!
//! Each device has its own process. The devices of one server lose power together, and are removed
//! and maintained together. Deaths and pauses strike all of them or one alone.

use super::{Action, Death, Plan, Timed, Who};
use crate::tamper::Tamper;
use base::Prng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Highest number of devices of a plan with second devices: more would make runs long.
const MOST: u8 = 7;

impl Plan {
    /// Returns the number of servers.
    pub fn servers(&self) -> u8 {
        self.sds - self.mates.len() as u8
    }

    /// Returns the server of a device, as the number of its first device.
    pub fn server(&self, device: u8) -> u8 {
        let mate = device.checked_sub(self.servers()).map(usize::from);
        mate.map_or(device, |n| self.mates[n])
    }

    /// Returns all devices of the server that this device is in.
    pub fn together(&self, device: u8) -> impl Iterator<Item = u8> {
        let server = self.server(device);
        (0..self.sds).filter(move |i| self.server(*i) == server)
    }

    /// Returns the fault unit of a device.
    pub fn unit(&self, device: u8) -> u8 {
        let server = self.server(device);
        if self.fault_sets == 0 { server } else { server % self.fault_sets }
    }

    /// Returns the storage pools, as orders name them; 0 is a single pool, which has no name.
    pub fn all_pools(&self) -> RangeInclusive<u8> {
        if self.pools() == 1 { 0..=0 } else { 1..=2 }
    }

    /// Returns the number of storage pools.
    pub fn pools(&self) -> u8 {
        if self.second_pool == 0 { 1 } else { 2 }
    }

    /// Returns the pool id of a device; 0 if there is a single pool.
    pub fn pool(&self, device: u8) -> u8 {
        if self.pools() == 1 { 0 } else { 1 + (self.second_pool >> device & 1) as u8 }
    }

    /// Returns the pool id of a volume; 0 if there is a single pool.
    pub fn volume_pool(&self, volume: u8) -> u8 {
        if self.pools() == 1 { 0 } else { 1 + (self.second_pool_volumes >> volume & 1) }
    }

    /// Returns the devices that are away with this outcast. A server's first device stands for all
    /// devices of the server.
    pub fn away(&self, outcast: u8) -> Vec<u8> {
        if self.server(outcast) == outcast {
            self.together(outcast).collect()
        } else {
            vec![outcast]
        }
    }

    /// Returns true when devices are swapped between servers, so that two copies may
    /// end up on one server.
    pub fn swaps(&self) -> bool {
        let swap = |s: &Timed| matches!(s.action, Action::Tamper(_, Tamper::Swapped(_)));
        self.steps.iter().any(swap)
    }
}

/// Returns the name of a pool; empty for 0, which is a single pool and needs no name.
pub fn pool_name(pool: u8) -> &'static str {
    ["", "default", "second"][usize::from(pool)]
}

/// Adds second devices to some plans, and a second pool to some.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("mates");
    if r.chance(0.16) {
        more_devices(plan, &mut r);
    }
    let mut r = root.fork("pools");
    if r.chance(0.5) {
        two_pools(plan, &mut r);
    }
}

/// Gives a second device to some servers, or to all.
fn more_devices(plan: &mut Plan, r: &mut Prng) {
    let servers = plan.sds;
    let most = servers.min(MOST - servers);
    let count = if r.chance(0.4) { most } else { r.range(1, u64::from(most)) as u8 };
    let first = r.below(u64::from(servers)) as u8;
    for n in 0..count {
        let server = (first + n) % servers;
        plan.mates.push(server);
        let fated = plan.outcast.is_some_and(|(i, _)| i == server);
        if plan.memory != 0 && !fated && r.chance(0.5) {
            plan.memory |= 1 << plan.sds;
        }
        plan.sds += 1;
    }
    // In this case the outcast's first device stays in service, and the second one fails.
    if let Some((i, how)) = plan.outcast
        && let Some(mate) = mate(plan, i)
        && r.chance(0.4)
    {
        plan.outcast = Some((mate, how));
    }
    befall(plan, r);
    let tampers = plan.steps.iter().any(|s| matches!(s.action, Action::Tamper(..)));
    if !tampers && r.chance(0.4) {
        for _ in 0..r.range(1, 3) {
            let at = plan.moment(r);
            let i = r.below(u64::from(plan.sds)) as u8;
            plan.steps.push(Timed { at, action: Action::RemoveDevice(i) });
            if r.chance(0.3) {
                let at = at + Duration::from_micros(r.below(1_000_000));
                plan.steps.push(Timed { at, action: Action::Keep(i) });
            }
        }
    }
}

/// Returns the second device of a server.
fn mate(plan: &Plan, first: u8) -> Option<u8> {
    plan.together(first).find(|i| *i > first)
}

/// Which of a server's devices a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Both,
    First,
    Second,
}

/// Applies faults that were drawn for a server's first device to both devices, or to one of them.
fn befall(plan: &mut Plan, r: &mut Prng) {
    let mut fates: BTreeMap<(Duration, u8), Fate> = BTreeMap::new();
    let steps = std::mem::take(&mut plan.steps);
    for Timed { at, action } in steps {
        let mut those = |who: Who, r: &mut Prng| -> Vec<Who> {
            let Who::Sds(i) = who else { return vec![who] };
            let Some(second) = mate(plan, i) else { return vec![who] };
            let all = [Fate::Both, Fate::Both, Fate::Both, Fate::First, Fate::Second];
            match *fates.entry((at, i)).or_insert_with(|| *r.pick(&all)) {
                Fate::Both => vec![who, Who::Sds(second)],
                Fate::First => vec![who],
                Fate::Second => vec![Who::Sds(second)],
            }
        };
        let both = |who: Who| match who {
            Who::Sds(i) => plan.together(i).map(Who::Sds).collect(),
            _ => vec![who],
        };
        let pairs = |a: Vec<Who>, b: Vec<Who>| -> Vec<(Who, Who)> {
            a.iter().flat_map(|a| b.iter().map(|b| (*a, *b))).collect()
        };
        let second = |i: u8, r: &mut Prng| mate(plan, i).filter(|_| r.chance(0.5)).unwrap_or(i);
        let actions: Vec<Action> = match action {
            Action::Crash(who @ Who::Sds(_), death) => {
                vec![crash(plan, both(who), those(who, r), death)]
            }
            Action::Pause(who, midway) => {
                those(who, r).into_iter().map(|w| Action::Pause(w, midway)).collect()
            }
            Action::Start(who) => both(who).into_iter().map(Action::Start).collect(),
            Action::Resume(who) => both(who).into_iter().map(Action::Resume).collect(),
            Action::Open(a, b) => {
                pairs(both(a), both(b)).into_iter().map(|(a, b)| Action::Open(a, b)).collect()
            }
            Action::Block(a, b) => {
                let pairs = pairs(those(a, r), those(b, r));
                pairs.into_iter().map(|(a, b)| Action::Block(a, b)).collect()
            }
            Action::Clog(a, b, ms) => {
                let pairs = pairs(those(a, r), those(b, r));
                pairs.into_iter().map(|(a, b)| Action::Clog(a, b, ms)).collect()
            }
            Action::Reset(a, b) => {
                let pairs = pairs(those(a, r), those(b, r));
                pairs.into_iter().map(|(a, b)| Action::Reset(a, b)).collect()
            }
            Action::Damage(i, damage) => vec![Action::Damage(second(i, r), damage)],
            Action::Grow(i, mib) => vec![Action::Grow(second(i, r), mib)],
            Action::Tamper(i, Tamper::Swapped(j)) => {
                let other = mate(plan, i).filter(|_| r.chance(0.5)).unwrap_or(j);
                vec![Action::Tamper(i, Tamper::Swapped(other))]
            }
            Action::Tamper(i, how) => vec![Action::Tamper(second(i, r), how)],
            other => vec![other],
        };
        plan.steps.extend(actions.into_iter().map(|action| Timed { at, action }));
    }
}

/// Adapts a crash to a server with two devices. A power loss strikes the whole server; a process
/// dies with its server or alone. The death becomes careful when a device would lose its content.
fn crash(plan: &Plan, all: Vec<Who>, those: Vec<Who>, death: Death) -> Action {
    let server = all.len() > 1 && (death.power || those.len() > 1);
    let victims = if server { &all } else { &those };
    let kept = victims.iter().all(|w| plan.keeps(*w));
    let careful = death.careful || death.keep && !kept;
    Action::Crash(victims[0], Death { careful, server, ..death })
}

/// Moves some devices and volumes to a second pool; each pool has devices in two fault units.
fn two_pools(plan: &mut Plan, r: &mut Prng) {
    let units = |plan: &Plan, of: &dyn Fn(u8) -> bool| {
        (0..plan.sds).filter(|i| of(*i)).map(|i| plan.unit(i)).collect::<BTreeSet<u8>>().len()
    };
    let fits = |mask: &u16| {
        let second = |i: u8| mask >> i & 1 == 1;
        units(plan, &second) > 1 && units(plan, &|i| !second(i)) > 1
    };
    let all: Vec<u16> = (1..1 << plan.sds).filter(fits).collect();
    // A swapped device brings its pool along, so the plan would not know the pool of each place.
    if all.is_empty() || plan.swaps() {
        return;
    }
    plan.second_pool = *r.pick(&all);
    if plan.volumes.len() == 1 && r.chance(0.8) {
        let units = plan.volumes[0];
        plan.volumes.push(units);
        plan.capacity += 4 * units;
        for step in &mut plan.steps {
            if let Action::Io { volume, .. } = &mut step.action {
                *volume = r.below(2) as u8;
            }
        }
    }
    plan.second_pool_volumes =
        if plan.volumes.len() > 1 { *r.pick(&[1, 2, 1, 2, 1, 2, 0, 3]) } else { r.below(2) as u8 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_two_devices_at_most_and_a_pool_has_two_fault_units() {
        let (mut with_mates, mut with_pools) = (0, 0);
        for plan in (0..1000).map(Plan::generate) {
            assert!(plan.servers() > 1 && (plan.sds <= MOST || plan.mates.is_empty()));
            assert!((0..plan.sds).all(|i| plan.together(i).count() <= 2));
            let mut units: BTreeMap<u8, BTreeSet<u8>> = BTreeMap::new();
            for i in 0..plan.sds {
                units.entry(plan.pool(i)).or_default().insert(plan.unit(i));
            }
            assert_eq!(units.len(), usize::from(plan.pools()));
            assert!(units.values().all(|units| units.len() > 1));
            assert!(
                (0..plan.volumes.len() as u8).all(|v| units.contains_key(&plan.volume_pool(v)))
            );
            with_mates += u32::from(!plan.mates.is_empty());
            with_pools += u32::from(plan.pools() > 1);
        }
        assert!((90..160).contains(&with_mates) && (90..160).contains(&with_pools));
    }
}
