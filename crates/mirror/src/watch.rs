//! Everything that depends on the clock: beacons and leases (R3), leases that run out (R4),
//! repeated questions, and the devices that this one suspects (R12). The owner proposes to the MDM
//! to remove those.

use crate::flows::Flows;
use crate::mirror::Mirror;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, Duration, Time};
use seam::{Effects, UnitStore};
use wire::PeerLink;
use wire::message::{Beacon, Grant, Sender};

impl<S: UnitStore> Mirror<S> {
    /// Does what is due. Call it at `wake_at`, and after a new map.
    pub fn tick(&mut self, now: Time, out: &mut Effects) {
        self.send_beacons(now, out);
        self.flows.peers.ask_again(&mut self.shard, now, out);
        if self.flows.epochs.is_grace_over(now) {
            self.try_waiting(now, out);
        }
        self.flows.scrub.go_on(&mut self.shard, now);
        self.pump(now, out);
    }

    /// Sends the beacons that are due, and before them the commit points.
    fn send_beacons(&mut self, now: Time, out: &mut Effects) {
        let mut due = Vec::new();
        self.shard.leases.due(now, |device| due.push(device));
        if due.is_empty() {
            return;
        }
        self.tell_news(out);
        self.flows.repairs.fetch_again(&self.shard, now, None, out);
        self.flows.peers.cut_stalled(&mut self.shard, now, out);
        self.flows.clients.lost_blocks.drop_zeros();
        let beacon = Beacon { sender: self.shard.known.sender(), sent: now };
        // Data that waits must not make a healthy replica look silent, so a beacon may overtake it,
        // and so may the grant. `docs/internals/protocol/leases.md` says why no rule needs their
        // order.
        let links = due.into_iter().filter_map(|device| self.shard.windows.link(device));
        links.for_each(|link| out.send_first(link.id, link.frame(beacon, &[])));
    }

    /// Acts on a new map, after it was taken over: groups may not have to wait for leases any more.
    pub fn map_changed(&mut self, now: Time, out: &mut Effects) {
        self.try_waiting(now, out);
        if self.shard.leases.count_early() {
            self.shard.replicas.retry_all(&mut self.shard.ops);
        }
        self.tick(now, out); // pumps
    }

