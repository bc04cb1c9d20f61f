//! Seats: which hosts this gateway may serve (docs/design/0012-seats.md).
//!
//! Invariants (rule R19):
//! - A request of a host is passed on only while this gateway has a confirmed seat for it: the map
//!   gives it the seat, and the MDM has answered that nothing of a former gateway can appear.
//! - A seat is known by the generation at which it began. If it left and came back, it has to be
//!   confirmed again.
//! - The connections of a host close before any request gets the generation of a map in which the
//!   host's seat is gone, or is another one. Otherwise its requests would get past the fence (rule
//!   R8). What these connections have not delivered yet never counts: if the seat came back, it
//!   would land on later writes through the other gateway.
//! - One question to the MDM is under way. It is sent again until it is answered.

use super::{Session, Sessions, UNSEATED, Waiting, pass, take_from};
use crate::link::send_control;
use crate::mapview::{MapView, Volume};
use crate::sdc::Sdc;
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
/// When another gateway has a seat, the MDM is asked once more after this time.
const SOON: Duration = Duration::from_millis(500);
/// The most bytes of names in a heartbeat. Further hosts are not told: a heartbeat that is too long
/// would cost the link to the MDM. Hosts that are served here come first, because a host that is
/// not told loses its seat.
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
    /// How many seats the message had.
    asked: usize,
    /// Those of them that are not answered.
    seats: Vec<SeatWish>,
    /// The time of the last transmission; `None` if there was no link.
    sent: Option<Time>,
    /// Answers that wait for a map: at most one for each volume.
    answers: Vec<SeatsTaken>,
}

impl Question {
    /// Returns true if a seat has no answer, not even one that waits for a map.
    fn is_open(&self) -> bool {
        let waits = |wish: &SeatWish| self.answers.iter().any(|a| a.volume == wish.volume);
        !self.seats.iter().all(waits)
    }
}

/// A command of a host that wants to be served by this gateway.
#[derive(Clone, Copy, Debug)]
struct Activating {
    link: LinkId,
    tag: u64,
    since: Time,
}

/// A seat that another gateway has, as the MDM has answered.
#[derive(Clone, Copy, Debug)]
struct Elsewhere {
    /// The time of the first answer.
    since: Time,
    /// There were two answers, so the host hasn't just come from there.
    settled: bool,
}

/// The seats of this gateway.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// The number of the last question.
    number: u64,
    /// Confirmed seats, each with the generation at which it began.
    confirmed: BTreeMap<VolumeId, BTreeMap<String, u32>>,
    /// Seats to ask for, and whether the host wants them to move here.
    wanted: BTreeMap<(VolumeId, String), bool>,
    /// Commands of hosts that want to be served by this gateway. One host may have very many.
    activating: BTreeMap<(VolumeId, String), Vec<Activating>>,
    /// None of these has come before.
    activating_from: Option<Time>,
    /// Seats of iSCSI hosts that other gateways have.
    elsewhere: BTreeMap<(VolumeId, String), Elsewhere>,
    /// Seats that the MDM has not given, and that no other gateway has: they are not asked for.
    refused: BTreeSet<(VolumeId, String)>,
    /// When all of these may be asked for again.
    refused_until: Option<Time>,
    question: Option<Question>,
    /// The hosts are others than the MDM was told.
    pub(super) untold: bool,
    /// The number of hosts that had no room in the last list for the MDM. A host counts once for
    /// each volume that it reaches by iSCSI.
    left_out: usize,
    /// Requests that wait for a seat must be looked at.
    pub(super) review: bool,
}

impl Seats {
    /// Returns what this gateway may do for a host. An iSCSI host may have left the other gateway a
    /// moment ago, and reach only this one: the MDM is asked before its requests fail.
    fn place(&self, map: &MapView, (host, iscsi): (&str, bool), volume: VolumeId) -> Place {
        if mutant::on(Mutant::ServeUnseated) {
            return Place::Seated;
        }
        let Some(of) = map.volumes.get(&volume) else { return Place::Unconfirmed };
        let seat = of.seats.get(host);
        let confirmed = self.confirmed.get(&volume).and_then(|hosts| hosts.get(host));
        match confirmed {
            _ if iscsi && self.is_standby(map, (volume, of), host) => Place::Elsewhere,
            _ if has_left(map, of, host) && !iscsi => Place::Elsewhere,
            Some(since) if seat.is_some_and(|seat| seat.since == *since) => Place::Seated,
            _ => Place::Unconfirmed,
        }
    }

