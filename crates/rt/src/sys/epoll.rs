//! The backend for kernels and containers without io_uring: epoll, edge-triggered.
//!
//! An operation on a socket waits in its entry until the socket is ready; then [`Sys::wait`]
//! performs it on the shard's thread. The kernel holds no pointer between system calls, so `forget`
//! always returns all memory at once. Operations on files are synchronous: a slow device blocks the
//! shard for that time. That is the price of this backend.

use super::{Done, FileCall, PUNCH, Sys, Token, outcome, send_now};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Events per system call.
const BATCH: usize = 256;

/// A socket, its known readiness, and its pending operations.
#[derive(Default)]
struct Entry {
    fd: RawFd,
    readable: bool,
    writable: bool,
    /// The end or an error was reported. The kernel reports it once, so `readable` and `writable`
    /// stay set from then on.
    ended: bool,
    /// The `poll` flags of an error, or of both directions being closed; 0 otherwise.
    broken: i32,
    /// An `await_input` is pending.
    recv: bool,
    /// An `await_end` is pending.
    end: bool,
    send: Option<*const libc::msghdr>,
    /// An accept or a connect is pending.
    open: bool,
    /// The error of a connect that failed at once.
    failed: Option<i32>,
}

/// The epoll backend.
pub(crate) struct Epoll {
    epoll: OwnedFd,
    links: Vec<Entry>,
    listeners: Vec<Entry>,
    dials: Vec<Entry>,
    /// Operations that can probably make progress now.
    runnable: Vec<Token>,
    batch: Vec<Token>,
    events: Vec<libc::epoll_event>,
    /// The kernel lacks `epoll_pwait2`: timeouts are in milliseconds.
    coarse: bool,
}

impl Epoll {
    pub(crate) fn new(wake: BorrowedFd<'_>) -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(Token::Wake.pack()), EventFlags::IN)?;
        Ok(Epoll {
            epoll,
            links: Vec::new(),
            listeners: Vec::new(),
            dials: Vec::new(),
            runnable: Vec::new(),
            batch: Vec::new(),
            events: Vec::with_capacity(BATCH),
            coarse: false,
        })
    }

    fn entry(&mut self, token: Token) -> &mut Entry {
        let (table, index) = match token {
            Token::Recv(i) | Token::Send(i) => (&mut self.links, i as usize),
            Token::Accept(i) => (&mut self.listeners, i as usize),
            Token::Connect(i) => (&mut self.dials, i as usize),
            Token::Disk(_) | Token::Wake | Token::Cancel => unreachable!("{token:?} has no socket"),
        };
        if table.len() <= index {
            table.resize_with(index + 1, Entry::default);
        }
        &mut table[index]
    }

    /// Asks the kernel which sockets have become ready.
    fn poll(&mut self, at_most: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        let n = self.poll_raw(at_most)?;
        for i in 0..n {
            let (flags, token) = (self.events[i].events, Token::unpack(self.events[i].u64));
            if token == Token::Wake {
                done.push(Done { token, result: 0 });
                continue;
            }
            let flags = EventFlags::from_bits_retain(flags);
            let entry = self.entry(token);
            let over = EventFlags::HUP | EventFlags::ERR;
            entry.ended |= flags.intersects(over | EventFlags::RDHUP);
            entry.broken |= flags.intersection(over).bits() as i32;
            if flags.intersects(EventFlags::IN | over | EventFlags::RDHUP) {
                entry.readable = true;
            }
            if flags.intersects(EventFlags::OUT | over) {
                entry.writable = true;
            }
            let end = entry.end && entry.ended;
            let (recv, send) = (entry.recv || entry.open || end, entry.send.is_some());
            if recv {
                self.runnable.push(token);
            }
            if let (Token::Recv(i), true) = (token, send) {
                self.runnable.push(Token::Send(i));
            }
        }
        Ok(())
    }

