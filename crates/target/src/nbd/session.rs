//! The session of one client's connection: its phases, the requests in flight, and flow control.
//!
//! Invariants:
//! - Frames take effect in the order of arrival. A frame that has to wait (for fresh exports, or
//!   because too much is in flight) goes to the backlog, and so do all frames after it.
//! - Every request gets exactly one reply when it is done, in the order of completion.
//! - At most `Limits::nbd_requests` are in flight. A request begins only while the bytes in flight
//!   are below the smallest of three limits: twice `Limits::nbd_payload`, the connection's share,
//!   and the room that other connections leave. Writes that wait for space don't count, up to
//!   [`WAITING`] of them and eight times `Limits::nbd_payload`, so reads, discards and flushes
//!   behind them continue.
//! - No action follows [`Action::Close`].
//!
//! Option haggling is in `negotiate`. The session does not retry, order or cache anything, and does
//! not wait for durability: a completion means durable (rule R7), so flush and FUA need no work.

use super::export::Exports;
use super::negotiate::refuse_shutdown;
use super::proto::*;
use super::reply;
use super::request::{self, Attached, Header, Refusal, Step};
use crate::Action;
use crate::extents::Runs;
use crate::reserve::Access;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::{Limits, Slab, VolumeId};
use seam::{BlockError, BlockRequest, Buf, BufPool, Head};

/// Most frames in the backlog. That is far more than any client has outstanding; the driver was
/// told to pause when the first frame had to wait.
const BACKLOG_FRAMES: usize = 16 << 10;

/// Most frames in the backlog before a volume is attached.
const OPTIONS_FRAMES: usize = 64;
/// Most bytes of their bodies.
const OPTIONS_BYTES: u64 = 4 * super::framer::OPTION_MAX as u64;

/// Most writes of one connection that may wait for space besides the requests in flight.
pub const WAITING: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Waits for the client flags.
    Flags,
    /// Option haggling.
    Options,
    /// Transmission.
    Serving(Attached),
    /// The client sent a disconnect: requests in flight end, further frames are ignored.
    Ending(Attached),
    /// `Action::Close` was emitted.
    Closed,
}

/// A frame in the backlog.
#[derive(Debug)]
struct Waiting {
    head: [u8; REQUEST_HEAD],
    len: usize,
    body: Buf,
}

/// A request that the owner executes.
#[derive(Debug)]
struct InFlight {
    header: Header,
    /// The length of the request to the volume.
    len: u32,
    cost: u32,
    /// True if it waits for space, and does not count as in flight.
    waits: bool,
}

/// The server side of one NBD connection.
#[derive(Debug)]
pub struct Session {
    pub(super) phase: Phase,
    pub(super) payload: u32,
    requests: usize,
    /// `NBD_FLAG_C_NO_ZEROES` was set.
    pub(super) no_zeroes: bool,
    pub(super) structured: bool,
    /// The volume for which `base:allocation` was selected.
    pub(super) allocation: Option<VolumeId>,
    /// The option that waits for fresh exports.
    pub(super) asked: Option<(u32, Buf)>,
    backlog: VecDeque<Waiting>,
    backlog_bytes: u64,
    flying: Slab<InFlight>,
    flying_bytes: u64,
    /// Limit on `flying_bytes` before the last request is added.
    share: u64,
    /// A second limit on `flying_bytes`, which follows from the bytes in flight of all other
    /// connections.
    left: u64,
    /// Number of requests that wait for space, and their bytes.
    waiting: usize,
    waiting_bytes: u64,
    paused: bool,
    pub(super) stopping: bool,
}

impl Session {
    /// Creates a session for a connection that was just accepted.
    pub fn new(limits: &Limits) -> Session {
        let requests = limits.nbd_requests.max(1) as usize;
        Session {
            phase: Phase::Flags,
            payload: limits.nbd_payload.min(32 << 20),
            requests,
            no_zeroes: false,
            structured: false,
            allocation: None,
            asked: None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            flying: Slab::new(requests + WAITING),
            flying_bytes: 0,
            share: u64::MAX,
            left: u64::MAX,
            waiting: 0,
            waiting_bytes: 0,
            paused: false,
            stopping: false,
        }
    }

