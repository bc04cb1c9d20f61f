//! Mesh mirroring: creates pairs of devices on different servers, spread evenly.
//!
//! Invariants of a result: the two replicas of a pair are on two servers. Each device that lacked
//! groups has its share afterwards: its part of `devices * groups_per_device` by capacity, exactly
//! if the sum allows it, and at most [`MAX_REPLICAS`]. Its pairs are spread evenly over its
//! partners, which are all other devices, or [`crate::PARTNERS`] of them. It is the preferred
//! primary (first of the pair) of half of its groups. Existing groups count and never change.
//!
//! This module does not move groups off a device, and does not know which volume uses a group.

use crate::orient::orient;
use crate::spread::Spread;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use base::{DeviceId, MAX_REPLICAS, SdsId};
use core::cmp::Reverse;
use core::fmt;

/// A device that may hold groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Id of the device.
    pub id: DeviceId,
    /// Its fault unit: a server, or the first server of a fault set.
    pub sds: SdsId,
    /// Bytes for data. Shares are proportional to it.
    pub capacity: u64,
}

/// The replicas of a group, preferred primary first.
pub type Pair = [DeviceId; 2];

/// The error if there are fewer than two servers: two copies need two servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooFewServers {
    /// Number of servers.
    pub servers: usize,
}

impl fmt::Display for TooFewServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "two copies need two servers, and there are {}: start another one", self.servers)
    }
}

impl core::error::Error for TooFewServers {}

/// Returns the groups of a cluster that has none yet.
pub fn plan(devices: &[Device], groups_per_device: u32) -> Result<Vec<Pair>, TooFewServers> {
    top_up(devices, &[], groups_per_device)
}

/// Returns the new groups that give every device its share. `existing` are the groups that exist
/// already; their devices that are not among `devices` are ignored.
pub fn top_up(
    devices: &[Device],
    existing: &[Pair],
    groups_per_device: u32,
) -> Result<Vec<Pair>, TooFewServers> {
    let mut table = Table::new(devices, existing, groups_per_device)?;
    let mut edges = Vec::new();
    while let Some(a) = table.neediest() {
        let b = table.partner(a);
        table.join(a, b);
        edges.push((a, b));
    }
    let mut surplus = vec![0i64; devices.len()];
    let place = places(devices);
    for [first, second] in existing {
        place.get(first).into_iter().for_each(|p| surplus[*p] += 1);
        place.get(second).into_iter().for_each(|p| surplus[*p] -= 1);
    }
    orient(&mut edges, surplus);
    Ok(edges.into_iter().map(|(a, b)| [devices[a].id, devices[b].id]).collect())
}

/// The share and the need of each device, and the number of groups of each pair.
struct Table {
    /// The server of each device, as an index.
    server: Vec<usize>,
    /// The devices of each server.
    devices: Vec<Vec<usize>>,
    /// Number of groups that each device should be in.
    share: Vec<u64>,
    /// Number of groups that each device still needs.
    need: Vec<u64>,
    /// The sum of `need` per server.
    server_need: Vec<u64>,
    /// True for devices that needed nothing at the start. They may take more, so that new servers
    /// mesh with old ones.
    settled: Vec<bool>,
    /// True if there are settled devices.
    helped: bool,
    /// Groups beyond their share that settled devices were given.
    extra: Vec<u64>,
    spread: Spread,
}

impl Table {
    fn new(devices: &[Device], existing: &[Pair], per_device: u32) -> Result<Table, TooFewServers> {
        let (server, servers) = servers(devices)?;
        let n = devices.len();
        let share = shares(devices, per_device)?;
        let (mut have, mut spread) = (vec![0u64; n], Spread::new(n));
        let place = places(devices);
        for pair in existing {
            let [a, b] = pair.each_ref().map(|id| place.get(id).copied());
            [a, b].into_iter().flatten().for_each(|p| have[p] += 1);
            if let (Some(a), Some(b)) = (a, b) {
                spread.join(a, b);
            }
        }
        let need: Vec<u64> = share.iter().zip(&have).map(|(s, h)| s.saturating_sub(*h)).collect();
        let mut server_need = vec![0; servers];
        need.iter().zip(&server).for_each(|(n, s)| server_need[*s] += n);
        let settled: Vec<bool> = need.iter().map(|n| *n == 0).collect();
        let helped = settled.contains(&true);
        let mut devices = vec![Vec::new(); servers];
        server.iter().enumerate().for_each(|(d, s)| devices[*s].push(d));
        let extra = vec![0; n];
        Ok(Table { server, devices, share, need, server_need, settled, helped, extra, spread })
    }

    /// Returns the device with the highest need on the server with the highest need. So the last
    /// needs do not end up on one server as long as that can be avoided.
    fn neediest(&self) -> Option<usize> {
        let most = self.server_need.iter().max().filter(|n| **n > 0)?;
        let servers = self.server_need.iter().zip(&self.devices).filter(|(need, _)| *need == most);
        let devices = servers.flat_map(|(_, devices)| devices.iter().copied());
        devices.max_by_key(|d| (self.need[*d], Reverse(*d)))
    }

