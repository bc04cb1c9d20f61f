//! What happens by the clock: beacons and leases, questions that are asked again, promises that run
//! out, and what is to be proposed to the MDM.

use crate::mirror::Mirror;
use crate::replica::{Primary, Replica, Role};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, Duration, Epoch, GroupId, Incarnation, MapVersion, Time};
use seam::{Effects, Journal};
use wire::{Header, Kind, PeerLink};

impl<J: Journal> Mirror<J> {
    /// Bytes that syncs here still have to move.
    pub fn resync_remaining(&self) -> u64 {
        let todo = |r: &Replica| match &r.role {
            Role::Primary(Primary { sync: Some(sync), .. }) => sync.todo.bytes(),
            _ => 0,
        };
        self.replicas.values().map(todo).sum()
    }

    /// Groups of which this device has nothing that was ever equal to others, in order.
    pub fn partial(&self) -> Vec<GroupId> {
        let partial = |(_, r): &(GroupId, &Replica)| r.record.base == Epoch(0);
        let mut all: Vec<_> = self.replicas.iter().filter(partial).map(|(id, _)| id).collect();
        all.sort_unstable();
        all
    }

    /// Groups of which a newcomer gets a copy while another replica is out of sync: what is still to be copied,
    /// and what that one lacks, in bytes.
    pub fn moves(&self) -> Vec<(GroupId, u64, u64)> {
        let told = |group: &GroupId| {
            let (group, r) = (*group, self.replicas.get(*group)?);
            let Role::Primary(Primary { sync: Some(sync), .. }) = &r.role else { return None };
            let begun = sync.joiner.is_some()
                && sync.has_begun()
                && r.is_solo()
                && r.config.replicas.len() > 2;
            let missed = if r.record.all_dirty { u64::MAX } else { r.record.dirty.bytes() };
            begun.then(|| (group, sync.todo.bytes(), missed))
        };
        self.joining.iter().filter_map(told).collect()
    }

    /// Does what is due. Call at `wake_at`, and after a new map.
    pub fn tick(&mut self, now: Time, out: &mut Effects) {
        self.send_beacons(now, out);
        self.ask_again(now, out);
        if self.waiting_grace.values().any(|until| *until <= now) {
            self.try_waiting(now, out);
        }
        self.scrub(now);
        self.pump(now, out);
    }

    /// Asks for the leases that are due to be asked for, and tells the commit points before.
    fn send_beacons(&mut self, now: Time, out: &mut Effects) {
        let mut due = Vec::new();
        self.leases.due(now, |device| due.push(device));
        if due.is_empty() {
            return;
        }
        self.tell_commits(out);
        self.tell_clean();
        self.fetch_again(None, out);
        self.cut_standing(now, out);
        self.drop_zeros();
        let mut beacon = self.header(Kind::Beacon, GroupId(0));
        (beacon.sent, beacon.epoch) = (now.0.into(), 0.into());
        // Data that waits must not make a healthy member look silent: a beacon may overtake it, and so
        // may the grant. `docs/internals/protocol.md`, "Leases", says why no rule needs their order.
        let links = due.into_iter().filter_map(|device| self.peers.get(device)?.link);
        links.for_each(|link| out.send_first(link.id, link.frame(beacon, &[])));
    }

    /// After a new map was taken over: promises may be over by it.
    pub fn map_changed(&mut self, now: Time, out: &mut Effects) {
        self.try_waiting(now, out);
        if self.leases.count_early() {
            self.unpark_all();
        }
        self.tick(now, out); // pumps
    }

    /// When `tick` has something to do.
    pub fn wake_at(&self) -> Option<Time> {
        let asking = self.asking.values().min().copied();
        let grace = self.waiting_grace.values().min().copied();
        let wake = Time::earliest(self.leases.wake_at(), Time::earliest(asking, grace));
        let copies = Time::earliest(self.copy_at, self.arrivals.wake_at());
        Time::earliest(Time::earliest(wake, copies), self.scrub.wake_at())
    }

