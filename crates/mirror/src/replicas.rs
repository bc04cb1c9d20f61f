//! All replicas of one shard, and reports about them: to the owner, to an MDM, and to the judges of
//! the simulator.
//!
//! Invariant: a group has one replica here, or none. One that has left its group stays, because it
//! knows in which epoch it acted (R2).

use crate::evidence::Evidence;
use crate::lock::Range;
use crate::members::GroupConfig;
use crate::op::{Op, Work};
use crate::ops::Ops;
use crate::pace::Purpose;
use crate::replica::{Primary, Replica, Role};
use crate::secondary::Secondary;
use crate::sync::Sync;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, Epoch, GroupId, IdMap, Incarnation, Limits, Mutant, SdcId, VolumeId, mutant};
use seam::ReplicaRecord;
use wire::Status;

/// The state of a group at this device, for status, tests and the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The group.
    pub group: GroupId,
    /// The configuration in force at this device.
    pub config: GroupConfig,
    /// This device is the primary.
    pub primary: bool,
    /// This device is the primary and serves.
    pub active: bool,
    /// Bytes of the dirty set, without what is in flight.
    pub dirty_bytes: u64,
    /// Bytes that a running sync still has to copy.
    pub todo_bytes: u64,
}

/// The blocks that replicas lack, as far as this device knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resync {
    /// Bytes that the syncs of this device, as the primary, still have to copy.
    pub remaining: u64,
    /// Groups whose content on this device was never equal to another replica's, in order.
    pub partial: Vec<GroupId>,
}

/// The replicas of a shard, by group.
#[derive(Debug)]
pub struct Replicas {
    me: DeviceId,
    by_group: IdMap<GroupId, Replica>,
}

impl Replicas {
    /// Creates the replicas of the device `me`.
    pub(crate) fn new(
        me: DeviceId,
        replicas: impl Iterator<Item = (GroupId, Replica)>,
    ) -> Replicas {
        Replicas { me, by_group: replicas.collect() }
    }

    #[inline]
    pub(crate) fn get(&self, group: GroupId) -> Option<&Replica> {
        self.by_group.get(group)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, group: GroupId) -> Option<&mut Replica> {
        self.by_group.get_mut(group)
    }

    /// Returns the replica of a group that has one here.
    #[inline]
    pub(crate) fn of(&self, group: GroupId) -> &Replica {
        self.by_group.get(group).expect("the group has a replica here")
    }

