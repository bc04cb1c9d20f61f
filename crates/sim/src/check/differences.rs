//! R5: blocks in which two members in sync differ are in the dirty set of one of them, at any moment, not only at
//! rest. Compared when a leader hears of a seal, which forgets dirty blocks, and now and then between.

use super::i03_mirrors::block;
use super::{Failure, executed};
use crate::stage::Stage;
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, GroupId, UnitKey};
use mirror::Standing;
use node::sds::Sds;
use seam::Journal;
use std::collections::BTreeSet;
use wire::control::GroupInfo;

/// Compares the members of a group that run, and what their lists say with what they hold.
///
/// # Errors
/// Two members differ in a block that neither knows; or a list names a write that its replica's content lacks.
pub fn check(stage: &mut Stage, group: GroupId) -> Result<(), Failure> {
    let members = members(stage, group);
    for (i, standing) in &members {
        executed::check(stage, *i, group, standing)?;
    }
    for (n, (i, a)) in members.iter().enumerate() {
        for (j, b) in &members[n + 1..] {
            if !a.all && !b.all {
                compare(stage, group, (*i, a), (*j, b))?;
            }
        }
    }
    Ok(())
}

/// Compares the members of one group; which one, the moment tells.
///
/// # Errors
/// As [`check`].
pub fn check_some(stage: &mut Stage) -> Result<(), Failure> {
    let groups = stage.observer.groups.len() as u64;
    let nth = stage.world.steps().checked_rem(groups);
    let group = nth.and_then(|n| stage.observer.groups.keys().nth(n as usize).copied());
    group.map_or(Ok(()), |group| check(stage, group))
}

/// The servers whose replicas count as in sync, and what those know.
fn members(stage: &Stage, group: GroupId) -> Vec<(u8, Standing)> {
    // Of a group in doubt nobody knows who is in sync.
    let known = |g: &&GroupInfo| !g.lost && g.doubt == 0;
    let Some(config) = stage.observer.groups.get(&group).filter(known) else {
        return Vec::new();
    };
    let standing = |i: u8| {
        let sds = stage.sds(i).filter(|sds| config.in_sync.contains(&sds.id().0))?;
        // A life that the map doesn't know yet may have lost what the former one had.
        let known = stage.observer.devices.get(&sds.id())?;
        let counts = known.incarnation == sds.incarnation().0 && !sds.ended();
        Some((i, sds.standing(group).filter(|_| counts)?))
    };
    (0..stage.plan.sds).filter_map(standing).collect()
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
    // A volume that is being deleted goes sooner here and later there.
    units.retain(|unit| stage.is_there(unit.volume));
    for unit in units {
        let mut valid = device_valid(stage, i, group, unit);
        valid.insert(device_valid(stage, j, group, unit));
        for index in (0..BLOCKS_PER_UNIT).filter(|index| valid.contains(*index)) {
            let one = BlockSet::from_range(index..index + 1);
            let known = a.may_differ.contains(unit, one) || b.may_differ.contains(unit, one);
            if known || stage.is_unreadable((i, j), unit, index) {
                continue;
            }
            let (mut here, mut there) = ([0; BLOCK as usize], [0; BLOCK as usize]);
            block(stage, i, group, unit, index, &mut here);
            block(stage, j, group, unit, index, &mut there);
            if here != there {
                let text = format!(
                    "{group}: sds{i} and sds{j} are in sync and differ in {} unit {} block {index}, and neither knows",
                    unit.volume, unit.index
                );
                return Err(Failure::new("R5", text));
            }
        }
    }
    Ok(())
}

fn device_valid(stage: &Stage, i: u8, group: GroupId, unit: UnitKey) -> BlockSet {
    let device = stage.sds(i).and_then(Sds::device);
    device.map_or(BlockSet::EMPTY, |device| device.valid(group, unit))
}

impl Stage {
    /// True for a block that one of two servers was told to be lost: its bytes say nothing.
    fn is_unreadable(&self, (i, j): (u8, u8), unit: UnitKey, index: u32) -> bool {
        let lost = [i, j].iter().any(|i| self.lost_copies.contains(&(*i, unit, index)));
        lost || self.plan.allow_loss && self.harmed.contains(&(unit, index))
    }
}