    pub(crate) fn try_waiting(&mut self, now: Time, out: &mut Effects) {
        let waiting: Vec<GroupId> = self.waiting_grace.keys().copied().collect();
        for group in waiting {
            self.activate(now, group, out);
        }
    }

    /// The map has changed what is needed of whom. Beacons go to the `courted` devices, too: those
    /// that may come back.
    pub fn need_leases(
        &mut self,
        now: Time,
        needed: &BTreeSet<DeviceId>,
        courted: &BTreeSet<DeviceId>,
    ) {
        self.leases.need(now, &needed.union(courted).copied().collect());
        self.suspects.retain(|device| needed.contains(device));
    }

    /// True when the device has answered a beacon lately.
    pub fn answers(&self, now: Time, device: DeviceId) -> bool {
        self.leases.answers(now, device)
    }

    /// True once after joiners have become ready to be admitted.
    pub fn take_ready_to_admit(&mut self) -> bool {
        core::mem::take(&mut self.ready_to_admit)
    }

    /// A primary asks for a lease, on the link that it dialled.
    pub fn beacon_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        h: &Header,
        out: &mut Effects,
    ) {
        let (life, map) = (Incarnation(h.incarnation.get()), MapVersion(h.map.get()));
        self.tell_clean();
        self.scrub.heard(from, link);
        self.heard(now, from, life, map, out);
        if !self.knows_life(from, life) || !self.leases.grant(now, from, life, map) {
            return;
        }
        let mut grant = self.header(Kind::Grant, GroupId(0));
        (grant.sent, grant.epoch) = (h.sent, 0.into());
        // Before my first map: the sender may not know that an earlier life of mine has led its groups.
        grant.map = self.map.max(self.named_at).0.into();
        out.send_first(link.id, link.frame(grant, &[]));
    }

    /// A lease came.
    pub fn grant_in(&mut self, now: Time, from: DeviceId, h: &Header, out: &mut Effects) {
        self.leases.granted(now, from, Time(h.sent.get()), MapVersion(h.map.get()), self.map);
        self.unpark_all();
        self.pump(now, out);
    }

    /// The map has no older life of the device: one that it doesn't know yet is not believed.
    fn knows_life(&self, device: DeviceId, life: Incarnation) -> bool {
        self.fates.get(&device).is_none_or(|fate| life <= fate.incarnation)
    }

    /// Any frame of another device tells how new the map of this life of it is.
    pub fn heard(
        &mut self,
        now: Time,
        from: DeviceId,
        life: Incarnation,
        map: MapVersion,
        out: &mut Effects,
    ) {
        if self.knows_life(from, life) && self.leases.heard(now, from, life, map) {
            self.try_waiting(now, out);
        }
    }

    /// Devices that took at least so long lately, as seen from here: this one by its own jobs, others by what lies
    /// between a beacon and its grant. What was not seen lately is not told.
    pub fn slow(&mut self, now: Time, floor: Duration) -> Vec<(DeviceId, Duration)> {
        let own = self.stopwatch.ask(now).map(|took| (self.me, took));
        let all = own.into_iter().chain(self.leases.trips(now));
        all.filter(|(_, took)| *took >= floor).collect()
    }

    /// For how long none of this device's jobs has ended, while some are to.
    pub fn stands(&self, now: Time) -> Duration {
        self.stopwatch.stands(now)
    }

    /// Devices that groups here need and that have not answered for two of the MDM's periods: the MDM,
    /// which sees all of them, comes first; this is for what it can't see.
    pub fn suspects(&self, now: Time) -> BTreeSet<DeviceId> {
        self.leases.silent(now).chain(self.suspects.iter().copied()).collect()
    }

    /// Devices that groups here need, or would like to have back, and that have not answered for as long.
    pub fn unreached(&self, now: Time) -> impl Iterator<Item = DeviceId> {
        self.leases.silent(now)
    }
}
