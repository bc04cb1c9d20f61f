//! The sessions of block clients: one per link, of NBD ([`nbd`]), iSCSI ([`iscsi`]) or
//! NVMe/TCP ([`nvme`]).
//!
//! Requests go to the client core under the name (link, tag). When a link is down, its session is
//! dropped, and none of its requests is sent again: the client may connect again and repeat the
//! request, or write something else, and an old write must not take effect after that (rule R16). A
//! primary that already has a request may execute it or not. Its answer is ignored.

mod iscsi;
mod lengths;
mod nbd;
mod nvme;
mod past_sessions;
mod reserve;
pub(in crate::sdc) mod seats;
pub(in crate::sdc) mod shut;

use super::counters::Arrival;
use super::{ISCSI, Link, NBD, Origin, Sdc};
use crate::mapview::MapView;
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::time::Duration;
use base::{Limits, LinkId, Map, Time, VolumeId};
use core::net::SocketAddr;
use mdm::mapping::Grant;
use seam::{BlockError, BlockRequest, Buf, Effect, Effects, Note, Port, UnsentLimits};
use target::Action;

pub use iscsi::{Chap, Secret};
pub use lengths::IscsiLengths;
pub use nbd::NbdLengths;
pub use nvme::DhChap;

/// A negotiation waits this long for a fresh map, and then shows the known volumes.
const REFRESH: Duration = Duration::from_millis(500);

/// Most connections. A further one replaces the oldest one without a volume of its protocol, or is
/// refused if there is none.
const CONNECTIONS: usize = 4096;
/// Most connections of one protocol without a volume. A further one replaces the oldest one.
const STRANGERS: usize = 256;

/// Limits on answers that clients have not read.
const UNSENT: UnsentLimits =
    UnsentLimits { link: 1 << 20, all: 1 << 30, patience: Duration::from_secs(5) };

/// Returns the limits on answers that the clients of this port have not read.
pub(super) fn unsent(port: Port) -> Option<UnsentLimits> {
    (port != Port::Ours).then_some(UNSENT)
}

/// Index of the queue of requests that wait for a seat.
const UNSEATED: usize = 2;

/// A request that waits for a place or a seat.
#[derive(Debug)]
struct Waiting {
    link: LinkId,
    tag: u64,
    request: BlockRequest,
    arrival: Arrival,
    since: Time,
    /// How long it may wait in total; zero: without limit.
    within: Duration,
}

/// Takes the requests that `wanted` accepts out of a queue, from position `from` on. The others
/// keep their order.
fn take_from(
    queue: &mut VecDeque<Waiting>,
    from: usize,
    wanted: impl Fn(&Waiting) -> bool,
) -> Vec<Waiting> {
    let (taken, others): (Vec<_>, Vec<_>) = queue.drain(from..).partition(wanted);
    queue.extend(others);
    taken
}

/// The time limit of a session's requests.
#[derive(Clone, Copy)]
struct Patience {
    /// How long a request may take; zero: without limit.
    within: Duration,
    /// True if the time counts from the arrival of the command, which may be earlier.
    of_command: bool,
}

/// The session of one link.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a request over NBD follows no other pointer")]
enum Session {
    Nbd(nbd::Connection),
    Iscsi(Box<iscsi::Connection>),
    Nvme(Box<nvme::Connection>),
}

/// All sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    sessions: Map<LinkId, Session>,
    nbd: nbd::Shares,
    iscsi: iscsi::Hosts,
    nvme: nvme::Hosts,
    /// Links whose negotiation waits for a fresh map.
    refreshing: Vec<LinkId>,
    /// When the first of them has waited long enough. Then all of them are answered.
    pub(super) refresh_by: Option<Time>,
    spare: Vec<Action>,
    /// Pending calls to sessions, which follow from actions of these or other sessions.
    calls: VecDeque<(LinkId, iscsi::Call)>,
    /// Connections without a volume, and the time by which they have to attach one, oldest first:
    /// of NBD, of iSCSI, and of NVMe (links that are not a queue yet).
    strangers: [VecDeque<(LinkId, Time)>; 3],
    /// Requests that wait for a place in the client core: writes in the second queue, all others in
    /// the first. The third one has those whose host has no confirmed seat.
    crowded: [VecDeque<Waiting>; 3],
    /// For each connection with a volume: the volume, and the client's permission.
    permissions: Map<LinkId, (VolumeId, Grant)>,
    /// The hosts' requests to the MDM.
    reserve: reserve::Reservations,
    seats: seats::Seats,
    /// The number of this client as a gateway.
    number: Option<u8>,
    /// No new session begins any more.
    shut: bool,
    /// The map has changed, and the permissions of the connections must be compared with it.
    pub(super) review: bool,
}

