//! Judges I8: when faults stop, all groups become active, and then mirrored, in bounded time. If
//! they do not, the failure names the first unmet condition.

use crate::check::i03_mirrors;
use crate::held_out::waits_for;
use crate::plan::Who;
use crate::stage::Stage;
use crate::world::{ProcId, ProcState};
use base::{DeviceId, Epoch, GroupId, UNIT, VolumeId};
use node::mdm::Mdm;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::control::GroupInfo;

impl Stage {
    /// Returns true when nothing is stopped, cut off or about to die, and the MDM has heard every
    /// server since it started. A server that fails now fails alone.
    pub fn is_calm(&self) -> bool {
        let everybody = self.everybody().into_iter();
        // While the logs of all MDMs are lost, servers keep their content without them.
        let lost = self.has_no_mdm();
        let counts = |w: &Who| match w {
            Who::Sdc(_) => false,
            Who::Mdm(_) => !lost,
            Who::Sds(_) | Who::Admin => true,
        };
        let procs: Vec<ProcId> = everybody.filter(counts).map(|w| self.proc(w)).collect();
        self.dying.iter().all(Option::is_none)
            && procs.iter().all(|id| self.world.state(*id) == ProcState::Running)
            && self.world.flows(&procs)
            && (lost || self.mdm().is_some_and(Mdm::hears_all))
    }

    /// Returns true when every group has all its copies in sync and an active primary.
    pub fn is_whole(&self) -> bool {
        self.servers_unmet().or_else(|| self.groups_unmet(false, &BTreeSet::new())).is_none()
    }

    fn servers_unmet(&self) -> Option<String> {
        for i in 0..self.plan.sds {
            let Some(sds) = self.sds(i) else { return Some(format!("sds{i} does not run")) };
            let id = sds.id();
            let known = self.observer.devices.get(&id);
            if sds.ended() {
                return Some(format!("sds{i} has given up"));
            }
            if !known.is_some_and(|d| d.up && d.incarnation == sds.incarnation().0) {
                return Some(format!(
                    "the map does not show sds{i} ({id} {}) as up",
                    sds.incarnation()
                ));
            }
        }
        None
    }

    /// Returns true when the servers lack space for two copies of everything.
    pub fn is_tight(&self) -> bool {
        self.plan.capacity < 2 * self.volumes.iter().map(|v| v.units).sum::<u32>()
    }

    fn is_used(&self, group: GroupId) -> bool {
        self.observer.volumes.values().any(|(slots, _)| slots.contains(&group.0))
    }

    /// Returns a device that is to be removed and is still there. Devices that only keep groups
    /// that are lost or in doubt are excepted, as these can't move.
    fn removals_unmet(&self) -> Option<String> {
        let (groups, doubtful) = (&self.observer.groups, self.doubtful());
        let stays = |id: &GroupId, g: &GroupInfo| g.lost || doubtful.contains(id);
        self.observer.devices.iter().filter(|(_, d)| d.leaves).find_map(|(device, _)| {
            let held: Vec<_> =
                groups.iter().filter(|(_, g)| g.replicas.contains(&device.0)).collect();
            let moves = held.iter().find(|(id, g)| !stays(id, g));
            match moves {
                Some((id, _)) => Some(format!("{device} is not removed, and has {id}")),
                None if held.is_empty() && doubtful.is_empty() => {
                    Some(format!("{device} is not removed"))
                }
                None => None,
            }
        })
    }

    /// Returns a device whose share of the groups does not match its capacity. Groups count by the
    /// units that they may hold; empty groups count by their number.
    fn share_unmet(&self) -> Option<String> {
        let groups = &self.observer.groups;
        let there = || self.observer.devices.iter().filter(|(_, d)| !d.removed);
        let lost = groups.values().any(|g| g.lost) || !self.doubtful().is_empty();
        if self.is_tight() || lost || there().any(|(_, d)| d.leaves) {
            return None;
        }
        let pools: BTreeSet<u32> = there().map(|(_, d)| d.pool).collect();
        pools.into_iter().find_map(|pool| self.share_unmet_in(pool))
    }

