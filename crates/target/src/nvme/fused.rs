//! Fused commands: a Compare and the Write that follows it, as one step of the volume (base 6.2).
//!
//! Invariants:
//! - The Write takes effect only if the Compare has found its data, and nothing else changes the
//!   range in between (rule R17). Both are one request of the volume, which begins when the data of
//!   both has arrived.
//! - The two commands follow each other in the queue. Both are answered at the same time, the
//!   Compare first. If one fails, the other one was aborted because of that.

use super::command::Command;
use super::proto::*;
use super::queue::Queue;
use super::status::Status;
use super::subsystem::Subsystem;
use super::table::{First, Flow, Fused, Gather, Range, Task, Work};
use super::wire::Turn;
use crate::Action;
use crate::piece::tag;
use base::{BLOCK as STORED, Time};
use seam::{BlockError, BlockKind, BlockRequest, Buf};

impl Queue {
    /// Handles a command that is fused, or that follows the first of two fused commands.
    pub(crate) fn fused(
        &mut self,
        command: &Command,
        data: (Buf, bool),
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) {
        let (cid, fuse) = (command.cid(), command.fuse());
        if fuse == FUSE_SECOND && self.first.is_none() {
            return self.answer(cid, Status::MISSING_FUSED, 0, turn);
        }
        if fuse == FUSE_SECOND && self.first == Some(First::Failed) {
            self.first = None;
            return self.answer(cid, Status::FAILED_FUSED, 0, turn);
        }
        if fuse != FUSE_SECOND
            && let Some(First::Waits(alone)) = self.first.take()
        {
            self.fused_fails(alone, Status::MISSING_FUSED, turn);
        }
        let Err(status) = self.begin(command, data, subsystem, turn) else { return };
        if let Some(First::Waits(first)) = self.first.take() {
            self.fused_fails(first, Status::FAILED_FUSED, turn);
        }
        if fuse == FUSE_FIRST {
            self.first = Some(First::Failed);
        }
        self.answer(cid, status, 0, turn);
    }

    /// Checks the range of a fused command. The second one has the range of the first one, which is
    /// in one block of the store.
    pub(crate) fn fused_range(&mut self, range: Range, is_second: bool) -> Result<Fused, Status> {
        let stored = u64::from(STORED);
        if range.at % stored + u64::from(range.len) > stored {
            return Err(Status::INVALID_FIELD);
        }
        let first = match self.first {
            Some(First::Waits(first)) if is_second => self.table.get(first).and_then(of),
            _ => None,
        };
        if is_second && first.is_none_or(|first| first.range != range) {
            return Err(Status::INVALID_FIELD);
        }
        Ok(Fused { range, is_second, partner: None })
    }

    /// Records that a fused command has got this handle.
    pub(crate) fn fused_begins(&mut self, handle: u32) {
        match (self.table.get(handle).and_then(of), self.first) {
            (Some(Fused { is_second: true, .. }), Some(First::Waits(first))) => {
                self.first = None;
                for (of, partner) in [(first, handle), (handle, first)] {
                    if let Some(Task { work: Work::Gather(Gather::Fused(fused), _), .. }) =
                        self.table.get(of)
                    {
                        fused.partner = Some(partner);
                    }
                }
            }
            _ => self.first = Some(First::Waits(handle)),
        }
    }

    /// Records that a fused command has failed, and ends it and its partner when no data is on its
    /// way.
    pub(crate) fn fused_fails(&mut self, handle: u32, status: Status, turn: &mut Turn<'_>) {
        if let Some(task) = self.table.get(handle) {
            task.fail(0, status);
        }
        self.fused_advance(handle, turn);
    }

    /// Ends the first of two fused commands, if it has waited too long for the second one.
    pub(crate) fn fused_tick(&mut self, now: Time, turn: &mut Turn<'_>) {
        let Some(First::Waits(first)) = self.first else { return };
        let late = |since: Time| now.since(since) >= self.patience();
        if self.table.since(first).is_some_and(late) {
            // The second one may be on its way, so the host should repeat both.
            self.fused_fails(first, Status::NOT_READY, turn);
        }
    }

    /// Continues fused commands after data has arrived, or after one of them has failed.
    pub(crate) fn fused_advance(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let Some(Fused { range, is_second, partner }) = self.table.get(handle).and_then(of) else {
            return;
        };
        let both = match is_second {
            true => [partner, Some(handle)],
            false => [Some(handle), partner],
        };
        let mut tasks = both.into_iter().flatten();
        let failed = tasks.clone().any(|of| self.table.get(of).is_some_and(|t| t.failed.is_some()));
        if failed {
            for of in tasks.clone() {
                self.stop_asking(of);
            }
        }
        let idle = |task: &mut Task| task.flow == Flow::Idle && task.pieces == 0;
        if !tasks.all(|of| self.table.get(of).is_some_and(idle)) {
            return;
        }
        match both {
            [Some(first), second] if failed => {
                if self.first == Some(First::Waits(first)) {
                    self.first = Some(First::Failed);
                }
                self.fused_end(first, second, Status::FAILED_FUSED, turn);
            }
            [Some(first), Some(second)] => self.fused_ask(range, first, second, turn),
            _ => {} // the second one has not arrived
        }
    }

    /// Asks the volume to compare, and then to write.
    fn fused_ask(&mut self, range: Range, first: u32, second: u32, turn: &mut Turn<'_>) {
        let Range { volume, at, len } = range;
        let mut body = turn.pool.alloc(2 * len as usize);
        for (half, of) in body.as_mut().chunks_exact_mut(len as usize).zip([first, second]) {
            if let Some(Task { work: Work::Gather(_, data), .. }) = self.table.get(of) {
                half.copy_from_slice(&core::mem::take(data));
            }
        }
        if let Some(task) = self.table.get(first) {
            task.pieces = 1;
        }
        let request = BlockRequest { volume, kind: BlockKind::CompareWrite, at, len, body };
        turn.ask(Action::Request { tag: tag(first, 0, 0), request });
    }

    /// Handles the result of the request. What is done is reported as done, even if the host has
    /// lost its access meanwhile: else it would not know that it has a lock.
    pub(crate) fn fused_done(
        &mut self,
        first: u32,
        result: Result<Buf, BlockError>,
        turn: &mut Turn<'_>,
    ) {
        let Some(task) = self.table.get(first) else { return };
        task.pieces = 0;
        let Some(Fused { partner, .. }) = of(task) else { return };
        match result {
            Ok(_) => {
                for of in [Some(first), partner].into_iter().flatten() {
                    if let Some(task) = self.table.get(of) {
                        task.failed = None;
                    }
                }
                self.fused_end(first, partner, Status::SUCCESS, turn);
            }
            Err(error) => {
                task.fail(0, Status::of(error, true));
                self.fused_end(first, partner, Status::FAILED_FUSED, turn);
            }
        }
    }

    /// Ends both commands. `other` is the status of one that has not failed itself.
    fn fused_end(&mut self, first: u32, second: Option<u32>, other: Status, turn: &mut Turn<'_>) {
        for of in [Some(first), second].into_iter().flatten() {
            let failed = self.table.get(of).and_then(|task| task.failed);
            self.end(of, failed.map_or(other, |(_, status)| status), turn);
        }
    }
}

/// Returns a command's part of a fused operation; `None` if the command is not fused.
fn of(task: &mut Task) -> Option<Fused> {
    match task.work {
        Work::Gather(Gather::Fused(fused), _) => Some(fused),
        _ => None,
    }
}
