//! One operation in flight at a shard: an operation of a client or of another device, a copy of a
//! sync, or a read of the scrubber.

use crate::members::Members;
use alloc::rc::Rc;
use base::{Duration, GroupId, Lsn, Time, UNIT, UnitKey};
use seam::{Buf, ClientWrite, ExecutedBlocks};
use wire::message::{Fetch, Io, Replicate, UnitRange};
use wire::{Body, PeerLink, Status};

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpKind {
    /// Reads for a client, for a primary that repairs its copy, or for the scrubber.
    Read,
    /// A client asks which blocks hold data.
    Extents,
    /// A client's write, or a replicated one.
    Write,
    /// A client's zeroing, or a replicated one.
    Zero,
    /// Copies the range to the peers of the group's sync.
    Copy,
    /// Sends whole blocks to replicas that could not complete a partial write, or that have
    /// reported damage.
    Amend,
}

impl OpKind {
    pub fn changes_data(self) -> bool {
        matches!(self, OpKind::Write | OpKind::Zero)
    }

    /// Returns true if several operations of this kind may use the same blocks at the same time.
    pub fn shares(self) -> bool {
        matches!(self, OpKind::Read | OpKind::Extents)
    }
}

/// Returns true for a range that is not empty, lies within a unit, and has both ends at multiples
/// of `GRAIN` bytes.
#[inline]
pub(crate) fn fits<const GRAIN: u32>(at: u32, len: u32) -> bool {
    let within = len > 0 && at < UNIT && len <= UNIT - at;
    within && at.is_multiple_of(GRAIN) && len.is_multiple_of(GRAIN)
}

/// The origin of an operation, which gets the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asker {
    /// A client, which gets the answer on this link with its own number `op` for the operation.
    Client { link: PeerLink, op: u64 },
    /// The group's primary: likewise.
    Primary { link: PeerLink, op: u64 },
    /// A sync of this device. The copy began at `since`, and its data was here after `read`.
    Sync { since: Time, read: Duration },
    /// This device's write with the key `of`, whose blocks another replica needs whole.
    Amend { of: u64 },
    /// A secondary whose scrubber has found damage in these blocks.
    Mend,
    /// The scrubber.
    Scrub,
    /// None any more: the configuration ended, and only the media job is left.
    Nobody,
}

/// One operation. It exists from its arrival until it is done here and at every replica that it was
/// sent to.
#[derive(Debug)]
pub(crate) struct Op {
    pub group: GroupId,
    pub kind: OpKind,
    pub unit: UnitKey,
    pub at: u32,
    pub len: u32,
    pub asker: Asker,
    pub client: ClientWrite,
    /// An operation of a client whose number may have arrived somewhere before.
    pub retry: bool,
    /// What a replicated write is, and how it may be treated. The sender's copies say only `lost`.
    pub stream: Stream,
    pub body: Buf,
    /// The checksum of the body, if it has one.
    pub body_crc: Option<u32>,
    /// Its place in the group's stream; 0 before it has one.
    pub lsn: Lsn,
    /// It has space reserved on the device, until its job starts.
    pub reserved: bool,
    pub local: Local,
    /// Replicas that it goes to.
    pub sent: Members,
    /// Replicas that have done it, or don't need it any more.
    pub acked: Members,
    /// Replicas that it was sent to on their present link and that have not answered: it takes room
    /// in their windows.
    pub flying: Members,
    /// Its number: what [`crate::mirror::Mirror::sends`] was, including this sending, when it was
    /// last sent while it was in flight to no replica.
    pub number: u64,
    /// The bytes that it takes of the limits for clients. `None`: it is no client's, or is
    /// answered.
    pub counts: Option<u32>,
    /// When it arrived, if it is a client's.
    pub since: Time,
    /// It has its range exclusively although it only reads, because it has met damage.
    pub alone: bool,
    /// The origin has its answer, and the range is free.
    pub answered: bool,
    /// A retry of which a part is in the content already. This operation does what is missing.
    pub in_part: bool,
    /// More of the write is missing than this operation covers.
    pub more: bool,
    /// Replicas that need its blocks whole, and replicas to which these were, or are being, sent.
    pub damaged: Members,
    pub amended: Members,
    /// They are being read or sent whole. Others wait until that has ended, because it may find
    /// the blocks damaged here as well, and repair them.
    pub amending: bool,
    /// What comes with the content that the media job writes: the entries of another replica's
    /// list of executed writes.
    pub list: Option<Rc<[ExecutedBlocks]>>,
}

/// What the primary says of a write of its stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// A copy of a resync and not a client's write.
    pub copy: bool,
    /// A copy that may be delayed.
    pub yields: bool,
    /// A copy of blocks that its source can't read any more.
    pub lost: bool,
    /// It may be refused to keep the spare.
    pub fresh: bool,
}

/// The state of the media job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Local {
    NotStarted,
    Running,
    /// It met damaged blocks, and another replica has been asked for them.
    Asking,
    /// The blocks of the other replica are being written.
    Mending,
    Done,
}

impl Op {
    /// Creates an operation of which nothing is done yet.
    #[inline]
    pub fn new(group: GroupId, kind: OpKind, unit: UnitKey, at: u32, len: u32, asker: Asker) -> Op {
        Op {
            group,
            kind,
            unit,
            at,
            len,
            asker,
            client: ClientWrite::default(),
            retry: false,
            stream: Stream::default(),
            body: Buf::EMPTY,
            body_crc: None,
            lsn: Lsn(0),
            reserved: false,
            local: Local::NotStarted,
            sent: Members::default(),
            acked: Members::default(),
            flying: Members::default(),
            number: 0,
            counts: None,
            since: Time::ZERO,
            alone: false,
            answered: false,
            in_part: false,
            more: false,
            damaged: Members::default(),
            amended: Members::default(),
            amending: false,
            list: None,
        }
    }

    /// Returns the status to answer once this operation is done. After `Busy` the client asks for
    /// the rest.
    pub fn status_when_done(&self) -> Status {
        if self.more { Status::Busy } else { Status::Ok }
    }

    /// Creates the operation that a client asks for.
    pub fn of_client(io: &Io, kind: OpKind, link: PeerLink, body: Body, since: Time) -> Op {
        let request = io.request();
        let UnitRange { unit, at, len } = request.range;
        let asker = Asker::Client { link, op: request.op };
        let bytes = if kind == OpKind::Read { len } else { body.data.len() as u32 };
        Op {
            client: request.client,
            retry: io.is_retry(),
            body: body.data,
            body_crc: body.crc,
            counts: Some(bytes),
            since,
            ..Op::new(request.group, kind, unit, at, len, asker)
        }
    }

    /// Creates the operation of a primary's stream.
    pub fn of_stream(m: &Replicate, link: PeerLink, body: Body) -> Op {
        let kind = if m.zero { OpKind::Zero } else { OpKind::Write };
        let UnitRange { unit, at, len } = m.range;
        Op {
            client: m.client,
            stream: Stream { copy: m.copy, yields: m.yields, lost: m.lost, fresh: m.fresh },
            body: body.data,
            body_crc: body.crc,
            lsn: m.lsn,
            ..Op::new(m.group, kind, unit, at, len, Asker::Primary { link, op: m.op })
        }
    }

    /// Creates the read of blocks that are damaged at the primary.
    pub fn of_fetch(m: &Fetch, link: PeerLink) -> Op {
        let UnitRange { unit, at, len } = m.range;
        Op::new(m.group, OpKind::Read, unit, at, len, Asker::Primary { link, op: m.op })
    }
}
