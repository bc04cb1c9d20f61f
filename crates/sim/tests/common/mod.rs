//! Shared parts of plans that are written by hand: a client that reads and writes every unit of its
//! volume again and again.

use sim::plan::{Action, IoKind, Plan, Timed};
use std::time::Duration;

/// Units of the volume.
pub(crate) const UNITS: u32 = 16;
/// Sectors per unit.
const UNIT: u32 = 2048;

/// Returns a duration of this many ms.
pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Lets the first client read and write each unit of its first volume from 0.5 s to 15 s, by turns
/// every 250 ms, and sorts all steps.
pub(crate) fn ask_every_unit(plan: &mut Plan) {
    for at in (500..15_000).step_by(250) {
        for unit in 0..UNITS {
            let kind = if (at / 250) % 2 == 0 { IoKind::Read } else { IoKind::Write };
            let (client, volume, sector) = (0, 0, unit * UNIT + 8);
            let action = Action::Io { client, volume, kind, sector, sectors: 8 };
            plan.steps.push(Timed { at: ms(at + u64::from(unit)), action });
        }
    }
    plan.steps.sort_by_key(|s| s.at);
}
