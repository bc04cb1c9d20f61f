//! The client's side of the protocol: takes block requests, and sends operations to primaries.
//!
//! A request is cut at the borders of units into **operations**. Each goes to the primary of its
//! unit's group, and is sent again, with its number, for as long as it takes (rule R8). Devices are
//! named by id. The owner of a [`Client`] dials them, exchanges the hellos, and fetches maps.
//!
//! Invariants:
//! - Every request is answered exactly once: when nothing of it is outstanding any more, or when
//!   its time limit has passed.
//! - An operation keeps its number (`seq`) until an answer says that nothing of it was done. The
//!   floor that is sent with each operation is never above a number that may still be retried.
//! - **A write is never outstanding twice in one session of a device**: the device could not
//!   distinguish the second one from a retry that arrives after the first was answered. A write
//!   that was given up at a device and may still be executed there (its *ghost*) ends that session
//!   before it is sent there again. The device answers the hello of a new session only after it has
//!   finished or dropped what belongs to the old one (rule R8).
//! - There are at most `Limits::sdc_requests` requests, and three times as many operations. Once
//!   the tables have grown, a request needs no allocation. Writes leave a quarter of the requests
//!   to others.
//! - A write that finds no space is held, for as long as it takes (rule R15).
//! - A request is never sent again once its sender is gone (rule R16), or once it was answered
//!   because it was too late.
//!
//! Overlapping requests are not ordered here: the primary does that.
//!
//! | file | contents |
//! |---|---|
//! | `request` | a request: its checks, its pieces, and their answers |
//! | `op`, `ops` | one operation and its message; all of them, and those that wait |
//! | `device` | a primary: its link, its credit, and its queue |
//! | `outstanding` | the numbers of operations, and of outstanding writes: the floor |
//! | `routes`, `topology` | the primary of each group, and the map that names it |
//! | `route` | where an operation is sent, and when it is sent again |
//! | `hold` | writes for which there is no space |
//! | `orphan` | requests whose caller is gone |
//! | `reply` | what each answer means |

mod device;
mod hold;
mod op;
mod ops;
mod orphan;
mod outstanding;
mod reply;
mod request;
mod route;
mod routes;
mod topology;

use alloc::vec::Vec;
use base::time::Duration;
use base::{DeviceId, IdMap, Incarnation, Limits, MapVersion, SdcId, Slab, Time};
use device::Device;
use hold::Held;
use op::Op;
use ops::Ops;
use outstanding::Numbers;
use request::Request;
use routes::Routes;
use seam::{BlockError, BlockKind, BlockRequest, Buf, BufPool};
pub use topology::{Leader, Topology, Usable};
use wire::message::Io;

/// The inputs of a call, and the list that takes its actions.
#[derive(Debug)]
pub struct Turn<'a, M, T> {
    /// The time.
    pub now: Time,
    /// The newest map.
    pub map: &'a M,
    /// Where buffers come from.
    pub pool: &'a BufPool,
    /// The tasks of the owner, in this order, before the next call about the same device.
    pub out: &'a mut Vec<Action<T>>,
}

/// A task of the owner.
#[derive(Debug)]
pub enum Action<T> {
    /// Send this to a device whose link is up.
    Send {
        /// The device.
        device: DeviceId,
        /// The operation.
        io: Io,
        /// The data of a write.
        body: Buf,
    },
    /// Get a link to this device and keep it from now on. Requested once per device.
    Dial {
        /// The device.
        device: DeviceId,
    },
    /// Close the link to this device and dial again. It counts as down already.
    Hangup {
        /// The device.
        device: DeviceId,
        /// The reason.
        why: Hangup,
    },
    /// There is no space for a part of this write: it waits for as long as it takes. Reported each
    /// time that it is tried.
    Held {
        /// The owner's name for the request.
        origin: T,
    },
    /// Operations wait for a map: get one that is at least as new as this.
    NeedMap {
        /// This version, or a later one.
        version: MapVersion,
    },
    /// A request is answered.
    Done {
        /// The owner's name for the request.
        origin: T,
        /// The data of a read, the bits of extents, or the error.
        result: Result<Buf, BlockError>,
    },
}

/// Why a link is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hangup {
    /// A body arrived damaged.
    BadBody,
    /// An answer does not fit its operation.
    Nonsense,
    /// A write that has to be sent again may still be executed there: only a new session makes that
    /// safe.
    Unanswered,
}

/// The client of one process. `T` is the owner's name for a request.
#[derive(Debug)]
pub struct Client<T> {
    me: Option<(SdcId, Incarnation)>,
    /// A newer process has this client's name.
    superseded: bool,
    transfer: u32,
    /// Most payload bytes outstanding at one device, even if the device grants more credit: this
    /// process's own link queue takes them all at once when they are sent again.
    burst: u32,
    extra: usize,
    stuck_after: Duration,
    /// The time limit of a request whose owner sets none. Zero: none.
    answer_within: Duration,
    requests: Slab<Request<T>>,
    ops: Ops,
    /// Requests that came before the first map. They get the permission of that map, so no fence
    /// stops them. Only simulated programs send requests that early: `libgabion`, NBD sessions and
    /// loads first look up a volume's name in a map.
    early: Vec<u64>,
    devices: IdMap<DeviceId, Device>,
    routes: Routes,
    numbers: Numbers,
    sweep_at: Option<Time>,
    stuck: bool,
    met_loss: bool,
    retried: u32,
    held: Held,
}

