//! The questions of a queue to the MDM: changes of reservations, and their report.
//!
//! Invariant: a change has one answer, that of the MDM. One that was not answered may still be
//! done, until the owner's next change of this volume is answered
//! (docs/design/0010-reservations.md).

use super::queue::Queue;
use super::reserve::{Wish, refused, report};
use super::status::Status;
use super::table::Work;
use super::wire::Turn;
use crate::piece::tag;
use crate::{Action, Asked, Question};
use base::VolumeId;

impl Queue {
    /// Asks the MDM for the change that a command wants, with its keys.
    pub(crate) fn change(
        &mut self,
        handle: u32,
        (volume, wish): (VolumeId, Wish),
        keys: &[u8],
        turn: &mut Turn<'_>,
    ) {
        let change = match wish.change(keys) {
            Ok(change) => change,
            Err(status) => return self.end(handle, status, turn),
        };
        let Some(task) = self.table.get(handle) else { return };
        (task.work, task.pieces) = (Work::Change(volume), 1);
        let question = Question::Reserve(change);
        turn.ask(Action::Ask { tag: tag(handle, 0, 0), volume, question });
    }

    /// Handles an answer of the MDM.
    pub(crate) fn asked(&mut self, tag: u64, asked: Asked<'_>, turn: &mut Turn<'_>) {
        let handle = tag as u32;
        let Some(task) = self.table.get(handle).filter(|task| task.pieces > 0) else { return };
        let (cid, failed) = (task.cid, task.failed);
        match (&task.work, asked) {
            (Work::Change(_), Asked::Reserved(result)) => {
                let status = result.map_or_else(refused, |()| Status::SUCCESS);
                self.end(handle, status, turn);
            }
            (Work::Report(_), _) if let Some((_, status)) = failed => {
                self.end(handle, status, turn);
            }
            (Work::Report(range), Asked::Table(table)) => {
                let body = report(table, range.len, turn.pool);
                self.forget(handle);
                self.send(cid, body, turn);
            }
            (Work::Change(_) | Work::Report(_), Asked::Nobody) => {
                self.end(handle, Status::NOT_READY, turn);
            }
            _ => return,
        }
        self.read_more(turn);
    }
}