    /// Returns the replica of a group, which is new if there was none.
    pub(crate) fn get_or_new(&mut self, group: GroupId) -> &mut Replica {
        self.by_group.get_or_insert_with(group, || Replica::new(ReplicaRecord::default()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (GroupId, &Replica)> {
        self.by_group.iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Replica> {
        self.by_group.values()
    }

    // ---- roles ----

    /// Returns the state of this device as the primary of a group.
    #[inline]
    pub(crate) fn primary_mut(&mut self, group: GroupId) -> Option<&mut Primary> {
        self.by_group.get_mut(group)?.primary()
    }

    /// Returns the state of this device as a secondary or joiner of a group.
    #[inline]
    pub(crate) fn secondary_mut(&mut self, group: GroupId) -> Option<&mut Secondary> {
        self.by_group.get_mut(group)?.secondary()
    }

    /// Returns the sync that this device does as the primary of a group.
    #[inline]
    pub(crate) fn sync_mut(&mut self, group: GroupId) -> Option<&mut Sync> {
        self.primary_mut(group)?.sync.as_mut()
    }

    /// Returns the epoch of a group that is in force here; 0 if it has no replica here.
    #[inline]
    pub(crate) fn epoch_of(&self, group: GroupId) -> Epoch {
        self.get(group).map_or(Epoch(0), |r| r.config.epoch)
    }

    /// Checks that a frame comes from the primary of the present epoch. If not, returns the status
    /// to answer.
    pub(crate) fn check_leader(
        &self,
        from: DeviceId,
        group: GroupId,
        got: Epoch,
    ) -> Result<(), Status> {
        let Some(replica) = self.get(group) else { return Err(Status::Behind) };
        let have = replica.newest().epoch;
        match &replica.role {
            _ if got < have => Err(Status::Stale),
            Role::Secondary(s) if got == have && s.follows(from) && replica.next.is_none() => {
                Ok(())
            }
            _ => Err(Status::Behind),
        }
    }

    /// Returns true if the configuration in which this operation began has ended.
    pub(crate) fn has_config_ended(&self, op: Option<&Op>) -> bool {
        let op = op.expect("the caller has it");
        let changing = self.get(op.group).is_none_or(|r| r.next.is_some());
        op.is_orphan() || (matches!(op.work, Work::Whole { .. }) && changing)
    }

    /// Returns the groups of which this device is the primary, in order.
    pub(crate) fn led(&self) -> Vec<GroupId> {
        let leads = |r: &Replica| matches!(r.role, Role::Primary(_));
        let mut led: Vec<GroupId> = self.iter().filter(|(_, r)| leads(r)).map(|(g, _)| g).collect();
        led.sort_unstable();
        led
    }

    /// Returns the devices whose leases or answers this device needs as a primary, and the other
    /// replicas of its groups, which should come back.
    pub fn wanted(&self) -> (BTreeSet<DeviceId>, BTreeSet<DeviceId>) {
        let (mut needed, mut out_of_sync) = (BTreeSet::new(), BTreeSet::new());
        let configs = self.values().map(Replica::newest);
        for config in configs.filter(|c| c.primary == Some(self.me)) {
            for device in config.replicas.iter().filter(|d| **d != self.me) {
                let member = config.in_sync.contains(device) || config.joiners.contains(device);
                (if member { &mut needed } else { &mut out_of_sync }).insert(*device);
            }
        }
        (needed, out_of_sync)
    }

    /// Returns the purpose of the copies of a group's sync, or `None` while its stream is full:
    /// finished copies stay in the stream until the oldest write is done.
    pub(crate) fn turn_to_copy(&self, group: GroupId, limits: &Limits) -> Option<Purpose> {
        let replica = self.get(group);
        let has_room = match replica.map(|r| &r.role) {
            Some(Role::Primary(primary)) => primary.has_room(limits),
            _ => true,
        };
        has_room.then(|| replica.map_or(Purpose::Settle, Replica::purpose))
    }

    // ---- operations ----

    /// Requests the operation's range lock. The operation can start when it has the lock.
    #[inline]
    pub(crate) fn queue(&mut self, ops: &mut Ops, key: u64) {
        let op = ops.get(key).expect("queued operations live");
        let mutant = match op.work {
            _ if op.shares() => Some(Mutant::ReadInFlight),
            Work::Copy(_) => Some(Mutant::CopyUnlocked),
            Work::Compare(_) => Some(Mutant::CompareUnlocked),
            _ => None,
        };
        let range = Range::new(op.unit, op.at, op.len, !op.shares());
        let replica = self.get_mut(op.group).expect("the operation's replica is here");
        if mutant.is_some_and(mutant::on) || replica.locks.lock(key, range) {
            ops.can_start(key);
        }
    }

    /// Frees the operation's range: operations that wait for it can start.
    #[inline]
    pub(crate) fn unlock(&mut self, ops: &mut Ops, group: GroupId, key: u64) {
        if let Some(replica) = self.get_mut(group) {
            replica.locks.unlock(key, |op| ops.can_start(op));
        }
    }

    /// Blocks an operation that has its range lock, until it has a lease or room, or a seal ends.
    pub(crate) fn block(&mut self, ops: &mut Ops, group: GroupId, key: u64) {
        if let Some(primary) = self.primary_mut(group) {
            primary.blocked.push(key);
            ops.note_blocked(group, true);
        }
    }

    /// Retries operations that are blocked, because what they wait for may have changed.
    pub(crate) fn retry(&mut self, ops: &mut Ops, group: GroupId) {
        ops.note_blocked(group, false);
        if let Some(primary) = self.primary_mut(group) {
            primary.blocked.drain(..).for_each(|key| ops.can_start(key));
        }
    }

    /// Retries everything that waits for a lease, a seal or room, in order of arrival.
    pub(crate) fn retry_all(&mut self, ops: &mut Ops) {
        let before = ops.ready();
        while let Some(group) = ops.next_blocked() {
            self.retry(ops, group);
        }
        ops.sort_ready(before);
    }

    // ---- reports ----

    /// Returns every group that has a replica here, in order.
    pub fn groups(&self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.by_group.keys().collect();
        groups.sort_unstable();
        groups
    }

    /// Returns true if this device has, or may have, something of the group.
    pub fn has(&self, group: GroupId) -> bool {
        self.get(group).is_some()
    }

    /// Returns the state of a group at this device.
    pub fn view(&self, group: GroupId) -> Option<GroupView> {
        let replica = self.get(group)?;
        let (primary, active, todo_bytes) = match &replica.role {
            Role::Primary(p) => (true, p.active, p.sync.as_ref().map_or(0, |s| s.todo.bytes())),
            _ => (false, false, 0),
        };
        let (config, dirty_bytes) = (replica.config.clone(), replica.record.dirty.bytes());
        Some(GroupView { group, config, primary, active, dirty_bytes, todo_bytes })
    }

    /// Returns what replicas lack, as far as this device knows, in one pass over its groups.
    pub fn resync(&self) -> Resync {
        let mut resync = Resync::default();
        for (group, replica) in self.iter() {
            if replica.record.base == Epoch(0) {
                resync.partial.push(group);
            }
            if let Role::Primary(Primary { sync: Some(sync), .. }) = &replica.role {
                resync.remaining += sync.todo.bytes();
            }
        }
        resync.partial.sort_unstable();
        resync
    }

    /// Returns what this device remembers of each group, in order of the groups.
    pub fn evidence(&self) -> Vec<(GroupId, Evidence)> {
        let one = |(id, r): (GroupId, &Replica)| (id, Evidence::from(&r.record));
        let mut all: Vec<(GroupId, Evidence)> = self.iter().map(one).collect();
        all.sort_unstable();
        all
    }

    /// Returns the highest epoch in which this device took part in the group; 0: in none.
    pub fn acted(&self, group: GroupId) -> Epoch {
        self.get(group).map_or(Epoch(0), |r| r.record.acted)
    }

    // ---- content ----

    /// Returns the number of executed writes in all lists of this device.
    pub fn executed_len(&self) -> usize {
        self.values().map(|r| r.record.executed.len()).sum()
    }

    /// Returns the newest incarnation of a client of which a write is listed here.
    pub fn newest_life(&self, sdc: SdcId) -> Incarnation {
        let lives = self.values().filter_map(|r| r.record.executed.life(sdc));
        lives.max().unwrap_or_default()
    }

    /// Forgets the blocks of a deleted volume that are to be copied or settled.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) {
        for replica in self.by_group.values_mut() {
            replica.record.dirty.drop_volume(volume);
            if let Role::Primary(Primary { sync: Some(sync), .. }) = &mut replica.role {
                sync.todo.drop_volume(volume);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::MapVersion;

    const ME: DeviceId = DeviceId(1);
    const GROUP: GroupId = GroupId(7);

    fn config(epoch: u64, primary: u32, in_sync: &[u32]) -> GroupConfig {
        let devices = |ids: &[u32]| ids.iter().map(|id| DeviceId(*id)).collect();
        GroupConfig {
            epoch: Epoch(epoch),
            primary: Some(DeviceId(primary)),
            replicas: devices(&[1, 2, 3]),
            in_sync: devices(in_sync),
            ..GroupConfig::default()
        }
    }

    fn entered(config: GroupConfig, role: Role) -> Replicas {
        let mut replica = Replica::new(ReplicaRecord::default());
        replica.enter(config, MapVersion(1), ME);
        replica.role = role;
        Replicas::new(ME, [(GROUP, replica)].into_iter())
    }

    #[test]
    fn only_the_primary_of_the_present_epoch_is_followed() {
        let role = Role::Secondary(Secondary::new(DeviceId(2), false));
        let mut replicas = entered(config(4, 2, &[1, 2]), role);
        for (from, epoch, expected) in [
            (2, 4, Ok(())),
            (3, 4, Err(Status::Behind)),
            (2, 3, Err(Status::Stale)),
            (3, 3, Err(Status::Stale)),
            (2, 5, Err(Status::Behind)),
        ] {
            assert_eq!(replicas.check_leader(DeviceId(from), GROUP, Epoch(epoch)), expected);
        }
        let other = replicas.check_leader(DeviceId(2), GroupId(8), Epoch(4));
        assert_eq!(other, Err(Status::Behind), "no replica is here");
        let next = config(5, 2, &[1, 2]);
        replicas.get_mut(GROUP).unwrap().next = Some((next, MapVersion(2)));
        let ends = |epoch| replicas.check_leader(DeviceId(2), GROUP, Epoch(epoch));
        assert_eq!((ends(4), ends(5)), (Err(Status::Stale), Err(Status::Behind)));
    }

    #[test]
    fn a_primary_needs_those_that_count_and_would_like_the_others_back() {
        let replicas = entered(config(4, 1, &[1, 2]), Role::Primary(Primary::default()));
        assert_eq!(replicas.wanted(), ([DeviceId(2)].into(), [DeviceId(3)].into()));
        assert_eq!(replicas.led(), [GROUP]);
        let replicas = entered(config(4, 2, &[1, 2]), Role::Out);
        assert_eq!(replicas.wanted(), Default::default());
        assert!(replicas.led().is_empty());
    }
}
