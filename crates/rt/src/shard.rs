//! The loop of one shard and its nodes: wait, deliver events, carry out effects, start what they need; again.
//!
//! One round of it is a *batch*: everything that the kernel has completed. Its order is a promise to
//! the node (`seam::contract`):
//! 1. the backend brings completions;
//! 2. the clock is read, and again after each receive, so no event's `now` is earlier than its data, nor
//!    than that of the event before;
//! 3. events go to [`Node::on`] one by one. What it emits is carried out at once, but without system
//!    calls: sends are queued, a closed link is silent from here on, answers that are known at once
//!    become events of the next turn (`ready`), never a recursion;
//! 4. [`Node::flush`] of each node that had events, and further turns while there are `ready` events, a bounded number;
//! 5. one send per link that has something to send, at once; what has to wait (a socket that is full, input
//!    of the links that were read) reaches the kernel together with the next wait.
//!
//! Invariant: whatever memory the kernel may use is in `links`, `dials` or `files`, whose entries go
//! only when the kernel has let go of them; see [`Shard::drop`] for the end.

mod completions;
mod effects;
mod strangers;
mod unread;

use crate::clock;
use crate::dial::Dial;
use crate::disk::{Disk, FileOp, Zeros};
use crate::error::RtError;
use crate::link::{Link, State};
use crate::net::Listening;
use crate::signal::{Stop, Waker};
use crate::sys::{Done, FileCall, Sys, Token};
use crate::table::Table;
use base::{LinkId, Time};
use seam::{
    BlockError, BlockRequest, Buf, BufPool, DialError, DialId, DiskError, DiskOp, DownReason,
    Effect, Effects, Event, Node, Note, Port, RequestId,
};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use strangers::Crowd;

/// Turns within one batch; then the kernel is asked again, without waiting.
const TURNS: usize = 8;
/// File operations that the kernel works on at the same time: more than a device takes at once it would
/// hand to threads of its own, which costs more than waiting here.
const FILES: usize = 128;
/// How long a closed link may take to send what is queued, and to see the other side's end.
const LINGER: Duration = Duration::from_secs(1);
/// How long to leave a listener alone after accepting failed: no descriptors, no memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait at the end for the kernel to let go of everything.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// How long nodes may take to put things in order when the process is to end.
const ORDER_WAIT: Duration = Duration::from_secs(3);
/// Polling is trusted up to here: each success earns some, each failure costs one. So it goes on as long
/// as one in three pays: what a success saves (a wake-up, on both sides) is more than what a failure costs.
const SPIN_TRUST: u32 = 16;
const SPIN_EARNS: u32 = 2;
/// Without trust, polling is tried once in so many waits.
const SPIN_RETRY: u32 = 32;

/// What one node brings.
pub(crate) struct Belongings {
    pub(crate) listeners: Vec<(Port, Listening)>,
    pub(crate) disks: Vec<Disk>,
}

/// What the shard is given.
pub(crate) struct Parts {
    pub(crate) waker: Arc<Waker>,
    /// What each node has for itself.
    pub(crate) seats: Vec<Belongings>,
    pub(crate) spin: Duration,
    pub(crate) link_queue: u64,
    pub(crate) local: bool,
}

/// The answer to a request of who drives the shard.
pub(crate) type Answer = (RequestId, Result<Buf, BlockError>);

/// An event that the driver knows itself.
enum Ready {
    DiskDone(DiskOp, Result<seam::Buf, DiskError>),
    LinkDown(LinkId, DownReason),
    DialFailed(DialId, DialError),
    /// A dial within this host has come through.
    Dialled(DialId, Port, OwnedFd),
    /// A link that was resumed may have frames that are here already.
    Resumed(LinkId),
}

/// A node, and what is its own.
struct Seat<N> {
    node: N,
    disks: Vec<Disk>,
    /// By [`Port`].
    crowds: [Crowd; 2],
    /// Bytes that wait for those who dialled it, by [`Port`], where it bounds them.
    unread: [u64; 2],
    /// It had an event since its last flush.
    active: bool,
    /// What it said after its last flush.
    wake_at: Option<Time>,
}

/// A listener, and when to accept again after a failure.
struct Accepting {
    seat: u32,
    port: Port,
    listening: Listening,
    retry_at: Option<Time>,
}

