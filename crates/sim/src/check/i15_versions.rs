//! Judge of I15: two consecutive releases work together. No link ends because of its version, no
//! process refuses a map or is refused for its level, and nothing of a level is used below it.

use super::Failure;
use crate::stage::Stage;
use crate::world::ProcId;
use node::links::is_of_versions;
use seam::{FrameError, Note};

/// Looks at a note of a process.
pub fn note(stage: &Stage, id: ProcId, note: &Note) -> Result<(), Failure> {
    let why = match note {
        Note::Garbage { why: FrameError::Version, .. } => "a frame of a version that it lacks",
        Note::Refused { why, .. } if is_of_versions(why) => why,
        _ => return Ok(()),
    };
    Err(Failure::new("I15", format!("{}: {why}", stage.world.name(id))))
}

/// Looks at the states of the MDMs.
pub fn check(stage: &Stage) -> Result<(), Failure> {
    let needed = base::level::of_field("DeviceUp.release");
    for i in 0..stage.plan.mdms {
        let Some(state) = stage.mdm_at(i).map(|mdm| mdm.state()) else { continue };
        if state.level < needed && state.devices.values().any(|d| !d.release.is_empty()) {
            let text = format!("mdm{i} has a field of level {needed} at level {}", state.level);
            return Err(Failure::new("I15", text));
        }
    }
    Ok(())
}
