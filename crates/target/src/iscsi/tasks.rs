//! The outstanding commands of a session.
//!
//! Invariants: the handle of a command names it in tags of requests, and in R2Ts. Pieces of a
//! command are counted, not listed: the tag of a request says which piece it is.

use super::pdu::Common;
use super::proto::NO_TAG;
use crate::reserve::Access;
use crate::scsi::{Answer, Failure, Step};
use crate::slots::Slots;
use crate::split::SplitSector;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::Time;
use base::time::Duration;
use seam::{BlockKind, Buf};

/// The data that a command may receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Unsolicited data, up to this offset.
    Unsolicited(u32),
    /// None.
    Idle,
    /// None: the command waits until it may send an R2T.
    Queued,
    /// Data that an R2T has asked for, up to this offset.
    Burst(u32),
}

/// One command.
// Large: everything about a command is in its one place of the table.
#[derive(Debug)]
pub(crate) struct Task {
    /// The common fields of its PDU.
    pub(crate) common: Common,
    /// The last tick before it arrived; `None` before the session's first tick.
    pub(crate) since: Option<Time>,
    /// What the command does now. An answer waits until the initiator has sent all its unsolicited
    /// data.
    pub(crate) step: Step,
    /// Bytes of data that the command needs.
    pub(crate) wants: u32,
    /// The data that may come.
    pub(crate) flow: Flow,
    /// Bytes that have arrived.
    pub(crate) received: u32,
    /// Of these, bytes of unsolicited data.
    pub(crate) unsolicited: u32,
    /// Bytes that an R2T has asked for, or that are being read, and that are not processed yet.
    pub(crate) outstanding: u32,
    /// The number of the next PDU of the sequence (DataSN).
    pub(crate) data_sn: u32,
    /// The number of the next R2T (R2TSN).
    pub(crate) r2t_sn: u32,
    /// Requests under way, and those that wait for their turn.
    pub(crate) pieces: u32,
    /// Of these, the requests that the volume has.
    pub(crate) asked: u32,
    /// One of them waits for space.
    pub(crate) full: bool,
    /// Data that is gathered.
    pub(crate) gathered: Buf,
    /// The start of a sector whose end has not arrived.
    pub(crate) split: SplitSector,
    /// The lowest offset of a piece that has failed, and the answer. In memory of its own, because
    /// few commands fail.
    pub(crate) failed: Option<Box<(u32, Answer)>>,
    /// The command was aborted: it is not answered, and its requests are being withdrawn.
    pub(crate) aborted: bool,
    /// A DataSN was wrong: data is discarded until the end of the sequence.
    pub(crate) lost: bool,
}

impl Task {
    /// Creates a command that has done nothing, and may send this much unsolicited data.
    #[inline]
    pub(crate) fn new(common: &Common, since: Option<Time>, step: Step, unsolicited: u32) -> Task {
        Task {
            common: *common,
            since,
            wants: wants(&step),
            step,
            flow: Flow::Unsolicited(unsolicited),
            received: 0,
            unsolicited: 0,
            outstanding: 0,
            data_sn: 0,
            r2t_sn: 0,
            pieces: 0,
            asked: 0,
            full: false,
            gathered: Buf::EMPTY,
            split: SplitSector::default(),
            failed: None,
            aborted: false,
            lost: false,
        }
    }

    /// Returns true if the command can go on: it needs no data that is on its way, and waits for no
    /// request.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        let needs_data = self.received < self.wants && self.failed.is_none();
        self.flow == Flow::Idle && !self.aborted && (self.pieces == 0 || needs_data)
    }

    /// Returns the kind of access to the volume that the command still needs.
    pub(crate) fn needs(&self) -> Access {
        match &self.step {
            Step::Read(_) | Step::Verify(_) => Access::of(BlockKind::Read),
            Step::Write(_) => Access::of(BlockKind::Write),
            Step::Gather(gather) => gather.needs(),
            Step::Run(plan) => Access::of(plan.request().kind),
            Step::Answer(_) | Step::Reserve(_) | Step::Report(_) | Step::Activate => {
                Access::of(BlockKind::Flush)
            }
        }
    }

    /// Returns true if the command waits for its turn to ask for data, or to read.
    pub(crate) fn waits(&self) -> bool {
        let reads = matches!(self.step, Step::Read(_)) && self.outstanding == 0;
        !self.aborted && (reads || self.flow == Flow::Queued)
    }

    /// Records that the piece at this offset has failed.
    pub(crate) fn fail(&mut self, offset: u32, answer: Answer) {
        if self.failed.as_ref().is_none_or(|failed| offset < failed.0) {
            self.failed = Some(Box::new((offset, answer)));
        }
    }

    /// Discards all further data, because a PDU was out of sequence. A command that wants no data
    /// keeps its answer.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        if !matches!(self.step, Step::Run(_)) {
            self.end(Failure::Data);
        }
    }

    /// Fails the command: it asks for no more data, and makes no more requests. A command that has
    /// its answer keeps it. A read, and a command that waits for the MDM, is left as it is: it ends
    /// with its own result.
    pub(crate) fn end(&mut self, failure: Failure) {
        let answer = match &self.step {
            Step::Write(transfer) | Step::Verify(transfer) => {
                transfer.failed(failure, self.received)
            }
            Step::Gather(_) | Step::Run(_) => failure.answer(true, 0),
            Step::Answer(_) | Step::Read(_) => return,
            Step::Reserve(_) | Step::Report(_) | Step::Activate => return,
        };
        self.fail(self.received, answer);
    }

    /// Returns how many bytes of the piece were asked for.
    pub(crate) fn solicited(&self, offset: u32, len: u32) -> u32 {
        len.min((offset + len).saturating_sub(self.unsolicited))
    }
}

