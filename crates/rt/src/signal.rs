//! Wakes a shard from another thread, and tells it to stop.
//!
//! A shard sleeps in the kernel; an eventfd that its reactor watches wakes it. Until the shard has
//! seen a wake-up, further ones cost no system call, so a busy sender pays for one per batch.

use crate::error::RtError;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An eventfd, and a flag that tells whether it is set.
pub(crate) struct Waker {
    fd: OwnedFd,
    pending: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> Result<Waker, RtError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| RtError::system("eventfd")(e.into()))?;
        Ok(Waker { fd, pending: AtomicBool::new(false) })
    }

    /// Makes the shard return from its wait. The shard sees everything published before this call.
    pub(crate) fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            // It fails only when the counter is full, and then the shard is awake anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Returns true if [`Waker::wake`] was called since the last [`Waker::clear`].
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Resets the waker. The shard calls it before it looks at published data, so that any later
    /// wake counts again.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        self.pending.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Stops the shards that run with it. Clones share one state. Any thread may use them, but a signal
/// handler may not: let a thread wait for the signal.
#[derive(Clone)]
pub struct Stop(Arc<Inner>);

struct Inner {
    set: AtomicBool,
    wakers: Mutex<Vec<Weak<Waker>>>,
}

impl Stop {
    /// Returns a `Stop` that is not set.
    pub fn new() -> Stop {
        Stop(Arc::new(Inner { set: AtomicBool::new(false), wakers: Mutex::new(Vec::new()) }))
    }

    /// Makes every shard that runs with it return after its current batch.
    pub fn stop(&self) {
        self.0.set.store(true, Ordering::SeqCst);
        let wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.iter().filter_map(Weak::upgrade).for_each(|w| w.wake());
    }

    /// Returns true after [`Stop::stop`].
    pub fn is_set(&self) -> bool {
        self.0.set.load(Ordering::SeqCst)
    }

    /// Registers a shard, so that `stop` wakes it too.
    pub(crate) fn add(&self, waker: &Arc<Waker>) {
        let mut wakers = self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|w| w.strong_count() > 0);
        wakers.push(Arc::downgrade(waker));
        if self.is_set() {
            waker.wake();
        }
    }
}

impl Default for Stop {
    fn default() -> Stop {
        Stop::new()
    }
}
