//! Bounds: what clients, peers and time make grow stays within what `docs/internals/limits.md` says, also while a
//! plan runs: at rest, every list is short.

use super::Failure;
use crate::stage::Stage;
use node::sds::Device;

/// Compares the lists of all servers with their bounds.
pub fn check(stage: &Stage) -> Result<(), Failure> {
    for i in 0..stage.plan.sds {
        let Some(sds) = stage.sds(i) else { continue };
        let Some(is) = sds.grown() else { continue };
        let may = sds.may_grow();
        let stored = sds.device().and_then(Device::durable);
        let rows = [
            ("executed writes in all groups", is.executed, may.executed),
            ("executed writes in a group", is.executed_group, may.executed_group),
            ("executed writes of a client in a group", is.executed_client, may.executed_client),
            ("uncertain writes of a joiner", is.uncertain, may.uncertain),
            ("uncertain writes of a member", is.uncertain_in_sync, may.uncertain_in_sync),
            ("operations in the stream of a group", is.stream, may.stream),
            ("bytes under way to a member", is.flying, may.flying),
            ("dirty units of volumes that are gone", is.gone, may.gone),
            ("bytes of clients' operations", is.client_bytes, may.client_bytes),
            (
                "executed writes in the records of the device",
                stored.map_or(0, |d| d.executed_len()),
                stored.map_or(0, |d| d.executed_most()),
            ),
        ];
        if let Some((what, is, may)) = rows.into_iter().find(|(_, is, may)| is > may) {
            return Err(Failure::new(
                "bounds",
                format!("sds{i} has {is} {what}, and may have {may}"),
            ));
        }
    }
    Ok(())
}
