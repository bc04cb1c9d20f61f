//! The data of commands: Data-Out of writes, and Data-In of reads.
//!
//! Invariants:
//! - Data arrives in order, within the unsolicited data or an R2T, and a sequence ends exactly
//!   where it must (RFC 7143 11.7). Anything else ends the connection, except data of commands that
//!   ended early. A wrong DataSN fails its command: the rest of the sequence is discarded, and the
//!   answer is sent after it, when none of the command's requests is under way.
//! - Whole sectors of a write go to the volume as they arrive, without a copy. Three kinds of data
//!   are copied: a sector that is split between two PDUs, data that a command gathers (at most
//!   8 KiB), and small pieces beside many others ([`compact`]).
//! - Data that was requested and not yet processed is at most `Limits::iscsi_solicited`. Reads
//!   under way have at most twice `Limits::scsi_transfer` bytes; one read alone may be larger.
//!   Verifications and comparisons read beside these.

use super::full::Full;
use super::pdu::{Common, DataOut};
use super::proto::NO_TAG;
use super::reply::Reply;
use super::tasks::Flow;
use super::wire::Turn;
use crate::Action;
use crate::piece::{compact, tag};
use crate::scsi::{Residual, Status, Step};
use base::SECTOR;
use seam::{BlockError, BlockKind, BlockRequest, Buf};

impl Full {
    /// Handles data of a write.
    pub(crate) fn data_out(
        &mut self,
        common: &Common,
        out: &DataOut,
        data: Buf,
        turn: &mut Turn<'_>,
    ) {
        let unsolicited = out.ttt == NO_TAG;
        let found = if unsolicited { self.tasks.find(common.itt) } else { Some(out.ttt) };
        let task = found.and_then(|handle| Some((handle, self.tasks.get(handle)?)));
        let (handle, end) = match task {
            Some((handle, task)) if task.common.itt == common.itt => match task.flow {
                Flow::Unsolicited(end) if unsolicited => (handle, end),
                Flow::Burst(end) if !unsolicited => (handle, end),
                _ => return turn.close(Some("sent data that was not requested")),
            },
            _ if self.strays.has(common.itt) => return,
            _ => return turn.close(Some("sent data of a command that does not exist")),
        };
        let Some(task) = self.tasks.get(handle) else { return };
        if out.data_sn != task.data_sn && !task.lost {
            task.lose();
        }
        let to = u64::from(out.offset) + data.len() as u64;
        if to > u64::from(end) || (out.offset != task.received && !task.lost) {
            return turn.close(Some("sent data in another order than it was asked for"));
        }
        // A burst ends exactly where it was asked to end.
        if !unsolicited && !task.lost && common.last != (to == u64::from(end)) {
            return turn.close(Some("ended a sequence of data in another place than agreed"));
        }
        task.data_sn = task.data_sn.wrapping_add(1);
        if task.aborted || task.lost {
            task.received = task.received.max(to as u32);
        }
        if task.aborted {
            return;
        }
        if !task.lost {
            self.arrive(handle, data, turn);
        }
        if common.last {
            if unsolicited {
                return self.end_unsolicited(handle, turn);
            }
            if let Some(task) = self.tasks.get(handle) {
                task.flow = Flow::Idle;
            }
            self.advance(handle, turn);
        }
    }

    /// Records that no more unsolicited data comes, and continues the command. A read begins now,
    /// or waits for credit: its data need not wait for the host when it comes.
    #[inline]
    pub(crate) fn end_unsolicited(&mut self, handle: u32, turn: &mut Turn<'_>) {
        let Some(task) = self.tasks.get(handle) else { return };
        (task.flow, task.unsolicited) = (Flow::Idle, task.received);
        if matches!(task.step, Step::Read(_)) {
            task.pieces = 1;
            self.read(handle, turn);
        } else if task.goes_on() {
            self.go_on(handle, turn);
        }
    }

