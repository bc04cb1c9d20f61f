//! Seats: which hosts this gateway may serve (docs/design/0012-seats.md).
//!
//! Invariants (rule R19):
//! - A request of a host is passed on only while this gateway has a confirmed seat for it: the map
//!   gives it the seat, and the MDM has answered that nothing of a former gateway can appear.
//! - A seat is known by the generation at which it began. If it left and came back, it has to be
//!   confirmed again.
//! - The requests of a host end before any request gets the generation of a map in which the host's
//!   seat is gone, or is another one. Otherwise they would get past the fence (rule R8).
//! - One question to the MDM is under way. It is sent again until it is answered.

use super::{Session, Sessions, UNSEATED, Waiting, take_from};
use crate::link::send_control;
use crate::mapview::{MapView, Volume};
use crate::sdc::{Origin, Sdc};
use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::time::Duration;
use base::{LinkId, MapVersion, Time, VolumeId};
use mdm::seat::{SEATS, Seats as OfVolume};
use seam::{BlockError, Effects};
use wire::control::{HostNames, SEATS_PER_MESSAGE, SeatWish, SeatsTaken, TakeSeats};

/// A question that is not answered is sent again after this time. A seat that the MDM has not given
/// is asked for again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// The most bytes of names in a heartbeat. Further hosts are not told: a heartbeat that is too long
/// would cost the link to the MDM.
const NAMES: usize = 256 << 10;

/// What this gateway may do for a host of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Serve it.
    Seated,
    /// Nothing yet: no gateway has the seat, or it is not confirmed.
    Unconfirmed,
    /// Nothing: another gateway serves it.
    Elsewhere,
}

/// Returns true if another gateway serves this host of the volume.
pub(super) fn has_left(map: &MapView, volume: &Volume, host: &str) -> bool {
    volume.seats.get(host).is_some_and(|seat| Some(seat.sdc) != map.me)
}

/// A question to the MDM.
#[derive(Debug)]
struct Question {
    number: u64,
    seats: Vec<(VolumeId, String)>,
    /// The time of the last transmission; `None` if there was no link.
    sent: Option<Time>,
    /// The answer, which waits for a map.
    answer: Option<SeatsTaken>,
}

/// The seats of this gateway.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// The number of the last question.
    number: u64,
    /// Confirmed seats, each with the generation at which it began.
    confirmed: BTreeMap<VolumeId, BTreeMap<String, u32>>,
    /// Seats to ask for.
    wanted: BTreeSet<(VolumeId, String)>,
    /// Seats that the MDM has not given, and that no other gateway has: they are not asked for.
    refused: BTreeSet<(VolumeId, String)>,
    /// When all of these may be asked for again.
    refused_until: Option<Time>,
    question: Option<Question>,
    /// The hosts are others than the MDM was told.
    pub(super) untold: bool,
    /// Requests that wait for a seat must be looked at.
    pub(super) review: bool,
}

impl Seats {
    /// Returns what this gateway may do for a host.
    fn place(&self, map: &MapView, host: &str, volume: VolumeId) -> Place {
        if mutant::on(Mutant::ServeUnseated) {
            return Place::Seated;
        }
        let Some(of) = map.volumes.get(&volume) else { return Place::Unconfirmed };
        let seat = of.seats.get(host);
        let confirmed = self.confirmed.get(&volume).and_then(|hosts| hosts.get(host));
        match confirmed {
            _ if has_left(map, of, host) => Place::Elsewhere,
            Some(since) if seat.is_some_and(|seat| seat.since == *since) => Place::Seated,
            _ => Place::Unconfirmed,
        }
    }

    fn want(&mut self, volume: VolumeId, host: &str) {
        let asked = |q: &Question| q.seats.iter().any(|(id, name)| *id == volume && name == host);
        let wanted = (volume, host.to_owned());
        if !self.question.as_ref().is_some_and(asked) && !self.refused.contains(&wanted) {
            self.wanted.insert(wanted);
        }
    }

    /// Confirms the seats of an answer that the map has, if the map is as new as the answer.
    fn learn(&mut self, now: Time, map: &MapView) {
        let known = |q: &mut Question| {
            q.answer.as_ref().is_some_and(|answer| MapVersion(answer.map) <= map.version)
        };
        let Some(Question { seats, answer: Some(answer), .. }) = self.question.take_if(known)
        else {
            return;
        };
        for ((volume, host), since) in seats.into_iter().zip(answer.since) {
            match map.volumes.get(&volume).and_then(|v| v.seats.get(&host)) {
                None => {
                    self.refused.insert((volume, host));
                    self.refused_until.get_or_insert(now + AGAIN);
                }
                Some(seat) if Some(seat.sdc) == map.me && seat.since == since => {
                    self.confirmed.entry(volume).or_default().insert(host, since);
                }
                Some(_) => {} // another gateway has it, or it began anew
            }
        }
        self.review = true;
    }

