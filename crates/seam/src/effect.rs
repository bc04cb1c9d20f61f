//! The orders of a node to its driver. Effects are data, not callbacks, so that they can be logged,
//! compared and replayed.

use crate::block::BlockError;
use crate::buf::{Buf, BufPool};
use crate::note::Note;
use crate::{DialId, DiskId, DiskOp, Port, RequestId};
use alloc::vec::Vec;
use base::{LinkId, Prng};
use core::net::SocketAddr;

/// The head of an outgoing frame, stored inline: at most 128 bytes.
#[derive(Clone, Copy)]
pub struct Head {
    len: u8,
    bytes: [u8; Head::MAX],
}

impl Head {
    /// Bytes of the longest head.
    pub const MAX: usize = 128;

    /// An empty head: the body continues the previous frame.
    pub const EMPTY: Head = Head { len: 0, bytes: [0; Head::MAX] };

    /// Creates a head of these bytes. Panics beyond [`Head::MAX`].
    #[inline]
    pub fn new(bytes: &[u8]) -> Head {
        assert!(bytes.len() <= Head::MAX, "a head of {} bytes", bytes.len());
        let mut head = Head::EMPTY;
        head.bytes[..bytes.len()].copy_from_slice(bytes);
        head.len = bytes.len() as u8;
        head
    }

    /// Adds bytes at the end. Panics beyond [`Head::MAX`].
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len = (at + bytes.len()) as u8;
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Returns true if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes.
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

/// One thing to do. The driver starts effects for one link, or for one device, in the order given.
#[derive(Debug)]
pub enum Effect {
    /// Send a frame. Silently dropped if the link is already gone (its `LinkDown` is on the way).
    Send {
        /// The link.
        link: LinkId,
        /// The head, which is sent first.
        head: Head,
        /// The body, which is sent after the head.
        body: Buf,
    },
    /// Send a frame without a body that may overtake the frames that wait on the link. Silently
    /// dropped as in `Send`. On a link that uses it, a frame that is sent in parts (see
    /// [`Head::EMPTY`]) has to be emitted completely in one call of the node.
    SendFirst {
        /// The link.
        link: LinkId,
        /// The whole frame.
        head: Head,
    },
    /// Connect to `to`; ends in `LinkUp` or `DialFailed`, within about two seconds.
    Dial {
        /// The node's id for the dial.
        dial: DialId,
        /// The address.
        to: SocketAddr,
        /// The protocol of the link.
        port: Port,
    },
    /// Close the link after all data that was sent on it. No event about it follows.
    Close {
        /// The link.
        link: LinkId,
    },
    /// The peer has identified itself: the link is no longer a stranger's (see
    /// [`crate::Strangers`]).
    Welcome {
        /// The link.
        link: LinkId,
    },
    /// Stop reading from the link (flow control). Frames that were already received may still come.
    Pause {
        /// The link.
        link: LinkId,
    },
    /// Resume reading from the link.
    Resume {
        /// The link.
        link: LinkId,
    },
    /// From the next frame on, split incoming data of the link in this mode of its framer (see
    /// [`crate::Framer::set_mode`]). Frames that were cut before are not cut again, so a protocol
    /// may use it only where the other side has to wait for an answer.
    Reframe {
        /// The link.
        link: LinkId,
        /// The mode, which the framer knows.
        mode: u32,
    },
    /// Read from a device. Concurrent operations may end in any order.
    Read {
        /// The node's id for the operation.
        op: DiskOp,
        /// The device.
        disk: DiskId,
        /// Offset in bytes.
        at: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Write to a device.
    Write {
        /// The node's id for the operation.
        op: DiskOp,
        /// The device.
        disk: DiskId,
        /// Offset in bytes.
        at: u64,
        /// The data.
        body: Buf,
        /// The write ends once it is durable. Otherwise a later `Flush` makes it durable.
        durable: bool,
    },
    /// Make all writes durable that ended before this effect was emitted.
    Flush {
        /// The node's id for the operation.
        op: DiskOp,
        /// The device.
        disk: DiskId,
    },
    /// Give the space of a range back to the file system below the device. Meanwhile the content of
    /// the range is undefined. After a success the range reads as zeros until it is written again.
    /// No other operation on the range may be in flight. A crash may undo the operation until a
    /// flush has made it durable. Ends in [`crate::DiskError::Unsupported`] if the device can't do
    /// this, or must not.
    Punch {
        /// The node's id for the operation.
        op: DiskOp,
        /// The device.
        disk: DiskId,
        /// Offset in bytes.
        at: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Answer an `Event::Request`.
    Reply {
        /// The request.
        id: RequestId,
        /// The data of a read, or the error.
        result: Result<Buf, BlockError>,
    },
    /// An event worth counting, tracing or displaying.
    Note(Note),
}

/// Collects the effects of a node, and provides buffers, random numbers and fault sites.
pub struct Effects {
    list: Vec<Effect>,
    pool: BufPool,
    prng: Prng,
    chaos: Option<Prng>,
    secrets: Option<Secrets>,
}

/// Fills a buffer with random bytes that no other process can guess.
pub type Secrets = fn(&mut [u8]);

impl Effects {
    /// Creates an empty collection. `chaos` is `None` outside the simulator.
    pub fn new(pool: BufPool, prng: Prng, chaos: Option<Prng>) -> Effects {
        Effects { list: Vec::new(), pool, prng, chaos, secrets: None }
    }

    /// Sets the source of [`Effects::secret`]. Without one, secrets come from the node's random
    /// numbers, so that a simulation can be repeated.
    pub fn with_secrets(self, secrets: Secrets) -> Effects {
        Effects { secrets: Some(secrets), ..self }
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

    /// Returns a buffer of `len` bytes with arbitrary content, for the node's own data.
    pub fn alloc(&mut self, len: usize) -> Buf {
        self.pool.alloc(len)
    }

    /// Returns a buffer with a copy of `data`.
    pub fn copy(&mut self, data: &[u8]) -> Buf {
        self.pool.copy(data)
    }

    /// Returns the pool of the buffers.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Returns the node's random numbers, for jitter and load spreading, not for correctness.
    pub fn prng(&mut self) -> &mut Prng {
        &mut self.prng
    }

    /// Fills a buffer with random bytes for a challenge or a key.
    pub fn secret(&mut self, bytes: &mut [u8]) {
        match self.secrets {
            Some(draw) => draw(bytes),
            None => bytes.fill_with(|| self.prng.below(256) as u8),
        }
    }

    /// A fault site: sometimes true in the simulator, never elsewhere. The code behind it must be
    /// legal, merely unlikely behaviour (a full queue, a time-out that fires early).
    pub fn chaos(&mut self, _site: &'static str) -> bool {
        self.chaos.as_mut().is_some_and(|c| c.chance(0.02))
    }

    /// Returns the effects so far in order, and leaves the list empty. For the driver.
    pub fn drain(&mut self) -> alloc::vec::Drain<'_, Effect> {
        self.list.drain(..)
    }

    /// Swaps the list with another one, to keep both allocations. For the driver.
    pub fn swap(&mut self, list: &mut Vec<Effect>) {
        core::mem::swap(&mut self.list, list);
    }

    /// Returns true if there are no effects.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
