//! Task management (RFC 7143 11.5), and the ways in which a session ends.
//!
//! Invariants:
//! - A command that was answered is not aborted, and a command that is aborted is not answered.
//! - An answer of task management comes when nothing of the commands that it ended can take
//!   effect any more: their requests are withdrawn, here and in the other sessions that it
//!   concerns. The exception is PERSISTENT RESERVE OUT. A change that was sent to the MDM may
//!   still be done, until the owner's next change of this volume is answered
//!   (docs/design/0010-reservations.md).
//! - Answers come in the order of the requests, except the refusal of one for which there is no
//!   room.
//!
//! The owner ensures that a withdrawn request has no later effect (rule R16).

use super::full::{BESIDE_WINDOW, Full, LEAVE, reject};
use super::pdu::{Common, Management};
use super::proto::*;
use super::reply::Reply;
use super::tasks::{Flow, Task};
use super::wire::Turn;
use crate::piece::tag;
use crate::reserve::{Access, Notice};
use crate::scsi::{self, Attention, Step};
use crate::{Action, Cleared};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::Time;
use seam::BlockError;

/// An answer that waits until commands have ended.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    itt: u32,
    response: u8,
    /// Commands of other sessions have to end first, too.
    others: bool,
    /// The connection is closed after it.
    closes: bool,
}

/// Unanswered task management requests, and the end of the session.
#[derive(Default, Debug)]
pub(crate) struct Managed {
    waiting: VecDeque<Waiting>,
    /// Commands whose requests are being withdrawn.
    withdrawing: usize,
    /// The answer to a logout, and its tag.
    logout: Option<(u32, u8)>,
    /// When the initiator was asked to leave.
    left: Option<Time>,
}

impl Managed {
    /// Returns true if the initiator was asked to log out and its time for that is over.
    pub(crate) fn leave_by(&mut self, now: Time) -> bool {
        let since = *self.left.get_or_insert(now);
        now.since(since) >= LEAVE
    }

    /// Returns the number of unanswered task management requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true while requests of commands that ended are being withdrawn.
    pub(crate) fn is_withdrawing(&self) -> bool {
        self.withdrawing > 0
    }
}

impl Full {
    /// Handles a task management request.
    pub(crate) fn manage(&mut self, common: &Common, request: &Management, turn: &mut Turn<'_>) {
        if self.managed.waiting.len() >= BESIDE_WINDOW {
            return turn.send(Reply::management(common.itt, FUNCTION_REJECTED));
        }
        let unit = scsi::is_unit(common.lun);
        let mut clears = None;
        let response = match request.function {
            CLEAR_ACA => FUNCTION_NOT_SUPPORTED,
            TASK_REASSIGN => REASSIGN_NOT_SUPPORTED,
            ABORT_TASK | ABORT_TASK_SET | CLEAR_TASK_SET | LOGICAL_UNIT_RESET if !unit => {
                LUN_DOES_NOT_EXIST
            }
            ABORT_TASK => self.abort_task(common, request, turn),
            ABORT_TASK_SET => {
                self.abort_all(turn);
                FUNCTION_COMPLETE
            }
            CLEAR_TASK_SET | LOGICAL_UNIT_RESET | TARGET_WARM_RESET | TARGET_COLD_RESET => {
                clears = Some(match request.function {
                    CLEAR_TASK_SET => Cleared::Tasks,
                    TARGET_COLD_RESET => Cleared::Target,
                    _ => Cleared::Unit,
                });
                FUNCTION_COMPLETE
            }
            _ => FUNCTION_NOT_SUPPORTED,
        };
        if let Some(what) = clears {
            self.abort_all(turn);
            turn.ask(Action::Clear { what });
            if what >= Cleared::Unit
                && let Some(device) = &mut self.device
            {
                device.attention(Attention::Reset);
            }
        }
        let closes = clears == Some(Cleared::Target);
        let waiting = Waiting { itt: common.itt, response, others: clears.is_some(), closes };
        self.managed.waiting.push_back(waiting);
        self.settle(turn);
    }

    fn abort_task(&mut self, common: &Common, request: &Management, turn: &mut Turn<'_>) -> u8 {
        if let Some(handle) = self.tasks.find(request.task) {
            let sn = self.tasks.get(handle).map(|task| task.common.cmd_sn);
            if sn != Some(request.task_sn) {
                return FUNCTION_REJECTED; // another command has the tag now
            }
            self.abort(handle, turn);
            self.ask_more(turn);
            self.read_more(turn);
            return FUNCTION_COMPLETE;
        }
        // 11.5.1: a command that has not arrived, and is older than this request, never will.
        let older = request.task_sn != common.cmd_sn && not_before(common.cmd_sn, request.task_sn);
        if older && turn.wire.is_expected(request.task_sn) {
            turn.wire.skip(request.task_sn);
            self.strays.add(request.task);
            return FUNCTION_COMPLETE;
        }
        TASK_DOES_NOT_EXIST
    }

    /// Ends a command without an answer.
    fn abort(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let Some(task) = self.tasks.abort(handle) else { return };
        if matches!(task.flow, Flow::Unsolicited(_) | Flow::Burst(_)) {
            self.strays.add(task.common.itt);
        }
        if let (Step::Answer(answer), Some(device)) = (&task.step, &mut self.device) {
            device.take_back(answer);
        }
        let begun = task.pieces > 0 && !self.reading.contains(&handle);
        self.asking.retain(|of| *of != handle);
        self.reading.retain(|of| *of != handle);
        self.comparing.retain(|of, _| *of as u32 != handle);
        if begun {
            self.managed.withdrawing += 1;
            turn.ask(Action::Withdraw { tag: tag(handle, 0, 0) });
        } else {
            self.forget(handle, turn);
        }
    }

