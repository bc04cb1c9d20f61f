//! One connection: its socket, the data being received, and the frames queued for sending.
//!
//! Invariant: while [`Output::in_flight`] is set, the kernel may use the memory that was lent to
//! it; that memory is not touched, and the link is not dropped. The link is not dropped either
//! while [`Input::awaited`] is set, so that no completion meets another link in its place. These
//! types do no I/O; `shard` and `sys` do.

mod input;
mod output;

pub(crate) use input::Input;
pub(crate) use output::Output;

use base::{LinkId, Time};
use rustix::net::{getpeername, getsockname};
use seam::{DownReason, Port, Strangers};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The node knows the link and uses it.
    Up,
    /// The node has closed it. Queued data is sent until this time.
    Closing(Time),
    /// All data is sent and the other side has been told; it has until this time to close first.
    Finished(Time),
    /// Closed; the link only waits for the kernel to be done with it.
    Dead,
}

/// State of a link that another side dialled, until the node welcomes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stranger {
    pub(crate) port: Port,
    /// The longest allowed body, in bytes.
    pub(crate) body: usize,
    /// Deadline of its first frame; `None`: the frame has arrived.
    pub(crate) until: Option<Time>,
}

/// The node's bound on unsent data of a link, and the time since when the link is above it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) port: Port,
    /// The bound in bytes.
    pub(crate) most: u64,
    /// Set when more than `most` bytes were unsent, and cleared at half of `most`. While it is set,
    /// the link is not read.
    pub(crate) since: Option<Time>,
}

/// A connection.
pub(crate) struct Link<F> {
    pub(crate) id: LinkId,
    /// The node that the link belongs to.
    pub(crate) seat: u32,
    socket: OwnedFd,
    pub(crate) framer: F,
    pub(crate) state: State,
    /// Set while the node has not welcomed the side that dialled.
    pub(crate) stranger: Option<Stranger>,
    /// Set if another side dialled the link and the node bounds the unsent data of such links.
    pub(crate) unread: Option<Unread>,
    /// The node has paused reading.
    pub(crate) paused: bool,
    /// Sending failed. Data that the other side sent before is still read; then the link goes down.
    pub(crate) broken: bool,
    /// The stream has ended; reported after the frames before the end.
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

    /// Makes this link a stranger's: another side dialled it, and the node may not know that side.
    pub(crate) fn of_stranger(self, now: Time, port: Port, bounds: Strangers) -> Link<F> {
        let (body, until) = (bounds.body as usize, Some(now + bounds.patience));
        Link { stranger: Some(Stranger { port, body, until }), input: Input::small(), ..self }
    }

    /// Ends the limits of a stranger: the node has welcomed the other side.
    pub(crate) fn welcome(&mut self) -> Option<Stranger> {
        self.input.widen();
        self.stranger.take()
    }

    /// Returns true while no frame may be delivered: the node has paused the link, or the other
    /// side does not read what is sent to it.
    pub(crate) fn rests(&self) -> bool {
        self.paused || self.unread.is_some_and(|unread| unread.since.is_some())
    }

    /// Returns the addresses of this side and of the other side. There are none for a unix socket,
    /// and if the connection is already broken.
    pub(crate) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let own = getsockname(&self.socket).ok().and_then(|own| own.try_into().ok());
        own.zip(self.peer()).unzip()
    }

    /// Returns the address of the other side; `None` for a unix socket.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        getpeername(&self.socket).ok()??.try_into().ok()
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns true when data may be taken from the socket, for the node or to be discarded.
    pub(crate) fn wants_input(&self) -> bool {
        match self.state {
            State::Up => !self.rests() && self.ended.is_none(),
            State::Closing(_) | State::Finished(_) => self.ended.is_none(),
            State::Dead => false,
        }
    }

    /// Returns true when the socket may not be read, but the node must learn when the other side
    /// goes.
    pub(crate) fn wants_end(&self) -> bool {
        self.state == State::Up && self.paused && self.ended.is_none()
    }

    /// Returns true when the backend has no operation of this link in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.input.awaited && !self.output.in_flight
    }
}

impl<F> AsFd for Link<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A value at an address that does not change when its owner moves, so that the kernel can read it.
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
        // SAFETY: the pointer came from `Box::leak` in `new`, and is freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Returns a message header without any parts.
fn empty_message() -> libc::msghdr {
    // SAFETY: all zeros are a valid `msghdr`: null pointers with lengths of zero.
    unsafe { std::mem::zeroed() }
}
