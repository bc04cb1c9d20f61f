//! The outer interface of a shard's replicas: what the owner asks, what it says of the cluster, and
//! what clients, primaries and peers send. [`crate::flows`] does the work. What depends on the
//! clock is in [`crate::watch`].
//!
//! A call that leaves work to the loop ends with it.

use crate::configuration::Epochs;
use crate::flows::Flows;
use crate::lease::{Leases, PeerState};
use crate::lost_blocks::LostUnits;
use crate::members::GroupConfig;
use crate::peers::Peers;
use crate::primary::Clients;
use crate::repairs::Repairs;
use crate::replicas::Replicas;
use crate::scrub::{Scrub, ScrubStats};
use crate::secondaries::Secondaries;
use crate::shard::{Shard, Stats};
use crate::volumes::Volumes;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use base::{
    DeviceId, Epoch, GroupId, Incarnation, Limits, MapVersion, Policy, SdcId, Time, VolumeId,
};
use seam::{Buf, DiskError, DiskOp, Effects, UnitStore};
use wire::message::{
    Commit, Damage, Fetch, Fetched, Io, Replicate, Replicated, Seal, Sealed, SyncStart, SyncState,
    SyncWipe,
};
use wire::{Body, PeerLink};

/// All replicas of one shard.
pub struct Mirror<S> {
    pub(crate) shard: Shard<S>,
    pub(crate) flows: Flows,
}

impl<S: UnitStore> Mirror<S> {
    /// Creates the replicas that the device's records describe; none for a new device.
    pub fn new(
        me: DeviceId,
        incarnation: Incarnation,
        limits: Limits,
        store: S,
        boot: Time,
    ) -> Mirror<S> {
        let flows = Flows {
            clients: Clients::default(),
            peers: Peers::default(),
            secondaries: Secondaries::default(),
            epochs: Epochs::default(),
            repairs: Repairs::default(),
            scrub: Scrub::new(store.survives(), &limits, boot),
        };
        Mirror { shard: Shard::new(me, incarnation, limits, store, boot), flows }
    }

    // ---- reports ----

    /// Returns the unit store.
    pub fn store(&self) -> &S {
        &self.shard.store
    }