impl Sessions {
    /// Creates the list without a connection.
    pub(super) fn new(limits: &Limits) -> Sessions {
        Sessions {
            sessions: Map::default(),
            nbd: nbd::Shares::new(limits),
            iscsi: iscsi::Hosts::default(),
            nvme: nvme::Hosts::default(),
            refreshing: Vec::new(),
            refresh_by: None,
            spare: Vec::new(),
            calls: VecDeque::new(),
            strangers: Default::default(),
            crowded: Default::default(),
            permissions: Map::default(),
            reserve: reserve::Reservations::default(),
            seats: seats::Seats::default(),
            number: None,
            shut: false,
            review: false,
        }
    }

    /// Returns the volumes that are attached, each once.
    pub(super) fn attached(&self) -> BTreeSet<u32> {
        let mut volumes: BTreeSet<u32> =
            self.permissions.values().map(|(volume, _)| volume.0).collect();
        if self.nvme.has_queues() {
            volumes.extend(self.nvme.volumes().map(|volume| volume.0));
        }
        volumes
    }

    fn remove(&mut self, link: LinkId) {
        let host = String::from(self.host(link));
        let mut gone = self.sessions.remove(&link);
        let in_flight = match &mut gone {
            Some(Session::Nbd(nbd)) => {
                self.nbd.left(&nbd.session);
                nbd.session.in_flight()
            }
            Some(Session::Iscsi(iscsi)) => {
                self.iscsi.remove(link, &mut iscsi.session);
                iscsi.session.in_flight()
            }
            Some(Session::Nvme(nvme)) => {
                self.nvme.remove(link, &nvme.session);
                nvme.session.in_flight()
            }
            None => 0,
        };
        // Many connections may end at once, so the queues are only searched if necessary.
        if in_flight > 0 {
            self.crowded.iter_mut().for_each(|queue| queue.retain(|of| of.link != link));
        }
        if self.permissions.remove(&link).is_some() {
            self.share();
        }
        self.seats_left(&host);
        self.strangers.iter_mut().for_each(|list| list.retain(|(of, _)| *of != link));
        self.refreshing.retain(|l| *l != link);
        if self.refreshing.is_empty() {
            self.refresh_by = None;
        }
    }

    /// Admits a connection that is not a stranger any more.
    fn welcome(&mut self, link: LinkId, out: &mut Effects) {
        out.push(Effect::Welcome { link });
        self.strangers.iter_mut().for_each(|list| list.retain(|(of, _)| *of != link));
    }

    /// Returns true if the connection has no volume and no host, so that no heartbeat tells of it.
    fn is_stranger(&self, link: LinkId) -> bool {
        let queue = self.nvme.host_id(link).is_some();
        !queue && !self.permissions.contains_key(&link) && self.host(link).is_empty()
    }

    /// Returns the connections whose volume is gone or may no longer be used, and those for which
    /// `other` is true of the old and the new permission.
    fn over(&self, map: &MapView, other: impl Fn(&Grant, &Grant) -> bool) -> BTreeSet<LinkId> {
        let over = |(link, (id, old)): (&LinkId, &(VolumeId, Grant))| {
            let host = self.host(*link);
            let new = map.volumes.get(id).and_then(|volume| map.host_grant(volume, host));
            new.is_none_or(|new| other(old, &new)).then_some(*link)
        };
        self.permissions.iter().filter_map(over).collect()
    }

    /// Returns the number of outstanding commands of a host.
    pub(super) fn in_flight(&self, link: LinkId) -> usize {
        match self.sessions.get(&link) {
            Some(Session::Nbd(nbd)) => nbd.session.in_flight(),
            Some(Session::Iscsi(iscsi)) => iscsi.session.in_flight(),
            Some(Session::Nvme(nvme)) => nvme.session.in_flight(),
            None => 0,
        }
    }

