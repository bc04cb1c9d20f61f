//! The device side of a virtio block device (VIRTIO 1.2, 2.7 and 5.2): its configuration, its split
//! queues in a guest's memory, and the requests in them. The module knows neither how the guest's
//! memory is mapped nor how the device is attached to the guest (see [`crate::vhost`]).
//!
//! | module | content |
//! |---|---|
//! | [`config`] | features, and the configuration space |
//! | [`memory`] | access to a guest's memory |
//! | [`queue`] | a split queue: available and used chains |
//! | [`chain`] | the descriptors of one request |
//! | [`request`] | decodes the request in a chain |
//! | [`inflight`] | which requests are under way, for the next process |
//!
//! The content of the guest's memory is untrusted, and may change between two reads. So each value
//! is read once and checked after that. An invalid request is refused with a status. A queue whose
//! rings break the rules is [`Broken`], and is not served until it is set up again.

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

/// Bytes of a sector, the unit of requests and of the capacity (5.2.4).
pub const SECTOR: u64 = 512;

/// How a driver broke the rules of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The size of the queue is not a power of two, or is more than [`QUEUE_MAX`].
    Size(u16),
    /// A ring is misaligned, or is not within one region of memory.
    Rings,
    /// More chains are available than the queue has descriptors.
    TooMany,
    /// A descriptor outside of its table.
    Index(u32),
    /// An available chain is under way already.
    Twice(u16),
    /// A chain is too long, has a loop, or reaches into too many regions of memory.
    Long,
    /// A part that the device reads comes after one that it writes.
    Order,
    /// A part is not within the guest's memory.
    Outside,
    /// An indirect table has a wrong length, is inside another one, or is not the end of its chain.
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
