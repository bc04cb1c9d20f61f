//! The operations that give free slots back. `holes` chooses the slots and the time.

use super::layout::SLOT;
use super::store::Durable;
use core::ops::Range;
use seam::{DiskError, Effects, Note};

/// Handles a call of `rest`. `rests`: nothing was written since the last call.
pub(super) fn rest(store: &mut Durable, rests: bool, out: &mut Effects) {
    if store.tuning.holes > 0 {
        store.slots.holes().rested(store.tuning.holes, rests);
        give_back(store, out);
    }
}

fn give_back(store: &mut Durable, out: &mut Effects) {
    if let Some(run) = store.slots.begin_hole() {
        let at = store.content.layout.slot(run.start);
        store.ops.punch(at, run.len() as u64 * SLOT, out);
    }
}

/// Handles the end of an operation on `bytes`. A failure does not harm the device.
pub(super) fn ended(store: &mut Durable, bytes: u64, error: Option<DiskError>, out: &mut Effects) {
    store.slots.end_hole();
    match error {
        None => {
            store.stats.given_back += bytes;
            if !store.jobs.is_empty() {
                store.slots.holes().yields();
            }
            give_back(store, out);
        }
        Some(why) => {
            store.slots.holes().stop();
            out.note(Note::SpaceKept { device: store.content.identity.device, why });
        }
    }
}

/// Returns true if a slot in this byte range of the device holds data. For judges.
pub fn holds_data(store: &Durable, range: Range<u64>) -> bool {
    let layout = &store.content.layout;
    let within = |slot: &u32| {
        let at = layout.slot(*slot);
        layout.has_slot(*slot) && at < range.end && range.start < at + SLOT
    };
    (0..layout.slot_count()).filter(within).any(|slot| store.slots.map().valid(slot) != 0)
}
