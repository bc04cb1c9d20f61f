//! R15: clients' writes to thin volumes leave the spare of a device alone. What can't be refused any more may take it, so
//! only devices are judged that never joined a group, or got a copy, in clusters of two servers and one kind of device (a
//! place on RAM is as large as sixteen on a file); and one place more is let pass, for a write that the primary had a
//! place for.

use super::Failure;
use crate::plan::{Action, Who};
use crate::stage::Stage;
use base::{UNIT, beside_spare};
use node::sds::Sds;
use seam::Journal;

/// Looks at all devices.
pub fn check(stage: &mut Stage) -> Result<(), Failure> {
    let (plan, spare) = (&stage.plan, u64::from(stage.spare_percent));
    let moved = plan.steps.iter().any(|s| matches!(s.action, Action::Tamper(..)));
    if spare == 0 || plan.sds > 2 || plan.memory != 0 || moved {
        return Ok(());
    }
    for i in 0..plan.sds {
        let who = Who::Sds(i);
        let Some(device) = stage.sds(i).and_then(Sds::device) else { continue };
        // A slot that is written over whole has two until that is durable.
        let writes = device.durable().is_some_and(|d| d.has_jobs());
        let usable = beside_spare(device.capacity(), spare);
        if writes || device.used() < usable || stage.world.took_copies(stage.proc(who)) {
            continue;
        }
        // The last write that could be refused came when there was something left.
        if device.used() >= usable + 2 * u64::from(UNIT) {
            let text = format!("{who} has {} bytes, and may have {usable}", device.used());
            return Err(Failure::new("R15", text));
        }
        stage.marks.meet("sim: a device had only its spare left");
    }
    Ok(())
}
