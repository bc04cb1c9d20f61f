//! The interface of a backend: it starts operations, waits, and returns completions.
//!
//! It follows io_uring: an operation is started, and completes later, once. Some calls may answer
//! at once; their docs say so. The memory of an operation is lent to the backend until the
//! operation completes, or until [`Sys::forget`] returns true.

pub(crate) mod epoll;
pub(crate) mod uring;

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// An operation, by kind and by the index of its link, listener, dial or file operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Recv(u32),
    Send(u32),
    Accept(u32),
    Connect(u32),
    Disk(u32),
    Wake,
    /// Used inside the backend; never returned as a completion.
    Cancel,
}

impl Token {
    pub(crate) fn pack(self) -> u64 {
        let (kind, index) = match self {
            Token::Recv(i) => (0, i),
            Token::Send(i) => (1, i),
            Token::Accept(i) => (2, i),
            Token::Connect(i) => (3, i),
            Token::Disk(i) => (4, i),
            Token::Wake => (5, 0),
            Token::Cancel => (6, 0),
        };
        kind << 32 | u64::from(index)
    }

    pub(crate) fn unpack(packed: u64) -> Token {
        let index = packed as u32;
        match packed >> 32 {
            0 => Token::Recv(index),
            1 => Token::Send(index),
            2 => Token::Accept(index),
            3 => Token::Connect(index),
            4 => Token::Disk(index),
            5 => Token::Wake,
            _ => Token::Cancel,
        }
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) token: Token,
    /// As a system call returns it: not negative, or the negated error number.
    pub(crate) result: i32,
}

/// One operation on a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileCall {
    Read {
        to: *mut u8,
        len: u32,
        at: u64,
    },
    /// A write; if `durable`, it completes only when its data is durable.
    Write {
        from: *const u8,
        len: u32,
        at: u64,
        durable: bool,
    },
    Sync,
    /// Frees the blocks of a range, which reads as zeros afterwards; the size of the file stays.
    Punch {
        at: u64,
        len: u64,
    },
}

/// The mode of `fallocate` that does that.
pub(crate) const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// A backend. A socket (of a link, a dial or a listener) is registered with `watch` before its
/// first operation, and is gone after `forget`.
pub(crate) trait Sys {
    /// True if sockets must be non-blocking.
    const NONBLOCKING: bool;

    /// Registers a socket. Later operations name it by tokens of this kind and index. A link is
    /// registered as `Token::Recv`.
    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Cancels the operations of this socket; for a link, in both directions. Returns true when
    /// they are gone, and false when each of them completes later, soon.
    fn forget(&mut self, token: Token, fd: BorrowedFd<'_>) -> bool;

    /// Completes, with any result, when the socket has data or has ended. `drained`: the last
    /// receive took everything.
    fn await_input(&mut self, link: u32, fd: RawFd, drained: bool);

    /// Completes as [`Token::Recv`] when the other side has closed the link, no matter how much
    /// data is unread. The result is then not negative: it holds the flags of `poll`, such as
    /// `POLLHUP` and `POLLERR` for a broken link. Used instead of [`Sys::await_input`].
    fn await_end(&mut self, link: u32, fd: RawFd);

    /// Makes [`Sys::await_end`] complete soon, with any result.
    fn recall(&mut self, link: u32);

    /// Sends a message; answers at once, or completes later.
    ///
    /// # Safety
    /// If it does not answer at once, `message` and the memory that it points to stay valid and
    /// unmodified until the completion or until `forget` returns true.
    unsafe fn send(&mut self, link: u32, fd: RawFd, message: *const libc::msghdr) -> Option<i32>;

    /// Starts to accept one connection. Completes with its file descriptor.
    fn accept(&mut self, listener: u32, fd: RawFd);

    /// Starts to connect a socket.
    ///
    /// # Safety
    /// `address` stays valid and unmodified as in [`Sys::send`].
    unsafe fn connect(&mut self, dial: u32, fd: RawFd, address: *const socket2::SockAddr);

    /// Starts an operation on a file; answers at once, or completes later.
    ///
    /// # Safety
    /// The memory in `call` stays valid and unmodified until then.
    unsafe fn file(&mut self, slot: u32, fd: RawFd, call: FileCall) -> Option<i32>;

    /// Submits queued operations and collects completions. Waits for the first one at most
    /// `at_most` (`None`: without limit), then takes all that are there. May return early without
    /// any.
    fn wait(&mut self, at_most: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()>;

    /// Returns false when `wait(0)` would certainly find nothing. Cheap.
    fn is_promising(&mut self) -> bool;

    /// Returns a descriptor that is readable when `wait(0)` would find something. This holds only
    /// while the last `wait` found nothing.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the number of operations that the kernel has not completed.
    fn in_flight(&self) -> usize;

    /// Prepares the end: cancels the wait for a wake-up. (The shard calls [`Sys::forget`] for its
    /// sockets; file operations complete by themselves.)
    fn cancel_all(&mut self);
}

/// Returns the result of the last system call in the form that completions use.
pub(crate) fn outcome(result: isize) -> i32 {
    if result >= 0 { result as i32 } else { -errno() }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Sends what the socket takes without waiting; returns `None` when it takes nothing.
///
/// # Safety
/// `message` and what it points to are valid.
unsafe fn send_now(fd: RawFd, message: *const libc::msghdr) -> Option<i32> {
    loop {
        // SAFETY: guaranteed by the caller.
        let n = unsafe { libc::sendmsg(fd, message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        match outcome(n) {
            e if e == -libc::EINTR => {}
            e if e == -libc::EAGAIN => return None,
            n => return Some(n),
        }
    }
}

/// Receives what the socket has into one or two buffers (the second may be empty); returns `None`
/// when the socket has nothing.
///
/// # Safety
/// The buffers are valid, and nothing else uses them.
pub(crate) unsafe fn recv_now(fd: RawFd, parts: &mut [libc::iovec; 2]) -> Option<i32> {
    // SAFETY: all zeros are a valid `msghdr`: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    loop {
        // SAFETY: guaranteed by the caller; the message names only `parts`.
        let n = unsafe {
            match parts {
                [one, libc::iovec { iov_len: 0, .. }] => {
                    libc::recv(fd, one.iov_base, one.iov_len, libc::MSG_DONTWAIT)
                }
                _ => libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT),
            }
        };
        match outcome(n) {
            e if e == -libc::EINTR => {}
            e if e == -libc::EAGAIN => return None,
            n => return Some(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_packing() {
        for t in [
            Token::Recv(7),
            Token::Send(u32::MAX),
            Token::Accept(0),
            Token::Connect(1),
            Token::Disk(2),
            Token::Wake,
            Token::Cancel,
        ] {
            assert_eq!(Token::unpack(t.pack()), t);
        }
    }
}