impl<T: Copy> Client<T> {
    /// Creates a client that has nothing to do.
    pub fn new(limits: &Limits) -> Client<T> {
        let requests = limits.sdc_requests as usize;
        Client {
            me: None,
            superseded: false,
            transfer: limits.nbd_payload,
            burst: u32::try_from(limits.link_queue / 2).unwrap_or(u32::MAX),
            extra: requests,
            stuck_after: limits.stuck_after,
            answer_within: limits.answer_within,
            requests: Slab::new(requests),
            // A request always gets a first operation. Further operations are started only while
            // there are fewer than `requests` more operations than requests, some of which may have
            // none yet. So at most 2 x `requests` operations are not the first of their request.
            ops: Ops::new(requests * 3),
            early: Vec::new(),
            devices: IdMap::default(),
            routes: Routes::default(),
            numbers: Numbers::default(),
            sweep_at: None,
            stuck: false,
            met_loss: false,
            retried: 0,
            held: Held::new(requests),
        }
    }

    /// Sets the identity that the MDM has given this client. Call it before the first `link_up`,
    /// and never with another identity: outstanding operations would count as another client's.
    pub fn named(&mut self, sdc: SdcId, incarnation: Incarnation) {
        assert!(self.me.is_none_or(|me| me == (sdc, incarnation)), "a client has one identity");
        self.me = Some((sdc, incarnation));
    }

    /// Takes a request. `origin` comes back in its `Done`, which may be among the actions already.
    /// Before the first map, requests wait.
    pub fn request<M: Topology>(
        &mut self,
        origin: T,
        request: BlockRequest,
        turn: &mut Turn<'_, M, T>,
    ) {
        self.request_of((turn.now, self.answer_within), origin, request, turn);
    }

    /// Takes a request that its owner got at `since`. If it has no answer `within` this time, it
    /// ends with [`BlockError::Full`] or [`BlockError::TimedOut`], and nothing of it takes effect
    /// after any later request. Zero: it waits for as long as it takes.
    pub fn request_of<M: Topology>(
        &mut self,
        (since, within): (Time, Duration),
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
        let writes = request.kind.brings_data();
        let key = match self.held.admits(writes) {
            true => {
                let until = if within.is_zero() { Time::NEVER } else { since + within };
                self.requests.insert(Request::new(origin, request, generation, until)).ok()
            }
            false => None,
        };
        let Some(key) = key else {
            return turn.out.push(Action::Done { origin, result: Err(BlockError::Busy) });
        };
        if writes {
            self.held.begins();
        }
        if early {
            self.early.push(key);
            if !within.is_zero() {
                self.look_later(turn.now);
            }
        } else {
            self.proceed(key, turn);
            self.work(turn);
        }
    }

    /// Visits the data of all requests that is kept in memory, with the owner's name for each.
    pub fn visit_data(&self, mut visit: impl FnMut(T, &Buf)) {
        for (_, request) in self.requests.iter() {
            visit(request.origin, &request.request.body);
            visit(request.origin, &request.data);
        }
    }

    /// Returns false if a request of this kind would be answered `Busy` now.
    pub fn admits(&self, writes: bool) -> bool {
        self.held.admits(writes) && !self.requests.is_full()
    }

    /// Handles a device's welcome to a new session, with this credit.
    pub fn link_up<M: Topology>(
        &mut self,
        device: DeviceId,
        ops: u32,
        bytes: u32,
        turn: &mut Turn<'_, M, T>,
    ) {
        assert!(self.me.is_some(), "a link needs an identity");
        let bytes = bytes.min(self.burst);
        self.devices.get_or_insert_with(device, Device::default).link_up(ops, bytes);
        self.pump(device, turn);
        self.work(turn);
    }

    /// Handles a link that is down, or a dial that failed. Operations that were outstanding there
    /// are sent again when the device is back, or to another device when a map says so.
    pub fn link_down<M: Topology>(&mut self, device: DeviceId, turn: &mut Turn<'_, M, T>) {
        self.session_over(device, turn);
        self.work(turn);
    }

    /// Takes a newer map, which is `turn.map`.
    pub fn map_changed<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        self.routes.take_map(turn.map);
        self.devices.values_mut().for_each(Device::clear_queue);
        self.ops.end_waits();
        for key in self.ops.keys(|_| true) {
            self.review(key, turn);
        }
        self.work(turn);
        for key in core::mem::take(&mut self.early) {
            self.start_early(key, turn);
        }
        self.work(turn);
    }

    /// Does what is due. Call it at `wake_at`.
    pub fn tick<M: Topology>(&mut self, turn: &mut Turn<'_, M, T>) {
        if self.ops.due().is_some_and(|due| due <= turn.now) {
            self.ops.release_due(turn.now);
        }
        if self.sweep_at.is_some_and(|at| at <= turn.now) {
            self.sweep(turn);
        }
        self.work(turn);
    }

    /// Returns when `tick` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        Time::earliest(self.ops.due(), self.sweep_at)
    }

    /// Returns true while an operation has been waiting for longer than `Limits::stuck_after`.
    /// Checked in `tick`, so it may be late by half of that.
    pub fn is_stuck(&self) -> bool {
        self.stuck && !self.ops.is_empty()
    }

    /// Returns true if an operation ended because the data of its group is lost, at any time.
    pub fn has_met_loss(&self) -> bool {
        self.met_loss
    }

    /// Returns the number of operations that are held because there is no space for them.
    pub fn held(&self) -> u32 {
        self.held.ops()
    }

    /// Returns the number of requests that are not answered yet.
    pub fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Iterates over the owner's names of the requests that are not answered yet.
    pub fn origins(&self) -> impl Iterator<Item = T> {
        self.requests.iter().filter(|(_, request)| !request.answered).map(|(_, r)| r.origin)
    }

    /// Returns the number of requests that write data and are not answered yet.
    pub fn writes(&self) -> usize {
        self.held.writes() as usize
    }

    /// Returns the number of operations of all requests.
    pub fn ops(&self) -> usize {
        self.ops.len()
    }

    /// Returns how many operations were sent again since the last call.
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
}