    /// Returns when `tick` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        Some(self.due_at()).filter(|at| *at != Time::NEVER)
    }

    /// Returns true if the time of [`Mirror::wake_at`] has come.
    pub fn is_due(&self, now: Time) -> bool {
        self.due_at() <= now
    }

    #[inline]
    fn due_at(&self) -> Time {
        let time = |at: Option<Time>| at.unwrap_or(Time::NEVER);
        let Flows { peers, secondaries, epochs, scrub, .. } = &self.flows;
        let clock = time(self.shard.leases.wake_at()).min(time(scrub.wake_at()));
        let copies = time(peers.copies.wake_at()).min(time(secondaries.arrivals.wake_at()));
        let due = clock.min(copies);
        if peers.timers.none_ask() && epochs.none_wait() {
            return due; // as a rule
        }
        due.min(time(peers.timers.wake_at())).min(time(epochs.wake_at()))
    }

    /// Activates the groups that need not wait for leases any more.
    fn try_waiting(&mut self, now: Time, out: &mut Effects) {
        let Flows { epochs, peers, .. } = &mut self.flows;
        epochs.try_waiting(&mut self.shard, peers, now, out);
    }

    /// Sets the devices that are needed. Beacons also go to `candidates`: devices that may come
    /// back.
    pub fn need_leases(
        &mut self,
        now: Time,
        needed: &BTreeSet<DeviceId>,
        candidates: &BTreeSet<DeviceId>,
    ) {
        self.shard.leases.need(now, &needed.union(candidates).copied().collect());
        self.shard.failures.need(needed);
    }

    /// Returns true once after joiners have become ready to be admitted.
    pub fn take_ready_to_admit(&mut self) -> bool {
        core::mem::take(&mut self.flows.peers.ready_to_admit)
    }

    // ---- leases ----

    /// Takes a beacon: a primary asks for a lease, on the link that it dialled.
    pub fn beacon_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        beacon: &Beacon,
        out: &mut Effects,
    ) {
        let Sender { incarnation: life, map } = beacon.sender;
        self.shard.tell_clean();
        self.flows.scrub.heard(from, link);
        self.heard(now, from, beacon.sender, out);
        if !self.shard.known.knows_life(from, life)
            || !self.shard.leases.grant(now, from, life, map)
        {
            return;
        }
        let grant = Grant { sender: self.shard.known.granter(), sent: beacon.sent };
        out.send_first(link.id, link.frame(grant, &[]));
    }

    /// Takes a grant.
    pub fn grant_in(&mut self, now: Time, from: DeviceId, m: &Grant, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        self.shard.leases.granted(now, from, m.sent, m.sender.map, self.shard.known.map());
        self.shard.replicas.retry_all(&mut self.shard.ops);
        self.pump(now, out);
    }

    /// Records the map version that an incarnation of another device has named in a frame.
    pub fn heard(&mut self, now: Time, from: DeviceId, sender: Sender, out: &mut Effects) {
        let Sender { incarnation: life, map } = sender;
        if self.shard.known.knows_life(from, life) && self.shard.leases.heard(now, from, life, map)
        {
            self.try_waiting(now, out);
            self.pump(now, out);
        }
    }

    // ---- failures ----

    /// Returns the devices that took at least `floor` recently, as seen from here: this one by its
    /// own jobs, others by the time between a beacon and its grant. Devices without a recent
    /// measurement are left out.
    pub fn slow(&mut self, now: Time, floor: Duration) -> Vec<(DeviceId, Duration)> {
        let own = self.shard.jobs.took(now).map(|took| (self.shard.me, took));
        let all = own.into_iter().chain(self.shard.leases.round_trips(now));
        all.filter(|(_, took)| *took >= floor).collect()
    }

    /// Returns for how long none of this device's jobs has ended while some are running.
    pub fn stalled_for(&self, now: Time) -> Duration {
        self.shard.jobs.stalled_for(now)
    }

    /// Returns the devices that this one suspects: those that have not answered for twice the MDM's
    /// `suspect_after`, and those that have to leave the in-sync set because an operation failed
    /// there or here. The MDM sees all devices and decides about silence first; these suspicions
    /// are for what it can't see.
    pub fn suspects(&self, now: Time) -> BTreeSet<DeviceId> {
        self.shard.leases.silent(now).chain(self.shard.failures.accused()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::PeerState;
    use crate::scrub::Scrub;
    use crate::testing::{GROUP, ME, NOW, Rig, SECOND, link_to, op, read};
    use base::{Incarnation, Lsn, MapVersion};

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Creates a primary whose device is not scrubbed.
    fn quiet() -> Rig {
        let mut rig = Rig::leading(&[2], &[]);
        rig.flows.scrub = Scrub::new(false, &rig.shard.limits, Time::ZERO);
        rig
    }

    #[test]
    fn a_device_wakes_for_the_first_thing_that_is_due() {
        let asks: fn(&mut Rig) = |r| r.flows.peers.timers.ask_at(GROUP, NOW + ms(9));
        let beacon: fn(&mut Rig) = |r| r.shard.leases.need(NOW + ms(7), &[SECOND].into());
        let scrub: fn(&mut Rig) = |r| r.flows.scrub = Scrub::new(true, &r.shard.limits, NOW);
        let first = Rig::leading(&[], &[]).shard.limits.scrub_first;
        for (changes, expected) in [
            (&[][..], None),
            (&[asks], Some(NOW + ms(9))),
            (&[beacon], Some(NOW + ms(7))),
            (&[asks, beacon], Some(NOW + ms(7))),
            (&[scrub], Some(NOW + first)),
            (&[scrub, asks], Some(NOW + first.min(ms(9)))),
        ] {
            let mut rig = quiet();
            changes.iter().for_each(|change| change(&mut rig));
            let (_, found) = rig.call(|mirror, _| {
                let at = mirror.wake_at();
                let due = at.map(|at| [Time(at.0 - 1), at].map(|now| mirror.is_due(now)));
                (at, due)
            });
            assert_eq!(found, (expected, expected.map(|_| [false, true])));
        }
    }

    /// A beacon of an incarnation that the map does not know yet is not believed, and one of an
    /// incarnation that has ended gets no lease.
    #[test]
    fn only_the_newest_incarnation_that_is_known_gets_a_lease() {
        for (name, named, lives, left) in [
            ("no map names it", None, &[1][..], "Grant to 2"),
            ("the map names it", Some(4), &[4], "Grant to 2"),
            ("the map names a newer one", Some(4), &[3], "Grant to 2"),
            ("the map names an older one", Some(4), &[5], ""),
            ("a newer one was heard", Some(4), &[4, 3], "Grant to 2"),
            ("it is the newest that was heard", Some(4), &[3, 4], "Grant to 2, Grant to 2"),
        ] {
            let (mut rig, ()) = quiet().call(|mirror, out| {
                let named = named.map(|life| {
                    let peer = PeerState { incarnation: Incarnation(life), dead: false };
                    (SECOND, peer)
                });
                mirror.set_map(MapVersion(1), named.into_iter().collect());
                for life in lives {
                    let sender = Sender { incarnation: Incarnation(*life), map: MapVersion(1) };
                    let beacon = Beacon { sender, sent: NOW };
                    mirror.beacon_in(NOW, link_to(2), SECOND, &beacon, out);
                }
            });
            assert_eq!(rig.left(), left, "{name}");
        }
    }

    #[test]
    fn beacons_go_where_a_link_leads_and_commit_points_before_them() {
        let mut rig = quiet();
        rig.primary().commit = Lsn(3);
        rig.shard.unsent.commit(GROUP);
        let every = rig.shard.limits.beacon_every;
        let needed = [SECOND, DeviceId(9)].into();
        let (mut rig, ()) = rig.call(|mirror, out| {
            mirror.need_leases(NOW, &needed, &BTreeSet::new());
            mirror.tick(NOW, out);
            mirror.tick(NOW + (every - Duration::from_nanos(1)), out);
        });
        assert_eq!(rig.left(), "Commit to 2, Beacon to 2");
        let (mut rig, ()) = rig.call(|mirror, out| mirror.tick(NOW + every, out));
        assert_eq!(rig.left(), "Beacon to 2");
    }

    /// A grant counts only if this device's map is as new as the granter's.
    #[test]
    fn a_read_goes_on_when_its_lease_comes() {
        for (map, jobs) in [(0, "Read 0+4096"), (1, "")] {
            let mut rig = quiet();
            let key = rig.hold(op(read()));
            rig.shard.replicas.block(&mut rig.shard.ops, GROUP, key);
            let sender = Sender { incarnation: Incarnation(1), map: MapVersion(map) };
            let grant = Grant { sender, sent: NOW };
            let (mut rig, ()) = rig.call(|mirror, out| mirror.grant_in(NOW, SECOND, &grant, out));
            assert_eq!(
                (&rig.jobs()[..], rig.primary().blocked.len()),
                (jobs, usize::from(jobs.is_empty()))
            );
        }
    }

    #[test]
    fn silent_and_accused_devices_are_suspected_while_they_are_needed() {
        let mut rig = quiet();
        let unreached = rig.shard.limits.unreached_after();
        rig.shard.failures.accuse([DeviceId(3)]);
        let needed: BTreeSet<DeviceId> = [SECOND, DeviceId(3)].into();
        let answers = |n: u32| n < 3;
        let (_, suspects) = rig.call(|mirror, out| {
            mirror.need_leases(NOW, &needed, &BTreeSet::new());
            let mut suspects = Vec::new();
            for n in 0..16 {
                let now = NOW + unreached / 8 * n;
                mirror.tick(now, out);
                let sender = Sender { incarnation: Incarnation(1), map: MapVersion(0) };
                mirror.grant_in(now, DeviceId(3), &Grant { sender, sent: now }, out);
                if answers(n) {
                    mirror.grant_in(now, SECOND, &Grant { sender, sent: now }, out);
                }
                suspects.push(mirror.suspects(now).contains(&SECOND));
                assert!(mirror.suspects(now).contains(&DeviceId(3)), "it is accused");
            }
            mirror.need_leases(NOW, &[SECOND].into(), &BTreeSet::new());
            assert!(!mirror.suspects(NOW).contains(&DeviceId(3)), "it is not needed any more");
            suspects
        });
        // Its last answer is the third one, and nine steps are more than the time.
        let first = suspects.iter().position(|suspected| *suspected);
        assert_eq!((first, suspects[11..].contains(&false)), (Some(11), false));
    }

    #[test]
    fn devices_that_take_long_are_reported_with_their_times() {
        let own = (ME, ms(5));
        let other = (SECOND, Duration::from_micros(750)); // a quarter of 3 ms
        for (floor, expected) in
            [(ms(0), &[own, other][..]), (ms(1), &[own]), (ms(5), &[own]), (ms(6), &[])]
        {
            let mut rig = quiet();
            rig.shard.jobs.begins(NOW, 1);
            rig.shard.leases.need(NOW, &[SECOND].into());
            let map = MapVersion(0);
            rig.shard.leases.granted(NOW + ms(3), SECOND, NOW, map, map);
            let (_, slow) = rig.call(|mirror, _| mirror.slow(NOW + ms(5), floor));
            assert_eq!(slow, expected, "{floor:?}");
        }
    }

    #[test]
    fn a_joiner_that_is_ready_is_reported_once() {
        let mut rig = quiet();
        rig.flows.peers.ready_to_admit = true;
        let (_, told) = rig.call(|mirror, _| [(); 2].map(|()| mirror.take_ready_to_admit()));
        assert_eq!(told, [true, false]);
    }
}
