//! Judges I15: two consecutive releases work together. No link ends because of its version, no
//! process refuses a map or is refused for its level, no feature is used below its level, and the
//! level never falls.

use super::Failure;
use crate::stage::Stage;
use crate::world::ProcId;
use mdm::State;
use node::refusals::is_of_versions;
use seam::{FrameError, Note};
use wire::Fault;

/// Checks a note of a process.
pub fn note(stage: &Stage, id: ProcId, note: &Note) -> Result<(), Failure> {
    let why = match note {
        Note::Garbage { why: FrameError::Version, .. } => "a frame of a version that it lacks",
        Note::Refused { why, .. } if is_of_versions(why) => why,
        Note::Malformed { why, .. } if *why == Fault::Version.why() => why,
        _ => return Ok(()),
    };
    Err(Failure::new("I15", format!("{}: {why}", stage.world.name(id))))
}

/// Checks the state of an MDM after an entry. A field of a later level in it would end all MDMs,
/// because none of them could read such a state again.
pub fn state(stage: &Stage, id: ProcId, state: &State) -> Result<(), Failure> {
    let needed = base::level::of_field("DeviceUp.release");
    if state.level < needed && state.devices.values().any(|d| !d.release.is_empty()) {
        let (name, level) = (stage.world.name(id), state.level);
        let text = format!("{name} has a field of level {needed} at level {level}");
        return Err(Failure::new("I15", text));
    }
    Ok(())
}

/// Checks at the end that no server has seen the cluster at a higher level than it has now.
pub fn check(stage: &Stage) -> Result<(), Failure> {
    let Some(level) = stage.mdm().map(|mdm| mdm.state().level) else { return Ok(()) };
    for i in 0..stage.plan.sds {
        let Some(sds) = stage.sds(i) else { continue };
        let durable = sds.device().and_then(|d| d.durable()).map_or(0, |d| d.level());
        let seen = sds.map().level.max(durable);
        if seen > level {
            let text = format!("the level fell: sds{i} has seen {seen}, and the MDMs have {level}");
            return Err(Failure::new("I15", text));
        }
    }
    Ok(())
}