    fn share_unmet_in(&self, pool: u32) -> Option<String> {
        let here = |id: &GroupId| self.observer.places.pool_of(*id) == Some(pool);
        let groups: BTreeMap<&GroupId, &GroupInfo> =
            self.observer.groups.iter().filter(|(id, _)| here(id)).collect();
        let devices = self.observer.devices.iter();
        let there = || devices.clone().filter(|(_, d)| !d.removed && d.pool == pool);
        let units = (0..self.plan.sds).filter_map(|i| Some((self.sds(i)?.id(), self.plan.unit(i))));
        let units: BTreeMap<DeviceId, u8> = units.collect();
        let unit = |id: &DeviceId| units.get(id).map_or(1000 + id.0, |unit| u32::from(*unit));
        let mut units: BTreeMap<u32, f64> = BTreeMap::new();
        there().for_each(|(id, d)| *units.entry(unit(id)).or_default() += d.capacity as f64);
        let weights = weights(self.observer.volumes.values());
        let all: f64 = units.values().sum();
        let most = units.values().copied().fold(0.0, f64::max);
        there().find_map(|(id, d)| {
            // No fault unit has more than half of all copies. The others share the rest.
            let own = units[&unit(id)];
            let part = match own {
                _ if most * 2.0 < all => own / all,
                own if own == most => 0.5,
                own => own / (all - most) / 2.0,
            };
            let part = part * d.capacity as f64 / own;
            let off = |what: &str, weigh: &dyn Fn(&GroupId) -> f64| {
                let all: f64 = groups.keys().map(|g| weigh(g)).sum();
                let has = groups.iter().filter(|(_, g)| g.replicas.contains(&id.0));
                let has: f64 = has.map(|(g, _)| weigh(g)).sum();
                let (share, most) =
                    (2.0 * all * part, groups.keys().map(|g| weigh(g)).fold(0.0, f64::max));
                ((has - share).abs() > 2.0 * most + share * 0.05)
                    .then(|| format!("{id} has {has} {what}, and its share is {share:.1}"))
            };
            let empty = |g: &GroupId| f64::from(u8::from(!weights.contains_key(g)));
            off("units", &|g| weights.get(g).map_or(0.0, |units| *units as f64))
                .or_else(|| off("empty groups", &empty))
        })
    }

    /// Returns the first group that is not fully mirrored and active. With `at_last`, three kinds
    /// of groups are excepted: groups in doubt, groups whose loss is excused (and was judged by
    /// R10) or affects no volume, and copies without space. Copies on `held` devices, which get
    /// nothing yet, are always excepted.
    pub fn groups_unmet(&self, at_last: bool, held: &BTreeSet<DeviceId>) -> Option<String> {
        let (groups, doubtful) = (&self.observer.groups, self.doubtful());
        for (id, g) in groups {
            if at_last && doubtful.contains(id) {
                continue;
            }
            if g.lost {
                let excused = self.exposure.excuse.is_some() && self.losses.has(*id);
                if at_last && (excused || !self.is_used(*id)) {
                    continue;
                }
                return Some(format!("{id} is lost"));
            }
            let must_be_whole = !(at_last && self.is_tight());
            let must_be_whole = must_be_whole && !waits_for(g, held);
            if let Some(unmet) = copies_unmet(*id, g).filter(|_| must_be_whole) {
                return Some(unmet);
            }
            if g.primary == 0 {
                return Some(format!("{id} has no primary: {g:?}"));
            }
            if let Some(unmet) = self.primary_unmet(*id, Epoch(g.epoch), g.primary) {
                return Some(unmet);
            }
        }
        None
    }

    fn primary_unmet(&self, group: GroupId, epoch: Epoch, primary: u32) -> Option<String> {
        let Some((who, life)) = self.observer.who_is_active(group, epoch) else {
            return Some(format!("{group}: dev{primary} is not active in {epoch}"));
        };
        if self.world.life(who) != life {
            return Some(format!("{group}: the process that was active in {epoch} is dead"));
        }
        None
    }

    /// Returns the first condition that is unmet before the cluster is healthy; `None`: it is.
    pub fn unmet(&self) -> Option<String> {
        self.unmet_beside(&BTreeSet::new())
    }