    /// Lets requests ask again for seats that the MDM has not given.
    fn retry(&mut self, now: Time) {
        if self.refused_until.take_if(|at| *at <= now).is_some() {
            self.refused.clear();
            self.review = true;
        }
    }

    /// Forgets confirmations of a volume that are worth nothing by this map.
    fn prune(&mut self, map: &MapView, volume: VolumeId) {
        let Some(hosts) = self.confirmed.get_mut(&volume) else { return };
        let seats = map.volumes.get(&volume).map(|volume| &volume.seats);
        let seat = |host: &str| seats?.get(host).filter(|seat| Some(seat.sdc) == map.me);
        hosts.retain(|host, since| seat(host).is_some_and(|seat| seat.since == *since));
        if hosts.is_empty() {
            self.confirmed.remove(&volume);
        }
    }

    /// Forgets a host that is not connected any more.
    fn forget(&mut self, host: &str) {
        self.wanted.retain(|(_, other)| other != host);
        self.refused.retain(|(_, other)| other != host);
        self.confirmed.retain(|_, hosts| {
            hosts.remove(host);
            !hosts.is_empty()
        });
    }

    /// Returns the number of seats that are confirmed, asked for, wanted or refused.
    pub(super) fn known(&self) -> usize {
        let confirmed: usize = self.confirmed.values().map(BTreeMap::len).sum();
        let asked = self.question.as_ref().map_or(0, |question| question.seats.len());
        confirmed + asked + self.wanted.len() + self.refused.len()
    }

    /// Returns true if there may be a question to send.
    #[inline]
    pub(in crate::sdc) fn has_question(&self) -> bool {
        self.question.is_some() || !self.wanted.is_empty()
    }

    /// Returns when a question is due.
    pub(super) fn wake_at(&self) -> Option<Time> {
        let question = self.question.as_ref().filter(|q| q.answer.is_none());
        let again = question.and_then(|q| q.sent).map(|sent| sent + AGAIN);
        Time::earliest(again, self.refused_until)
    }
}

impl Sessions {
    /// Returns the name of the host of a session; empty if none has logged in.
    pub(super) fn host(&self, link: LinkId) -> &str {
        match self.iscsi.host(link) {
            "" => self.nvme.host(link),
            name => name,
        }
    }

    /// Returns the names of the connected hosts, each once.
    fn hosts(&self) -> BTreeSet<&str> {
        let links = self.sessions.keys().map(|link| self.host(*link));
        links.filter(|host| !host.is_empty()).collect()
    }

    /// Returns how many seats [`Seats::known`] may count: those of the map, one question, and one for
    /// each host and volume.
    pub(super) fn seats_most(&self, map: &MapView) -> usize {
        (SEATS + self.hosts().len()) * map.volumes.len() + SEATS_PER_MESSAGE
    }

    /// Returns the hosts that can use volumes here, without those of discovery: by NVMe, and those
    /// of each volume by iSCSI.
    fn paths(&self) -> (BTreeSet<&str>, BTreeSet<(VolumeId, &str)>) {
        let nvme = self.nvme.queue_links().map(|link| self.nvme.host(link));
        (nvme.filter(|host| !host.is_empty()).collect(), self.iscsi.paths().collect())
    }

    /// Returns the hosts for a heartbeat, if the MDM has not been told of them.
    pub(in crate::sdc) fn seats_hosts(&mut self) -> Option<HostNames> {
        if !core::mem::take(&mut self.seats.untold) {
            return None;
        }
        let (names, sessions) = self.paths();
        let mut room = NAMES;
        let mut fits = |name: &str| {
            let bytes = name.len() + 16;
            room = room.saturating_sub(bytes);
            room >= bytes
        };
        let names = names.into_iter().filter(|name| fits(name)).map(String::from).collect();
        let sessions = sessions.into_iter().filter(|(_, host)| fits(host));
        let wish =
            |(volume, host): (VolumeId, &str)| SeatWish { volume: volume.0, host: host.into() };
        Some(HostNames { names, sessions: sessions.map(wish).collect() })
    }

    /// Records that the MDM has to be told of the hosts.
    pub(in crate::sdc) fn seats_tell(&mut self) {
        self.seats.untold = true;
    }

    /// Records that a session of this host has ended.
    pub(super) fn seats_left(&mut self, host: &str) {
        if host.is_empty() {
            return;
        }
        self.seats.untold = true;
        if !self.sessions.keys().any(|link| self.host(*link) == host) {
            self.seats.forget(host);
        }
    }

