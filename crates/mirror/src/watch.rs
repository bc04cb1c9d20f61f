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
        self.shard.unsent.tell_commits(&mut self.shard.replicas, &self.shard.windows, out);
        self.shard.tell_clean();
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