    /// Returns the best partner for `a`: one of its present partners if either of the two has
    /// enough of them; among those the one with the fewest common groups relative to its share,
    /// then the one with the highest need. There always is one, as there are two servers.
    fn partner(&self, a: usize) -> usize {
        let n = self.need.len();
        let elsewhere = |b: &usize| self.server[*b] != self.server[a];
        let others = || (0..n).filter(elsewhere);
        let open = |b: &usize| self.need[*b] > 0 || self.settled[*b];
        let key = |b: &usize| {
            let pairs = u64::from(self.spread.pairs(a, *b)) + 1;
            let full = u64::from(u32::MAX);
            (
                self.spread.widens(a, *b),
                pairs * full / self.share[*b].max(1),
                Reverse(self.need[*b]),
                self.extra[*b],
                (*b + n - a) % n,
            )
        };
        if let Some(server) = self.unavoidable(a) {
            let devices = self.devices[server].iter().copied().filter(|d| self.need[*d] > 0);
            return devices.min_by_key(key).expect("it lacks something");
        }
        if self.spread.has_enough(a) {
            // All other devices would be new partners.
            let near = self.spread.partners(a).iter().copied().filter(elsewhere).filter(open);
            if let Some(best) = near.min_by_key(key) {
                return best;
            }
        }
        others()
            .filter(open)
            .min_by_key(key)
            .or_else(|| others().min_by_key(|b| (self.extra[*b], key(b))))
            .expect("a device on another server")
    }

    /// Returns the server that has half of the total need and must therefore be in every pair from
    /// now on. `None` if settled devices can help.
    fn unavoidable(&self, a: usize) -> Option<usize> {
        if self.helped {
            return None;
        }
        let total: u64 = self.server_need.iter().sum();
        let half = |s: &usize| 2 * self.server_need[*s] > total.saturating_sub(2);
        let servers = (0..self.server_need.len())
            .filter(|s| *s != self.server[a] && self.server_need[*s] > 0);
        servers.filter(half).max_by_key(|s| (self.server_need[*s], Reverse(*s)))
    }

    fn join(&mut self, a: usize, b: usize) {
        self.spread.join(a, b);
        for d in [a, b] {
            if self.need[d] > 0 {
                self.need[d] -= 1;
                self.server_need[self.server[d]] -= 1;
            } else {
                self.extra[d] += 1;
            }
        }
    }
}

/// Returns the index of each device in the list.
pub(crate) fn places(devices: &[Device]) -> BTreeMap<DeviceId, usize> {
    devices.iter().enumerate().map(|(place, d)| (d.id, place)).collect()
}

/// Returns the server of each device as a number from 0, and the number of servers.
fn servers(devices: &[Device]) -> Result<(Vec<usize>, usize), TooFewServers> {
    let mut servers: Vec<SdsId> = devices.iter().map(|d| d.sds).collect();
    servers.sort_unstable();
    servers.dedup();
    if servers.len() < 2 {
        return Err(TooFewServers { servers: servers.len() });
    }
    let number = |d: &Device| servers.binary_search(&d.sds).expect("collected above");
    Ok((devices.iter().map(number).collect(), servers.len()))
}

/// Returns each device's number of groups: by capacity, `per_device` on average.
fn shares(devices: &[Device], per_device: u32) -> Result<Vec<u64>, TooFewServers> {
    let all = (devices.len() as u64 * u64::from(per_device)) as f64;
    let share = |part: f64| ((all * part + 0.5) as u64).max(u64::from(per_device.min(1)));
    Ok(parts(devices)?.into_iter().map(|part| share(part).min(MAX_REPLICAS)).collect())
}

