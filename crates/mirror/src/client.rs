//! The client's side of the protocol: block requests in, operations to primaries out.
//!
//! A request is cut at the borders of units into **operations**; each goes to the primary of its
//! unit's group, and is sent again, with its number, for as long as it takes (rule R8). Devices are
//! named by id: what a link is, how it is dialled and greeted, is the owner's business, and so is
//! where maps come from.
//!
//! Invariants:
//! - Every request is answered exactly once, when nothing of it is outstanding any more.
//! - An operation keeps its number (`seq`) until an answer says that nothing of it was done. The floor
//!   that is sent with each operation is never above a number that may still be retried.
//! - **A write is never outstanding twice in one session of a device**: the device couldn't tell the
//!   second from a retry that comes after the first was answered. A write that was given up where it
//!   may still be alive (its *ghost*) ends that session before it goes there again; the device answers
//!   a new session's hello only after what was of the old one (rule R8).
//! - At most `Limits::sdc_requests` requests, and three times as many operations; no allocation per
//!   request once the tables have grown. Writes leave a quarter of the requests to others.
//! - A write that finds no space is held, for as long as it takes.
//! - What was asked for somebody who is gone is never sent again (rule R16), nor what was answered as too late.
//!
//! Overlapping requests are not ordered here: the primary does that.
//!
//! | file | what |
//! |---|---|
//! | `request` | checking, splitting, gathering the parts |
//! | `op` | one operation, and its header |
//! | `device` | a primary's credit, and who waits for it |
//! | `outstanding` | which numbers are out: the floor |
//! | `route` | where an operation goes, and when again |
//! | `hold` | writes for which there is no space |
//! | `orphan` | what was asked for somebody who is gone |
//! | `reply` | what each answer means |

mod device;
mod hold;
mod op;
mod orphan;
mod outstanding;
mod reply;
mod request;
mod route;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::time::Duration;
use base::{
    DeviceId, Epoch, GroupId, IdMap, Incarnation, Limits, Map, MapVersion, SdcId, Slab, Time,
};
use base::{UnitKey, VolumeId};
use device::Device;
use hold::Held;
pub use hold::PART_DONE;
use op::Op;
use outstanding::Outstanding;
use request::Request;
use seam::{BlockError, BlockKind, BlockRequest, Buf, BufPool};
use wire::Header;

/// What the client wants to know of the cluster map.
pub trait Topology {
    /// The map's version; 0 when there is none yet.
    fn version(&self) -> MapVersion;
    /// A volume that exists, and that this client may use.
    fn volume(&self, id: VolumeId) -> Option<Usable>;
    /// The group of a unit of a volume that exists.
    fn group_of(&self, unit: UnitKey) -> Option<GroupId>;
    /// Who serves a group.
    fn leader(&self, group: GroupId) -> Leader;
}

/// A volume, as a client may use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usable {
    /// Its size in bytes.
    pub size: u64,
    /// The number of the client's leave to use it: I/O of an earlier one is over.
    pub generation: u32,
    /// It may write.
    pub writable: bool,
}

/// Who serves a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leader {
    /// This device, in this epoch.
    At(DeviceId, Epoch),
    /// Nobody for now.
    Nobody,
    /// Nobody ever again: every copy is lost (rule R10).
    Lost,
}

/// What one call may look at, and where it puts what is to be done.
#[derive(Debug)]
pub struct Turn<'a, M, T> {
    /// The time.
    pub now: Time,
    /// The newest map.
    pub map: &'a M,
    /// Where buffers come from.
    pub pool: &'a BufPool,
    /// To be done by the owner, in this order, before the next call about the same device.
    pub out: &'a mut Vec<Action<T>>,
}

/// What the owner is to do.
#[derive(Debug)]
pub enum Action<T> {
    /// Send this to a device that is up.
    Send {
        /// Which.
        device: DeviceId,
        /// Complete but for length and checksums.
        header: Header,
        /// The data of a write.
        body: Buf,
    },
    /// Get a link to this device and keep it from now on. Asked for once per device.
    Dial {
        /// Which.
        device: DeviceId,
    },
    /// Close the link to this device, and dial again. It counts as down already.
    Hangup {
        /// Which.
        device: DeviceId,
        /// What is wrong with it.
        why: Hangup,
    },
    /// There is no space for a part of this write: it waits, for as long as it takes. Told each time that it is tried.
    Held {
        /// Whose it is.
        origin: T,
    },
    /// Operations wait for a map: get one that is at least as new as this.
    NeedMap {
        /// This version, or a later one.
        version: MapVersion,
    },
    /// A request is answered.
    Done {
        /// Whose it was.
        origin: T,
        /// The data of a read, the bits of extents, or why not.
        result: Result<Buf, BlockError>,
    },
}