    /// Returns true if another gateway serves this iSCSI host of the volume, as the MDM has said.
    pub(super) fn is_standby(
        &self,
        map: &MapView,
        (id, volume): (VolumeId, &Volume),
        host: &str,
    ) -> bool {
        let settled = || self.elsewhere.get(&(id, host.to_owned())).is_some_and(|e| e.settled);
        has_left(map, volume, host) && settled()
    }

    /// Returns what the question that is under way asks about this seat.
    fn wish(&self, volume: VolumeId, host: &str) -> Option<&SeatWish> {
        let mut wishes = self.question.iter().flat_map(|question| &question.seats);
        wishes.find(|wish| wish.volume == volume.0 && wish.host == host)
    }

    /// Asks for a seat, unless a question for it is under way.
    fn want(&mut self, volume: VolumeId, host: &str, moves: bool) {
        assert!(!host.is_empty(), "only hosts have seats");
        let asked = self.wish(volume, host).is_some_and(|wish| wish.moves || !moves);
        let wanted = (volume, host.to_owned());
        let refused = self.refused.contains(&wanted) || self.elsewhere.contains_key(&wanted);
        if !asked && (moves || !refused) {
            *self.wanted.entry(wanted).or_default() |= moves;
        }
    }

    /// Confirms the seats of answers that the map has, if the map is as new as the answers.
    fn learn(&mut self, now: Time, map: &MapView) {
        let Some(mut question) = self.question.take() else { return };
        let known = |answer: &mut SeatsTaken| MapVersion(answer.map) <= map.version;
        let answers: Vec<SeatsTaken> = question.answers.extract_if(.., known).collect();
        for SeatsTaken { volume, since, .. } in answers {
            let of = question.seats.extract_if(.., |wish| wish.volume == volume);
            for (wish, since) in of.zip(since) {
                self.answered(now, map, wish, since);
            }
            self.review = true;
        }
        self.question = Some(question).filter(|question| !question.seats.is_empty());
    }

    /// Uses the answer for one seat.
    fn answered(&mut self, now: Time, map: &MapView, wish: SeatWish, since: u32) {
        let (volume, host) = (VolumeId(wish.volume), wish.host);
        match map.volumes.get(&volume).and_then(|v| v.seats.get(&host)) {
            None => {
                let of = (volume, host);
                self.elsewhere.remove(&of); // a volume that is gone
                self.refused.insert(of);
                self.refused_until.get_or_insert(now + AGAIN);
            }
            Some(seat) if Some(seat.sdc) == map.me && seat.since == since => {
                self.confirmed.entry(volume).or_default().insert(host, since);
                self.untold |= self.left_out > 0; // it may be one of those
            }
            Some(seat) if Some(seat.sdc) == map.me => {} // it began anew
            Some(_) => {
                let first = Elsewhere { since: now, settled: false };
                let known = self.elsewhere.entry((volume, host)).or_insert(first);
                known.settled |= now.since(known.since) >= SOON;
            }
        }
    }

    /// Lets requests ask again for seats that the MDM has not given, and asks again for those that
    /// another gateway has.
    fn retry(&mut self, now: Time) {
        let again =
            |(_, e): &(&(VolumeId, String), &Elsewhere)| !e.settled && now.since(e.since) >= SOON;
        for (of, _) in self.elsewhere.iter().filter(again) {
            if self.wish(of.0, &of.1).is_none() {
                self.wanted.entry(of.clone()).or_insert(false);
            }
        }
        if self.refused_until.take_if(|at| *at <= now).is_some() {
            self.refused.clear();
            self.review = true;
        }
    }