    /// Returns true while calls to sessions are pending.
    #[inline]
    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty() || self.nvme.has_calls() || self.reserve.has_answers()
    }

    /// Returns true if [`Sdc::targets_work`] has something to do.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let waits = self.seats.waits() || !self.crowded[UNSEATED].is_empty();
        let seats = self.seats.review && waits;
        self.has_calls() || self.has_crowd() || seats
    }

    /// Returns true if there may be a question about seats to send.
    #[inline]
    pub(super) fn has_seat_question(&self) -> bool {
        self.seats.has_question()
    }

    /// Returns true while requests wait for a place.
    #[inline]
    fn has_crowd(&self) -> bool {
        self.crowded[..UNSEATED].iter().any(|queue| !queue.is_empty())
    }

    /// Returns the time at which [`Sdc::targets_tick`] has something to do.
    pub(super) fn wake_at(&self, limits: &Limits) -> Option<Time> {
        let strangers = self.strangers.iter().filter_map(|list| Some(list.front()?.1)).min();
        let ticks = Time::earliest(self.iscsi.tick_at, self.nvme.tick_at);
        let asked = self.reserve.wake_at(limits.target_patience);
        let limited = self.crowded[UNSEATED].iter().filter(|w| !w.within.is_zero());
        let unseated = limited.map(|w| w.since + w.within).min();
        let asked = Time::earliest(
            asked,
            Time::earliest(self.seats.wake_at(limits.target_patience), unseated),
        );
        Time::earliest(Time::earliest(strangers, self.refresh_by), Time::earliest(ticks, asked))
    }
}

impl Sdc {
    /// Accepts a connection. `at` is its local address.
    pub(super) fn target_open(
        &mut self,
        now: Time,
        (link, port, at): (LinkId, Port, Option<SocketAddr>),
        out: &mut Effects,
    ) {
        let list = match port {
            NBD => 0,
            ISCSI => 1,
            _ => 2,
        };
        if port == NBD && self.targets.shut {
            // Hosts are told to come back later. NBD has no such answer.
            self.counters.close(link);
            return out.push(Effect::Close { link });
        }
        let full = self.targets.sessions.len() >= CONNECTIONS;
        if full || self.targets.strangers[list].len() >= STRANGERS {
            // The oldest connection without a volume is closed to make room.
            let why = "too many connections";
            match self.targets.strangers[list].front().copied() {
                Some((oldest, _)) => self.target_close(now, oldest, Some(why), out),
                None => {
                    self.counters.close(link);
                    out.note(Note::Refused { link, why });
                    return out.push(Effect::Close { link });
                }
            }
        }
        let limits = &self.config.limits;
        let (session, patience) = match port {
            NBD => (Session::Nbd(nbd::Connection::new(limits)), nbd::NEGOTIATION),
            ISCSI => {
                let connection = self.targets.iscsi.connect(now, at, limits, out);
                (Session::Iscsi(Box::new(connection)), iscsi::DISCOVERY)
            }
            _ => {
                let at = (at, self.targets.number.unwrap_or(0));
                let connection = self.targets.nvme.connect(now, at, limits, out);
                (Session::Nvme(Box::new(connection)), nvme::CONNECT)
            }
        };
        self.targets.strangers[list].push_back((link, now + patience));
        self.links.insert(link, Link::Target);
        let former = self.targets.sessions.insert(link, session);
        assert!(former.is_none(), "each link has a session of its own");
        self.target_session(now, link, out, |session, _, _, actions| match session {
            Session::Nbd(nbd) => nbd.session.greet(actions),
            Session::Iscsi(_) | Session::Nvme(_) => {} // the host speaks first
        });
    }

