//! What waits to be delivered to a process, and the process itself.

use crate::actor::Actor;
use crate::clock::Clock;
use crate::disk::Disk;
use base::{LinkId, Prng, Time};
use seam::{
    BlockRequest, Buf, BufPool, DialError, DialId, DiskId, DiskOp, DownReason, Effect, Effects,
    Head, Port, RequestId,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// An event that is ready for a node.
#[derive(Debug)]
pub(crate) enum Item {
    LinkUp { link: LinkId, port: Port, dial: Option<DialId> },
    LinkDown { link: LinkId, why: DownReason },
    DialFailed { dial: DialId, why: DialError },
    Frame { link: LinkId, head: Head, body: Buf, conn: u32, lane: u8, bytes: u64 },
    DiskDone { op: u32 },
    Request { id: RequestId, request: BlockRequest },
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
    /// A log's operation that has taken place; the node doesn't know yet.
    Ended(Result<Buf, seam::DiskError>),
}

/// Whether a process runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcState {
    /// Not started, or dead.
    Dead,
    /// Runs.
    Running,
    /// Keeps its memory and loses time.
    Paused,
}

/// How a process is to be struck in the middle of its next batch's effects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strike {
    None,
    Crash { power: bool },
    Pause,
}

/// A link that somebody dialled whom the node may not know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stranger {
    pub link: LinkId,
    /// The longest body, in bytes.
    pub body: usize,
    /// A frame has come.
    pub spoke: bool,
}

pub(crate) struct Process {
    pub name: String,
    pub state: ProcState,
    /// True while its host is without power.
    pub host_down: bool,
    pub life: u32,
    pub actor: Option<Box<dyn Actor>>,
    pub clock: Clock,
    pub out: Effects,
    pub inbox: VecDeque<Item>,
    pub links: BTreeMap<LinkId, (u32, u8)>,
    pub next_link: u64,
    /// Links that its node has not welcomed, the oldest first.
    pub strangers: VecDeque<Stranger>,
    pub disks: Vec<Disk>,
    /// How much longer than usual its frames travel, and operations of its disks take.
    pub slow: (Duration, Duration),
    /// Until then its host refuses dials, also while it runs.
    pub refuses_until: Time,
    pub pending: BTreeMap<u32, PendingDisk>,
    pub next_pending: u32,
    /// So many frames came to it that copy something, or are to, in all its lives.
    pub copies_asked: u32,
    /// So many writes came to it, in all its lives.
    pub writes_asked: u32,
    /// True while a run is in the world's queue.
    pub scheduled: bool,
    pub wake: Option<Time>,
    pub wake_number: u32,
    pub strike: Strike,
    /// Effects that a pause holds back.
    pub held: Vec<Effect>,
    pub prng: Prng,
}

impl Process {
    pub fn new(name: &str, disks: Vec<Disk>, clock: Clock, prng: Prng) -> Process {
        let pool = BufPool::new(8 << 20);
        Process {
            name: name.to_string(),
            slow: (Duration::ZERO, Duration::ZERO),
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
            scheduled: false,
            wake: None,
            wake_number: 0,
            strike: Strike::None,
            held: Vec::new(),
            prng,
        }
    }
}
