//! The session of one link, which is one queue: the interface for its owner.
//!
//! Invariants:
//! - A stranger's bytes can end only the stranger's own connection. No frame makes a session panic,
//!   and the memory of a session is bounded: by the entries of its queue, each with the data of a
//!   capsule, and by the credit for R2Ts and reads.
//! - A PDU with a trailer takes effect when the trailer has arrived.
//! - No action follows [`Action::Close`].
//!
//! The session does not retry, order or cache anything, and does not wait for durability: a
//! completion means durable (rule R7). When the link ends, the owner ends the commands under way,
//! as rule R16 requires.

use super::controller::{Controller, Opening};
use super::framer::{Fault, Lengths, fault};
use super::proto::*;
use super::queue::{Queue, Role};
use super::status::Status;
use super::subsystem::Subsystem;
use super::table::TASKS_MAX;
use super::wire::{Turn, Wire};
use crate::piece::TRANSFER_MAX;
use crate::reserve::{Access, Notice};
use crate::{Action, Asked};
use alloc::vec::Vec;
use base::crc::crc32c;
use base::{Limits, Time, VolumeId};
use seam::{BlockError, Buf, BufPool, Head};

/// The largest alignment that a host may ask for, in units of 4 bytes, minus one.
const ALIGN_MAX: u8 = 31;

/// The target side of one NVMe/TCP connection, which is a queue.
#[derive(Debug)]
pub struct Session {
    wire: Wire,
    queue: Queue,
    lengths: Lengths,
    /// The ICReq has arrived.
    set_up: bool,
    /// The head and the data of a PDU whose trailer has not arrived.
    held: Option<(Head, Buf)>,
    /// The time of the first `tick`.
    since: Option<Time>,
}

impl Session {
    /// Creates a session for a connection that was just accepted.
    pub fn new(limits: &Limits, opening: Opening) -> Session {
        assert!(limits.nvme_mdts <= TRANSFER_MAX, "a tag has no room for such a transfer");
        assert!(limits.nvme_entries <= TASKS_MAX, "an R2T has no room for so many commands");
        assert!((1..=0xffef).contains(&opening.cntlid), "not the id of a controller");
        Session {
            wire: Wire::default(),
            queue: Queue::new(limits, opening),
            lengths: Lengths::new(limits),
            set_up: false,
            held: None,
            since: None,
        }
    }

    /// Handles a frame from [`super::NvmeFramer`].
    pub fn frame(
        &mut self,
        head: &[u8],
        body: Buf,
        subsystem: &dyn Subsystem,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        if self.wire.is_closed() {
            return; // frames that were on their way
        }
        let mut turn = Turn { wire: &mut self.wire, pool, out };
        if let Some((held, data)) = self.held.take() {
            let Some(digest) = head.first_chunk::<DIGEST>() else {
                return turn.close(Some("sent something else in place of a digest"));
            };
            let intact = crc32c(&data).to_le_bytes() == *digest;
            return self.pdu(held.as_slice(), (data, intact), subsystem, pool, out);
        }
        let Some(common) = head.first_chunk::<COMMON>() else {
            return turn.close(Some("sent something that is not a PDU"));
        };
        if head.len() == COMMON {
            let why = "sent something that is not a PDU";
            return turn.terminate(fault(common, self.lengths), head, why);
        }
        if common[1] & DDGSTF != 0 && !body.is_empty() {
            self.held = Some((Head::new(head), body));
        } else {
            self.pdu(head, (body, true), subsystem, pool, out);
        }
    }

    fn pdu(
        &mut self,
        head: &[u8],
        (data, intact): (Buf, bool),
        subsystem: &dyn Subsystem,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let mut turn = Turn { wire: &mut self.wire, pool, out };
        let [kind, flags, ..] = *head else { return };
        let has = |flag: u8| flags & flag != 0;
        match kind {
            H2C_TERM => return turn.close(Some("found an error of ours, and has ended the link")),
            ICREQ if !self.set_up && head.len() >= SETUP => return self.set_up(head, pool, out),
            CAPSULE_CMD if self.set_up && head.len() >= CAPSULE => {}
            H2C_DATA if self.set_up && head.len() >= SHORT => {}
            _ => {
                let why = "sent a PDU that it may not send now";
                return turn.terminate(Fault::new(FES_SEQUENCE), head, why);
            }
        }
        let wrong = has(HDGSTF) != turn.wire.header_digest
            || (!data.is_empty() && has(DDGSTF) != turn.wire.data_digest);
        if wrong {
            return turn.terminate(Fault::field(1), head, "sent other digests than were agreed");
        }
        if kind == CAPSULE_CMD {
            self.queue.capsule(head, (data, intact), subsystem, &mut turn);
        } else {
            self.queue.host_data(head, (data, intact), subsystem, &mut turn);
        }
    }

    /// Handles the ICReq.
    fn set_up(&mut self, head: &[u8], pool: &BufPool, out: &mut Vec<Action>) {
        let mut turn = Turn { wire: &mut self.wire, pool, out };
        if le16(head, 8) != 0 {
            let fault = Fault { error: FES_UNSUPPORTED, field: 8 };
            return turn.terminate(fault, head, "speaks another version of NVMe/TCP");
        }
        if head[10] > ALIGN_MAX {
            return turn.terminate(Fault::field(10), head, "asks for too large an alignment");
        }
        self.set_up = true;
        let digests = (head[11] & 1 != 0, head[11] & 2 != 0);
        let align = (usize::from(head[10]) + 1) * 4;
        turn.set_up(digests, align, self.queue.limits.nvme_h2c);
    }