    fn poll_raw(&mut self, at_most: Option<Duration>) -> io::Result<usize> {
        self.events.clear();
        let (fd, room) = (self.epoll.as_raw_fd(), self.events.spare_capacity_mut());
        let (to, len) = (room.as_mut_ptr().cast::<libc::epoll_event>(), room.len());
        let mut result = -libc::ENOSYS;
        if !self.coarse {
            let time = at_most.map(|t| libc::timespec {
                tv_sec: t.as_secs().min(1 << 30) as libc::time_t,
                tv_nsec: t.subsec_nanos().into(),
            });
            let time = time.as_ref().map_or(std::ptr::null(), |t| &raw const *t);
            let mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: `to` has room for `len` events; `time` is null or lives until after the call.
            let n =
                unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, to, len, time, mask, 0usize) };
            result = outcome(n as isize);
        }
        if result == -libc::ENOSYS || result == -libc::EPERM {
            self.coarse = true;
            // Rounded up: returning early would make a busy loop.
            let ms = at_most.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).min(1 << 30) as i32);
            // SAFETY: `to` has room for `len` events.
            let n = unsafe { libc::epoll_wait(fd, to, len as i32, ms) };
            result = outcome(n as isize);
        }
        match result {
            n if n >= 0 => {
                // SAFETY: the kernel wrote this many events.
                unsafe { self.events.set_len(n as usize) };
                Ok(n as usize)
            }
            e if e == -libc::EINTR => Ok(0),
            e => Err(io::Error::from_raw_os_error(-e)),
        }
    }

    /// Tries an operation. It stays pending when the socket turns out not to be ready.
    fn run(&mut self, token: Token) -> Option<Done> {
        let entry = self.entry(token);
        let result = match token {
            Token::Recv(_) => entry.run_recv()?,
            Token::Send(_) => entry.run_send()?,
            Token::Accept(_) => entry.run_accept()?,
            Token::Connect(_) => entry.run_connect()?,
            Token::Disk(_) | Token::Wake | Token::Cancel => return None,
        };
        Some(Done { token, result })
    }
}

impl Entry {
    fn run_recv(&mut self) -> Option<i32> {
        if self.ended && std::mem::take(&mut self.end) {
            return Some(self.broken);
        }
        (self.readable && std::mem::take(&mut self.recv)).then_some(0)
    }

    fn run_send(&mut self) -> Option<i32> {
        let message = self.send?;
        if !self.writable {
            return None;
        }
        // SAFETY: the caller of `send` keeps the message and its parts valid while it is pending.
        let result = unsafe { send_now(self.fd, message) };
        match result {
            None => self.writable = false,
            Some(_) => self.send = None,
        }
        result
    }

