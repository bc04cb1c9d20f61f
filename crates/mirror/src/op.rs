//! One operation in flight at a shard: an operation of a client or of another device, a copy of a
//! sync, or a read of the scrubber.

use crate::replica::Members;
use base::{Duration, GroupId, Incarnation, Lsn, SdcId, Time, UNIT, UnitKey, VolumeId};
use seam::{Buf, ClientWrite};
use wire::{Header, PeerLink, Status};

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
    pub flags: u8,
    pub body: Buf,
    pub body_crc: u32,
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

/// Returns a client's identification of its write.
pub(crate) fn client_write(h: &Header) -> ClientWrite {
    ClientWrite {
        sdc: SdcId(h.sdc.get()),
        incarnation: Incarnation(h.incarnation.get()),
        seq: h.seq.get(),
        floor: h.floor.get(),
    }
}

impl Op {
    /// Creates an operation of which nothing is done yet.
    pub fn new(group: GroupId, kind: OpKind, unit: UnitKey, at: u32, len: u32, asker: Asker) -> Op {
        Op {
            group,
            kind,
            unit,
            at,
            len,
            asker,
            client: ClientWrite::default(),
            flags: 0,
            body: Buf::EMPTY,
            body_crc: 0,
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
        }
    }

    /// Returns the status to answer once this operation is done. After `Busy` the client asks for
    /// the rest.
    pub fn status_when_done(&self) -> Status {
        if self.more { Status::Busy } else { Status::Ok }
    }

    /// Creates the operation that a frame asks for.
    pub fn from_frame(h: &Header, kind: OpKind, asker: Asker, body: Buf) -> Op {
        let unit = UnitKey { volume: VolumeId(h.volume.get()), index: h.unit.get() };
        let client = client_write(h);
        let op = Op::new(GroupId(h.group.get()), kind, unit, h.at.get(), h.len.get(), asker);
        let bytes = if kind == OpKind::Read { op.len } else { body.len() as u32 };
        let counts = matches!(asker, Asker::Client { .. }).then_some(bytes);
        Op { client, flags: h.flags, body, body_crc: h.body_crc.get(), counts, ..op }
    }
}