/// Why a link is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hangup {
    /// A body arrived damaged.
    BadBody,
    /// An answer that does not fit what was asked.
    Nonsense,
    /// A write may be alive there that has to be asked again: only a new session makes that safe.
    Unanswered,
}

/// A primary that has named itself, until a map confirms it or knows better.
#[derive(Clone, Copy, Debug)]
struct Hint {
    device: DeviceId,
    epoch: Epoch,
    map: MapVersion,
}

/// The client of one process. `T` is the owner's name for a request.
#[derive(Debug)]
pub struct Client<T> {
    me: Option<(SdcId, Incarnation)>,
    /// Somebody newer has our name.
    superseded: bool,
    transfer: u32,
    extra: usize,
    stuck_after: Duration,
    /// Zero: a request may take for ever.
    answer_within: Duration,
    requests: Slab<Request<T>>,
    ops: Slab<Op>,
    /// Requests that came before the first map.
    early: Vec<u64>,
    devices: IdMap<DeviceId, Device>,
    hints: Map<GroupId, Hint>,
    /// The number that was given out last.
    seq: u64,
    /// By group: one that is down must not hold back the floor of the others.
    outstanding: IdMap<GroupId, Outstanding>,
    /// Operations that want a place to go. Empty between calls.
    loose: VecDeque<u64>,
    /// Operations that wait for a time or a map.
    waiting: Vec<u64>,
    /// The earliest of those times.
    due: Option<Time>,
    sweep_at: Option<Time>,
    stuck: bool,
    retried: u32,
    held: Held,
}

impl<T: Copy> Client<T> {
    /// A client that has nothing to do.
    pub fn new(limits: &Limits) -> Client<T> {
        let requests = limits.sdc_requests as usize;
        Client {
            me: None,
            superseded: false,
            transfer: limits.nbd_payload,
            extra: requests,
            stuck_after: limits.stuck_after,
            answer_within: limits.answer_within,
            requests: Slab::new(requests),
            // A request always gets a first operation. One beyond the first is started only while
            // there are fewer than `requests` more operations than requests, some of which may not
            // have any yet: so at most 2 x `requests` are not the first of their request.
            ops: Slab::new(requests * 3),
            early: Vec::new(),
            devices: IdMap::default(),
            hints: Map::default(),
            seq: 0,
            outstanding: IdMap::default(),
            loose: VecDeque::new(),
            waiting: Vec::new(),
            due: None,
            sweep_at: None,
            stuck: false,
            retried: 0,
            held: Held::new(requests),
        }
    }

    /// The MDM has said who we are. To be called before the first `link_up`, and never with another
    /// name: what is outstanding would be another client's.
    pub fn named(&mut self, sdc: SdcId, incarnation: Incarnation) {
        assert!(self.me.is_none_or(|me| me == (sdc, incarnation)), "a client has one identity");
        self.me = Some((sdc, incarnation));
    }

    /// Takes a request; `origin` comes back in its `Done`, which may be among the actions already.
    /// Before the first map, requests wait.
    pub fn request<M: Topology>(
        &mut self,
        origin: T,
        request: BlockRequest,
        turn: &mut Turn<'_, M, T>,
    ) {
        self.request_of(turn.now, origin, request, turn);
    }

