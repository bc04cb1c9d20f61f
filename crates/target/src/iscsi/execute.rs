//! SCSI commands of a session, from the first step to the answer.
//!
//! Invariants:
//! - A command has exactly one answer, or none if it was aborted.
//! - It is answered when all its requests have ended, and the initiator has sent all data that it
//!   may send for the command. So the tag is free after the answer.
//! - After a failure no more data is asked for. If several pieces fail, the one with the lowest
//!   offset decides the answer, in whatever order they fail: hosts assume that everything before
//!   the block that the sense data names was written.
//!
//! Reads begin in the order of arrival, as far as the session's credit allows. Other commands begin
//! at once. A command that waits longer than `Limits::target_patience` is answered like one whose
//! data has no primary. The owner applies the same time to requests under way, from the arrival of
//! their command ([`Session::since`](super::Session::since)).

use super::full::Full;
use super::pdu;
use super::reply::Reply;
use super::tasks::{Flow, Task};
use super::wire::Turn;
use crate::piece::{piece, tag};
use crate::scsi::{Answer, Command, Failure, Request, Residual, Sense, Status, Step, Transfer};
use crate::{Action, Asked, Question};
use seam::{BlockError, BlockKind, BlockRequest, Buf};

impl Full {
    /// Handles a command and its immediate data.
    pub(crate) fn command(
        &mut self,
        common: &pdu::Common,
        command: &pdu::Command<'_>,
        data: Buf,
        turn: &mut Turn<'_>,
    ) {
        let unsolicited = self.params.unsolicited().min(command.expected);
        let immediate = data.len() as u32;
        if (immediate > 0 && !self.params.immediate_data)
            || immediate > unsolicited
            || (!common.last && self.params.initial_r2t)
        {
            return turn.close(Some("sent more data with a command than was agreed"));
        }
        let announced = |announces: bool| if announces { command.expected } else { 0 };
        let scsi = Command {
            lun: common.lun,
            cdb: command.cdb,
            attribute: command.attribute,
            reads: announced(command.reads),
            sends: announced(command.writes),
        };
        let Some(device) = &mut self.device else { return };
        let mut step = if self.leaving && !device.is_removed() {
            Step::Answer(Answer::bare(Status::Busy))
        } else {
            device.start(&scsi, turn.pool)
        };
        if !self.places.admits_write() && !self.has_room(&step) {
            step = Step::Answer(Answer::bare(Status::TaskSetFull));
        }
        let asks = !matches!(step, Step::Answer(_) | Step::Read(_) | Step::Write(_));
        let now = self.now;
        let handle = self.tasks.insert(common.itt, || Task::new(common, now, step, unsolicited));
        if !common.immediate {
            turn.wire.opened();
        }
        if asks {
            self.ask(handle, turn);
        }
        if !data.is_empty() {
            self.arrive(handle, data, turn);
        }
        if common.last {
            self.end_unsolicited(handle, turn);
        }
    }

    /// Returns true if the session has room for the requests of this step, though it admits no
    /// command that writes.
    fn has_room(&self, step: &Step) -> bool {
        match step {
            Step::Write(_) => false,
            Step::Answer(_) | Step::Reserve(_) | Step::Report(_) | Step::Activate => true,
            Step::Read(_) | Step::Verify(_) | Step::Gather(_) | Step::Run(_) => {
                self.places.has_room()
            }
        }
    }

    /// Makes the first request of a command that needs no data of the host and is no read, or asks
    /// the MDM.
    fn ask(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let (Some(task), Some(device)) = (self.tasks.get(handle), &self.device) else { return };
        let question = match &task.step {
            Step::Run(plan) => {
                let request = plan.request();
                task.pieces = 1;
                return self.ask_volume(handle, request, turn);
            }
            Step::Reserve(change) => Question::Reserve(*change),
            Step::Report(_) => Question::Report,
            Step::Activate => Question::Activate,
            Step::Answer(_) | Step::Gather(_) => return,
            Step::Read(_) | Step::Write(_) | Step::Verify(_) => return,
        };
        task.pieces = 1;
        let volume = device.unit().volume;
        turn.ask(Action::Ask { tag: tag(handle, 0, 0), volume, question });
    }

    /// Continues a command after data has arrived or a request is done: asks for more data, goes to
    /// the next step, or answers.
    #[inline]
    pub(crate) fn advance(&mut self, handle: u32, turn: &mut Turn<'_>) {
        if self.tasks.get(handle).is_some_and(|task| task.goes_on()) {
            self.go_on(handle, turn);
        }
    }

