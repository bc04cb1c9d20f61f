//! NVMe/TCP connections: the subsystem that hosts see, the links of each controller, and the end of
//! commands when a mapping changes.
//!
//! The cluster is one subsystem, and each volume that is mapped to this SDC is a namespace, whose
//! id is that of the volume. A link is an admin queue with its controller, or an I/O queue.
//!
//! Invariants:
//! - I/O queues end with the link of their admin queue, and when their controller is reset.
//! - A command is executed under the mapping under which it arrived, or not at all. A change of a
//!   mapping ends the commands under way of all hosts, and hosts repeat the commands that are still
//!   allowed.

use super::iscsi::View;
use super::seats::has_left;
use super::{Session, Sessions, Waiting};
use crate::mapview::{MapView, Volume};
use crate::sdc::{Origin, Sdc};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::time::Duration;
use base::{ClusterId, Limits, LinkId, Map, Time, VolumeId};
use core::net::SocketAddr;
use core::ops::Bound;
use mdm::mapping::{Grant, Permissions};
use seam::{BlockError, Effects};
use target::nvme::{Controller, Key, Keys, Namespace, Opening, Path, Portal, Seed, Subsystem};
use target::reserve::Identity;
use target::{Action, ident};
use wire::control::Access;

/// A link that has not become a queue is closed after this time.
pub(super) const CONNECT: Duration = Duration::from_secs(60);
/// Interval of the sessions' ticks.
const TICK: Duration = Duration::from_secs(1);
/// Ids of controllers per gateway.
const CONTROLLERS: u16 = 512;

/// The keys of NVMe hosts (DH-HMAC-CHAP).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DhChap {
    /// The key of hosts that are not in `hosts`. If `None`, they can't connect.
    pub host: Option<Key>,
    /// The keys of single hosts, by their names.
    pub hosts: BTreeMap<String, Key>,
    /// The key of the subsystem, for hosts that ask it to authenticate.
    pub own: Option<Key>,
}

impl DhChap {
    /// Returns the key of this host.
    fn of(&self, host: &str) -> Option<&Key> {
        self.hosts.get(host).or(self.host.as_ref())
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: target::nvme::Session,
    /// The local address of the connection.
    pub(super) at: Option<SocketAddr>,
    /// The volumes for which the host is known to have a confirmed seat.
    pub(super) seated: Vec<VolumeId>,
    /// The link is a queue, and the owner has recorded that.
    is_queue: bool,
}

/// A call to a session, or its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    /// A tick.
    Tick,
    /// Namespaces may have changed.
    Review,
    /// The I/O queues of the controller have ended.
    Cleared,
    /// The controller of this I/O queue has ended, or was reset.
    End,
}

impl Call {
    /// Makes the call.
    pub(super) fn make(
        self,
        session: &mut target::nvme::Session,
        view: &View<'_>,
        now: Time,
        (out, actions): (&Effects, &mut Vec<Action>),
    ) {
        match self {
            Call::Tick => session.tick(now, out.pool(), actions),
            Call::Review => session.review(view, out.pool(), actions),
            Call::Cleared => session.others_cleared(),
            Call::End => {} // the owner closes the link
        }
    }
}

/// An I/O queue.
#[derive(Clone, Copy, Debug)]
struct IoQueue {
    /// The controller, and the queue.
    id: (u16, u16),
    /// The identifier of its host.
    host: [u8; 16],
}

/// The hosts that are connected.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// The controllers, by the links of their admin queues.
    controllers: Map<LinkId, Controller>,
    /// The I/O queues.
    queues: Map<LinkId, IoQueue>,
    /// The newest controller's id, without the gateway's part; 0 if there was none.
    newest: u16,
    /// Bytes in flight of all queues.
    bytes: u64,
    /// The time of the sessions' next tick; `None` without sessions.
    pub(super) tick_at: Option<Time>,
    /// The permission of hosts for each volume, at the last review.
    grants: BTreeMap<VolumeId, Grant>,
    calls: VecDeque<(LinkId, Call)>,
}

