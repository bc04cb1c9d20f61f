//! Devices come, go, fail and grow. After each change every device has its share, and little more
//! has moved than necessary.

use base::{DeviceId, GroupId, Prng, SdsId, VolumeId};
use placement::{
    Choice, Device, PARTNERS, Pair, PlacedGroup, Plan, balance, choose_slots, place_homeless, plan,
};
use std::collections::{BTreeMap, BTreeSet};

const CAPACITY: u64 = 1 << 40;

fn cluster(servers: u32, per_server: u32) -> Vec<Device> {
    sized(servers, per_server, |_| CAPACITY)
}

/// The same, with a size for each device, numbered from 0.
fn sized(servers: u32, per_server: u32, size: impl Fn(u32) -> u64) -> Vec<Device> {
    let device =
        |i: u32| Device { id: DeviceId(i + 1), sds: SdsId(i / per_server + 1), capacity: size(i) };
    (0..servers * per_server).map(device).collect()
}

/// Devices and their groups, each of the same weight.
struct World {
    devices: Vec<Device>,
    held: Vec<PlacedGroup>,
    next: u32,
}

impl World {
    fn new(servers: u32, per_server: u32, per_device: u32) -> World {
        World::of(cluster(servers, per_server), per_device)
    }

    fn of(devices: Vec<Device>, per_device: u32) -> World {
        let pairs = plan(&devices, per_device).unwrap();
        let held =
            |(i, replicas)| PlacedGroup { group: GroupId(i as u32 + 1), replicas, weight: 1 << 30 };
        let held = pairs.into_iter().enumerate().map(held).collect();
        World { next: devices.len() as u32 + 1, devices, held }
    }

    fn add(&mut self, sds: SdsId, capacity: u64) {
        self.devices.push(Device { id: DeviceId(self.next), sds, capacity });
        self.next += 1;
    }

    fn remove(&mut self, sds: SdsId) {
        self.devices.retain(|d| d.sds != sds);
    }

    /// Returns the largest number of devices that any device shares groups with.
    fn partners(&self) -> usize {
        let mut partners: BTreeMap<DeviceId, BTreeSet<DeviceId>> = BTreeMap::new();
        for [a, b] in self.held.iter().map(|h| h.replicas) {
            partners.entry(a).or_default().insert(b);
            partners.entry(b).or_default().insert(a);
        }
        partners.values().map(BTreeSet::len).max().unwrap_or(0)
    }

    fn servers(&self) -> BTreeSet<SdsId> {
        self.devices.iter().filter(|d| d.capacity > 0).map(|d| d.sds).collect()
    }

    /// Returns the weight on each device, and the part that it leads.
    fn loads(&self) -> BTreeMap<DeviceId, (f64, f64)> {
        let mut loads: BTreeMap<DeviceId, (f64, f64)> = BTreeMap::new();
        for held in &self.held {
            for (i, device) in held.replicas.iter().enumerate() {
                let (all, led) = loads.entry(*device).or_default();
                *all += held.weight as f64;
                *led += if i == 0 { held.weight as f64 } else { 0.0 };
            }
        }
        loads
    }

    /// Returns the share of each device. Exact if no server has more than half of the capacity.
    fn shares(&self) -> BTreeMap<DeviceId, f64> {
        let sum: f64 = self.devices.iter().map(|d| d.capacity as f64).sum();
        let all: f64 = self.held.iter().map(|h| 2.0 * h.weight as f64).sum();
        self.devices.iter().map(|d| (d.id, all * d.capacity as f64 / sum)).collect()
    }

    /// Returns the least weight that must move until all have their shares.
    fn least(&self) -> f64 {
        let loads = self.loads();
        let lack = |(id, share): (&DeviceId, &f64)| {
            (share - loads.get(id).map_or(0.0, |(all, _)| *all)).max(0.0)
        };
        self.shares().iter().map(lack).sum()
    }

