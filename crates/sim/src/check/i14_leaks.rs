//! I14: nothing is kept at rest: all buffers are back, no operation is in flight.

use crate::plan::Who;
use crate::stage::Stage;
use node::sds::{Device, Sds};

/// The MDM keeps the newest map's pages ready.
const MDM_PAGES: usize = 64 << 10;

/// What is still kept, although nobody asks for anything. Control frames in flight keep buffers, too,
/// so only what stays is a leak.
pub fn unmet(stage: &Stage) -> Option<String> {
    for who in stage.everybody() {
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
    for i in 0..stage.plan.sds {
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