impl Hosts {
    /// Creates the session of a connection that was just accepted.
    pub(super) fn connect(
        &mut self,
        now: Time,
        (at, gateway): (Option<SocketAddr>, u8),
        limits: &Limits,
        out: &mut Effects,
    ) -> Connection {
        if self.newest == 0 {
            // Hosts may still use the ids of controllers of an earlier process.
            self.newest = out.prng().below(u64::from(CONTROLLERS)) as u16;
        }
        self.tick_at.get_or_insert(now + TICK);
        let mut seed = [0; 32];
        out.secret(&mut seed);
        let opening = Opening { cntlid: self.next_cntlid(gateway), seed: Seed(seed) };
        let session = target::nvme::Session::new(limits, opening);
        Connection { session, at, seated: Vec::new(), is_queue: false }
    }

    /// Returns the next free controller id. If none is free, returns a used one: no host can
    /// connect then.
    fn next_cntlid(&mut self, gateway: u8) -> u16 {
        let id = |newest: u16| u16::from(gateway) * CONTROLLERS + newest;
        for _ in 1..CONTROLLERS {
            self.newest = self.newest % (CONTROLLERS - 1) + 1;
            let next = id(self.newest);
            if self.controllers.values().all(|controller| controller.cntlid != next) {
                break;
            }
        }
        id(self.newest)
    }

    /// Removes a session that has ended. The I/O queues of its controller must end, too.
    pub(super) fn remove(&mut self, link: LinkId, session: &target::nvme::Session) {
        assert!(self.bytes >= bytes(session), "the sum has the bytes of each session");
        self.bytes -= bytes(session);
        self.queues.remove(&link);
        if let Some(controller) = self.controllers.remove(&link)
            && !mutant::on(Mutant::QueuesLive)
        {
            self.end_queues(controller.cntlid);
        }
    }

    /// Marks the I/O queues of a controller, which must end.
    fn end_queues(&mut self, cntlid: u16) {
        let of = self.queues.iter().filter(|(_, queue)| queue.id.0 == cntlid);
        let mut links: Vec<LinkId> = of.map(|(link, _)| *link).collect();
        links.sort_unstable();
        self.calls.extend(links.into_iter().map(|link| (link, Call::End)));
    }

    /// Returns true while calls are pending.
    #[inline]
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Takes the next pending call. No queue is ended twice.
    pub(super) fn next_call(&mut self) -> Option<(LinkId, Call)> {
        loop {
            let (link, call) = self.calls.pop_front()?;
            let over = matches!(call, Call::End) && !self.queues.contains_key(&link);
            if !over {
                return Some((link, call));
            }
        }
    }

    /// Returns the bytes in flight of a session that is about to be called.
    #[inline]
    pub(super) fn begin(session: &Session) -> u64 {
        if let Session::Nvme(nvme) = session { bytes(&nvme.session) } else { 0 }
    }

    /// Updates the total from a session's bytes `before` the call and now.
    #[inline]
    pub(super) fn end(&mut self, session: &Session, before: u64) {
        self.bytes = self.bytes - before + Hosts::begin(session);
    }

    /// Records the queue that the link has become. Returns true if that has just happened.
    pub(super) fn learn(&mut self, link: LinkId, nvme: &mut Connection) -> bool {
        if let Some(controller) = nvme.session.controller() {
            if self.controllers.get(&link) != Some(controller) {
                self.controllers.insert(link, controller.clone());
            }
        } else if nvme.is_queue {
            return false;
        } else if let Some(id) = nvme.session.io_queue() {
            // The session has found this controller a moment ago.
            let host = self.find(id.0).map_or([0; 16], |controller| controller.host_id);
            self.queues.insert(link, IoQueue { id, host });
        } else {
            return false;
        }
        !core::mem::replace(&mut nvme.is_queue, true)
    }

    /// Returns the controller with this id.
    fn find(&self, cntlid: u16) -> Option<&Controller> {
        self.controllers.values().find(|controller| controller.cntlid == cntlid)
    }

    /// Returns the name of the host of this queue; empty if the link is not a queue.
    pub(super) fn host(&self, link: LinkId) -> &str {
        let of_queue = |queue: &IoQueue| self.find(queue.id.0);
        let controller = self.controllers.get(&link);
        let controller = controller.or_else(|| self.queues.get(&link).and_then(of_queue));
        controller.map_or("", |controller| &controller.host)
    }

