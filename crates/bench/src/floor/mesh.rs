//! One process of the floor: an epoll loop over the connections of one client or of several
//! servers.

use super::stream::{Gather, Head, Stream};
use anyhow::Result;
use base::Prng;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of memory per process that payloads are copied into and out of.
const STORE: usize = 16 << 20;
/// The largest receive: an amount that stays in a core's cache.
const INPUT: usize = 256 << 10;
/// Payloads begin at multiples of this, as in a careful implementation: the kernel copies them
/// faster.
const PAGE: usize = 4096;
/// The event that ends the loop.
const STOP: u64 = u64::MAX;

/// The frame handling of a client or of servers.
pub(crate) trait Part {
    /// Returns true if the payload of this frame goes into the store.
    fn keeps(&self, head: &Head) -> bool;

    /// Handles a frame. Its payload, if it is kept, is in the store at `at`.
    fn frame(&mut self, mesh: &mut Mesh, stream: usize, head: Head, at: usize);

    /// Called when all queued frames of a stream are sent, or the socket takes no more.
    fn flushed(&mut self, _mesh: &mut Mesh, _stream: usize) {}
}

/// The loop of a process and its connections.
pub(crate) struct Mesh {
    epoll: OwnedFd,
    streams: Vec<Stream>,
    dirty: Vec<usize>,
    store: Store,
    gather: Gather,
    /// Held here, so that the descriptor outlives the stopper.
    stop: Option<Arc<OwnedFd>>,
    /// Draws offsets in the store, and servers to send to.
    pub prng: Prng,
    spin: Option<Spin>,
}

/// The memory that payloads are copied into and out of.
struct Store {
    bytes: Vec<u8>,
    /// Offset of the first block.
    start: usize,
    block: usize,
    blocks: u64,
}

impl Store {
    fn new(block: usize) -> Store {
        let blocks = (STORE / block).max(2);
        let bytes = vec![7; blocks * block + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Store { bytes, start, block, blocks: blocks as u64 }
    }

    fn place(&self, prng: &mut Prng) -> usize {
        self.start + prng.below(self.blocks) as usize * self.block
    }
}

/// Stops a loop from another thread. The loop has no timeout, because setting a timer for each
/// sleep has a cost.
#[derive(Clone)]
pub(crate) struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Stops the loop.
    pub(crate) fn stop(&self) {
        // A full counter has already woken the loop.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Adaptive polling as in `rt`'s shard: the loop polls for a while after the last event, as long as
/// that finds something.
struct Spin {
    trust: u32,
    waits: u32,
    last: Instant,
}

impl Spin {
    const FOR: Duration = Duration::from_micros(30);
    const TRUST: u32 = 16;
    const EARNS: u32 = 2;
    const RETRY: u32 = 32;

    fn may(&mut self) -> bool {
        if self.last.elapsed() >= Spin::FOR {
            return false;
        }
        self.waits = self.waits.wrapping_add(1);
        self.trust > 0 || self.waits.is_multiple_of(Spin::RETRY)
    }
}

impl Mesh {
    /// Creates a process whose payloads have `block` bytes.
    pub(crate) fn new(seed: u64, block: usize, spin: bool) -> Result<Mesh> {
        let start = Spin { trust: Spin::TRUST / 2, waits: 0, last: Instant::now() };
        Ok(Mesh {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            streams: Vec::new(),
            dirty: Vec::new(),
            store: Store::new(block),
            gather: Gather::default(),
            stop: None,
            prng: Prng::new(seed),
            spin: spin.then_some(start),
        })
    }

    /// Adds a connection of one server in this process and returns its index.
    pub(crate) fn add(&mut self, socket: TcpStream, owner: u32) -> Result<usize> {
        let index = self.streams.len();
        epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), EventFlags::IN)?;
        self.streams.push(Stream::new(socket, owner)?);
        Ok(index)
    }

