//! What a node asks of its driver: data, not callbacks, so that it can be logged, compared, replayed.

use crate::block::BlockError;
use crate::buf::{Buf, BufPool};
use crate::note::Note;
use crate::{DialId, DiskId, DiskOp, Port, RequestId};
use alloc::vec::Vec;
use base::{LinkId, Prng};
use core::net::SocketAddr;

/// The head of an outgoing frame, inline: at most 128 bytes.
#[derive(Clone, Copy)]
pub struct Head {
    len: u8,
    bytes: [u8; Head::MAX],
}

impl Head {
    /// The longest head.
    pub const MAX: usize = 128;

    /// No head: the body goes out alone, as the continuation of the frame before.
    pub const EMPTY: Head = Head { len: 0, bytes: [0; Head::MAX] };

    /// A head with these bytes; panics beyond [`Head::MAX`].
    #[inline]
    pub fn new(bytes: &[u8]) -> Head {
        assert!(bytes.len() <= Head::MAX, "a head of {} bytes", bytes.len());
        let mut head = Head::EMPTY;
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head.len = bytes.len() as u8;
        head
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl core::fmt::Debug for Head {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Head({} bytes)", self.len)
    }
}

/// One thing to do. Effects for one link, and for one device, are started in the order given.
#[derive(Debug)]
pub enum Effect {
    /// Send a frame. Silently dropped when the link is already gone (its `LinkDown` is on the way).
    Send {
        /// On which link.
        link: LinkId,
        /// First the head,
        head: Head,
        /// then the body.
        body: Buf,
    },
    /// Send a frame without a body that may overtake the frames that wait on the link. Silently dropped
    /// as in `Send`. On a link where it is used, a frame that goes out in parts (see [`Head::EMPTY`]) has
    /// to be emitted whole in one call of the node.
    SendFirst {
        /// On which link.
        link: LinkId,
        /// All of it.
        head: Head,
    },
    /// Connect to `to`; ends in `LinkUp` or `DialFailed`, within about two seconds.
    Dial {
        /// The node's name for it.
        dial: DialId,
        /// Where to.
        to: SocketAddr,
        /// Which protocol to speak.
        port: Port,
    },
    /// Close the link after what was sent on it. No event about it follows.
    Close {
        /// Which link.
        link: LinkId,
    },
    /// The other side is known: the link is no stranger's any more (see [`crate::Strangers`]).
    Welcome {
        /// Which link.
        link: LinkId,
    },
    /// Stop reading from the link (flow control). Frames that were received already may still come.
    Pause {
        /// Which link.
        link: LinkId,
    },
    /// Read from the link again.
    Resume {
        /// Which link.
        link: LinkId,
    },
    /// Read from a device. Operations in flight at the same time may end in any order.
    Read {
        /// The node's name for it.
        op: DiskOp,
        /// Which device.
        disk: DiskId,
        /// Byte offset.
        at: u64,
        /// Bytes.
        len: u32,
    },
    /// Write to a device.
    Write {
        /// The node's name for it.
        op: DiskOp,
        /// Which device.
        disk: DiskId,
        /// Byte offset.
        at: u64,
        /// The data.
        body: Buf,
        /// It ends when it is durable; otherwise a later `Flush` makes it that.
        durable: bool,
    },
    /// Make the writes that ended before this was emitted durable, all of them.
    Flush {
        /// The node's name for it.
        op: DiskOp,
        /// Which device.
        disk: DiskId,
    },
    /// Answer an `Event::Request`.
    Reply {
        /// Which one.
        id: RequestId,
        /// The data of a read, or why not.
        result: Result<Buf, BlockError>,
    },
    /// Something worth counting, tracing or drawing.
    Note(Note),
}

/// Where a node puts its effects, and what it may draw on: buffers, random numbers, fault sites.
pub struct Effects {
    list: Vec<Effect>,
    pool: BufPool,
    prng: Prng,
    chaos: Option<Prng>,
}

impl Effects {
    /// An empty sink. `chaos` is `None` outside of the simulator.
    pub fn new(pool: BufPool, prng: Prng, chaos: Option<Prng>) -> Effects {
        Effects { list: Vec::new(), pool, prng, chaos }
    }

    /// Emits one effect.
    #[inline]
    pub fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    /// Emits a frame.
    #[inline]
    pub fn send(&mut self, link: LinkId, head: Head, body: Buf) {
        self.list.push(Effect::Send { link, head, body });
    }

    /// Emits a frame without a body that may overtake others: see [`Effect::SendFirst`].
    pub fn send_first(&mut self, link: LinkId, head: Head) {
        self.list.push(Effect::SendFirst { link, head });
    }

    /// Emits a note.
    #[inline]
    pub fn note(&mut self, note: Note) {
        self.list.push(Effect::Note(note));
    }

    /// A buffer of `len` bytes with arbitrary content, for the node's own data.
    pub fn alloc(&mut self, len: usize) -> Buf {
        self.pool.alloc(len)
    }

    /// A buffer with a copy of `data`.
    pub fn copy(&mut self, data: &[u8]) -> Buf {
        self.pool.copy(data)
    }

    /// The pool that buffers come from.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// The node's random numbers: for jitter and spreading, never for what is right or wrong.
    pub fn prng(&mut self) -> &mut Prng {
        &mut self.prng
    }

    /// A fault site: in the simulator sometimes true, elsewhere never. The code behind it must be a
    /// legal, merely unlikely behaviour (a queue that is full, a time-out that fires early).
    pub fn chaos(&mut self, _site: &'static str) -> bool {
        self.chaos.as_mut().is_some_and(|c| c.chance(0.02))
    }

    /// For the driver: what was emitted so far, in order; the list is empty afterwards.
    pub fn drain(&mut self) -> alloc::vec::Drain<'_, Effect> {
        self.list.drain(..)
    }

    /// For the driver: swaps the list with another one, to keep both allocations.
    pub fn swap(&mut self, list: &mut Vec<Effect>) {
        core::mem::swap(&mut self.list, list);
    }

    /// True when nothing was emitted.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
