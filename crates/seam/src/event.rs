//! The events that a driver reports to a node.

use crate::block::BlockRequest;
use crate::buf::Buf;
use crate::{DialId, DiskOp, Port, RequestId};
use base::LinkId;
use core::net::SocketAddr;

/// One event.
#[derive(Debug)]
pub enum Event<'a> {
    /// The time that [`crate::Node::wake_at`] returned has come.
    Tick,
    /// A connection is up: an accepted one, or the one that `dial` asked for.
    LinkUp {
        /// Its id from now on.
        link: LinkId,
        /// Its protocol.
        port: Port,
        /// The dial that led to it; `None` if the other side dialled.
        dial: Option<DialId>,
        /// The address of this side that the other side dialled. `None` if this side dialled, on
        /// unix sockets, and perhaps if the connection is already broken.
        at: Option<SocketAddr>,
        /// The address of the other side. `None` in the same cases.
        from: Option<SocketAddr>,
    },
    /// The connection is gone. Nothing more comes from it, and it is unknown whether data sent on
    /// it arrived. Not sent for links that the node closed itself.
    LinkDown {
        /// The link.
        link: LinkId,
        /// The reason.
        why: DownReason,
    },
    /// A dial failed.
    DialFailed {
        /// The dial.
        dial: DialId,
        /// The reason.
        why: DialError,
    },
    /// One whole frame, as the link's framer delimited it.
    Frame {
        /// The link.
        link: LinkId,
        /// The head, with the length that the framer returned.
        head: &'a [u8],
        /// The body; may be empty.
        body: Buf,
    },
    /// A device operation ended. Each operation ends exactly once.
    DiskDone {
        /// The operation.
        op: DiskOp,
        /// The data of a read; empty for all other operations.
        result: Result<Buf, DiskError>,
    },
    /// A block request of a program in this process.
    Request {
        /// The id for the reply.
        id: RequestId,
        /// The request.
        request: BlockRequest,
    },
    /// The program has withdrawn these requests: it does not wait for their answers any more. The
    /// node still answers each of them.
    Withdraw {
        /// The ids, in ascending order.
        ids: &'a [RequestId],
    },
}

/// Reason why a link went down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownReason {
    /// The other side closed it, or its process ended.
    Closed,
    /// The connection broke.
    Broken,
    /// The framer refused the received data.
    Garbage,
    /// The peer does not read: more than `Limits::link_queue` bytes wait.
    Stuck,
    /// A stranger that sent no frame in time, or the oldest of too many (see [`crate::Strangers`]).
    Stranger,
}

/// Reason why a dial failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DialError {
    /// The host is up and nothing listens. If the host was not rebooted, this proves that the
    /// process is dead (R3).
    Refused,
    /// No answer, or no route. Proves nothing.
    Unreachable,
}

/// Reason why a device operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// The range leaves the device, or is not a multiple of its block size.
    OutOfRange,
    /// The storage below the device is full (a sparse file on a full file system).
    NoSpace,
    /// Any other failure of the device.
    Io,
    /// The device can't do this (an [`crate::Effect::Punch`] only).
    Unsupported,
    /// The data of a write does not match its checksum: this process's memory has changed. Nothing
    /// was written. Returned by a store, never by a driver.
    BadBody,
    /// These blocks of the unit do not match their checksum and have to be repaired from another
    /// copy. Returned by a store, never by a driver.
    Corrupt {
        /// Index of the first block in the unit.
        first: u16,
        /// Number of blocks.
        blocks: u16,
    },
}