    /// Does the work that is due.
    pub(super) fn targets_tick(&mut self, now: Time, out: &mut Effects) {
        for list in 0..self.targets.strangers.len() {
            while let Some((link, until)) = self.targets.strangers[list].front().copied()
                && until <= now
            {
                self.target_close(now, link, Some("no volume was attached in time"), out);
            }
        }
        if self.targets.refresh_by.is_some_and(|at| at <= now) {
            self.targets_refreshed(now, out);
        }
        let (patience, at) = (self.config.limits.target_patience, (now, self.mdm.link()));
        self.targets.reserve_tick(at, patience, out);
        seats::ask(self, now, out);
        self.targets.seats_tick(now, patience);
        self.targets_late(now, out);
        self.targets.iscsi_tick(now);
        self.targets.nvme_tick(now);
    }

    /// Closes a connection. `why`: the reason, if the client is refused.
    fn target_close(
        &mut self,
        now: Time,
        link: LinkId,
        why: Option<&'static str>,
        out: &mut Effects,
    ) {
        if let Some(why) = why {
            out.note(Note::Refused { link, why });
        }
        out.push(Effect::Close { link });
        self.links.remove(&link);
        self.target_gone(now, link, out);
    }

    /// Handles the end of a connection.
    pub(super) fn target_gone(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        if !self.targets.is_stranger(link) {
            self.mdm.heartbeat_soon(now);
        }
        self.targets.remove(link);
        self.targets.reserve_forget((now, self.mdm.link()), (link, None), out);
        self.counters.close(link);
        let gone = |origin| matches!(origin, Origin::Target { link: of, .. } if of == link);
        self.client(now, out, |client, turn| client.forget(gone, turn));
    }

    pub(super) fn target_frame(
        &mut self,
        now: Time,
        link: LinkId,
        head: &[u8],
        body: Buf,
        out: &mut Effects,
    ) {
        self.target_session(now, link, out, |session, view, out, actions| match session {
            Session::Nbd(nbd) => nbd.session.frame(head, body, out.pool(), actions),
            Session::Iscsi(iscsi) => iscsi.session.frame(head, body, view, out.pool(), actions),
            Session::Nvme(nvme) => nvme.session.frame(head, body, view, out.pool(), actions),
        });
    }

    /// Passes a request to the client core. If the core has no place, the request waits here,
    /// because the client would take a refusal for a disk error. It counts as in flight in its
    /// session, so few requests wait. After a change of the map, requests also wait here until the
    /// permissions are reviewed.
    fn target_request(
        &mut self,
        now: Time,
        (link, tag): (LinkId, u64),
        request: BlockRequest,
        patience: Patience,
        out: &Effects,
    ) {
        let (within, volume) = (patience.within, request.volume);
        let session = self.targets.sessions.get_mut(&link);
        let (since, is_seated) =
            session.map(|of| (of.since(tag), of.is_seated(volume))).unwrap_or_default();
        let since = since.unwrap_or(now);
        // Sessions of iSCSI and NVMe divide long writes.
        let first = !patience.of_command || target::is_first(tag);
        let arrival = Arrival::new(now, &request, first);
        let waiting = Waiting { link, tag, request, arrival, since, within };
        if is_seated || self.targets.find_seat(&self.map, link, volume) {
            pass(self, now, waiting, out);
        } else {
            self.targets.crowded[UNSEATED].push_back(waiting);
        }
    }

    /// Makes the pending calls to sessions, and passes on requests that wait for a place.
    pub(super) fn targets_work(&mut self, now: Time, out: &mut Effects) {
        while let Some((link, call)) = self.targets.calls.pop_front() {
            self.target_session(now, link, out, |session, _, out, actions| match session {
                Session::Iscsi(iscsi) => call.make(&mut iscsi.session, now, out.pool(), actions),
                Session::Nbd(_) | Session::Nvme(_) => {}
            });
        }
        while let Some((link, call)) = self.targets.nvme.next_call() {
            if let nvme::Call::End = call {
                self.target_close(now, link, None, out);
                continue;
            }
            self.target_session(now, link, out, |session, view, out, actions| match session {
                Session::Nvme(nvme) => call.make(&mut nvme.session, view, now, (out, actions)),
                Session::Nbd(_) | Session::Iscsi(_) => {}
            });
        }
        reserve::give_answers(self, now, out);
        if self.targets.seats.review {
            seats::admit(self, now, out);
        }
        if self.targets.has_crowd() {
            self.targets_admit(now, out);
        }
    }

