//! One operation in flight at a shard.

use crate::replica::Members;
use base::{Duration, GroupId, Incarnation, Lsn, SdcId, Time, UNIT, UnitKey, VolumeId};
use seam::{Buf, ClientWrite};
use wire::{Header, PeerLink, Status};

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpKind {
    /// A client reads.
    Read,
    /// A client asks for the valid blocks.
    Extents,
    /// A client writes, or a replicated write.
    Write,
    /// A client zeroes, or a replicated zeroing.
    Zero,
    /// A resync copies the range to the peer of the group's sync.
    Copy,
    /// Whole blocks go to members that could not complete a write in parts.
    Amend,
}

impl OpKind {
    pub fn changes_data(self) -> bool {
        matches!(self, OpKind::Write | OpKind::Zero)
    }

    /// True when others of its sort may be at work on the same blocks.
    pub fn shares(self) -> bool {
        matches!(self, OpKind::Read | OpKind::Extents)
    }
}

/// True for a range that is not empty, lies within a unit, and has both ends at multiples of `GRAIN` bytes.
#[inline]
pub(crate) fn fits<const GRAIN: u32>(at: u32, len: u32) -> bool {
    let within = len > 0 && at < UNIT && len <= UNIT - at;
    within && at.is_multiple_of(GRAIN) && len.is_multiple_of(GRAIN)
}

/// Who asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asker {
    /// A client: answer on this link, with its own name for the operation.
    Client { link: PeerLink, op: u64 },
    /// The group's primary: likewise.
    Primary { link: PeerLink, op: u64 },
    /// A sync of ours, that began then, and took so long to read it.
    Sync { since: Time, read: Duration },
    /// A write of ours, whose blocks a member needs whole.
    Amend { of: u64 },
    /// A member, whose copy of these blocks is damaged.
    Mend,
    /// The scrubber.
    Scrub,
    /// Nobody any more: the configuration changed; only its media job is left.
    Nobody,
}

/// One operation. Lives from its arrival until it is done here and at every member that it was sent to.
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
    /// Holds space on the media until its job starts.
    pub reserved: bool,
    pub local: Local,
    pub sent: Members,
    pub acked: Members,
    /// Members that it was sent to on their present link and that have not answered: it takes room there.
    pub flying: Members,
    /// What [`crate::mirror::Mirror::sends`] was when it was first sent, itself included.
    pub number: u64,
    /// A client sent it to this shard, and has no answer: it counts against the limits for clients, with so many bytes.
    pub counts: Option<u32>,
    /// When it came, if it is a client's.
    pub since: Time,
    /// It has its range to itself, as if it wrote: a read that has met damage.
    pub alone: bool,
    /// The asker has its answer, and the range is free.
    pub answered: bool,
    /// A retry of which a part is in the content: what is left of it is done.
    pub in_part: bool,
    /// More of the write is missing than this operation covers.
    pub more: bool,
    /// Members that need its blocks whole, and those that were, or are being, sent them.
    pub damaged: Members,
    pub amended: Members,
}

/// Where the media job stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Local {
    NotStarted,
    Running,
    /// It met damaged blocks: another copy is being asked for them.
    Asking,
    /// They are being written.
    Mending,
    Done,
}

/// A client's name for what it asks for.
pub(crate) fn client_write(h: &Header) -> ClientWrite {
    ClientWrite {
        sdc: SdcId(h.sdc.get()),
        incarnation: Incarnation(h.incarnation.get()),
        seq: h.seq.get(),
        floor: h.floor.get(),
    }
}

impl Op {
    /// An operation that has just come: nothing is done yet.
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

    /// The answer once this operation is done: with `Busy` the client asks for the rest.
    pub fn status_when_done(&self) -> Status {
        if self.more { Status::Busy } else { Status::Ok }
    }

    /// The operation that a frame asks for.
    pub fn from_frame(h: &Header, kind: OpKind, asker: Asker, body: Buf) -> Op {
        let unit = UnitKey { volume: VolumeId(h.volume.get()), index: h.unit.get() };
        let client = client_write(h);
        let op = Op::new(GroupId(h.group.get()), kind, unit, h.at.get(), h.len.get(), asker);
        let bytes = if kind == OpKind::Read { op.len } else { body.len() as u32 };
        let counts = matches!(asker, Asker::Client { .. }).then_some(bytes);
        Op { client, flags: h.flags, body, body_crc: h.body_crc.get(), counts, ..op }
    }
}
