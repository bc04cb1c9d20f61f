//! Block requests from other threads of this process to a shard, and the replies.
//!
//! A buffer never leaves its shard, so data is copied here: out of the request on arrival, into the
//! reply at the end. Each [`Client`] bounds what it has outstanding, so nothing here grows without
//! bound. This is not the path of NBD or of our own protocol; a lock and a wake-up are affordable.

use crate::signal::Waker;
use crate::table::Table;
use base::VolumeId;
use seam::{BlockError, BlockKind, BlockRequest, Buf, BufPool, RequestId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Memory of a request: what a write carries, and where a read's data goes.
#[derive(Debug)]
pub enum Bytes {
    /// Owned. A read's data replaces the content; the allocation is used again.
    Vec(Vec<u8>),
    /// The caller's own memory.
    Raw(RawBytes),
}

/// Memory that the caller lends for one request.
#[derive(Debug)]
pub struct RawBytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: who made it promised that the memory may be used from the shard's thread.
unsafe impl Send for RawBytes {}

impl RawBytes {
    /// Lends `len` bytes at `start`.
    ///
    /// # Safety
    /// The memory stays valid, and nobody else writes it (for a read: uses it), until the request's
    /// [`Reply`] has been collected or the [`Client`] said [`Closed`].
    pub unsafe fn new(start: *mut u8, len: usize) -> RawBytes {
        RawBytes { start, len }
    }
}

impl Bytes {
    /// A copy for the shard.
    fn load(&self, pool: &BufPool) -> Buf {
        match self {
            Bytes::Vec(v) => pool.copy(v),
            // SAFETY: `RawBytes::new`'s promise.
            Bytes::Raw(r) => pool.copy(unsafe { std::slice::from_raw_parts(r.start, r.len) }),
        }
    }

    /// Takes over what a read returned; into raw memory as far as it has room.
    fn store(&mut self, data: &[u8]) {
        match self {
            Bytes::Vec(v) => {
                v.clear();
                v.extend_from_slice(data);
            }
            Bytes::Raw(r) => {
                let n = r.len.min(data.len());
                // SAFETY: `RawBytes::new`'s promise; a buffer of the pool is never lent memory.
                unsafe { r.start.copy_from_nonoverlapping(data.as_ptr(), n) };
            }
        }
    }
}

/// What a program asks of a volume; see [`BlockRequest`].
#[derive(Debug)]
pub struct Request {
    /// The volume.
    pub volume: VolumeId,
    /// What to do.
    pub kind: BlockKind,
    /// Where the range starts, in bytes.
    pub at: u64,
    /// How long it is, in bytes.
    pub len: u32,
    /// A write's data; where a read's data goes. Otherwise an empty `Vec`.
    pub bytes: Bytes,
}

/// The answer to one request.
#[derive(Debug)]
pub struct Reply {
    /// As given to [`Client::submit`].
    pub tag: u64,
    /// How it went.
    pub result: Result<(), BlockError>,
    /// The request's memory, with the data of a read (or of [`BlockKind::Extents`]).
    pub bytes: Bytes,
}

/// Why a request was not taken; it comes back.
#[derive(Debug)]
pub enum SubmitError {
    /// As many as the client may have are outstanding: collect some replies first.
    Full(Request),
    /// The shard has ended.
    Closed(Request),
}

/// The shard has ended; no further reply comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the shard has ended")]
pub struct Closed;

/// The way to a shard for other threads: makes [`Client`]s.
#[derive(Clone)]
pub struct Mailbox(Arc<Shared>);

struct Shared {
    waker: Arc<Waker>,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    queue: VecDeque<Sent>,
    clients: Vec<Arc<Outbox>>,
    closed: bool,
}

struct Sent {
    from: Arc<Outbox>,
    tag: u64,
    request: Request,
}

/// One program's side: it sends requests and collects its own replies. May be shared by threads.
pub struct Client {
    shard: Arc<Shared>,
    outbox: Arc<Outbox>,
    capacity: usize,
}

#[derive(Default)]
struct Outbox {
    replies: Mutex<Replies>,
    news: Condvar,
    outstanding: AtomicUsize,
}

#[derive(Default)]
struct Replies {
    list: Vec<Reply>,
    closed: bool,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    pub(crate) fn new(waker: Arc<Waker>) -> Mailbox {
        Mailbox(Arc::new(Shared { waker, inbox: Mutex::default() }))
    }

    /// A client that may have `capacity` requests outstanding.
    pub fn client(&self, capacity: usize) -> Client {
        let outbox = Arc::new(Outbox::default());
        let mut inbox = lock(&self.0.inbox);
        lock(&outbox.replies).closed = inbox.closed;
        inbox.clients.retain(|c| Arc::strong_count(c) > 1);
        inbox.clients.push(outbox.clone());
        Client { shard: self.0.clone(), outbox, capacity }
    }

    /// For the shard's end: whoever waits learns it.
    pub(crate) fn close(&self) {
        let mut inbox = lock(&self.0.inbox);
        inbox.closed = true;
        inbox.queue.clear();
        for client in inbox.clients.drain(..) {
            lock(&client.replies).closed = true;
            client.news.notify_all();
        }
    }
}

impl Client {
    /// Hands a request over. `tag` names it in its [`Reply`]; the client need not keep it unique.
    pub fn submit(&self, tag: u64, request: Request) -> Result<(), SubmitError> {
        let free = |n: usize| (n < self.capacity).then_some(n + 1);
        if self.outbox.outstanding.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).is_err()
        {
            return Err(SubmitError::Full(request));
        }
        let mut inbox = lock(&self.shard.inbox);
        if inbox.closed {
            return Err(SubmitError::Closed(request));
        }
        inbox.queue.push_back(Sent { from: self.outbox.clone(), tag, request });
        drop(inbox);
        self.shard.waker.wake();
        Ok(())
    }

    /// Moves the replies that are there to `into`, and tells how many. Waits for the first one, at
    /// most that long (`None`: for ever; zero: not at all).
    pub fn collect(
        &self,
        at_most: Option<Duration>,
        into: &mut Vec<Reply>,
    ) -> Result<usize, Closed> {
        let until = at_most.map(|t| Instant::now() + t);
        let mut replies = lock(&self.outbox.replies);
        while replies.list.is_empty() {
            if replies.closed {
                return Err(Closed);
            }
            replies = match until {
                None => self.outbox.news.wait(replies).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(0);
                    }
                    let woken = self.outbox.news.wait_timeout(replies, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let n = replies.list.len();
        into.append(&mut replies.list);
        drop(replies);
        self.outbox.outstanding.fetch_sub(n, Ordering::AcqRel);
        Ok(n)
    }

    /// How many requests wait for their replies to come, or to be collected.
    pub fn outstanding(&self) -> usize {
        self.outbox.outstanding.load(Ordering::Acquire)
    }
}

/// The shard's side: requests that the node works on.
pub(crate) struct Desk {
    mailbox: Mailbox,
    taken: VecDeque<Sent>,
    working: Table<Working>,
    /// Replies of this batch.
    answered: Vec<(Arc<Outbox>, Reply)>,
}

struct Working {
    from: Arc<Outbox>,
    tag: u64,
    kind: BlockKind,
    bytes: Bytes,
}

impl Desk {
    pub(crate) fn new(mailbox: Mailbox) -> Desk {
        Desk { mailbox, taken: VecDeque::new(), working: Table::new(), answered: Vec::new() }
    }

    /// Looks what has come.
    pub(crate) fn fetch(&mut self) {
        let mut inbox = lock(&self.mailbox.0.inbox);
        if self.taken.is_empty() {
            std::mem::swap(&mut self.taken, &mut inbox.queue);
        } else {
            self.taken.append(&mut inbox.queue);
        }
    }

    /// The next request for the node.
    pub(crate) fn next(&mut self, pool: &BufPool) -> Option<(RequestId, BlockRequest)> {
        let Sent { from, tag, request } = self.taken.pop_front()?;
        let Request { volume, kind, at, len, bytes } = request;
        let body = if kind == BlockKind::Write { bytes.load(pool) } else { Buf::EMPTY };
        let (index, generation) = self.working.next();
        let id = RequestId(u64::from(generation) << 32 | u64::from(index));
        self.working.insert(Working { from, tag, kind, bytes });
        Some((id, BlockRequest { volume, kind, at, len, body }))
    }

    /// The node's answer. It goes out with [`Desk::deliver`].
    pub(crate) fn answer(&mut self, id: RequestId, result: Result<Buf, BlockError>) {
        let (index, generation) = (id.0 as u32, (id.0 >> 32) as u32);
        assert!(self.working.get_mut_of(index, generation).is_some(), "{id:?} was answered before");
        let Some(mut w) = self.working.remove(index) else { return };
        let result = result.map(|data| {
            if matches!(w.kind, BlockKind::Read | BlockKind::Extents) {
                w.bytes.store(&data);
            }
        });
        self.answered.push((w.from, Reply { tag: w.tag, result, bytes: w.bytes }));
    }

    /// Hands the batch's replies over.
    pub(crate) fn deliver(&mut self) {
        let mut list = self.answered.drain(..).peekable();
        while let Some((to, reply)) = list.next() {
            let mut replies = lock(&to.replies);
            replies.list.push(reply);
            while let Some((_, reply)) = list.next_if(|(other, _)| Arc::ptr_eq(other, &to)) {
                replies.list.push(reply);
            }
            drop(replies);
            to.news.notify_all();
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.deliver();
        self.mailbox.close();
    }
}
