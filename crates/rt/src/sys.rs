//! What a backend does for the shard: starts operations, waits, and hands back completions.
//!
//! The interface is io_uring's: an operation is started and completes later, once. A backend may
//! answer at once where it says so. The memory that an operation uses is lent to the backend until
//! it completes, or until [`Sys::forget`] says that it is given back.

pub(crate) mod epoll;
pub(crate) mod uring;

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// Which operation of which entry: a link, a dial, a listener, a device operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Recv(u32),
    Send(u32),
    Accept(u32),
    Connect(u32),
    Disk(u32),
    Wake,
    /// The backend's own; never handed out.
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
    /// As a system call's: not negative, or minus the error number.
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
    /// `durable`: not before it is that.
    Write {
        from: *const u8,
        len: u32,
        at: u64,
        durable: bool,
    },
    Sync,
}

/// A backend. Entries (links, dials, listeners) are announced with `watch_*` before their first
/// operation, and are gone after `forget`.
pub(crate) trait Sys {
    /// True when sockets must be non-blocking.
    const NONBLOCKING: bool;

    /// Announces a socket that operations with tokens of this kind and index will name. For links,
    /// the token is `Token::Recv`.
    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>) -> io::Result<()>;

    /// Gives up the operations of this socket: for links, of both directions. True when they are
    /// gone; false when each of them completes later, soon.
    fn forget(&mut self, token: Token, fd: BorrowedFd<'_>) -> bool;

    /// Completes, with any result, when the socket has something to receive, or has ended. `drained`:
    /// the last receive took everything.
    fn await_input(&mut self, link: u32, fd: RawFd, drained: bool);

    /// Completes as [`Token::Recv`] when the other side of the link has ended it, whatever there is to
    /// receive. The result is not negative then: what `poll` says, such as `POLLHUP` and `POLLERR` for a
    /// link that broke. Instead of [`Sys::await_input`].
    fn await_end(&mut self, link: u32, fd: RawFd);

    /// Makes [`Sys::await_end`] complete soon, with any result.
    fn recall(&mut self, link: u32);

    /// Sends; answers at once, or completes later.
    ///
    /// # Safety
    /// If it does not answer at once: `message`, and the memory that it points to, stay valid and
    /// untouched until the completion or until `forget` returns true.
    unsafe fn send(&mut self, link: u32, fd: RawFd, message: *const libc::msghdr) -> Option<i32>;

    /// Starts to accept one connection. Completes with its file descriptor.
    fn accept(&mut self, listener: u32, fd: RawFd);

    /// Starts to connect.
    ///
    /// # Safety
    /// `address` stays valid and untouched as in [`Sys::send`].
    unsafe fn connect(&mut self, dial: u32, fd: RawFd, address: *const socket2::SockAddr);

    /// Works on a file; answers at once, or completes later.
    ///
    /// # Safety
    /// The memory in `call` stays valid and untouched until then.
    unsafe fn file(&mut self, slot: u32, fd: RawFd, call: FileCall) -> Option<i32>;

    /// Starts what is to be started, and collects completions: waits for the first one at most as
    /// long as told (`None`: for ever), and then takes what is there. May come back empty early.
    fn wait(&mut self, at_most: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()>;

    /// False when `wait(0)` would surely find nothing. Cheap.
    fn is_promising(&mut self) -> bool;

    /// Readable when `wait(0)` would find something, as long as the last `wait` found nothing.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Operations that the kernel has not given back.
    fn in_flight(&self) -> usize;

    /// For the end: asks for the completion of everything that can be cancelled.
    fn cancel_all(&mut self);
}

/// The result of the last system call, as completions tell it.
pub(crate) fn outcome(result: isize) -> i32 {
    if result >= 0 { result as i32 } else { -errno() }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Sends what the socket takes without waiting; `None` when it takes nothing.
///
/// # Safety
/// `message` and what it points to are valid.
unsafe fn send_now(fd: RawFd, message: *const libc::msghdr) -> Option<i32> {
    loop {
        // SAFETY: the caller's promise.
        let n = unsafe { libc::sendmsg(fd, message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        match outcome(n) {
            e if e == -libc::EINTR => {}
            e if e == -libc::EAGAIN => return None,
            n => return Some(n),
        }
    }
}

/// Receives what the socket has, into one place or two (the second may be empty); `None` when it has
/// nothing.
///
/// # Safety
/// The places are valid, and nobody else uses them.
pub(crate) unsafe fn recv_now(fd: RawFd, parts: &mut [libc::iovec; 2]) -> Option<i32> {
    // SAFETY: all zeros are a valid `msghdr`: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    loop {
        // SAFETY: the caller's promise; the message names `parts` only.
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