    /// Returns the identifier of the host of this queue.
    pub(super) fn host_id(&self, link: LinkId) -> Option<[u8; 16]> {
        let of_controller = || self.controllers.get(&link).map(|controller| controller.host_id);
        self.queues.get(&link).map(|queue| queue.host).or_else(of_controller)
    }

    /// Returns the links of the I/O queues.
    pub(super) fn queue_links(&self) -> impl Iterator<Item = LinkId> {
        self.queues.keys().copied()
    }

    /// Returns true if hosts have I/O queues.
    pub(super) fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Returns the volumes that hosts may use.
    pub(super) fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.grants.keys().copied()
    }
}

/// Returns the bytes that a session has in flight.
fn bytes(session: &target::nvme::Session) -> u64 {
    let (asked, read) = session.bytes();
    asked + read
}

impl View<'_> {
    /// Returns the properties of a volume for the host of this link, if it is mapped to this client
    /// and the host.
    fn properties(&self, id: VolumeId, volume: &Volume) -> Option<Namespace> {
        let host = self.nvme.host(self.link);
        let read_only = self.map.host_grant(volume, host)?.access == Access::ReadOnly;
        let table = &volume.reservations;
        let id_of_host = table.reserved.and_then(|_| self.nvme.host_id(self.link));
        let access = match id_of_host {
            Some(host) => table.access(&Identity::Nvme { host }),
            None => table.access_of_strangers(),
        };
        let path = match has_left(self.map, volume, host) {
            true => Path::Inaccessible,
            false => Path::Optimized,
        };
        let size = volume.size;
        Some(Namespace { volume: id, size, read_only, access, path })
    }
}

impl Subsystem for View<'_> {
    fn cluster(&self) -> ClusterId {
        self.map.cluster
    }

    fn version(&self) -> u64 {
        self.map.gateways_at.0
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let id = VolumeId(nsid);
        self.properties(id, self.map.volumes.get(&id)?)
    }

    fn next(&self, after: u32) -> Option<Namespace> {
        let above = (Bound::Excluded(VolumeId(after)), Bound::Unbounded);
        let mut volumes = self.map.volumes.range(above);
        volumes.find_map(|(id, volume)| self.properties(*id, volume))
    }

    fn portals(&self, visit: &mut dyn FnMut(Portal)) {
        if let Some(address) = self.at {
            visit(Portal { address, port: ident::port(self.number) });
        }
        for gateway in self.map.others() {
            let port = ident::port(gateway.number);
            gateway.nvme.iter().for_each(|at| visit(Portal { address: *at, port }));
        }
    }

    fn admits(&self, host: &str, _: &[u8; 16]) -> bool {
        self.dhchap.is_none_or(|dhchap| dhchap.of(host).is_some())
    }

    fn keys(&self, host: &str) -> Option<Keys<'_>> {
        let dhchap = self.dhchap?;
        Some(Keys { host: dhchap.of(host)?, own: dhchap.own.as_ref() })
    }

    fn is_busy(&self) -> bool {
        let hosts = self.nvme;
        let full = hosts.controllers.len() >= usize::from(CONTROLLERS) - 1;
        !self.ready || hosts.bytes >= self.limits.target_bytes || full
    }

    fn controller(&self, cntlid: u16) -> Option<&Controller> {
        self.nvme.find(cntlid)
    }

    fn has_queue(&self, cntlid: u16, qid: u16) -> bool {
        self.nvme.queues.values().any(|queue| queue.id == (cntlid, qid))
    }
}

impl Sessions {
    /// Calls the tick of all sessions.
    pub(super) fn nvme_tick(&mut self, now: Time) {
        if self.nvme.tick_at.is_none_or(|at| now < at) {
            return;
        }
        let links = self.nvme_links();
        self.nvme.tick_at = (!links.is_empty()).then_some(now + TICK);
        self.nvme.calls.extend(links.into_iter().map(|link| (link, Call::Tick)));
    }

    /// Returns the links of NVMe sessions, in the order of their ids.
    pub(super) fn nvme_links(&self) -> Vec<LinkId> {
        let nvme = self.sessions.iter().filter(|(_, s)| matches!(s, Session::Nvme(_)));
        let mut links: Vec<LinkId> = nvme.map(|(link, _)| *link).collect();
        links.sort_unstable();
        links
    }

