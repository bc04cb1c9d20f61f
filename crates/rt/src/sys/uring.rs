//! The io_uring backend. Operations that may have to wait go through the ring and are submitted by
//! the system call that waits; file operations are submitted at once. Sends and receives that can
//! complete at once are plain system calls.
//!
//! Invariant: every pushed operation, except a cancel request, is counted in `in_flight` until its
//! completion is reaped; its memory may not be reused before that. Operations are cancelled, never
//! abandoned.

use super::{Done, FileCall, PUNCH, Sys, Token, send_now};
use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// Sizes of the submission and completion queues. Operations beyond them wait; none is lost.
const ENTRIES: (u32, u32) = (1024, 8192);
/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;

/// Where a thread waits for completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waits {
    /// In `io_uring_enter`.
    InRing,
    /// In `poll` or `epoll_wait`, on the descriptor of the ring.
    InPoll,
}

/// Creates a ring with the best options that this kernel supports.
pub(crate) fn build(waits: Waits) -> io::Result<IoUring> {
    let mut best = IoUring::builder();
    // Completions are processed when this thread asks for them, and interrupt nothing (6.1).
    best.setup_cqsize(ENTRIES.1).setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut good = IoUring::builder();
    good.setup_cqsize(ENTRIES.1).setup_coop_taskrun().setup_taskrun_flag(); // 5.19
    let mut plain = IoUring::builder();
    plain.setup_cqsize(ENTRIES.1);
    // An epoll instance that contains such a ring misses completions (seen with Linux 6.18).
    if waits == Waits::InRing
        && let Ok(ring) = best.build(ENTRIES.0)
    {
        return Ok(ring);
    }
    good.build(ENTRIES.0).or_else(|_| plain.build(ENTRIES.0))
}

/// The io_uring backend.
pub(crate) struct Uring {
    ring: IoUring,
    wake: RawFd,
    wake_armed: bool,
    /// Operations that did not fit into the submission queue.
    backlog: VecDeque<squeue::Entry>,
    in_flight: usize,
    /// The shard is ending: the wake-up is not armed again.
    ending: bool,
}

impl Uring {
    /// Creates a ring; `wake` must outlive it.
    pub(crate) fn new(wake: BorrowedFd<'_>, waits: Waits) -> io::Result<Uring> {
        let ring = build(waits)?;
        Ok(Uring {
            ring,
            wake: wake.as_raw_fd(),
            wake_armed: false,
            backlog: VecDeque::new(),
            in_flight: 0,
            ending: false,
        })
    }

    /// Queues an operation; the next `wait` submits it.
    fn push(&mut self, token: Token, entry: squeue::Entry) {
        if token != Token::Cancel {
            self.in_flight += 1;
        }
        self.backlog.push_back(entry.user_data(token.pack()));
        self.fill();
    }

    /// Moves operations from the backlog to the submission queue, as far as there is room.
    fn fill(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the caller of `push` keeps the memory of the operation valid until it
            // completes.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    fn cancel(&mut self, token: Token) {
        let target = CancelBuilder::user_data(token.pack());
        self.push(Token::Cancel, opcode::AsyncCancel2::new(target).build());
    }

    fn arm_wake(&mut self) {
        if !self.wake_armed && !self.ending {
            self.wake_armed = true;
            let poll = opcode::PollAdd::new(Fd(self.wake), libc::POLLIN as u32);
            self.push(Token::Wake, poll.build());
        }
    }

    /// Returns true when the kernel has operations to start, or must run before more completions
    /// appear. (On a kernel without the task-run flag they appear by themselves.)
    fn needs_kernel(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.cq_overflow() || queue.taskrun()
    }

    /// Makes one system call that submits queued operations and waits at most `at_most`.
    fn enter(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        let result = match at_most {
            None => submitter.submit_and_wait(1),
            Some(Duration::ZERO) => {
                // Not `submit`: it would not run deferred task work.
                let none = None::<&libc::sigset_t>;
                // SAFETY: no argument is a pointer; `queued` is the length of the queue.
                unsafe { submitter.enter(queued, 0, GET_EVENTS, none) }
            }
            Some(t) => {
                let time = Timespec::new().sec(t.as_secs().min(1 << 30)).nsec(t.subsec_nanos());
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // The timeout; a signal; the completion queue is full, or memory is short. Reap
                // what is there; operations that were not submitted stay queued.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(e),
            },
        }
    }

