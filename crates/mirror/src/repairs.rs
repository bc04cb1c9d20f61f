//! Damaged blocks that operations of a primary wait for, and which replica was asked for them
//! (rule R13).
//!
//! Invariants:
//! - An operation waits for one run of blocks at a time, and each of its repairs is of other
//!   blocks. So a unit needs no more repairs than it has blocks.
//! - No replica is asked twice in one repair.

use crate::members::{GroupConfig, ReplicaSet};
use crate::op::Op;
use crate::ops::Ops;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, DeviceId, Time};

/// Damaged blocks that an operation waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repair {
    /// The replica that was asked last.
    pub from: DeviceId,
    /// When it was asked last.
    pub asked: Time,
    /// Replicas that can't read them either.
    damaged: ReplicaSet,
    pub first: u16,
    pub blocks: u16,
    /// Blocks that earlier repairs of the operation rewrote.
    before: BlockSet,
}

impl Repair {
    pub(crate) fn at(&self) -> u32 {
        u32::from(self.first) * BLOCK
    }

    pub(crate) fn len(&self) -> u32 {
        u32::from(self.blocks) * BLOCK
    }

    pub(crate) fn set(&self) -> BlockSet {
        BlockSet::touching(self.at(), self.len())
    }

    /// Returns the blocks that this repair and earlier ones rewrite.
    fn rewritten(&self) -> BlockSet {
        let mut all = self.before;
        all.insert(self.set());
        all
    }
}

/// The repairs of a shard, by operation.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    by_op: BTreeMap<u64, Repair>,
}

impl Repairs {
    /// Returns the repair that an operation waits for.
    pub(crate) fn get(&self, key: u64) -> Option<Repair> {
        self.by_op.get(&key).copied()
    }

    /// Returns true if a repair of the operation has rewritten one of these blocks before: the
    /// device has not kept that repair.
    pub(crate) fn was_in_vain(&self, key: u64, (first, blocks): (u16, u16)) -> bool {
        let bad = BlockSet::from_range(first.into()..(first + blocks).into());
        let rewritten = self.by_op.get(&key).map_or(BlockSet::EMPTY, Repair::rewritten);
        !rewritten.and(bad).is_empty()
    }

    /// Starts a repair: the operation waits for these blocks, and `from` is asked for them.
    pub(crate) fn begin(&mut self, key: u64, from: DeviceId, damage: (u16, u16)) {
        assert!(!self.was_in_vain(key, damage), "each repair is of other blocks");
        let (asked, damaged, (first, blocks)) = (Time::ZERO, ReplicaSet::default(), damage);
        let within = u32::from(first) + u32::from(blocks) <= BLOCKS_PER_UNIT;
        assert!(blocks > 0 && within, "damaged blocks are a run of one unit");
        let before = self.by_op.get(&key).map_or(BlockSet::EMPTY, Repair::rewritten);
        self.by_op.insert(key, Repair { from, asked, damaged, first, blocks, before });
    }

    /// Records that the replica is asked now, perhaps once more. Returns the repair.
    pub(crate) fn ask(&mut self, now: Time, key: u64) -> Option<Repair> {
        let repair = self.by_op.get_mut(&key)?;
        repair.asked = now;
        Some(*repair)
    }

    /// Records that the asked replica can't read the blocks. Returns the next one to be asked, out
    /// of the `needed` ones; `None` if none is left.
    pub(crate) fn next_source(
        &mut self,
        key: u64,
        config: &GroupConfig,
        needed: ReplicaSet,
    ) -> Option<DeviceId> {
        let repair = self.by_op.get_mut(&key)?;
        let asked = config.member(repair.from);
        assert!(!repair.damaged.intersects(asked), "no replica is asked twice in one repair");
        repair.damaged.insert(asked);
        let next = config.devices(needed.without(repair.damaged)).next()?;
        repair.from = next;
        Some(next)
    }

    /// Ends the repair that the operation waits for.
    pub(crate) fn end(&mut self, key: u64) {
        self.by_op.remove(&key);
    }

    /// Returns the operations that wait, and that `wanted` picks. Forgets those that are over.
    pub(crate) fn of(&mut self, ops: &Ops, wanted: impl Fn(&Op, &Repair) -> bool) -> Vec<u64> {
        self.by_op.retain(|key, _| ops.get(*key).is_some());
        let picked = self.by_op.iter().filter(|(key, repair)| {
            let op = ops.get(**key).expect("those that are over were forgotten");
            wanted(op, repair)
        });
        picked.map(|(key, _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Work;
    use base::{GroupId, UnitKey};

    #[test]
    fn each_replica_is_asked_once_and_each_repair_is_of_other_blocks() {
        let replicas: Vec<DeviceId> = [1, 2, 3, 4].map(DeviceId).into();
        let config = GroupConfig { replicas, ..GroupConfig::default() };
        let (needed, mut repairs) = (ReplicaSet(0b0110), Repairs::default());
        repairs.begin(7, DeviceId(2), (0, 2));
        assert_eq!(repairs.next_source(7, &config, needed), Some(DeviceId(3)));
        assert_eq!(repairs.get(7).map(|repair| repair.from), Some(DeviceId(3)));
        assert_eq!(repairs.next_source(7, &config, needed), None);
        assert!(repairs.was_in_vain(7, (1, 4)) && !repairs.was_in_vain(7, (2, 4)));
        assert!(!repairs.was_in_vain(8, (1, 4)), "of another operation");
        repairs.begin(7, DeviceId(3), (2, 4));
        assert_eq!(repairs.next_source(7, &config, needed), Some(DeviceId(2)), "asked anew");
        assert!(repairs.was_in_vain(7, (0, 1)) && repairs.was_in_vain(7, (5, 1)));
    }

    #[test]
    fn a_finished_repair_waits_for_nothing() {
        let (mut ops, mut repairs) = (Ops::default(), Repairs::default());
        let op = |group| Op::new(GroupId(group), UnitKey::default(), 0, BLOCK, Work::Scrub);
        let keys = [1, 1, 2].map(|group| ops.insert(op(group)));
        keys.into_iter().for_each(|key| repairs.begin(key, DeviceId(2), (0, 1)));
        ops.remove(keys[0]);
        assert_eq!(repairs.of(&ops, |op, _| op.group == GroupId(1)), [keys[1]]);
        assert!(repairs.get(keys[0]).is_none());
        repairs.end(keys[1]);
        assert_eq!(repairs.of(&ops, |_, _| true), [keys[2]]);
    }
}