    fn run_accept(&mut self) -> Option<i32> {
        if !self.open || !self.readable {
            return None;
        }
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: null pointers: no address is requested.
        let fd =
            unsafe { libc::accept4(self.fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
        let result = outcome(fd as isize);
        if result == -libc::EAGAIN {
            self.readable = false;
            return None;
        }
        self.open = false;
        Some(result)
    }

    fn run_connect(&mut self) -> Option<i32> {
        if let Some(error) = self.failed.take() {
            self.open = false;
            return Some(error);
        }
        if !self.open || !self.writable {
            return None;
        }
        self.open = false;
        // SAFETY: the descriptor is the dial's socket, which lives until `forget`.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd) };
        Some(match rustix::net::sockopt::socket_error(socket) {
            Ok(Ok(())) => 0,
            Ok(Err(e)) | Err(e) => -e.raw_os_error(),
        })
    }
}

impl Sys for Epoll {
    const NONBLOCKING: bool = true;

    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>) -> io::Result<()> {
        *self.entry(token) = Entry { fd: fd.as_raw_fd(), ..Entry::default() };
        rustix::io::ioctl_fionbio(fd, true)?;
        let flags = match token {
            // A socket that is not connecting yet reports a hang-up, so `connect` adds it.
            Token::Connect(_) => return Ok(()),
            Token::Accept(_) => EventFlags::IN | EventFlags::ET,
            _ => EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET,
        };
        epoll::add(&self.epoll, fd, EventData::new_u64(token.pack()), flags)?;
        Ok(())
    }

    fn forget(&mut self, token: Token, fd: BorrowedFd<'_>) -> bool {
        *self.entry(token) = Entry { fd: -1, ..Entry::default() };
        // The deletion fails for a dial that never began to connect.
        let _ = epoll::delete(&self.epoll, fd);
        true
    }

    fn await_input(&mut self, link: u32, _: RawFd, drained: bool) {
        let entry = self.entry(Token::Recv(link));
        entry.recv = true;
        // New data makes a new edge. If the last receive drained the socket, an older edge means
        // nothing.
        entry.readable = entry.ended || (entry.readable && !drained);
        if entry.readable {
            self.runnable.push(Token::Recv(link));
        }
    }

    fn await_end(&mut self, link: u32, _: RawFd) {
        let entry = self.entry(Token::Recv(link));
        entry.end = true;
        if entry.ended {
            self.runnable.push(Token::Recv(link));
        }
    }

    fn recall(&mut self, link: u32) {
        let entry = self.entry(Token::Recv(link));
        if std::mem::take(&mut entry.end) {
            (entry.recv, entry.readable) = (true, true);
            self.runnable.push(Token::Recv(link));
        }
    }

    unsafe fn send(&mut self, link: u32, fd: RawFd, message: *const libc::msghdr) -> Option<i32> {
        // SAFETY: guaranteed by the caller. Sends without knowing of an edge: it mostly succeeds.
        let result = unsafe { send_now(fd, message) };
        if result.is_none() {
            let entry = self.entry(Token::Send(link));
            // An edge from before this attempt may still be in the kernel's list; it costs one more
            // attempt. An edge after this attempt is always reported.
            entry.writable = entry.ended;
            entry.send = Some(message);
            if entry.writable {
                self.runnable.push(Token::Send(link));
            }
        }
        result
    }

    fn accept(&mut self, listener: u32, _: RawFd) {
        let entry = self.entry(Token::Accept(listener));
        entry.open = true;
        if entry.readable {
            self.runnable.push(Token::Accept(listener));
        }
    }

    unsafe fn connect(&mut self, dial: u32, fd: RawFd, address: *const socket2::SockAddr) {
        // SAFETY: guaranteed by the caller.
        let address = unsafe { &*address };
        // SAFETY: pointer and length come from the same address.
        let n = unsafe { libc::connect(fd, address.as_ptr().cast(), address.len()) };
        let result = outcome(n as isize);
        let token = Token::Connect(dial);
        let entry = self.entry(token);
        entry.open = true;
        if result != -libc::EINPROGRESS && result != 0 {
            entry.failed = Some(result);
            self.runnable.push(token);
            return;
        }
        // SAFETY: the descriptor is the dial's socket.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = EventFlags::OUT | EventFlags::ET;
        if epoll::add(&self.epoll, socket, EventData::new_u64(token.pack()), flags).is_err() {
            self.entry(token).writable = true;
            self.runnable.push(token);
        }
    }

    unsafe fn file(&mut self, _: u32, fd: RawFd, call: FileCall) -> Option<i32> {
        // SAFETY: the caller guarantees that the memory is valid for the call.
        let n = unsafe {
            match call {
                FileCall::Read { to, len, at } => {
                    libc::pread64(fd, to.cast(), len as usize, at as i64)
                }
                FileCall::Write { from, len, at, durable } => {
                    let part =
                        libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len as usize };
                    let flags = if durable { libc::RWF_DSYNC } else { 0 };
                    libc::pwritev2(fd, &raw const part, 1, at as i64, flags)
                }
                FileCall::Sync => libc::fdatasync(fd) as isize,
                FileCall::Punch { at, len } => {
                    libc::fallocate64(fd, PUNCH, at as i64, len as i64) as isize
                }
            }
        };
        Some(outcome(n))
    }

    fn wait(&mut self, at_most: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        let at_most = if self.runnable.is_empty() { at_most } else { Some(Duration::ZERO) };
        self.poll(at_most, done)?;
        let mut batch = std::mem::take(&mut self.batch);
        std::mem::swap(&mut batch, &mut self.runnable);
        done.extend(batch.drain(..).filter_map(|token| self.run(token)));
        self.batch = batch;
        Ok(())
    }

    fn is_promising(&mut self) -> bool {
        true
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn cancel_all(&mut self) {}
}