    fn reap(&mut self, done: &mut Vec<Done>) {
        for c in self.ring.completion() {
            let token = Token::unpack(c.user_data());
            if token == Token::Cancel {
                continue;
            }
            self.in_flight -= 1;
            if token == Token::Wake {
                self.wake_armed = false;
            }
            done.push(Done { token, result: c.result() });
        }
    }
}

impl Sys for Uring {
    // The kernel waits by itself; on a non-blocking socket the operation would fail instead.
    const NONBLOCKING: bool = false;

    fn watch(&mut self, _: Token, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn forget(&mut self, token: Token, _: BorrowedFd<'_>) -> bool {
        self.cancel(token);
        if let Token::Recv(i) = token {
            self.cancel(Token::Send(i));
        }
        false
    }

    fn await_input(&mut self, link: u32, fd: RawFd, _: bool) {
        // Not a receive: each idle link would need a receive buffer of its own.
        self.push(Token::Recv(link), opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build());
    }

    fn await_end(&mut self, link: u32, fd: RawFd) {
        // The kernel reports errors without a flag for them.
        self.push(Token::Recv(link), opcode::PollAdd::new(Fd(fd), libc::POLLRDHUP as u32).build());
    }

    fn recall(&mut self, link: u32) {
        self.cancel(Token::Recv(link));
    }

    unsafe fn send(&mut self, link: u32, fd: RawFd, message: *const libc::msghdr) -> Option<i32> {
        // A plain system call costs less than an operation, whose completion would end the next
        // wait at once for nothing.
        // SAFETY: guaranteed by the caller.
        if let Some(result) = unsafe { send_now(fd, message) } {
            return Some(result);
        }
        // The socket is full: the operation waits until everything is sent, for one completion per
        // batch.
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
        let entry = opcode::SendMsg::new(Fd(fd), message).flags(flags).build();
        self.push(Token::Send(link), entry);
        None
    }

    fn accept(&mut self, listener: u32, fd: RawFd) {
        let entry = opcode::Accept::new(Fd(fd), std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build();
        self.push(Token::Accept(listener), entry);
    }

    unsafe fn connect(&mut self, dial: u32, fd: RawFd, address: *const socket2::SockAddr) {
        // SAFETY: guaranteed by the caller.
        let address = unsafe { &*address };
        let entry = opcode::Connect::new(Fd(fd), address.as_ptr().cast(), address.len()).build();
        self.push(Token::Connect(dial), entry);
    }

    unsafe fn file(&mut self, slot: u32, fd: RawFd, call: FileCall) -> Option<i32> {
        let entry = match call {
            FileCall::Read { to, len, at } => opcode::Read::new(Fd(fd), to, len).offset(at).build(),
            FileCall::Write { from, len, at, durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(Fd(fd), from, len).offset(at).rw_flags(flags).build()
            }
            FileCall::Sync => opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build(),
            // The kernel gives it to a worker thread at once.
            FileCall::Punch { at, len } => {
                opcode::Fallocate::new(Fd(fd), len).offset(at).mode(PUNCH).build()
            }
        };
        self.push(Token::Disk(slot), entry);
        // Submitted now and not with the rest of the batch: otherwise the device would be idle
        // while this thread processes completions. Whatever the kernel does not take now goes with
        // the next wait.
        let _ = self.ring.submit();
        None
    }

    fn wait(&mut self, at_most: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        self.arm_wake();
        self.fill();
        let ready = !self.ring.completion().is_empty() || !self.backlog.is_empty();
        if !ready && at_most != Some(Duration::ZERO) {
            self.enter(at_most)?;
        } else if self.needs_kernel() {
            self.enter(Some(Duration::ZERO))?;
        }
        self.reap(done);
        Ok(())
    }

    fn is_promising(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.needs_kernel()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor lives as long as the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn cancel_all(&mut self) {
        self.ending = true;
        if self.wake_armed {
            self.cancel(Token::Wake);
        }
    }
}
