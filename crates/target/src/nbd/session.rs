//! One client's connection: its phases, what is in flight, and when to stop reading from it.
//!
//! Invariants:
//! - Frames take effect in the order in which they came. One that can't yet (fresh exports are
//!   awaited, or too much is in flight) waits in the backlog, and so do all behind it.
//! - Every request gets exactly one reply, when it is done: order of completion, not of arrival.
//! - At most `Limits::nbd_requests` are in flight, and their memory is at most twice
//!   `Limits::nbd_payload`, or the connection's share, before the last one is added. Writes that wait for space don't count, up to
//!   [`WAITING`] of them and eight times `Limits::nbd_payload`: so reads, discards and flushes behind
//!   them go on.
//! - After [`Action::Close`] no action follows.
//!
//! Option haggling is in `negotiate`. The session does not retry, order or cache anything, nor wait for durability: an answer of the core means
//! durable (rule R7), so flush and FUA need nothing of their own.

use super::export::Exports;
use super::extents::Runs;
use super::negotiate::refuse_shutdown;
use super::proto::*;
use super::reply;
use super::request::{self, Attached, Header, Refusal, Step};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{Limits, Slab, VolumeId};
use seam::{BlockError, BlockRequest, Buf, BufPool, Head};

/// Frames that may wait. Far more than any client has outstanding; the driver was told to pause
/// when the first came.
const BACKLOG_FRAMES: usize = 16 << 10;

/// Frames, and bytes of their bodies, that may wait before a volume is attached.
const OPTIONS_FRAMES: usize = 64;
const OPTIONS_BYTES: u64 = 4 * super::framer::OPTION_MAX as u64;

/// Writes of one connection that may wait for space beside what is in flight.
pub const WAITING: usize = 1024;

/// What the session asks of its owner. To be done in the order given.
#[derive(Debug)]
pub enum Action {
    /// Send this to the client.
    Send {
        /// First the head,
        head: Head,
        /// then the body.
        body: Buf,
    },
    /// Ask the core, and answer with [`Session::done`].
    Request {
        /// Names the request until then.
        tag: u64,
        /// What is wanted.
        request: BlockRequest,
    },
    /// Get to know which volumes there are now, then call [`Session::refreshed`]: an answer depends
    /// on it, and a volume may have been created a moment ago.
    Refresh,
    /// Stop reading from the client. Frames that are there already may still be handed over.
    Pause,
    /// Read from the client again.
    Resume,
    /// Close the connection after what was sent, and drop the session.
    Close {
        /// What the client did wrong; `None` when it or we wanted to part.
        why: Option<&'static str>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// Waits for the client flags.
    Flags,
    /// Option haggling.
    Options,
    /// Transmission.
    Serving(Attached),
    /// The client said goodbye: what is in flight ends, nothing is taken any more.
    Ending(Attached),
    /// `Action::Close` was emitted.
    Closed,
}

/// A frame that waits for its turn.
#[derive(Debug)]
struct Waiting {
    head: [u8; REQUEST_HEAD],
    len: usize,
    body: Buf,
}

/// A request that the core works on.
#[derive(Debug)]
struct InFlight {
    header: Header,
    /// The length that the core was asked for.
    len: u32,
    cost: u32,
    /// The mutant answered it already.
    answered: bool,
    /// It waits for space, and doesn't count as in flight.
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
    /// What `flying_bytes` may be before the last request.
    share: u64,
    /// Of those in flight, the ones that wait for space, and their bytes.
    waiting: usize,
    waiting_bytes: u64,
    paused: bool,
    pub(super) stopping: bool,
}

impl Session {
    /// A session for a connection that was just accepted.
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
            waiting: 0,
            waiting_bytes: 0,
            paused: false,
            stopping: false,
        }
    }

    /// The server speaks first. To be called once, before anything else.
    pub fn greet(&mut self, out: &mut Vec<Action>) {
        let mut head = [0; 18];
        head[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
        head[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
        head[16..].copy_from_slice(&(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES).to_be_bytes());
        out.push(Action::Send { head: Head::new(&head), body: Buf::EMPTY });
    }

    /// Takes a frame, as [`super::NbdFramer`] cut it.
    pub fn frame(&mut self, head: &[u8], body: Buf, pool: &BufPool, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Ending(_) | Phase::Closed) {
            return; // A client may not send anything any more.
        }
        if self.is_blocked() || !self.backlog.is_empty() {
            self.put_off(head, body, out);
        } else {
            self.take(head, body, pool, out);
        }
        self.flow(out);
    }

    /// Answers the option that [`Action::Refresh`] was about, from `exports`. If the owner could
    /// not reach anybody, it shows what it knows.
    pub fn refreshed(&mut self, exports: &dyn Exports, pool: &BufPool, out: &mut Vec<Action>) {
        let Some((option, data)) = self.asked.take() else {
            return;
        };
        self.answer(option, &data, exports, pool, out);
        self.drain(pool, out);
    }

    /// Takes the core's answer to a request. One that isn't in flight (any more) is ignored.
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
        if !op.answered {
            out.push(answer(&op, &export, result, pool));
        }
        let ends = self.stopping || matches!(self.phase, Phase::Ending(_));
        if ends && self.flying.is_empty() {
            self.close(None, out);
        } else {
            self.drain(pool, out);
        }
    }

    /// This request waits for space: what is behind it needn't. `most` is how many bytes may come to wait. If there is
    /// no room for it among those that wait, it counts as in flight until this is called again, and there is.
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

    /// Bounds the bytes of requests that are in flight at a time, before the last one is added. What is in flight
    /// already stays.
    pub fn share(&mut self, bytes: u64) {
        self.share = bytes;
    }

    /// True when this request is known to wait for space, or isn't in flight.
    pub fn knows_wait(&self, tag: u64) -> bool {
        self.flying.get(tag).is_none_or(|op| op.waits)
    }

    /// Writes that wait for space.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Bytes of writes that wait for space.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Ends the session from our side: what is in flight ends, what comes is refused with
    /// `NBD_ESHUTDOWN`, then the connection is closed.
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

    /// The volume that the client has attached, and the size that it was told.
    pub fn attached(&self) -> Option<(VolumeId, u64)> {
        match self.phase {
            Phase::Serving(export) | Phase::Ending(export) => Some((export.volume, export.size)),
            _ => None,
        }
    }

    /// How many requests the core works on.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// True after [`Action::Close`].
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    // Flow control

    fn bytes_max(&self) -> u64 {
        u64::from(self.payload) * 2
    }

    /// Requests that are in flight and don't wait for space.
    fn active(&self) -> usize {
        self.flying.len() - self.waiting
    }

    /// Bytes that may be in flight before the last request is added.
    fn window(&self) -> u64 {
        self.bytes_max().min(self.share).max(1)
    }

    fn is_full(&self) -> bool {
        self.active() >= self.requests || self.flying_bytes >= self.window()
    }

    /// True when the next frame has to wait.
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

    /// Takes from the backlog what can be taken.
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

    /// Tells the driver to stop reading, or to go on, where that has changed.
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
        let answered =
            mutant::on(Mutant::AckBeforeReply) && matches!(header.command, NBD_CMD_WRITE);
        if answered {
            out.push(reply::success(export.structured, header.cookie));
        }
        let op = InFlight { header, len, cost, answered, waits: false };
        let tag = self.flying.insert(op).expect("a frame waits while the table is full");
        self.flying_bytes += u64::from(cost);
        let request = BlockRequest { volume: export.volume, kind, at: header.at, len, body };
        out.push(Action::Request { tag, request });
    }
}

/// The reply to a request that the core has answered.
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
