//! A command of a queue, from its arrival to its answer.
//!
//! Invariants:
//! - A command has exactly one answer. It is answered when all its requests have ended, and the
//!   host has sent all data that it was asked for. So the command id is free after the answer.
//! - After a failure no more data is asked for. If several pieces fail, the one with the lowest
//!   offset decides the status, in whatever order they fail.
//! - A host with more outstanding commands than the queue has entries loses its connection. Reading
//!   from the connection never stops.
//!
//! Reads begin in the order of arrival, as far as the queue's credit allows. Other commands begin
//! at once. A command that waits longer than `Limits::target_patience` is answered like one whose
//! data has no primary. The owner applies the same time to requests under way, from the arrival of
//! their command ([`Session::since`](super::Session::since)).

use super::admin::Admin;
use super::auth::Auth;
use super::command::{Command, Place};
use super::controller::Opening;
use super::framer::Fault;
use super::proto::*;
use super::ranges::RANGE;
use super::status::Status;
use super::step::Step;
use super::subsystem::Subsystem;
use super::table::{First, Flow, Gather, Range, Table, Task, Work};
use super::wire::Turn;
use crate::credit::Credit;
use crate::piece::tag;
use crate::reserve::Access;
use crate::{Action, Question};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use base::time::Duration;
use base::{Limits, Time, VolumeId};
use seam::{BlockError, BlockKind, BlockRequest, Buf};

/// What a queue is for.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing yet: Connect comes first.
    New,
    /// It is the admin queue of a controller.
    Admin(Box<Admin>),
    /// It is an I/O queue.
    Io {
        /// The controller.
        cntlid: u16,
        /// The queue's id.
        qid: u16,
        /// Its host has an identifier: the one that consists of zeros means "none".
        named: bool,
    },
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) role: Role,
    /// The authentication of the host; `None` if it needs none.
    pub(crate) auth: Option<Box<Auth>>,
    pub(crate) opening: Opening,
    pub(crate) limits: Limits,
    /// The entries of the submission queue.
    pub(crate) entries: u16,
    /// The outstanding commands, except those that wait for an event.
    pub(crate) table: Table,
    /// Bounds the data that is requested from the host and from the volume.
    pub(crate) credit: Credit,
    /// Commands that wait to ask the host for data.
    pub(crate) asking: VecDeque<u32>,
    /// A fused command whose second part has not arrived.
    pub(crate) first: Option<First>,
    /// Reads that wait to be executed.
    pub(crate) reading: VecDeque<u32>,
    /// Pieces of data that are requests under way.
    pub(crate) pieces: u32,
    /// Pieces of data to compare, which wait for the volume's data.
    pub(crate) comparing: BTreeMap<u64, Buf>,
    /// The host supports command retry delays.
    pub(crate) delays: bool,
    /// The last tick.
    pub(crate) now: Option<Time>,
}

impl Queue {
    /// Creates the queue of a connection that was just set up.
    pub(crate) fn new(limits: &Limits, opening: Opening) -> Queue {
        Queue {
            role: Role::New,
            auth: None,
            opening,
            limits: limits.clone(),
            entries: 1,
            table: Table::new(),
            credit: Credit::new(limits.nvme_solicited.into(), limits.nvme_solicited.into()),
            asking: VecDeque::new(),
            first: None,
            reading: VecDeque::new(),
            pieces: 0,
            comparing: BTreeMap::new(),
            delays: false,
            now: None,
        }
    }

    /// Returns the id of the queue.
    pub(crate) fn qid(&self) -> u16 {
        if let Role::Io { qid, .. } = self.role { qid } else { 0 }
    }

    /// Returns the number of outstanding commands.
    pub(crate) fn open(&self) -> usize {
        let waiting = match &self.role {
            Role::Admin(admin) => admin.events.waiting(),
            Role::New | Role::Io { .. } => 0,
        };
        self.table.len() + waiting
    }

    /// Returns how long a command may wait.
    pub(crate) fn patience(&self) -> Duration {
        self.limits.target_patience
    }

