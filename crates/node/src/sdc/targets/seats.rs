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

use super::{Session, Sessions, UNSEATED, Waiting};
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
use mdm::seat::Seats as OfVolume;
use seam::{BlockError, Effects};
use wire::control::{HostNames, SEATS_PER_MESSAGE, SeatWish, SeatsTaken, TakeSeats};

/// A question that is not answered is sent again after this time.
const AGAIN: Duration = Duration::from_secs(1);

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
    seats: Vec<SeatWish>,
    /// The time of the last transmission; `None` if there was no link.
    sent: Option<Time>,
    /// The answer, which waits for a map.
    answer: Option<SeatsTaken>,
}

/// A command of a host that wants to be served by this gateway.
#[derive(Clone, Copy, Debug)]
struct Activating {
    link: LinkId,
    tag: u64,
    volume: VolumeId,
    since: Time,
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
    /// Commands of hosts that want to be served by this gateway.
    activating: Vec<Activating>,
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

    /// Asks for a seat, unless a question for it is under way.
    fn want(&mut self, volume: VolumeId, host: &str, moves: bool) {
        let same = |wish: &SeatWish| (wish.volume, wish.host.as_str()) == (volume.0, host);
        let asked = |q: &Question| q.seats.iter().any(|w| same(w) && (w.moves || !moves));
        if !self.question.as_ref().is_some_and(asked) {
            *self.wanted.entry((volume, host.to_owned())).or_default() |= moves;
        }
    }

    /// Confirms the seats of an answer that the map has, if the map is as new as the answer.
    fn learn(&mut self, map: &MapView) {
        let known = |q: &mut Question| {
            q.answer.as_ref().is_some_and(|answer| MapVersion(answer.map) <= map.version)
        };
        let Some(Question { seats, answer: Some(answer), .. }) = self.question.take_if(known)
        else {
            return;
        };
        for (SeatWish { volume, host, .. }, since) in seats.into_iter().zip(answer.since) {
            let volume = VolumeId(volume);
            let seat = map.volumes.get(&volume).and_then(|v| v.seats.get(&host));
            if seat.is_some_and(|seat| Some(seat.sdc) == map.me && seat.since == since) {
                self.confirmed.entry(volume).or_default().insert(host, since);
            }
        }
        self.review = true;
    }

    /// Forgets a host that is not connected any more.
    fn forget(&mut self, host: &str) {
        self.wanted.retain(|(_, other), _| other != host);
        self.confirmed.retain(|_, hosts| {
            hosts.remove(host);
            !hosts.is_empty()
        });
    }

    /// Returns true while commands of hosts wait to be served here.
    pub(super) fn waits(&self) -> bool {
        !self.activating.is_empty()
    }

    /// Returns true if there may be a question to send.
    #[inline]
    pub(in crate::sdc) fn has_question(&self) -> bool {
        self.question.is_some() || !self.wanted.is_empty()
    }

