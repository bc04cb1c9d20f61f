//! Every bound of the system in one place. Two profiles: what ships, and what makes rare paths
//! common in the simulator ([`Limits::TEST_MIN`]).

use crate::Policy;
use core::time::Duration;

/// The bounds that a process runs with. All queues and tables take their capacity from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest body of a frame between our own processes, in bytes.
    pub frame_body: u32,
    /// Operations that one client may have outstanding at one shard.
    pub client_ops: u32,
    /// Payload bytes that one client may have outstanding at one shard.
    pub client_bytes: u32,
    /// Operations that a shard works on at once, its clients' and its own.
    pub shard_ops: u32,
    /// Bytes that unanswered operations of all clients take at a shard before it takes no more of them: bodies of writes,
    /// and what reads will answer.
    pub shard_bytes: u64,
    /// Executed writes of one client that a group lists before it takes no more of that client, but for the
    /// lowest unanswered one; several times `client_ops`.
    pub executed_window: u32,
    /// Executed writes that a group lists before it forgets the oldest; more than `shard_ops`. What hands a
    /// list over is one frame, and one record of a device's log.
    pub executed_group: u32,
    /// Executed writes that all groups of a device list before the oldest are forgotten.
    pub executed_device: u32,
    /// Operations of a group's stream, from the oldest that is not finished on, beyond which no write is taken.
    pub stream: u32,
    /// Block requests that an SDC works on at once.
    pub sdc_requests: u32,
    /// Bytes that may wait in one link's send queue before the link is given up as stuck.
    pub link_queue: u64,
    /// Links at one address whose other side has not said who it is; when one more comes, the oldest goes.
    pub strangers: u32,
    /// Bytes of a frame's body that such a link may send.
    pub stranger_body: u32,
    /// The time in which such a link has to send its first frame.
    pub hello_within: Duration,
    /// Groups per device that placement aims for.
    pub groups_per_device: u32,
    /// Groups that one volume is striped over, at most.
    pub stripe_width: u32,
    /// How often a node sends a beacon to each peer that it needs a lease from.
    pub beacon_every: Duration,
    /// How long a granted lease lets the primary serve reads, from the beacon's send.
    pub lease: Duration,
    /// How long the granter keeps its promise, from the beacon's receipt: 1.25 leases.
    pub grace: Duration,
    /// How often a server tells the MDM that it lives.
    pub heartbeat_every: Duration,
    /// Silence after which the MDM, or a peer that waits for grants, takes a server for lost.
    pub suspect_after: Duration,
    /// The first delay before a failed dial is tried again; doubles up to `redial_max`.
    pub redial_min: Duration,
    /// The longest delay between dials.
    pub redial_max: Duration,
    /// How long a client lets an operation wait before it asks the MDM for a newer map.
    pub stuck_after: Duration,
    /// How long a client works on a request before it answers that it wasn't done in time; zero: for ever.
    pub answer_within: Duration,
    /// Resync copies that one shard has in flight; a quarter more for those that clients wait for.
    pub copies: u32,
    /// Bytes of one resync copy; a multiple of 4 KiB, at most 1 MiB.
    pub copy_bytes: u32,
    /// How copies that replace a lost one give way to clients, if their storage pool says nothing.
    pub rebuild: Policy,
    /// The same for copies that only move.
    pub rebalance: Policy,
    /// How long a device is away before its copies are made anew on others: a restart moves nothing.
    pub rebuild_after: Duration,
    /// How long a device is held out that comes and goes too often, the first time; zero: never.
    pub quarantine: Duration,
    /// A device whose operations, or whose host's answers, take so long, and many times as long as those of the others
    /// of its pool, is slow; zero: none is.
    pub slow: Duration,
    /// Who is slow for so long is done without.
    pub slow_for: Duration,
    /// Groups whose replicas change at a time.
    pub moves: u32,
    /// Of these, those that one device copies, and as many that it gets; more if they are small.
    pub moves_per_device: u32,
    /// Bytes that one device copies, and as many that it gets, beyond which there are no more than that at a time.
    pub moving_bytes: u64,
    /// Percent of a device's capacity that only lost copies are made anew in.
    pub spare_percent: u32,
    /// Bytes per second that the scrubber of one device reads; 0: it does not run. As shipped a device
    /// of 1 TiB takes 6 hours, which is a quarter of what a disk can give, and little for an SSD.
    pub scrub_bytes: u64,
    /// From the beginning of one scrub to that of the next.
    pub scrub_every: Duration,
    /// From the start of a process to its first scrub, so that also one that is often restarted has one.
    pub scrub_first: Duration,
    /// Log bytes after which the MDM writes a snapshot.
    pub mdm_log: u64,
    /// The MDMs' measure of time among themselves: a heartbeat every two of them, another leader after ten
    /// to twenty without one.
    pub mdm_tick: Duration,
    /// The largest NBD request that is accepted, in bytes.
    pub nbd_payload: u32,
    /// Requests of one NBD connection that are worked on at once.
    pub nbd_requests: u32,
}