pub(crate) struct Shard<N: Node, S: Sys, T> {
    seats: Vec<Seat<N>>,
    /// The seats that had events since their last flush, each once.
    active: Vec<u32>,
    on_note: T,
    pub(crate) sys: S,
    pool: BufPool,
    out: Effects,
    /// The effects that are being carried out; kept for its memory.
    effects: Vec<Effect>,
    done: Vec<Done>,
    ready: VecDeque<(u32, Ready)>,
    links: Table<Link<N::Framer>>,
    /// Links with something to send, and links that may want to receive.
    to_send: Vec<u32>,
    to_receive: Vec<u32>,
    /// Closed links that are not gone yet.
    closing: Vec<LinkId>,
    dials: Table<Dial>,
    listeners: Vec<Accepting>,
    files: Table<(u32, FileOp)>,
    /// File operations that the kernel works on, and those that wait until it works on fewer.
    files_started: usize,
    files_waiting: VecDeque<u32>,
    zeros: Zeros,
    waker: Arc<Waker>,
    /// Answers to who drives the shard.
    pub(crate) answers: Vec<Answer>,
    link_queue: u64,
    local: bool,
    spin: Duration,
    trust: u32,
    waits: u32,
    /// Events since the start: tells whether a batch had any.
    events: u64,
    /// The last batch had frames.
    had_frames: bool,
    last_event: Time,
}

impl<N: Node, S: Sys, T: FnMut(usize, Time, Note)> Shard<N, S, T> {
    pub(crate) fn new(sys: S, parts: Parts, out: Effects, nodes: Vec<N>, on_note: T) -> Self {
        assert_eq!(nodes.len(), parts.seats.len(), "one node per seat");
        let (mut seats, mut listeners) = (Vec::new(), Vec::new());
        for (seat, (node, own)) in (0..).zip(nodes.into_iter().zip(parts.seats)) {
            let crowds = Default::default();
            let (unread, wake_at) = ([0; 2], None);
            seats.push(Seat { node, disks: own.disks, crowds, unread, active: true, wake_at });
            for (port, mut listening) in own.listeners {
                let local = listening.local.take();
                for listening in [listening].into_iter().chain(local.map(|l| *l)) {
                    listeners.push(Accepting { seat, port, listening, retry_at: None });
                }
            }
        }
        Shard {
            active: (0..seats.len() as u32).collect(),
            seats,
            on_note,
            sys,
            pool: out.pool().clone(),
            out,
            effects: Vec::new(),
            done: Vec::new(),
            ready: VecDeque::new(),
            links: Table::new(),
            to_send: Vec::new(),
            to_receive: Vec::new(),
            closing: Vec::new(),
            dials: Table::new(),
            listeners,
            files: Table::new(),
            files_started: 0,
            files_waiting: VecDeque::new(),
            zeros: Zeros::default(),
            waker: parts.waker,
            answers: Vec::new(),
            link_queue: parts.link_queue,
            local: parts.local,
            spin: parts.spin,
            trust: SPIN_TRUST / 2,
            waits: 0,
            events: 0,
            had_frames: false,
            last_event: Time::ZERO,
        }
    }

    /// Starts to listen. Before everything else, once.
    pub(crate) fn open(&mut self) -> Result<(), RtError> {
        for i in 0..self.listeners.len() {
            let socket = &self.listeners[i].listening.socket;
            self.sys
                .watch(Token::Accept(i as u32), socket.as_fd())
                .map_err(RtError::system("epoll_ctl"))?;
            self.accept(i as u32);
        }
        self.turns(clock::now());
        Ok(())
    }

    /// Runs until it is told to stop, and lets the nodes put things in order then.
    pub(crate) fn run(&mut self, stop: &Stop) -> Result<(), RtError> {
        self.open()?;
        while !stop.is_set() {
            self.turn(None)?;
        }
        self.active = (0..self.seats.len() as u32).collect();
        for seat in &mut self.seats {
            seat.active = true;
            seat.node.stop();
        }
        let until = clock::now() + ORDER_WAIT;
        self.settle();
        while clock::now() < until && !self.seats.iter().all(|seat| seat.node.is_stopped()) {
            self.turn(Some(until.since(clock::now())))?;
        }
        Ok(())
    }

    /// One round of the loop; waits at most so long for something to do.
    pub(crate) fn turn(&mut self, at_most: Option<Duration>) -> Result<(), RtError> {
        self.settle();
        if self.had_frames {
            // Who wants this core goes first: meanwhile more comes, and large batches make I/O cheap.
            std::thread::yield_now();
        }
        self.wait(at_most)?;
        self.batch();
        Ok(())
    }

    /// Ends the batch of requests that came since the last turn.
    fn settle(&mut self) {
        if !self.active.is_empty() {
            self.turns(clock::now());
        }
    }