    /// Forgets confirmations of a volume that are worth nothing by this map.
    fn prune(&mut self, map: &MapView, volume: VolumeId) {
        self.elsewhere.retain(|(id, host), _| {
            *id != volume || map.volumes.get(id).is_some_and(|v| has_left(map, v, host))
        });
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
        self.wanted.retain(|(_, other), _| other != host);
        self.elsewhere.retain(|(_, other), _| other != host);
        self.refused.retain(|(_, other)| other != host);
        // A question about this host is over. The others in it are asked for anew.
        let asks = |question: &mut Question| question.seats.iter().any(|wish| wish.host == host);
        let over = self.question.take_if(asks).map_or_else(Vec::new, |question| question.seats);
        for SeatWish { volume, host, moves } in over.into_iter().filter(|wish| wish.host != host) {
            *self.wanted.entry((VolumeId(volume), host)).or_default() |= moves;
        }
        self.confirmed.retain(|_, hosts| {
            hosts.remove(host);
            !hosts.is_empty()
        });
    }

    /// Returns the number of seats that are confirmed, asked for, wanted, refused or elsewhere.
    pub(super) fn known(&self) -> usize {
        let confirmed: usize = self.confirmed.values().map(BTreeMap::len).sum();
        let asked = self.question.as_ref().map_or(0, |question| question.seats.len());
        confirmed + asked + self.wanted.len() + self.refused.len() + self.elsewhere.len()
    }

    /// Returns the question to send now: what is not answered, and what is wanted. It has the
    /// number of the former one if it is the same.
    fn due_question(&mut self, now: Time) -> Option<&Question> {
        let room = SEATS_PER_MESSAGE - self.question.as_ref().map_or(0, |q| q.seats.len());
        let mut new = Vec::new();
        while new.len() < room
            && let Some(((volume, host), moves)) = self.wanted.pop_first()
        {
            new.push(SeatWish { volume: volume.0, host, moves });
        }
        let former = self.question.take();
        let same = new.is_empty() && former.as_ref().is_some_and(|q| q.seats.len() == q.asked);
        let mut seats = former.as_ref().map_or_else(Vec::new, |q| q.seats.clone());
        seats.extend(new);
        if seats.is_empty() {
            return None;
        }
        let answers = former.filter(|_| same).map_or_else(Vec::new, |q| q.answers);
        self.number += u64::from(!same);
        let (number, asked) = (self.number, seats.len());
        self.question = Some(Question { number, asked, seats, sent: Some(now), answers });
        self.question.as_ref()
    }

    /// Returns true if there may be a question to send.
    #[inline]
    pub(in crate::sdc) fn has_question(&self) -> bool {
        self.question.is_some() || !self.wanted.is_empty()
    }

    /// Returns true while commands of hosts wait to be served here.
    pub(super) fn waits(&self) -> bool {
        !self.activating.is_empty()
    }

    /// Returns when a question is due, or a command has waited for too long.
    pub(super) fn wake_at(&self, patience: Duration) -> Option<Time> {
        let question = self.question.as_ref().filter(|question| question.is_open());
        let again = question.and_then(|q| q.sent).map(|sent| sent + AGAIN);
        let late = self.activating_from.filter(|_| self.waits()).map(|since| since + patience);
        let asks = |of: &(VolumeId, String)| {
            self.wish(of.0, &of.1).is_some() || self.wanted.contains_key(of)
        };
        let open = self.elsewhere.iter().filter(|(of, e)| !e.settled && !asks(of));
        let soon = open.map(|(_, e)| e.since + SOON).min();
        let retry = Time::earliest(self.refused_until, soon);
        Time::earliest(Time::earliest(again, late), retry)
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

    /// Returns true if a session of a host can use this volume, by its protocol.
    fn reaches(&self, link: LinkId, volume: VolumeId) -> bool {
        match self.sessions.get(&link) {
            Some(Session::Nvme(_)) => true,
            Some(Session::Iscsi(_)) => {
                self.iscsi.nexus(link).and_then(|nexus| nexus.volume) == Some(volume)
            }
            Some(Session::Nbd(_)) | None => false,
        }
    }

    /// Returns the names of the connected hosts, each once.
    fn hosts(&self) -> BTreeSet<&str> {
        let links = self.sessions.keys().map(|link| self.host(*link));
        links.filter(|host| !host.is_empty()).collect()
    }

    /// Returns how many seats [`Seats::known`] may count: those of the map, one question, and one
    /// for each host and volume.
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
        let confirmed = &self.seats.confirmed;
        let has_any = |host: &str| confirmed.values().any(|hosts| hosts.contains_key(host));
        let has_seat = |volume: &VolumeId, host: &str| {
            confirmed.get(volume).is_some_and(|hosts| hosts.contains_key(host))
        };
        let mut room = NAMES;
        let mut fits = |name: &str| {
            let bytes = name.len() + 16;
            room = room.saturating_sub(bytes);
            room >= bytes
        };
        let mut told = HostNames::default();
        for served in [true, false] {
            let some = names.iter().filter(|name| has_any(name) == served && fits(name));
            told.names.extend(some.map(|name| String::from(*name)));
            let some = sessions.iter().filter(|(volume, host)| has_seat(volume, host) == served);
            let wish = |(volume, host): &(VolumeId, &str)| SeatWish {
                volume: volume.0,
                host: (*host).into(),
                moves: false,
            };
            told.sessions.extend(some.filter(|(_, host)| fits(host)).map(wish));
        }
        let all = names.len() + sessions.len();
        self.seats.left_out = all - told.names.len() - told.sessions.len();
        Some(told)
    }

