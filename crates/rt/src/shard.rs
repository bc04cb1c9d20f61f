//! The loop of one shard and its nodes: wait, deliver events, carry out effects, start operations.
//!
//! One round of the loop is a *batch*: everything that the kernel has completed. Its order is a
//! promise to the node (`seam::contract`):
//! 1. The backend collects completions.
//! 2. The clock is read, and again after each receive, so that an event's `now` is never earlier
//!    than its data or than the event before.
//! 3. Events go to [`Node::on`] one by one. The effects of an event are carried out at once, but
//!    sends are only queued, and a closed link is silent from then on. Answers that are known at
//!    once become events of the next turn (`ready`), never a recursion.
//! 4. Each node that had events gets a [`Node::flush`]. Further turns follow while there are
//!    `ready` events, up to a bound.
//! 5. Each link with queued data sends it at once. Operations that have to wait (a send on a full
//!    socket, input on the links that were read) are submitted with the next wait.
//!
//! Invariant: all memory that the kernel may use belongs to an entry of `links`, `dials` or
//! `files`, and an entry is removed only when the kernel is done with it. [`Shard::drop`] handles
//! the end.

mod completions;
mod effects;
mod files;
mod links;
mod polling;
mod strangers;
mod unread;

use crate::clock;
use crate::dial::Dial;
use crate::disk::{Disk, Zeros};
use crate::error::RtError;
use crate::link::State;
use crate::net::Listening;
use crate::signal::{Stop, Waker};
use crate::sys::{Done, Sys, Token};
use crate::table::Table;
use base::{LinkId, Time};
use files::Files;
use links::Links;
use polling::Polling;
use seam::{
    BlockError, BlockRequest, Buf, BufPool, DialError, DialId, DiskError, DiskOp, DownReason,
    Effect, Effects, Event, Node, Note, Port, RequestId,
};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use strangers::StrangerList;

/// Turns per batch; after that many the kernel is asked again, without waiting.
const TURNS: usize = 8;
/// How long a closed link may take to send its queue, and to see the other side close.
const LINGER: Duration = Duration::from_secs(1);
/// How long to pause a listener after a failed accept (no descriptors, no memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a dropped shard waits for the kernel to complete everything.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// How long nodes may take to finish their work when the process is to stop.
const ORDER_WAIT: Duration = Duration::from_secs(3);
/// The listeners and devices of one node.
pub(crate) struct NodeResources {
    pub(crate) listeners: Vec<(Port, Listening)>,
    pub(crate) disks: Vec<Disk>,
}

/// What [`super::run`] hands to a new shard.
pub(crate) struct Parts {
    pub(crate) waker: Arc<Waker>,
    /// One per node.
    pub(crate) seats: Vec<NodeResources>,
    pub(crate) spin: Duration,
    pub(crate) link_queue: u64,
    pub(crate) local: bool,
}

/// The answer to a request of the reactor's caller.
pub(crate) type Answer = (RequestId, Result<Buf, BlockError>);

/// An event that the driver itself produced.
enum Ready {
    DiskDone(DiskOp, Result<seam::Buf, DiskError>),
    LinkDown(LinkId, DownReason),
    DialFailed(DialId, DialError),
    /// A dial to a process on this host has connected.
    Dialled(DialId, Port, OwnedFd),
    /// A link may be read again, and may have complete frames in its buffer.
    Resumed(LinkId),
}

/// A node and everything that belongs to it.
struct Seat<N> {
    node: N,
    disks: Vec<Disk>,
    /// Strangers, by [`Port`].
    crowds: [StrangerList; Port::COUNT],
    /// Unsent bytes of the links that others dialled, by [`Port`], where the node bounds them.
    unread: [u64; Port::COUNT],
    /// The node has had an event since its last flush.
    active: bool,
    /// The node's [`Node::wake_at`] after its last flush.
    wake_at: Option<Time>,
}

/// A listener, and the time of the next accept after a failure.
struct Accepting {
    seat: u32,
    port: Port,
    listening: Listening,
    retry_at: Option<Time>,
}

