//! R4: a proof of death is true: who is called dead by it doesn't run. What its leases allow is given to others at once.

use super::Failure;
use crate::stage::Stage;
use crate::world::ProcId;
use base::DeviceId;
use node::mdm::Mdm;
use node::sds::Sds;

/// An MDM has noted that this device's death is proven.
///
/// # Errors
/// The life that it means runs.
pub fn check(stage: &Stage, mdm: ProcId, device: DeviceId) -> Result<(), Failure> {
    let state = stage.world.actor::<Mdm>(mdm).map(Mdm::state);
    let Some(entry) = state.and_then(|s| s.devices.get(&device)) else { return Ok(()) };
    let lives = |sds: &Sds| sds.id() == device && sds.incarnation() == entry.incarnation;
    match (0..stage.plan.sds).find(|i| stage.sds(*i).is_some_and(lives)) {
        Some(i) => {
            let text = format!("{device} counts as dead for sure, and sds{i} runs");
            Err(Failure::new("R4", text))
        }
        None => Ok(()),
    }
}
