//! Leases between pairs of devices (rules R3 and R4): a primary holds leases, a secondary grants
//! them.
//!
//! A lease says: "until then I will not act as the primary of a group that you lead." For the
//! primary it runs from the moment when its beacon left, and for one `Limits::lease`. For the
//! secondary it runs from the moment when the beacon arrived, and for `Limits::grace`, which is
//! 1.25 leases. So clocks may differ in rate by a fifth, and need not agree on the time.
//!
//! Invariants:
//! - A lease never lets its holder read longer than it binds its granter, as long as clocks keep to
//!   that bound.
//! - A grant counts only when the holder's map is at least as new as the granter's (R4). So after a
//!   device has learned that it is the new primary, its grants are useless to a former primary that
//!   doesn't know.
//! - Only the newest incarnation of a device gets leases.

use crate::stopwatch::smooth;
use alloc::collections::BTreeMap;
use base::{DeviceId, Duration, IdMap, Incarnation, Limits, MapVersion, Mutant, Time, mutant};

/// A lease from another device, which this one holds or asks for.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    until: Time,
    heard: Time,
    needed_since: Option<Time>,
    beacon_due: Time,
    /// Time from a beacon to its grant, smoothed.
    trip: Duration,
    /// A grant that came with a map that this device did not know: when its beacon left, and the
    /// map.
    early: Option<(Time, MapVersion)>,
}

/// A lease that this device has granted.
#[derive(Clone, Copy, Debug)]
struct Granted {
    until: Time,
    /// The newest incarnation that this device has heard from.
    incarnation: Incarnation,
    /// Until when earlier incarnations may serve reads by a grant of this device. One of them may
    /// still run beside the newest one, and know no newer map.
    former: Time,
    /// The newest map that it has said it knows, among those that this device knows.
    map: MapVersion,
    /// The map that it named last, if this device doesn't know that one yet. It may be made up, so
    /// it counts only when this device knows it, too.
    said: MapVersion,
}

/// All leases of one device.
#[derive(Debug)]
pub struct Leases {
    held: IdMap<DeviceId, Held>,
    /// The earliest `beacon_due` of the leases that are needed. Code that changes one calls
    /// `reckon`.
    next_beacon: Option<Time>,
    granted: IdMap<DeviceId, Granted>,
    /// The version of this device's map.
    mine: MapVersion,
    boot: Time,
    lease: Duration,
    grace: Duration,
    every: Duration,
    unreached_after: Duration,
    /// When this device last looked for beacons that are due, and since when it has done so without
    /// a long stop.
    ran: Time,
    awake: Time,
}

/// What the map says about another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerState {
    /// The incarnation that the map names.
    pub incarnation: Incarnation,
    /// The process of that incarnation is known to be dead.
    pub dead: bool,
}

impl Leases {
    /// Creates the leases of a device that holds none. What its earlier incarnations granted is
    /// unknown.
    pub fn new(boot: Time, limits: &Limits) -> Leases {
        Leases {
            held: IdMap::default(),
            next_beacon: None,
            granted: IdMap::default(),
            mine: MapVersion(0),
            boot,
            lease: limits.lease,
            grace: limits.grace,
            every: limits.beacon_every,
            unreached_after: limits.unreached_after(),
            ran: boot,
            awake: boot,
        }
    }

    /// Sets the devices whose leases are needed from now on.
    pub fn need(&mut self, now: Time, devices: &alloc::collections::BTreeSet<DeviceId>) {
        for (device, held) in self.held.iter_mut() {
            if !devices.contains(&device) {
                held.needed_since = None;
            }
        }
        for device in devices {
            let held = self.held.get_or_insert_with(*device, Held::default);
            if held.needed_since.is_none() {
                held.needed_since = Some(now);
                held.beacon_due = now;
            }
        }
        self.reckon();
    }

    fn reckon(&mut self) {
        let needed = self.held.values().filter(|h| h.needed_since.is_some());
        self.next_beacon = needed.map(|h| h.beacon_due).min();
    }