    /// Returns the number of hosts that the last list did not name.
    pub(in crate::sdc) fn seats_left_out(&self) -> usize {
        self.seats.left_out
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
        self.seats_elsewhere(host);
    }

    /// Forgets which seats other gateways have, where this host has no session any more. If it
    /// comes back, it may have left the other gateway.
    fn seats_elsewhere(&mut self, host: &str) {
        let paths = &self.iscsi;
        let is_path = |id: VolumeId| paths.paths().any(|path| path == (id, host));
        self.seats.elsewhere.retain(|(id, of), _| of != host || is_path(*id));
    }

    /// Returns true if the host of this session has a confirmed seat here, though its session does
    /// not know that. Else this gateway asks for the seat.
    #[cold]
    pub(super) fn find_seat(&mut self, map: &MapView, link: LinkId, volume: VolumeId) -> bool {
        match self.place(map, link, volume) {
            Place::Seated => {
                let list = self.sessions.get_mut(&link).and_then(Session::seated_mut);
                list.into_iter().for_each(|list| list.push(volume));
                true
            }
            Place::Unconfirmed => {
                let host = self.host(link).to_owned();
                self.seats.want(volume, &host, false);
                false
            }
            Place::Elsewhere => {
                self.seats.review = true;
                false
            }
        }
    }

    fn place(&self, map: &MapView, link: LinkId, volume: VolumeId) -> Place {
        let iscsi = !self.iscsi.host(link).is_empty();
        self.seats.place(map, (self.host(link), iscsi), volume)
    }

    /// Asks for the seat of an iSCSI host that has just logged in, unless it is confirmed. NBD
    /// clients have none.
    pub(super) fn seats_login(&mut self, map: &MapView, link: LinkId, volume: VolumeId) {
        let host = self.iscsi.host(link).to_owned();
        if !host.is_empty() && self.place(map, link, volume) == Place::Unconfirmed {
            self.seats.want(volume, &host, false);
        }
    }

    /// Begins a command of a host that wants to be served by this gateway.
    pub(super) fn seats_activate(
        &mut self,
        (link, tag, volume): (LinkId, u64, VolumeId),
        since: Time,
    ) {
        let host = self.host(link).to_owned();
        let seats = &mut self.seats;
        // Else there is nothing to look at before the MDM answers, or the map changes.
        seats.review |= seats.confirmed.get(&volume).is_some_and(|of| of.contains_key(&host));
        seats.want(volume, &host, true);
        seats.activating_from = Time::earliest(seats.activating_from, Some(since));
        let same = seats.activating.entry((volume, host)).or_default();
        same.push(Activating { link, tag, since });
    }

    /// Forgets such commands.
    pub(super) fn seats_forget(&mut self, over: impl Fn(LinkId, u64) -> bool) {
        self.seats.activating.retain(|_, same| {
            same.retain(|a| !over(a.link, a.tag));
            !same.is_empty()
        });
    }

    /// Answers such commands of hosts that are served by now.
    fn seats_activated(&mut self, map: &MapView) {
        let mut all = core::mem::take(&mut self.seats.activating);
        all.retain(|(volume, host), same| {
            let seated = self.seats.place(map, (host, true), *volume) == Place::Seated;
            for Activating { link, tag, .. } in same.iter().filter(|_| seated) {
                self.answer_activated(*link, *tag);
            }
            !seated
        });
        self.seats.activating = all;
    }

