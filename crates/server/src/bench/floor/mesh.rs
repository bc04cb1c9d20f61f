//! One process of the floor: an epoll loop over the connections of one client or several servers.

use super::stream::{Head, Stream};
use anyhow::Result;
use base::Prng;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::time::Timespec;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What payloads are copied into and out of, per process.
const STORE: usize = 16 << 20;
/// What one receive takes at most: what stays in a core's cache.
const INPUT: usize = 256 << 10;
/// No socket is ready: the loop looks whether it should end.
const IDLE: Duration = Duration::from_millis(100);

/// What a process does with frames.
pub trait Part {
    /// True when the payload of such a frame goes into the store.
    fn keeps(&self, head: &Head) -> bool;

    /// A frame has come; its payload, if it is kept, lies at `at`.
    fn frame(&mut self, mesh: &mut Mesh, stream: usize, head: Head, at: usize);

    /// All that was queued on a stream is out, or the socket takes no more.
    fn flushed(&mut self, _mesh: &mut Mesh, _stream: usize) {}
}

/// The process.
pub struct Mesh {
    epoll: OwnedFd,
    streams: Vec<Stream>,
    dirty: Vec<usize>,
    store: Vec<u8>,
    block: usize,
    /// Draws places in the store, and whom to ask.
    pub prng: Prng,
    spin: Option<Spin>,
}

/// The same adaptive polling as that of `rt`'s shard: for a while after the last event, as long as
/// that finds something.
struct Spin {
    trust: u32,
    waits: u32,
    last: Instant,
}

impl Spin {
    const FOR: Duration = Duration::from_micros(30);
    const TRUST: u32 = 8;
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
    /// A process whose payloads are `block` bytes long.
    pub fn new(seed: u64, block: usize, spin: bool) -> Result<Mesh> {
        let start = Spin { trust: Spin::TRUST / 2, waits: 0, last: Instant::now() };
        Ok(Mesh {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            streams: Vec::new(),
            dirty: Vec::new(),
            store: vec![7; STORE.max(2 * block)],
            block,
            prng: Prng::new(seed),
            spin: spin.then_some(start),
        })
    }

    /// Takes over a connection of one server of this process; returns its index.
    pub fn add(&mut self, socket: TcpStream, owner: u32) -> Result<usize> {
        let index = self.streams.len();
        epoll::add(&self.epoll, &socket, EventData::new_u64(index as u64), EventFlags::IN)?;
        self.streams.push(Stream::new(socket, owner)?);
        Ok(index)
    }

    /// Which server of this process a connection belongs to.
    pub fn owner(&self, stream: usize) -> u32 {
        self.streams[stream].owner
    }

    /// Frames that wait on a stream.
    pub fn queued(&self, stream: usize) -> usize {
        self.streams[stream].queued()
    }

    /// Queues a frame.
    pub fn push(&mut self, to: usize, head: Head, at: usize) {
        self.streams[to].push(head, at);
        if !std::mem::replace(&mut self.streams[to].dirty, true) {
            self.dirty.push(to);
        }
    }

    /// A place in the store for one payload.
    pub fn place(&mut self) -> usize {
        place(&mut self.prng, &self.store, self.block)
    }

    /// Works until `stop` is set or a connection ends.
    pub fn run(&mut self, stop: &AtomicBool, part: &mut impl Part) -> Result<()> {
        let (mut events, mut input) = (Vec::with_capacity(256), vec![0; INPUT]);
        let mut flushing = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            std::mem::swap(&mut flushing, &mut self.dirty);
            for index in flushing.drain(..) {
                self.streams[index].dirty = false;
                self.flush(index, part)?;
            }
            events.clear();
            self.wait(&mut events)?;
            for event in &events {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                if flags.contains(EventFlags::OUT) {
                    self.watch(index, EventFlags::IN)?;
                    self.flush(index, part)?;
                }
                if flags.contains(EventFlags::IN) && !self.receive(index, &mut input, part)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let wait = |events: &mut Vec<epoll::Event>, timeout: &Timespec| {
            let room = rustix::buffer::spare_capacity(events);
            match epoll::wait(&self.epoll, room, Some(timeout)) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(e) => Err(e),
            }
        };
        if !self.dirty.is_empty() {
            return Ok(wait(events, &zero)?);
        }
        let Some(spin) = &mut self.spin else {
            return Ok(wait(events, &Timespec::try_from(IDLE)?)?);
        };
        if spin.may() {
            loop {
                wait(events, &zero)?;
                if !events.is_empty() {
                    spin.trust = (spin.trust + 1).min(Spin::TRUST);
                    spin.last = Instant::now();
                    return Ok(());
                }
                if spin.last.elapsed() >= Spin::FOR {
                    spin.trust = spin.trust.saturating_sub(1);
                    break;
                }
                // Whoever works for us may need this very core.
                std::thread::yield_now();
            }
        }
        wait(events, &Timespec::try_from(IDLE)?)?;
        if !events.is_empty() {
            spin.last = Instant::now();
        }
        Ok(())
    }

    /// Receives once; false when the other side is gone.
    fn receive(&mut self, index: usize, input: &mut [u8], part: &mut impl Part) -> Result<bool> {
        let n = match recv(&self.streams[index].socket, &mut *input, RecvFlags::empty()) {
            Ok((_, 0)) => return Ok(false),
            Ok((_, n)) => n,
            Err(Errno::AGAIN) => return Ok(true),
            Err(e) => return Err(e.into()),
        };
        let mut rest = &input[..n];
        while !rest.is_empty() {
            let Mesh { streams, store, prng, block, .. } = self;
            // Drawn before the store is lent out; not used when the payload is not kept.
            let at = place(prng, store, *block);
            let to = |head: &Head| (head.len > 0 && part.keeps(head)).then_some(at);
            if let Some((head, at)) = streams[index].next(&mut rest, store, to) {
                part.frame(self, index, head, at);
            }
        }
        Ok(true)
    }

    fn flush(&mut self, index: usize, part: &mut impl Part) -> Result<()> {
        if !self.streams[index].flush(&self.store)? {
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

fn place(prng: &mut Prng, store: &[u8], block: usize) -> usize {
    prng.below((store.len() / block) as u64) as usize * block
}