    /// A request of who drives the shard: the node works on it at once, what it sends goes out with
    /// the next turn.
    pub(crate) fn request(&mut self, seat: u32, id: RequestId, request: BlockRequest) {
        self.deliver(clock::now(), seat, Event::Request { id, request });
    }

    pub(crate) fn node(&mut self, seat: usize) -> &mut N {
        &mut self.seats[seat].node
    }

    pub(crate) fn pool(&self) -> &BufPool {
        &self.pool
    }

    fn accept(&mut self, i: u32) {
        let a = &mut self.listeners[i as usize];
        a.retry_at = None;
        self.sys.accept(i, a.listening.socket.as_raw_fd());
    }

    /// Works on everything that has completed.
    fn batch(&mut self) {
        let mut now = clock::now();
        let before = self.events;
        self.had_frames = false;
        let mut done = std::mem::take(&mut self.done);
        for d in done.drain(..) {
            self.completed(&mut now, d);
        }
        self.done = done;
        if self.waker.is_pending() {
            self.waker.clear();
        }
        self.timers(now);
        self.turns(now);
        if self.events != before {
            self.last_event = clock::now();
        }
    }

    /// Hands one event to a node, and carries out what it asks for.
    fn deliver(&mut self, now: Time, seat: u32, event: Event<'_>) {
        self.events += 1;
        let s = &mut self.seats[seat as usize];
        if !std::mem::replace(&mut s.active, true) {
            self.active.push(seat);
        }
        s.node.on(now, event, &mut self.out);
        self.carry_out(now, seat);
    }

    /// Lets the nodes that had events end their batch.
    fn flush(&mut self, now: Time) {
        let mut active = std::mem::take(&mut self.active);
        for seat in active.drain(..) {
            let s = &mut self.seats[seat as usize];
            s.active = false;
            s.node.flush(now, &mut self.out);
            s.wake_at = s.node.wake_at();
            self.carry_out(now, seat);
        }
        self.active = active;
    }

    /// Steps 4 and 5 of a batch.
    fn turns(&mut self, mut now: Time) {
        for turn in 0..TURNS {
            for _ in 0..self.ready.len() {
                let Some((seat, ready)) = self.ready.pop_front() else { break };
                self.announce(now, seat, ready);
            }
            self.flush(now);
            if self.ready.is_empty() || turn == TURNS - 1 {
                break;
            }
            now = clock::now();
        }
        self.start_sends(now);
        self.start_receives();
    }

    fn announce(&mut self, now: Time, seat: u32, ready: Ready) {
        match ready {
            Ready::DiskDone(op, result) => self.deliver(now, seat, Event::DiskDone { op, result }),
            Ready::LinkDown(link, why) => self.deliver(now, seat, Event::LinkDown { link, why }),
            Ready::DialFailed(dial, why) => {
                self.deliver(now, seat, Event::DialFailed { dial, why })
            }
            Ready::Dialled(dial, port, socket) => {
                self.new_link(now, seat, socket, port, Some(dial));
            }
            Ready::Resumed(id) => {
                if let Some((index, link)) = self.link(id) {
                    // What came while it rested is no news to the backend any more.
                    link.input.drained = false;
                    self.cut(now, index);
                }
            }
        }
    }

    /// What is due: dials without an answer, closed links, listeners that failed, the node's tick.
    fn timers(&mut self, now: Time) {
        if !self.dials.is_empty() {
            for index in self.dials.indices() {
                self.check_dial(now, index);
            }
        }
        for i in (0..self.closing.len()).rev() {
            let id = self.closing[i];
            match self.link(id).map(|(index, link)| (index, link.state)) {
                Some((index, State::Closing(until) | State::Finished(until))) if until <= now => {
                    self.kill(index);
                }
                Some((_, State::Closing(_) | State::Finished(_))) => continue,
                _ => {}
            }
            self.closing.swap_remove(i);
        }
        for i in 0..self.listeners.len() {
            if self.listeners[i].retry_at.is_some_and(|t| t <= now) {
                self.accept(i as u32);
            }
        }
        self.close_silent(now);
        self.close_unread(now);
        for seat in 0..self.seats.len() {
            if self.seats[seat].wake_at.is_some_and(|t| t <= now) {
                self.deliver(now, seat as u32, Event::Tick);
            }
        }
    }

    /// Starts what is queued. False when there is something to do without waiting.
    pub(crate) fn is_idle(&mut self) -> Result<bool, RtError> {
        self.settle();
        let failed = RtError::system("waiting for I/O");
        self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(failed)?;
        Ok(self.ready.is_empty() && !self.has_news())
    }