    /// Answers such commands that have waited for too long.
    pub(super) fn seats_tick(&mut self, now: Time, patience: Duration) {
        let is_late = |since: Time| now.since(since) >= patience;
        if !self.seats.activating_from.is_some_and(is_late) {
            return;
        }
        let mut first = None;
        let mut all = core::mem::take(&mut self.seats.activating);
        all.retain(|_, same| {
            for late in same.extract_if(.., |a| is_late(a.since)) {
                self.answer_nobody(late.link, late.tag);
            }
            first = Time::earliest(first, same.iter().map(|a| a.since).min());
            !same.is_empty()
        });
        (self.seats.activating, self.seats.activating_from) = (all, first);
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
    pub(super) fn is_seated(&mut self, volume: VolumeId) -> bool {
        match self {
            Session::Nbd(_) => true, // it has no host
            Session::Iscsi(iscsi) => iscsi.seated.contains(&volume),
            Session::Nvme(nvme) if nvme.seated.first() == Some(&volume) => true,
            Session::Nvme(nvme) => {
                // The volume that was used last is the first one.
                let at = nvme.seated.iter().position(|seated| *seated == volume);
                at.is_some_and(|at| {
                    nvme.seated.swap(0, at);
                    true
                })
            }
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

/// Applies the seats of a new map: ends the requests of hosts whose seats are gone, and asks to
/// confirm new ones. Called before the client core gets the map.
pub(in crate::sdc) fn fence(
    sdc: &mut Sdc,
    now: Time,
    changed: &[(VolumeId, OfVolume)],
    out: &mut Effects,
) {
    // First of all: a request that follows from the end of another one counts by this map, too.
    changed.iter().for_each(|(id, _)| sdc.targets.unseat(*id));
    for (id, before) in changed {
        let Some(volume) = sdc.map.volumes.get(id) else { continue };
        let is_mine = |seats: &OfVolume| seats.values().any(|seat| Some(seat.sdc) == sdc.map.me);
        if !is_mine(before) && !is_mine(&volume.seats) {
            sdc.targets.seats.prune(&sdc.map, *id);
            sdc.targets.seats.review = true;
            continue;
        }
        let mine = |seats: &OfVolume, host: &str| {
            seats.get(host).filter(|seat| Some(seat.sdc) == sdc.map.me).map(|s| s.since)
        };
        let is_lost = |host: &str| {
            let since = mine(before, host);
            since.is_some() && since != mine(&volume.seats, host)
        };
        let all = sdc.targets.sessions.keys().copied();
        let lost: BTreeSet<LinkId> =
            all.filter(|l| sdc.targets.reaches(*l, *id) && is_lost(sdc.targets.host(*l))).collect();
        let given = |host: &&str| {
            mine(&volume.seats, host).is_some_and(|since| mine(before, host) != Some(since))
        };
        let hosts = sdc.targets.hosts();
        let given: Vec<String> = hosts.into_iter().filter(given).map(String::from).collect();
        sdc.targets.seats.prune(&sdc.map, *id);
        given.iter().for_each(|host| sdc.targets.seats.want(*id, host, false));
        if mutant::on(Mutant::RenewUnseated) {
            continue;
        }
        for link in lost {
            sdc.target_close(now, link, Some("its host has lost its seat"), out);
        }
        sdc.targets.seats.review = true;
    }
    sdc.targets.seats.confirmed.retain(|id, _| sdc.map.volumes.contains_key(id));
    sdc.targets.seats.elsewhere.retain(|(id, _), _| sdc.map.volumes.contains_key(id));
    learn(sdc, now);
}

/// Uses the number that the map gives this gateway. Hosts know it, and were told that it never
/// changes: if it does, they have to connect again.
pub(in crate::sdc) fn gateway_number(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    let number = sdc.map.my_number();
    let before = core::mem::replace(&mut sdc.targets.number, number);
    // Connections that came before there was a number have ids of gateway 0.
    if before.unwrap_or(0) == number.unwrap_or(0) {
        return;
    }
    let hosts = sdc.targets.sessions.iter().filter(|(_, s)| !matches!(s, Session::Nbd(_)));
    let mut links: Vec<LinkId> = hosts.map(|(link, _)| *link).collect();
    links.sort_unstable();
    for link in links {
        sdc.target_close(now, link, Some("this gateway has another number now"), out);
    }
}

/// Uses an answer of the MDM that has waited for this map.
fn learn(sdc: &mut Sdc, now: Time) {
    let settled = |seats: &Seats| seats.elsewhere.values().filter(|e| e.settled).count();
    let before = settled(&sdc.targets.seats);
    sdc.targets.seats.learn(now, &sdc.map);
    // iSCSI hosts are told that their path is in standby.
    sdc.targets.review |= settled(&sdc.targets.seats) != before;
    if !sdc.targets.seats.elsewhere.is_empty() {
        // The answer may be for a host that has gone, or that uses NVMe.
        let paths: BTreeSet<(VolumeId, &str)> = sdc.targets.iscsi.paths().collect();
        let elsewhere = &mut sdc.targets.seats.elsewhere;
        elsewhere.retain(|(id, host), _| paths.contains(&(*id, &host[..])));
    }
}

/// Takes the MDM's answer to a question. Returns the version of the map that it needs.
pub(in crate::sdc) fn answer(sdc: &mut Sdc, now: Time, m: SeatsTaken) -> Option<MapVersion> {
    let version = MapVersion(m.map);
    let asked = sdc.targets.seats.question.as_mut().filter(|q| q.number == m.number)?;
    if !asked.answers.iter().any(|known| known.volume == m.volume) {
        asked.answers.push(m);
    }
    learn(sdc, now);
    Some(version)
}

/// Sends the question that is under way again, on a new link to an MDM.
pub(in crate::sdc) fn again(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    if let Some(question) = &mut sdc.targets.seats.question {
        question.sent = None;
    }
    ask(sdc, now, out);
}

/// Asks the MDM for the seats that are wanted, if no question is under way. A question that was not
/// answered is repeated, with the seats that are wanted by then.
pub(in crate::sdc) fn ask(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    sdc.targets.seats.retry(now);
    let Some(link) = sdc.mdm.link() else {
        // It is sent on the next link, and not at a time.
        sdc.targets.seats.question.iter_mut().for_each(|question| question.sent = None);
        return;
    };
    let seats = &mut sdc.targets.seats;
    let under_way = |q: &Question| {
        let answered = !q.is_open() && seats.wanted.is_empty();
        answered || q.sent.is_some_and(|sent| now.since(sent) < AGAIN)
    };
    if seats.question.as_ref().is_some_and(under_way) {
        return;
    }
    let Some(question) = seats.due_question(now) else { return };
    let (number, mut wishes) = (question.number, question.seats.clone());
    let activating = &sdc.targets.seats.activating;
    for wish in &mut wishes {
        wish.moves = activating.contains_key(&(VolumeId(wish.volume), wish.host.clone()));
    }
    send_control(link, &TakeSeats { number, seats: wishes }, out);
}

/// Looks at the requests that wait for a seat: passes on those of hosts that have one, and ends
/// those of hosts that another gateway serves.
pub(super) fn admit(sdc: &mut Sdc, now: Time, out: &mut Effects) {
    sdc.targets.seats.review = false;
    sdc.targets.seats_activated(&sdc.map);
    let (mut seated, mut left) = (BTreeSet::new(), BTreeSet::new());
    let queue = sdc.targets.crowded[UNSEATED].iter();
    let all: BTreeSet<_> = queue.map(|w| (w.link, w.request.volume)).collect();
    for (link, volume) in all {
        match sdc.targets.place(&sdc.map, link, volume) {
            Place::Seated => drop(seated.insert((link, volume))),
            Place::Elsewhere => drop(left.insert((link, volume))),
            Place::Unconfirmed => {
                let host = sdc.targets.host(link).to_owned();
                sdc.targets.seats.want(volume, &host, false);
            }
        }
    }
    let is_of = |list: &BTreeSet<(LinkId, VolumeId)>, w: &Waiting| {
        list.contains(&(w.link, w.request.volume))
    };
    let queue = &mut sdc.targets.crowded[UNSEATED];
    for waiting in take_from(queue, 0, |w| is_of(&seated, w)) {
        pass(sdc, now, waiting, out);
    }
    // Sessions may end others of their requests in return, so these come last.
    if !left.is_empty() {
        sdc.targets_end(now, |w| is_of(&left, w), BlockError::Elsewhere, out);
    }
}
