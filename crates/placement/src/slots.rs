//! Chooses the groups that a volume's units go to.
//!
//! Invariants: no group occurs twice; there are `min(width, groups)` of them. Each device is
//! preferred primary, and partner, as often as its part of the capacity says, as far as its groups
//! allow. Any two devices share about as many groups as any other two, so that all others rebuild
//! the copies of a lost one. Neighbouring slots have different primaries, so that a sequential
//! stream uses all servers. If there are more devices than slots, volumes use different devices.

use crate::groups::{Device, TooFewServers, parts, places};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, VolumeId, prng};

/// A group that may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The group.
    pub group: GroupId,
    /// Its preferred primary, then the other replica.
    pub replicas: [DeviceId; 2],
}

/// Chooses groups for a volume. Groups of devices that are not among `devices` come last.
pub fn choose_slots(
    volume: VolumeId,
    devices: &[Device],
    groups: &[Choice],
    width: usize,
) -> Result<Vec<GroupId>, TooFewServers> {
    let (parts, place) = (parts(devices)?, places(devices));
    let part = |d: DeviceId| place.get(&d).map_or(1e-9, |p| parts[*p]);
    // Time of a device's next turn: its turns are at regular intervals, with a random start.
    let due = |turns: u32, d: DeviceId, salt: u64| {
        let begin = prng::mix(u64::from(volume.0) << 32 | u64::from(d.0) ^ salt) >> 11;
        (f64::from(turns) + begin as f64 / (1u64 << 53) as f64) / part(d)
    };
    let mut led: BTreeMap<DeviceId, (u32, Vec<Choice>)> = BTreeMap::new();
    groups.iter().for_each(|c| led.entry(c.replicas[0]).or_default().1.push(*c));
    for (_, of) in led.values_mut() {
        of.sort_unstable_by_key(|c| c.group);
        let by = volume.0 as usize % of.len();
        of.rotate_left(by);
    }
    let mut used: BTreeMap<DeviceId, u32> = BTreeMap::new();
    let mut shared: BTreeMap<[DeviceId; 2], u32> = BTreeMap::new();
    let mut slots = Vec::new();
    while slots.len() < width {
        let last = slots.last().map(|c: &Choice| c.replicas[0]);
        let next = |(d, (turns, _)): &(&DeviceId, &mut (u32, Vec<Choice>))| {
            let again = f64::from(u8::from(last == Some(**d))) * 1e18;
            due(*turns, **d, 0) + again
        };
        let open = led.iter_mut().filter(|(_, (_, of))| !of.is_empty());
        let Some((leader, (turns, of))) = open.min_by(|a, b| next(a).total_cmp(&next(b))) else {
            break;
        };
        // The partner is chosen by the number of groups that it shares with the primary. If
        // partners took turns as primaries do, the same two would always meet.
        let often = |c: &Choice| {
            let turns = shared.get(&pair(c)).copied().unwrap_or(0);
            due(turns, c.replicas[1], prng::mix(u64::from(leader.0)))
        };
        let best = of.iter().enumerate().min_by(|(_, a), (_, b)| often(a).total_cmp(&often(b)));
        let choice = of.remove(best.map(|(i, _)| i).expect("it leads some"));
        *turns += 1;
        *shared.entry(pair(&choice)).or_default() += 1;
        for device in [*leader, choice.replicas[1]] {
            *used.entry(device).or_default() += 1;
        }
        slots.push(choice);
    }
    let mut spare: BTreeMap<DeviceId, Vec<Choice>> =
        led.into_iter().map(|(leader, (_, of))| (leader, of)).collect();
    while exchange(&mut slots, &mut spare, &mut used, &mut shared, &part) {}
    Ok(slots.into_iter().map(|c| c.group).collect())
}

/// Returns the two devices that share a group, regardless of which is primary.
fn pair(choice: &Choice) -> [DeviceId; 2] {
    let [a, b] = choice.replicas;
    [a.min(b), a.max(b)]
}

