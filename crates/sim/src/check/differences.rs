//! Judges R5: blocks in which two in-sync replicas differ are in the dirty set of one of them at
//! any moment, not only at rest. Compares replicas when a primary hears of a seal, which clears
//! dirty blocks, and now and then between.

use super::i03_mirrors::block;
use super::{Failure, executed};
use crate::stage::Stage;
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, DeviceId, GroupId, UnitKey};
use mirror::Standing;
use node::sds::Sds;
use seam::UnitStore;
use std::collections::BTreeSet;
use wire::control::GroupInfo;

/// Compares the in-sync replicas of a group whose servers run, and their executed lists
/// with their content.
///
/// # Errors
/// Two replicas differ in a block that neither lists as dirty, or an executed list names a write
/// that the replica's content lacks.
pub fn check(stage: &mut Stage, group: GroupId) -> Result<(), Failure> {
    let members = members(stage, group);
    for (i, standing) in &members {
        executed::check(stage, *i, group, standing)?;
    }
    for (n, (i, a)) in members.iter().enumerate() {
        for (j, b) in &members[n + 1..] {
            compare(stage, group, (*i, a), (*j, b))?;
        }
    }
    Ok(())
}

/// Compares the replicas of one group, which the number of steps selects.
///
/// # Errors
/// As for [`check`].
pub fn check_some(stage: &mut Stage) -> Result<(), Failure> {
    let groups = stage.observer.groups.len() as u64;
    let nth = stage.world.steps().checked_rem(groups);
    let group = nth.and_then(|n| stage.observer.groups.keys().nth(n as usize).copied());
    group.map_or(Ok(()), |group| check(stage, group))
}

/// Returns the servers whose replicas count as in sync, and the state of these replicas.
fn members(stage: &Stage, group: GroupId) -> Vec<(u8, Standing)> {
    let Some(config) = stage.observer.groups.get(&group) else { return Vec::new() };
    let standing = |i: u8| {
        let sds = stage.sds(i).filter(|sds| !sds.ended())?;
        let known = stage.observer.devices.get(&sds.id())?.incarnation;
        let counts = counts(config, sds.id(), known == sds.incarnation().0);
        Some((i, sds.mirror()?.standing(group).filter(|_| counts)?))
    };
    (0..stage.plan.sds).filter_map(standing).collect()
}

/// Returns true when a device's copy has to be equal to the others, by this configuration. An
/// incarnation that the map does not know yet may have lost the content of the former one. In a
/// group in doubt, it is unknown which replicas are in sync.
fn counts(config: &GroupInfo, device: DeviceId, in_this_life: bool) -> bool {
    in_this_life && !config.lost && config.doubt == 0 && config.in_sync.contains(&device.0)
}

fn compare(
    stage: &mut Stage,
    group: GroupId,
    (i, a): (u8, &Standing),
    (j, b): (u8, &Standing),
) -> Result<(), Failure> {
    let device = |i: u8| stage.sds(i).and_then(Sds::device).expect("it runs");
    let mut units: BTreeSet<UnitKey> = device(i).units(group).into_iter().collect();
    units.extend(device(j).units(group));
    // Servers delete the data of a deleted volume at different times.
    units.retain(|unit| stage.is_there(unit.volume));
    for unit in units {
        let mut valid = device_valid(stage, i, group, unit);
        valid.insert(device_valid(stage, j, group, unit));
        let differs = first_unknown(unit, valid, [a, b], |index| {
            let (mut here, mut there) = ([0; BLOCK as usize], [0; BLOCK as usize]);
            block(stage, i, group, unit, index, &mut here);
            block(stage, j, group, unit, index, &mut there);
            here != there && !stage.is_unreadable((i, j), unit, index)
        });
        if let Some(index) = differs {
            let text = format!(
                "{group}: sds{i} and sds{j} are in sync and differ in {} unit {} block {index}, and neither knows",
                unit.volume, unit.index
            );
            return Err(Failure::new("R5", text));
        }
    }
    Ok(())
}

