//! What a driver tells a node.

use crate::block::BlockRequest;
use crate::buf::Buf;
use crate::{DialId, DiskOp, Port, RequestId};
use base::LinkId;

/// One thing that happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// The time that [`crate::Node::wake_at`] asked for has come.
    Tick,
    /// A connection is there: accepted, or the one that `dial` asked for.
    LinkUp {
        /// Its name from now on.
        link: LinkId,
        /// Its protocol.
        port: Port,
        /// The dial that it answers; `None` when the other side dialled.
        dial: Option<DialId>,
    },
    /// The connection is gone; nothing more comes from it, nothing sent on it is known to have arrived.
    /// Not sent for links that the node closed itself.
    LinkDown {
        /// Which link.
        link: LinkId,
        /// Why.
        why: DownReason,
    },
    /// A dial came to nothing.
    DialFailed {
        /// Which dial.
        dial: DialId,
        /// Why.
        why: DialError,
    },
    /// One whole frame, as the link's framer cut it.
    Frame {
        /// The link that it came on.
        link: LinkId,
        /// The head: exactly as long as the framer said.
        head: &'a [u8],
        /// The body, maybe empty.
        body: Buf,
    },
    /// A device operation ended. Each operation ends exactly once.
    DiskDone {
        /// Which one.
        op: DiskOp,
        /// The data of a read; empty for writes and flushes.
        result: Result<Buf, DiskError>,
    },
    /// A program in this process asks for something.
    Request {
        /// To be named in the reply.
        id: RequestId,
        /// What it wants.
        request: BlockRequest,
    },
}

/// Why a link went down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownReason {
    /// The other side closed it, or its process ended.
    Closed,
    /// The connection broke.
    Broken,
    /// The framer refused what came.
    Garbage,
    /// The other side does not read: more than `Limits::link_queue` bytes wait.
    Stuck,
    /// A stranger that said nothing in time, or the oldest of too many (see [`crate::Strangers`]).
    Stranger,
}

/// Why a dial failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DialError {
    /// The host is there and nobody listens: on the same boot, proof that the process is dead (R3).
    Refused,
    /// No answer, or no way there. Proves nothing.
    Unreachable,
}

/// Why a device operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// The range leaves the device, or is not made of its blocks.
    OutOfRange,
    /// The device is full underneath (a sparse file on a full file system).
    NoSpace,
    /// Any other failure of the device.
    Io,
    /// The data of a write is not the one that its checksum belongs to: a bit of this process's memory has
    /// changed. Nothing was written. Told by a store, never by a driver.
    BadBody,
    /// These blocks of the unit fail their checksum: repair them from the other copy. Told by a store,
    /// never by a driver.
    Corrupt {
        /// The first one.
        first: u16,
        /// How many.
        blocks: u16,
    },
}