    /// Handles a command capsule. `intact`: its data digest, if any, is right.
    pub(crate) fn capsule(
        &mut self,
        head: &[u8],
        (data, intact): (Buf, bool),
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) {
        if self.open() >= usize::from(self.entries) {
            let why = "sent more commands than its queue has entries";
            return turn.terminate(Fault::new(FES_SEQUENCE), head, why);
        }
        let command = Command::of(head);
        if let Role::Admin(admin) = &mut self.role {
            admin.heard = true;
        }
        if self.is_shut(&command) {
            return self.answer(command.cid(), Status::AUTH_REQUIRED, 0, turn);
        }
        if command.fuse() != 0 || self.first.is_some() {
            return self.fused(&command, (data, intact), subsystem, turn);
        }
        if let Err(status) = self.begin(&command, (data, intact), subsystem, turn) {
            self.answer(command.cid(), status, 0, turn);
        }
    }

    /// Begins a command, or returns the status of its refusal.
    pub(crate) fn begin(
        &mut self,
        command: &Command,
        (data, intact): (Buf, bool),
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) -> Result<(), Status> {
        command.check(matches!(self.role, Role::Io { .. }))?;
        if !intact {
            return Err(Status::TRANSPORT);
        }
        let step = match &mut self.role {
            _ if command.opcode() == FABRICS => self.fabrics(command, subsystem, turn)?,
            Role::New => return Err(Status::SEQUENCE),
            Role::Admin(admin) => admin.command(command, subsystem, &self.limits, turn.pool)?,
            Role::Io { .. } => self.io(command, subsystem)?,
        };
        let cid = command.cid();
        match step {
            Step::Answer(result) => self.answer(cid, Status::SUCCESS, result, turn),
            Step::Send(body) => {
                command.room(body.len())?;
                self.send(cid, body, turn);
            }
            Step::Begin(work, wants) => {
                self.begin_work(command, work, (wants, data), subsystem, turn)?;
            }
            Step::Wait | Step::Answered => {}
            Step::Leave => {
                self.answer(cid, Status::SUCCESS, 0, turn);
                turn.close(None);
            }
        }
        self.tell_events(turn);
        Ok(())
    }

    fn begin_work(
        &mut self,
        command: &Command,
        work: Work,
        (wants, data): (u32, Buf),
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) -> Result<(), Status> {
        let place = match work {
            Work::Read(range) | Work::Report(range) => {
                command.room(range.len as usize)?;
                Place::Host
            }
            _ if wants == 0 => Place::Host,
            _ => {
                let io = self.qid() > 0 && command.opcode() != FABRICS;
                let most = if io { self.limits.nvme_capsule } else { ADMIN_CAPSULE };
                command.source(wants, data.len(), most)?
            }
        };
        let (now, cid) = (self.now, command.cid());
        let handle = self.table.insert(|| Task::new(cid, now, work, wants));
        if command.fuse() != 0 {
            self.fused_begins(handle);
        }
        match place {
            Place::Capsule(offset) => {
                let data = data.cut(offset..offset + wants as usize);
                self.arrive(handle, data, turn);
                self.arrived(handle, subsystem, turn);
            }
            Place::Host if wants > 0 => {
                if let Some(task) = self.table.get(handle) {
                    task.flow = Flow::Queued;
                }
                self.asking.push_back(handle);
                self.ask_more(turn);
            }
            Place::Host => self.run(handle, turn),
        }
        Ok(())
    }

    /// Begins a command that needs no data from the host.
    fn run(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let Some(task) = self.table.get(handle) else { return };
        match task.work {
            Work::Read(_) | Work::Report(_) => {
                if !self.reading.is_empty() || !self.begin_read(handle, turn) {
                    self.reading.push_back(handle);
                }
            }
            Work::Zero(Range { volume, at, len }, hole) => {
                task.pieces = 1;
                let kind = BlockKind::Zero { hole };
                let request = BlockRequest { volume, kind, at, len, body: Buf::EMPTY };
                turn.ask(Action::Request { tag: tag(handle, 0, 0), request });
            }
            _ => unreachable!("all others need data of the host"),
        }
    }