pub(crate) struct Shard<N: Node, S: Sys, T> {
    seats: Vec<Seat<N>>,
    /// The seats with events since their last flush, each once.
    active: Vec<u32>,
    on_note: T,
    pub(crate) sys: S,
    out: Effects,
    /// The effects being carried out; kept to reuse its memory.
    effects: Vec<Effect>,
    done: Vec<Done>,
    ready: VecDeque<(u32, Ready)>,
    links: Links<N::Framer>,
    dials: Table<Dial>,
    listeners: Vec<Accepting>,
    files: Files,
    zeros: Zeros,
    waker: Arc<Waker>,
    /// Answers for the reactor's caller.
    pub(crate) answers: Vec<Answer>,
    link_queue: u64,
    local: bool,
    polling: Polling,
    /// Events since the start; shows whether a batch had any.
    events: u64,
    /// The last batch delivered frames.
    had_frames: bool,
}

impl<N: Node, S: Sys, T: FnMut(usize, Time, Note)> Shard<N, S, T> {
    pub(crate) fn new(sys: S, parts: Parts, out: Effects, nodes: Vec<N>, on_note: T) -> Self {
        assert_eq!(nodes.len(), parts.seats.len(), "one node per seat");
        let (mut seats, mut listeners) = (Vec::new(), Vec::new());
        for (seat, (node, own)) in (0..).zip(nodes.into_iter().zip(parts.seats)) {
            let crowds = Default::default();
            let (unread, wake_at) = ([0; Port::COUNT], None);
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
            out,
            effects: Vec::new(),
            done: Vec::new(),
            ready: VecDeque::new(),
            links: Links::new(),
            dials: Table::new(),
            listeners,
            files: Files::new(),
            zeros: Zeros::default(),
            waker: parts.waker,
            answers: Vec::new(),
            link_queue: parts.link_queue,
            local: parts.local,
            polling: Polling::new(parts.spin),
            events: 0,
            had_frames: false,
        }
    }

    /// Starts to listen. Called once, before everything else.
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

    /// Runs until `stop` is set, then gives the nodes up to [`ORDER_WAIT`] to finish their work.
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

    /// Runs one round of the loop. Waits at most `at_most` for something to do.
    pub(crate) fn turn(&mut self, at_most: Option<Duration>) -> Result<(), RtError> {
        self.settle();
        if self.had_frames {
            // Lets other threads use this core first: meanwhile more data arrives, and large
            // batches make I/O cheap.
            std::thread::yield_now();
        }
        self.wait(at_most)?;
        self.batch();
        Ok(())
    }

    /// Ends the batch of the requests since the last turn.
    fn settle(&mut self) {
        if !self.active.is_empty() {
            self.turns(clock::now());
        }
    }

    /// Delivers a request of the reactor's caller. The node handles it at once, and what it sends
    /// goes out with the next turn.
    pub(crate) fn request(&mut self, seat: u32, id: RequestId, request: BlockRequest) {
        self.deliver(clock::now(), seat, Event::Request { id, request });
    }

    /// Tells a node that nobody wants the answers to these requests, which are in ascending order.
    pub(crate) fn withdraw(&mut self, seat: u32, ids: &[RequestId]) {
        self.deliver(clock::now(), seat, Event::Withdraw { ids });
    }

    pub(crate) fn node(&mut self, seat: usize) -> &mut N {
        &mut self.seats[seat].node
    }

    pub(crate) fn pool(&self) -> &BufPool {
        self.out.pool()
    }

    fn accept(&mut self, i: u32) {
        let a = &mut self.listeners[i as usize];
        a.retry_at = None;
        self.sys.accept(i, a.listening.socket.as_raw_fd());
    }

