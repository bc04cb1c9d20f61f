//! Every bound of the system in one place. There are two profiles: [`Limits::SHIPPED`], and
//! [`Limits::TEST_MIN`], which makes rare paths common in the simulator.

use crate::Policy;
use core::time::Duration;

/// The bounds of a process. All queues and tables take their capacity from here.
// Large: all bounds are in one place, so that a profile can set each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest body of a frame between our own processes, in bytes.
    pub frame_body: u32,
    /// Operations that one client may have outstanding at one shard.
    pub client_ops: u32,
    /// Payload bytes that one client may have outstanding at one shard.
    pub client_bytes: u32,
    /// Operations that a shard processes at once, both its clients' and its own.
    pub shard_ops: u32,
    /// A shard refuses further operations of clients while the bodies of unanswered writes and the
    /// answers of unanswered reads have this many bytes.
    pub shard_bytes: u64,
    /// A group refuses further writes of a client, except its lowest unanswered one, while the
    /// group's list has this many executed writes of the client. Several times `client_ops`.
    pub executed_window: u32,
    /// Executed writes in a group's list; the oldest beyond that are forgotten. More than
    /// `shard_ops`. A list is handed over in one frame, and in one record of a device's log.
    pub executed_group: u32,
    /// Executed writes in all lists of a device; the oldest beyond that are forgotten.
    pub executed_device: u32,
    /// Length of a group's stream, counted from the oldest unfinished operation, at which the
    /// primary takes no more writes.
    pub stream: u32,
    /// Block requests that an SDC processes at once.
    pub sdc_requests: u32,
    /// Bytes in one link's send queue at which the link counts as stuck and is closed.
    pub link_queue: u64,
    /// Links of strangers per address, that is links whose peer has not identified itself. One more
    /// replaces the oldest.
    pub strangers: u32,
    /// Longest frame body, in bytes, that a stranger may send.
    pub stranger_body: u32,
    /// Time within which a stranger has to send its first frame.
    pub hello_within: Duration,
    /// Groups per device that placement aims at.
    pub groups_per_device: u32,
    /// Largest number of groups that one volume is striped over.
    pub stripe_width: u32,
    /// Interval between the beacons that a node sends to each peer whose lease it needs.
    pub beacon_every: Duration,
    /// How long a lease allows the primary to serve reads, counted from the beacon's sending.
    pub lease: Duration,
    /// How long the granter is bound by its grant, counted from the beacon's receipt: 1.25 leases.
    pub grace: Duration,
    /// Interval between a server's heartbeats to the MDM.
    pub heartbeat_every: Duration,
    /// Silence after which the MDM takes a server for lost. Primaries wait twice as long.
    pub suspect_after: Duration,
    /// First delay before a failed dial is repeated. It doubles up to `redial_max`.
    pub redial_min: Duration,
    /// Longest delay between dials.
    pub redial_max: Duration,
    /// How long an operation of a client waits before the client asks the MDM for a newer map.
    pub stuck_after: Duration,
    /// Time limit of a client's request, after which it ends with an error. Zero: none.
    pub answer_within: Duration,
    /// Resync copies that one shard has in flight. Copies that clients wait for may exceed this by
    /// a quarter.
    pub copies: u32,
    /// Bytes of one resync copy. A multiple of 4 KiB, at most 1 MiB.
    pub copy_bytes: u32,
    /// Default policy of a storage pool for copies that replace lost ones.
    pub rebuild: Policy,
    /// Default policy of a storage pool for copies that only move data.
    pub rebalance: Policy,
    /// How long a device is away before its copies are rebuilt on others. Longer than a restart, so
    /// that a restart moves nothing.
    pub rebuild_after: Duration,
    /// Duration of the first quarantine of a device that leaves and returns too often. Zero: none.
    pub quarantine: Duration,
    /// A device is slow if its operations, or its host's answers, take at least this long and
    /// several times as long as those of other devices in the pool. Zero: no device counts as slow.
    pub slow: Duration,
    /// How long a device has to be slow before the MDM stops using it.
    pub slow_for: Duration,
    /// Groups whose replicas change at the same time.
    pub moves: u32,
    /// Of these, groups of which one device sends copies, and also groups of which it receives
    /// copies. There may be more while they have less than `moving_bytes`.
    pub moves_per_device: u32,
    /// Bytes being copied from a device, or to it, beyond which `moves_per_device` applies.
    pub moving_bytes: u64,
    /// Percent of a device's capacity that is reserved for rebuilding lost copies (the spare).
    pub spare_percent: u32,
    /// Bytes per second that the scrubber of one device reads. 0: it does not run. With the shipped
    /// value a device of 1 TiB takes 6 hours; that is a quarter of the throughput of a hard disk
    /// and little for an SSD.
    pub scrub_bytes: u64,
    /// Interval between the starts of two scrubs.
    pub scrub_every: Duration,
    /// Time from the start of a process to its first scrub, short enough that a process that
    /// restarts often is scrubbed, too.
    pub scrub_first: Duration,
    /// Bytes of log after which the MDM writes a snapshot.
    pub mdm_log: u64,
    /// Clock tick of the consensus among the MDMs: a heartbeat every two ticks, an election after
    /// 10 to 20 ticks without one.
    pub mdm_tick: Duration,
    /// Largest NBD request that is accepted, in bytes.
    pub nbd_payload: u32,
    /// Requests of one NBD connection that are processed at once.
    pub nbd_requests: u32,
    /// Bytes of the NBD requests of one client that are processed at once, over all of its
    /// connections. Each connection has an equal share, and one request more.
    pub nbd_flying: u64,
    /// Bytes of the NBD writes of one client that may wait for space besides these.
    pub nbd_waiting: u64,
    /// Outstanding commands of one iSCSI session: the size of its command window.
    pub iscsi_window: u32,
    /// Longest data segment of an iSCSI PDU that is accepted, in bytes.
    pub iscsi_segment: u32,
    /// Most bytes of unsolicited data of an iSCSI command.
    pub iscsi_first_burst: u32,
    /// Most bytes that an iSCSI session asks for with one R2T. A multiple of 512.
    pub iscsi_max_burst: u32,
    /// Bytes that one iSCSI session has asked for and not written yet. At least `iscsi_max_burst`.
    pub iscsi_solicited: u32,
    /// Unfinished requests to the volume for the writes of one iSCSI session.
    pub iscsi_requests: u32,
    /// The same limit for a new write while writes of the session wait for space.
    pub iscsi_waiting: u32,
    /// Most bytes of one SCSI read or write.
    pub scsi_transfer: u32,
    /// Most bytes of one NVMe read or write: 4 KiB times a power of two.
    pub nvme_mdts: u32,
    /// I/O queues of one NVMe controller.
    pub nvme_queues: u32,
    /// Entries of an NVMe queue, and so its outstanding commands. At most 256.
    pub nvme_entries: u32,
    /// Most bytes of data in an NVMe command capsule of an I/O queue. A multiple of 16.
    pub nvme_capsule: u32,
    /// Most bytes of data in another PDU of an NVMe host. A multiple of 4, at least 4 KiB.
    pub nvme_h2c: u32,
    /// Bytes that one NVMe queue has asked for and not written yet. Also the bytes that it reads at
    /// once. At least `nvme_mdts`.
    pub nvme_solicited: u32,
    /// Unfinished requests to volumes for the data of one NVMe queue's writes and comparisons.
    pub nvme_requests: u32,
    /// How long a command of a host waits for space or for a primary. Then the host is told to
    /// repeat it. This must be shorter than the host's own time-out, which ends the session.
    pub target_patience: Duration,
    /// New hosts are refused while the commands of all hosts take this much memory, in bytes of
    /// whole blocks. A host that replaces its own session is accepted nevertheless.
    pub target_bytes: u64,
    /// Time limit of a host's login.
    pub login_time: Duration,
    /// Most bytes of text of one negotiation. At least 8 KiB.
    pub login_text: u32,
}

