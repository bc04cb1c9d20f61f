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
use super::tasks::{Flow, Task, Work};
use super::wire::Turn;
use crate::piece::{piece, tag};
use crate::scsi::{Answer, Command, Failure, Request, Sense, Status, Step, Transfer};
use crate::{Action, Asked, Question};
use seam::{BlockError, BlockKind, BlockRequest, Buf};

impl Full {
    /// Handles a command and its immediate data.
    pub(crate) fn command(
        &mut self,
        common: &pdu::Common,
        command: &pdu::Command,
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
            cdb: &command.cdb,
            attribute: command.attribute,
            reads: announced(command.reads),
            sends: announced(command.writes),
        };
        let Some(device) = &mut self.device else { return };
        let step = if self.leaving && !device.is_removed() {
            Step::Answer(Answer::bare(Status::Busy))
        } else {
            device.start(&scsi, turn.pool)
        };
        let step = self.room_for(step);
        let work = Work::Answer(Answer::good());
        let mut task = Task::new(common.itt, common.lun, common.cmd_sn, common.immediate, work);
        (task.flow, task.since) = (Flow::Unsolicited(unsolicited), self.now);
        if !common.immediate {
            turn.wire.opened();
        }
        let handle = self.tasks.insert(task);
        self.step(handle, step, turn);
        self.arrive(handle, data, turn);
        if common.last {
            self.end_unsolicited(handle, turn);
        }
        self.advance(handle, turn);
    }

    /// Returns the step, or "task set full" if the session has too many requests under way.
    fn room_for(&self, step: Step) -> Step {
        let room = match step {
            Step::Write(_) => self.places.admits_write(),
            Step::Answer(_) | Step::Reserve(_) | Step::Report(_) | Step::Activate => true,
            Step::Read(_) | Step::Verify(_) | Step::Gather(_) | Step::Run(_) => {
                self.places.has_room()
            }
        };
        if room { step } else { Step::Answer(Answer::bare(Status::TaskSetFull)) }
    }

    /// Executes the step. [`Full::advance`] follows.
    fn step(&mut self, handle: u32, step: Step, turn: &mut Turn<'_>) {
        let (Some(task), Some(device)) = (self.tasks.get(handle), &self.device) else { return };
        let (tag, volume) = (tag(handle, 0, 0), device.unit().volume);
        match step {
            Step::Answer(answer) => task.work = Work::Answer(answer),
            // It begins when the host has sent all that it announced.
            Step::Read(transfer) => task.work = Work::Read(transfer),
            Step::Write(transfer) => task.work = Work::Write(transfer),
            Step::Verify(transfer) => task.work = Work::Verify(transfer),
            Step::Gather(gather) => task.work = Work::Gather(gather, Buf::EMPTY),
            Step::Run(plan) => {
                let request = plan.request();
                task.work = Work::Run(plan);
                task.pieces = 1;
                self.ask_volume(handle, request, turn);
            }
            Step::Reserve(change) => {
                task.work = Work::Ask(None);
                task.pieces = 1;
                turn.ask(Action::Ask { tag, volume, question: Question::Reserve(change) });
            }
            Step::Report(report) => {
                task.work = Work::Ask(Some(report));
                task.pieces = 1;
                turn.ask(Action::Ask { tag, volume, question: Question::Report });
            }
            Step::Activate => {
                task.work = Work::Ask(None);
                task.pieces = 1;
                turn.ask(Action::Ask { tag, volume, question: Question::Activate });
            }
        }
    }

    /// Continues a command after data has arrived or a request is done: asks for more data, goes to
    /// the next step, or answers.
    pub(crate) fn advance(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let Some(task) = self.tasks.get(handle) else { return };
        if task.flow != Flow::Idle || task.aborted {
            return;
        }
        let failed = task.failed.is_some();
        if task.received < task.wants() && !failed {
            task.flow = Flow::Queued;
            self.asking.push_back(handle);
            return self.ask_more(turn);
        }
        if task.pieces > 0 {
            return;
        }
        if let Some((_, answer)) = task.failed.take() {
            return self.answer(handle, answer, turn);
        }
        match &mut task.work {
            Work::Answer(answer) => {
                let answer = core::mem::replace(answer, Answer::good());
                self.answer(handle, answer, turn);
            }
            Work::Write(transfer) | Work::Verify(transfer) => {
                let answer = transfer.done();
                self.answer(handle, answer, turn);
            }
            Work::Gather(gather, data) => {
                let (gather, data) = (*gather, core::mem::take(data));
                let Some(device) = &mut self.device else { return };
                let step = device.gathered(gather, data, turn.pool);
                self.step(handle, step, turn);
                self.advance(handle, turn);
            }
            Work::Read(_) | Work::Run(_) | Work::Ask(_) => {} // the answer comes with the result
        }
    }

    /// Handles an answer of the MDM.
    pub(crate) fn asked(&mut self, tag: u64, asked: Asked<'_>, turn: &mut Turn<'_>) {
        let handle = tag as u32;
        let (Some(task), Some(device)) = (self.tasks.get(handle), &self.device) else { return };
        let Work::Ask(report) = &task.work else { return };
        let answer = match (report, asked) {
            (None, Asked::Reserved(result)) => device.reserved(result),
            (Some(report), Asked::Table(table)) => device.report(*report, table, turn.pool),
            (None, Asked::Activated) => Answer::good(),
            (None, Asked::Nobody) => Answer::check(Sense::NO_PRIMARY),
            (Some(_), Asked::Nobody) => Answer::bare(Status::Busy),
            _ => return,
        };
        (task.work, task.pieces) = (Work::Answer(answer), 0);
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

    /// Begins reads that wait, while there is credit.
    pub(crate) fn read_more(&mut self, turn: &mut Turn<'_>) {
        while let Some(&handle) = self.reading.front() {
            let (Some(task), Some(device)) = (self.tasks.get(handle), &self.device) else {
                self.reading.pop_front();
                continue;
            };
            let Work::Read(transfer) = &task.work else {
                unreachable!("only reads are in this list");
            };
            if !self.credit.read(transfer.len) {
                return;
            }
            let request = BlockRequest {
                volume: device.unit().volume,
                kind: BlockKind::Read,
                at: transfer.at,
                len: transfer.len,
                body: Buf::EMPTY,
            };
            (task.outstanding, task.asked) = (transfer.len, 1);
            self.places.take();
            self.reading.pop_front();
            turn.ask(Action::Request { tag: tag(handle, 0, 0), request });
        }
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
        match &mut task.work {
            Work::Read(transfer) => {
                let transfer = *transfer;
                task.pieces -= 1;
                self.read_done(handle, &transfer, result, turn);
            }
            Work::Write(transfer) | Work::Verify(transfer) => {
                let transfer = *transfer;
                task.pieces -= 1;
                self.piece_done(tag, &transfer, result, turn);
                self.advance(handle, turn);
            }
            Work::Run(plan) => {
                if task.aborted || task.failed.is_some() {
                    task.pieces = 0;
                } else if let Some(answer) = plan.done(result.map_err(Failure::from), turn.pool) {
                    task.pieces = 0;
                    task.work = Work::Answer(answer);
                } else {
                    let request = plan.request();
                    self.ask_volume(handle, request, turn);
                }
                self.advance(handle, turn);
            }
            Work::Answer(_) | Work::Gather(..) | Work::Ask(_) => return,
        }
        self.settle(turn);
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

    fn read_done(
        &mut self,
        handle: u32,
        transfer: &Transfer,
        result: Result<Buf, BlockError>,
        turn: &mut Turn<'_>,
    ) {
        let Some(task) = self.tasks.get(handle) else { return };
        self.credit.read_done(core::mem::take(&mut task.outstanding));
        if !task.aborted {
            let answer = match result {
                Ok(data) if data.len() == transfer.len as usize => {
                    let mut answer = transfer.done();
                    answer.data = data.slice(0..transfer.moves as usize);
                    answer
                }
                Ok(_) => transfer.unread(Failure::Block(BlockError::Media)),
                Err(error) => transfer.unread(Failure::from(error)),
            };
            task.work = Work::Answer(answer);
            self.advance(handle, turn);
        }
        self.read_more(turn);
    }

    fn piece_done(
        &mut self,
        tag: u64,
        transfer: &Transfer,
        result: Result<Buf, BlockError>,
        turn: &mut Turn<'_>,
    ) {
        let (offset, len) = piece(tag);
        let sent = self.comparing.remove(&tag);
        let Some(task) = self.tasks.get(tag as u32) else { return };
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
        self.ask_more(turn);
    }

    /// Answers a command that waits for its turn. Either it has waited too long: then its host
    /// repeats it, and without an answer would end the session. Or the volume is gone.
    pub(crate) fn give_up(&mut self, handle: u32, why: BlockError, turn: &mut Turn<'_>) {
        self.asking.retain(|of| *of != handle);
        self.reading.retain(|of| *of != handle);
        let Some(task) = self.tasks.get(handle) else { return };
        if let Work::Read(transfer) = &task.work {
            (task.work, task.pieces) = (Work::Answer(transfer.unread(why.into())), 0);
        } else {
            task.flow = Flow::Idle;
            task.end(why.into());
        }
        self.advance(handle, turn);
    }

    /// Answers a command and removes it.
    pub(crate) fn answer(&mut self, handle: u32, answer: Answer, turn: &mut Turn<'_>) {
        let Some(task) = self.forget(handle, turn) else { return };
        if answer.data.is_empty() {
            let Answer { status, sense, residual, .. } = answer;
            let reply = Reply::scsi(task.itt, status, residual, task.r2t_sn);
            match sense {
                None => turn.send(reply, &[]),
                Some(sense) => {
                    let fixed = sense.fixed();
                    let mut data = [0; 2 + crate::scsi::Sense::FIXED];
                    data[1] = fixed.len() as u8;
                    data[2..].copy_from_slice(&fixed);
                    turn.send(reply, &data);
                }
            }
        } else {
            self.data_in(task.itt, answer, turn);
        }
        self.settle(turn);
    }

    /// Removes a command and everything that it holds.
    pub(crate) fn forget(&mut self, handle: u32, turn: &mut Turn<'_>) -> Option<Task> {
        let task = self.tasks.remove(handle)?;
        if !task.immediate {
            turn.wire.ended();
        }
        self.places.give_back(task.asked);
        if task.full {
            self.places.ended();
        }
        match task.work {
            Work::Read(_) => self.credit.read_done(task.outstanding),
            _ => self.credit.give_back(task.outstanding),
        }
        Some(task)
    }
}