/// Replaces groups by others with the same primary where the other partner has less relative to its
/// part. Returns false if there are none. The first partners were chosen before it was known how
/// often each device would lead.
fn exchange(
    slots: &mut [Choice],
    spare: &mut BTreeMap<DeviceId, Vec<Choice>>,
    used: &mut BTreeMap<DeviceId, u32>,
    shared: &mut BTreeMap<[DeviceId; 2], u32>,
    part: &impl Fn(DeviceId) -> f64,
) -> bool {
    let mut any = false;
    for slot in slots {
        let [leader, partner] = slot.replicas;
        let load =
            |d: DeviceId, more: u32| f64::from(used.get(&d).copied().unwrap_or(0) + more) / part(d);
        let Some(of) = spare.get_mut(&leader) else { continue };
        let least = of.iter_mut().min_by(|a, b| {
            let by_shared = || shared.get(&pair(a)).cmp(&shared.get(&pair(b)));
            load(a.replicas[1], 1).total_cmp(&load(b.replicas[1], 1)).then_with(by_shared)
        });
        let Some(other) = least.filter(|c| load(c.replicas[1], 1) < load(partner, 0) * 0.999_999)
        else {
            continue;
        };
        *shared.entry(pair(slot)).or_default() -= 1;
        *shared.entry(pair(other)).or_default() += 1;
        *used.entry(partner).or_default() -= 1;
        *used.entry(other.replicas[1]).or_default() += 1;
        core::mem::swap(slot, other);
        any = true;
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use alloc::collections::BTreeSet;
    use base::SdsId;

    /// Returns servers with one device each; `size` gives the capacity in GiB by device number.
    fn cluster(servers: u32, size: impl Fn(u32) -> u64) -> Vec<Device> {
        let device = |i| Device { id: DeviceId(i), sds: SdsId(i), capacity: size(i) << 30 };
        (1..=servers).map(device).collect()
    }

    fn choices(devices: &[Device], per_device: u32) -> Vec<Choice> {
        let pairs = plan(devices, per_device).unwrap();
        let number = |(i, replicas)| Choice { group: GroupId(i as u32 + 1), replicas };
        pairs.into_iter().enumerate().map(number).collect()
    }

    /// Returns how often each device leads, and how often it has a copy.
    fn counts(groups: &[Choice], slots: &[GroupId]) -> BTreeMap<DeviceId, (f64, f64)> {
        let mut counts: BTreeMap<DeviceId, (f64, f64)> = BTreeMap::new();
        for slot in slots {
            let [a, b] = groups[slot.0 as usize - 1].replicas;
            counts.entry(a).or_default().0 += 1.0;
            [a, b].iter().for_each(|d| counts.entry(*d).or_default().1 += 1.0);
        }
        counts
    }

    #[test]
    fn volumes_use_all_devices_by_their_capacity() {
        for (servers, per_device, width) in
            [(3, 256, 512), (16, 256, 512), (128, 256, 512), (5, 4, 4), (9, 256, 512)]
        {
            for devices in [cluster(servers, |_| 4), cluster(servers, |i| 1 + u64::from(i % 4))] {
                let groups = choices(&devices, per_device);
                let sum: u64 = devices.iter().map(|d| d.capacity).sum();
                for volume in 1..=3 {
                    let slots = choose_slots(VolumeId(volume), &devices, &groups, width).unwrap();
                    assert_eq!(slots.len(), width.min(groups.len()));
                    assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), slots.len());
                    let counts = counts(&groups, &slots);
                    for d in &devices {
                        let (led, all) = counts.get(&d.id).copied().unwrap_or_default();
                        let share = 2.0 * slots.len() as f64 * d.capacity as f64 / sum as f64;
                        let near = |is: f64, ought: f64| (is - ought).abs() <= 1.5 + 0.03 * ought;
                        let what = (servers, d.id, led, all, share);
                        assert!(near(led, share / 2.0) && near(all, share), "{what:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn all_others_share_what_a_device_has_of_a_volume() {
        for (servers, per_device) in [(4, 256), (8, 256), (16, 256), (16, 128), (12, 100)] {
            let devices = cluster(servers, |_| 4);
            let groups = choices(&devices, per_device);
            for volume in 1..=3 {
                let slots = choose_slots(VolumeId(volume), &devices, &groups, 512).unwrap();
                let mut shared: BTreeMap<[DeviceId; 2], u32> = BTreeMap::new();
                let chosen = slots.iter().map(|slot| &groups[slot.0 as usize - 1]);
                chosen.for_each(|c| *shared.entry(pair(c)).or_default() += 1);
                let pairs = servers * (servers - 1) / 2;
                let (even, most) = (slots.len() as u32 / pairs, shared.values().max().unwrap());
                assert_eq!(shared.len() as u32, pairs);
                assert!(*most <= even + 2 + even / 10, "{servers}: {most} of {even}");
            }
        }
    }

    #[test]
    fn with_more_devices_than_slots_many_volumes_use_them_by_capacity() {
        let devices = cluster(64, |i| 1 + u64::from(i % 4));
        let groups = choices(&devices, 64);
        let slots = (1..=1024).map(|v| choose_slots(VolumeId(v), &devices, &groups, 16).unwrap());
        let slots = slots.collect::<Vec<_>>().concat();
        for d in &devices {
            let (led, _) = counts(&groups, &slots)[&d.id];
            let share = slots.len() as f64 * (d.capacity >> 30) as f64 / 160.0;
            assert!((led / share - 1.0).abs() < 0.3, "{}: {led} of {share}", d.id);
        }
    }

    #[test]
    fn neighbouring_slots_have_different_primaries() {
        let devices = cluster(5, u64::from);
        let groups = choices(&devices, 64);
        let slots = choose_slots(VolumeId(1), &devices, &groups, 64).unwrap();
        let first = |slot: &GroupId| groups[slot.0 as usize - 1].replicas[0];
        assert!(slots.windows(2).all(|two| first(&two[0]) != first(&two[1])));
    }

    #[test]
    fn volumes_begin_on_different_groups() {
        let devices = cluster(4, |_| 1);
        let groups = choices(&devices, 16);
        let first: BTreeSet<_> =
            (1..=8).map(|v| choose_slots(VolumeId(v), &devices, &groups, 4).unwrap()[0]).collect();
        assert!(first.len() >= 4, "{first:?}");
        assert_eq!(choose_slots(VolumeId(1), &devices, &[], 4), Ok(Vec::new()));
    }
}
