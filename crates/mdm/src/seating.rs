//! The leader's knowledge of gateways and their hosts, and the decision which seats move.
//!
//! A seat moves if its gateway was silent for `suspect_after` (1 s as shipped), tells that the host
//! has left it, or may not use the volume any more. It also moves if its gateway is without the
//! host for twice that time after it registered, and after it asked for the seat: the question may
//! come before the heartbeat that names the host.
//!
//! A seat moves to the gateway that asks for it, or to one that is heard, has the host, and may use
//! the volume. A gateway has the host if a session of this host can use the volume there: other
//! sessions, such as those of discovery, are no path to it. A gateway that asks because its host
//! wants to be served there gets the seat in any case.
//!
//! All of this belongs to one leadership. A new leader has heard of no gateway: none counts as
//! silent until it has led for three times `suspect_after`. Time in which this MDM could not look
//! at the seats does not count: it has heard nobody then.

use crate::command::{Seat, SeatChange};
use crate::seat::SEATS;
use crate::state::{State, Volume};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use base::{Duration, Limits, SdcId, Time, VolumeId};
use wire::control::{Access, HostNames, SeatWish};

/// The most seats that one command moves.
const MOVES: usize = 1024;
/// The most hosts that are believed of one gateway. More can't connect.
const HOSTS: usize = 8192;
/// Stands for all volumes: an NVMe host reaches each of them.
const ALL: u32 = 0;

/// A host, and the volume that it is connected to, or [`ALL`].
type Path = (String, u32);

/// What is known of one gateway.
#[derive(Debug)]
struct Gateway {
    heard: Time,
    /// Its hosts.
    hosts: BTreeMap<String, BTreeSet<u32>>,
    /// When it told its hosts for the first time.
    told: Time,
    /// Paths that it had, and has no more. They are forgotten when `told` is old.
    left: BTreeSet<Path>,
    /// Paths for which it has asked for a seat lately, without telling of the host. A host that had
    /// left it is back.
    asked: BTreeMap<Path, Time>,
}

impl Gateway {
    /// Creates a gateway that is heard, and has not told its hosts yet.
    fn new(now: Time) -> Gateway {
        let (hosts, left, asked) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Gateway { heard: now, hosts, told: now, left, asked }
    }

    /// Returns true if this host can use the volume through it.
    fn has(&self, volume: VolumeId, host: &str) -> bool {
        let volumes = self.hosts.get(host);
        volumes.is_some_and(|volumes| volumes.contains(&ALL) || volumes.contains(&volume.0))
    }

    /// Returns true if the gateway has told that this host has left it.
    fn was_left(&self, volume: VolumeId, host: &str) -> bool {
        let left = |volume: u32| self.left.contains(&(String::from(host), volume));
        left(ALL) || left(volume.0)
    }

    /// Records its hosts.
    fn tell(&mut self, hosts: HostNames) {
        let all = hosts.names.into_iter().map(|host| (host, ALL));
        let one = hosts.sessions.into_iter().map(|wish| (wish.host, wish.volume));
        let before = core::mem::take(&mut self.hosts);
        for (host, volume) in all.chain(one).take(HOSTS) {
            self.hosts.entry(host).or_default().insert(volume);
        }
        let hosts = &self.hosts;
        let has =
            |host: &String, volume: &u32| hosts.get(host).is_some_and(|of| of.contains(volume));
        self.left.retain(|(host, volume)| !has(host, volume));
        for (host, volumes) in before {
            for volume in volumes.into_iter().filter(|volume| !has(&host, volume)) {
                let same = |of: u32| volume == ALL || volume == of;
                self.asked.retain(|(other, of), _| *other != host || !same(*of));
                self.left.insert((host.clone(), volume));
            }
        }
    }
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

    /// Records a heartbeat of a client. `hosts`: its hosts, if it tells them.
    pub fn heard(&mut self, now: Time, sdc: SdcId, hosts: Option<HostNames>) {
        if let Some(gateway) = self.gateways.get_mut(&sdc) {
            gateway.heard = now;
        }
        let Some(hosts) = hosts else { return };
        let gateway = self.gateways.entry(sdc).or_insert_with(|| Gateway::new(now));
        gateway.tell(hosts);
        if !gateway.left.is_empty() {
            self.due.get_or_insert(now); // a look forgets them in the end
        }
    }

