//! One connection: its socket, what is being received, what waits to be sent.
//!
//! Invariant: while [`Output::in_flight`] is set, the kernel may use the memory that it lent to it, and
//! the link is neither dropped nor is that memory touched. Nor is the link dropped while
//! [`Input::awaited`] is set, so that no completion meets another link in its place. The parts don't do I/O themselves; `shard` and `sys` do.

mod input;
mod output;

pub(crate) use input::Input;
pub(crate) use output::Output;

use base::{LinkId, Time};
use rustix::net::getpeername;
use seam::{DownReason, Port, Strangers};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// Where a link stands in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The node knows it and uses it.
    Up,
    /// The node has closed it: what is queued goes out, until then.
    Closing(Time),
    /// Everything is out and the other side knows the end; it may close first, until then.
    Finished(Time),
    /// Nothing is to be done but to wait for the kernel to let go of it.
    Dead,
}

/// What a link is as long as its node has not welcomed who dialled it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stranger {
    pub(crate) port: Port,
    /// The longest body, in bytes.
    pub(crate) body: usize,
    /// When its first frame has to be there; `None`: it is.
    pub(crate) until: Option<Time>,
}

/// What may wait for a link that its node bounds, and since when more does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) port: Port,
    /// Bytes.
    pub(crate) most: u64,
    /// More than `most` waited then, and more than half of it has waited since: the link is not read.
    pub(crate) since: Option<Time>,
}

/// A connection.
pub(crate) struct Link<F> {
    pub(crate) id: LinkId,
    /// Whose it is.
    pub(crate) seat: u32,
    socket: OwnedFd,
    pub(crate) framer: F,
    pub(crate) state: State,
    /// Somebody dialled it whom the node doesn't know yet.
    pub(crate) stranger: Option<Stranger>,
    /// Set where the node bounds what waits for who dialled it.
    pub(crate) unread: Option<Unread>,
    /// The node does not want to read.
    pub(crate) paused: bool,
    /// Sending failed: what the other side said before is still read, and then this is told.
    pub(crate) broken: bool,
    /// The stream ended; told after the frames before it.
    pub(crate) ended: Option<DownReason>,
    pub(crate) input: Input,
    pub(crate) output: Output,
}

impl<F> Link<F> {
    pub(crate) fn new(id: LinkId, seat: u32, socket: OwnedFd, framer: F) -> Link<F> {
        Link {
            id,
            seat,
            socket,
            framer,
            state: State::Up,
            stranger: None,
            unread: None,
            paused: false,
            broken: false,
            ended: None,
            input: Input::new(),
            output: Output::new(),
        }
    }

    /// A link that somebody dialled whom the node may not know.
    pub(crate) fn of_stranger(self, now: Time, port: Port, bounds: Strangers) -> Link<F> {
        let (body, until) = (bounds.body as usize, Some(now + bounds.patience));
        Link { stranger: Some(Stranger { port, body, until }), input: Input::small(), ..self }
    }

    /// The node knows who is there.
    pub(crate) fn welcome(&mut self) -> Option<Stranger> {
        self.input.widen();
        self.stranger.take()
    }

    /// True while no frame may be delivered: the node doesn't want one, or the other side doesn't take
    /// what waits for it.
    pub(crate) fn rests(&self) -> bool {
        self.paused || self.unread.is_some_and(|unread| unread.since.is_some())
    }

    /// Where the other side is; a path has no address.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        getpeername(&self.socket).ok()??.try_into().ok()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// True when data may be taken from the socket: for the node, or to be thrown away.
    pub(crate) fn wants_input(&self) -> bool {
        match self.state {
            State::Up => !self.rests() && self.ended.is_none(),
            State::Closing(_) | State::Finished(_) => self.ended.is_none(),
            State::Dead => false,
        }
    }

    /// True when nothing may be taken from the socket, but the node has to learn when the other side goes.
    pub(crate) fn wants_end(&self) -> bool {
        self.state == State::Up && self.paused && self.ended.is_none()
    }

    /// True when the backend has nothing of this link under way.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.input.awaited && !self.output.in_flight
    }
}

impl<F> AsFd for Link<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A value at an address that does not change when its owner moves, for the kernel to look at.
pub(crate) struct Pinned<T>(NonNull<T>);

impl<T> Pinned<T> {
    pub(crate) fn new(value: T) -> Pinned<T> {
        Pinned(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::leak` in `new`, and is given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A message header that points nowhere yet.
fn empty_message() -> libc::msghdr {
    // SAFETY: all zeros are a valid `msghdr`: null pointers with lengths of zero.
    unsafe { std::mem::zeroed() }
}
