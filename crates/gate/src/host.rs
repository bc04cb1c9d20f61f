//! The session of one host without a cluster behind it, for counting what a protocol costs.
//!
//! A request is counted from its frame to its answer: the framer, the session, and the session
//! again with the volume's result. The work of the data client in between costs the same for all
//! protocols, and is not counted here.
//!
//! Invariant: requests are those of a host without special options: they have no digests, and the
//! data of a write is right behind its head.

mod iscsi;
mod nbd;
mod nvme;

use crate::OPERATIONS;
use base::{BLOCK, Limits, Prng, VolumeId};
use seam::BlockKind::{self, Read, Write};
use seam::{BlockRequest, Buf, BufPool, Framer, Framing, Head};
use target::Action;

pub use iscsi::Iscsi;
pub use nbd::Nbd;
pub use nvme::Nvme;

/// The volume, and its size in bytes.
const VOLUME: VolumeId = VolumeId(1);
const SIZE: u64 = 64 << 20;

/// What a session needs in one call: memory, and a list for its actions.
pub struct Turn<'a> {
    /// Memory for answers.
    pub pool: &'a BufPool,
    /// The actions.
    pub out: &'a mut Vec<Action>,
}

/// The framer and the session of one protocol, and what its host sends.
pub trait Protocol {
    /// Its framer.
    type Framer: Framer;

    /// Creates both for a new connection.
    fn accept(limits: &Limits) -> (Self::Framer, Self);

    /// Returns the frames by which a host attaches the volume.
    fn enter() -> Vec<(Head, Vec<u8>)>;

    /// Returns the head of a request of 4 KiB, with a number that no other one in flight has.
    fn request(number: u16, kind: BlockKind, at: u64) -> Head;

    /// Passes a frame to the session.
    fn frame(&mut self, head: &[u8], body: Buf, turn: Turn<'_>);

    /// Answers [`Action::Refresh`]: the volumes are known.
    fn refreshed(&mut self, turn: Turn<'_>);

    /// Passes the data of a request that is done, which is empty for a write.
    fn done(&mut self, tag: u64, data: Buf, turn: Turn<'_>);
}

/// A host that has attached the volume, and the target's side of its connection.
pub struct Host<S: Protocol> {
    framer: S::Framer,
    target: S,
    pool: BufPool,
    out: Vec<Action>,
    /// Frames that the host has sent.
    frames: Vec<(Head, Buf)>,
    /// Data for its reads.
    data: Vec<Buf>,
    /// Requests under way.
    asked: Vec<(u64, BlockRequest)>,
    /// Number of frames that went back to it.
    sent: usize,
    asks: u16,
}

impl<S: Protocol> Host<S> {
    /// Returns a host with [`OPERATIONS`] requests of this kind that are ready to begin. It has
    /// made as many several times before, so tables have grown.
    pub fn ready(kind: BlockKind) -> Host<S> {
        let (framer, target) = S::accept(&Limits::SHIPPED);
        let mut host = Host {
            framer,
            target,
            pool: BufPool::new(64 << 20),
            out: Vec::new(),
            frames: Vec::new(),
            data: Vec::new(),
            asked: Vec::new(),
            sent: 0,
            asks: 0,
        };
        for (head, data) in S::enter() {
            let body = host.pool.copy(&data);
            host.take(head, body);
            host.attach();
        }
        for _ in 0..4 {
            host.prepare(kind);
            host.serve();
        }
        host.prepare(kind);
        host
    }

    /// Carries out what the session asks for while the host attaches the volume.
    fn attach(&mut self) {
        let mut actions = std::mem::take(&mut self.out);
        while !actions.is_empty() {
            for action in actions.drain(..) {
                match action {
                    Action::Send { .. } => {}
                    Action::Reframe { mode } => self.framer.set_mode(mode),
                    Action::Refresh => {
                        let turn = Turn { pool: &self.pool, out: &mut self.out };
                        self.target.refreshed(turn);
                    }
                    other => panic!("{other:?} while a volume is attached"),
                }
            }
            std::mem::swap(&mut actions, &mut self.out);
        }
        self.out = actions;
    }

    fn prepare(&mut self, kind: BlockKind) {
        let mut prng = Prng::new(5);
        for _ in 0..OPERATIONS {
            let at = prng.below(SIZE / u64::from(BLOCK)) * u64::from(BLOCK);
            let block = self.pool.zeroed(BLOCK as usize);
            let body = if kind == Write { block.clone() } else { Buf::EMPTY };
            self.frames.push((S::request(self.asks, kind, at), body));
            self.data.push(if kind == Read { block } else { Buf::EMPTY });
            self.asks += 1;
        }
        self.sent = 0;
    }

    /// Passes a frame through the framer to the session.
    fn take(&mut self, head: Head, body: Buf) {
        let whole = Framing::Frame { head: head.as_slice().len(), body: body.len() };
        assert_eq!(self.framer.frame(head.as_slice()), Ok(whole));
        let turn = Turn { pool: &self.pool, out: &mut self.out };
        self.target.frame(head.as_slice(), body, turn);
    }

    /// Does everything that is prepared: all requests arrive, and then all are done.
    pub fn serve(&mut self) {
        let mut frames = std::mem::take(&mut self.frames);
        for (head, body) in frames.drain(..) {
            self.take(head, body);
            for action in self.out.drain(..) {
                match action {
                    Action::Request { tag, request } => self.asked.push((tag, request)),
                    other => panic!("{other:?} in place of a request"),
                }
            }
        }
        self.frames = frames;
        let mut asked = std::mem::take(&mut self.asked);
        for (tag, _) in asked.drain(..) {
            let data = self.data.pop().expect("data for each request");
            let turn = Turn { pool: &self.pool, out: &mut self.out };
            self.target.done(tag, data, turn);
            for action in self.out.drain(..) {
                match action {
                    Action::Send { .. } => self.sent += 1,
                    other => panic!("{other:?} in place of an answer"),
                }
            }
        }
        self.asked = asked;
    }

    /// Returns the number of frames that went to the host since the last preparation.
    pub fn sent(&self) -> usize {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers<S: Protocol>() -> [usize; 2] {
        [Read, Write].map(|kind| {
            let mut host = Host::<S>::ready(kind);
            host.serve();
            host.sent() / OPERATIONS
        })
    }

    #[test]
    fn every_request_is_answered_with_the_frames_that_its_protocol_needs() {
        assert_eq!(answers::<Nbd>(), [1, 1]);
        assert_eq!(answers::<Iscsi>(), [1, 1], "status comes with the data");
        assert_eq!(answers::<Nvme>(), [2, 1], "data, then the response");
    }
}