    /// Records that a gateway asks for these seats. It has or had their hosts: the heartbeat that
    /// tells of them gets as much time as the first one.
    pub fn asked(&mut self, now: Time, sdc: SdcId, wishes: &[SeatWish]) {
        let Some(gateway) = self.gateways.get_mut(&sdc) else { return };
        for SeatWish { volume, host, .. } in wishes {
            let path = (host.clone(), *volume);
            let room = gateway.asked.len() < HOSTS;
            if room && !gateway.has(VolumeId(*volume), host) {
                gateway.asked.entry(path).or_insert(now);
            }
        }
        self.due.get_or_insert(now);
    }

    /// Records that a client is another process from now on, which has no hosts yet.
    pub fn came(&mut self, now: Time, sdc: SdcId) {
        self.gateways.insert(sdc, Gateway::new(now));
        self.look(now);
    }

    /// Makes the next look due.
    pub fn look(&mut self, now: Time) {
        self.due = Some(self.due.map_or(now, |due| due.min(now)));
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

    /// Returns true if the gateway can't serve this host of the volume any more.
    fn is_over(
        &self,
        now: Time,
        (id, volume, state): (VolumeId, &Volume, &State),
        (sdc, host): (SdcId, &str),
        limits: &Limits,
    ) -> bool {
        let may = state.sdcs.contains_key(&sdc) && volume.mapping.grant(sdc).is_some();
        if !may || self.is_silent(now, sdc, limits) {
            return true;
        }
        let gateway = self.gateways.get(&sdc).filter(|gateway| !gateway.has(id, host));
        gateway.is_some_and(|gateway| {
            let asked = gateway.asked.get(&(String::from(host), id.0)).copied();
            let since = gateway.told.max(asked.unwrap_or(gateway.told));
            let left = asked.is_none() && gateway.was_left(id, host);
            left || now.since(since) >= limits.suspect_after * 2
        })
    }

    /// Returns true if this host can use the volume through the gateway, by all that is known.
    pub fn serves(
        &self,
        now: Time,
        (id, volume): (VolumeId, &Volume),
        (sdc, host): (SdcId, &str),
        limits: &Limits,
    ) -> bool {
        volume.mapping.grant(sdc).is_some()
            && volume.mapping.admits(host)
            && self.gateways.get(&sdc).is_some_and(|gateway| gateway.has(id, host))
            && !self.is_silent(now, sdc, limits)
    }

    /// Returns the gateway that can serve this host of the volume: one that may write, and of those
    /// the one with the lowest number.
    fn successor(
        &self,
        now: Time,
        (id, volume, state): (VolumeId, &Volume, &State),
        (but, host): (SdcId, &str),
        limits: &Limits,
    ) -> Option<SdcId> {
        let can = |sdc: SdcId| sdc != but && self.serves(now, (id, volume), (sdc, host), limits);
        let gateways = state.sdcs.iter().filter_map(|(id, sdc)| Some((sdc.gateway?, *id)));
        // Of two accesses, read-only is the greater value.
        let rank = |(number, sdc): &(u8, SdcId)| (access(volume, *sdc), *number);
        gateways.filter(|(_, sdc)| can(*sdc)).min_by_key(rank).map(|(_, sdc)| sdc)
    }

    /// Moves the clocks on if the look comes too late: this MDM was stalled, or led no cluster that
    /// it could change. It has heard nobody in that time.
    fn excuse(&mut self, now: Time, late: Duration) {
        let later = |time: Time| (time + late).min(now);
        self.began = self.began.map(later);
        for gateway in self.gateways.values_mut() {
            (gateway.heard, gateway.told) = (later(gateway.heard), later(gateway.told));
            gateway.asked.values_mut().for_each(|at| *at = later(*at));
        }
    }

    /// Returns the seats that have to move now, if it is time to look at them.
    pub fn moves(&mut self, now: Time, state: &State, limits: &Limits) -> Option<Seat> {
        let due = self.due.filter(|at| *at <= now)?;
        if now.since(due) >= limits.heartbeat_every {
            self.excuse(now, now.since(due));
        }
        self.gateways.retain(|sdc, _| state.sdcs.contains_key(sdc));
        let all = state.volumes.iter().flat_map(|(id, v)| v.seats.iter().map(move |s| (*id, v, s)));
        let mut seats = all.peekable();
        let none = seats.peek().is_none();
        let change =
            |(id, volume, (host, seat)): (VolumeId, &Volume, (&String, &crate::seat::Seat))| {
                let (place, from) = ((id, volume, state), (seat.sdc, host.as_str()));
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
            gateway.asked.retain(|_, at| now.since(*at) < lasts);
            if now.since(gateway.told) >= lasts {
                gateway.left.clear();
            }
        }
        let next = if changes.len() == MOVES { now } else { now + limits.heartbeat_every };
        self.due = (!none).then_some(next);
        (!changes.is_empty()).then_some(Seat { changes })
    }

    /// Returns a host of a full volume whose seat may end, because it can use the volume nowhere.
    fn idle<'a>(
        &self,
        now: Time,
        (id, volume, state): (VolumeId, &'a Volume, &State),
        but: &BTreeSet<&str>,
        limits: &Limits,
    ) -> Option<(&'a String, SdcId)> {
        let is_idle = |host: &str, sdc: SdcId| {
            let by = |sdc: &SdcId| self.serves(now, (id, volume), (*sdc, host), limits);
            !but.contains(host)
                && self.is_over(now, (id, volume, state), (sdc, host), limits)
                && !self.gateways.keys().any(by)
        };
        let mut seats = volume.seats.iter().map(|(host, seat)| (host, seat.sdc));
        seats.find(|(host, sdc)| is_idle(host, *sdc))
    }

    /// Returns the changes that give a gateway these seats, where no gateway has them, where the
    /// gateway that has one is without the host, or where the host wants them to move. If a volume
    /// has no room for a seat, the seat of a host that can use the volume nowhere ends.
    pub fn wished(
        &self,
        now: Time,
        state: &State,
        (sdc, wishes): (SdcId, &[SeatWish]),
        limits: &Limits,
    ) -> Seat {
        let mut changes = Vec::new();
        let mut asked = BTreeSet::new();
        // For each volume: the number of its seats, and the hosts whose seat ends.
        let mut rooms: BTreeMap<u32, (usize, BTreeSet<&str>)> = BTreeMap::new();
        for SeatWish { volume: id, host, moves } in wishes {
            let Some(volume) = state.volumes.get(&VolumeId(*id)) else { continue };
            let gateway = state.sdcs.get(&sdc).is_some_and(|sdc| sdc.gateway.is_some());
            let mapping = &volume.mapping;
            let may = gateway && mapping.grant(sdc).is_some() && mapping.admits(host);
            if !may || !asked.insert((id, host)) {
                continue;
            }
            if let Some(seat) = volume.seats.get(host) {
                let (place, from) = ((VolumeId(*id), volume, state), (seat.sdc, host.as_str()));
                let may = access(volume, sdc) <= access(volume, seat.sdc);
                let goes = *moves && may || self.is_over(now, place, from, limits);
                let (host, from, to) = (host.clone(), seat.sdc.0, sdc.0);
                let change = SeatChange { volume: *id, host, from, to };
                changes.extend(Some(change).filter(|_| goes && from != to));
                continue;
            }
            let new = || (volume.seats.len(), BTreeSet::new());
            let (taken, ended) = rooms.entry(*id).or_insert_with(new);
            if *taken >= SEATS {
                let place = (VolumeId(*id), volume, state);
                let Some((idle, from)) = self.idle(now, place, ended, limits) else { continue };
                ended.insert(idle);
                *taken -= 1;
                let host = idle.clone();
                changes.push(SeatChange { volume: *id, host, from: from.0, to: 0 });
            }
            *taken += 1;
            let host = host.clone();
            changes.push(SeatChange { volume: *id, host, from: 0, to: sdc.0 });
        }
        Seat { changes }
    }
}

/// Returns what a gateway may do with a volume; `None`: nothing.
fn access(volume: &Volume, sdc: SdcId) -> Option<Access> {
    volume.mapping.grant(sdc).map(|grant| grant.access)
}
