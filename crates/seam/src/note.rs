//! Notes: the events that a node reports in place of logging. `rt` turns notes into counters and
//! log lines, and `sim` turns them into its trace and its coverage of rare paths.

use crate::event::DiskError;
use crate::framer::FrameError;
use base::{DeviceId, Duration, Epoch, GroupId, LinkId, Lsn, MapVersion, UnitKey, VolumeId};
use core::net::SocketAddr;

/// One event worth knowing about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// A link was closed because of the data that came on it.
    Refused {
        /// The link.
        link: LinkId,
        /// The reason in a few words.
        why: &'static str,
    },
    /// A link was closed because a frame's header is not what its kind says.
    Malformed {
        /// The link.
        link: LinkId,
        /// The code of the kind.
        kind: u8,
        /// The first byte of the header that is wrong.
        at: u8,
        /// The reason in a few words.
        why: &'static str,
    },
    /// A link's stream could not be cut into frames.
    Garbage {
        /// The link.
        link: LinkId,
        /// The reason.
        why: FrameError,
    },
    /// A driver closed a link whose peer did not identify itself in time.
    Silent {
        /// The link.
        link: LinkId,
    },
    /// A driver closed the oldest of too many links of strangers.
    Crowded,
    /// The process ran out of file descriptors: a driver closed the oldest links of strangers.
    NoDescriptors,
    /// The peer of a link did not read: the driver closed the link.
    Stuck {
        /// The link.
        link: LinkId,
        /// Bytes that were waiting.
        queued: u64,
        /// Address of the peer, if the driver knows it.
        peer: Option<SocketAddr>,
    },
    /// A body did not match its checksum.
    BadBody {
        /// The link.
        link: LinkId,
    },
    /// The number of groups of volumes that no device serves has changed.
    Unserved {
        /// Groups whose copies are all gone.
        lost: u32,
        /// Groups that wait for a device, or until it is known which replica has everything.
        away: u32,
    },
    /// The number of this device's groups whose copies are all gone has changed.
    GroupsLost {
        /// Number of groups.
        groups: u32,
    },
    /// This data client is over: a newer process has its name, or it was removed.
    Over,
    /// By an operator's order this MDM continues without the others, and queries the servers.
    Recovering {
        /// Number of recoveries of this cluster, including this one.
        number: u32,
    },
    /// Reports of servers have shown which replica of these groups has every acknowledged write.
    Reconciled {
        /// Number of groups.
        groups: u32,
    },
    /// The recovery of the MDMs is over: maps are published again.
    Recovered {
        /// Number of recoveries of this cluster, including this one.
        number: u32,
    },
    /// A newer map came into force.
    Map {
        /// Its version.
        version: MapVersion,
    },
    /// This replica became primary of a group.
    Primary {
        /// The group.
        group: GroupId,
        /// The first epoch as primary.
        epoch: Epoch,
    },
    /// A primary began to serve in a new epoch.
    Active {
        /// The group.
        group: GroupId,
        /// The epoch.
        epoch: Epoch,
        /// True if it serves without a secondary.
        alone: bool,
    },
    /// A replica refused a message of another epoch.
    StaleEpoch {
        /// The group.
        group: GroupId,
        /// The epoch of this replica.
        have: Epoch,
        /// The epoch of the message.
        got: Epoch,
    },
    /// A settle or a resync began.
    SyncStart {
        /// The group.
        group: GroupId,
        /// The peer of the sync.
        peer: DeviceId,
        /// Bytes to compare or copy.
        bytes: u64,
        /// True if everything is copied, not only changes.
        full: bool,
    },
    /// A resync moved data.
    Copied {
        /// The group.
        group: GroupId,
        /// The device that receives the data.
        peer: DeviceId,
        /// Bytes.
        bytes: u64,
    },
    /// Two replicas are equal up to this write.
    Sealed {
        /// The group.
        group: GroupId,
        /// The peer of the sync.
        peer: DeviceId,
        /// Sequence number of the last write.
        lsn: Lsn,
    },
    /// A read had to wait for a lease.
    LeaseWait {
        /// The group.
        group: GroupId,
    },
    /// A promoted replica waits until the leases that it granted have expired.
    GraceWait {
        /// The group.
        group: GroupId,
    },
    /// A retried write had been executed already.
    Deduped {
        /// The group.
        group: GroupId,
    },
    /// A frame of an older client session was dropped.
    OldSession {
        /// The link.
        link: LinkId,
    },
    /// A write found no space.
    Full {
        /// The device.
        device: DeviceId,
    },
    /// A device has become larger, and all of it is in use.
    Grown {
        /// The device.
        device: DeviceId,
        /// Bytes before.
        from: u64,
        /// Bytes now.
        to: u64,
    },
    /// A device has become larger, but continues with its former size.
    NotGrown {
        /// The device.
        device: DeviceId,
        /// Bytes in use.
        used: u64,
        /// Size in bytes.
        bytes: u64,
        /// The reason in a few words.
        why: &'static str,
    },
    /// The space of freed data can't be given back to the file system below the device. This
    /// process does not try again.
    SpaceKept {
        /// The device.
        device: DeviceId,
        /// The error of the driver.
        why: DiskError,
    },
    /// The content of a deleted volume was dropped.
    Dropped {
        /// The volume.
        volume: VolumeId,
        /// Bytes that it used on the device.
        bytes: u64,
    },
    /// Data of a group was deleted after this device left the group.
    Discarded {
        /// The group.
        group: GroupId,
    },
    /// Blocks that failed their checksum were rewritten from another copy.
    Repaired {
        /// The group.
        group: GroupId,
        /// Bytes.
        bytes: u64,
    },
    /// The body of a write changed in this process's memory after it arrived.
    BadMemory {
        /// The group of the write.
        group: GroupId,
    },
    /// Blocks fail their checksum, and no in-sync copy has them.
    Unreadable {
        /// The group.
        group: GroupId,
        /// The unit.
        unit: UnitKey,
        /// The first block.
        first: u16,
        /// Number of blocks.
        blocks: u16,
    },
    /// Blocks that were just rewritten from another copy still can't be read: the device fails.
    NotMended {
        /// The group.
        group: GroupId,
        /// The unit.
        unit: UnitKey,
        /// The first block.
        first: u16,
        /// Number of blocks.
        blocks: u16,
    },
    /// The source of a copy can't read these blocks any more: this copy marks them as damaged.
    Lost {
        /// The group.
        group: GroupId,
        /// The unit.
        unit: UnitKey,
        /// The first block.
        first: u16,
        /// Number of blocks.
        blocks: u16,
    },
    /// The MDM declared a device lost.
    DeviceDown {
        /// The device.
        device: DeviceId,
        /// True if its process is known to be dead.
        proof: bool,
    },
    /// More servers are away than one accident explains, so nothing is rebuilt; or that is over.
    RebuildHeld {
        /// True if it is over.
        over: bool,
    },
    /// So many servers are silent that the MDM takes none of them for lost; or that is over.
    MassSilence {
        /// True if it is over.
        over: bool,
    },
    /// The MDM quarantines a device that left and returned too often (rule R12).
    Quarantined {
        /// The device.
        device: DeviceId,
        /// Duration of the quarantine.
        long: Duration,
    },
    /// A device is heard although its address refuses connections.
    RefusesAlive {
        /// The device.
        device: DeviceId,
    },
    /// Other servers can't reach a device that the MDM hears, so the MDM stops using it (rule R12);
    /// or that is over.
    CutOff {
        /// The device.
        device: DeviceId,
        /// True if it is over.
        over: bool,
    },
    /// A device is so slow that the MDM stops using it (rule R12).
    Slow {
        /// The device.
        device: DeviceId,
        /// Latency of its operations, or of its host's answers.
        took: Duration,
    },
    /// The MDM heard from a device, for the first time or again.
    DeviceUp {
        /// The device.
        device: DeviceId,
    },
    /// The MDM wrote a snapshot of its state.
    Snapshot {
        /// The version of the state.
        version: MapVersion,
    },
    /// This MDM belongs to no cluster, and waits until one admits it.
    Waiting,
    /// The log of the only MDM names another address than its own. The MDM asks there whether
    /// another process uses the log.
    Moved {
        /// The address in the log.
        from: SocketAddr,
    },
    /// This MDM is the leader from now on.
    Leading {
        /// The first term as leader.
        term: u64,
    },
    /// This MDM is no longer the leader.
    Resigned,
    /// This MDM has applied an entry that the MDMs agreed on.
    Decided {
        /// Index of the entry.
        index: u64,
        /// Term of the entry.
        term: u64,
        /// Checksum over all entries up to it.
        chain: u32,
    },
    /// A newer process serves under this one's name: this process must end.
    Superseded,
    /// The device failed in a way that this process can't recover from: it must end.
    DeviceFailed,
    /// The device can't be used, or not at this place: this process must end.
    DeviceRefused,
    /// This process was asked to end, and has completed its shutdown.
    Stopped,
    /// A client retried operations.
    Retried {
        /// Number of operations.
        ops: u32,
    },
}