    /// When the next of those is due.
    pub(crate) fn next_timer(&mut self) -> Option<Time> {
        let mut next = self.seats.iter().filter_map(|s| s.wake_at).min();
        for dial in self.dials.values().filter(|d| !d.abandoned) {
            next = Time::earliest(next, Some(dial.until));
        }
        for i in 0..self.closing.len() {
            let id = self.closing[i];
            if let Some((_, Link { state: State::Closing(t) | State::Finished(t), .. })) =
                self.link(id)
            {
                next = Time::earliest(next, Some(*t));
            }
        }
        next = Time::earliest(next, self.next_stranger());
        next = Time::earliest(next, self.next_unread());
        let retries = self.listeners.iter().filter_map(|a| a.retry_at).min();
        Time::earliest(next, retries).filter(|t| *t != Time::NEVER)
    }

    /// Waits for completions, at most so long: polls for a while when that is promising, then sleeps.
    fn wait(&mut self, at_most: Option<Duration>) -> Result<(), RtError> {
        let failed = RtError::system("waiting for I/O");
        let now = clock::now();
        let due = Time::earliest(self.next_timer(), at_most.map(|t| now + t));
        if !self.ready.is_empty() || due.is_some_and(|t| t <= now) || self.has_news() {
            return self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(failed);
        }
        if self.may_spin(now) {
            let until = Time::earliest(due, Some(self.last_event + self.spin)).unwrap_or(now);
            self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(&failed)?;
            while !self.has_news() {
                if clock::now() >= until {
                    self.trust = self.trust.saturating_sub(1);
                    break;
                }
                if self.sys.is_promising() {
                    self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(&failed)?;
                } else {
                    // Whoever works for us may need this very core.
                    std::thread::yield_now();
                }
            }
            if self.has_news() {
                // That something of ours went out proves nothing.
                if self.done.iter().any(|d| !matches!(d.token, Token::Send(_))) {
                    self.trust = (self.trust + SPIN_EARNS).min(SPIN_TRUST);
                }
                return Ok(());
            }
        }
        let left = due.map(|t| t.since(clock::now()));
        self.sys.wait(left, &mut self.done).map_err(failed)
    }

    /// True when polling has paid lately, or it is time to try again; and the last event is recent.
    fn may_spin(&mut self, now: Time) -> bool {
        if self.spin.is_zero() || now.since(self.last_event) >= self.spin {
            return false;
        }
        self.waits = self.waits.wrapping_add(1);
        self.trust > 0 || self.waits.is_multiple_of(SPIN_RETRY)
    }

    fn has_news(&self) -> bool {
        !self.done.is_empty() || !self.answers.is_empty() || self.waker.is_pending()
    }
}

impl<N: Node, S: Sys, T> Drop for Shard<N, S, T> {
    /// The kernel must not write into memory that is somebody else's: everything is cancelled and
    /// waited for. What does not come back is leaked rather than freed.
    fn drop(&mut self) {
        for index in self.links.indices() {
            let Some(link) = self.links.get_mut(index) else { continue };
            let _ = rustix::net::shutdown(&*link, rustix::net::Shutdown::Both);
            self.sys.forget(Token::Recv(index), link.as_fd());
        }
        for index in self.dials.indices() {
            let Some(dial) = self.dials.get_mut(index) else { continue };
            self.sys.forget(Token::Connect(index), dial.socket.as_fd());
        }
        for (i, a) in self.listeners.iter().enumerate() {
            self.sys.forget(Token::Accept(i as u32), a.listening.socket.as_fd());
        }
        self.sys.cancel_all();
        let until = clock::now() + LAST_WAIT;
        while self.sys.in_flight() > 0 && clock::now() < until {
            if self.sys.wait(Some(Duration::from_millis(100)), &mut self.done).is_err() {
                break;
            }
            for d in self.done.drain(..) {
                completions::close_accepted(d);
            }
        }
        if self.sys.in_flight() > 0 {
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.links, Table::new()));
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.dials, Table::new()));
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.files, Table::new()));
        }
    }
}

/// Starts an operation on a file, or goes on with it; its answer if it is known at once.
fn work_on_file<S: Sys>(sys: &mut S, files: &mut Table<(u32, FileOp)>, index: u32) -> Option<i32> {
    let (_, file) = files.get_mut(index)?;
    let (fd, call): (_, FileCall) = (file.fd, file.call());
    // SAFETY: the memory is the operation's own buffer; the operation stays in `files` until the
    // completion, and its buffer is not looked at meanwhile.
    unsafe { sys.file(index, fd, call) }
}
