//! One node with its device, what waits for it, and what it has sent.

use crate::disk::Disk;
use base::{LinkId, Prng, Time};
use seam::{
    BlockRequest, Buf, BufPool, DialError, DialId, DiskOp, DownReason, Effect, Effects, Event,
    Framer, Framing, Head, Node, Port, RequestId,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// What waits for a node.
pub enum Item {
    /// A connection is there.
    Up(LinkId, Option<DialId>),
    /// It is gone.
    Down(LinkId),
    /// Nobody listens there.
    Refused(DialId),
    /// A frame came.
    Frame(LinkId, Head, Buf),
    /// The device has done it.
    Done(DiskOp, Buf),
    /// The program asks.
    Request(RequestId, BlockRequest),
}

/// What a node wants of others.
pub enum Post {
    /// This frame for whom the link leads to.
    Frame(LinkId, Head, Buf),
    /// A connection.
    Dial(DialId, SocketAddr),
    /// No connection any more.
    Close(LinkId),
}

/// A node's place in the cluster.
pub struct Place<N: Node> {
    /// The node.
    pub node: N,
    /// What waits for it.
    pub inbox: VecDeque<Item>,
    /// What it wants of others.
    pub posts: Vec<Post>,
    /// When it wants to be woken.
    pub wake: Option<Time>,
    /// Block requests that were answered, all of them well.
    pub served: usize,
    out: Effects,
    pool: BufPool,
    effects: Vec<Effect>,
    disk: Disk,
    framers: Vec<Option<N::Framer>>,
}

impl<N: Node> Place<N> {
    /// A node that has not been woken yet. Seeds are for jitter: any will do, as long as it stays.
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

    /// One batch, as a driver does it: all that waits, the flush, the effects.
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
                self.framers[at] = Some(node.framer(Port::Peer));
                node.on(now, Event::LinkUp { link, port: Port::Peer, dial }, out);
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
            Effect::Reply { result, .. } => {
                result.expect("nothing fails here");
                self.served += 1;
            }
            Effect::Dial { dial, to, .. } => self.posts.push(Post::Dial(dial, to)),
            Effect::Close { link } => self.posts.push(Post::Close(link)),
            Effect::Welcome { .. }
            | Effect::Pause { .. }
            | Effect::Resume { .. }
            | Effect::Note(_) => {}
        }
    }
}
