//! Judges R15: clients' writes to thin volumes leave the spare of a device alone.
//!
//! Writes that can no longer be refused may take the spare. So the judge looks only at devices
//! that never got a copy, in clusters of two servers with one kind of device. (A slot of a RAM
//! device is as large as 16 slots of a file.) It allows one more unit for a write for which the
//! primary had a slot.

use super::Failure;
use crate::plan::{Action, Who};
use crate::stage::Stage;
use base::{UNIT, beside_spare};
use node::sds::Sds;
use seam::UnitStore;

/// Checks all devices.
pub fn check(stage: &mut Stage) -> Result<(), Failure> {
    let (plan, spare) = (&stage.plan, u64::from(stage.spare_percent));
    if spare == 0 || plan.sds > 2 || plan.memory != 0 {
        return Ok(());
    }
    for i in 0..plan.sds {
        let who = Who::Sds(i);
        let Some(device) = stage.sds(i).and_then(Sds::device) else { continue };
        // A slot that is overwritten as a whole takes two slots until the write is durable.
        let writes = device.durable().is_some_and(|d| d.has_jobs());
        let usable = beside_spare(device.capacity(), spare);
        if writes || device.used() < usable || stage.world.took_copies(stage.proc(who)) {
            continue;
        }
        if stage.plan.steps.iter().any(|s| matches!(s.action, Action::Tamper(..))) {
            return Ok(());
        }
        // When the last write came that could be refused, space was left.
        if device.used() >= usable + 2 * u64::from(UNIT) {
            let text = format!("{who} has {} bytes, and may have {usable}", device.used());
            return Err(Failure::new("R15", text));
        }
        stage.marks.meet("sim: a device had only its spare left");
    }
    Ok(())
}
