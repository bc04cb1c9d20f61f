//! Judges locations: a device stays in its pool; all replicas of a group are always in the same
//! pool; its two permanent replicas are on two servers; a volume's groups are in its pool. This is
//! checked in every map that the MDMs send, and against the plan at the end.

use super::Failure;
use crate::plan::Plan;
use crate::stage::Stage;
use base::{DeviceId, GroupId};
use std::collections::{BTreeMap, BTreeSet};
use wire::control::{GroupInfo, MapPage, VolumeInfo};

/// Locations of devices and groups, as map pages showed them.
#[derive(Default, Debug)]
pub struct Places {
    /// Server and pool of each device.
    devices: BTreeMap<DeviceId, (u32, u32)>,
    /// Pool of each group.
    groups: BTreeMap<GroupId, u32>,
    /// The plan swaps devices between servers.
    swaps: bool,
}

impl Places {
    /// Creates an empty record.
    pub fn new(plan: &Plan) -> Places {
        Places { swaps: plan.swaps(), ..Places::default() }
    }

    /// Returns the pool of a group.
    pub fn pool_of(&self, group: GroupId) -> Option<u32> {
        self.groups.get(&group).copied()
    }

    /// Processes a page that an MDM sent.
    pub fn page(&mut self, page: &MapPage) -> Result<(), Failure> {
        for d in &page.devices {
            let (id, now) = (DeviceId(d.id), (d.sds, d.pool));
            let before = self.devices.insert(id, now).unwrap_or(now);
            if before.1 != now.1 || before.0 != now.0 && !self.swaps {
                let text = format!("{id} goes from (server, pool) {before:?} to {now:?}");
                return Err(Failure::new("pools", text));
            }
        }
        page.groups.iter().try_for_each(|g| self.group(g))?;
        page.volumes.iter().try_for_each(|v| self.volume(v))
    }

    fn group(&mut self, g: &GroupInfo) -> Result<(), Failure> {
        let id = GroupId(g.id);
        let known = |d: &u32| self.devices.get(&DeviceId(*d)).copied();
        let pools: BTreeSet<u32> = g.replicas.iter().filter_map(known).map(|d| d.1).collect();
        let was = self.groups.get(&id);
        if pools.len() > 1 || was.is_some_and(|was| pools.iter().any(|is| is != was)) {
            let text = format!("{id} of pool {was:?} is in {pools:?} now: {g:?}");
            return Err(Failure::new("pools", text));
        }
        let stays = g.replicas.iter().filter(|d| **d != g.leaving);
        let servers: Vec<u32> = stays.filter_map(known).map(|d| d.0).collect();
        if servers.len() == 2 && servers[0] == servers[1] && !self.swaps {
            let text = format!("{id} has both its copies on one server: {g:?}");
            return Err(Failure::new("I3", text));
        }
        self.groups.extend(pools.first().map(|pool| (id, *pool)));
        Ok(())
    }

    fn volume(&self, v: &VolumeInfo) -> Result<(), Failure> {
        let strange = |g: &&u32| self.pool_of(GroupId(**g)).is_some_and(|pool| pool != v.pool);
        match v.slots.iter().find(strange) {
            None => Ok(()),
            Some(g) => {
                let text = format!("{} is of pool {}, and {} is not", v.name, v.pool, GroupId(*g));
                Err(Failure::new("pools", text))
            }
        }
    }
}

/// Checks at the end that all copies of a group are in one pool by the plan, and every volume is in
/// the pool in which it was made.
pub fn check(stage: &Stage) -> Result<(), Failure> {
    let plan = &stage.plan;
    if plan.pools() == 1 {
        return Ok(());
    }
    let servers = (0..plan.sds).filter_map(|i| Some((stage.sds(i)?.id().0, plan.pool(i))));
    let pool: BTreeMap<u32, u8> = servers.collect();
    let pools = |g: &GroupInfo| {
        g.replicas.iter().filter_map(|d| pool.get(d)).copied().collect::<BTreeSet<u8>>()
    };
    for (id, g) in &stage.observer.groups {
        if pools(g).len() > 1 {
            let text = format!("{id} lies in two pools: {:?}", g.replicas);
            return Err(Failure::new("pools", text));
        }
    }
    for (v, volume) in stage.volumes.iter().enumerate() {
        let Some((slots, _)) = volume.id.and_then(|id| stage.observer.volumes.get(&id.0)) else {
            continue;
        };
        let made = plan.volume_pool(v as u8);
        let groups = slots.iter().filter_map(|g| stage.observer.groups.get(&GroupId(*g)));
        if let Some(g) = groups.into_iter().find(|g| pools(g).iter().any(|pool| *pool != made)) {
            let text = format!("volume {v} was made in pool {made}, and lies elsewhere: {g:?}");
            return Err(Failure::new("pools", text));
        }
    }
    Ok(())
}
