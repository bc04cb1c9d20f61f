//! I14: nothing is kept at rest: all buffers are back, no operation is in flight.

use crate::plan::Who;
use crate::stage::Stage;
use node::sds::{Device, Sds};

/// The MDM keeps the newest map's pages ready.
const MDM_PAGES: usize = 64 << 10;

/// What is still kept, although nobody asks for anything. Control frames in flight keep buffers, too,
/// so only what stays is a leak.
pub fn unmet(stage: &Stage) -> Option<String> {
    for who in stage.everybody().into_iter().filter(|who| !has_doubtful(stage, *who)) {
        let id = stage.proc(who);
        let used = stage.world.pool_used(id);
        // What waits in memory for its slot keeps its buffers.
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
        let left = stage.sds(i).map_or(0, |s| s.in_flight());
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

/// True for a server with a copy of a group in doubt: what was under way there waits for a person's word.
fn has_doubtful(stage: &Stage, who: Who) -> bool {
    let Who::Sds(i) = who else { return false };
    let doubtful = stage.doubtful();
    let groups = stage.sds(i).filter(|_| !doubtful.is_empty()).map(Sds::groups).unwrap_or_default();
    groups.iter().any(|view| doubtful.contains(&view.group))
}
