//! The NBD sessions of an SDC: one per link.
//!
//! Requests go to the client core under the name (link, tag). When a link is down, its session is
//! dropped, and none of its requests is sent again: the client will connect and repeat a request,
//! or write something else, and an old write must not come after that (rule R16). A primary that
//! has a request already may execute it or not. Its answer is ignored.

use super::{Link, Origin, Sdc};
use crate::mapview::MapView;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::time::Duration;
use base::{Limits, LinkId, Map, Time, VolumeId};
use mdm::mapping::Grant;
use seam::{BlockError, BlockKind, BlockRequest, Buf, Effect, Effects, Note, UnsentLimits};
use target::Action;
use target::nbd::Session;

/// A negotiation waits this long for a fresh map, and then shows the volumes that are known.
const REFRESH: Duration = Duration::from_millis(500);

/// A connection has to attach a volume within this time.
const NEGOTIATION: Duration = Duration::from_secs(5);
/// Limit of all connections. One more replaces the oldest one without a volume, or is refused if
/// there is none.
const CONNECTIONS: usize = 4096;
/// Limit of the connections without a volume. One more replaces the oldest one.
const STRANGERS: usize = 256;

/// Limits on answers that clients have not read.
pub(super) const UNSENT: UnsentLimits =
    UnsentLimits { link: 1 << 20, all: 1 << 30, patience: Duration::from_secs(5) };

/// A request for which there is no place yet: its connection, its tag, and the start of the wait.
type Waiting = (LinkId, u64, BlockRequest, Time);

/// All NBD sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    sessions: Map<LinkId, Session>,
    /// Bytes of requests in flight that do not wait for space, of all connections together, and
    /// their limit.
    flying: u64,
    most: u64,
    /// Links whose negotiation waits for a fresh map.
    refreshing: Vec<LinkId>,
    /// When the first of them has waited long enough. Then all of them are answered.
    pub(super) refresh_by: Option<Time>,
    spare: Vec<Action>,
    /// Connections without a volume, and the time by which they have to attach one, oldest first.
    strangers: VecDeque<(LinkId, Time)>,
    /// Requests for which the client core has no place now: writes in the second queue, all others
    /// in the first.
    crowded: [VecDeque<Waiting>; 2],
    /// For each connection with a volume: the volume, and what the client may do with it.
    leaves: Map<LinkId, (VolumeId, Grant)>,
    /// The map has changed, and the permissions of the connections have to be compared with it.
    pub(super) review: bool,
}

/// Lengths of the lists of NBD connections, and their bounds (`docs/internals/limits.md`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct NbdLengths {
    /// Connections.
    pub connections: usize,
    /// Connections that have attached no volume.
    pub strangers: usize,
    /// Requests of one connection in flight that do not wait for space.
    pub requests: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// The same bytes, of all connections together.
    pub all_bytes: usize,
    /// Writes that wait for space, of all connections together.
    pub waiting: usize,
    /// Bytes of these.
    pub waiting_bytes: usize,
}

impl Sessions {
    /// Creates the list without a connection.
    pub(super) fn new(limits: &Limits) -> Sessions {
        Sessions {
            sessions: Map::default(),
            flying: 0,
            most: limits.nbd_flying,
            refreshing: Vec::new(),
            refresh_by: None,
            spare: Vec::new(),
            strangers: VecDeque::new(),
            crowded: Default::default(),
            leaves: Map::default(),
            review: false,
        }
    }

    /// Returns how long the lists are.
    pub(super) fn list_lengths(&self) -> NbdLengths {
        let all = || self.sessions.values();
        let flying = |session: &Session| session.flying_bytes() as usize;
        NbdLengths {
            connections: self.sessions.len(),
            strangers: self.strangers.len(),
            requests: all().map(Session::active).max().unwrap_or(0),
            bytes: all().map(flying).max().unwrap_or(0),
            all_bytes: all().map(flying).sum(),
            waiting: all().map(Session::waiting).sum(),
            waiting_bytes: all().map(|session| session.waiting_bytes() as usize).sum(),
        }
    }

