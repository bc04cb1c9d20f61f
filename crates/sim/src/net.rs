//! Connections as TCP provides them: bytes in order per direction, and no report of what arrived.
//!
//! Fault model: A frame travels for a random time, and a few take long. A path between two hosts
//! may be blocked or clogged in one direction; data waits, and after a while the sender gives up
//! the connection. A connection may break: each side sees a prefix of what was sent, and notices at
//! a different time. A frame may arrive damaged. A dial is refused only when the process does not
//! exist at the moment when the packet reaches its host, or while that host refuses all dials; the
//! refusal travels like everything else.
//!
//! This file holds the state; [`crate::wires`] moves it.

use crate::world::ProcId;
use base::{LinkId, Time};
use seam::{Buf, BufPool, DialId, DownReason, FrameError, Framer, Framing, Head, Port};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Content of a piece on a lane.
pub(crate) enum Cargo {
    /// The connection is established.
    Up,
    /// A frame, or part of one.
    Data { head: Head, body: Buf },
    /// The connection is gone. This is the last piece on a lane.
    Down(DownReason),
}

pub(crate) struct Piece {
    pub at: Time,
    pub cargo: Cargo,
}

/// One direction of a connection.
#[derive(Default)]
pub(crate) struct Lane {
    pub pieces: VecDeque<Piece>,
    /// Arrival time of the last piece; later pieces do not overtake it.
    pub last: Time,
    /// The arrival of the first piece is in the world's queue.
    pub armed: bool,
    /// Number of stalls so far; identifies the running time-out.
    pub stall: u32,
    /// That time-out is running.
    pub timing: bool,
    /// Bytes that were sent and not yet consumed by the receiving node.
    pub bytes: u64,
    pub assembler: Assembler,
}

impl Lane {
    /// Adds a piece behind all others.
    pub(crate) fn push(&mut self, at: Time, cargo: Cargo) {
        self.last = self.last.max(at);
        self.pieces.push_back(Piece { at: self.last, cargo });
    }

    /// Returns true when a piece should have arrived by now.
    pub(crate) fn is_late(&self, now: Time) -> bool {
        self.pieces.front().is_some_and(|p| p.at < now)
    }

    /// Returns true when the connection is gone at this lane's source, and the news is on its way.
    pub(crate) fn is_ending(&self) -> bool {
        self.pieces.back().is_some_and(|p| matches!(p.cargo, Cargo::Down(_)))
    }