    /// Tells hosts about namespaces that have changed.
    pub(super) fn nvme_review(&mut self) {
        let controllers = &self.nvme.controllers;
        let mut links: Vec<LinkId> = controllers.keys().copied().collect();
        links.sort_unstable();
        let calls = links.into_iter().map(|link| (link, Call::Review));
        self.nvme.calls.extend(calls);
    }

    /// Ends the I/O queues of an admin queue's controller. When the admin queue's session is told,
    /// their commands can't take effect any more.
    pub(super) fn nvme_clear(&mut self, link: LinkId) {
        if let Some(cntlid) = self.nvme.controllers.get(&link).map(|of| of.cntlid) {
            self.nvme.end_queues(cntlid);
        }
        self.nvme.calls.push_back((link, Call::Cleared));
    }
}

impl Sdc {
    /// Ends commands whose mapping, under which they arrived, has ended. Unmapping is a fence, even
    /// if the volume is mapped again before this client hears of it. Called when the map has
    /// changed, before the client core gets the new map: so these commands already have their
    /// status when the core ends their requests. `hosts`: volumes with other permissions of hosts,
    /// each with the permissions before.
    pub(in crate::sdc) fn nvme_fence(
        &mut self,
        now: Time,
        hosts: &[(VolumeId, Permissions<String>)],
        out: &mut Effects,
    ) {
        let map = &self.map;
        let grant = |(id, volume)| Some((id, map.my_grant(volume)?));
        let now_granted: BTreeMap<VolumeId, Grant> =
            map.volumes.iter().map(|(id, volume)| (*id, volume)).filter_map(grant).collect();
        let since = |grant: Option<&Grant>| grant.map(|grant| grant.since);
        let before = core::mem::replace(&mut self.targets.nvme.grants, now_granted);
        let grants = &self.targets.nvme.grants;
        let over = before.iter().filter(|(id, grant)| since(Some(grant)) != since(grants.get(id)));
        let over: Vec<VolumeId> = over.map(|(id, _)| *id).collect();
        if over.is_empty() && hosts.is_empty() || !self.targets.nvme.has_queues() {
            return;
        }
        let ended: BTreeMap<LinkId, Vec<VolumeId>> = self
            .targets
            .nvme_links()
            .into_iter()
            .map(|link| {
                let lost = lost_by(&self.map, self.targets.nvme.host(link), hosts);
                (link, over.iter().copied().chain(lost).collect())
            })
            .collect();
        for (link, volumes) in &ended {
            self.target_session(now, *link, out, |session, view, out, actions| {
                let Session::Nvme(nvme) = session else { return };
                for id in volumes {
                    let there = view.namespace(id.0).is_some();
                    nvme.session.fenced(*id, there, out.pool(), actions);
                }
            });
        }
        // Sessions make no more requests for commands that have ended.
        let targets = &mut self.targets;
        let is_ended = |w: &Waiting| {
            ended.get(&w.link).is_some_and(|volumes| volumes.contains(&w.request.volume))
        };
        let mut refused = Vec::new();
        for queue in &mut targets.crowded {
            let (taken, kept): (VecDeque<_>, _) = queue.drain(..).partition(&is_ended);
            *queue = kept;
            refused.extend(taken);
        }
        for Waiting { link, tag, arrival, .. } in refused {
            let origin = Origin::Target { link, tag, arrival };
            self.counters.done(now, &self.map, &origin, false);
            self.target_done(now, link, tag, Err(BlockError::NoSuchVolume), out);
        }
    }
}

/// Returns those of these volumes for which a host has another permission now than before.
fn lost_by<'a>(
    map: &'a MapView,
    host: &'a str,
    before: &'a [(VolumeId, Permissions<String>)],
) -> impl Iterator<Item = VolumeId> + 'a {
    let since = |hosts: &Permissions<String>| hosts.get(host).map(|grant| grant.since);
    let other = move |(id, before): &&(VolumeId, Permissions<String>)| {
        let now = map.volumes.get(id).map(|volume| volume.mapping.hosts());
        now.and_then(since) != since(before)
    };
    before.iter().filter(other).map(|(id, _)| *id)
}