    /// Handles the completion of a request. A tag that is not under way (any more) is ignored.
    pub fn done(
        &mut self,
        tag: u64,
        result: Result<Buf, BlockError>,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        self.call(pool, out, |queue, turn| queue.done(tag, result, turn));
    }

    /// Ends the commands of a volume whose mapping, under which they arrived, has ended. With
    /// `there`, the host may use the volume again, and should repeat them. The owner still calls
    /// [`Session::done`] for requests under way.
    pub fn fenced(&mut self, volume: VolumeId, there: bool, pool: &BufPool, out: &mut Vec<Action>) {
        let status = if there { Status::INTERRUPTED } else { Status::NO_NAMESPACE };
        self.call(pool, out, |queue, turn| queue.fenced(volume, None, status, turn));
    }

    /// Ends the commands of a volume that need more than its reservations leave to the host. The
    /// owner ends their requests under way with [`BlockError::Reserved`].
    pub fn reserved(
        &mut self,
        volume: VolumeId,
        left: Access,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let status = Status::RESERVATION_CONFLICT;
        self.call(pool, out, |queue, turn| queue.fenced(volume, Some(left), status, turn));
    }

    /// Tells the host of a change of a volume's reservations, if this is its admin queue.
    pub fn notify(
        &mut self,
        volume: VolumeId,
        notice: Notice,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        self.call(pool, out, |queue, turn| {
            if let Role::Admin(admin) = &mut queue.role {
                admin.notify(volume, notice);
            }
            queue.tell_events(turn);
        });
    }

    /// Handles the answer to a question. A tag that is not under way (any more) is ignored.
    pub fn asked(&mut self, tag: u64, asked: Asked<'_>, pool: &BufPool, out: &mut Vec<Action>) {
        self.call(pool, out, |queue, turn| queue.asked(tag, asked, turn));
    }

    /// Records that the I/O queues that [`Action::Clear`] named have ended.
    pub fn others_cleared(&mut self) {
        if let Role::Admin(admin) = &mut self.queue.role {
            admin.others_cleared();
        }
    }

    /// Looks for changes of namespaces and ports, and tells the host if it wants to know. Call it
    /// when `subsystem` may have changed.
    pub fn review(&mut self, subsystem: &dyn Subsystem, pool: &BufPool, out: &mut Vec<Action>) {
        self.call(pool, out, |queue, turn| {
            if let Role::Admin(admin) = &mut queue.role {
                admin.review(subsystem);
            }
            queue.tell_events(turn);
        });
    }

    /// Lets time pass. Call it every second.
    pub fn tick(&mut self, now: Time, pool: &BufPool, out: &mut Vec<Action>) {
        let since = *self.since.get_or_insert(now);
        let waited = now.since(since) >= self.queue.limits.login_time;
        self.call(pool, out, |queue, turn| {
            if matches!(queue.role, Role::New) && waited {
                return turn.close(Some("has not connected in time"));
            }
            queue.tick(now, turn);
        });
    }

    /// Returns the controller, if this is an admin queue, and its host is authenticated or need not
    /// be.
    pub fn controller(&self) -> Option<&Controller> {
        match &self.queue.role {
            Role::Admin(admin) if self.queue.is_open() => Some(&admin.controller),
            _ => None,
        }
    }

    /// Returns controller and queue, if this is an I/O queue, and its host is authenticated or need
    /// not be.
    pub fn io_queue(&self) -> Option<(u16, u16)> {
        match self.queue.role {
            Role::Io { cntlid, qid, .. } if self.queue.is_open() => Some((cntlid, qid)),
            _ => None,
        }
    }

    /// Returns the number of outstanding commands, except those that wait for an event.
    pub fn in_flight(&self) -> usize {
        self.queue.table.len()
    }

    /// Returns the number of requests under way for data of writes and comparisons.
    pub fn requests(&self) -> u32 {
        self.queue.pieces
    }

    /// Returns when the command of the request with this tag arrived, as the last tick before it,
    /// if that is known. The time of a command counts from there, however many requests it needs.
    pub fn since(&self, tag: u64) -> Option<Time> {
        self.queue.table.since(tag as u32)
    }

    /// Returns the bytes that were requested from the host and are not processed yet, and the bytes
    /// that are being read.
    pub fn bytes(&self) -> (u64, u64) {
        self.queue.credit.used()
    }

    /// Returns true after [`Action::Close`].
    pub fn is_closed(&self) -> bool {
        self.wire.is_closed()
    }

    /// Calls the queue, if the connection has not ended.
    fn call(
        &mut self,
        pool: &BufPool,
        out: &mut Vec<Action>,
        call: impl FnOnce(&mut Queue, &mut Turn<'_>),
    ) {
        if !self.wire.is_closed() {
            call(&mut self.queue, &mut Turn { wire: &mut self.wire, pool, out });
        }
    }
}
