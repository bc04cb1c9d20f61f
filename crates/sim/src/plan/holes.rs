//! Plans in which data servers give freed space of their files back to the file system. The
//! operation may be slow, fail, or be unsupported. If the process dies or the power fails, it takes
//! effect in part.

use super::{Action, IoKind, Plan, Timed};
use base::Prng;

/// Sectors of a unit.
const UNIT: u32 = base::UNIT / base::SECTOR;

/// Turns this on in some plans, and adds discards and writes of whole units to them.
pub(super) fn draw(plan: &mut Plan, root: &Prng) {
    let mut r = root.fork("holes");
    if !plan.durable || !r.chance(0.3) {
        return;
    }
    let w = &mut plan.weather;
    w.holes = r.range(1, 4) as u32;
    w.hole_ms = *r.pick(&[0, 1, 30, 500]);
    w.hole_fail_ppm = *r.pick(&[0, 0, 0, 20_000]);
    if plan.is_one_story() || plan.copies_devices() {
        return;
    }
    for _ in 0..r.range(0, 60) {
        let at = plan.moment(&mut r);
        let volume = r.below(plan.volumes.len() as u64) as u8;
        let sector = r.below(plan.volumes[usize::from(volume)].into()) as u32 * UNIT;
        let client = r.below(plan.clients.into()) as u8;
        let kind = *r.pick(&[IoKind::Discard, IoKind::Write]);
        let action = Action::Io { client, volume, kind, sector, sectors: UNIT };
        plan.steps.push(Timed { at, action });
    }
}