    /// Sends the greeting, as the server speaks first. Call once, before anything else.
    pub fn greet(&mut self, out: &mut Vec<Action>) {
        let mut head = [0; 18];
        head[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
        head[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
        head[16..].copy_from_slice(&(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES).to_be_bytes());
        out.push(Action::Send { head: Head::new(&head), body: Buf::EMPTY });
    }

    /// Handles a frame from [`super::NbdFramer`].
    pub fn frame(&mut self, head: &[u8], body: Buf, pool: &BufPool, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Ending(_) | Phase::Closed) {
            return; // the client may not send anything any more
        }
        if self.is_blocked() || !self.backlog.is_empty() {
            self.put_off(head, body, out);
        } else {
            self.take(head, body, pool, out);
        }
        self.flow(out);
    }

    /// Answers the option that caused [`Action::Refresh`], from `exports`. If the owner can't reach
    /// an MDM, it passes the volumes that it knows.
    pub fn refreshed(&mut self, exports: &dyn Exports, pool: &BufPool, out: &mut Vec<Action>) {
        let Some((option, data)) = self.asked.take() else {
            return;
        };
        self.answer(option, &data, exports, pool, out);
        self.drain(pool, out);
    }

    /// Handles the completion of a request. A tag that is not in flight (any more) is ignored.
    pub fn done(
        &mut self,
        tag: u64,
        result: Result<Buf, BlockError>,
        pool: &BufPool,
        out: &mut Vec<Action>,
    ) {
        let Some(op) = self.flying.remove(tag) else {
            return;
        };
        if op.waits {
            self.waiting -= 1;
            self.waiting_bytes -= u64::from(op.cost);
        } else {
            self.flying_bytes -= u64::from(op.cost);
        }
        let (Phase::Serving(export) | Phase::Ending(export)) = self.phase else {
            return;
        };
        out.push(answer(&op, &export, result, pool));
        let ends = self.stopping || matches!(self.phase, Phase::Ending(_));
        if ends && self.flying.is_empty() {
            self.close(None, out);
        } else {
            self.drain(pool, out);
        }
    }

    /// Records that this request waits for space, so that later requests need not wait for it.
    /// `most` limits the bytes that wait in this way. If there is no room for the request among
    /// those that wait, it counts as in flight until this is called again and there is room.
    pub fn waits(&mut self, tag: u64, most: u64, pool: &BufPool, out: &mut Vec<Action>) {
        let room = most.min(self.bytes_max() * 4 - self.waiting_bytes);
        let full = self.waiting >= WAITING;
        let Some(op) = self.flying.get_mut(tag) else { return };
        if op.waits || full || u64::from(op.cost) > room {
            return;
        }
        op.waits = true;
        self.waiting += 1;
        self.waiting_bytes += u64::from(op.cost);
        self.flying_bytes -= u64::from(op.cost);
        self.drain(pool, out);
    }

    /// Limits the bytes of requests in flight, before the last one is added. Requests that are
    /// already in flight stay.
    pub fn share(&mut self, bytes: u64) {
        self.share = bytes;
    }

    /// Limits the bytes of requests in flight, because all connections together may add only this
    /// many. A connection with nothing in flight may always add one request, so no connection waits
    /// for another one.
    pub fn leave(&mut self, bytes: u64) {
        self.left = self.flying_bytes.saturating_add(bytes);
    }

    /// Returns true if this request is known to wait for space, or is not in flight.
    pub fn knows_wait(&self, tag: u64) -> bool {
        self.flying.get(tag).is_none_or(|op| op.waits)
    }

    /// Returns the number of requests in flight that do not wait for space.
    pub fn active(&self) -> usize {
        self.flying.len() - self.waiting
    }

    /// Returns the bytes of these requests.
    pub fn flying_bytes(&self) -> u64 {
        self.flying_bytes
    }

    /// Returns the number of writes that wait for space.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the bytes of writes that wait for space.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Ends the session from the server's side: requests in flight end, further ones are refused
    /// with `NBD_ESHUTDOWN`, then the connection is closed.
    pub fn shutdown(&mut self, pool: &BufPool, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.stopping = true;
        if let Some((option, _)) = self.asked.take() {
            refuse_shutdown(option, pool, out);
        }
        self.drain(pool, out);
        if self.flying.is_empty() {
            self.close(None, out);
        }
    }

    /// Sets the access that reservations of other hosts leave to this client.
    pub fn set_access(&mut self, access: Access) {
        if let Phase::Serving(export) | Phase::Ending(export) = &mut self.phase {
            export.access = access;
        }
    }

    /// Returns the volume that the client has attached, and the size that the client was told.
    pub fn attached(&self) -> Option<(VolumeId, u64)> {
        match self.phase {
            Phase::Serving(export) | Phase::Ending(export) => Some((export.volume, export.size)),
            _ => None,
        }
    }

    /// Returns the number of requests in flight, including those that wait for space.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// Returns true after [`Action::Close`].
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    // Flow control

    fn bytes_max(&self) -> u64 {
        u64::from(self.payload) * 2
    }

    /// Returns how many bytes may be in flight before the last request is added.
    fn window(&self) -> u64 {
        self.bytes_max().min(self.share).min(self.left).max(1)
    }

    fn is_full(&self) -> bool {
        self.active() >= self.requests || self.flying_bytes >= self.window()
    }

    /// Returns true if the next frame has to wait.
    fn is_blocked(&self) -> bool {
        self.asked.is_some() || (self.is_full() && !self.stopping)
    }

    fn put_off(&mut self, head: &[u8], body: Buf, out: &mut Vec<Action>) {
        let bytes = self.backlog_bytes + body.len() as u64;
        let (most_frames, most) = match self.phase {
            Phase::Flags | Phase::Options => (OPTIONS_FRAMES, OPTIONS_BYTES),
            _ => (BACKLOG_FRAMES, self.bytes_max() * 2),
        };
        if self.backlog.len() >= most_frames || bytes > most {
            return self
                .close(Some("sends far more than one connection may have outstanding"), out);
        }
        if head.len() > REQUEST_HEAD {
            return self.close(Some("a frame that no NBD client sends"), out);
        }
        let mut waiting = Waiting { head: [0; REQUEST_HEAD], len: head.len(), body };
        waiting.head[..head.len()].copy_from_slice(head);
        self.backlog.push_back(waiting);
        self.backlog_bytes = bytes;
    }

    /// Processes frames of the backlog until one has to wait.
    fn drain(&mut self, pool: &BufPool, out: &mut Vec<Action>) {
        while !self.is_blocked() {
            let Some(Waiting { head, len, body }) = self.backlog.pop_front() else {
                break;
            };
            self.backlog_bytes -= body.len() as u64;
            self.take(&head[..len], body, pool, out);
        }
        self.flow(out);
    }

    /// Tells the driver to pause or resume reading if that has changed.
    fn flow(&mut self, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Ending(_) | Phase::Closed) {
            return;
        }
        let relaxed = self.active() <= self.requests / 2
            && self.flying_bytes <= self.window() / 2
            && self.backlog.is_empty();
        if !self.paused && (self.is_full() || !self.backlog.is_empty()) {
            self.paused = true;
            out.push(Action::Pause);
        } else if self.paused && relaxed {
            self.paused = false;
            out.push(Action::Resume);
        }
    }