    /// Returns the unit store, for calls that are not jobs.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.shard.store
    }

    /// Returns all replicas.
    pub fn replicas(&self) -> &Replicas {
        &self.shard.replicas
    }

    /// Returns the leases of this device.
    pub fn leases(&self) -> &Leases {
        &self.shard.leases
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.shard.stats
    }

    /// Returns what the scrubber has done; `None` for a device that is not scrubbed.
    pub fn scrub_stats(&self) -> Option<ScrubStats> {
        self.flows.scrub.stats()
    }

    /// Returns true if the device has failed in such a way that this process must stop.
    pub fn failed(&self) -> bool {
        self.shard.failures.is_here() || self.shard.store.failed().is_some()
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.shard.ops.len()
    }

    /// Returns the groups in which a new replica is being filled while another one is out of sync,
    /// with the bytes that are still to be copied and the bytes that the other one lacks.
    pub fn moves(&self) -> Vec<(GroupId, u64, u64)> {
        self.flows.peers.moves(&self.shard)
    }

    /// Returns the groups whose joiners wait for their admission, with epoch and joiner.
    pub fn admissions(&self) -> Vec<(GroupId, Epoch, DeviceId)> {
        self.flows.peers.admissions(&self.shard)
    }

    /// Begins a scrub pass now, and restarts one that is running. When it ends, everything that the
    /// device holds at this moment has been read.
    pub fn begin_scrub(&mut self, now: Time) {
        self.flows.scrub.begin(now, self.shard.store.used());
    }

    // ---- the loop ----

    /// Does all work that can be done now.
    #[inline(always)]
    pub(crate) fn pump(&mut self, now: Time, out: &mut Effects) {
        self.flows.pump(&mut self.shard, now, out);
    }

    /// Takes the result of a device operation.
    pub fn disk_done(
        &mut self,
        now: Time,
        op: DiskOp,
        result: Result<Buf, DiskError>,
        out: &mut Effects,
    ) {
        self.shard.store.disk_done(op, result, out);
        if self.flows.reap(&mut self.shard, now, out) {
            self.pump(now, out);
        }
    }

    /// Ends a batch of calls: hands the requested operations to the device.
    pub fn flush(&mut self, now: Time, out: &mut Effects) {
        debug_assert!(
            self.flows.is_done(&self.shard),
            "a call that leaves work ends with the loop"
        );
        loop {
            self.shard.store.flush(out);
            if !self.flows.reap(&mut self.shard, now, out) {
                return;
            }
            self.pump(now, out);
        }
    }

    /// Tells the secondaries and the unit store now which writes all replicas have. Otherwise they
    /// learn that with the next beacon. Call it before the process ends, so that these writes are
    /// not copied again after its next start.
    pub fn tell_news(&mut self, out: &mut Effects) {
        self.shard.unsent.tell_commits(&mut self.shard.replicas, &self.shard.windows, out);
        self.shard.tell_clean();
    }

    // ---- the cluster ----

    /// Sets the map version at which the MDM named this incarnation. Earlier incarnations of this
    /// device were primaries only in maps up to that version.
    pub fn named_at(&mut self, map: MapVersion) {
        self.shard.known.named_at(map);
    }

    /// Takes over the version of a newer map, and what it says about other devices. Call it once
    /// per map, before `configure`.
    pub fn set_map(&mut self, map: MapVersion, peers: BTreeMap<DeviceId, PeerState>) {
        self.shard.leases.know(map, &peers);
        self.shard.known.take_map(map, peers);
    }

    /// Sets the storage pool's policies for copies that replace lost ones and for copies that only
    /// move data. They apply at once.
    pub fn set_policies(
        &mut self,
        now: Time,
        rebuild: Policy,
        rebalance: Policy,
        out: &mut Effects,
    ) {
        if self.shard.pace.set(rebuild, rebalance) {
            self.pump(now, out);
        }
    }

    /// Reserves the space beyond the first `bytes` of the device for copies that replace lost ones
    /// and for these thick volumes. If more is used already, nothing is freed.
    pub fn keep_spare(&mut self, bytes: u64, thick: BTreeSet<VolumeId>) {
        self.shard.usable.keep_spare(bytes, thick);
    }

    /// Sets where blocks without data are errors. Call it before a group that started over is
    /// configured.
    pub fn set_lost_units(&mut self, lost: LostUnits) {
        self.flows.clients.lost_blocks.set(lost);
    }

    /// Sets the volumes that exist, and drops the data of those that were deleted (rule R9).
    pub fn set_volumes(&mut self, now: Time, volumes: Volumes, out: &mut Effects) {
        self.flows.set_volumes(&mut self.shard, now, volumes, out);
    }

    /// Takes over a group's configuration if it is newer than the newest known one. `from_mdm`: it
    /// comes from an MDM, and not only from another server.
    pub fn configure(
        &mut self,
        now: Time,
        group: GroupId,
        config: &GroupConfig,
        from_mdm: bool,
        out: &mut Effects,
    ) {
        if self.flows.configure(&mut self.shard, now, group, config, from_mdm, out) {
            self.pump(now, out);
        }
    }

    // ---- clients ----

    /// Takes an operation of a client. The caller has checked the session, and the volume against
    /// the map.
    pub fn client(&mut self, now: Time, link: PeerLink, io: &Io, body: Body, out: &mut Effects) {
        self.flows.clients.client(&mut self.shard, now, link, io, body, out);
        self.pump(now, out);
    }

    /// Drops a client's operations that have not begun, because its session is over or has been
    /// replaced (rule R8).
    pub fn session_over(&mut self, now: Time, sdc: SdcId, out: &mut Effects) {
        self.flows.clients.session_over(&mut self.shard, sdc);
        self.pump(now, out);
    }

    // ---- peers: the replicas of groups that this device leads ----

    /// Handles the welcome on a link that this device dialled to a replica. Sends again, in order,
    /// what the replica may lack, as far as there is room.
    pub fn peer_up(&mut self, now: Time, device: DeviceId, link: PeerLink, out: &mut Effects) {
        self.flows.connected(&mut self.shard, now, device, link, out);
        self.pump(now, out);
    }

    /// Handles the loss of the link to a device. Cuts a joiner off, so that clients don't wait for
    /// it. Waits for an in-sync replica.
    pub fn peer_down(&mut self, now: Time, device: DeviceId, out: &mut Effects) {
        self.flows.peers.disconnected(&mut self.shard, now, device, out);
        self.pump(now, out);
    }

    /// Takes a replica's answer to a `Replicate`.
    pub fn replicated(&mut self, now: Time, from: DeviceId, m: &Replicated, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        if self.flows.peers.replicated(&mut self.shard, now, from, m, out) {
            self.pump(now, out);
        }
    }

    /// Takes a peer's state.
    pub fn sync_state_in(
        &mut self,
        now: Time,
        from: DeviceId,
        m: &SyncState,
        body: &Buf,
        out: &mut Effects,
    ) {
        self.heard(now, from, m.sender, out);
        self.flows.peers.take_state(&mut self.shard, now, from, m, body, out);
        self.pump(now, out);
    }

    /// Takes a peer's confirmation of its seal.
    pub fn sealed_in(&mut self, now: Time, from: DeviceId, m: &Sealed, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        if self.flows.peers.sealed_in(&mut self.shard, from, m, out) {
            self.pump(now, out);
        }
    }

    /// Takes a secondary's report of damage.
    pub fn damage_in(&mut self, now: Time, from: DeviceId, m: &Damage, out: &mut Effects) {
        self.heard(now, from, m.sender, out);
        if self.flows.scrub.damage_in(&mut self.shard, from, m) {
            self.pump(now, out);
        }
    }

    /// Takes blocks from another replica, to repair those of this device.
    pub fn fetched_in(
        &mut self,
        now: Time,
        from: DeviceId,
        m: &Fetched,
        body: Buf,
        out: &mut Effects,
    ) {
        self.heard(now, from, m.sender, out);
        if self.flows.repairs.fetched_in(&mut self.shard, now, from, m, body, out) {
            self.pump(now, out);
        }
    }

    // ---- primaries of groups of which this device has a copy ----

    /// Takes a write of the stream.
    pub fn replicate_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &Replicate,
        body: Body,
        out: &mut Effects,
    ) {
        if self.flows.secondaries.replicate_in(&mut self.shard, link, from, m, body, out) {
            self.pump(now, out);
        }
    }

    /// Takes a commit point.
    pub fn commit_in(&mut self, from: DeviceId, m: &Commit) {
        self.flows.secondaries.commit_in(&mut self.shard, from, m);
    }

    /// Takes the primary's question for this replica's state.
    pub fn sync_start_in(
        &mut self,
        link: PeerLink,
        from: DeviceId,
        m: &SyncStart,
        body: &Buf,
        out: &mut Effects,
    ) {
        self.flows.secondaries.sync_start_in(&mut self.shard, link, from, m, body, out);
    }

    /// Takes the primary's order to delete everything and to start from nothing.
    pub fn sync_wipe_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &SyncWipe,
        out: &mut Effects,
    ) {
        if self.flows.secondaries.sync_wipe_in(&mut self.shard, now, link, from, m, out) {
            self.pump(now, out);
        }
    }

    /// Takes a seal: if its lsn is the last one that arrived, this replica is equal to the primary.
    pub fn seal_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &Seal,
        body: &Buf,
        out: &mut Effects,
    ) {
        let Flows { secondaries, .. } = &mut self.flows;
        if secondaries.seal_in(&mut self.shard, now, (link, from), m, body, out) {
            self.pump(now, out);
        }
    }

    /// Takes the primary's request for blocks that are damaged there.
    pub fn fetch_in(
        &mut self,
        now: Time,
        link: PeerLink,
        from: DeviceId,
        m: &Fetch,
        out: &mut Effects,
    ) {
        if self.flows.secondaries.fetch_in(&mut self.shard, link, from, m, out) {
            self.pump(now, out);
        }
    }
}