/// Returns each device's part of everything, by capacity: greater than 0, with a sum of 1. What a
/// server has beyond the sum of all others can't be mirrored and does not count.
pub fn parts(devices: &[Device]) -> Result<Vec<f64>, TooFewServers> {
    let (server, servers) = servers(devices)?;
    let capacity = |d: &Device| u128::from(d.capacity.max(1));
    let mut per_server = vec![0u128; servers];
    devices.iter().zip(&server).for_each(|(d, s)| per_server[*s] += capacity(d));
    let sum: u128 = per_server.iter().sum();
    let counts = |s: usize| per_server[s].min(sum - per_server[s]);
    let counted: u128 = (0..servers).map(counts).sum();
    let part = |(d, s): (&Device, &usize)| {
        // (part of the device in its server) * (part of its server in the counted capacity)
        let whole = per_server[*s] as f64 * counted as f64;
        capacity(d) as f64 * counts(*s) as f64 / whole
    };
    Ok(devices.iter().zip(&server).map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PARTNERS;
    use alloc::collections::BTreeMap;

    fn cluster(servers: u32, per_server: u32) -> Vec<Device> {
        (0..servers * per_server)
            .map(|i| Device {
                id: DeviceId(i + 1),
                sds: SdsId(i / per_server + 1),
                capacity: 1 << 40,
            })
            .collect()
    }

    fn counts(groups: &[Pair]) -> BTreeMap<DeviceId, (u32, u32)> {
        let mut counts = BTreeMap::new();
        for [a, b] in groups {
            counts.entry(*a).or_insert((0, 0)).0 += 1;
            counts.entry(*b).or_insert((0, 0)).1 += 1;
        }
        counts
    }

    fn apart(devices: &[Device], groups: &[Pair]) {
        let sds = |id: DeviceId| devices.iter().find(|d| d.id == id).unwrap().sds;
        assert!(groups.iter().all(|[a, b]| sds(*a) != sds(*b)), "two copies on one server");
    }

    #[test]
    fn equal_devices_get_exactly_their_share_and_half_of_the_primaries() {
        for (servers, per) in
            [(2, 1), (2, 4), (3, 1), (3, 2), (4, 1), (5, 3), (16, 1), (33, 1), (128, 1)]
        {
            for per_device in [4, 16, 256] {
                let devices = cluster(servers, per);
                let groups = plan(&devices, per_device).unwrap();
                apart(&devices, &groups);
                let counts = counts(&groups);
                for d in &devices {
                    let (first, second) = counts[&d.id];
                    let what = format_args!("{servers} x {per}, {per_device}: {first}, {second}")
                        .to_string();
                    if (servers * per * per_device) % 2 == 0 {
                        assert_eq!(first + second, per_device, "{what}");
                    }
                    assert!(first.abs_diff(second) <= 1, "{what}");
                }
            }
        }
    }
    use alloc::string::ToString;

    #[test]
    fn pairs_are_spread_over_all_partners_or_as_many_as_pay() {
        for (servers, per) in [(3, 1), (4, 2), (16, 1), (64, 1), (128, 1)] {
            let devices = cluster(servers, per);
            let mut pairs = BTreeMap::new();
            for [a, b] in plan(&devices, 256).unwrap() {
                *pairs.entry((a.min(b), a.max(b))).or_insert(0u32) += 1;
            }
            let partners = ((servers - 1) * per).min(PARTNERS);
            let all = u64::from(servers * per * partners / 2);
            assert_eq!(pairs.len() as u64, all, "{servers} x {per}");
            let (min, max) = (pairs.values().min().unwrap(), pairs.values().max().unwrap());
            assert!(max - min <= 2, "{servers} x {per}: {min} to {max}");
        }
    }

    #[test]
    fn new_servers_mesh_with_old_ones_and_nothing_moves() {
        let all = cluster(12, 1);
        let old = plan(&all[..10], 64).unwrap();
        let new = top_up(&all, &old, 64).unwrap();
        apart(&all, &new);
        let together: Vec<Pair> = old.iter().chain(&new).copied().collect();
        let counts = counts(&together);
        for d in &all {
            let (first, second) = counts[&d.id];
            assert!((64..=64 + 14).contains(&(first + second)), "{d:?}: {first} + {second}");
            assert!(first.abs_diff(second) <= 1, "{d:?}: {first} and {second}");
        }
        let between = new.iter().filter(|[a, b]| a.0 > 10 && b.0 > 10).count();
        assert!(between < 16, "the two new ones are {between} times each other's partner");
        assert_eq!(top_up(&all, &together, 64), Ok(Vec::new()));
    }

    #[test]
    fn shares_follow_capacity_as_far_as_it_can_be_mirrored() {
        let mut devices = cluster(4, 1);
        devices[0].capacity *= 2;
        let counts1 = counts(&plan(&devices, 100).unwrap());
        assert_eq!(counts1[&DeviceId(1)].0 + counts1[&DeviceId(1)].1, 160);
        assert_eq!(counts1[&DeviceId(2)].0 + counts1[&DeviceId(2)].1, 80);
        devices[0].capacity *= 1000;
        let counts2 = counts(&plan(&devices, 100).unwrap());
        assert_eq!(counts2[&DeviceId(1)].0 + counts2[&DeviceId(1)].1, 200, "half of all copies");
    }

    #[test]
    fn no_device_gets_more_than_it_can_remember() {
        let mut devices = cluster(100, 1);
        devices[0].capacity *= 1000;
        let counts = counts(&plan(&devices, 400).unwrap());
        let of = |id| counts[&DeviceId(id)].0 + counts[&DeviceId(id)].1;
        assert_eq!(u64::from(of(1)), MAX_REPLICAS, "and not half of 40,000");
        assert!((2..=100).all(|id| of(id) > 0));
    }

    #[test]
    fn one_server_is_too_few() {
        assert_eq!(plan(&[], 4), Err(TooFewServers { servers: 0 }));
        assert_eq!(plan(&cluster(1, 3), 4), Err(TooFewServers { servers: 1 }));
    }
}