    /// Continues a command for which [`Task::goes_on`] is true.
    pub(crate) fn go_on(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let Some(task) = self.tasks.get(handle) else { return };
        if task.received < task.wants && task.failed.is_none() {
            task.flow = Flow::Queued;
            self.asking.push_back(handle);
            return self.ask_more(turn);
        }
        if let Some(failed) = task.failed.take() {
            return self.answer(handle, failed.1, turn);
        }
        match &mut task.step {
            Step::Answer(answer) => {
                let answer = core::mem::replace(answer, Answer::good());
                self.answer(handle, answer, turn);
            }
            Step::Write(transfer) | Step::Verify(transfer) => {
                let residual = transfer.residual;
                self.end(handle, Status::Good, residual, turn);
            }
            Step::Gather(gather) => {
                let (gather, data) = (*gather, core::mem::take(&mut task.gathered));
                let Some(device) = &mut self.device else { return };
                task.step = device.gathered(gather, data, turn.pool);
                self.ask(handle, turn);
                self.advance(handle, turn);
            }
            // The answer comes with the result.
            Step::Read(_) | Step::Run(_) => {}
            Step::Reserve(_) | Step::Report(_) | Step::Activate => {}
        }
    }

    /// Handles an answer of the MDM.
    pub(crate) fn asked(&mut self, tag: u64, asked: Asked<'_>, turn: &mut Turn<'_>) {
        let handle = tag as u32;
        let (Some(task), Some(device)) = (self.tasks.get(handle), &self.device) else { return };
        let answer = match (&task.step, asked) {
            (Step::Reserve(_), Asked::Reserved(result)) => device.reserved(result),
            (Step::Report(report), Asked::Table(table)) => device.report(*report, table, turn.pool),
            (Step::Activate, Asked::Activated) => Answer::good(),
            (Step::Reserve(_) | Step::Activate, Asked::Nobody) => Answer::check(Sense::NO_PRIMARY),
            (Step::Report(_), Asked::Nobody) => Answer::bare(Status::Busy),
            _ => return,
        };
        (task.step, task.pieces) = (Step::Answer(answer), 0);
        self.advance(handle, turn);
    }

    /// Sends a request of a command to the volume.
    fn ask_volume(&mut self, handle: u32, request: Request, turn: &mut Turn<'_>) {
        let Some(device) = &self.device else { return };
        let Request { kind, at, len, body } = request;
        let request = BlockRequest { volume: device.unit().volume, kind, at, len, body };
        if let Some(task) = self.tasks.get(handle) {
            task.asked += 1;
            self.places.take();
        }
        turn.ask(Action::Request { tag: tag(handle, 0, 0), request });
    }

    /// Begins a read, or lets it wait for credit behind other reads.
    #[inline]
    pub(crate) fn read(&mut self, handle: u32, turn: &mut Turn<'_>) {
        if !self.reading.is_empty() || !self.begin_read(handle, turn) {
            self.reading.push_back(handle);
        }
    }

    /// Begins reads that wait, while there is credit.
    #[inline]
    pub(crate) fn read_more(&mut self, turn: &mut Turn<'_>) {
        while let Some(&handle) = self.reading.front()
            && self.begin_read(handle, turn)
        {
            self.reading.pop_front();
        }
    }

    /// Begins a read. Returns false if there is not enough credit.
    #[inline(always)]
    fn begin_read(&mut self, handle: u32, turn: &mut Turn<'_>) -> bool {
        let (Some(task), Some(device)) = (self.tasks.get(handle), &self.device) else {
            return true; // it is over
        };
        let Step::Read(transfer) = &task.step else { unreachable!("not a read") };
        let Transfer { at, len, .. } = *transfer;
        if !self.credit.read(len) {
            return false;
        }
        (task.outstanding, task.asked) = (len, 1);
        self.places.take();
        let (volume, kind, body) = (device.unit().volume, BlockKind::Read, Buf::EMPTY);
        let request = BlockRequest { volume, kind, at, len, body };
        turn.ask(Action::Request { tag: tag(handle, 0, 0), request });
        true
    }

    /// Handles the result of a request.
    pub(crate) fn done(&mut self, tag: u64, result: Result<Buf, BlockError>, turn: &mut Turn<'_>) {
        let handle = tag as u32;
        let Some(task) = self.tasks.get(handle) else { return };
        if task.pieces == 0 {
            return; // not a request of this command
        }
        let asked = task.asked.min(1);
        task.asked -= asked;
        self.places.give_back(asked);
        let gone = matches!(result, Err(BlockError::NoSuchVolume));
        match &mut task.step {
            Step::Read(_) => self.read_done(handle, result, turn),
            Step::Write(_) | Step::Verify(_) => {
                task.pieces -= 1;
                self.piece_done(tag, result, turn);
                self.advance(handle, turn);
            }
            Step::Run(plan) => {
                if task.aborted || task.failed.is_some() {
                    task.pieces = 0;
                } else if let Some(answer) = plan.done(result.map_err(Failure::from), turn.pool) {
                    task.pieces = 0;
                    task.step = Step::Answer(answer);
                } else {
                    let request = plan.request();
                    self.ask_volume(handle, request, turn);
                }
                self.advance(handle, turn);
            }
            Step::Answer(_) | Step::Gather(_) => return,
            Step::Reserve(_) | Step::Report(_) | Step::Activate => return,
        }
        if gone {
            self.volume_gone(turn);
        }
    }