/// Returns the first of these blocks in which two replicas differ, and which
/// neither lists as dirty.
fn first_unknown(
    unit: UnitKey,
    valid: BlockSet,
    members: [&Standing; 2],
    mut differs: impl FnMut(u32) -> bool,
) -> Option<u32> {
    let knows = |member: &Standing, index: u32| {
        let one = BlockSet::from_range(index..index + 1);
        member.all || member.may_differ.contains(unit, one)
    };
    let known = |index: u32| members.iter().any(|member| knows(member, index));
    (0..BLOCKS_PER_UNIT).find(|index| valid.contains(*index) && !known(*index) && differs(*index))
}

fn device_valid(stage: &Stage, i: u8, group: GroupId, unit: UnitKey) -> BlockSet {
    let device = stage.sds(i).and_then(Sds::device);
    device.map_or(BlockSet::EMPTY, |device| device.valid(group, unit))
}

impl Stage {
    /// Returns true for a block that one of the two servers was told is lost: its
    /// bytes may be anything.
    fn is_unreadable(&self, (i, j): (u8, u8), unit: UnitKey, index: u32) -> bool {
        let lost = [i, j].iter().any(|i| self.lost_copies.contains(&(*i, unit, index)));
        lost || self.plan.allow_loss && self.is_harmed(unit, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VolumeId;

    const UNIT: UnitKey = UnitKey { volume: VolumeId(1), index: 2 };

    fn knows(unit: UnitKey, blocks: std::ops::Range<u32>) -> Standing {
        let mut standing = Standing::default();
        standing.may_differ.insert(unit, BlockSet::from_range(blocks));
        standing
    }

    fn judge(a: &Standing, b: &Standing) -> Option<u32> {
        // Blocks 3 and 7 differ; block 200 also does, but holds no data.
        let valid = BlockSet::from_range(0..100);
        first_unknown(UNIT, valid, [a, b], |index| [3, 7, 200].contains(&index))
    }

    #[test]
    fn a_difference_that_neither_member_knows_is_found() {
        let none = Standing::default();
        assert_eq!(judge(&none, &none), Some(3));
        let other = UnitKey { index: 3, ..UNIT };
        assert_eq!(judge(&knows(other, 0..256), &none), Some(3), "another unit is known");
        assert_eq!(judge(&knows(UNIT, 0..4), &none), Some(7), "the first one is known");
        assert_eq!(judge(&knows(UNIT, 4..256), &knows(UNIT, 0..3)), Some(3));
    }

    #[test]
    fn a_difference_that_either_member_knows_is_excused() {
        let (none, one, other) = (Standing::default(), knows(UNIT, 3..4), knows(UNIT, 7..8));
        assert_eq!(judge(&one, &other), None, "each knows one of them");
        assert_eq!(judge(&knows(UNIT, 3..8), &none), None);
        assert_eq!(judge(&none, &knows(UNIT, 3..8)), None);
        let all = Standing { all: true, ..Standing::default() };
        assert_eq!((judge(&all, &none), judge(&none, &all)), (None, None), "all may differ");
        assert_eq!(first_unknown(UNIT, BlockSet::FULL, [&none, &none], |_| false), None);
    }

    #[test]
    fn only_replicas_surely_in_sync_have_to_be_equal() {
        let group = GroupInfo { in_sync: vec![1, 2], joiners: vec![3], ..GroupInfo::default() };
        assert!(counts(&group, DeviceId(1), true) && counts(&group, DeviceId(2), true));
        assert!(!counts(&group, DeviceId(3), true), "a joiner");
        assert!(!counts(&group, DeviceId(2), false), "a life that the map doesn't know");
        let lost = GroupInfo { lost: true, ..group.clone() };
        assert!(!counts(&lost, DeviceId(1), true), "nobody has everything");
        let doubtful = GroupInfo { doubt: 1, ..group };
        assert!(!counts(&doubtful, DeviceId(1), true), "nobody knows who has everything");
    }
}