impl Limits {
    /// Returns how long a replica leaves beacons unanswered before its primary reports it as
    /// unreachable. Twice `suspect_after`, so that the MDM, which sees all servers, decides first.
    pub fn unreached_after(&self) -> Duration {
        self.suspect_after * 2
    }

    /// The values of the product.
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
        nbd_flying: 1 << 30,
        nbd_waiting: 1 << 30,
        iscsi_window: 128,
        iscsi_segment: 256 << 10,
        iscsi_first_burst: 64 << 10,
        iscsi_max_burst: 1 << 20,
        iscsi_solicited: 4 << 20,
        iscsi_requests: 1024,
        iscsi_waiting: 64,
        scsi_transfer: 4 << 20,
        nvme_mdts: 1 << 20,
        nvme_queues: 16,
        nvme_entries: 128,
        nvme_capsule: 16 << 10,
        nvme_h2c: 256 << 10,
        nvme_solicited: 4 << 20,
        nvme_requests: 1024,
        target_patience: Duration::from_secs(20),
        target_bytes: 512 << 20,
        login_time: Duration::from_secs(15),
        login_text: 64 << 10,
    };

    /// Values as small as the protocol allows, so that a short run reaches every bound.
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
        nbd_flying: 4 << 20,
        nbd_waiting: 2 << 20,
        iscsi_window: 4,
        iscsi_segment: 8 << 10,
        iscsi_first_burst: 8 << 10,
        iscsi_max_burst: 16 << 10,
        iscsi_solicited: 32 << 10,
        iscsi_requests: 32,
        iscsi_waiting: 2,
        scsi_transfer: 64 << 10,
        nvme_mdts: 64 << 10,
        nvme_queues: 2,
        nvme_entries: 8,
        nvme_capsule: 4 << 10,
        nvme_h2c: 4 << 10,
        nvme_solicited: 128 << 10,
        nvme_requests: 32,
        target_bytes: 1 << 20,
        login_text: 8 << 10,
        ..Limits::SHIPPED
    };
}
