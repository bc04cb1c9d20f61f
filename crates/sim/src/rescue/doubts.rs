//! Judges groups that a recovery leaves in doubt: they wait for the operator only if nothing else
//! is possible.

use super::{Phase, has_other};
use crate::check::Failure;
use crate::check::doubt::{self, Copy};
use crate::plan::Who;
use crate::stage::Stage;
use base::{DeviceId, GroupId};
use mdm::group::{Doubt, Group};
use mdm::recovery::JUMP;
use node::sds::Sds;
use seam::UnitStore;
use std::collections::BTreeSet;
use wire::control::{GroupInfo, Intent};

impl Stage {
    fn in_doubt(&self) -> impl Iterator<Item = (&GroupId, &Group)> {
        let over = self.rescue.phase == Phase::Over;
        let groups = over.then(|| self.mdm()).flatten().into_iter().flat_map(|m| &m.state().groups);
        groups.filter(|(_, g)| g.doubt != Doubt::None)
    }

    /// Returns the groups that a recovery has left in doubt: it is unknown which replica has every
    /// acknowledged write.
    pub(crate) fn doubtful(&self) -> BTreeSet<GroupId> {
        self.in_doubt().map(|(id, _)| *id).collect()
    }

    /// Checks that groups in doubt wait for the operator only if nothing else is possible.
    pub(crate) fn judge_doubts(&self) -> Result<(), Failure> {
        // Of a group that an earlier recovery left in doubt nobody knows what happened meanwhile.
        let new = |(id, _): &(&GroupId, &Group)| !self.rescue.doubted.contains(id);
        for (id, group) in self.in_doubt().filter(new) {
            let what = match () {
                () if !self.may_doubt() => "all servers ran",
                () if group.doubt == Doubt::Reports && self.is_known(*id, group) => {
                    "who has everything is known"
                }
                () => continue,
            };
            let copies = self.copies(*id);
            let text = format!("{what}, and {id} is in doubt: {group:?}. Devices have {copies:?}");
            return Err(Failure::new("recovery", text));
        }
        Ok(())
    }

    /// Returns true when a server's device has another content than the log that the recovery began
    /// with knows. What it had before may have been more.
    fn was_emptied(&self, i: u8) -> bool {
        let own = self.identity(i);
        own.is_some_and(|own| has_other(&self.rescue.stores, own.device, own.uuid[0]))
    }

    /// Returns true when the devices' records show which replica has every acknowledged write.
    fn is_known(&self, id: GroupId, group: &Group) -> bool {
        let servers = || (0..self.plan.sds).filter_map(|i| self.sds(i));
        let devices: BTreeSet<DeviceId> =
            servers().filter(|s| s.device().is_some()).map(Sds::id).collect();
        let state = self.mdm().map(|m| &m.state().devices);
        let mut there = state.into_iter().flatten().filter(|(_, d)| d.intent != Intent::Removed);
        let emptied = self.rescue.emptied || (0..self.plan.sds).any(|i| self.was_emptied(i));
        if emptied || there.any(|(id, _)| !devices.contains(id)) {
            return false;
        }
        let copies = self.copies(id);
        let published = self.observer.groups.get(&id).map_or(&[][..], |g| &g.in_sync);
        let in_sync = group.in_sync.iter().map(|d| d.0).chain(published.iter().copied());
        let in_sync = in_sync.collect::<Vec<u32>>();
        doubt::is_known(&copies, &in_sync)
    }

    /// Returns true when a group is published as lost after a recovery, and no data is lost with
    /// it. Either the log has it as lost, and no device took part in later epochs, so decisions
    /// since then have no effect. Or the group was in doubt, and its last volume was deleted.
    pub(crate) fn loses_nothing(&self, info: &GroupInfo) -> bool {
        let id = GroupId(info.id);
        let (true, Some(epoch)) = (info.lost, info.epoch.checked_sub(JUMP)) else { return false };
        let volumes = self.mdm().into_iter().flat_map(|m| m.state().volumes.values());
        let again = self.rescue.lost_groups.contains(&id);
        again && self.copies(id).iter().all(|c| c.acted <= epoch)
            || !volumes.flat_map(|v| &v.slots).any(|g| *g == id)
    }

    /// Returns what devices remember of this group.
    pub(super) fn copies(&self, id: GroupId) -> Vec<Copy> {
        let devices =
            (0..self.plan.sds).filter_map(|i| Some((self.device_of(i)?, self.sds(i)?.device()?)));
        let copies = devices.flat_map(|(device, content)| {
            let records = content.records().into_iter().filter(|(group, _)| *group == id);
            records.map(move |(_, r)| Copy {
                device: device.0,
                acted: r.acted.0,
                joiner: r.joiner,
                base: r.base.0,
            })
        });
        copies.collect()
    }

    /// Returns true when a group may be in doubt: a server was down since the loss, or had no map
    /// yet at the loss. Then its map and its memory are lost.
    fn may_doubt(&self) -> bool {
        let same = |(i, life): (usize, &Option<u32>)| {
            *life == Some(self.world.life(self.proc(Who::Sds(i as u8))))
        };
        self.rescue.emptied || !self.rescue.lives.iter().enumerate().all(same)
    }
}
