//! Incoming data of commands.
//!
//! Invariants:
//! - All data of a command is in its capsule, or is requested with one R2T. It arrives in order,
//!   and ends exactly where it must. Anything else ends the connection, and the host is told the
//!   reason (transport 3.3.2.4).
//! - The command of a data PDU is found by the tag of the R2T, never by the command id, which the
//!   host chooses. If the PDU has the id of another command, it is not known which of the two the
//!   data belongs to: the connection ends.
//! - Whole sectors of a write go to the volume as they arrive, without a copy. Only two kinds of
//!   data are copied: a sector that is split between two PDUs, and data that a command gathers,
//!   which is at most 4 KiB.
//! - Data that was requested and is not processed yet is at most `Limits::nvme_solicited`; one
//!   command alone may exceed that. The same holds for data that is being read.
//! - A PDU with a wrong data digest fails its command, and nothing of the PDU is written.
//! - At most `Limits::nvme_requests` pieces of data are requests of the volumes. A command whose
//!   host sends more, in smaller pieces, fails, and the host repeats it.

use super::framer::Fault;
use super::proto::*;
use super::queue::Queue;
use super::status::Status;
use super::subsystem::Subsystem;
use super::table::{Flow, Table, Work};
use super::wire::Turn;
use crate::Action;
use crate::piece::{compact, piece, tag};
use base::SECTOR;
use seam::{BlockError, BlockKind, BlockRequest, Buf};

impl Queue {
    /// Handles data of a command. `intact`: its digest, if any, is right.
    pub(crate) fn host_data(
        &mut self,
        head: &[u8],
        (data, intact): (Buf, bool),
        subsystem: &dyn Subsystem,
        turn: &mut Turn<'_>,
    ) {
        let (ttag, offset) = (le16(head, 10), le32(head, 12));
        let found = self.table.find(ttag);
        let task = found.and_then(|handle| Some((handle, self.table.get(handle)?)));
        let Some((handle, task)) = task.filter(|(_, task)| task.flow == Flow::Coming) else {
            let why = "sent data that nobody has asked for";
            return turn.terminate(Fault::field(10), head, why);
        };
        if le16(head, 8) != task.cid {
            let why = "sent data of one command with the id of another one";
            return turn.terminate(Fault::field(8), head, why);
        }
        if le32(head, 16) as usize != data.len() {
            return turn.terminate(Fault::field(16), head, "sent another length than it said");
        }
        let end = u64::from(offset) + data.len() as u64;
        if offset != task.came || end > u64::from(task.wants) {
            let why = "sent other data than it was asked for";
            return turn.terminate(Fault::new(FES_RANGE), head, why);
        }
        let last = end == u64::from(task.wants);
        if last != (head[1] & LAST != 0) {
            let why = "ended its data in another place than it was asked to";
            return turn.terminate(Fault::new(FES_SEQUENCE), head, why);
        }
        if last {
            task.flow = Flow::Idle;
        }
        if intact {
            self.arrive(handle, data, turn);
        } else {
            task.fail(offset, Status::TRANSPORT);
            task.came += data.len() as u32;
        }
        if last {
            self.arrived(handle, subsystem, turn);
        }
    }

    /// Takes data of a command.
    pub(crate) fn arrive(&mut self, handle: u32, mut data: Buf, turn: &mut Turn<'_>) {
        let Some(task) = self.table.get(handle) else { return };
        let (mut start, wants) = (task.came, task.wants);
        task.came += data.len() as u32;
        if task.failed.is_some() {
            return;
        }
        match &mut task.work {
            Work::Gather(_, buffer) if data.len() == wants as usize => *buffer = data,
            Work::Gather(_, buffer) => {
                if buffer.is_empty() {
                    *buffer = turn.pool.alloc(wants as usize);
                }
                buffer.as_mut()[start as usize..][..data.len()].copy_from_slice(&data);
            }
            Work::Write(_) | Work::Compare(_) => {
                let sector = task.split.take(&mut start, &mut data, turn.pool);
                if let Some(sector) = sector {
                    self.piece(handle, start - SECTOR, sector, turn);
                }
                if !data.is_empty() {
                    self.piece(handle, start, data, turn);
                }
            }
            Work::Read(_) | Work::Zero(..) | Work::Deallocate(_) => {}
            Work::Report(_) | Work::Change(_) => {}
        }
    }

    /// Sends whole sectors to the volume, or asks it for the sectors that they are compared with.
    fn piece(&mut self, handle: u32, offset: u32, data: Buf, turn: &mut Turn<'_>) {
        let Some(task) = self.table.get(handle) else { return };
        let len = data.len() as u32;
        let tag = tag(handle, offset, len);
        let (range, kind) = match task.work {
            Work::Write(range) => (range, BlockKind::Write),
            Work::Compare(range) => (range, BlockKind::Read),
            _ => return,
        };
        if self.pieces >= self.limits.nvme_requests {
            return task.fail(offset, Status::INTERRUPTED);
        }
        let data = compact(data, self.pieces, turn.pool);
        self.pieces += 1;
        task.pieces += 1;
        let body = if kind == BlockKind::Write {
            data
        } else {
            self.comparing.insert(tag, data);
            Buf::EMPTY
        };
        let at = range.at + u64::from(offset);
        let request = BlockRequest { volume: range.volume, kind, at, len, body };
        turn.ask(Action::Request { tag, request });
    }

    /// Handles the result of a piece.
    pub(crate) fn piece_done(
        &mut self,
        tag: u64,
        result: Result<Buf, BlockError>,
        turn: &mut Turn<'_>,
    ) {
        self.pieces -= 1;
        let (offset, len) = piece(tag);
        let compares = !self.comparing.is_empty();
        let sent = if compares { self.comparing.remove(&tag) } else { None };
        let Some(task) = self.table.get(tag as u32) else { return };
        let solicited = len.min(task.owed);
        task.owed -= solicited;
        let failed = match (result, sent) {
            (Ok(stored), Some(sent)) if stored.len() == sent.len() => {
                (stored[..] != sent[..]).then_some(Status::MISCOMPARE)
            }
            (Ok(_), Some(_)) => Some(Status::READ_ERROR),
            (Ok(_), None) => None,
            (Err(error), sent) => Some(Status::of(error, sent.is_none())),
        };
        if let Some(status) = failed {
            task.fail(offset, status);
        }
        self.credit.give_back(solicited);
        if !self.asking.is_empty() {
            self.ask_more(turn);
        }
    }

    /// Sends R2Ts for the data of commands, in their order, while there is credit.
    pub(crate) fn ask_more(&mut self, turn: &mut Turn<'_>) {
        while let Some(&handle) = self.asking.front() {
            let Some(task) = self.table.get(handle).filter(|task| task.flow == Flow::Queued) else {
                self.asking.pop_front();
                continue;
            };
            if !self.credit.ask(task.wants) {
                return;
            }
            self.asking.pop_front();
            (task.flow, task.owed) = (Flow::Coming, task.wants);
            turn.r2t(task.cid, Table::ttag(handle), task.wants);
        }
    }
}
