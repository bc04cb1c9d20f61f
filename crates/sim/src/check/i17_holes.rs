//! Judges I17: space that is given back to the file system of a device holds no data.
//!
//! Compares each such operation with the server's unit map at the moment at which it takes effect.
//! Data of a write that is still in flight is not in that map. If the operation destroyed such
//! data, the block would fail its checksum and be repaired, and an undamaged device must not need
//! repairs.

use super::Failure;
use crate::stage::Stage;
use crate::world::ProcId;
use node::sds::Sds;
use seam::Note;

/// Judges what has been given back since the last step.
///
/// # Errors
/// A slot with data was given back.
pub fn check(stage: &mut Stage) -> Result<(), Failure> {
    for (id, range) in std::mem::take(&mut stage.world.punched) {
        let device = stage.world.actor::<Sds>(id).and_then(Sds::device);
        if device.and_then(|d| d.durable()).is_some_and(|d| d.holds_data(range.clone())) {
            let name = stage.world.name(id);
            return Err(Failure::new("I17", format!("{name} gave back {range:?}, which has data")));
        }
        stage.marks.meet("sim: space was given back");
    }
    Ok(())
}

/// Judges what a device reports in a plan with holes: there is nothing to repair.
///
/// # Errors
/// A block was damaged.
pub fn note(stage: &Stage, id: ProcId, note: &Note) -> Result<(), Failure> {
    let whole = stage.plan.weather.holes > 0 && !stage.totals.damages;
    if whole && matches!(note, Note::Repaired { .. } | Note::Unreadable { .. }) {
        return Err(Failure::new("I17", format!("{}: {note:?}", stage.world.name(id))));
    }
    Ok(())
}