    fn apply(&mut self, plan: &Plan) -> f64 {
        let mut moved = 0.0;
        for change in &plan.moves {
            let held = &mut self.held[change.group.0 as usize - 1];
            let at = held.replicas.iter_mut().find(|d| **d == change.from).unwrap();
            *at = change.to;
            moved += held.weight as f64;
        }
        for group in &plan.swaps {
            self.held[group.0 as usize - 1].replicas.swap(0, 1);
        }
        moved
    }

    /// Balances until nothing moves any more, in a few plans. Returns the weight that moved and the
    /// weight that had to.
    fn balance(&mut self) -> (f64, f64) {
        let least = self.least();
        let mut moved = 0.0;
        for round in 0.. {
            let plan = balance(&self.devices, &self.held).unwrap();
            if plan == Plan::default() {
                break;
            }
            assert!(round < 3, "it doesn't come to an end: {plan:?}");
            moved += self.apply(&plan);
        }
        // Whole groups move, so each device may be off by half a group.
        let half = self.held.iter().map(|h| h.weight).max().unwrap() as f64 / 2.0;
        let rounding = half * self.devices.len() as f64;
        assert!(moved <= least * 1.1 + rounding, "{moved:e} moved, {least:e} had to");
        self.check();
        (moved, least)
    }

    fn check(&self) {
        let sds: BTreeMap<DeviceId, SdsId> = self.devices.iter().map(|d| (d.id, d.sds)).collect();
        for held in &self.held {
            let [a, b]: Pair = held.replicas;
            assert_ne!(sds.get(&a), sds.get(&b), "{held:?}");
            assert!(sds.contains_key(&a) && sds.contains_key(&b), "{held:?}");
        }
        let (loads, heaviest) = (self.loads(), self.held.iter().map(|h| h.weight).max().unwrap());
        for (id, share) in self.shares() {
            let (all, led) = loads[&id];
            let off = |is: f64, ought: f64| (is - ought).abs();
            let few = 1.01 * heaviest as f64;
            assert!(off(all, share) <= (0.05 * share).max(few), "{id} has {all:e} of {share:e}");
            assert!(
                off(led, all / 2.0) <= (0.05 * all / 2.0).max(few),
                "{id} leads {led:e} of {all:e}"
            );
        }
    }
}

#[test]
fn groups_of_a_dead_device_are_spread_over_all_others() {
    for (servers, per, per_device) in [(3, 1, 64), (4, 1, 256), (5, 3, 64), (16, 1, 64)] {
        let mut world = World::new(servers, per, per_device);
        world.devices.remove(1);
        let (moved, least) = world.balance();
        assert!(moved <= 1.01 * least, "{servers} x {per}: {moved:e} moved, {least:e} had to");
    }
}

#[test]
fn a_new_server_gets_its_share_from_all_others() {
    for (servers, per, per_device) in [(2, 1, 64), (3, 1, 256), (5, 3, 64), (16, 1, 64)] {
        let mut world = World::new(servers, per, per_device);
        (0..per).for_each(|_| world.add(SdsId(servers + 1), CAPACITY));
        let (moved, least) = world.balance();
        assert!(moved <= 1.01 * least, "{servers} x {per}: {moved:e} moved, {least:e} had to");
    }
}

#[test]
fn a_device_without_room_gives_all() {
    let mut world = World::new(4, 2, 64);
    world.devices[3].capacity = 0;
    world.devices[7].capacity = 0;
    // Groups whose replicas both leave need two plans.
    for _ in 0..2 {
        let plan = balance(&world.devices, &world.held).unwrap();
        world.apply(&plan);
    }
    let left = |h: &&PlacedGroup| h.replicas.iter().any(|d| d.0 == 4 || d.0 == 8);
    assert_eq!(world.held.iter().filter(left).count(), 0);
    world.devices.retain(|d| d.capacity > 0);
    world.check();
}

