//! A shard that its caller drives. It has no thread, so there is no hop between the caller and its
//! I/O.
//!
//! The caller makes requests ([`Reactor::request`]), turns the loop, and takes the answers. A
//! caller that also waits for other things calls [`Reactor::arm`], and if that finds nothing to do,
//! waits until [`Reactor::fd`] is readable.

use crate::clock;
use crate::error::RtError;
use crate::shard::Shard;
use crate::sys::{Sys, epoll::Epoll, uring::Uring};
use base::Time;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use seam::{BlockError, BlockRequest, Buf, Node, Note, RequestId};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A shard on the chosen backend.
#[allow(clippy::large_enum_variant)] // There is one per reactor, and it is not moved around.
pub(crate) enum Engine<N: Node, T> {
    Uring(Shard<N, Uring, T>),
    Epoll(Shard<N, Epoll, T>),
}

/// Makes the same call on either backend.
macro_rules! on {
    ($engine:expr, $shard:ident => $call:expr) => {
        match $engine {
            Engine::Uring($shard) => $call,
            Engine::Epoll($shard) => $call,
        }
    };
}

/// A running shard without a thread of its own. It stays on the thread that started it.
pub struct Reactor<N: Node, T> {
    engine: Engine<N, T>,
    /// An epoll instance, readable when the backend or the timer has something to do.
    poll: OwnedFd,
    timer: OwnedFd,
    /// The time that the timer is set to.
    armed: Option<Time>,
}

impl<N: Node, T: FnMut(usize, Time, Note)> Reactor<N, T> {
    pub(crate) fn start(mut engine: Engine<N, T>) -> Result<Reactor<N, T>, RtError> {
        on!(&mut engine, shard => shard.open()?);
        let failed = |what| move |e: rustix::io::Errno| RtError::system(what)(e.into());
        let poll = epoll::create(CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags);
        let timer = timer.map_err(failed("timerfd_create"))?;
        on!(&engine, shard => {
            epoll::add(&poll, shard.sys.fd(), EventData::new_u64(0), EventFlags::IN)
        })
        .and_then(|()| epoll::add(&poll, &timer, EventData::new_u64(1), EventFlags::IN))
        .map_err(failed("epoll_ctl"))?;
        Ok(Reactor { engine, poll, timer, armed: None })
    }

    /// Runs one round of the loop: waits for events and handles them. Waits at most `at_most`
    /// (`None`: without limit; zero: not at all).
    pub fn turn(&mut self, at_most: Option<Duration>) -> Result<(), RtError> {
        on!(&mut self.engine, shard => shard.turn(at_most))
    }

    /// Hands a request to this seat's node at once. What the node sends goes out with the next
    /// turn, so that many requests make one batch. The caller keeps `id` unique until its answer.
    pub fn request(&mut self, seat: usize, id: RequestId, request: BlockRequest) {
        on!(&mut self.engine, shard => shard.request(seat as u32, id, request));
    }

    /// Withdraws requests of this seat's node, whose ids are in ascending order: nobody wants their
    /// answers. They are answered nevertheless, so an id is free when its answer has come.
    pub fn withdraw(&mut self, seat: usize, ids: &[RequestId]) {
        on!(&mut self.engine, shard => shard.withdraw(seat as u32, ids));
    }

    /// Returns the answers that arrived since the last call, in order.
    pub fn answers(&mut self) -> std::vec::Drain<'_, (RequestId, Result<Buf, BlockError>)> {
        on!(&mut self.engine, shard => shard.answers.drain(..))
    }

    /// Allocates a buffer of `len` bytes with arbitrary content, for a request.
    pub fn alloc(&self, len: usize) -> Buf {
        on!(&self.engine, shard => shard.pool().alloc(len))
    }

    /// Returns this seat's node.
    pub fn node(&mut self, seat: usize) -> &mut N {
        on!(&mut self.engine, shard => shard.node(seat))
    }

    /// Returns a descriptor that is readable when a turn has something to do. This holds only while
    /// [`Reactor::arm`] was the last call.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// Submits queued work and sets the timer. Returns false when there is something to do already:
    /// call [`Reactor::turn`] before you wait.
    pub fn arm(&mut self) -> Result<bool, RtError> {
        let (idle, due) = on!(&mut self.engine, shard => (shard.is_idle()?, shard.next_timer()));
        let now = clock::now();
        if !idle || due.is_some_and(|t| t <= now) {
            return Ok(false);
        }
        if due != self.armed {
            let left = due.map_or(Duration::ZERO, |t| t.since(now));
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let at = Timespec {
                tv_sec: left.as_secs().min(1 << 30) as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let spec = Itimerspec { it_interval: zero, it_value: at };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)
                .map_err(|e| RtError::system("timerfd_settime")(e.into()))?;
            self.armed = due;
        }
        Ok(true)
    }
}