    /// Takes data of a command, as far as the command wants it.
    pub(crate) fn arrive(&mut self, handle: u32, data: Buf, turn: &mut Turn<'_>) {
        let Some(task) = self.tasks.get(handle) else { return };
        let mut start = task.received;
        task.received += data.len() as u32;
        let wants = task.wants.saturating_sub(start).min(data.len() as u32);
        if wants == 0 || task.failed.is_some() {
            return;
        }
        let mut data = data.cut(0..wants as usize);
        match &task.step {
            Step::Gather(gather) => {
                if wants == gather.len {
                    task.gathered = data;
                } else {
                    if task.gathered.is_empty() {
                        task.gathered = turn.pool.alloc(gather.len as usize);
                    }
                    let all = task.gathered.as_mut();
                    all[start as usize..][..data.len()].copy_from_slice(&data);
                }
            }
            Step::Write(_) | Step::Verify(_) => {
                let sector = task.split.take(&mut start, &mut data, turn.pool);
                if let Some(sector) = sector {
                    self.piece(handle, start - SECTOR, sector, turn);
                }
                if !data.is_empty() {
                    self.piece(handle, start, data, turn);
                }
            }
            Step::Answer(_) | Step::Read(_) | Step::Run(_) => {}
            Step::Reserve(_) | Step::Report(_) | Step::Activate => {}
        }
    }

    /// Sends whole sectors to the volume, or asks it for the sectors that they are compared with.
    fn piece(&mut self, handle: u32, offset: u32, data: Buf, turn: &mut Turn<'_>) {
        let (Some(task), Some(device)) = (self.tasks.get(handle), &self.device) else { return };
        let len = data.len() as u32;
        let tag = tag(handle, offset, len);
        let (transfer, kind) = match &task.step {
            Step::Write(transfer) => (transfer, BlockKind::Write),
            Step::Verify(transfer) => (transfer, BlockKind::Read),
            _ => return,
        };
        if !self.places.has_room() {
            let answer = transfer.failed(BlockError::Busy.into(), offset);
            return task.fail(offset, answer);
        }
        if task.failed.is_some() {
            return;
        }
        let at = transfer.at + u64::from(offset);
        (task.pieces, task.asked) = (task.pieces + 1, task.asked + 1);
        self.places.take();
        let data = compact(data, self.places.used(), turn.pool);
        let body = if kind == BlockKind::Write {
            data
        } else {
            self.comparing.insert(tag, data);
            Buf::EMPTY
        };
        let volume = device.unit().volume;
        let request = BlockRequest { volume, kind, at, len, body };
        turn.ask(Action::Request { tag, request });
    }

    /// Sends R2Ts, in the order of the commands that need data, while there is credit.
    pub(crate) fn ask_more(&mut self, turn: &mut Turn<'_>) {
        while let Some(&handle) = self.asking.front() {
            let Some(task) = self.tasks.get(handle).filter(|task| task.flow == Flow::Queued) else {
                self.asking.pop_front();
                continue;
            };
            let len = (task.wants - task.received).min(self.burst);
            if !self.credit.ask(len) {
                return;
            }
            self.asking.pop_front();
            task.flow = Flow::Burst(task.received + len);
            (task.data_sn, task.outstanding) = (0, task.outstanding + len);
            let reply = Reply::r2t(task, handle, len);
            task.r2t_sn += 1;
            turn.send(reply);
        }
    }

    /// Sends the data of a command, with its status in the last PDU. A PDU is at most as long as
    /// the initiator's longest data segment, and a sequence at most as long as a burst.
    pub(crate) fn data_in(
        &self,
        itt: u32,
        mut data: Buf,
        (status, residual): (Status, Residual),
        turn: &mut Turn<'_>,
    ) {
        let (segment, burst) = (self.params.segment as usize, self.params.max_burst as usize);
        let (mut offset, mut data_sn, mut left) = (0, 0, burst);
        loop {
            let (part, rest) = (segment.min(left), data.len());
            if rest <= part {
                let reply = Reply::data_in_status(itt, data_sn, offset, status, residual);
                return turn.send_data(reply, data);
            }
            left -= part;
            let reply = Reply::data_in(itt, data_sn, offset, left == 0);
            turn.send_data(reply, data.slice(0..part));
            left = if left == 0 { burst } else { left };
            (offset, data_sn) = (offset + part as u32, data_sn + 1);
            data = data.cut(part..rest);
        }
    }
}