    /// Returns when a question is due, or a command has waited for too long.
    pub(super) fn wake_at(&self, patience: Duration) -> Option<Time> {
        let question = self.question.as_ref().filter(|q| q.answer.is_none());
        let again = question.and_then(|question| question.sent).map(|sent| sent + AGAIN);
        let late = self.activating.iter().map(|a| a.since + patience).min();
        Time::earliest(again, late)
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

    /// Returns the hosts for a heartbeat, if the MDM has not been told of them.
    pub(in crate::sdc) fn seats_hosts(&mut self) -> Option<HostNames> {
        let untold = core::mem::take(&mut self.seats.untold);
        untold.then(|| HostNames { names: self.hosts().into_iter().map(String::from).collect() })
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
        if !self.sessions.keys().any(|link| self.host(*link) == host) {
            self.seats.forget(host);
            self.seats.untold = true;
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
        self.seats.place(map, self.host(link), volume)
    }

    /// Begins a command of a host that wants to be served by this gateway.
    pub(super) fn seats_activate(
        &mut self,
        (link, tag, volume): (LinkId, u64, VolumeId),
        since: Time,
    ) {
        self.seats.activating.push(Activating { link, tag, volume, since });
        let host = self.host(link).to_owned();
        self.seats.want(volume, &host, true);
        self.seats.review = true;
    }

    /// Forgets such commands.
    pub(super) fn seats_forget(&mut self, over: impl Fn(LinkId, u64) -> bool) {
        self.seats.activating.retain(|a| !over(a.link, a.tag));
    }

    /// Answers such commands of hosts that are served by now, and those that have waited for too
    /// long.
    pub(super) fn seats_activated(&mut self, now: Time, map: &MapView, patience: Duration) {
        for activating in core::mem::take(&mut self.seats.activating) {
            let Activating { link, tag, volume, since } = activating;
            if self.place(map, link, volume) == Place::Seated {
                self.answer_activated(link, tag);
            } else if now.since(since) >= patience {
                self.answer_nobody(link, tag);
            } else {
                self.seats.activating.push(activating);
            }
        }
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
            given.iter().for_each(|host| self.targets.seats.want(*id, host, false));
            self.targets.unseat(*id);
            if !lost.is_empty() && !mutant::on(Mutant::RenewUnseated) {
                let waits = |w: &Waiting| w.request.volume == *id && lost.contains(&w.link);
                self.targets_end(now, waits, BlockError::Elsewhere, out);
                let id = *id;
                let ends = |origin: Origin| match origin {
                    Origin::Program { .. } => false,
                    Origin::Target { link, arrival, .. } => {
                        arrival.volume == id && lost.contains(&link)
                    }
                };
                self.client(now, out, |client, turn| client.end(ends, BlockError::Elsewhere, turn));
            }
            self.targets.seats.review = true;
        }
        self.seats_learn();
    }

    /// Uses the number that the map gives this gateway. Hosts know it, and were told that it never
    /// changes: if it does, they have to connect again.
    pub(in crate::sdc) fn gateway_number(&mut self, now: Time, out: &mut Effects) {
        let number = self.map.my_number();
        let before = core::mem::replace(&mut self.targets.number, number);
        if before == number || before.is_none() {
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
    fn seats_learn(&mut self) {
        self.targets.seats.learn(&self.map);
    }

    /// Takes the MDM's answer to a question. Returns the version of the map that it needs.
    pub(in crate::sdc) fn seats_answer(&mut self, m: SeatsTaken) -> Option<MapVersion> {
        let version = MapVersion(m.map);
        let asked = self.targets.seats.question.as_mut().filter(|q| q.number == m.number)?;
        asked.answer = Some(m);
        self.seats_learn();
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
        let Some(link) = self.mdm.link() else { return };
        let seats = &mut self.targets.seats;
        if seats.question.is_none() && !seats.wanted.is_empty() {
            seats.number += 1;
            let mut list = Vec::new();
            while list.len() < SEATS_PER_MESSAGE
                && let Some(((volume, host), moves)) = seats.wanted.pop_first()
            {
                list.push(SeatWish { volume: volume.0, host, moves });
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
        let (number, seats) = (question.number, question.seats.clone());
        send_control(link, &TakeSeats { number, seats }, out);
    }

    /// Looks at the requests that wait for a seat: passes on those of hosts that have one, and ends
    /// those of hosts that another gateway serves.
    pub(super) fn seats_admit(&mut self, now: Time, out: &mut Effects) {
        self.targets.seats.review = false;
        let patience = self.config.limits.target_patience;
        self.targets.seats_activated(now, &self.map, patience);
        let waiting = core::mem::take(&mut self.targets.crowded[UNSEATED]);
        for waiting in waiting {
            let (link, volume) = (waiting.link, waiting.request.volume);
            match self.targets.place(&self.map, link, volume) {
                Place::Seated => self.target_pass(now, waiting, out),
                Place::Unconfirmed => {
                    let host = self.targets.host(link).to_owned();
                    self.targets.seats.want(volume, &host, false);
                    self.targets.crowded[UNSEATED].push_back(waiting);
                }
                Place::Elsewhere => {
                    let Waiting { link, tag, arrival, .. } = waiting;
                    let origin = Origin::Target { link, tag, arrival };
                    self.counters.done(now, &self.map, &origin, false);
                    self.target_done(now, link, tag, Err(BlockError::Elsewhere), out);
                }
            }
        }
    }
}
