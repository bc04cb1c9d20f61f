//! Connections as TCP gives them: bytes in order per direction, and no word about what arrived.
//!
//! Fault model: a frame takes a random time, a few take long; a path between two hosts may be blocked
//! or clogged in one direction (what was sent waits; after a while the sender gives the connection
//! up); a connection may break, each side sees a prefix of what was sent and notices at its own time;
//! a frame may arrive damaged. A dial is refused only when the process does not exist at the moment
//! at which the packet gets to its host, or while that host refuses dials whoever listens; the answer travels like everything else. This file holds the
//! state; [`crate::wires`] moves it.

use crate::world::ProcId;
use base::{LinkId, Time};
use seam::{Buf, BufPool, DialId, DownReason, FrameError, Framer, Framing, Head, Port};
use std::collections::VecDeque;

/// What travels along a lane.
pub(crate) enum Cargo {
    /// The connection is there.
    Up,
    /// A frame, or a part of one.
    Data { head: Head, body: Buf },
    /// The connection is gone; the last thing on a lane.
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
    /// When the last piece arrives: nothing overtakes.
    pub last: Time,
    /// True while the arrival of the first piece is in the world's queue.
    pub armed: bool,
    /// Counts the times that it stalled; names the time-out that is running.
    pub stall: u32,
    /// True while that time-out runs.
    pub timing: bool,
    /// Bytes that were sent and that the receiving node has not consumed.
    pub bytes: u64,
    pub assembler: Assembler,
}

impl Lane {
    /// Adds a piece behind all others.
    pub fn push(&mut self, at: Time, cargo: Cargo) {
        self.last = self.last.max(at);
        self.pieces.push_back(Piece { at: self.last, cargo });
    }

    /// True when something should have arrived by now.
    pub fn is_late(&self, now: Time) -> bool {
        self.pieces.front().is_some_and(|p| p.at < now)
    }

    /// True when the connection is gone at this lane's source, and its end is on the way.
    pub fn is_ending(&self) -> bool {
        self.pieces.back().is_some_and(|p| matches!(p.cargo, Cargo::Down(_)))
    }

    /// Forgets all but the first `keep` pieces.
    pub fn truncate(&mut self, keep: usize) {
        self.pieces.truncate(keep);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndState {
    /// The node has not heard of it yet.
    Waiting,
    /// The node knows it by this name.
    Up(LinkId),
    /// Closed, broken, or its process is dead.
    Gone,
}

/// One end of a connection.
pub(crate) struct End {
    pub proc: ProcId,
    pub life: u32,
    pub state: EndState,
    /// The dial that it answers.
    pub dial: Option<DialId>,
    pub framer: Option<Box<dyn Framer>>,
    /// False while the node has paused the link.
    pub reading: bool,
    /// Gone without a word, because its host lost power.
    pub silent: bool,
}

impl End {
    pub fn new(proc: ProcId, life: u32, dial: Option<DialId>) -> End {
        let state = EndState::Waiting;
        End { proc, life, state, dial, framer: None, reading: true, silent: false }
    }
}

/// A connection; lane `i` leads from end `i` to end `1 - i`. End 0 dialled.
pub(crate) struct Conn {
    pub port: Port,
    pub ends: [End; 2],
    pub lanes: [Lane; 2],
    /// Nobody's: see [`crate::forge`].
    pub forged: bool,
}

/// Which paths between hosts are blocked or clogged.
pub(crate) struct Paths {
    n: usize,
    blocked: Vec<bool>,
    clogged: Vec<Time>,
}

impl Paths {
    pub fn new() -> Paths {
        Paths { n: 0, blocked: Vec::new(), clogged: Vec::new() }
    }

    pub fn resize(&mut self, n: usize) {
        let mut wider = Paths { n, blocked: vec![false; n * n], clogged: vec![Time::ZERO; n * n] };
        for from in 0..self.n {
            for to in 0..self.n {
                wider.blocked[from * n + to] = self.blocked[from * self.n + to];
                wider.clogged[from * n + to] = self.clogged[from * self.n + to];
            }
        }
        *self = wider;
    }

    pub fn is_blocked(&self, from: ProcId, to: ProcId) -> bool {
        self.blocked[from.0 * self.n + to.0]
    }

    pub fn set_blocked(&mut self, from: ProcId, to: ProcId, blocked: bool) {
        self.blocked[from.0 * self.n + to.0] = blocked;
    }

    pub fn are_clear(&self, now: Time) -> bool {
        self.blocked.iter().all(|b| !b) && self.clogged.iter().all(|until| *until <= now)
    }

    pub fn clogged_until(&self, from: ProcId, to: ProcId) -> Time {
        self.clogged[from.0 * self.n + to.0]
    }

    pub fn clog(&mut self, from: ProcId, to: ProcId, until: Time) {
        self.clogged[from.0 * self.n + to.0] = until;
    }

    pub fn unclog_all(&mut self) {
        self.clogged.fill(Time::ZERO);
    }
}

/// Turns what came into frames.
#[derive(Default)]
pub(crate) struct Assembler {
    bytes: Vec<u8>,
    cut: Option<(usize, usize)>,
}

impl Assembler {
    /// Bytes of the body of the frame that is not here whole, if they are known.
    pub fn announced(&self) -> usize {
        self.cut.map_or(0, |(_, body)| body)
    }

    /// Takes one piece as it was sent. Most pieces are a frame each and go through untouched.
    pub fn piece(
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

    /// Takes a few bytes.
    pub fn bytes(
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
