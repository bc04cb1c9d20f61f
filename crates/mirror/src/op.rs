//! One operation in flight at a shard: its work, its requester, and its progress.

use crate::members::ReplicaSet;
use alloc::rc::Rc;
use base::{BlockSet, Duration, GroupId, Lsn, Time, UNIT, UnitKey};
use seam::{Buf, ClientWrite, Effects, ExecutedBlocks, Job};
use wire::message::{Fetch, Io, Replicate, Reply, UnitRange};
use wire::{Body, PeerLink, Status};

/// Returns true for a range that is not empty, lies within a unit, and has both ends at multiples
/// of `GRAIN` bytes.
#[inline]
pub(crate) fn fits<const GRAIN: u32>(at: u32, len: u32) -> bool {
    let within = len > 0 && at < UNIT && len <= UNIT - at;
    within && at.is_multiple_of(GRAIN) && len.is_multiple_of(GRAIN)
}

/// The process that gets the answer: its link, and its own number `op` for the operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub link: PeerLink,
    pub op: u64,
}

/// Where an answer goes: the link, the requester's number for the operation, and the group.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub link: PeerLink,
    pub op: u64,
    pub group: GroupId,
}

impl Caller {
    pub(crate) fn new(requester: Requester, group: GroupId) -> Caller {
        Caller { link: requester.link, op: requester.op, group }
    }

    /// Sends an answer without data.
    #[inline]
    pub(crate) fn send(self, reply: Reply, out: &mut Effects) {
        out.send(self.link.id, self.link.frame(reply, &[]), Buf::EMPTY);
    }
}

/// The work of an operation, and its requester.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Reads for a client, whose request came at this time.
    Read(Requester, Time),
    /// Tells a client, whose request came at this time, which blocks hold data.
    Extents(Requester, Time),
    /// Writes for a client.
    Write(Write),
    /// Reads for a client, to compare, and then becomes a write ([`crate::compare`]).
    Compare(Compare),
    /// Does a write of the primary's stream.
    Stream(Streamed),
    /// Reads for the group's primary, whose copy of these blocks is damaged.
    Fetch(Requester),
    /// Copies the range to the peers of the group's sync.
    Copy(Copying),
    /// Sends whole blocks to replicas that have damaged ones: those that could not do the write
    /// with the key `of`, or a secondary whose scrubber has found the damage.
    Whole { of: Option<u64> },
    /// Reads for the scrubber.
    Scrub,
    /// None any more: the configuration has ended, and only the media job is left.
    Orphan { changes: bool, reads: bool },
}

/// A client's write or zeroing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub requester: Requester,
    /// When it came.
    pub since: Time,
    /// It has no body: the range becomes zeros.
    pub zero: bool,
    /// A server may have received its number before.
    pub retry: bool,
    /// A part of it is in the content already. The operation does only a missing part.
    pub in_part: bool,
    /// More of it is missing than the operation covers.
    pub more: bool,
    /// The client has its answer, and the range is free.
    pub answered: bool,
    pub whole: WholeBlocks,
}

/// A client's compare-and-write, before it has compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compare {
    pub requester: Requester,
    /// When it came.
    pub since: Time,
    /// A server may have received its number before.
    pub retry: bool,
}

/// The replicas that have damaged blocks in a write's range, and get these blocks whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WholeBlocks {
    /// Replicas that need the blocks whole and were not sent them.
    pub needed: ReplicaSet,
    /// Replicas that they were sent to, or are being sent to.
    pub sent: ReplicaSet,
    /// An operation sends them. Others wait until it has ended, because it may find the blocks
    /// damaged here as well, and repair them.
    pub running: bool,
}

impl WholeBlocks {
    /// Records that these replicas need the blocks whole.
    pub(crate) fn add(&mut self, members: ReplicaSet) {
        self.needed.insert(members);
    }

    /// Records that an operation begins to send them. Returns the replicas that it sends them to.
    pub(crate) fn begin(&mut self) -> ReplicaSet {
        assert!(!self.running, "two operations would use the same blocks at once");
        let to = core::mem::take(&mut self.needed);
        self.sent.insert(to);
        self.running = true;
        to
    }

    /// Records that the operation has ended. These replicas have to be sent the blocks once more.
    pub(crate) fn end(&mut self, left: ReplicaSet) {
        assert!(self.running, "blocks that were sent are the only ones on their way");
        assert!(self.sent.contains_all(left), "only what was sent is sent again");
        self.running = false;
        self.sent.remove(left);
        self.needed.insert(left);
    }
}