/// Returns how many bytes of data a command needs for this step.
#[inline]
fn wants(step: &Step) -> u32 {
    match step {
        Step::Write(transfer) | Step::Verify(transfer) => transfer.moves,
        Step::Gather(gather) => gather.len,
        Step::Answer(_) | Step::Read(_) | Step::Run(_) => 0,
        Step::Reserve(_) | Step::Report(_) | Step::Activate => 0,
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Tasks {
    slots: Slots<Task>,
    /// The initiator's tag of each slot, to find a command: [`NO_TAG`] if there is none, or it is
    /// aborted.
    tags: Vec<u32>,
    /// The number of these tags by their low bits. So a new tag is known to be new, as a rule,
    /// without a look at all.
    alike: [u16; ALIKE],
}

/// Groups of tags that have the same low bits: more than a session has commands.
const ALIKE: usize = 256;

impl Tasks {
    /// Creates an empty table.
    pub(crate) fn new() -> Tasks {
        Tasks { slots: Slots::new(), tags: Vec::new(), alike: [0; ALIKE] }
    }

    /// Adds a command, and returns its handle. The caller limits their number.
    #[inline]
    pub(crate) fn insert(&mut self, itt: u32, make: impl FnOnce() -> Task) -> u32 {
        let handle = self.slots.insert(make);
        match self.tags.get_mut(usize::from(handle as u16)) {
            Some(tag) => *tag = itt,
            None => self.tags.push(itt),
        }
        self.alike[itt as usize % ALIKE] += 1;
        debug_assert!(handle != NO_TAG, "fewer than 65,535 commands");
        handle
    }

    /// Returns the command with this handle.
    #[inline]
    pub(crate) fn get(&mut self, handle: u32) -> Option<&mut Task> {
        self.slots.get_mut(handle)
    }

    /// Removes the command with this handle, if there is one.
    pub(crate) fn remove(&mut self, handle: u32) {
        if self.slots.remove(handle) {
            self.free_tag(handle);
        }
    }

    /// Marks the command with this handle as aborted. Its tag may be used again.
    pub(crate) fn abort(&mut self, handle: u32) -> Option<&mut Task> {
        self.get(handle)?.aborted = true;
        self.free_tag(handle);
        self.get(handle)
    }

    fn free_tag(&mut self, handle: u32) {
        let tag = core::mem::replace(&mut self.tags[usize::from(handle as u16)], NO_TAG);
        if tag != NO_TAG {
            self.alike[tag as usize % ALIKE] -= 1;
        }
    }

    /// Returns the handle of the command with this initiator's tag that is not aborted.
    #[inline]
    pub(crate) fn find(&self, itt: u32) -> Option<u32> {
        if itt == NO_TAG || self.alike[itt as usize % ALIKE] == 0 {
            return None;
        }
        let index = self.tags.iter().position(|tag| *tag == itt)?;
        self.slots.handle_at(index)
    }

    /// Returns the handles of the commands for which `which` is true, in the order of the table.
    pub(crate) fn handles(&self, which: impl Fn(&Task) -> bool) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(move |(_, task)| which(task)).map(|(handle, _)| handle)
    }

    /// Returns the last tick before the command with this handle arrived, if it is known.
    pub(crate) fn since(&self, handle: u32) -> Option<Time> {
        self.slots.get(handle)?.since
    }

    /// Returns the handles of the commands that arrived at least `patience` ago and still wait for
    /// their turn.
    pub(crate) fn late(&mut self, now: Time, patience: Duration) -> Vec<u32> {
        let mut late = Vec::new();
        for (handle, task) in self.slots.iter_mut() {
            let since = *task.since.get_or_insert(now);
            if task.waits() && now.since(since) >= patience {
                late.push(handle);
            }
        }
        late
    }

    /// Returns all commands, in the order of the table.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Task> {
        self.slots.iter().map(|(_, task)| task)
    }

    /// Returns the number of commands.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of immediate commands. Few initiators send any.
    pub(crate) fn immediate(&self) -> usize {
        self.all().filter(|task| task.common.immediate).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_ended_commands_find_nothing() {
        let task = |itt| {
            let common = Common { immediate: itt == 2, last: true, lun: 0, itt, cmd_sn: 0 };
            Task::new(&common, None, Step::Answer(Answer::good()), 0)
        };
        let insert = |tasks: &mut Tasks, itt| tasks.insert(itt, || task(itt));
        let mut tasks = Tasks::new();
        let a = insert(&mut tasks, 1);
        let b = insert(&mut tasks, 2);
        assert_eq!((tasks.find(1), tasks.find(2), tasks.immediate()), (Some(a), Some(b), 1));
        tasks.remove(b);
        tasks.remove(b);
        assert_eq!((tasks.len(), tasks.immediate()), (1, 0));
        let c = insert(&mut tasks, 3);
        assert_ne!(b, c);
        assert!(tasks.get(b).is_none());
        assert_eq!((tasks.len(), tasks.immediate(), tasks.find(2)), (2, 0, None));
        assert!(tasks.abort(c).is_some_and(|task| task.aborted));
        assert_eq!((tasks.len(), tasks.find(3), tasks.find(NO_TAG)), (2, None, None));
    }
}
