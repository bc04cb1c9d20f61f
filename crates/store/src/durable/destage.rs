//! Destaging: blocks that are in the log go to their slots, neighbours together, many at a time.
//! Once enough blocks wait, they go as fast as new ones come, and not in long bursts, which would
//! keep jobs from the device.
//!
//! Blocks go in the order of their places. When a block has been left behind for so long that much
//! newer data was destaged before it, it goes next.

use super::job::Op;
use super::layout::Layout;
use super::ops::{Ops, join};
use super::overlay::{Overlay, Run};
use super::slots::Slots;
use super::tuning::HELD;
use super::unitmap::Pin;
use base::BLOCK;
use seam::Effects;

/// The most runs in flight.
const RUNS: u32 = 32;
/// More runs are sent when so many are left in flight. If each run that ends were replaced at once,
/// each would cost a system call and a wake-up of the device.
const FEW: u32 = RUNS / 2;

/// Progress of destaging.
#[derive(Debug, Default)]
pub(super) struct Destage {
    /// The queue of records waits for room.
    pub(super) wanted: bool,
    /// Slot and block from which the next run is searched.
    cursor: (u32, u32),
    busy: u32,
}

impl Destage {
    /// True while runs are in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// Records that a run was written.
    pub(super) fn wrote(&mut self) {
        assert!(self.busy > 0, "a run ends once");
        self.busy -= 1;
    }

    /// Returns whether destaging is due for the overlay, which may hold `most` bytes. `None`:
    /// enough runs are in flight. The oldest block goes next if it was left behind for too long.
    pub(super) fn begin(&mut self, overlay: &Overlay, most: usize) -> Option<bool> {
        let due = core::mem::take(&mut self.wanted) || overlay.bytes() > most / 2;
        if self.busy > FEW {
            return None;
        }
        if overlay.bytes_behind() > HELD / 2 * most as u64
            && let Some(oldest) = overlay.oldest_ready()
        {
            self.cursor = oldest;
        }
        Some(due)
    }

    /// True if another run may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.busy < RUNS
    }

    /// Returns the next run, which will be in flight.
    pub(super) fn next(&mut self, slots: &mut Slots) -> Option<(Run, Pin)> {
        let (run, pin) = slots.next_run(self.cursor)?;
        self.cursor = (run.slot, run.first + run.blocks.len() as u32);
        self.busy += 1;
        assert!(self.busy <= RUNS, "a bounded number of runs is in flight");
        Some((run, pin))
    }
}

/// Writes a run to its slot.
pub(super) fn write((run, pin): (Run, Pin), layout: &Layout, ops: &mut Ops, out: &mut Effects) {
    let at = layout.slot(run.slot) + u64::from(run.first * BLOCK);
    let named = |(i, (_, record)): (usize, &(_, u64))| (run.slot, run.first + i as u32, *record);
    let blocks = run.blocks.iter().enumerate().map(named).collect();
    let body = join(run.blocks.into_iter().map(|(data, _)| data).collect(), out);
    ops.write(at, body, Op::Home(pin, blocks), out);
}
