//! Leases between pairs of devices (rule R3): as a primary I hold them, as a secondary I grant them.
//!
//! A lease says: "until then I won't act for a group that you lead". It holds on the primary's clock
//! from the moment its beacon left, on the secondary's until 1.25 leases after the beacon came, so
//! clocks may differ in rate by a fifth, and need not agree on the time at all.

use crate::stopwatch::smooth;
use alloc::collections::BTreeMap;
use base::{DeviceId, Duration, IdMap, Incarnation, Limits, MapVersion, Mutant, Time, mutant};

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    until: Time,
    heard: Time,
    needed_since: Option<Time>,
    beacon_due: Time,
    /// From a beacon to its grant, smoothed.
    trip: Duration,
    /// A grant that came with a map that this side didn't know: when its beacon left, and that map.
    early: Option<(Time, MapVersion)>,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    until: Time,
    /// The newest life that was heard.
    incarnation: Incarnation,
    /// Until when lives before that one may serve reads by a grant of mine: one may go on beside it, and knows no newer map.
    former: Time,
    /// The newest map that it has said to have, of those that I know.
    map: MapVersion,
    /// What it said last, if that is newer than what I know: it may be anything, and counts when I know it.
    said: MapVersion,
}

/// All leases of one device.
#[derive(Debug)]
pub struct Leases {
    held: IdMap<DeviceId, Held>,
    /// The earliest `beacon_due` of those that are needed: whoever changes one calls `reckon`.
    next_beacon: Option<Time>,
    granted: IdMap<DeviceId, Granted>,
    /// The version of this side's map.
    mine: MapVersion,
    boot: Time,
    lease: Duration,
    grace: Duration,
    every: Duration,
    suspect_after: Duration,
    /// When this side last looked for beacons that are due, and since when it does so without having stood still.
    ran: Time,
    awake: Time,
}

/// What the map says of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The life that the map knows.
    pub incarnation: Incarnation,
    /// That life's process is known to be dead.
    pub dead: bool,
}

