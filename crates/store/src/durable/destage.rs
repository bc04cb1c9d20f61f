//! Destaging: blocks that are in the log go to their slots, neighbours together, many at a time.
//! Once enough blocks wait, they go as fast as new ones come, and not in long bursts, which would
//! keep jobs from the device.
//!
//! Blocks go in the order of their places. When a block has been left behind for so long that much
//! newer data was destaged before it, it goes next.

use super::commit::HELD;
use super::job::{Op, Waiter};
use super::store::Durable;
use super::unitmap::{Access, Pin};
use super::write::join;
use alloc::vec::Vec;
use base::BLOCK;
use seam::Effects;

/// Number of runs in flight, and how many may be left before more are sent. One run at a time would
/// cost a system call and a wake-up of the device each.
const RUNS: u32 = 32;
const FEW: u32 = RUNS / 2;

/// Progress of destaging.
#[derive(Debug, Default)]
pub struct Destage {
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
}

impl Durable {
    /// Sends runs to their slots, if destaging is due.
    pub(super) fn run_destage(&mut self, out: &mut Effects) {
        let (bytes, most) = (self.overlay.bytes(), self.tuning.overlay_bytes);
        let due = core::mem::take(&mut self.destage.wanted) || bytes > most / 2;
        if self.destage.busy > FEW {
            return;
        }
        if self.overlay.bytes_behind() > HELD / 2 * most as u64
            && let Some(oldest) = self.overlay.oldest_ready()
        {
            self.destage.cursor = oldest;
        }
        while self.destage.busy < RUNS {
            if !(due || self.checkpoint_wants_home() && self.checkpoint_may_go_on()) {
                return;
            }
            let from = self.destage.cursor;
            let run = self.overlay.next_run(from).or_else(|| self.overlay.next_run((0, 0)));
            let Some(run) = run else { return };
            self.destage.cursor = (run.slot, run.first + run.blocks.len() as u32);
            self.destage.busy += 1;
            self.checkpoint_takes_home(&run);
            let pin = self.map.pin_slot(run.slot, Access::Hold);
            let at = self.layout.slot(run.slot) + u64::from(run.first * BLOCK);
            let named =
                |(i, (_, record)): (usize, &(_, u64))| (run.slot, run.first + i as u32, *record);
            let blocks = run.blocks.iter().enumerate().map(named).collect();
            let body = join(run.blocks.into_iter().map(|(data, _)| data).collect(), out);
            self.write(at, body, Op::Home(pin, blocks), out);
        }
    }

    /// Notes that a run was written to its slot.
    pub(super) fn home_written(&mut self, pin: Pin, blocks: Vec<(u32, u32, u64)>) {
        self.destage.busy -= 1;
        blocks.iter().for_each(|(slot, block, record)| self.overlay.wrote(*slot, *block, *record));
        self.map.unpin(pin);
        self.await_flush(Waiter::Home(blocks));
    }

    /// Notes that a run is durable in its slot.
    pub(super) fn home_durable(&mut self, blocks: Vec<(u32, u32, u64)>) {
        self.stats.destaged += blocks.len() as u64;
        for (slot, block, record) in blocks {
            self.overlay.flushed(slot, block, record);
        }
    }
}