    /// Ends all commands without an answer. Returns true if there was at least one.
    fn abort_all(&mut self, turn: &mut Turn<'_>) -> bool {
        let all: Vec<u32> = self.tasks.handles(|task: &Task| !task.aborted).collect();
        all.iter().for_each(|handle| self.abort(*handle, turn));
        !all.is_empty()
    }

    /// Handles the end of the withdrawn requests of a command.
    pub(crate) fn withdrawn(&mut self, tag: u64, turn: &mut Turn<'_>) {
        let handle = tag as u32;
        if self.tasks.get(handle).is_some_and(|task| task.aborted) {
            self.managed.withdrawing -= 1;
            self.forget(handle, turn);
            self.ask_more(turn);
            self.read_more(turn);
            self.settle(turn);
        }
    }

    /// Ends commands because another host has asked for that.
    pub(crate) fn cleared(&mut self, what: Cleared, turn: &mut Turn<'_>) {
        let any = self.abort_all(turn);
        if let Some(device) = &mut self.device {
            match what {
                Cleared::Tasks if any => device.attention(Attention::Cleared),
                Cleared::Tasks => {}
                Cleared::Unit | Cleared::Target => device.attention(Attention::Reset),
            }
        }
        if what == Cleared::Target {
            turn.close(None);
        }
    }

    /// Records that the commands of other sessions have ended.
    pub(crate) fn others_cleared(&mut self, turn: &mut Turn<'_>) {
        if let Some(waiting) = self.managed.waiting.iter_mut().find(|waiting| waiting.others) {
            waiting.others = false;
        }
        self.settle(turn);
    }

    /// Sends the answers that have nothing left to wait for.
    pub(crate) fn settle(&mut self, turn: &mut Turn<'_>) {
        if self.managed.withdrawing > 0 {
            return;
        }
        while let Some(waiting) = self.managed.waiting.pop_front_if(|waiting| !waiting.others) {
            turn.send(Reply::management(waiting.itt, waiting.response));
            if waiting.closes {
                return turn.close(None);
            }
        }
        if let Some((itt, response)) = self.managed.logout {
            turn.send(Reply::logout(itt, response));
            turn.close(None);
        }
    }

    /// Handles the request to end the session, with its reason and connection.
    pub(crate) fn logout(
        &mut self,
        common: &Common,
        (reason, cid): (u8, u16),
        head: &[u8; BHS],
        turn: &mut Turn<'_>,
    ) {
        if self.managed.logout.is_some() {
            return reject(REJECT_PROTOCOL, head, turn);
        }
        if reason == LOGOUT_RECOVERY {
            return turn.send(Reply::logout(common.itt, RECOVERY_NOT_SUPPORTED));
        }
        if reason != 0 && cid != self.nexus.cid {
            return turn.send(Reply::logout(common.itt, CID_NOT_FOUND));
        }
        self.abort_all(turn);
        self.managed.logout = Some((common.itt, LOGGED_OUT));
        self.settle(turn);
    }

    /// Ends all commands, because the volume is gone. They send no more requests to the volume, and
    /// no more R2Ts to the initiator. From now on, the logical unit does not exist.
    pub(crate) fn volume_gone(&mut self, turn: &mut Turn<'_>) {
        const GONE: BlockError = BlockError::NoSuchVolume;
        let Some(device) = self.device.as_mut().filter(|device| !device.is_removed()) else {
            return;
        };
        device.remove();
        self.fail_those(|_| true, GONE, turn);
        self.leave(turn);
    }

    /// Ends all commands, because the mapping under which they came has ended. They send no more
    /// requests, and what their data was meant for is not written. The host may use the volume
    /// under a new mapping, and is told to repeat them.
    pub(crate) fn remapped(&mut self, turn: &mut Turn<'_>) {
        self.fail_those(|_| true, BlockError::Forgotten, turn);
    }

    /// Sets the access that reservations leave to the host, and adds the unit attention about it.
    /// Commands that are not allowed any more send no further requests. The owner ends those under
    /// way with [`BlockError::Reserved`].
    pub(crate) fn reserved(&mut self, access: Access, notice: Option<Notice>, turn: &mut Turn<'_>) {
        let Some(device) = &mut self.device else { return };
        device.set_access(access);
        notice.into_iter().for_each(|notice| device.attention(notice.into()));
        self.fail_those(|task| !task.needs().is_within(access), BlockError::Reserved, turn);
    }

    /// Fails commands. Those with requests under way are answered when these have ended.
    fn fail_those(&mut self, which: impl Fn(&Task) -> bool, why: BlockError, turn: &mut Turn<'_>) {
        let all = self.tasks.handles(|task: &Task| !task.aborted && which(task));
        let all: Vec<u32> = all.collect();
        for handle in all {
            match self.tasks.get(handle) {
                Some(task) if task.waits() => self.give_up(handle, why, turn),
                Some(task) => task.end(why.into()),
                None => {}
            }
        }
    }

    /// Asks the initiator to log out, because the volume is gone or the process stops. New commands
    /// are not executed.
    pub(crate) fn leave(&mut self, turn: &mut Turn<'_>) {
        if !core::mem::replace(&mut self.leaving, true) {
            turn.send(Reply::ask_logout(LEAVE.as_secs() as u16));
        }
    }
}