/// A write of the primary's stream, at the replica that does it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed {
    pub requester: Requester,
    /// It has no body: the range becomes zeros.
    pub zero: bool,
    /// A copy of a sync and not a client's write.
    pub copy: bool,
    /// A copy that may be delayed.
    pub yields: bool,
    /// A copy of blocks that its source can't read any more.
    pub lost: bool,
    /// It may be refused to keep the spare.
    pub fresh: bool,
}

/// A copy of a sync, at the primary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copying {
    /// When it began.
    pub since: Time,
    /// How long it took until the data was here.
    pub read: Duration,
    /// The blocks can't be read any more, and the peers are told so.
    pub lost: bool,
}

/// One operation. It exists from its arrival until it is done here and at every replica that it was
/// sent to.
#[derive(Debug)]
pub(crate) struct Op {
    pub group: GroupId,
    pub unit: UnitKey,
    pub at: u32,
    pub len: u32,
    pub work: Work,
    /// The client's name for the write that changes the blocks; the default if there is none.
    pub client: ClientWrite,
    pub body: Buf,
    /// The checksum of the body, if it has one.
    pub body_crc: Option<u32>,
    /// Entries of another replica's list of executed writes that come with the content which the
    /// media job writes.
    pub list: Option<Rc<[ExecutedBlocks]>>,
    /// Its place in the group's stream; 0 before it has one.
    pub lsn: Lsn,
    pub local: Local,
    /// It has space reserved on the device, until its job starts.
    pub reserved: bool,
    /// It has its range exclusively although it only reads, because it has met damage.
    pub alone: bool,
    /// Replicas that it goes to.
    pub sent: ReplicaSet,
    /// Replicas that have done it, or don't need it any more.
    pub acked: ReplicaSet,
    /// Replicas that it was sent to on their present link and that have not answered. It takes room
    /// in their windows.
    pub in_flight: ReplicaSet,
    /// The value of [`crate::window::Windows::sends`] when it was sent. Sending it again changes
    /// this only if it is in flight to no replica.
    pub number: u64,
    /// The bytes that it takes of the limits for clients. `None`: it is no client's, or is
    /// answered.
    pub counts: Option<u32>,
}

/// The state of the media job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Local {
    NotStarted,
    Running,
    /// It met damaged blocks, and another replica has been asked for them.
    Asking,
    /// The blocks of the other replica are being written.
    Repairing,
    Done,
}

impl Work {
    /// Returns the work for an operation of a client that came at `since`.
    pub(crate) fn of_client(io: &Io, link: PeerLink, since: Time) -> Work {
        let requester = Requester { link, op: io.request().op };
        let zero = match io {
            Io::Read(_) => return Work::Read(requester, since),
            Io::Extents(_) => return Work::Extents(requester, since),
            Io::CompareWrite(m) => {
                return Work::Compare(Compare { requester, since, retry: m.retry });
            }
            Io::Write(_) => false,
            Io::Zero(_) => true,
        };
        Work::Write(Write { zero, retry: io.is_retry(), ..Write::new(requester, since) })
    }

    /// Returns true if it changes the content of this device.
    #[inline]
    pub(crate) fn changes_data(&self) -> bool {
        matches!(self, Work::Write(_) | Work::Stream(_) | Work::Orphan { changes: true, .. })
    }

    /// Returns true if it only reads, and the data goes to no other replica.
    #[inline]
    pub(crate) fn reads(&self) -> bool {
        matches!(
            self,
            Work::Read(..)
                | Work::Extents(..)
                | Work::Fetch(_)
                | Work::Scrub
                | Work::Orphan { reads: true, .. }
        )
    }

    /// Returns when it came, if it is an operation of a client.
    pub(crate) fn since(&self) -> Option<Time> {
        match self {
            Work::Read(_, since) | Work::Extents(_, since) => Some(*since),
            Work::Write(write) => Some(write.since),
            Work::Compare(compare) => Some(compare.since),
            _ => None,
        }
    }

    /// Returns the client that gets the answer.
    #[inline]
    pub(crate) fn client(&self) -> Option<Requester> {
        match self {
            Work::Read(requester, _) | Work::Extents(requester, _) => Some(*requester),
            Work::Write(write) => Some(write.requester),
            Work::Compare(compare) => Some(compare.requester),
            _ => None,
        }
    }
}