    /// Passes on requests that have waited for a place. Requests made under a mapping that has
    /// ended are refused: unmapping is a fence, even if the volume is mapped again before this
    /// client hears of it.
    fn targets_admit(&mut self, now: Time, out: &mut Effects) {
        if self.targets.review {
            end_unmapped(self, now, out);
        }
        for writes in [false, true] {
            while self.client.admits(writes)
                && let Some(waiting) = self.targets.crowded[usize::from(writes)].pop_front()
            {
                let Waiting { link, tag, request, arrival, since, within } = waiting;
                let origin = Origin::Target { link, tag, arrival };
                self.client(now, out, |client, turn| {
                    client.request_of((since, within), origin, request, turn);
                });
            }
        }
    }

    /// Answers requests that have waited too long for a place.
    pub(super) fn targets_late(&mut self, now: Time, out: &mut Effects) {
        let late = |w: &Waiting| !w.within.is_zero() && now.since(w.since) >= w.within;
        if self.targets.crowded.iter().flatten().any(late) {
            self.targets_end(now, late, BlockError::TimedOut, out);
        }
    }

    /// Answers requests that wait for a place with this error. The sessions may make further
    /// requests as a result. These are answered as well if `over` accepts them.
    fn targets_end(
        &mut self,
        now: Time,
        over: impl Fn(&Waiting) -> bool,
        error: BlockError,
        out: &mut Effects,
    ) {
        // Sessions put new requests at the end, so each request is checked once.
        let mut kept = [0; 3];
        loop {
            let mut ended = Vec::new();
            for (queue, kept) in self.targets.crowded.iter_mut().zip(&mut kept) {
                ended.extend(take_from(queue, *kept, &over));
                *kept = queue.len();
            }
            if ended.is_empty() {
                return;
            }
            for Waiting { link, tag, arrival, .. } in ended {
                let origin = Origin::Target { link, tag, arrival };
                self.counters.done(now, &self.map, &origin, false);
                self.target_done(now, link, tag, Err(error), out);
            }
        }
    }

    pub(super) fn target_done(
        &mut self,
        now: Time,
        link: LinkId,
        tag: u64,
        result: Result<Buf, BlockError>,
        out: &mut Effects,
    ) {
        self.target_session(now, link, out, |session, view, out, actions| match session {
            Session::Nbd(nbd) => nbd.session.done(tag, result, out.pool(), actions),
            Session::Iscsi(iscsi) => iscsi.done(tag, result, view.map, (out.pool(), actions)),
            Session::Nvme(nvme) => nvme.session.done(tag, result, out.pool(), actions),
        });
    }

    /// Continues the negotiations that wait for a fresh map, with the current one.
    pub(super) fn targets_refreshed(&mut self, now: Time, out: &mut Effects) {
        self.targets.refresh_by = None;
        if !self.targets.refreshing.is_empty() {
            self.targets.iscsi_measure(&self.client);
        }
        for link in core::mem::take(&mut self.targets.refreshing) {
            self.target_session(now, link, out, |session, view, out, actions| match session {
                Session::Nbd(nbd) => nbd.session.refreshed(view.map, out.pool(), actions),
                Session::Iscsi(iscsi) => iscsi.session.refreshed(view, out.pool(), actions),
                Session::Nvme(_) => {}
            });
        }
    }

    /// Admits a connection that has attached a volume.
    fn target_attached(&mut self, now: Time, link: LinkId, volume: VolumeId, out: &mut Effects) {
        let (id, host) = (volume, self.targets.host(link));
        let volume = self.map.volumes.get(&id);
        let Some(grant) = volume.and_then(|v| self.map.host_grant(v, host)) else { return };
        self.targets.permissions.insert(link, (id, grant));
        self.targets.seats_login(&self.map, link, id);
        let access = self.targets.access(link, &self.map.volumes[&id].reservations);
        self.targets.iscsi_access(link, access);
        self.counters.named(link, self.targets.iscsi.host(link));
        self.counters.attached(link, id);
        self.targets.welcome(link, out);
        self.targets.seats_tell();
        self.targets.share();
        self.mdm.heartbeat_soon(now);
    }

