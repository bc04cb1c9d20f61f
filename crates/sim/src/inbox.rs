//! Processes, and the events that wait for delivery to them.

use crate::actor::Actor;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::world::ProcId;
use base::{LinkId, Prng, Time};
use seam::{
    BlockRequest, Buf, BufPool, DialError, DialId, DiskId, DiskOp, DownReason, Effect, Effects,
    Head, Port, RequestId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

/// An event that is ready for delivery to a node.
#[derive(Debug)]
pub(crate) enum Item {
    LinkUp {
        link: LinkId,
        port: Port,
        dial: Option<DialId>,
        at: Option<SocketAddr>,
        from: Option<SocketAddr>,
    },
    LinkDown {
        link: LinkId,
        why: DownReason,
    },
    DialFailed {
        dial: DialId,
        why: DialError,
    },
    Frame {
        link: LinkId,
        head: Head,
        body: Buf,
        conn: u32,
        lane: u8,
        bytes: u64,
    },
    DiskDone {
        op: u32,
    },
    Request {
        id: RequestId,
        request: BlockRequest,
    },
    Withdraw {
        ids: Vec<RequestId>,
    },
}

/// A device operation in flight.
#[derive(Debug)]
pub(crate) struct PendingDisk {
    pub op: DiskOp,
    pub disk: DiskId,
    pub since: Time,
    pub what: PendingKind,
}

#[derive(Debug)]
pub(crate) enum PendingKind {
    Read {
        at: u64,
        len: u32,
    },
    Write {
        at: u64,
        body: Buf,
        durable: bool,
    },
    Flush {
        covers: u64,
    },
    Punch {
        at: u64,
        len: u64,
    },
    /// An operation of a log or a file that has taken effect. The node does not know yet.
    Ended(Result<Buf, seam::DiskError>),
}

/// State of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcState {
    /// Not started yet, or dead.
    Dead,
    /// Running.
    Running,
    /// Stopped: it keeps its memory and loses time.
    Paused,
}

/// A pending strike in the middle of the effects of a process's next batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strike {
    None,
    Crash { power: bool },
    Pause,
}

/// A link on which the other side dialled, and which the node has not welcomed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stranger {
    pub link: LinkId,
    /// Highest length in bytes of a frame body.
    pub body: usize,
    /// A frame has arrived.
    pub spoke: bool,
}

pub(crate) struct Process {
    pub name: String,
    pub state: ProcState,
    /// Its host is without power.
    pub host_down: bool,
    pub life: u32,
    pub actor: Option<Box<dyn Actor>>,
    pub clock: Clock,
    pub out: Effects,
    pub inbox: VecDeque<Item>,
    pub links: BTreeMap<LinkId, (u32, u8)>,
    pub next_link: u64,
    /// Links that the node has not welcomed yet, oldest first.
    pub strangers: VecDeque<Stranger>,
    pub disks: Vec<Disk>,
    /// Extra delay of its frames, and of the operations of its disks.
    pub slow: (Duration, Duration),
    /// Most bytes that wait in one of its links: `Limits::link_queue` of the process.
    pub link_queue: u64,
    /// Every operation of its disks fails.
    pub broken: bool,
    /// Its host refuses dials until this time, even while the process runs.
    pub refuses_until: Time,
    pub pending: BTreeMap<u32, PendingDisk>,
    pub next_pending: u32,
    /// Number of frames that carried or announced resync copies to it, over all incarnations.
    pub copies_asked: u32,
    /// Number of frames with writes that reached it, over all incarnations.
    pub writes_asked: u32,
    /// Processes whose registrations reached it: each with its incarnation and the receiver's.
    pub registered: BTreeSet<(ProcId, u32, u32)>,
    /// A run of the process is in the world's queue.
    pub scheduled: bool,
    pub wake: Option<Time>,
    pub wake_number: u32,
    pub strike: Strike,
    /// Effects that wait until the pause ends.
    pub held: Vec<Effect>,
    pub prng: Prng,
}

impl Process {
    pub(crate) fn new(
        name: &str,
        disks: Vec<Disk>,
        clock: Clock,
        prng: Prng,
        link_queue: u64,
    ) -> Process {
        let pool = BufPool::new(8 << 20);
        Process {
            name: name.to_string(),
            slow: (Duration::ZERO, Duration::ZERO),
            link_queue,
            broken: false,
            refuses_until: Time::ZERO,
            state: ProcState::Dead,
            host_down: false,
            life: 0,
            actor: None,
            clock,
            out: Effects::new(pool, prng.fork("node"), None),
            inbox: VecDeque::new(),
            links: BTreeMap::new(),
            next_link: 1,
            strangers: VecDeque::new(),
            disks,
            pending: BTreeMap::new(),
            next_pending: 0,
            copies_asked: 0,
            writes_asked: 0,
            registered: BTreeSet::new(),
            scheduled: false,
            wake: None,
            wake_number: 0,
            strike: Strike::None,
            held: Vec::new(),
            prng,
        }
    }
}