#[test]
fn any_sequence_of_changes_ends_in_balance() {
    let mut worst: f64 = 0.0;
    for seed in 0..60 {
        let mut prng = Prng::new(seed);
        let mut world = World::new(prng.range(4, 8) as u32, prng.range(1, 3) as u32, 64);
        for held in &mut world.held {
            held.weight <<= prng.below(2);
        }
        let (mut moved, mut least) = (0.0, 0.0);
        for _ in 0..12 {
            change(&mut world, &mut prng);
            let (now, had_to) = world.balance();
            (moved, least) = (moved + now, least + had_to);
        }
        assert!(moved <= 1.1 * least, "seed {seed}: {moved:e} moved, {least:e} had to");
        worst = worst.max(moved / least);
    }
    println!("at most {worst:.3} of what had to move");
}

/// Adds, removes or changes a server or a device. None ever has more than three tenths.
fn change(world: &mut World, prng: &mut Prng) {
    let servers: Vec<SdsId> = world.servers().into_iter().collect();
    let any = servers[prng.below(servers.len() as u64) as usize];
    match prng.below(4) {
        0 if servers.len() > 4 => world.remove(any),
        1 => {
            let sds = SdsId(servers.iter().map(|s| s.0).max().unwrap() + 1);
            (0..prng.range(1, 3)).for_each(|_| world.add(sds, CAPACITY));
        }
        2 => world.add(any, CAPACITY / 2),
        _ => {
            let one = prng.below(world.devices.len() as u64) as usize;
            world.devices[one].capacity += CAPACITY / 4;
        }
    }
    let sum: u64 = world.devices.iter().map(|d| d.capacity).sum();
    let of =
        |s: SdsId| world.devices.iter().filter(|d| d.sds == s).map(|d| d.capacity).sum::<u64>();
    if let Some(big) = world.servers().into_iter().find(|s| of(*s) > sum * 3 / 10) {
        let room = Device { id: DeviceId(world.next), sds: SdsId(1000 + world.next), capacity: 0 };
        let capacity = of(big);
        world.next += 1;
        world.devices.push(Device { capacity, ..room });
    }
}

#[test]
fn where_servers_stand_in_the_way_two_replicas_move_in_turn() {
    // Half of the groups are on servers 1 and 2, and the new device is on server 3.
    let mut devices = cluster(3, 1);
    let pair = |i: u32| if i < 20 { [1, 2] } else { [2, 3] };
    let held =
        |i: u32| PlacedGroup { group: GroupId(i + 1), replicas: pair(i).map(DeviceId), weight: 1 };
    let held: Vec<PlacedGroup> = (0..40).map(held).collect();
    devices.push(Device { id: DeviceId(4), sds: SdsId(3), capacity: CAPACITY });
    let mut world = World { devices, held, next: 5 };
    let plan = balance(&world.devices, &world.held).unwrap();
    world.apply(&plan);
    let loads = world.loads();
    for (id, (all, _)) in loads {
        assert!((18.0..=22.0).contains(&all), "{id} has {all}");
    }
}

/// A few servers with unequal devices and a few groups of unequal weight: many moves are
/// impossible, and no plan is perfectly even.
#[test]
fn rebalancing_one_move_at_a_time_ends() {
    for seed in 0..3000 {
        let mut prng = Prng::new(seed);
        let (servers, per_server) = (prng.range(2, 5) as u32, prng.range(1, 4) as u32);
        let sizes: Vec<u64> = (0..servers * per_server).map(|_| prng.range(1, 4) << 40).collect();
        let mut world = World::of(sized(servers, per_server, |i| sizes[i as usize]), 4);
        for held in &mut world.held {
            held.weight = prng.below(4) * prng.range(1, 30);
        }
        if prng.chance(0.5) && servers > 2 {
            world.add(SdsId(servers + 1), prng.range(1, 4) << 40);
        }
        let mut steps = 0;
        while let Some(first) = balance(&world.devices, &world.held).unwrap().moves.first() {
            let one = Plan { moves: vec![*first], swaps: Vec::new() };
            world.apply(&one);
            steps += 1;
            assert!(steps <= 4 * world.held.len(), "seed {seed}: {one:?} and so on");
        }
    }
}

#[test]
fn one_server_is_too_few() {
    assert!(balance(&cluster(1, 4), &[]).is_err());
    assert_eq!(balance(&cluster(2, 1), &[]), Ok(Plan::default()));
}