    /// Returns how long the lists may be with these connections.
    pub(super) fn list_bounds(&self, limits: &Limits) -> NbdLengths {
        let one = limits.nbd_payload as usize;
        NbdLengths {
            connections: CONNECTIONS,
            strangers: STRANGERS,
            requests: limits.nbd_requests.max(1) as usize,
            bytes: 3 * one,
            all_bytes: limits.nbd_flying as usize + self.sessions.len() * one,
            waiting: waiting_most(limits),
            waiting_bytes: limits.nbd_waiting as usize,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the volumes that are attached, each once.
    pub(super) fn attached(&self) -> Vec<u32> {
        let volumes: BTreeSet<u32> = self.leaves.values().map(|(volume, _)| volume.0).collect();
        volumes.into_iter().collect()
    }

    pub(super) fn remove(&mut self, link: LinkId) {
        let gone = self.sessions.remove(&link);
        self.flying -= gone.as_ref().map_or(0, Session::flying_bytes);
        // Many connections may end at once, so the queues are only searched if necessary.
        if gone.is_some_and(|session| session.in_flight() > 0) {
            self.crowded.iter_mut().for_each(|queue| queue.retain(|(of, ..)| *of != link));
        }
        if self.leaves.remove(&link).is_some() {
            self.share();
        }
        self.strangers.retain(|(of, _)| *of != link);
        self.refreshing.retain(|l| *l != link);
        if self.refreshing.is_empty() {
            self.refresh_by = None;
        }
    }

    /// Returns the connections whose volume is gone, those whose client may no longer use it, and
    /// those for which `other` is true of the old and the new permission.
    fn over(&self, map: &MapView, other: impl Fn(&Grant, &Grant) -> bool) -> BTreeSet<LinkId> {
        let over = |(link, (id, old)): (&LinkId, &(VolumeId, Grant))| {
            let new = map.volumes.get(id).and_then(|volume| map.my_grant(volume));
            new.is_none_or(|new| other(old, &new)).then_some(*link)
        };
        self.leaves.iter().filter_map(over).collect()
    }

    /// Returns the time by which the oldest connection without a volume has to attach one.
    pub(super) fn stranger_until(&self) -> Option<Time> {
        self.strangers.front().map(|(_, until)| *until)
    }

    /// Divides the bytes in flight again, after a connection has attached a volume or has ended.
    fn share(&mut self) {
        let share = self.most / self.leaves.len().max(1) as u64;
        self.sessions.values_mut().for_each(|session| session.share(share));
    }
}

/// Returns how many writes may wait for space without counting as in flight: half of the requests,
/// so that the writes of volumes that have space find places.
fn waiting_most(limits: &Limits) -> usize {
    (limits.sdc_requests / 2) as usize
}

/// Takes the requests of connections that `wanted` accepts out of a queue, from place `from` on.
/// The others keep their order.
fn take_from(
    queue: &mut VecDeque<Waiting>,
    from: usize,
    wanted: impl Fn(LinkId) -> bool,
) -> Vec<Waiting> {
    let (taken, others): (Vec<_>, Vec<_>) =
        queue.drain(from..).partition(|(link, ..)| wanted(*link));
    queue.extend(others);
    taken
}

impl Sdc {
    pub(super) fn nbd_open(&mut self, now: Time, link: LinkId, out: &mut Effects) {
        let full = self.nbd.sessions.len() >= CONNECTIONS;
        if (full || self.nbd.strangers.len() >= STRANGERS) && !self.nbd_evict(now, out) {
            out.note(Note::Refused { link, why: "too many NBD connections" });
            return out.push(Effect::Close { link });
        }
        self.nbd.strangers.push_back((link, now + NEGOTIATION));
        self.links.insert(link, Link::Target);
        self.nbd.sessions.insert(link, Session::new(&self.config.limits));
        self.nbd_session(now, link, out, |session, _, actions| session.greet(actions));
    }

    /// Closes the oldest connection without a volume. Returns false if there is none.
    fn nbd_evict(&mut self, now: Time, out: &mut Effects) -> bool {
        let Some((link, _)) = self.nbd.strangers.front().copied() else { return false };
        self.nbd_close(now, link, "too many NBD connections", out);
        true
    }

    /// Closes the connections that have taken too long to attach a volume.
    pub(super) fn nbd_strangers(&mut self, now: Time, out: &mut Effects) {
        while let Some((link, _)) = self.nbd.strangers.front().copied().filter(|s| s.1 <= now) {
            self.nbd_close(now, link, "no volume was attached in 5 s", out);
        }
    }

    fn nbd_close(&mut self, now: Time, link: LinkId, why: &'static str, out: &mut Effects) {
        out.note(Note::Refused { link, why });
        out.push(Effect::Close { link });
        self.links.remove(&link);
        self.nbd_gone(now, link, out);
    }

    /// Handles the end of a connection.
    pub(super) fn nbd_gone(&mut self, now: Time, link: LinkId, out: &Effects) {
        self.nbd.remove(link);
        self.mdm.heartbeat_soon(now);
        let gone = |origin| matches!(origin, Origin::Target { link: of, .. } if of == link);
        self.client(now, out, |client, turn| client.forget(gone, turn));
    }

    pub(super) fn nbd_frame(
        &mut self,
        now: Time,
        link: LinkId,
        head: &[u8],
        body: Buf,
        out: &mut Effects,
    ) {
        self.nbd_session(now, link, out, |session, out, actions| {
            session.frame(head, body, out.pool(), actions);
        });
    }

    /// Passes a request to the client core. If the core has no place, the request waits here,
    /// because the client would take a refusal for a disk error. It counts as in flight in its
    /// session, so few requests wait. A request also waits here if the map has changed, until
    /// permissions are reviewed.
    fn nbd_request(
        &mut self,
        now: Time,
        link: LinkId,
        tag: u64,
        request: BlockRequest,
        out: &Effects,
    ) {
        let writes = request.kind == BlockKind::Write;
        let queue = &mut self.nbd.crowded[usize::from(writes)];
        let review = self.nbd.review && !mutant::on(Mutant::KeepPermission);
        if !queue.is_empty() || !self.client.admits(writes) || review {
            return queue.push_back((link, tag, request, now));
        }
        let origin = Origin::Target { link, tag };
        self.client(now, out, |client, turn| client.request(origin, request, turn));
    }

    /// Passes on requests that have waited for a place. Requests made under a permission that has
    /// ended are refused: an order that takes a permission away is a fence, even if the permission
    /// is given again before this client hears of it.
    pub(super) fn nbd_admit(&mut self, now: Time, out: &mut Effects) {
        if self.nbd.crowded.iter().all(VecDeque::is_empty) {
            return;
        }
        if self.nbd.review && !mutant::on(Mutant::KeepPermission) {
            self.nbd_refuse(now, out);
        }
        for writes in [false, true] {
            while self.client.admits(writes)
                && let Some((link, tag, request, since)) =
                    self.nbd.crowded[usize::from(writes)].pop_front()
            {
                let origin = Origin::Target { link, tag };
                self.client(now, out, |client, turn| {
                    client.request_of(since, origin, request, turn)
                });
            }
        }
    }

    /// Answers requests that have waited for a place longer than the user allows.
    pub(super) fn nbd_late(&mut self, now: Time, out: &mut Effects) {
        let within = self.config.limits.answer_within;
        if within.is_zero() {
            return;
        }
        for kind in 0..self.nbd.crowded.len() {
            while let Some((link, tag, ..)) =
                self.nbd.crowded[kind].pop_front_if(|(.., since)| now.since(*since) >= within)
            {
                self.nbd_done(now, link, tag, Err(BlockError::TimedOut), out);
            }
        }
    }

    /// Tells the session that a write waits for space, unless the session knows.
    pub(super) fn nbd_waits(&mut self, now: Time, link: LinkId, tag: u64, out: &mut Effects) {
        if self.nbd.sessions.get(&link).is_none_or(|session| session.knows_wait(tag)) {
            return;
        }
        let sessions = || self.nbd.sessions.values();
        let all: u64 = sessions().map(Session::waiting_bytes).sum();
        let writes: usize = sessions().map(Session::waiting).sum();
        // Other volumes may have space, and their writes need places, too.
        let limits = &self.config.limits;
        let room = writes < waiting_most(limits);
        let most = if room { limits.nbd_waiting.saturating_sub(all) } else { 0 };
        self.nbd_session(now, link, out, |session, out, actions| {
            session.waits(tag, most, out.pool(), actions);
        });
    }

    pub(super) fn nbd_done(
        &mut self,
        now: Time,
        link: LinkId,
        tag: u64,
        result: Result<Buf, BlockError>,
        out: &mut Effects,
    ) {
        self.nbd_session(now, link, out, |session, out, actions| {
            session.done(tag, result, out.pool(), actions);
        });
    }

    /// Continues the negotiations that wait for a fresh map: this one is as fresh as possible.
    pub(super) fn nbd_refreshed(&mut self, now: Time, out: &mut Effects) {
        self.nbd.refresh_by = None;
        for link in core::mem::take(&mut self.nbd.refreshing) {
            let Some(mut session) = self.nbd.sessions.remove(&link) else { continue };
            let mut actions = core::mem::take(&mut self.nbd.spare);
            session.leave(self.nbd.most.saturating_sub(self.nbd.flying));
            let before = session.flying_bytes();
            session.refreshed(&self.map, out.pool(), &mut actions);
            self.nbd.flying = self.nbd.flying - before + session.flying_bytes();
            let volume = session.attached().and_then(|(v, _)| Some((v, self.map.volumes.get(&v)?)));
            if let Some((id, volume)) = volume
                && let Some(grant) = self.map.my_grant(volume)
            {
                self.nbd.leaves.insert(link, (id, grant));
                out.push(Effect::Welcome { link });
                self.nbd.strangers.retain(|(of, _)| *of != link);
                self.mdm.heartbeat_soon(now);
            }
            self.nbd.sessions.insert(link, session);
            self.nbd.share();
            self.nbd_execute(now, link, actions, out);
        }
    }

    /// Refuses requests that wait for a place, if the permission of their connection has ended. The
    /// sessions may make more requests because of that, which are refused as well.
    fn nbd_refuse(&mut self, now: Time, out: &mut Effects) {
        let over = self.nbd.over(&self.map, |old, new| old.generation != new.generation);
        if over.is_empty() {
            return;
        }
        // Sessions put new requests at the end. So each request is looked at once.
        let mut kept = [0; 2];
        loop {
            let mut refused = Vec::new();
            for (queue, kept) in self.nbd.crowded.iter_mut().zip(&mut kept) {
                refused.extend(take_from(queue, *kept, |link| over.contains(&link)));
                *kept = queue.len();
            }
            if refused.is_empty() {
                return;
            }
            for (link, tag, ..) in refused {
                self.nbd_done(now, link, tag, Err(BlockError::NoSuchVolume), out);
            }
        }
    }

    /// Closes the connections whose client may no longer use the volume, or has another permission
    /// now. When the client connects again, it learns what it may do. Requests that have to be
    /// refused were answered before.
    pub(super) fn nbd_review(&mut self, now: Time, out: &mut Effects) {
        for link in self.nbd.over(&self.map, |old, new| old != new) {
            self.nbd_close(now, link, "its volume is mapped otherwise from now on", out);
        }
    }

    /// Calls a session, if it still exists, and carries out its actions.
    fn nbd_session(
        &mut self,
        now: Time,
        link: LinkId,
        out: &mut Effects,
        call: impl FnOnce(&mut Session, &mut Effects, &mut Vec<Action>),
    ) {
        let left = self.nbd.most.saturating_sub(self.nbd.flying);
        let Some(session) = self.nbd.sessions.get_mut(&link) else { return };
        let mut actions = core::mem::take(&mut self.nbd.spare);
        session.leave(left);
        let before = session.flying_bytes();
        call(session, out, &mut actions);
        self.nbd.flying = self.nbd.flying - before + session.flying_bytes();
        self.nbd_execute(now, link, actions, out);
    }

    fn nbd_execute(
        &mut self,
        now: Time,
        link: LinkId,
        mut actions: Vec<Action>,
        out: &mut Effects,
    ) {
        for action in actions.drain(..) {
            match action {
                Action::Send { head, body } => out.send(link, head, body),
                Action::Request { tag, request } => {
                    self.nbd_request(now, link, tag, request, out);
                }
                Action::Refresh => {
                    self.nbd.refreshing.push(link);
                    self.nbd.refresh_by = Time::earliest(self.nbd.refresh_by, Some(now + REFRESH));
                    self.mdm.ask();
                }
                Action::Pause => out.push(Effect::Pause { link }),
                Action::Resume => out.push(Effect::Resume { link }),
                Action::Withdraw { .. }
                | Action::Ask { .. }
                | Action::Reframe { .. }
                | Action::Reinstate { .. }
                | Action::Clear { .. } => unreachable!("NBD has nothing like that"),
                Action::Close { why } => {
                    if let Some(why) = why {
                        out.note(Note::Refused { link, why });
                    }
                    out.push(Effect::Close { link });
                    self.links.remove(&link);
                    self.nbd_gone(now, link, out);
                }
            }
        }
        self.nbd.spare = actions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn requests_are_taken_from_a_place_on_and_no_other_one_is_looked_at() {
        let waiting = |(link, tag)| {
            let (volume, kind) = (VolumeId(1), BlockKind::Flush);
            let request = BlockRequest { volume, kind, at: 0, len: 0, body: Buf::EMPTY };
            (LinkId(link), tag, request, Time(0))
        };
        let mut queue: VecDeque<Waiting> =
            [(1, 1), (2, 2), (1, 3), (2, 4), (3, 5)].map(waiting).into();
        let looked_at = Cell::new(0);
        let second = |link| {
            looked_at.set(looked_at.get() + 1);
            link == LinkId(2)
        };
        let tags = |list: &[Waiting]| list.iter().map(|(_, tag, ..)| *tag).collect::<Vec<_>>();
        assert_eq!(tags(&take_from(&mut queue, 2, second)), [4]);
        assert_eq!((looked_at.get(), tags(queue.make_contiguous())), (3, [1, 2, 3, 5].into()));
        assert!(take_from(&mut queue, 4, second).is_empty() && looked_at.get() == 3);
    }
}
