//! One node with its device, its incoming events, and the effects it has for others.

use crate::disk::Disk;
use base::{LinkId, Prng, Time};
use seam::{
    BlockRequest, Buf, BufPool, DialError, DialId, DiskOp, DownReason, Effect, Effects, Event,
    Framer, Framing, Head, Node, Port, RequestId,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// An event that waits for a node.
pub enum Item {
    /// A link is up.
    Up(LinkId, Option<DialId>),
    /// A link is down.
    Down(LinkId),
    /// A dial was refused.
    Refused(DialId),
    /// A frame has arrived.
    Frame(LinkId, Head, Buf),
    /// A device operation is done.
    Done(DiskOp, Buf),
    /// The program makes a request.
    Request(RequestId, BlockRequest),
}

/// An effect that concerns another node.
pub enum Post {
    /// A frame for the other side of a link.
    Frame(LinkId, Head, Buf),
    /// A dial.
    Dial(DialId, SocketAddr),
    /// The end of a link.
    Close(LinkId),
}

/// A node with everything that belongs to it.
pub struct Place<N: Node> {
    /// The node.
    pub node: N,
    /// Events that wait for the node.
    pub inbox: VecDeque<Item>,
    /// Effects for other nodes.
    pub posts: Vec<Post>,
    /// When the node wants its next tick.
    pub wake: Option<Time>,
    /// Block requests that were answered, all successfully.
    pub served: usize,
    out: Effects,
    pool: BufPool,
    effects: Vec<Effect>,
    disk: Disk,
    framers: Vec<Option<N::Framer>>,
}

impl<N: Node> Place<N> {
    /// Creates a place for a node, before the node's first tick. The seed is for jitter: it may
    /// have any value that never changes.
    pub fn new(node: N, seed: u64) -> Place<N> {
        let pool = BufPool::new(64 << 20);
        Place {
            wake: node.wake_at(),
            node,
            inbox: VecDeque::new(),
            posts: Vec::new(),
            served: 0,
            out: Effects::new(pool.clone(), Prng::new(seed), None),
            pool,
            effects: Vec::new(),
            disk: Disk::default(),
            framers: Vec::new(),
        }
    }

    /// Runs one batch, as a driver does: delivers all waiting events, flushes, carries out effects.
    pub fn turn(&mut self, now: Time) {
        if self.wake.is_some_and(|at| at <= now) {
            self.node.on(now, Event::Tick, &mut self.out);
        }
        while let Some(item) = self.inbox.pop_front() {
            self.deliver(now, item);
        }
        self.node.flush(now, &mut self.out);
        let mut effects = std::mem::take(&mut self.effects);
        self.out.swap(&mut effects);
        for effect in effects.drain(..) {
            self.execute(effect);
        }
        self.effects = effects;
        self.wake = self.node.wake_at();
    }

    fn deliver(&mut self, now: Time, item: Item) {
        let (node, out) = (&mut self.node, &mut self.out);
        match item {
            Item::Frame(link, head, body) => {
                let framer = self.framers[link.0 as usize].as_mut().expect("the link is up");
                let whole = Framing::Frame { head: head.as_slice().len(), body: body.len() };
                assert_eq!(framer.frame(head.as_slice()), Ok(whole));
                node.on(now, Event::Frame { link, head: head.as_slice(), body }, out);
            }
            Item::Done(op, buf) => node.on(now, Event::DiskDone { op, result: Ok(buf) }, out),
            Item::Request(id, request) => node.on(now, Event::Request { id, request }, out),
            Item::Up(link, dial) => {
                let at = link.0 as usize;
                if self.framers.len() <= at {
                    self.framers.resize_with(at + 1, || None);
                }
                self.framers[at] = Some(node.framer(Port::Ours));
                node.on(
                    now,
                    Event::LinkUp { link, port: Port::Ours, dial, at: None, from: None },
                    out,
                );
            }
            Item::Down(link) => {
                node.on(now, Event::LinkDown { link, why: DownReason::Closed }, out)
            }
            Item::Refused(dial) => {
                node.on(now, Event::DialFailed { dial, why: DialError::Refused }, out)
            }
        }
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Send { link, head, body } => self.posts.push(Post::Frame(link, head, body)),
            Effect::SendFirst { link, head } => {
                self.posts.push(Post::Frame(link, head, Buf::EMPTY));
            }
            Effect::Read { op, at, len, .. } => {
                let buf = self.disk.read(at, len, &self.pool);
                self.inbox.push_back(Item::Done(op, buf));
            }
            Effect::Write { op, at, body, .. } => {
                self.disk.write(at, &body);
                self.inbox.push_back(Item::Done(op, Buf::EMPTY));
            }
            Effect::Flush { op, .. } => self.inbox.push_back(Item::Done(op, Buf::EMPTY)),
            Effect::Punch { .. } => unreachable!("memory keeps its space"),
            Effect::Reply { result, .. } => {
                result.expect("nothing fails here");
                self.served += 1;
            }
            Effect::Dial { dial, to, .. } => self.posts.push(Post::Dial(dial, to)),
            Effect::Close { link } => self.posts.push(Post::Close(link)),
            Effect::Welcome { .. }
            | Effect::Pause { .. }
            | Effect::Reframe { .. }
            | Effect::Resume { .. }
            | Effect::Note(_) => {}
        }
    }
}
