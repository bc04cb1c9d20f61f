//! Judges I10: a settle or a resync copies every block that differs. After each seal, the copies of
//! the group are fully compared as soon as nothing is in flight, so that an error is found before a
//! later write hides it.

use super::{Failure, i03_mirrors};
use crate::plan::Who;
use crate::stage::Stage;
use base::{Epoch, GroupId};

/// Compares the copies of the groups in `stage.sealed` that are at rest, and removes
/// these groups there.
pub fn check(stage: &mut Stage) -> Result<(), Failure> {
    for group in stage.sealed.clone() {
        if let Some(copies) = at_rest(stage, group) {
            stage.sealed.remove(&group);
            stage.marks.meet("sim: copies compared after a seal");
            i03_mirrors::compare_group(stage, group, &copies)
                .map_err(|f| Failure::new("I10", f.text))?;
        }
    }
    Ok(())
}

/// Returns the servers that hold the group's copies, if all are in sync in the present epoch and
/// idle. Of a group in doubt it is unknown which replicas are in sync.
fn at_rest(stage: &Stage, group: GroupId) -> Option<Vec<u8>> {
    let config =
        stage.observer.groups.get(&group).filter(|g| g.in_sync.len() > 1 && g.doubt == 0)?;
    stage.observer.who_is_active(group, Epoch(config.epoch))?;
    let mut copies = Vec::new();
    for i in 0..stage.plan.sds {
        let Some(sds) = stage.world.actor::<node::sds::Sds>(stage.proc(Who::Sds(i))) else {
            continue;
        };
        if !config.in_sync.contains(&sds.id().0) {
            continue;
        }
        let mirror = sds.mirror()?;
        let view = mirror.replicas().view(group)?;
        let quiet = mirror.in_flight() == 0 && view.config.epoch.0 == config.epoch;
        if !quiet || (view.primary && (!view.active || view.dirty_bytes > 0 || view.todo_bytes > 0))
        {
            return None;
        }
        copies.push(i);
    }
    (copies.len() == config.in_sync.len()).then_some(copies)
}