    /// Returns the same, without the conditions that wait for `held` devices, which get nothing
    /// yet: copies that they lack, and moves, as nothing is rebalanced while a copy is missing.
    pub fn unmet_beside(&self, held: &BTreeSet<DeviceId>) -> Option<String> {
        for who in self.everybody() {
            if self.world.state(self.proc(who)) != ProcState::Running {
                return Some(format!("{who} does not run"));
            }
        }
        if let Some(unmet) = self.mdms_unmet() {
            return Some(unmet);
        }
        if let Some(order) = self.desk.borrow().orders.front() {
            return Some(format!("the MDM has not carried out {order:?}"));
        }
        if let Some(unmet) = self.unrefused().or_else(|| self.servers_unmet()) {
            return Some(unmet);
        }
        if let Some(unmet) = self.groups_unmet(true, held) {
            return Some(unmet);
        }
        let moves = held.is_empty().then(|| self.moves_unmet()).flatten();
        moves.or_else(|| self.answers_unmet())
    }

    /// Returns data that still has to move from one device to another.
    fn moves_unmet(&self) -> Option<String> {
        // Swapped devices may bring two copies to one server for a while.
        let twins = !self.plan.mates.is_empty() && self.plan.swaps();
        let together = || twins.then(|| i03_mirrors::together(self)).flatten();
        self.removals_unmet().or_else(|| self.share_unmet()).or_else(together)
    }

    /// Returns a volume that the client, by its map, may not use in full yet.
    pub fn volumes_unmet(&self, client: u8) -> Option<String> {
        let map = self.sdc(client)?.map();
        let usable = |id: VolumeId| {
            let known = map.volumes.get(&id).filter(|v| map.my_grant(v).is_some());
            known.map_or(0, |v| v.size)
        };
        let there = self.volumes.iter().filter(|v| !v.doomed);
        let mut ids = there.filter_map(|v| Some((v.id?, u64::from(v.units) * u64::from(UNIT))));
        let (id, size) = ids.find(|(id, size)| usable(*id) < *size)?;
        Some(format!("sdc{client} may use {} bytes of {id}, which has {size}", usable(id)))
    }

    /// Returns what is missing before all MDMs belong to one cluster and one of them leads.
    pub fn mdms_unmet(&self) -> Option<String> {
        for i in 0..self.plan.mdms {
            let Some(mdm) = self.mdm_at(i) else { return Some(format!("mdm{i} does not run")) };
            if let Some(why) = mdm.failed() {
                return Some(format!("mdm{i} has failed: {why}"));
            }
        }
        let Some(leader) = self.mdm() else { return Some("no MDM leads".into()) };
        if !leader.is_settled() {
            return Some("the leading MDM is not settled".into());
        }
        if let Some(order) = self.desk.borrow().orders.front() {
            return Some(format!("the MDM has not carried out {order:?}"));
        }
        let consensus = leader.consensus()?;
        let (voters, applied) = (&consensus.membership().voters, consensus.applied());
        if voters.len() != usize::from(self.plan.mdms)
            || leader.state().members.list.len() != voters.len()
        {
            return Some(format!("{voters:?} vote, of {} MDMs", self.plan.mdms));
        }
        for i in 0..self.plan.mdms {
            let at = self.mdm_at(i)?.consensus().map_or(0, |c| c.applied());
            if at < applied {
                return Some(format!("mdm{i} is at entry {at} of {applied}"));
            }
        }
        None
    }

    /// Returns the first unanswered request of a client.
    pub fn answers_unmet(&self) -> Option<String> {
        // Requests to a group in doubt are not answered, nor requests that wait behind them.
        let doubt = !self.scanning && !self.doubtful().is_empty();
        for i in (0..self.plan.clients).filter(|_| !doubt) {
            let withdrawn = self.programs[i as usize].withdrawn();
            if self.outstanding[i as usize] > 0 || withdrawn > 0 {
                let lives = self.world.life(self.proc(Who::Sdc(i)));
                let waits = |r: &&crate::history::Record| {
                    r.client == i && r.life == lives && r.answer.is_none() && !r.left
                };
                let first = self.history.ops.iter().find(waits);
                let first = first.map(ToString::to_string).unwrap_or_default();
                return Some(format!(
                    "sdc{i} waits for {} answers, and for {withdrawn} that nobody wants; first: {first}",
                    self.outstanding[i as usize]
                ));
            }
        }
        None
    }

