//! The operations that give free slots back. `holes` chooses the slots and the time.

use super::layout::SLOT;
use super::store::Durable;
use core::ops::Range;
use seam::{DiskError, Effects, Note};

impl Durable {
    /// Begins to give space back, if that is due. `rests`: nothing was written since the last call.
    pub(super) fn begin_holes(&mut self, rests: bool, out: &mut Effects) {
        if self.tuning.holes > 0 {
            self.slots.holes().rested(self.tuning.holes, rests);
            self.begin_hole(out);
        }
    }

    fn begin_hole(&mut self, out: &mut Effects) {
        if let Some(run) = self.slots.begin_hole() {
            let at = self.content.layout.slot(run.start);
            self.ops.punch(at, run.len() as u64 * SLOT, out);
        }
    }

    /// Handles the end of an operation on `bytes`. A failure does not harm the device.
    pub(super) fn end_hole(&mut self, bytes: u64, error: Option<DiskError>, out: &mut Effects) {
        self.slots.end_hole();
        match error {
            None => {
                self.stats.given_back += bytes;
                if !self.jobs.is_empty() {
                    self.slots.holes().yields();
                }
                self.begin_hole(out);
            }
            Some(why) => {
                self.slots.holes().stop();
                out.note(Note::SpaceKept { device: self.content.identity.device, why });
            }
        }
    }

    /// Returns true if a slot in this byte range of the device holds data. For judges.
    pub fn holds_data(&self, range: Range<u64>) -> bool {
        let layout = &self.content.layout;
        let within = |slot: &u32| {
            let at = layout.slot(*slot);
            layout.has_slot(*slot) && at < range.end && range.start < at + SLOT
        };
        (0..layout.slot_count()).filter(within).any(|slot| self.slots.map().valid(slot) != 0)
    }
}