    /// Returns true if the host of this session has a confirmed seat here. Else this gateway asks
    /// for the seat.
    #[inline]
    pub(super) fn is_seated(&mut self, map: &MapView, link: LinkId, volume: VolumeId) -> bool {
        let known = self.sessions.get(&link).is_some_and(|session| session.is_seated(volume));
        known || self.find_seat(map, link, volume)
    }

    #[cold]
    fn find_seat(&mut self, map: &MapView, link: LinkId, volume: VolumeId) -> bool {
        match self.place(map, link, volume) {
            Place::Seated => {
                let list = self.sessions.get_mut(&link).and_then(Session::seated_mut);
                list.into_iter().for_each(|list| list.push(volume));
                true
            }
            Place::Unconfirmed => {
                let host = self.host(link).to_owned();
                self.seats.want(volume, &host);
                false
            }
            Place::Elsewhere => {
                self.seats.review = true;
                false
            }
        }
    }

    fn place(&self, map: &MapView, link: LinkId, volume: VolumeId) -> Place {
        self.seats.place(map, self.host(link), volume)
    }

    /// Forgets what sessions know of the seats of a volume.
    fn unseat(&mut self, volume: VolumeId) {
        for session in self.sessions.values_mut() {
            session.seated_mut().into_iter().for_each(|list| list.retain(|id| *id != volume));
        }
    }
}

impl Session {
    /// Returns true if its host is known to have a confirmed seat for this volume.
    #[inline]
    fn is_seated(&self, volume: VolumeId) -> bool {
        match self {
            Session::Nbd(_) => true, // it has no host
            Session::Iscsi(iscsi) => iscsi.seated.contains(&volume),
            Session::Nvme(nvme) => nvme.seated.contains(&volume),
        }
    }

    fn seated_mut(&mut self) -> Option<&mut Vec<VolumeId>> {
        match self {
            Session::Nbd(_) => None,
            Session::Iscsi(iscsi) => Some(&mut iscsi.seated),
            Session::Nvme(nvme) => Some(&mut nvme.seated),
        }
    }
}

impl Sdc {
    /// Applies the seats of a new map: ends the requests of hosts whose seats are gone, and asks to
    /// confirm new ones. Called before the client core gets the map.
    pub(in crate::sdc) fn seats_fence(
        &mut self,
        now: Time,
        changed: &[(VolumeId, OfVolume)],
        out: &mut Effects,
    ) {
        // First of all: a request that follows from the end of another one counts by this map, too.
        changed.iter().for_each(|(id, _)| self.targets.unseat(*id));
        for (id, before) in changed {
            let Some(volume) = self.map.volumes.get(id) else { continue };
            let mine = |seats: &OfVolume, host: &str| {
                seats.get(host).filter(|seat| Some(seat.sdc) == self.map.me).map(|s| s.since)
            };
            let is_lost = |host: &str| {
                let since = mine(before, host);
                since.is_some() && since != mine(&volume.seats, host)
            };
            let all = self.targets.sessions.keys().copied();
            let lost: BTreeSet<LinkId> =
                all.filter(|link| is_lost(self.targets.host(*link))).collect();
            let given = |host: &&str| {
                mine(&volume.seats, host).is_some_and(|since| mine(before, host) != Some(since))
            };
            let hosts = self.targets.hosts();
            let given: Vec<String> = hosts.into_iter().filter(given).map(String::from).collect();
            given.iter().for_each(|host| self.targets.seats.want(*id, host));
            self.targets.seats.prune(&self.map, *id);
            if !lost.is_empty() && !mutant::on(Mutant::RenewUnseated) {
                // If no gateway has the seat, the host may have no other path: it repeats them here.
                let (left, stay): (BTreeSet<LinkId>, BTreeSet<LinkId>) = lost
                    .into_iter()
                    .partition(|link| has_left(&self.map, volume, self.targets.host(*link)));
                self.seats_end(now, (*id, &left), BlockError::Elsewhere, out);
                self.seats_end(now, (*id, &stay), BlockError::TimedOut, out);
            }
            self.targets.seats.review = true;
        }
        self.targets.seats.confirmed.retain(|id, _| self.map.volumes.contains_key(id));
        self.seats_learn(now);
    }

    /// Ends the requests of these sessions to a volume.
    fn seats_end(
        &mut self,
        now: Time,
        (id, lost): (VolumeId, &BTreeSet<LinkId>),
        error: BlockError,
        out: &mut Effects,
    ) {
        if lost.is_empty() {
            return;
        }
        let waits = |w: &Waiting| w.request.volume == id && lost.contains(&w.link);
        self.targets_end(now, waits, error, out);
        let ends = |origin: Origin| match origin {
            Origin::Program { .. } => false,
            Origin::Target { link, arrival, .. } => arrival.volume == id && lost.contains(&link),
        };
        self.client(now, out, |client, turn| client.end(ends, error, turn));
    }

