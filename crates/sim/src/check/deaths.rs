//! Judges R4: when an MDM notes a proof of death, the incarnation that it declares dead does not
//! run. This matters because other servers get its permissions at once.

use super::Failure;
use crate::stage::Stage;
use crate::world::ProcId;
use base::{DeviceId, Incarnation};
use node::mdm::Mdm;

/// Checks a proof that an MDM has noted for this device.
///
/// # Errors
/// The incarnation that the proof is about runs.
pub fn check(stage: &Stage, mdm: ProcId, device: DeviceId) -> Result<(), Failure> {
    let state = stage.world.actor::<Mdm>(mdm).map(Mdm::state);
    let Some(entry) = state.and_then(|s| s.devices.get(&device)) else { return Ok(()) };
    let all = (0..stage.plan.sds).flat_map(|i| stage.lives_of(i).map(move |sds| (i, sds)));
    is_over((device, entry.incarnation), all.map(|(i, sds)| (i, sds.id(), sds.incarnation())))
}

/// Compares the incarnation of a proof with those of the processes that run.
fn is_over(
    (device, life): (DeviceId, Incarnation),
    mut running: impl Iterator<Item = (u8, DeviceId, Incarnation)>,
) -> Result<(), Failure> {
    match running.find(|(_, id, its)| (*id, *its) == (device, life)) {
        Some((i, ..)) => {
            let text = format!("{device} counts as dead for sure, and sds{i} runs");
            Err(Failure::new("R4", text))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_life_that_is_meant_has_to_be_over() {
        let dead = (DeviceId(2), Incarnation(5));
        let over = |running: &[(u8, u32, u64)]| {
            let lives = running.iter().map(|(i, id, life)| (*i, DeviceId(*id), Incarnation(*life)));
            is_over(dead, lives).map_err(|failure| failure.to_string())
        };
        assert_eq!(over(&[]), Ok(()), "nobody runs");
        assert_eq!(over(&[(0, 1, 5)]), Ok(()), "another device, in the life of the same number");
        assert_eq!(over(&[(0, 2, 6)]), Ok(()), "a later life of this device");
        assert_eq!(over(&[(0, 2, 0)]), Ok(()), "one that the MDM has given no number yet");
        let runs = over(&[(0, 1, 5), (1, 2, 5)]).unwrap_err();
        assert_eq!(runs, "R4: dev2 counts as dead for sure, and sds1 runs");
        // Of two processes of one server, the proof is about the older one.
        assert!(over(&[(1, 2, 6), (1, 2, 5)]).is_err());
    }
}