    /// Closes the connections whose client may no longer use the volume, or has another permission
    /// now. A client that connects again learns its new permission. Requests that must be refused
    /// are answered first. An iSCSI host is told instead, where the protocol allows that.
    pub(super) fn targets_review(&mut self, now: Time, out: &mut Effects) {
        end_unmapped(self, now, out); // also those that wait for a seat
        for link in self.targets.over(&self.map, |old, new| !new.continues(old)) {
            if self.targets.iscsi_regrant(link, &self.map) {
                self.mdm.heartbeat_soon(now);
                continue;
            }
            let why = "its volume has another mapping now";
            self.target_close(now, link, Some(why), out);
        }
        self.targets.iscsi_review(&self.map, (&self.config.limits, self.config.format));
        self.targets.nvme_review();
    }

    /// Calls a session, if it still exists, and executes its actions.
    fn target_session(
        &mut self,
        now: Time,
        link: LinkId,
        out: &mut Effects,
        call: impl FnOnce(&mut Session, &iscsi::View<'_>, &mut Effects, &mut Vec<Action>),
    ) {
        let ready = self.is_ready() && self.targets.number.is_some() && !self.targets.shut;
        let targets = &mut self.targets;
        let Some(session) = targets.sessions.get_mut(&link) else { return };
        let mut actions = core::mem::take(&mut targets.spare);
        let view = iscsi::View {
            map: &self.map,
            chap: self.config.chap.as_ref(),
            dhchap: self.config.dhchap.as_ref(),
            format: self.config.format,
            limits: &self.config.limits,
            number: targets.number.unwrap_or(0),
            ready,
            hosts: &targets.iscsi,
            nvme: &targets.nvme,
            seats: &targets.seats,
            link,
            at: session.at(),
        };
        let flying = targets.nbd.begin(session);
        let nvme_bytes = nvme::Hosts::begin(session);
        call(session, &view, out, &mut actions);
        let patience = session.patience(&self.config.limits);
        targets.nbd.end(session, flying);
        targets.nvme.end(session, nvme_bytes);
        let mut is_new_queue = false;
        let attached = match session {
            Session::Nbd(nbd) => nbd.take_attached(),
            Session::Iscsi(iscsi) => iscsi.take_nexus().and_then(|nexus| {
                let volume = nexus.volume;
                targets.iscsi.add(link, nexus);
                volume
            }),
            Session::Nvme(nvme) => {
                is_new_queue = targets.nvme.learn(link, nvme);
                None
            }
        };
        if is_new_queue {
            self.counters.named(link, targets.nvme.host(link));
            targets.welcome(link, out);
            targets.seats_tell();
            self.mdm.heartbeat_soon(now);
        }
        if let Some(volume) = attached {
            targets.iscsi_succeed(link);
            self.target_attached(now, link, volume, out);
        }
        self.target_execute(now, (link, patience), actions, out);
    }

    /// Executes the actions of a session whose requests have this time limit. Calls to other
    /// sessions that follow from them are left to [`Sdc::targets_work`].
    fn target_execute(
        &mut self,
        now: Time,
        (link, patience): (LinkId, Patience),
        mut actions: Vec<Action>,
        out: &mut Effects,
    ) {
        let mut rest = actions.drain(..);
        while let Some(action) = rest.next() {
            match action {
                Action::Send { head, body } => out.send(link, head, body),
                Action::Request { tag, request } => {
                    self.target_request(now, (link, tag), request, patience, out);
                }
                Action::Refresh => {
                    self.targets.refreshing.push(link);
                    self.targets.refresh_by =
                        Time::earliest(self.targets.refresh_by, Some(now + REFRESH));
                    self.mdm.ask();
                }
                Action::Pause => out.push(Effect::Pause { link }),
                Action::Resume => out.push(Effect::Resume { link }),
                Action::Close { why } => self.target_close(now, link, why, out),
                Action::Reframe { mode } => out.push(Effect::Reframe { link, mode }),
                Action::Withdraw { tag } => {
                    let mut tags = Vec::from([tag]);
                    while let [Action::Withdraw { tag }, ..] = rest.as_slice() {
                        tags.push(*tag);
                        rest.next();
                    }
                    self.iscsi_withdraw(now, link, tags, out);
                }
                Action::Reinstate => self.iscsi_reinstate(now, link, out),
                Action::Clear { what } => match self.targets.sessions.get(&link) {
                    Some(Session::Nvme(_)) => self.targets.nvme_clear(link),
                    _ => self.targets.iscsi_clear(link, what),
                },
                Action::Ask { tag, volume, question } => {
                    let at = (now, self.mdm.link());
                    if self.targets.reserve_ask(at, (link, tag, volume), question, out) {
                        self.mdm.ask();
                    }
                }
            }
        }
        drop(rest);
        self.targets.spare = actions;
    }
}

/// Refuses requests that wait under a mapping that has ended.
fn end_unmapped(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    let over = sdc.targets.over(&sdc.map, |old, new| old.since != new.since);
    if !over.is_empty() && !mutant::on(Mutant::KeepPermission) {
        let over = |waiting: &Waiting| over.contains(&waiting.link);
        sdc.targets_end(now, over, BlockError::NoSuchVolume, out);
    }
}

/// Passes a request whose host is seated to the client core, or lets it wait for a place.
fn pass(sdc: &mut Sdc, now: Time, waiting: Waiting, out: &Effects) {
    let writes = waiting.request.kind.brings_data();
    let queue = &mut sdc.targets.crowded[usize::from(writes)];
    let review = sdc.targets.review && !mutant::on(Mutant::KeepPermission);
    if !queue.is_empty() || !sdc.client.admits(writes) || review {
        return queue.push_back(waiting);
    }
    let Waiting { link, tag, request, arrival, since, within } = waiting;
    let origin = Origin::Target { link, tag, arrival };
    sdc.client(now, out, |client, turn| {
        client.request_of((since, within), origin, request, turn);
    });
}

impl Session {
    /// Returns the time limit of its requests.
    fn patience(&self, limits: &Limits) -> Patience {
        let own = limits.answer_within;
        let target = limits.target_patience;
        match self {
            Session::Iscsi(_) | Session::Nvme(_) => {
                let within = if own.is_zero() { target } else { target.min(own) };
                Patience { within, of_command: true }
            }
            Session::Nbd(_) => Patience { within: own, of_command: false },
        }
    }