impl Op {
    /// Creates an operation of which nothing is done yet.
    #[inline]
    pub(crate) fn new(group: GroupId, unit: UnitKey, at: u32, len: u32, work: Work) -> Op {
        Op {
            group,
            unit,
            at,
            len,
            work,
            client: ClientWrite::default(),
            body: Buf::EMPTY,
            body_crc: None,
            list: None,
            lsn: Lsn(0),
            local: Local::NotStarted,
            reserved: false,
            alone: false,
            sent: ReplicaSet::default(),
            acked: ReplicaSet::default(),
            in_flight: ReplicaSet::default(),
            number: 0,
            counts: None,
        }
    }

    /// Creates the operation that a client asks for.
    pub(crate) fn of_client(io: &Io, link: PeerLink, body: Body, since: Time) -> Op {
        let request = io.request();
        let UnitRange { unit, at, len } = request.range;
        let work = Work::of_client(io, link, since);
        let bytes = if matches!(io, Io::Read(_)) { len } else { body.data.len() as u32 };
        Op {
            client: request.client,
            body: body.data,
            body_crc: body.crc,
            counts: Some(bytes),
            ..Op::new(request.group, unit, at, len, work)
        }
    }

    /// Creates the operation of a primary's stream.
    pub(crate) fn of_stream(m: &Replicate, link: PeerLink, body: Body) -> Op {
        let UnitRange { unit, at, len } = m.range;
        let requester = Requester { link, op: m.op };
        let &Replicate { zero, copy, yields, lost, fresh, .. } = m;
        let work = Work::Stream(Streamed { requester, zero, copy, yields, lost, fresh });
        Op {
            client: m.client,
            body: body.data,
            body_crc: body.crc,
            lsn: m.lsn,
            ..Op::new(m.group, unit, at, len, work)
        }
    }

    /// Creates the read of blocks that are damaged at the primary.
    pub(crate) fn of_fetch(m: &Fetch, link: PeerLink) -> Op {
        let UnitRange { unit, at, len } = m.range;
        Op::new(m.group, unit, at, len, Work::Fetch(Requester { link, op: m.op }))
    }

    /// Returns true if both read the same blocks for the same operation of the group's primary.
    pub(crate) fn is_same_fetch(&self, other: &Op) -> bool {
        let (Work::Fetch(a), Work::Fetch(b)) = (self.work, other.work) else { return false };
        let range = |op: &Op| (op.group, op.unit, op.at, op.len);
        a.op == b.op && range(self) == range(other)
    }

    /// Returns the blocks of its range.
    #[inline]
    pub(crate) fn blocks(&self) -> BlockSet {
        BlockSet::touching(self.at, self.len)
    }

    /// Returns true if several such operations may use the same blocks at the same time.
    #[inline]
    pub(crate) fn shares(&self) -> bool {
        self.work.reads() && !self.alone
    }

    /// Returns true if only its media job is left.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        matches!(self.work, Work::Orphan { .. })
    }

    /// Returns the write of a client that it is.
    #[inline]
    pub(crate) fn write(&self) -> Option<&Write> {
        if let Work::Write(write) = &self.work { Some(write) } else { None }
    }

    /// Returns the write of a client that it is.
    #[inline]
    pub(crate) fn write_mut(&mut self) -> Option<&mut Write> {
        if let Work::Write(write) = &mut self.work { Some(write) } else { None }
    }

    /// Returns its media job.
    #[inline]
    pub(crate) fn job(&self) -> Job {
        let (at, len) = (self.at, self.len);
        match &self.work {
            Work::Write(Write { zero: true, .. }) | Work::Stream(Streamed { zero: true, .. }) => {
                Job::Zero { at, len }
            }
            Work::Stream(Streamed { lost: true, .. }) => Job::MarkLost { at, len },
            Work::Write(_) | Work::Stream(_) => {
                // A retry in parts, and blocks that a primary has read, have a checksum as well.
                Job::Write { at, body: self.body.clone(), crc: self.body_crc }
            }
            _ => Job::Read { at, len },
        }
    }

    /// Takes its work away, because the configuration has ended. Returns that work.
    pub(crate) fn orphan(&mut self) -> Work {
        let (changes, reads) = (self.work.changes_data(), self.work.reads());
        core::mem::replace(&mut self.work, Work::Orphan { changes, reads })
    }
}

impl Write {
    /// Creates the write of a request that came at `since`.
    pub(crate) fn new(requester: Requester, since: Time) -> Write {
        Write {
            requester,
            since,
            zero: false,
            retry: false,
            in_part: false,
            more: false,
            answered: false,
            whole: WholeBlocks::default(),
        }
    }

    /// Returns the status to answer once it is done. After `Busy` the client asks for the rest.
    pub(crate) fn status_when_done(&self) -> Status {
        if self.more { Status::Busy } else { Status::Ok }
    }
}

#[cfg(test)]
mod tests;
