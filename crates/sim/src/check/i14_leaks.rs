//! Judges I14: at rest all buffers are returned, and no operation is in flight.

use crate::plan::Who;
use crate::stage::Stage;
use node::sds::{Device, Sds};

/// Bytes of buffers that an MDM may keep: it keeps the pages of the newest map ready.
const MDM_PAGES: usize = 64 << 10;

/// Returns what a process still keeps although there are no requests. Control frames in flight keep
/// buffers as well, so only what stays is a leak.
pub fn unmet(stage: &Stage) -> Option<String> {
    for who in stage.everybody().into_iter().filter(|who| !has_doubtful(stage, *who)) {
        let id = stage.proc(who);
        let used = stage.world.pool_used(id);
        // Data that waits in memory for its slot keeps its buffers.
        let waits = match who {
            Who::Sds(i) => stage.sds(i).and_then(Sds::device).and_then(Device::durable),
            _ => None,
        };
        if waits.is_some_and(|d| d.waiting_bytes() > 0) {
            continue;
        }
        if used > if matches!(who, Who::Mdm(_)) { MDM_PAGES } else { 0 } {
            return Some(format!("{who} keeps {used} bytes of buffers at rest"));
        }
    }
    for i in (0..stage.plan.sds).filter(|i| !has_doubtful(stage, Who::Sds(*i))) {
        let left = stage.sds(i).and_then(|s| s.mirror()).map_or(0, |m| m.in_flight());
        if left > 0 {
            return Some(format!("sds{i} has {left} operations in flight at rest"));
        }
    }
    for i in 0..stage.plan.clients {
        let left = stage.sdc(i).map_or(0, |s| s.outstanding());
        if left > 0 {
            return Some(format!("sdc{i} has {left} requests in hand at rest"));
        }
    }
    None
}

/// Returns true for a server with a copy of a group in doubt: operations there wait for the
/// operator's decision.
fn has_doubtful(stage: &Stage, who: Who) -> bool {
    let Who::Sds(i) = who else { return false };
    let Some(state) = stage.mdm().map(|m| m.state()) else { return false };
    let doubtful = stage.doubtful();
    // No MDM decides about a group that a recovery has not taken over.
    let unknown = |id| state.recovery.number > 0 && !state.groups.contains_key(id);
    let groups = stage.sds(i).map(Sds::groups).unwrap_or_default();
    groups.iter().any(|view| doubtful.contains(&view.group) || unknown(&view.group))
}