    /// Returns a handle that stops this loop before a connection ends.
    pub(crate) fn stopper(&mut self) -> Result<Stopper> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        epoll::add(&self.epoll, &fd, EventData::new_u64(STOP), EventFlags::IN)?;
        self.stop = Some(fd.clone());
        Ok(Stopper(fd))
    }

    /// Returns the server in this process that a connection belongs to.
    pub(crate) fn owner(&self, stream: usize) -> u32 {
        self.streams[stream].owner
    }

    /// Returns the number of unsent frames of a stream.
    pub(crate) fn queued(&self, stream: usize) -> usize {
        self.streams[stream].queued()
    }

    /// Queues a frame on a stream.
    pub(crate) fn push(&mut self, to: usize, head: Head, at: usize) {
        self.streams[to].push(head, at);
        if !std::mem::replace(&mut self.streams[to].dirty, true) {
            self.dirty.push(to);
        }
    }

    /// Draws an offset in the store for one payload.
    pub(crate) fn place(&mut self) -> usize {
        self.store.place(&mut self.prng)
    }

    /// Runs until it is stopped or a connection ends.
    pub(crate) fn run(&mut self, part: &mut impl Part) -> Result<()> {
        let (mut events, mut input) = (Vec::with_capacity(256), vec![0; INPUT]);
        let mut flushing = Vec::new();
        loop {
            std::mem::swap(&mut flushing, &mut self.dirty);
            for index in flushing.drain(..) {
                self.streams[index].dirty = false;
                self.flush(index, part)?;
            }
            events.clear();
            self.wait(&mut events)?;
            for event in &events {
                let (data, flags) = (event.data.u64(), event.flags);
                if data == STOP {
                    return Ok(());
                }
                let index = data as usize;
                if flags.contains(EventFlags::OUT) {
                    self.watch(index, EventFlags::IN)?;
                    self.flush(index, part)?;
                }
                if flags.contains(EventFlags::IN) && !self.receive(index, &mut input, part)? {
                    return Ok(());
                }
            }
        }
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let wait = |events: &mut Vec<epoll::Event>, timeout: Option<&Timespec>| {
            let room = rustix::buffer::spare_capacity(events);
            match epoll::wait(&self.epoll, room, timeout) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(e) => Err(e),
            }
        };
        if !self.dirty.is_empty() {
            return Ok(wait(events, Some(&zero))?);
        }
        let Some(spin) = &mut self.spin else {
            return Ok(wait(events, None)?);
        };
        if spin.may() {
            loop {
                wait(events, Some(&zero))?;
                if !events.is_empty() {
                    spin.trust = (spin.trust + Spin::EARNS).min(Spin::TRUST);
                    spin.last = Instant::now();
                    return Ok(());
                }
                if spin.last.elapsed() >= Spin::FOR {
                    spin.trust = spin.trust.saturating_sub(1);
                    break;
                }
                // The process that sends our next frame may need this very core.
                std::thread::yield_now();
            }
        }
        wait(events, None)?;
        if !events.is_empty() {
            spin.last = Instant::now();
        }
        Ok(())
    }

    /// Receives once. Returns false when the other side has closed the connection.
    fn receive(&mut self, index: usize, input: &mut [u8], part: &mut impl Part) -> Result<bool> {
        let n = match recv(&self.streams[index].socket, &mut *input, RecvFlags::empty()) {
            Ok((_, 0)) => return Ok(false),
            Ok((_, n)) => n,
            Err(Errno::AGAIN) => return Ok(true),
            Err(e) => return Err(e.into()),
        };
        let mut rest = &input[..n];
        while !rest.is_empty() {
            let Mesh { streams, store, prng, .. } = self;
            // Drawn before the store is borrowed; unused when the payload is not kept.
            let at = store.place(prng);
            let to = |head: &Head| (head.len > 0 && part.keeps(head)).then_some(at);
            if let Some((head, at)) = streams[index].next(&mut rest, &mut store.bytes, to) {
                part.frame(self, index, head, at);
            }
        }
        Ok(true)
    }

    fn flush(&mut self, index: usize, part: &mut impl Part) -> Result<()> {
        if !self.streams[index].flush(&self.store.bytes, &mut self.gather)? {
            self.watch(index, EventFlags::IN | EventFlags::OUT)?;
        }
        part.flushed(self, index);
        Ok(())
    }

    fn watch(&self, index: usize, flags: EventFlags) -> Result<()> {
        let data = EventData::new_u64(index as u64);
        Ok(epoll::modify(&self.epoll, &self.streams[index].socket, data, flags)?)
    }
}
