//! Destaging: blocks that are in the log go to their slots, neighbours together, many at a time.
//! Once enough blocks wait, they go as fast as new ones come, and not in long bursts, which would
//! keep jobs from the device.
//!
//! Blocks go in the order of their places. When a block has been left behind for so long that much
//! newer data was destaged before it, it goes next.

use super::commit::HELD;
use super::job::Op;
use super::store::Durable;
use super::write::join;
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
}

impl Durable {
    /// Sends runs to their slots, if destaging is due.
    pub(super) fn run_destage(&mut self, out: &mut Effects) {
        let (bytes, most) = (self.slots.overlay().bytes(), self.tuning.overlay_bytes);
        let due = core::mem::take(&mut self.destage.wanted) || bytes > most / 2;
        if self.destage.busy > FEW {
            return;
        }
        if self.slots.overlay().bytes_behind() > HELD / 2 * most as u64
            && let Some(oldest) = self.slots.overlay().oldest_ready()
        {
            self.destage.cursor = oldest;
        }
        while self.destage.busy < RUNS {
            let wanted = self.checkpoints.want_home(self.slots.overlay().oldest());
            if !(due || wanted && self.checkpoints.may_go_on(&self.progress())) {
                return;
            }
            let Some((run, pin)) = self.slots.next_run(self.destage.cursor) else { return };
            self.destage.cursor = (run.slot, run.first + run.blocks.len() as u32);
            self.destage.busy += 1;
            assert!(self.destage.busy <= RUNS, "a bounded number of runs is in flight");
            self.checkpoints.take_home(&run);
            let at = self.content.layout.slot(run.slot) + u64::from(run.first * BLOCK);
            let named =
                |(i, (_, record)): (usize, &(_, u64))| (run.slot, run.first + i as u32, *record);
            let blocks = run.blocks.iter().enumerate().map(named).collect();
            let body = join(run.blocks.into_iter().map(|(data, _)| data).collect(), out);
            self.ops.write(at, body, Op::Home(pin, blocks), out);
        }
    }
}