    /// Returns true for a device of the outcast.
    pub fn is_out(&self, device: u32) -> bool {
        self.outcasts.values().any(|out| *out == device)
    }

    /// Returns true when the copies of the outcast are to be rebuilt in at least one pool.
    pub fn rebuilds(&self) -> bool {
        (0..self.plan.sds).any(|i| self.rebuilds_in(self.plan.pool(i)))
    }

    /// Returns true when they are to be rebuilt in this pool, as two fault units of it are left.
    pub fn rebuilds_in(&self, pool: u8) -> bool {
        let plan = &self.plan;
        let here =
            (0..plan.sds).filter(|i| plan.pool(*i) == pool && !self.outcasts.contains_key(i));
        let units: BTreeSet<u8> = here.map(|i| plan.unit(i)).collect();
        // A device that is to be removed takes no copies, and a loss may block its removal.
        let all = !self.observer.devices.values().any(|d| d.leaves);
        all && units.len() > 1
            && !self.is_tight()
            && self.plan.limits.rebuild_after < Duration::from_secs(10)
    }

    /// Returns true when this group's lost copy is to be rebuilt.
    fn comes_anew(&self, group: GroupId) -> bool {
        // The MDM numbers pools in the order of their creation.
        let pool = self.observer.places.pool_of(group).unwrap_or_default() as u8;
        self.rebuilds_in(if self.plan.pools() == 1 { 0 } else { pool })
    }

    /// Returns true when the others must notice that this server is slow: by its disk, if that gets
    /// work, or by at least two servers that need its leases.
    pub fn can_be_found_slow(&self, i: u8, disk: bool) -> bool {
        let Some(sds) = self.sds(i) else { return false };
        let device = sds.id().0;
        let held = self.observer.groups.iter().filter(|(_, g)| g.replicas.contains(&device));
        let ids: BTreeSet<GroupId> = held.clone().map(|(id, _)| *id).collect();
        let there = self.volumes.iter().filter(|v| !v.doomed);
        let used = there.filter_map(|v| Some((sds.map().volumes.get(&v.id?)?, v.units))).any(
            |(volume, units)| {
                (0..units).any(|u| volume.group_of(u).is_some_and(|g| ids.contains(&g)))
            },
        );
        let leaders: BTreeSet<u32> =
            held.map(|(_, g)| g.primary).filter(|p| *p != device && *p != 0).collect();
        self.rebuilds() && if disk { used } else { leaders.len() > 1 }
    }

    /// Returns true when the others must notice that they don't reach these devices: each
    /// shares groups with at least two other servers. Lost groups don't count, as nobody
    /// watches their replicas.
    pub fn can_be_found_cut_off(&self, away: &[u8]) -> bool {
        let servers = (0..self.plan.sds).filter(|j| !away.contains(j));
        let servers: BTreeMap<u32, u8> =
            servers.filter_map(|j| Some((self.sds(j)?.id().0, self.plan.server(j)))).collect();
        away.iter().all(|i| {
            let Some(device) = self.sds(*i).map(|sds| sds.id().0) else { return false };
            let live = self.observer.groups.values().filter(|g| !g.lost);
            let shared = live.filter(|g| g.replicas.contains(&device));
            let others: BTreeSet<u8> =
                shared.flat_map(|g| &g.replicas).filter_map(|d| servers.get(d).copied()).collect();
            others.len() > 1
        })
    }

    /// Returns the first group of the outcast that does not have two copies again.
    pub fn copies_unmet_without(&self) -> Option<String> {
        if self.outcasts.is_empty() {
            return None;
        }
        let meant = |(id, g): &(&GroupId, &GroupInfo)| !g.lost && self.comes_anew(**id);
        self.observer.groups.iter().filter(meant).find_map(|(id, g)| {
            let counts = g.in_sync.iter().find(|d| self.is_out(**d));
            let counts = counts.map(|d| format!("{id} still counts on dev{d}: {g:?}"));
            counts.or_else(|| copies_unmet(*id, g))
        })
    }