    fn forget_backlog(&mut self) {
        self.backlog.clear();
        self.backlog_bytes = 0;
    }

    pub(super) fn close(&mut self, why: Option<&'static str>, out: &mut Vec<Action>) {
        if !self.is_closed() {
            self.phase = Phase::Closed;
            self.asked = None;
            self.forget_backlog();
            out.push(Action::Close { why });
        }
    }

    // Frames

    fn take(&mut self, head: &[u8], body: Buf, pool: &BufPool, out: &mut Vec<Action>) {
        match self.phase {
            Phase::Flags => self.client_flags(head, out),
            Phase::Options => {
                if head.len() != OPTION_HEAD
                    || be64(head, 0) != IHAVEOPT
                    || be32(head, 12) as usize != body.len()
                {
                    return self.close(Some("not an option, in option haggling"), out);
                }
                self.option(be32(head, 8), body, pool, out);
            }
            Phase::Serving(export) => match Header::parse(head) {
                Some(header) if header.body_len() == body.len() => {
                    self.request(header, body, export, out);
                }
                _ => self.close(Some("not a request, in transmission"), out),
            },
            Phase::Ending(_) | Phase::Closed => {}
        }
    }

    fn request(&mut self, header: Header, body: Buf, export: Attached, out: &mut Vec<Action>) {
        if header.command == NBD_CMD_DISC {
            self.phase = Phase::Ending(export);
            self.forget_backlog();
            if self.flying.is_empty() {
                self.close(None, out);
            }
            return;
        }
        let checked = if self.stopping {
            Err(Refusal { error: NBD_ESHUTDOWN, why: "the server is shutting down" })
        } else {
            request::check(&header, &export)
        };
        let (kind, len, cost) = match checked {
            Ok(Step::Ask { kind, len, cost }) => (kind, len, cost),
            Ok(Step::Succeed) => {
                return out.push(reply::success(export.structured, header.cookie));
            }
            Err(Refusal { error, why }) => {
                return out.push(reply::failure(export.structured, header.cookie, error, &why));
            }
        };
        let op = InFlight { header, len, cost, waits: false };
        let tag = self.flying.insert(op).expect("a frame waits while the table is full");
        self.flying_bytes += u64::from(cost);
        let request = BlockRequest { volume: export.volume, kind, at: header.at, len, body };
        out.push(Action::Request { tag, request });
    }
}

/// Returns the reply to a completed request.
fn answer(
    op: &InFlight,
    export: &Attached,
    result: Result<Buf, BlockError>,
    pool: &BufPool,
) -> Action {
    let Header { cookie, at, command, .. } = op.header;
    let structured = export.structured;
    let short = || reply::failure(structured, cookie, NBD_EIO, &"the core's answer is too short");
    match (result, command) {
        (Ok(data), NBD_CMD_READ) if data.len() == op.len as usize => {
            reply::data(structured, cookie, at, data)
        }
        (Ok(_), NBD_CMD_READ) => short(),
        (Ok(bits), NBD_CMD_BLOCK_STATUS) => {
            let one = op.header.has(NBD_CMD_FLAG_REQ_ONE);
            let max = if one { 1 } else { export.payload as usize / 8 };
            match Runs::new(&bits, at, op.len) {
                Some(runs) => reply::status(cookie, runs, max, pool),
                None => short(),
            }
        }
        (Ok(_), _) => reply::success(structured, cookie),
        (Err(error), _) => {
            let value = request::error_value(&op.header, export, error);
            reply::failure(structured, cookie, value, &error)
        }
    }
}
