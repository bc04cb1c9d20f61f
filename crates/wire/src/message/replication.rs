//! The stream of writes from a primary to its peers, and the repair of damaged blocks.

use super::layout::{Sender, UnitRange, message};
use crate::header::Status;
use base::{Epoch, GroupId, Lsn};
use seam::ClientWrite;

message! {
    /// Primary to secondary or joiner: one write, in the order of `lsn`. The body has the data.
    Replicate {
        /// The primary's id for the operation. The answer carries the same.
        op: u64, @ 24;
        /// The group of the range.
        group: GroupId, @ 32;
        /// The epoch of the stream (rule R2).
        epoch: Epoch, @ 40;
        /// The write's sequence number in its group and epoch.
        lsn: Lsn, @ 48;
        /// The commit point: every write of this epoch up to here is on all in-sync replicas.
        commit: Lsn, @ 56;
        /// The range.
        range: UnitRange;
        /// The client whose write this is, and its number. All zero: it is no client's.
        client: ClientWrite;
        /// Number of sequence numbers just below `lsn` that the receiver does not get: copies to
        /// other replicas, and operations that all replicas have by now.
        skipped: u32, @ 124;
    }
    flags {
        /// A client's write to new space that the primary has not begun, and that no third replica
        /// needs. The receiver may refuse it to keep its spare.
        fresh: 1;
        /// Zeroes the range, and has no body.
        zero: 2;
        /// With `copy`: the receiver may delay it in favour of its own clients.
        yields: 8;
        /// With `copy`: whole blocks that the source can't read any more. No body.
        lost: 16;
        /// A copy of a resync and not a client's write.
        copy: 128;
    }
    body: DATA
}

impl Replicate {
    /// Returns a write of no client, with no flag and commit point 0.
    pub fn new(op: u64, group: GroupId, epoch: Epoch, lsn: Lsn, range: UnitRange) -> Replicate {
        Replicate {
            op,
            group,
            epoch,
            lsn,
            commit: Lsn(0),
            range,
            client: ClientWrite::default(),
            skipped: 0,
            fresh: false,
            zero: false,
            yields: false,
            lost: false,
            copy: false,
        }
    }
}

message! {
    /// The answer to `Replicate`: the write is durable there (`Ok`), could not be done (`Full`,
    /// `SendWhole`), or belongs to no stream that the receiver takes (`Stale`, `Behind`).
    Replicated {
        /// The result.
        status: Status, @ 20;
        /// The primary's id for the operation.
        op: u64, @ 24;
        /// The group.
        group: GroupId, @ 32;
        /// The epoch of the stream.
        epoch: Epoch, @ 40;
        /// The write's sequence number.
        lsn: Lsn, @ 48;
        /// The sender, and the version of its map.
        sender: Sender;
    }
    flags {}
    body: NONE
}

message! {
    /// Primary to secondary: the commit point has advanced, and no write is due that would carry
    /// it.
    Commit {
        /// The group.
        group: GroupId, @ 32;
        /// The epoch of the stream.
        epoch: Epoch, @ 40;
        /// The commit point.
        commit: Lsn, @ 56;
    }
    flags {}
    body: NONE
}

message! {
    /// Primary to another replica in sync: return your content of these whole blocks, because those
    /// here are damaged.
    Fetch {
        /// The primary's id for the operation. The answer carries the same.
        op: u64, @ 24;
        /// The group.
        group: GroupId, @ 32;
        /// The group's epoch.
        epoch: Epoch, @ 40;
        /// The blocks.
        range: UnitRange;
    }
    flags {}
    body: NONE
}

message! {
    /// The answer to `Fetch`. With `Ok` the body has the blocks, and after them `records::Executed`
    /// of these blocks.
    Fetched {
        /// The result.
        status: Status, @ 20;
        /// The primary's id for the operation.
        op: u64, @ 24;
        /// The group.
        group: GroupId, @ 32;
        /// The group's epoch.
        epoch: Epoch, @ 40;
        /// Offset of the blocks that were asked for in the unit, in bytes.
        at: u32, @ 84;
        /// Their length in bytes. The body has them if the result is `Ok`.
        len: u32, @ 88;
        /// The sender, and the version of its map.
        sender: Sender;
    }
    flags {}
    body: SUMMED
}

message! {
    /// Secondary to primary, unasked: these whole blocks are damaged here. The primary sends them
    /// as a write of the stream if it can read them.
    Damage {
        /// The group.
        group: GroupId, @ 32;
        /// The group's epoch.
        epoch: Epoch, @ 40;
        /// The blocks.
        range: UnitRange;
        /// The sender, and the version of its map.
        sender: Sender;
    }
    flags {}
    body: NONE
}
