//! The leader's knowledge of gateways and their hosts, and the decision which seats move.
//!
//! A seat moves if its gateway was silent for `suspect_after` (1 s as shipped), has been without
//! the host for twice that, or may not use the volume any more. It moves only to a gateway that is
//! heard, has the host, and may use the volume. All of this belongs to one leadership. A new leader
//! has heard of no gateway: none counts as silent until it has led for three times `suspect_after`.

use crate::command::{Seat, SeatChange};
use crate::seat::SEATS;
use crate::state::{State, Volume};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{Duration, Limits, SdcId, Time, VolumeId};
use wire::control::SeatWish;

/// The most seats that one command moves.
const MOVES: usize = 1024;
/// The most names of hosts that are believed of one gateway. More hosts can't connect.
const HOSTS: usize = 8192;

/// What is known of one gateway.
#[derive(Debug)]
struct Gateway {
    heard: Time,
    /// Its hosts, if it has told them.
    hosts: Option<BTreeSet<String>>,
    /// When it told its hosts for the first time.
    told: Time,
    /// Hosts that have left it lately.
    left: BTreeMap<String, Time>,
}

/// What is known of all gateways.
#[derive(Debug, Default)]
pub struct Seating {
    began: Option<Time>,
    gateways: BTreeMap<SdcId, Gateway>,
    /// When seats are looked at next. `None`: there is no seat.
    due: Option<Time>,
}

impl Seating {
    /// Begins a leadership.
    pub fn begin(&mut self, now: Time) {
        *self = Seating { began: Some(now), due: Some(now), ..Seating::default() };
    }

    /// Records a heartbeat of a client. `hosts`: the names of its hosts, if it tells them.
    pub fn heard(&mut self, now: Time, sdc: SdcId, hosts: Option<Vec<String>>) {
        if let Some(gateway) = self.gateways.get_mut(&sdc) {
            gateway.heard = now;
        }
        let Some(mut names) = hosts else { return };
        names.truncate(HOSTS);
        let names: BTreeSet<String> = names.into_iter().collect();
        let new = Gateway { heard: now, hosts: None, told: now, left: BTreeMap::new() };
        let gateway = self.gateways.entry(sdc).or_insert(new);
        let before = gateway.hosts.replace(names).unwrap_or_default();
        let Gateway { hosts, left, .. } = gateway;
        let has = |host: &String| hosts.as_ref().is_some_and(|hosts| hosts.contains(host));
        left.retain(|host, _| !has(host));
        let gone = before.into_iter().filter(|host| !has(host));
        gateway.left.extend(gone.map(|host| (host, now)));
    }

    /// Records that a client is another process from now on, which has no hosts yet.
    pub fn came(&mut self, now: Time, sdc: SdcId) {
        self.heard(now, sdc, Some(Vec::new()));
        self.look(now);
    }

    /// Makes the next look due.
    pub fn look(&mut self, now: Time) {
        self.due = Some(now);
    }