    /// Records that the request with this tag waits for space.
    pub(crate) fn waits(&mut self, tag: u64) {
        if let Some(task) = self.tasks.get(tag as u32).filter(|task| task.asked > 0 && !task.full) {
            task.full = true;
            self.places.waits();
        }
    }

    fn read_done(&mut self, handle: u32, result: Result<Buf, BlockError>, turn: &mut Turn<'_>) {
        let Some(task) = self.tasks.get(handle) else { return };
        let Step::Read(transfer) = &task.step else { return };
        task.pieces -= 1;
        if task.aborted {
            self.credit.read_done(core::mem::take(&mut task.outstanding));
        } else {
            let failure = match result {
                Ok(data) if data.len() == transfer.len as usize => {
                    let (data, end) = (data.cut(0..transfer.moves as usize), transfer.residual);
                    if let Some((itt, _)) = self.forget(handle, turn) {
                        self.data_in(itt, data, (Status::Good, end), turn);
                    }
                    return self.read_more(turn);
                }
                Ok(_) => Failure::Block(BlockError::Media),
                Err(error) => Failure::from(error),
            };
            let answer = transfer.unread(failure);
            self.answer(handle, answer, turn);
        }
        self.read_more(turn);
    }

    fn piece_done(&mut self, tag: u64, result: Result<Buf, BlockError>, turn: &mut Turn<'_>) {
        let (offset, len) = piece(tag);
        let compares = !self.comparing.is_empty();
        let sent = if compares { self.comparing.remove(&tag) } else { None };
        let Some(task) = self.tasks.get(tag as u32) else { return };
        let (Step::Write(transfer) | Step::Verify(transfer)) = &task.step else { return };
        let solicited = task.solicited(offset, len).min(task.outstanding);
        task.outstanding -= solicited;
        let failed = match (result, sent) {
            (Ok(stored), Some(sent)) if stored.len() == sent.len() => {
                transfer.compare(offset, &sent, &stored)
            }
            (Ok(_), Some(_)) => Some(transfer.failed(Failure::Block(BlockError::Media), offset)),
            (Ok(_), None) => None,
            (Err(error), _) => Some(transfer.failed(Failure::from(error), offset)),
        };
        if let Some(answer) = failed {
            task.fail(offset, answer);
        }
        self.credit.give_back(solicited);
        if !self.asking.is_empty() {
            self.ask_more(turn);
        }
    }

    /// Answers a command that waits for its turn. Either it has waited too long: then its host
    /// repeats it, and without an answer would end the session. Or the volume is gone.
    pub(crate) fn give_up(&mut self, handle: u32, why: BlockError, turn: &mut Turn<'_>) {
        self.asking.retain(|of| *of != handle);
        self.reading.retain(|of| *of != handle);
        let Some(task) = self.tasks.get(handle) else { return };
        if let Step::Read(transfer) = &task.step {
            (task.step, task.pieces) = (Step::Answer(transfer.unread(why.into())), 0);
        } else {
            task.flow = Flow::Idle;
            task.end(why.into());
        }
        self.advance(handle, turn);
    }

    /// Answers a command and removes it.
    pub(crate) fn answer(&mut self, handle: u32, answer: Answer, turn: &mut Turn<'_>) {
        let Answer { status, sense, data, residual } = answer;
        match sense {
            None if data.is_empty() => self.end(handle, status, residual, turn),
            None => {
                if let Some((itt, _)) = self.forget(handle, turn) {
                    self.data_in(itt, data, (status, residual), turn);
                }
            }
            Some(sense) => {
                let Some((itt, r2ts)) = self.forget(handle, turn) else { return };
                let fixed = sense.fixed();
                let mut data = [0; 2 + crate::scsi::Sense::FIXED];
                data[1] = fixed.len() as u8;
                data[2..].copy_from_slice(&fixed);
                turn.send_small(Reply::scsi(itt, status, residual, r2ts), &data);
            }
        }
    }

    /// Answers a command without data, and removes it.
    fn end(&mut self, handle: u32, status: Status, residual: Residual, turn: &mut Turn<'_>) {
        if let Some((itt, r2ts)) = self.forget(handle, turn) {
            turn.send(Reply::scsi(itt, status, residual, r2ts));
        }
    }

    /// Removes a command and everything that it holds. Returns its tag, and how many R2Ts were sent
    /// for it.
    #[inline(always)]
    pub(crate) fn forget(&mut self, handle: u32, turn: &mut Turn<'_>) -> Option<(u32, u32)> {
        let task = self.tasks.get(handle)?;
        if !task.common.immediate {
            turn.wire.ended();
        }
        self.places.give_back(task.asked);
        if task.full {
            self.places.ended();
        }
        match task.step {
            Step::Read(_) => self.credit.read_done(task.outstanding),
            _ => self.credit.give_back(task.outstanding),
        }
        let told = (task.common.itt, task.r2t_sn);
        self.tasks.remove(handle);
        Some(told)
    }
}
