//! Judges I3: the copies of a settled group are equal, byte by byte, and so are blocks that a
//! primary calls clean (I10). I12: nothing of a deleted volume is left.

use super::Failure;
use crate::plan::Who;
use crate::stage::Stage;
use base::{BLOCK, BLOCKS_PER_UNIT, BlockSet, GroupId, UnitKey};
use node::sds::{Device, Sds};
use seam::{DiskId, UnitStore};
use std::collections::{BTreeMap, BTreeSet};

fn find(stage: &Stage, device: u32) -> Option<u8> {
    (0..stage.plan.sds).find(|i| stage.sds(*i).is_some_and(|s| s.id().0 == device))
}

fn device(stage: &Stage, i: u8) -> &Device {
    stage.sds(i).and_then(Sds::device).expect("it runs")
}

/// Reads one block of a copy; zeros if the copy does not hold the block.
pub(super) fn block(
    stage: &mut Stage,
    i: u8,
    group: GroupId,
    unit: UnitKey,
    index: u32,
    into: &mut [u8],
) {
    into.fill(0);
    let Some(device) = stage.sds(i).and_then(Sds::device) else { return };
    let waiting = device.durable().and_then(|d| d.waiting(group, unit, index));
    if let Some(data) = waiting {
        return into.copy_from_slice(data);
    }
    if let Some(place) = device.place(group, unit, index) {
        let id = stage.proc(Who::Sds(i));
        stage.world.disk(id, DiskId(0)).peek(place, into);
    }
}

/// Compares the copies of every group. The system must be at rest.
pub fn check(stage: &mut Stage) -> Result<(), Failure> {
    let groups: Vec<_> = stage.observer.groups.iter().map(|(id, g)| (*id, g.clone())).collect();
    let doubtful = stage.doubtful();
    for (id, g) in groups {
        if g.lost || doubtful.contains(&id) || g.in_sync.len() < 2 {
            continue;
        }
        let copies: Vec<u8> = g.in_sync.iter().filter_map(|d| find(stage, *d)).collect();
        compare_group(stage, id, &copies)?;
    }
    Ok(())
}

/// Checks that no in-sync copy has a damaged block after everything was scrubbed, as damage that is
/// met is repaired (rule R13).
pub fn mended(stage: &mut Stage) -> Result<(), Failure> {
    if stage.plan.allow_loss {
        return Ok(());
    }
    for i in 0..stage.plan.sds {
        let Some(sds) = stage.sds(i) else { continue };
        let Some(device) = sds.device() else { continue };
        let mut places = Vec::new();
        let me = sds.id();
        let mut views = sds.groups();
        views.retain(|v| v.config.in_sync.contains(&me));
        for view in views {
            let mut units = device.units(view.group);
            units.retain(|u| stage.is_there(u.volume));
            for unit in units {
                let at = (0..BLOCKS_PER_UNIT).filter_map(|b| {
                    let waits = device.durable()?.waiting(view.group, unit, b).is_some();
                    let place = device.place(view.group, unit, b).filter(|_| !waits)?;
                    Some((view.group, unit, b, place))
                });
                places.extend(at);
            }
        }
        let id = stage.proc(Who::Sds(i));
        let disk = stage.world.disk(id, DiskId(0));
        if let Some((group, unit, block, _)) = places.iter().find(|p| disk.is_damaged(p.3)) {
            let text = format!(
                "sds{i} has {group}, and {} unit {} block {block} was read and is still damaged",
                unit.volume, unit.index
            );
            return Err(Failure::new("R13", text));
        }
    }
    Ok(())
}

/// Compares the content of these servers for a group.
pub fn compare_group(stage: &mut Stage, group: GroupId, copies: &[u8]) -> Result<(), Failure> {
    let mut units = BTreeSet::new();
    for i in copies {
        units.extend(device(stage, *i).units(group));
    }
    // Servers delete the data of a deleted volume at different times.
    units.retain(|unit| stage.is_there(unit.volume));
    units.into_iter().try_for_each(|unit| compare(stage, group, unit, copies))
}

fn compare(stage: &mut Stage, group: GroupId, unit: UnitKey, copies: &[u8]) -> Result<(), Failure> {
    let (mut a, mut b) = ([0; BLOCK as usize], [0; BLOCK as usize]);
    let mut valid = BlockSet::EMPTY;
    for i in copies {
        valid.insert(device(stage, *i).valid(group, unit));
    }
    for index in (0..BLOCKS_PER_UNIT).filter(|i| valid.contains(*i)) {
        block(stage, copies[0], group, unit, index, &mut a);
        for other in &copies[1..] {
            block(stage, *other, group, unit, index, &mut b);
            let told = |i: u8| stage.is_told_lost(i, group, unit, index);
            if a != b && !told(copies[0]) && !told(*other) {
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

/// Returns data on a device that is no replica of the data's group (rule R11).
pub fn foreign(stage: &Stage) -> Option<String> {
    let doubtful = stage.doubtful();
    (0..stage.plan.sds).find_map(|i| {
        let sds = stage.sds(i)?;
        let (me, device) = (sds.id().0, sds.device()?);
        let stranger = |group: &GroupId| {
            stage.observer.groups.get(group).is_some_and(|g| !g.replicas.contains(&me))
        };
        // The replicas of a group in doubt are not known for sure.
        let groups = sds.groups().into_iter().map(|v| v.group).filter(|g| !doubtful.contains(g));
        let kept = groups.filter(stranger).find(|group| !device.is_empty(*group))?;
        Some(format!("sds{i} still stores units of {kept}, of which it is no replica"))
    })
}

/// Returns data that is still stored although its volume is deleted (I12).
pub fn undeleted(stage: &Stage) -> Option<String> {
    let live = &stage.observer.volumes;
    (0..stage.plan.sds).find_map(|i| {
        let volumes = stage.sds(i)?.device()?.volumes();
        let dead = volumes.into_iter().find(|v| !live.contains_key(&v.0))?;
        Some(format!("sds{i} still stores units of {dead}, which is deleted"))
    })
}

/// Returns a group whose two copies share a fault unit: a server, or a fault set. There are always
/// enough fault units.
pub fn together(stage: &Stage) -> Option<String> {
    let plan = &stage.plan;
    let devices = (0..plan.sds).filter_map(|i| Some((stage.sds(i)?.id().0, plan.unit(i))));
    let units: BTreeMap<u32, u8> = devices.collect();
    // A lost group can't move.
    stage.observer.groups.iter().filter(|(_, g)| !g.lost).find_map(|(id, g)| {
        // If a server does not run, its device is unknown.
        let of: Option<BTreeSet<_>> = g.replicas.iter().map(|d| units.get(d)).collect();
        let of = of?;
        let what = if plan.fault_sets > 0 { "fault set" } else { "server" };
        (of.len() < 2).then(|| format!("{id} has all its copies in one {what}: {:?}", g.replicas))
    })
}

/// Checks that the two copies of a group never share a fault unit.
pub fn apart(stage: &Stage) -> Result<(), Failure> {
    let name = if stage.plan.fault_sets > 0 { "fault sets" } else { "I3" };
    together(stage).map_or(Ok(()), |text| Err(Failure::new(name, text)))
}