/// 128 servers with ten devices each, of four sizes: checks the promises for such a domain, and
/// prints the time that it takes.
#[test]
fn a_domain_of_1280_devices_of_different_sizes() {
    let size = |i: u32| CAPACITY / 2 * (1 + u64::from(i * 7 % 4));
    let timed = |what: &str, begin: std::time::Instant| println!("{what}: {:?}", begin.elapsed());
    let begin = std::time::Instant::now();
    let mut world = World::of(sized(127, 10, size), 256);
    timed(&format!("first plan, {} groups", world.held.len()), begin);
    world.check();
    assert!(world.partners() <= 2 * PARTNERS as usize, "{} partners", world.partners());
    (0..10).for_each(|i| world.add(SdsId(128), size(i)));
    for what in ["a new server", "a lost server", "a smaller device", "nothing"] {
        let begin = std::time::Instant::now();
        let plan = balance(&world.devices, &world.held).unwrap();
        timed(&format!("{what}, {} moves", plan.moves.len()), begin);
        let (moved, least) = world.balance();
        assert!(moved <= 1.1 * least, "{what}: {moved:e} moved, {least:e} had to");
        match what {
            "a new server" => world.remove(SdsId(7)),
            "a lost server" => world.devices[5].capacity /= 2,
            _ => {}
        }
    }
    assert!(world.partners() <= 3 * PARTNERS as usize, "{} partners", world.partners());
    let groups: Vec<Choice> =
        world.held.iter().map(|h| Choice { group: h.group, replicas: h.replicas }).collect();
    let begin = std::time::Instant::now();
    let slots = choose_slots(VolumeId(1), &world.devices, &groups, 512).unwrap();
    timed("groups for a volume", begin);
    assert_eq!(slots.len(), 512);
}

/// Replicas of a lost device are spread over homes that may be full of others. Several moves of
/// replicas that have to move anyway are better than one move of a replica that has not.
#[test]
fn replicas_that_can_stay_are_not_moved() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let servers = prng.range(4, 12) as u32;
        let sizes: Vec<u64> = (0..servers * 2).map(|_| CAPACITY / 4 * prng.range(2, 6)).collect();
        let mut world = World::of(sized(servers, 2, |i| sizes[i as usize]), 64);
        world.remove(SdsId(1));
        let least = world.least();
        let moves = place_homeless(&world.devices, &world.held).unwrap();
        let homeless = world.held.iter().filter(|h| h.replicas.iter().any(|d| d.0 <= 2)).count();
        assert_eq!(moves.len(), homeless);
        assert!(moves.iter().all(|m| m.from.0 <= 2));
        let moved = world.apply(&Plan { moves, swaps: Vec::new() });
        let again = balance(&world.devices, &world.held).unwrap().moves.len();
        assert!(again * 50 <= homeless, "seed {seed}: {again} more moves after {homeless}");
        assert!(moved <= 1.1 * least.max(homeless as f64 * (1u64 << 30) as f64));
    }
}

#[test]
fn groups_without_data_are_levelled_among_themselves() {
    let mut world = World::new(6, 2, 64);
    for (i, held) in world.held.iter_mut().enumerate() {
        held.weight = if i % 3 == 0 { 0 } else { 1 << 30 };
    }
    (0..2).for_each(|_| world.add(SdsId(7), CAPACITY));
    let plan = balance(&world.devices, &world.held).unwrap();
    world.apply(&plan);
    let empty = world.held.iter().filter(|h| h.weight == 0).count() as f64;
    for d in &world.devices {
        let has = world.held.iter().filter(|h| h.weight == 0 && h.replicas.contains(&d.id)).count();
        let share = 2.0 * empty / world.devices.len() as f64;
        assert!((has as f64 - share).abs() <= 2.0, "{} has {has} of {share}", d.id);
        let all = world.held.iter().filter(|h| h.replicas.contains(&d.id)).count() as f64;
        assert!((all - 3.0 * share).abs() <= 4.0, "{} has {all}", d.id);
    }
}