impl Limits {
    /// How long a member leaves beacons unanswered before its leader says that it doesn't reach it. The MDM, which
    /// sees all of them, comes first.
    pub fn unreached_after(&self) -> Duration {
        self.suspect_after * 2
    }

    /// What ships.
    pub const SHIPPED: Limits = Limits {
        frame_body: 4 << 20,
        client_ops: 1024,
        client_bytes: 64 << 20,
        shard_ops: 16384,
        shard_bytes: 1 << 30,
        executed_window: 4096,
        executed_group: 24576,
        executed_device: 65536,
        stream: 65536,
        sdc_requests: 16384,
        link_queue: 256 << 20,
        strangers: 1024,
        stranger_body: 8 << 10,
        hello_within: Duration::from_secs(5),
        groups_per_device: 256,
        stripe_width: 512,
        beacon_every: Duration::from_millis(400),
        lease: Duration::from_millis(1000),
        grace: Duration::from_millis(1250),
        heartbeat_every: Duration::from_millis(200),
        suspect_after: Duration::from_millis(1000),
        redial_min: Duration::from_millis(5),
        redial_max: Duration::from_millis(500),
        stuck_after: Duration::from_millis(100),
        answer_within: Duration::ZERO,
        copies: 16,
        copy_bytes: 128 << 10,
        rebuild: Policy::latency_percent(150, 2 << 20),
        rebalance: Policy::favour(3, 2 << 20),
        rebuild_after: Duration::from_secs(60),
        quarantine: Duration::from_secs(5),
        slow: Duration::from_millis(200),
        slow_for: Duration::from_secs(10),
        moves: 1024,
        moves_per_device: 8,
        moving_bytes: 64 << 20,
        spare_percent: 10,
        scrub_bytes: 50 << 20,
        scrub_every: Duration::from_secs(7 * 24 * 3600),
        scrub_first: Duration::from_secs(3600),
        mdm_log: 16 << 20,
        mdm_tick: Duration::from_millis(50),
        nbd_payload: 32 << 20,
        nbd_requests: 256,
    };

    /// As small as the protocol allows, so that a short run meets every bound.
    pub const TEST_MIN: Limits = Limits {
        frame_body: 2 << 20,
        client_ops: 4,
        client_bytes: 2 << 20,
        shard_ops: 64,
        shard_bytes: 4 << 20,
        executed_window: 8,
        executed_group: 40,
        executed_device: 256,
        stream: 128,
        sdc_requests: 16,
        link_queue: 64 << 20,
        strangers: 8,
        groups_per_device: 4,
        stripe_width: 4,
        copies: 2,
        copy_bytes: 8 << 10,
        rebuild_after: Duration::from_secs(1),
        quarantine: Duration::from_millis(20),
        moves: 8,
        moves_per_device: 2,
        moving_bytes: 1 << 20,
        mdm_log: 4 << 10,
        nbd_payload: 1 << 20,
        nbd_requests: 4,
        ..Limits::SHIPPED
    };
}