    /// Returns when the command of a request arrived, if the session knows that.
    #[inline]
    fn since(&self, tag: u64) -> Option<Time> {
        match self {
            Session::Iscsi(iscsi) => iscsi.session.since(tag),
            Session::Nvme(nvme) => nvme.session.since(tag),
            Session::Nbd(_) => None,
        }
    }

    /// Returns the local address of the connection.
    fn at(&self) -> Option<SocketAddr> {
        match self {
            Session::Nbd(_) => None,
            Session::Iscsi(iscsi) => iscsi.at,
            Session::Nvme(nvme) => nvme.at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use seam::BlockKind;

    #[test]
    fn requests_are_taken_from_a_place_on_and_no_other_one_is_looked_at() {
        let waiting = |(link, tag)| {
            let (volume, kind) = (VolumeId(1), BlockKind::Flush);
            let request = BlockRequest { volume, kind, at: 0, len: 0, body: Buf::EMPTY };
            let arrival = Arrival::new(Time(0), &request, true);
            let (link, since, within) = (LinkId(link), Time(0), Duration::ZERO);
            Waiting { link, tag, request, arrival, since, within }
        };
        let mut queue: VecDeque<Waiting> =
            [(1, 1), (2, 2), (1, 3), (2, 4), (3, 5)].map(waiting).into();
        let looked_at = Cell::new(0);
        let second = |waiting: &Waiting| {
            looked_at.set(looked_at.get() + 1);
            waiting.link == LinkId(2)
        };
        let tags = |list: &[Waiting]| list.iter().map(|waiting| waiting.tag).collect::<Vec<_>>();
        assert_eq!(tags(&take_from(&mut queue, 2, second)), [4]);
        assert_eq!((looked_at.get(), tags(queue.make_contiguous())), (3, [1, 2, 3, 5].into()));
        assert!(take_from(&mut queue, 4, second).is_empty() && looked_at.get() == 3);
    }
}