    /// Returns the first group that is not served without the outcast, or not with two copies again
    /// if there are servers for that.
    pub fn unmet_without(&self, outcast: u8) -> Option<String> {
        if self.outcasts.is_empty() {
            return None;
        }
        for (id, g) in &self.observer.groups {
            if g.lost || (self.is_tight() && g.in_sync.len() == 1 && self.is_out(g.in_sync[0])) {
                continue;
            }
            if g.primary == 0 || self.is_out(g.primary) {
                return Some(format!("{id} is not served without sds{outcast}: {g:?}"));
            }
            if let Some(unmet) = self.primary_unmet(*id, Epoch(g.epoch), g.primary) {
                return Some(unmet);
            }
            let anew = self.comes_anew(*id);
            if let Some(d) = g.in_sync.iter().find(|d| anew && self.is_out(**d)) {
                return Some(format!("{id} still counts on dev{d}: {g:?}"));
            }
            if let Some(unmet) = copies_unmet(*id, g).filter(|_| anew) {
                return Some(unmet);
            }
        }
        if self.is_tight() {
            return None;
        }
        self.answers_unmet()
    }
}

/// Returns how many units each group may come to hold: a volume's units are spread evenly
/// over its groups, and rounded up, as a volume with fewer units than groups may have one
/// unit in any of them.
fn weights<'a>(volumes: impl Iterator<Item = &'a (Vec<u32>, u64)>) -> BTreeMap<GroupId, u64> {
    let mut units: BTreeMap<GroupId, u64> = BTreeMap::new();
    for (slots, size) in volumes {
        let each = (size / u64::from(UNIT)).div_ceil(slots.len() as u64);
        slots.iter().for_each(|g| *units.entry(GroupId(*g)).or_default() += each);
    }
    units
}

/// Returns what a group lacks before it has its two copies and no replica comes or goes.
fn copies_unmet(id: GroupId, g: &GroupInfo) -> Option<String> {
    if g.in_sync.len() < g.replicas.len() {
        return Some(format!("{id} lacks a copy: {g:?}"));
    }
    if !g.joiners.is_empty() {
        return Some(format!("{id} has a joiner: {g:?}"));
    }
    (g.leaving != 0).then(|| format!("dev{} has not left {id}: {g:?}", g.leaving))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;
    use crate::trace::Sink;

    #[test]
    fn a_loss_is_excused_only_where_it_was_judged() {
        let text = "gabion-plan 1\nsds 2\nclients 1\nvolume 1\ndurable 1\ncapacity 8\ndepth 4\n\
                    length 1.0\n";
        let mut stage = Stage::new(&text.parse().unwrap(), Sink::Off);
        run::set_up(&mut stage).unwrap();
        let used = |id: &GroupId| stage.is_used(*id);
        let id = *stage.observer.groups.keys().find(|id| used(id)).expect("the volume has one");
        stage.exposure.excuse = Some("another server was wiped in rough weather".into());
        stage.observer.groups.get_mut(&id).expect("just seen").lost = true;
        let unmet = |stage: &Stage| {
            let unmet = stage.groups_unmet(true, &BTreeSet::new());
            unmet.is_some_and(|text| text == format!("{id} is lost"))
        };
        assert!(unmet(&stage), "no device of it was emptied");
        let mut lost = stage.observer.groups[&id].clone();
        (lost.epoch, lost.in_sync) = (lost.epoch + 1, Vec::new());
        let now = stage.world.steps();
        lost.replicas.iter().for_each(|d| stage.losses.emptied(DeviceId(*d), now));
        stage.losses.group(&lost, now + 1).unwrap();
        assert!(!unmet(&stage));
    }

    #[test]
    fn a_small_volume_weighs_a_whole_unit_in_each_of_its_groups() {
        let unit = u64::from(UNIT);
        let volumes =
            [(vec![1, 2, 3, 4], 2 * unit), (vec![4, 5], 3 * unit), (vec![5, 6], 8 * unit)];
        let weights: Vec<u64> = weights(volumes.iter()).into_values().collect();
        assert_eq!(weights, [1, 1, 1, 1 + 2, 2 + 4, 4]);
    }
}
