//! Destaging: blocks that the log holds go to their slots, neighbours together, many at a time.

use super::job::{Op, Waiter};
use super::store::Durable;
use super::write::join;
use alloc::vec::Vec;
use base::BLOCK;
use seam::Effects;

/// Runs on their way at the same time, and how many may be left before more are sent: one at a time
/// would cost a system call, and a wake-up of the device, each.
const RUNS: u32 = 32;
const FEW: u32 = RUNS / 2;

/// How far it is.
#[derive(Debug, Default)]
pub struct Destage {
    /// The queue waits for room.
    pub(super) wanted: bool,
    /// It runs until little is left.
    running: bool,
    /// The last block that was taken, or where to begin.
    cursor: (u32, u32),
    busy: u32,
}

impl Destage {
    /// Runs are on their way.
    pub(super) fn is_busy(&self) -> bool {
        self.busy > 0
    }
}

impl Durable {
    /// Sends runs to their slots, if it is time.
    pub(super) fn run_destage(&mut self, out: &mut Effects) {
        let (bytes, most) = (self.overlay.bytes(), self.tuning.overlay_bytes);
        let d = &mut self.destage;
        d.running = d.wanted || bytes > most / 2 || (d.running && bytes > most / 4);
        d.wanted = false;
        if !d.running && !self.checkpoint_wants_home() {
            return;
        }
        if self.destage.busy > FEW {
            return;
        }
        while self.destage.busy < RUNS {
            let from = self.destage.cursor;
            let run = self.overlay.next_run(from).or_else(|| self.overlay.next_run((0, 0)));
            let Some(run) = run else { return };
            self.destage.cursor = (run.slot, run.first + run.blocks.len() as u32);
            self.destage.busy += 1;
            self.map.pin_slot(run.slot);
            let at = self.layout.slot(run.slot) + u64::from(run.first * BLOCK);
            let named =
                |(i, (_, record)): (usize, &(_, u64))| (run.slot, run.first + i as u32, *record);
            let blocks = run.blocks.iter().enumerate().map(named).collect();
            let body = join(run.blocks.into_iter().map(|(data, _)| data).collect(), out);
            self.write(at, body, Op::Home(blocks), out);
        }
    }

    /// A run is in its slot.
    pub(super) fn home_written(&mut self, blocks: Vec<(u32, u32, u64)>) {
        self.destage.busy -= 1;
        blocks.iter().for_each(|(slot, block, record)| self.overlay.wrote(*slot, *block, *record));
        self.map.unpin(blocks[0].0);
        self.await_flush(Waiter::Home(blocks));
    }

    /// A run is in its slot durably.
    pub(super) fn home_durable(&mut self, blocks: Vec<(u32, u32, u64)>) {
        self.stats.destaged += blocks.len() as u64;
        for (slot, block, record) in blocks {
            self.overlay.flushed(slot, block, record);
        }
    }
}