    /// Returns when [`Seating::moves`] may have something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.due
    }

    /// Returns true if the gateway has been silent for too long.
    fn is_silent(&self, now: Time, sdc: SdcId, limits: &Limits) -> bool {
        match self.gateways.get(&sdc) {
            Some(gateway) => now.since(gateway.heard) >= limits.suspect_after,
            None => self.began.is_some_and(|at| now.since(at) >= limits.suspect_after * 3),
        }
    }

    /// Returns true if this host is connected to the gateway.
    fn has(&self, sdc: SdcId, host: &str) -> bool {
        let hosts = self.gateways.get(&sdc).and_then(|gateway| gateway.hosts.as_ref());
        hosts.is_some_and(|hosts| hosts.contains(host))
    }

    /// Returns true if the gateway can't serve this host of the volume any more.
    fn is_over(
        &self,
        now: Time,
        (volume, state): (&Volume, &State),
        (sdc, host): (SdcId, &str),
        limits: &Limits,
    ) -> bool {
        let may = state.sdcs.contains_key(&sdc) && volume.mapping.grant(sdc).is_some();
        if !may || self.is_silent(now, sdc, limits) {
            return true;
        }
        let Some(gateway) = self.gateways.get(&sdc).filter(|_| !self.has(sdc, host)) else {
            return false;
        };
        let since = gateway.left.get(host).copied().unwrap_or(gateway.told);
        now.since(since) >= limits.suspect_after * 2
    }

    /// Returns the gateway with the lowest number that can serve this host of the volume.
    fn successor(
        &self,
        now: Time,
        (volume, state): (&Volume, &State),
        (but, host): (SdcId, &str),
        limits: &Limits,
    ) -> Option<SdcId> {
        let can = |sdc: &SdcId| {
            *sdc != but
                && volume.mapping.grant(*sdc).is_some()
                && self.has(*sdc, host)
                && !self.is_silent(now, *sdc, limits)
        };
        let gateways = state.sdcs.iter().filter_map(|(id, sdc)| Some((sdc.gateway?, *id)));
        gateways.filter(|(_, sdc)| can(sdc)).min().map(|(_, sdc)| sdc)
    }

    /// Returns the seats that have to move now, if it is time to look at them.
    pub fn moves(&mut self, now: Time, state: &State, limits: &Limits) -> Option<Seat> {
        self.due.filter(|at| *at <= now)?;
        let all = state.volumes.iter().flat_map(|(id, v)| v.seats.iter().map(move |s| (*id, v, s)));
        let mut seats = all.peekable();
        let none = seats.peek().is_none();
        let change =
            |(id, volume, (host, seat)): (VolumeId, &Volume, (&String, &crate::seat::Seat))| {
                let (place, from) = ((volume, state), (seat.sdc, host.as_str()));
                if !self.is_over(now, place, from, limits) {
                    return None;
                }
                let to = self.successor(now, place, from, limits)?;
                let (volume, host) = (id.0, host.clone());
                Some(SeatChange { volume, host, from: seat.sdc.0, to: to.0 })
            };
        let changes: Vec<SeatChange> = seats.filter_map(change).take(MOVES).collect();
        let lasts: Duration = limits.suspect_after * 2;
        for gateway in self.gateways.values_mut() {
            gateway.left.retain(|_, at| now.since(*at) < lasts);
        }
        self.due = (!none).then(|| now + limits.heartbeat_every);
        (!changes.is_empty()).then_some(Seat { changes })
    }

    /// Returns the changes that give a gateway these seats, where no gateway has them, or where the
    /// host wants them to move. If a volume has no room for a seat, the seat of a host that is
    /// connected nowhere ends.
    pub fn wished(&self, state: &State, sdc: SdcId, wishes: &[SeatWish]) -> Seat {
        let mut changes = Vec::new();
        for wish in wishes {
            let Some(volume) = state.volumes.get(&VolumeId(wish.volume)) else { continue };
            let (id, host) = (wish.volume, wish.host.clone());
            if let Some(seat) = volume.seats.get(&wish.host) {
                let from = seat.sdc.0;
                let moves = wish.moves && seat.sdc != sdc;
                changes.extend(moves.then(|| SeatChange { volume: id, host, from, to: sdc.0 }));
                continue;
            }
            if volume.seats.len() >= SEATS {
                let anywhere = |host: &str| self.gateways.keys().any(|sdc| self.has(*sdc, host));
                let idle = volume.seats.iter().find(|(host, _)| !anywhere(host));
                let end = idle.map(|(host, seat)| (host.clone(), seat.sdc.0));
                changes.extend(end.map(|(host, from)| SeatChange {
                    volume: id,
                    host,
                    from,
                    to: 0,
                }));
            }
            changes.push(SeatChange { volume: id, host, from: 0, to: sdc.0 });
        }
        Seat { changes }
    }
}