    /// Drops all pieces but the first `keep`.
    pub(crate) fn truncate(&mut self, keep: usize) {
        self.pieces.truncate(keep);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndState {
    /// The node has not heard of the connection yet.
    Waiting,
    /// The node knows the connection by this link id.
    Up(LinkId),
    /// Closed, broken, or its process is dead.
    Gone,
}

/// One end of a connection.
pub(crate) struct End {
    pub proc: ProcId,
    pub life: u32,
    pub state: EndState,
    /// The dial that this end has made.
    pub dial: Option<DialId>,
    pub framer: Option<Box<dyn Framer>>,
    /// False while the node has paused reading.
    pub reading: bool,
    /// The host lost power, so the other side got no notice.
    pub silent: bool,
}

impl End {
    pub(crate) fn new(proc: ProcId, life: u32, dial: Option<DialId>) -> End {
        let state = EndState::Waiting;
        End { proc, life, state, dial, framer: None, reading: true, silent: false }
    }
}

/// A connection. Lane `i` leads from end `i` to end `1 - i`. End 0 dialled.
pub(crate) struct Conn {
    pub port: Port,
    pub ends: [End; 2],
    pub lanes: [Lane; 2],
    /// A stranger's; see [`crate::forge`].
    pub forged: bool,
    /// The address that end 0 dialled.
    pub at: Option<SocketAddr>,
}

/// Blocked and clogged paths between hosts.
pub(crate) struct Paths {
    n: usize,
    blocked: Vec<bool>,
    clogged: Vec<Time>,
}

impl Paths {
    pub(crate) fn new() -> Paths {
        Paths { n: 0, blocked: Vec::new(), clogged: Vec::new() }
    }

    pub(crate) fn resize(&mut self, n: usize) {
        let mut wider = Paths { n, blocked: vec![false; n * n], clogged: vec![Time::ZERO; n * n] };
        for from in 0..self.n {
            for to in 0..self.n {
                wider.blocked[from * n + to] = self.blocked[from * self.n + to];
                wider.clogged[from * n + to] = self.clogged[from * self.n + to];
            }
        }
        *self = wider;
    }

    pub(crate) fn is_blocked(&self, from: ProcId, to: ProcId) -> bool {
        self.blocked[from.0 * self.n + to.0]
    }

    pub(crate) fn set_blocked(&mut self, from: ProcId, to: ProcId, blocked: bool) {
        self.blocked[from.0 * self.n + to.0] = blocked;
    }

    pub(crate) fn are_clear(&self, now: Time) -> bool {
        self.blocked.iter().all(|b| !b) && self.clogged.iter().all(|until| *until <= now)
    }

    pub(crate) fn clogged_until(&self, from: ProcId, to: ProcId) -> Time {
        self.clogged[from.0 * self.n + to.0]
    }

    pub(crate) fn clog(&mut self, from: ProcId, to: ProcId, until: Time) {
        self.clogged[from.0 * self.n + to.0] = until;
    }

    pub(crate) fn unclog_all(&mut self) {
        self.clogged.fill(Time::ZERO);
    }
}

/// Turns arriving pieces into frames.
#[derive(Default)]
pub(crate) struct Assembler {
    bytes: Vec<u8>,
    cut: Option<(usize, usize)>,
}

impl Assembler {
    /// Returns the body length of the frame that is arriving, or 0 if it is unknown.
    pub(crate) fn announced(&self) -> usize {
        self.cut.map_or(0, |(_, body)| body)
    }

    /// Takes one piece as it was sent. Most pieces are one frame each, and are passed on unchanged.
    pub(crate) fn piece(
        &mut self,
        framer: &mut dyn Framer,
        head: &Head,
        body: &[u8],
        pool: &BufPool,
        frames: &mut Vec<(Head, Buf)>,
    ) -> Result<(), FrameError> {
        if self.bytes.is_empty() && self.cut.is_none() && !head.as_slice().is_empty() {
            match framer.frame(head.as_slice())? {
                Framing::Frame { head: h, body: b }
                    if h == head.as_slice().len() && b == body.len() =>
                {
                    frames.push((*head, pool.copy(body)));
                    return Ok(());
                }
                Framing::Frame { head, body } => self.cut = Some((head, body)),
                Framing::Need(_) => {}
            }
        }
        self.bytes.extend_from_slice(head.as_slice());
        self.bytes.extend_from_slice(body);
        self.cut(framer, pool, frames)
    }

    /// Takes a few bytes of the stream.
    pub(crate) fn bytes(
        &mut self,
        framer: &mut dyn Framer,
        bytes: &[u8],
        pool: &BufPool,
        frames: &mut Vec<(Head, Buf)>,
    ) -> Result<(), FrameError> {
        self.bytes.extend_from_slice(bytes);
        self.cut(framer, pool, frames)
    }

    fn cut(
        &mut self,
        framer: &mut dyn Framer,
        pool: &BufPool,
        frames: &mut Vec<(Head, Buf)>,
    ) -> Result<(), FrameError> {
        let mut at = 0;
        loop {
            let rest = &self.bytes[at..];
            if self.cut.is_none() && !rest.is_empty() {
                let start = &rest[..rest.len().min(Head::MAX)];
                match framer.frame(start)? {
                    Framing::Frame { head, body } => self.cut = Some((head, body)),
                    Framing::Need(n) => assert!(
                        n > start.len() && n <= Head::MAX,
                        "the framer has {} bytes and needs {n}",
                        start.len()
                    ),
                }
            }
            match self.cut {
                Some((head, body)) if rest.len() >= head + body => {
                    frames.push((Head::new(&rest[..head]), pool.copy(&rest[head..head + body])));
                    at += head + body;
                    self.cut = None;
                }
                _ => break,
            }
        }
        self.bytes.drain(..at);
        Ok(())
    }
}