    /// Continues a command whose data has arrived.
    pub(crate) fn arrived(&mut self, handle: u32, subsystem: &dyn Subsystem, turn: &mut Turn<'_>) {
        let Some(task) = self.table.get(handle) else { return };
        let (cid, failed) = (task.cid, task.failed);
        let (gather, data) = match &mut task.work {
            Work::Gather(Gather::Fused(_), _) => return self.fused_advance(handle, turn),
            Work::Gather(gather, data) => (gather, data),
            _ => return self.advance(handle, turn),
        };
        let (gather, data) = (*gather, core::mem::take(data));
        if let Some((_, status)) = failed {
            return self.end(handle, status, turn);
        }
        match gather {
            Gather::Connect(request) => {
                self.forget(handle);
                match self.connect(&request, &data, subsystem, turn) {
                    Ok(result) => self.answer(cid, Status::SUCCESS, result, turn),
                    Err((status, result)) => self.answer(cid, status, result, turn),
                }
            }
            Gather::Behavior => {
                self.delays = data.first() == Some(&1);
                if let Role::Admin(admin) = &mut self.role {
                    admin.controller.delays = self.delays;
                }
                self.end(handle, Status::SUCCESS, turn);
            }
            Gather::Auth => self.auth_message(handle, &data, subsystem, turn),
            Gather::Ranges(namespace, count) => {
                let list = data.slice(0..usize::from(count) * RANGE as usize);
                self.deallocate(handle, &namespace, list, turn);
            }
            Gather::Change(volume, wish) => self.change(handle, (volume, wish), &data, turn),
            Gather::Fused(_) => unreachable!("handled above"),
        }
    }

