//! Which groups a volume's units go to.
//!
//! Invariants: no group twice; `min(width, groups)` of them; each preferred primary as often as any
//! other as far as its groups reach, and partners evenly; neighbouring slots have different primaries,
//! so that a sequential stream uses all servers. Each volume starts elsewhere.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{DeviceId, GroupId, VolumeId};

/// A group that may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Which.
    pub group: GroupId,
    /// Its preferred primary and the other replica.
    pub replicas: [DeviceId; 2],
}

/// Chooses groups for a volume.
pub fn choose_slots(volume: VolumeId, groups: &[Choice], width: usize) -> Vec<GroupId> {
    let mut led: BTreeMap<DeviceId, Vec<Choice>> = BTreeMap::new();
    groups.iter().for_each(|c| led.entry(c.replicas[0]).or_default().push(*c));
    let mut leaders: Vec<(DeviceId, Vec<Choice>)> = led.into_iter().collect();
    let turn = volume.0 as usize;
    for (_, of) in &mut leaders {
        of.sort_unstable_by_key(|c| c.group);
        let by = turn % of.len();
        of.rotate_left(by);
    }
    if !leaders.is_empty() {
        let by = turn % leaders.len();
        leaders.rotate_left(by);
    }
    let mut used: BTreeMap<DeviceId, u32> = BTreeMap::new();
    let mut slots = Vec::new();
    while slots.len() < width && leaders.iter().any(|(_, of)| !of.is_empty()) {
        for (_, of) in &mut leaders {
            let best = of.iter().enumerate().min_by_key(|(i, c)| (used.get(&c.replicas[1]), *i));
            let Some(best) = best.map(|(i, _)| i).filter(|_| slots.len() < width) else { continue };
            let choice = of.remove(best);
            *used.entry(choice.replicas[1]).or_default() += 1;
            slots.push(choice.group);
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, plan};
    use alloc::collections::BTreeSet;
    use base::SdsId;

    fn choices(servers: u32, per_device: u32) -> Vec<Choice> {
        let devices: Vec<Device> = (1..=servers)
            .map(|i| Device { id: DeviceId(i), sds: SdsId(i), capacity: 1 << 30 })
            .collect();
        let pairs = plan(&devices, per_device).unwrap();
        let number = |(i, replicas)| Choice { group: GroupId(i as u32 + 1), replicas };
        pairs.into_iter().enumerate().map(number).collect()
    }

    #[test]
    fn volumes_use_all_devices_evenly() {
        for (servers, per_device, width) in
            [(3, 256, 512), (16, 256, 512), (128, 256, 512), (5, 4, 4)]
        {
            let groups = choices(servers, per_device);
            for volume in 1..=3 {
                let slots = choose_slots(VolumeId(volume), &groups, width);
                assert_eq!(slots.len(), width.min(groups.len()));
                assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), slots.len());
                let of = |id: &GroupId| groups.iter().find(|c| c.group == *id).unwrap().replicas;
                for role in 0..2 {
                    let mut count: BTreeMap<DeviceId, usize> = BTreeMap::new();
                    slots.iter().for_each(|s| *count.entry(of(s)[role]).or_default() += 1);
                    let even = slots.len().div_ceil(servers as usize);
                    let most = count.values().max().unwrap();
                    assert!(*most <= even + 1 + role, "{servers}: {most} of {even} in role {role}");
                }
            }
        }
    }

    #[test]
    fn volumes_begin_on_different_groups() {
        let groups = choices(4, 16);
        let first: BTreeSet<_> =
            (1..=8).map(|v| choose_slots(VolumeId(v), &groups, 4)[0]).collect();
        assert!(first.len() >= 4, "{first:?}");
        assert!(choose_slots(VolumeId(1), &[], 4).is_empty());
    }
}