    /// Reports the devices whose beacons are due, and counts these as sent.
    pub fn due(&mut self, now: Time, mut beacon: impl FnMut(DeviceId)) {
        (self.awake, self.ran) = (self.awake(now), now);
        if self.next_beacon.is_none_or(|at| at > now) {
            return;
        }
        for (device, held) in self.held.iter_mut() {
            if held.needed_since.is_some() && held.beacon_due <= now {
                held.beacon_due = now + self.every;
                beacon(device);
            }
        }
        self.reckon();
    }

    /// Returns when `due` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.next_beacon
    }

    /// Makes a beacon to this device due now, because a new link can carry it.
    pub fn hurry(&mut self, device: DeviceId) {
        if let Some(held) = self.held.get_mut(device) {
            held.beacon_due = Time::ZERO;
            self.reckon();
        }
    }

    /// Takes a grant for a beacon that was sent at `sent`. It counts only if this device's map is
    /// at least as new as the granter's (rule R4: in a newer map the granter may be the primary of
    /// one of this device's groups).
    pub fn granted(
        &mut self,
        now: Time,
        by: DeviceId,
        sent: Time,
        by_map: MapVersion,
        my_map: MapVersion,
    ) {
        let held = self.held.get_or_insert_with(by, Held::default);
        held.heard = now;
        held.trip = smooth(held.trip, now.since(sent));
        if by_map > my_map && !mutant::on(Mutant::GrantOldMap) {
            held.early = Some((sent.min(now), by_map));
            return;
        }
        let from = if mutant::on(Mutant::LeaseFromGrant) { now } else { sent.min(now) };
        held.until = held.until.max(from + self.lease);
        assert!(
            held.until <= now + self.lease,
            "a lease never runs for longer than one lease (R3)"
        );
    }

    /// Returns true while a lease from the device `of` lets this one read.
    #[inline]
    pub fn holds(&self, now: Time, of: DeviceId) -> bool {
        mutant::on(Mutant::NoLease) || self.held.get(of).is_some_and(|h| now < h.until)
    }

    /// Returns the time since which this device has run without a long stop. While it was stopped
    /// it sent no beacons, and answers that had arrived before were not read.
    pub(crate) fn awake(&self, now: Time) -> Time {
        let stood = now.since(self.ran) > self.unreached_after / 2;
        if stood && !mutant::on(Mutant::ForgetPause) { now } else { self.awake }
    }

    /// Returns the devices that are needed and have not granted for too long.
    pub fn silent(&self, now: Time) -> impl Iterator<Item = DeviceId> {
        let awake = self.awake(now);
        self.held.iter().filter_map(move |(device, held)| {
            let since = held.needed_since?.max(held.heard).max(awake);
            let silent = now.since(since) > self.unreached_after;
            (silent && !mutant::on(Mutant::SuspectNobody)).then_some(device)
        })
    }

    /// Returns how long needed devices take to grant, for those that have done so recently.
    pub fn round_trips(&self, now: Time) -> impl Iterator<Item = (DeviceId, Duration)> {
        let lately = self.every * 3;
        self.held.iter().filter_map(move |(device, held)| {
            held.needed_since?;
            (now.since(held.heard) < lately).then_some((device, held.trip))
        })
    }

    /// Returns true if the device has granted within the last three intervals of beacons.
    pub fn answers(&self, now: Time, device: DeviceId) -> bool {
        let heard = self.held.get(device).map_or(Time::ZERO, |h| h.heard);
        heard > Time::ZERO && now.since(heard) < self.every * 3
    }

    /// Counts grants that came with maps that this device knows by now. Call it when all of the map
    /// is in force: by then this device has given up the groups that have another primary in it.
    /// Returns true if a grant counts that did not count before.
    pub fn count_early(&mut self) -> bool {
        let (mine, lease) = (self.mine, self.lease);
        let mut any = false;
        for (_, held) in self.held.iter_mut() {
            if let Some((sent, _)) = held.early.take_if(|(_, map)| *map <= mine) {
                held.until = held.until.max(sent + lease);
                any = true;
            }
        }
        any
    }

    /// Grants a lease to this incarnation of a primary, whose beacon came now. Returns false, and
    /// grants nothing, if a newer incarnation is known.
    pub fn grant(
        &mut self,
        now: Time,
        to: DeviceId,
        life: Incarnation,
        their_map: MapVersion,
    ) -> bool {
        self.heard(now, to, life, their_map);
        let grace = if mutant::on(Mutant::NoMargin) { self.lease } else { self.grace };
        let entry = self.granted.get_mut(to).filter(|g| g.incarnation == life);
        entry.map(|granted| granted.until = now + grace).is_some()
    }

    /// Takes over a new map. An incarnation whose process is dead by the map serves nothing any
    /// more.
    pub fn know(&mut self, map: MapVersion, peers: &BTreeMap<DeviceId, PeerState>) {
        self.mine = map;
        for (device, state) in peers.iter().filter(|(_, state)| state.dead) {
            if let Some(granted) = self.granted.get_mut(*device)
                && granted.incarnation == state.incarnation
            {
                granted.until = Time::ZERO;
            }
        }
        for (_, granted) in self.granted.iter_mut().filter(|(_, g)| g.said <= map) {
            granted.map = granted.map.max(granted.said);
        }
    }

    /// Records the map version that an incarnation of a device has named in a frame. Returns true
    /// if it is new. A version that this device doesn't know waits until it does, and the next
    /// frame replaces it: a version that was made up must not last.
    pub fn heard(&mut self, now: Time, from: DeviceId, life: Incarnation, map: MapVersion) -> bool {
        let unknown = |until: Time, former: Time| Granted {
            until,
            incarnation: life,
            former,
            map: MapVersion(0),
            said: MapVersion(0),
        };
        let (until, mine) = (now.min(self.boot), self.mine);
        let entry = self.granted.get_or_insert_with(from, || unknown(until, Time::ZERO));
        if life < entry.incarnation {
            return false; // what an earlier incarnation knows says nothing about the newer one
        }
        if life > entry.incarnation {
            let one = mutant::on(Mutant::OneIncarnation);
            let former = if one { Time::ZERO } else { entry.former.max(entry.until) };
            *entry = unknown(until, former);
        }
        entry.said = map;
        let news = map > entry.map && map <= mine;
        if news {
            entry.map = map;
        }
        news
    }

    /// Returns until when the grants up to now let `device` serve reads, if nothing else is known
    /// about it. An earlier incarnation of this device may have granted leases that run until a
    /// full grace after this one's start.
    pub fn promised(&self, device: DeviceId) -> Time {
        let boot =
            if mutant::on(Mutant::NoRestartGrace) { Time::ZERO } else { self.boot + self.grace };
        self.granted.get(device).map_or(boot, |g| g.until.max(g.former).max(boot))
    }

    /// Returns true if `device` can't serve reads by a lease of this device any more, in a group of
    /// which this device is the primary since `map`. Either it knows that map or is dead, and no
    /// earlier incarnation of it may still serve; or the time `promised` before this device knew
    /// the map has passed. (Later grants carry the map's version and are useless to a device that
    /// doesn't know it.)
    pub fn is_over(
        &self,
        now: Time,
        device: DeviceId,
        map: MapVersion,
        state: Option<PeerState>,
        promised: Time,
    ) -> bool {
        let granted = self.granted.get(device);
        let knows = granted.is_some_and(|g| g.map >= map);
        let dead = state.is_some_and(|state| {
            state.dead && granted.is_none_or(|g| g.incarnation == state.incarnation)
        });
        let newer = |f: PeerState| granted.is_some_and(|g| f.incarnation > g.incarnation);
        let dead = dead || mutant::on(Mutant::NewerIsDead) && state.is_some_and(newer);
        let alone = granted.is_none_or(|g| g.former <= now);
        mutant::on(Mutant::NoGiveUp) || (knows || dead) && alone || promised <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn wakes_for_the_next_beacon_whatever_changed() {
        let ms = |n: u64| Time(n * 1_000_000);
        let sent = |leases: &mut Leases, now| {
            let mut to: Vec<u32> = Vec::new();
            leases.due(now, |device| to.push(device.0));
            to
        };
        let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
        assert_eq!(leases.wake_at(), None);
        leases.need(ms(1), &[DeviceId(1), DeviceId(2)].into());
        assert_eq!(leases.wake_at(), Some(ms(1)));
        assert_eq!(sent(&mut leases, ms(5)), [1, 2]);
        assert_eq!(leases.wake_at(), Some(ms(405)));
        leases.hurry(DeviceId(2));
        assert_eq!(sent(&mut leases, ms(50)), [2]);
        assert_eq!(leases.wake_at(), Some(ms(405)));
        leases.need(ms(60), &[DeviceId(2)].into());
        assert_eq!(leases.wake_at(), Some(ms(450)));
        leases.need(ms(70), &BTreeSet::new());
        leases.hurry(DeviceId(2));
        assert_eq!(leases.wake_at(), None);
    }

    /// Two processes of one server: the older one was paused, and continues with its lease.
    #[test]
    fn the_map_of_a_newer_process_ends_no_lease_of_an_older_one() {
        let ms = |n: u64| Time(n * 1_000_000);
        let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
        let (peer, map) = (DeviceId(2), MapVersion(2));
        leases.know(map, &BTreeMap::new());
        assert!(leases.grant(ms(10_000), peer, Incarnation(1), MapVersion(1)));
        let grace = Limits::SHIPPED.grace.as_millis() as u64;
        let promised = leases.promised(peer);
        let over = |leases: &Leases, now| {
            let state = PeerState { incarnation: Incarnation(2), dead: true };
            leases.is_over(ms(now), peer, map, Some(state), promised)
        };
        assert!(leases.grant(ms(10_001), peer, Incarnation(2), map));
        assert!(!over(&leases, 10_002) && !over(&leases, 10_000 + grace - 1));
        assert_eq!(leases.promised(peer), ms(10_001 + grace));
        assert!(over(&leases, 10_000 + grace));
        // The older one gets no lease any more, and its map says nothing about the newer one.
        assert!(!leases.grant(ms(10_003), peer, Incarnation(1), MapVersion(9)));
        assert!(!leases.heard(ms(10_003), peer, Incarnation(1), map));
        // A process whose death is proven has no lease.
        let dead = [(peer, PeerState { incarnation: Incarnation(2), dead: true })];
        leases.know(MapVersion(3), &dead.into());
        assert_eq!(leases.promised(peer), ms(10_000 + grace));
    }

    #[test]
    fn a_grant_by_a_newer_map_counts_when_that_map_is_in_force() {
        let ms = |n: u64| Time(n * 1_000_000);
        let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
        let (peer, known, newer) = (DeviceId(2), MapVersion(1), MapVersion(3));
        leases.know(known, &BTreeMap::new());
        leases.need(ms(0), &[peer].into());
        leases.granted(ms(101), peer, ms(100), newer, known);
        assert!(!leases.holds(ms(102), peer) && !leases.count_early());
        leases.know(MapVersion(2), &BTreeMap::new());
        assert!(!leases.count_early() && !leases.holds(ms(103), peer));
        leases.know(newer, &BTreeMap::new());
        assert!(!leases.holds(ms(104), peer), "groups of before may still be led here");
        assert!(leases.count_early() && !leases.count_early());
        let end = 100 + Limits::SHIPPED.lease.as_millis() as u64;
        assert!(leases.holds(ms(end - 1), peer) && !leases.holds(ms(end), peer));
    }
}
