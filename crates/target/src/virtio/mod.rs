//! The device side of a virtio block device (VIRTIO 1.2, 2.7 and 5.2): its configuration, its split
//! queues in a guest's memory, and the requests in them. How the guest's memory is reached, and
//! what carries the device to the guest, is not known here ([`crate::vhost`]).
//!
//! | module | content |
//! |---|---|
//! | [`config`] | features, and the configuration space |
//! | [`memory`] | what a device needs of a guest's memory |
//! | [`queue`] | a split queue: what is offered, and what is used |
//! | [`chain`] | the descriptors of one request |
//! | [`request`] | what a chain asks for |
//! | [`inflight`] | which requests are under way, for the next process |
//!
//! Everything in the guest's memory is hostile, and may change between two looks at it. So each
//! value is read once and checked after that. Requests are refused with a status; a queue that
//! breaks the rules of rings is [`Broken`], and is not served until it is set up again.

pub mod chain;
pub mod config;
pub mod inflight;
pub mod memory;
pub mod queue;
pub mod request;

pub use chain::{Chain, SEGMENTS};
pub use inflight::Inflight;
pub use memory::{Memory, Segment};
pub use queue::{QUEUE_MAX, Queue, Rings};
pub use request::{Ask, Disk, Request, Status};

use core::fmt;

/// Bytes of a sector, in which requests and the capacity count (5.2.4).
pub const SECTOR: u64 = 512;

/// How a driver broke the rules of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The size of the queue is no power of two, or more than [`QUEUE_MAX`].
    Size(u16),
    /// A ring begins at a wrong multiple, or does not lie in one region of memory.
    Rings,
    /// More chains are offered than the queue has descriptors.
    TooMany,
    /// A descriptor outside of its table.
    Index(u32),
    /// A chain is offered that is under way already.
    Twice(u16),
    /// A chain is longer than a chain may be, or reaches into too many regions of memory. One that
    /// is a circle is too long, too.
    Long,
    /// A part that the device reads comes after one that it writes.
    Order,
    /// A part is not in memory.
    Outside,
    /// An indirect table has a wrong length, or is in another one, or is not the end of its chain.
    Indirect,
    /// A request has no complete head, or no place for its status.
    Short,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Size(size) => {
                write!(f, "its size {size} is no power of two up to {QUEUE_MAX}")
            }
            Broken::Rings => f.write_str("a ring is misaligned, or outside of the guest's memory"),
            Broken::TooMany => f.write_str("more is offered than the queue has room for"),
            Broken::Index(index) => write!(f, "there is no descriptor {index}"),
            Broken::Twice(head) => write!(f, "request {head} is under way already"),
            Broken::Long => f.write_str("a chain of descriptors is too long"),
            Broken::Order => f.write_str("a part to be read comes after one to be written"),
            Broken::Outside => f.write_str("a buffer is outside of the guest's memory"),
            Broken::Indirect => f.write_str("an indirect table breaks the rules"),
            Broken::Short => f.write_str("a request has no complete head, or no status"),
        }
    }
}