    /// Uses the number that the map gives this gateway. Hosts know it, and were told that it never
    /// changes: if it does, they have to connect again.
    pub(in crate::sdc) fn gateway_number(&mut self, now: Time, out: &mut Effects) {
        let number = self.map.my_number();
        let before = core::mem::replace(&mut self.targets.number, number);
        // Connections that came before there was a number have ids of gateway 0.
        if before.unwrap_or(0) == number.unwrap_or(0) {
            return;
        }
        let hosts = self.targets.sessions.iter().filter(|(_, s)| !matches!(s, Session::Nbd(_)));
        let mut links: Vec<LinkId> = hosts.map(|(link, _)| *link).collect();
        links.sort_unstable();
        for link in links {
            self.target_close(now, link, Some("this gateway has another number now"), out);
        }
    }

    /// Uses an answer of the MDM that has waited for this map.
    fn seats_learn(&mut self, now: Time) {
        self.targets.seats.learn(now, &self.map);
    }

    /// Takes the MDM's answer to a question. Returns the version of the map that it needs.
    pub(in crate::sdc) fn seats_answer(&mut self, now: Time, m: SeatsTaken) -> Option<MapVersion> {
        let version = MapVersion(m.map);
        let asked = self.targets.seats.question.as_mut().filter(|q| q.number == m.number)?;
        asked.answer = Some(m);
        self.seats_learn(now);
        Some(version)
    }

    /// Sends the question that is under way again, on a new link to an MDM.
    pub(in crate::sdc) fn seats_again(&mut self, now: Time, out: &mut Effects) {
        if let Some(question) = &mut self.targets.seats.question {
            question.sent = None;
        }
        self.seats_ask(now, out);
    }

    /// Asks the MDM for the seats that are wanted, if no question is under way, and repeats one that
    /// was not answered.
    pub(in crate::sdc) fn seats_ask(&mut self, now: Time, out: &mut Effects) {
        self.targets.seats.retry(now);
        let Some(link) = self.mdm.link() else {
            // It is sent on the next link, and not at a time.
            self.targets.seats.question.iter_mut().for_each(|question| question.sent = None);
            return;
        };
        let seats = &mut self.targets.seats;
        if seats.question.is_none() && !seats.wanted.is_empty() {
            seats.number += 1;
            let mut list = Vec::new();
            while list.len() < SEATS_PER_MESSAGE
                && let Some(wanted) = seats.wanted.pop_first()
            {
                list.push(wanted);
            }
            let question = Question { number: seats.number, seats: list, sent: None, answer: None };
            seats.question = Some(question);
        }
        let Some(question) = &mut seats.question else { return };
        let due = question.sent.is_none_or(|sent| now.since(sent) >= AGAIN);
        if question.answer.is_some() || !due {
            return;
        }
        question.sent = Some(now);
        let wish =
            |(volume, host): &(VolumeId, String)| SeatWish { volume: volume.0, host: host.clone() };
        let wishes = question.seats.iter().map(wish).collect();
        send_control(link, &TakeSeats { number: question.number, seats: wishes }, out);
    }

    /// Looks at the requests that wait for a seat: passes on those of hosts that have one, and ends
    /// those of hosts that another gateway serves.
    pub(super) fn seats_admit(&mut self, now: Time, out: &mut Effects) {
        self.targets.seats.review = false;
        let (mut seated, mut left) = (BTreeSet::new(), BTreeSet::new());
        let queue = self.targets.crowded[UNSEATED].iter();
        let all: BTreeSet<_> = queue.map(|w| (w.link, w.request.volume)).collect();
        for (link, volume) in all {
            match self.targets.place(&self.map, link, volume) {
                Place::Seated => drop(seated.insert((link, volume))),
                Place::Elsewhere => drop(left.insert((link, volume))),
                Place::Unconfirmed => {
                    let host = self.targets.host(link).to_owned();
                    self.targets.seats.want(volume, &host);
                }
            }
        }
        let is_of = |list: &BTreeSet<(LinkId, VolumeId)>, w: &Waiting| {
            list.contains(&(w.link, w.request.volume))
        };
        let queue = &mut self.targets.crowded[UNSEATED];
        for waiting in take_from(queue, 0, |w| is_of(&seated, w)) {
            self.target_pass(now, waiting, out);
        }
        // Sessions may end others of their requests in return, so these come last.
        if !left.is_empty() {
            self.targets_end(now, |w| is_of(&left, w), BlockError::Elsewhere, out);
        }
    }
}