    /// Takes a request that its owner got at this time.
    pub fn request_of<M: Topology>(
        &mut self,
        since: Time,
        origin: T,
        request: BlockRequest,
        turn: &mut Turn<'_, M, T>,
    ) {
        if self.superseded {
            let result = Err(BlockError::Superseded);
            return turn.out.push(Action::Done { origin, result });
        }
        let early = turn.map.version() == MapVersion(0);
        let verdict = request::check(&request, self.transfer).and_then(|()| match early {
            true => Ok(0),
            false => request::place(&request, turn.map),
        });
        let generation = match verdict {
            Ok(generation) => generation,
            Err(error) => return turn.out.push(Action::Done { origin, result: Err(error) }),
        };
        if !early && (request.kind == BlockKind::Flush || request.len == 0) {
            return turn.out.push(Action::Done { origin, result: Ok(Buf::EMPTY) });
        }
        let writes = request.kind == BlockKind::Write;
        let key = match self.held.admits(writes) {
            true => self.requests.insert(Request::new(origin, request, generation, since)).ok(),
            false => None,
        };
        let Some(key) = key else {
            return turn.out.push(Action::Done { origin, result: Err(BlockError::Busy) });
        };
        self.held.writes += u32::from(writes);
        if early {
            self.early.push(key);
            if !self.answer_within.is_zero() {
                self.look_later(turn.now);
            }
        } else {
            self.proceed(key, turn);
            self.work(turn);
        }
    }

    /// False when a request of this kind would be answered `Busy` now.
    pub fn admits(&self, writes: bool) -> bool {
        self.held.admits(writes) && !self.requests.is_full()
    }

    /// A device welcomed us in a new session, with this credit.
    pub fn link_up<M: Topology>(
        &mut self,
        device: DeviceId,
        ops: u32,
        bytes: u32,
        turn: &mut Turn<'_, M, T>,
    ) {
        assert!(self.me.is_some(), "a link needs an identity");
        self.devices.get_or_insert_with(device, Device::default).link_up(ops, bytes);
        self.pump(device, turn);
        self.work(turn);
    }

    /// There is no link to the device (any more), or a dial failed. What was outstanding there is
    /// sent again when it is back, or elsewhere when a map says so.
    pub fn link_down<M: Topology>(&mut self, device: DeviceId, turn: &mut Turn<'_, M, T>) {
        self.session_over(device, turn);
        self.work(turn);
    }

    /// `turn.map` is newer than in the last call.
    pub fn map_changed<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        let version = turn.map.version();
        self.hints.retain(|group, hint| {
            let newer =
                matches!(turn.map.leader(*group), Leader::At(_, epoch) if epoch >= hint.epoch);
            hint.map > version && !newer
        });
        for device in self.devices.values_mut() {
            device.queue.clear();
        }
        self.waiting.clear();
        self.due = None;
        for key in self.keys(|_| true) {
            self.review(key, turn);
        }
        self.work(turn);
        for key in core::mem::take(&mut self.early) {
            self.start_early(key, turn);
        }
        self.work(turn);
    }

    /// Time has come to `wake_at`.
    pub fn tick<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        if self.due.is_some_and(|due| due <= turn.now) {
            self.release_due(turn.now);
        }
        if self.sweep_at.is_some_and(|at| at <= turn.now) {
            self.sweep(turn);
        }
        self.work(turn);
    }

    /// When `tick` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        Time::earliest(self.due, self.sweep_at)
    }

    /// True while an operation has been waiting for longer than `Limits::stuck_after`. Looked at in
    /// `tick`, so it may be late by half as much again.
    pub fn is_stuck(&self) -> bool {
        self.stuck && !self.ops.is_empty()
    }

    /// Operations that are held because there is no space for what they write.
    pub fn held(&self) -> u32 {
        self.held.ops
    }

    /// Requests that are not answered yet.
    pub fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of requests that write data and are not answered yet.
    pub fn writes(&self) -> usize {
        self.held.writes as usize
    }

    /// Returns the number of operations of all requests.
    pub fn ops(&self) -> usize {
        self.ops.len()
    }

    /// How many operations were sent again since the last call.
    pub fn take_retried(&mut self) -> u32 {
        core::mem::take(&mut self.retried)
    }

    /// Checks a request that came before the first map, and starts it.
    fn start_early<M: Topology>(&mut self, key: u64, turn: &mut Turn<'_, M, T>) {
        let Some(request) = self.requests.get_mut(key) else { return };
        if let Err(error) = request.take_place(turn.map) {
            request.error = Some(error);
        }
        self.proceed(key, turn);
    }

    /// The operations that `wanted` picks: those that were sent first come first.
    fn keys(&self, wanted: impl Fn(&Op) -> bool) -> Vec<u64> {
        let rank = |op: &Op| (op.seq == 0, op.seq, op.since, op.offset);
        let mut found: Vec<_> = self.ops.iter().filter(|(_, op)| wanted(op)).collect();
        found.sort_by_key(|(_, op)| rank(op));
        found.into_iter().map(|(key, _)| key).collect()
    }
}