    /// Continues a command after data has arrived or a request is done. Answers the command if it
    /// is complete.
    pub(crate) fn advance(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let Some(task) = self.table.get(handle) else { return };
        if task.flow != Flow::Idle || task.pieces > 0 {
            return;
        }
        let status = task.failed.map_or(Status::SUCCESS, |(_, status)| status);
        self.end(handle, status, turn);
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

    /// Begins a read or a report. Returns false if there is not enough credit.
    fn begin_read(&mut self, handle: u32, turn: &mut Turn<'_>) -> bool {
        let Some(task) = self.table.get(handle) else { return true };
        let (Work::Read(range) | Work::Report(range)) = task.work else {
            unreachable!("neither a read nor a report");
        };
        let Range { volume, at, len } = range;
        if !self.credit.read(len) {
            return false;
        }
        (task.owed, task.pieces) = (len, 1);
        let tag = tag(handle, 0, 0);
        if let Work::Report(_) = task.work {
            turn.ask(Action::Ask { tag, volume, question: Question::Report });
            return true;
        }
        let request = BlockRequest { volume, kind: BlockKind::Read, at, len, body: Buf::EMPTY };
        turn.ask(Action::Request { tag, request });
        true
    }

    /// Handles the result of a request.
    pub(crate) fn done(&mut self, tag: u64, result: Result<Buf, BlockError>, turn: &mut Turn<'_>) {
        let handle = tag as u32;
        let Some(task) = self.table.get(handle) else { return };
        if task.pieces == 0 {
            return; // not a request of this command
        }
        match task.work {
            Work::Read(range) => {
                task.pieces -= 1;
                let failed = task.failed;
                match result {
                    _ if let Some((_, status)) = failed => self.end(handle, status, turn),
                    Ok(data) if data.len() == range.len as usize => {
                        let cid = task.cid;
                        self.forget(handle);
                        self.send(cid, data, turn);
                    }
                    Ok(_) => self.end(handle, Status::READ_ERROR, turn),
                    Err(error) => self.end(handle, Status::of(error, false), turn),
                }
                self.read_more(turn);
            }
            Work::Write(_) | Work::Compare(_) => {
                task.pieces -= 1;
                self.piece_done(tag, result, turn);
                self.advance(handle, turn);
            }
            Work::Zero(..) => {
                task.pieces -= 1;
                if let Err(error) = result {
                    task.fail(0, Status::of(error, true));
                }
                self.advance(handle, turn);
            }
            Work::Deallocate(_) => {
                task.pieces -= 1;
                if let Err(error) = result {
                    task.fail(0, Status::of(error, true));
                }
                self.deallocate_more(handle, turn);
            }
            Work::Gather(Gather::Fused(_), _) => self.fused_done(handle, result, turn),
            Work::Gather(..) | Work::Report(_) | Work::Change(_) => {}
        }
    }

    /// Ends the commands of a volume that need more than `left`; `None`: all commands. Waiting ones
    /// end at once, and others when their requests have ended. A command that waits for the MDM
    /// ends with the MDM's answer.
    pub(crate) fn fenced(
        &mut self,
        volume: VolumeId,
        left: Option<Access>,
        status: Status,
        turn: &mut Turn<'_>,
    ) {
        for handle in self.table.about(volume) {
            let Some(task) = self.table.get(handle) else { continue };
            let goes_on = left.is_some_and(|left| task.needs().is_within(left));
            if goes_on || matches!(task.work, Work::Change(_)) {
                continue;
            }
            if let Work::Gather(Gather::Fused(_), _) = task.work {
                self.fused_fails(handle, status, turn);
            } else if task.waits() {
                self.stop_waiting(handle, status, turn);
            } else {
                task.fail(0, status);
            }
        }
        self.read_more(turn);
    }

    /// Asks for no data of a command that waits to ask for it.
    pub(crate) fn stop_asking(&mut self, handle: u32) {
        if let Some(task) = self.table.get(handle).filter(|task| task.flow == Flow::Queued) {
            task.flow = Flow::Idle;
            self.asking.retain(|of| *of != handle);
        }
    }

    /// Ends a command that waits for its turn.
    fn stop_waiting(&mut self, handle: u32, status: Status, turn: &mut Turn<'_>) {
        if let Some(Task { work: Work::Gather(Gather::Fused(_), _), .. }) = self.table.get(handle) {
            return self.fused_fails(handle, status, turn);
        }
        self.asking.retain(|of| *of != handle);
        self.reading.retain(|of| *of != handle);
        self.end(handle, status, turn);
    }

    /// Ends commands that have waited too long for their turn. The host then repeats them. Without
    /// an answer, the host would reset the controller.
    pub(crate) fn tick(&mut self, now: Time, turn: &mut Turn<'_>) {
        self.now = Some(now);
        if let Role::Admin(admin) = &mut self.role
            && admin.is_silent(now)
        {
            return turn.close(Some("sent no keep alive in time"));
        }
        if self.auth_is_late(now) {
            return turn.close(Some("has not authenticated in time"));
        }
        for handle in self.table.late(now, self.limits.target_patience) {
            self.stop_waiting(handle, Status::NOT_READY, turn);
        }
        self.fused_tick(now, turn);
    }

    /// Sends the data of a command, and its answer.
    pub(crate) fn send(&mut self, cid: u16, body: Buf, turn: &mut Turn<'_>) {
        let ends = turn.wire.flow.is_none();
        turn.data(cid, body, ends);
        if !ends {
            self.answer(cid, Status::SUCCESS, 0, turn);
        }
    }

    /// Answers a command.
    pub(crate) fn answer(&self, cid: u16, status: Status, result: u64, turn: &mut Turn<'_>) {
        let status = if self.delays { status } else { status.without_delay() };
        turn.answer(self.qid(), cid, status, result);
    }

    /// Answers a command of the table, and removes it.
    pub(crate) fn end(&mut self, handle: u32, status: Status, turn: &mut Turn<'_>) {
        if let Some(cid) = self.forget(handle) {
            self.answer(cid, status, 0, turn);
        }
        self.ask_more(turn);
    }

    /// Removes a command and everything that it holds. Returns its id.
    pub(crate) fn forget(&mut self, handle: u32) -> Option<u16> {
        let task = self.table.get(handle)?;
        match task.work {
            Work::Read(_) | Work::Report(_) => self.credit.read_done(task.owed),
            _ => self.credit.give_back(task.owed),
        }
        let cid = task.cid;
        self.table.remove(handle);
        Some(cid)
    }

    /// Answers commands that wait for an event, if one has happened.
    pub(crate) fn tell_events(&mut self, turn: &mut Turn<'_>) {
        let Role::Admin(admin) = &mut self.role else { return };
        while let Some((cid, result)) = admin.events.take() {
            turn.answer(0, cid, Status::SUCCESS, result.into());
        }
    }
}
