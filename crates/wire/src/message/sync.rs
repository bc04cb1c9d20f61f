//! Settle and resync: a primary asks its peers what may differ, and makes them equal.

use super::layout::{Sender, message};
use crate::header::Status;
use base::{Epoch, GroupId, Lsn};

message! {
    /// Primary to secondary or joiner: tell your state in this epoch. Body: the primary's list of
    /// executed writes (`records::Executed`).
    SyncStart {
        /// Names the question. The answer carries the same.
        question: u64, @ 24;
        /// The group.
        group: GroupId, @ 32;
        /// The epoch.
        epoch: Epoch, @ 40;
        /// The stream begins after this sequence number.
        after: Lsn, @ 48;
    }
    flags {
        /// Tell everything that you hold: any block may differ.
        all: 2;
        /// The receiver is a joiner and not in the in-sync set.
        joiner: 32;
    }
    body: SUMMED
}

message! {
    /// The answer to `SyncStart` and `SyncWipe`. Body: the dirty blocks (`records::UnitBlocks`), in
    /// as many frames as necessary.
    SyncState {
        /// `Ok`, or why there is no answer: `Stale`, `Behind`.
        status: Status, @ 20;
        /// The question, or the order to delete everything.
        question: u64, @ 24;
        /// The group.
        group: GroupId, @ 32;
        /// The epoch of the question.
        epoch: Epoch, @ 40;
        /// The dirty blocks cover everything since this epoch.
        base: Epoch, @ 48;
        /// The sender, and the version of its map.
        sender: Sender;
    }
    flags {
        /// Another frame continues the list.
        more: 1;
        /// This is everything that is held: any block may differ.
        all: 2;
        /// The replica has nothing: copy everything.
        empty: 16;
    }
    body: SUMMED
}

message! {
    /// Primary to joiner: delete all data of this group.
    SyncWipe {
        /// Names the order. No question has the same name; the answer carries it.
        question: u64, @ 24;
        /// The group.
        group: GroupId, @ 32;
        /// The epoch.
        epoch: Epoch, @ 40;
    }
    flags {}
    body: NONE
}

message! {
    /// Primary to a peer: it has everything up to `lsn`, and may clear its dirty set. Body: the
    /// list of executed writes (`records::Executed`).
    Seal {
        /// The group.
        group: GroupId, @ 32;
        /// The epoch.
        epoch: Epoch, @ 40;
        /// The last sequence number that was sent to the peers.
        lsn: Lsn, @ 48;
    }
    flags {}
    body: SUMMED
}

message! {
    /// The answer to `Seal`: the seal is durable, or why not (`Stale`, `Behind`).
    Sealed {
        /// The result.
        status: Status, @ 20;
        /// The group.
        group: GroupId, @ 32;
        /// The epoch of the seal.
        epoch: Epoch, @ 40;
        /// The sequence number of the seal.
        lsn: Lsn, @ 48;
        /// The sender, and the version of its map.
        sender: Sender;
    }
    flags {}
    body: NONE
}