    /// Handles everything that has completed.
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
            self.polling.last_event = clock::now();
        }
    }

    /// Delivers one event to a node and carries out its effects.
    fn deliver(&mut self, now: Time, seat: u32, event: Event<'_>) {
        self.events += 1;
        let s = &mut self.seats[seat as usize];
        if !std::mem::replace(&mut s.active, true) {
            self.active.push(seat);
        }
        s.node.on(now, event, &mut self.out);
        self.carry_out(now, seat);
    }

    /// Flushes the nodes that had events.
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

    /// Performs steps 4 and 5 of a batch.
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
                if let Some((index, link)) = self.links.of(id) {
                    // The backend does not report again the data that arrived while the link
                    // rested.
                    link.input.drained = false;
                    self.cut(now, index);
                }
            }
        }
    }

    /// Handles what is due: dials that time out, closed links, listeners to retry, silent
    /// strangers, links that are not read, the nodes' ticks.
    fn timers(&mut self, now: Time) {
        if !self.dials.is_empty() {
            for index in self.dials.indices() {
                self.check_dial(now, index);
            }
        }
        for i in (0..self.links.closing.len()).rev() {
            let id = self.links.closing[i];
            match self.links.of(id).map(|(index, link)| (index, link.state)) {
                Some((index, State::Closing(until) | State::Finished(until))) if until <= now => {
                    self.kill(index);
                }
                Some((_, State::Closing(_) | State::Finished(_))) => continue,
                _ => {}
            }
            self.links.closing.swap_remove(i);
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

    /// Submits queued work. Returns false when there is something to do without waiting.
    pub(crate) fn is_idle(&mut self) -> Result<bool, RtError> {
        self.settle();
        let failed = RtError::system("waiting for I/O");
        self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(failed)?;
        Ok(self.ready.is_empty() && !self.has_news())
    }

    /// Returns the time at which [`Shard::timers`] next has something to do.
    pub(crate) fn next_timer(&mut self) -> Option<Time> {
        let mut next = self.seats.iter().filter_map(|s| s.wake_at).min();
        for dial in self.dials.values().filter(|d| !d.abandoned) {
            next = Time::earliest(next, Some(dial.until));
        }
        next = Time::earliest(next, self.links.next_closed());
        next = Time::earliest(next, self.next_stranger());
        next = Time::earliest(next, self.next_unread());
        let retries = self.listeners.iter().filter_map(|a| a.retry_at).min();
        Time::earliest(next, retries).filter(|t| *t != Time::NEVER)
    }

    /// Waits for completions, at most `at_most`: polls for a while when that is promising, then
    /// sleeps.
    fn wait(&mut self, at_most: Option<Duration>) -> Result<(), RtError> {
        let failed = RtError::system("waiting for I/O");
        let now = clock::now();
        let due = Time::earliest(self.next_timer(), at_most.map(|t| now + t));
        if !self.ready.is_empty() || due.is_some_and(|t| t <= now) || self.has_news() {
            return self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(failed);
        }
        if let Some(until) = self.polling.until(now) {
            let until = due.map_or(until, |due| due.min(until));
            self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(&failed)?;
            while !self.has_news() {
                if clock::now() >= until {
                    self.polling.paid(false);
                    break;
                }
                if self.sys.is_promising() {
                    self.sys.wait(Some(Duration::ZERO), &mut self.done).map_err(&failed)?;
                } else {
                    // The thread that produces our next event may need this very core.
                    std::thread::yield_now();
                }
            }
            if self.has_news() {
                // A completed send does not show that polling pays.
                if self.done.iter().any(|d| !matches!(d.token, Token::Send(_))) {
                    self.polling.paid(true);
                }
                return Ok(());
            }
        }
        let left = due.map(|t| t.since(clock::now()));
        self.sys.wait(left, &mut self.done).map_err(failed)
    }

    fn has_news(&self) -> bool {
        !self.done.is_empty() || !self.answers.is_empty() || self.waker.is_pending()
    }
}

impl<N: Node, S: Sys, T> Drop for Shard<N, S, T> {
    /// Cancels everything and waits for it, because the kernel must not write to freed memory.
    /// Memory of operations that don't complete is leaked.
    fn drop(&mut self) {
        for index in self.links.table.indices() {
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
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.links, Links::new()));
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.dials, Table::new()));
            let _ = ManuallyDrop::new(std::mem::replace(&mut self.files, Files::new()));
        }
    }
}