impl Leases {
    /// None held; of what an earlier life granted nothing is known.
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
            suspect_after: limits.unreached_after(),
            ran: boot,
            awake: boot,
        }
    }

    /// From now on exactly these devices' leases are needed.
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

    /// The devices whose beacons are due; counts them as sent.
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

    /// When `due` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        self.next_beacon
    }

    /// A beacon to this device would get through now: send it at the next occasion.
    pub fn hurry(&mut self, device: DeviceId) {
        if let Some(held) = self.held.get_mut(device) {
            held.beacon_due = Time::ZERO;
            self.reckon();
        }
    }

    /// A grant came, for a beacon that left at `sent`. Counts only if this side's map is at least as
    /// new as the granter's (rule R4: the granter may lead one of my groups in a map I don't have).
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
    }

    /// True while this device's lease lets me read.
    #[inline]
    pub fn holds(&self, now: Time, of: DeviceId) -> bool {
        mutant::on(Mutant::NoLease) || self.held.get(of).is_some_and(|h| now < h.until)
    }

    /// Since when this side has run without a long stop. While it stood still it asked nobody, and what was answered
    /// before that waits to be read.
    pub(crate) fn awake(&self, now: Time) -> Time {
        let stood = now.since(self.ran) > self.suspect_after / 2;
        if stood { now } else { self.awake }
    }

    /// Devices that are needed and have not granted for too long.
    pub fn silent(&self, now: Time) -> impl Iterator<Item = DeviceId> {
        let awake = self.awake(now);
        self.held.iter().filter_map(move |(device, held)| {
            let since = held.needed_since?.max(held.heard).max(awake);
            (now.since(since) > self.suspect_after).then_some(device)
        })
    }

    /// How long needed devices take to grant, of those that did lately.
    pub fn trips(&self, now: Time) -> impl Iterator<Item = (DeviceId, Duration)> {
        let lately = self.every * 3;
        self.held.iter().filter_map(move |(device, held)| {
            held.needed_since?;
            (now.since(held.heard) < lately).then_some((device, held.trip))
        })
    }

    /// True when the device has granted within the last three beacons.
    pub fn answers(&self, now: Time, device: DeviceId) -> bool {
        let heard = self.held.get(device).map_or(Time::ZERO, |h| h.heard);
        heard > Time::ZERO && now.since(heard) < self.every * 3
    }

    /// Grants that came with maps that this side knows by now count. Call when all of the map is in force: a group that
    /// another one leads in it is given up before. True if one counts that did not.
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

    /// I grant a lease to this life of a primary, whose beacon came now. False: a newer life was heard, and it gets none.
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

    /// This side's map is another one. A life of which it says that its process is dead serves nothing any more.
    pub fn know(&mut self, map: MapVersion, fates: &BTreeMap<DeviceId, Fate>) {
        self.mine = map;
        for (device, fate) in fates.iter().filter(|(_, fate)| fate.dead) {
            if let Some(granted) = self.granted.get_mut(*device)
                && granted.incarnation == fate.incarnation
            {
                granted.until = Time::ZERO;
            }
        }
        for (_, granted) in self.granted.iter_mut().filter(|(_, g)| g.said <= map) {
            granted.map = granted.map.max(granted.said);
        }
    }

    /// Any frame tells how new the map of the sender, a life of a device, is. True when that is news. A version that this
    /// side doesn't know is kept until it does: one that was made up must not outlive the lie.
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
            return false; // what a former life knows says nothing of the newer one
        }
        if life > entry.incarnation {
            let one = mutant::on(Mutant::OneLife);
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

    /// Until when my grants up to now let `device` serve reads, if nothing is known of it. An earlier
    /// life of mine may have granted until a full grace after this one's start.
    pub fn promised(&self, device: DeviceId) -> Time {
        let boot =
            if mutant::on(Mutant::NoRestartGrace) { Time::ZERO } else { self.boot + self.grace };
        self.granted.get(device).map_or(boot, |g| g.until.max(g.former).max(boot))
    }

    /// True when `device` can't serve reads any more by a lease of mine, in a group that I lead since
    /// `map`: it knows, or it is dead, and no life before that one may; or what was `promised` before I knew that map is
    /// over. (Later grants tell the map, and are of no use to one who doesn't know it.)
    pub fn is_over(
        &self,
        now: Time,
        device: DeviceId,
        map: MapVersion,
        fate: Option<Fate>,
        promised: Time,
    ) -> bool {
        let granted = self.granted.get(device);
        let knows = granted.is_some_and(|g| g.map >= map);
        let dead = fate.is_some_and(|fate| {
            fate.dead && granted.is_none_or(|g| g.incarnation == fate.incarnation)
        });
        let newer = |f: Fate| granted.is_some_and(|g| f.incarnation > g.incarnation);
        let dead = dead || mutant::on(Mutant::NewerIsDead) && fate.is_some_and(newer);
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
    fn who_stood_still_accuses_nobody_with_the_first_breath() {
        let ms = |n: u64| Time(n * 1_000_000);
        let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
        leases.need(ms(1), &[DeviceId(2)].into());
        let silent = |leases: &Leases, n| leases.silent(ms(n)).count();
        leases.due(ms(400), |_| {});
        leases.granted(ms(401), DeviceId(2), ms(400), MapVersion(1), MapVersion(1));
        // It stands still for ten seconds. The grants of that time have not been read yet.
        assert_eq!(silent(&leases, 10_400), 0);
        leases.due(ms(10_400), |_| {});
        assert_eq!(silent(&leases, 10_400), 0);
        // Who answers nothing from then on is silent.
        (10_800..12_400).step_by(400).for_each(|n| leases.due(ms(n), |_| {}));
        assert_eq!((silent(&leases, 12_400), silent(&leases, 12_401)), (0, 1));
    }

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

    /// An address may have moved to another host, and the process of before goes on at the old one.
    #[test]
    fn a_newer_life_at_the_same_address_is_no_proof_that_the_older_one_is_dead() {
        let ms = |n: u64| Time(n * 1_000_000);
        let fate = |life, dead| Fate { incarnation: Incarnation(life), dead };
        // A process that has run for a while: its own earlier life has promised nothing that still counts.
        let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
        let (peer, map) = (DeviceId(2), MapVersion(2));
        leases.grant(ms(10_000), peer, Incarnation(1), MapVersion(1));
        let promised = leases.promised(peer);
        let over = |now, fate| leases.is_over(ms(now), peer, map, Some(fate), promised);
        assert!(!over(10_001, fate(1, false)) && !over(10_001, fate(2, false)));
        assert!(!over(10_001, fate(2, true)), "that is the death of another one");
        assert!(over(10_001, fate(1, true)));
        let end = 10_000 + Limits::SHIPPED.grace.as_millis() as u64;
        assert!(!over(end - 1, fate(2, false)) && over(end, fate(2, false)));
    }

    /// Two processes of one server's name: the older one stood still, and goes on with its lease.
    #[test]
    fn what_a_newer_life_knows_ends_no_lease_of_an_older_one() {
        let ms = |n: u64| Time(n * 1_000_000);
        let mut leases = Leases::new(ms(0), &Limits::SHIPPED);
        let (peer, map) = (DeviceId(2), MapVersion(2));
        leases.know(map, &BTreeMap::new());
        assert!(leases.grant(ms(10_000), peer, Incarnation(1), MapVersion(1)));
        let grace = Limits::SHIPPED.grace.as_millis() as u64;
        let promised = leases.promised(peer);
        let over = |leases: &Leases, now| {
            let fate = Fate { incarnation: Incarnation(2), dead: true };
            leases.is_over(ms(now), peer, map, Some(fate), promised)
        };
        assert!(leases.grant(ms(10_001), peer, Incarnation(2), map));
        assert!(!over(&leases, 10_002) && !over(&leases, 10_000 + grace - 1));
        assert_eq!(leases.promised(peer), ms(10_001 + grace));
        assert!(over(&leases, 10_000 + grace));
        // The older one gets no lease any more, and what it knows says nothing of the newer one.
        assert!(!leases.grant(ms(10_003), peer, Incarnation(1), MapVersion(9)));
        assert!(!leases.heard(ms(10_003), peer, Incarnation(1), map));
        // One whose death is proven has no lease.
        let dead = [(peer, Fate { incarnation: Incarnation(2), dead: true })];
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
