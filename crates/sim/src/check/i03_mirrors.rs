//! I3: the copies of a settled group are equal, byte by byte; and what a primary calls clean is (I10).
//! I12: nothing of a deleted volume is left.

use super::Failure;
use crate::plan::Who;
use crate::stage::Stage;
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, GroupId, UnitKey};
use node::sds::Sds;
use seam::{DiskId, Journal};
use std::collections::BTreeSet;

fn find(stage: &Stage, device: u32) -> Option<u8> {
    (0..stage.plan.sds).find(|i| stage.sds(*i).is_some_and(|s| s.device().0 == device))
}

/// One block of a copy; zeros where it holds none.
fn block(stage: &mut Stage, i: u8, group: GroupId, unit: UnitKey, index: u32, into: &mut [u8]) {
    let place = stage.sds(i).and_then(|s: &Sds| s.device_content().place(group, unit, index));
    into.fill(0);
    if let Some(place) = place {
        let id = stage.proc(Who::Sds(i));
        stage.world.disk(id, DiskId(0)).peek(place, into);
    }
}

/// Compares the copies of every group; the system must be at rest.
pub fn check(stage: &mut Stage) -> Result<(), Failure> {
    let groups: Vec<_> = stage.observer.groups.iter().map(|(id, g)| (*id, g.clone())).collect();
    for (id, g) in groups {
        if g.lost || g.in_sync.len() < 2 {
            continue;
        }
        let copies: Vec<u8> = g.in_sync.iter().filter_map(|d| find(stage, *d)).collect();
        compare_group(stage, id, &copies)?;
    }
    Ok(())
}

/// Compares what these servers hold of a group.
pub fn compare_group(stage: &mut Stage, group: GroupId, copies: &[u8]) -> Result<(), Failure> {
    let mut units = BTreeSet::new();
    for i in copies {
        units.extend(stage.sds(*i).expect("it runs").device_content().units(group));
    }
    // A volume that is being deleted goes sooner here and later there.
    units.retain(|unit| stage.observer.volumes.contains_key(&unit.volume.0));
    units.into_iter().try_for_each(|unit| compare(stage, group, unit, copies))
}

fn compare(stage: &mut Stage, group: GroupId, unit: UnitKey, copies: &[u8]) -> Result<(), Failure> {
    let (mut a, mut b) = ([0; BLOCK as usize], [0; BLOCK as usize]);
    let mut valid = BlockSet::EMPTY;
    for i in copies {
        valid.insert(stage.sds(*i).expect("it runs").device_content().valid(group, unit));
    }
    for index in (0..BLOCKS_PER_UNIT).filter(|i| valid.contains(*i)) {
        block(stage, copies[0], group, unit, index, &mut a);
        for other in &copies[1..] {
            block(stage, *other, group, unit, index, &mut b);
            if a != b {
                let at = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or_default();
                let text = format!(
                    "{group}: sds{} and sds{other} differ in {} unit {} block {index} (sector {} of the volume): {:02x?} and {:02x?}",
                    copies[0],
                    unit.volume,
                    unit.index,
                    unit.index * 2048 + index * 8 + at as u32 / 512,
                    &a[at / 16 * 16..at / 16 * 16 + 16],
                    &b[at / 16 * 16..at / 16 * 16 + 16],
                );
                return Err(Failure::new("I3", text));
            }
        }
    }
    Ok(())
}

/// Something that is still stored although its volume is deleted (I12).
pub fn undeleted(stage: &Stage) -> Option<String> {
    let live = &stage.observer.volumes;
    (0..stage.plan.sds).find_map(|i| {
        let volumes = stage.sds(i)?.device_content().volumes();
        let dead = volumes.into_iter().find(|v| !live.contains_key(&v.0))?;
        Some(format!("sds{i} still stores units of {dead}, which is deleted"))
    })
}
