//! What a core reports instead of logging. `rt` turns notes into counters and log lines, `sim` into
//! its trace and its marks of which rare paths a campaign has met.

use crate::framer::FrameError;
use base::{DeviceId, Duration, Epoch, GroupId, LinkId, Lsn, MapVersion, UnitKey, VolumeId};
use core::net::SocketAddr;

/// One thing worth knowing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// A link was closed because of what came on it.
    Refused {
        /// Which link.
        link: LinkId,
        /// In a few words.
        why: &'static str,
    },
    /// A link's stream could not be cut into frames.
    Garbage {
        /// Which link.
        link: LinkId,
        /// Why.
        why: FrameError,
    },
    /// A driver closed a link of somebody who did not say in time who it is.
    Silent {
        /// Which link.
        link: LinkId,
    },
    /// A driver closed the oldest of too many links of strangers.
    Crowded,
    /// The process has no file descriptor left: a driver closed the oldest links of strangers.
    NoDescriptors,
    /// The other side of a link did not read what was sent: the driver closed it.
    Stuck {
        /// Which link.
        link: LinkId,
        /// Bytes that waited.
        queued: u64,
        /// Where the other side is, if the driver knows an address.
        peer: Option<SocketAddr>,
    },
    /// A body did not match its checksum.
    BadBody {
        /// Which link.
        link: LinkId,
    },
    /// So many groups of volumes are served by nobody: fewer or more than before.
    Unserved {
        /// Every copy of these is gone.
        lost: u32,
        /// These wait for a device that is away, or for somebody who can tell who has everything.
        away: u32,
    },
    /// Of so many groups that this device belongs to every copy is gone: fewer or more than before.
    GroupsLost {
        /// How many.
        groups: u32,
    },
    /// This MDM goes on without the others, by an operator's order, and asks servers what they know.
    Recovering {
        /// Recoveries of this cluster, with this one.
        number: u32,
    },
    /// Of these groups it is known by servers' reports who has every acknowledged write.
    Reconciled {
        /// How many.
        groups: u32,
    },
    /// The recovery of the MDMs is over: maps are handed out again.
    Recovered {
        /// Recoveries of this cluster, with this one.
        number: u32,
    },
    /// A newer map was taken over.
    Map {
        /// Its version.
        version: MapVersion,
    },
    /// This replica became primary of a group.
    Primary {
        /// Which group.
        group: GroupId,
        /// Since which epoch.
        epoch: Epoch,
    },
    /// A primary began to serve in a new epoch.
    Active {
        /// Which group.
        group: GroupId,
        /// In which epoch.
        epoch: Epoch,
        /// True when it serves alone.
        alone: bool,
    },
    /// A replica refused a message of another epoch.
    StaleEpoch {
        /// Which group.
        group: GroupId,
        /// The epoch here.
        have: Epoch,
        /// The message's.
        got: Epoch,
    },
    /// Settling or a resync began.
    SyncStart {
        /// Which group.
        group: GroupId,
        /// With whom.
        peer: DeviceId,
        /// Bytes to compare or copy.
        bytes: u64,
        /// True when everything is copied, not only what changed.
        full: bool,
    },
    /// A resync moved data.
    Copied {
        /// Which group.
        group: GroupId,
        /// To whom.
        peer: DeviceId,
        /// Bytes.
        bytes: u64,
    },
    /// Two replicas are equal up to this stamp.
    Sealed {
        /// Which group.
        group: GroupId,
        /// With whom.
        peer: DeviceId,
        /// Up to here.
        lsn: Lsn,
    },
    /// A read had to wait for a lease.
    LeaseWait {
        /// Which group.
        group: GroupId,
    },
    /// A promoted replica waits until its own old promises have run out.
    GraceWait {
        /// Which group.
        group: GroupId,
    },
    /// A retried write had been executed already.
    Deduped {
        /// Which group.
        group: GroupId,
    },
    /// A frame of an older client session was dropped.
    OldSession {
        /// Which link.
        link: LinkId,
    },
    /// A write found no space.
    Full {
        /// Which device.
        device: DeviceId,
    },
    /// A device has become larger, and all of it is used.
    Grown {
        /// Which device.
        device: DeviceId,
        /// Its bytes before.
        from: u64,
        /// Its bytes now.
        to: u64,
    },
    /// A device has become larger, and is used as it was.
    NotGrown {
        /// Which device.
        device: DeviceId,
        /// Bytes that are used.
        used: u64,
        /// Its bytes.
        bytes: u64,
        /// In a few words.
        why: &'static str,
    },
    /// The content of a volume that is gone was dropped.
    Dropped {
        /// Which volume.
        volume: VolumeId,
        /// Bytes of the device that it took.
        bytes: u64,
    },
    /// What was here of a group is deleted: this device is none of its replicas any more.
    Discarded {
        /// Which group.
        group: GroupId,
    },
    /// Blocks that failed their checksum were written anew, with what another copy has.
    Repaired {
        /// Which group.
        group: GroupId,
        /// Bytes.
        bytes: u64,
    },
    /// The body of a write is not the one that came: this process's memory has changed under it.
    BadMemory {
        /// The group that it was for.
        group: GroupId,
    },
    /// Blocks fail their checksum, and no copy that is in sync has them.
    Unreadable {
        /// Which group.
        group: GroupId,
        /// Which unit.
        unit: UnitKey,
        /// The first block.
        first: u16,
        /// How many.
        blocks: u16,
    },
    /// Blocks that were just written anew from the other copy can't be read all the same: the device fails.
    NotMended {
        /// Which group.
        group: GroupId,
        /// Which unit.
        unit: UnitKey,
        /// The first block.
        first: u16,
        /// How many.
        blocks: u16,
    },
    /// A copy has learned that blocks can't be read any more where they come from: it has them as damaged.
    Lost {
        /// Which group.
        group: GroupId,
        /// Which unit.
        unit: UnitKey,
        /// The first block.
        first: u16,
        /// How many.
        blocks: u16,
    },
    /// The MDM took a server for lost.
    DeviceDown {
        /// Whose device.
        device: DeviceId,
        /// True when its process is known to be dead.
        proof: bool,
    },
    /// More servers are away than one accident explains, and nothing is rebuilt; or that is over.
    RebuildHeld {
        /// True when it is over.
        over: bool,
    },
    /// So many servers are silent that the MDM takes none of them for lost; or that is over.
    MassSilence {
        /// True when it is over.
        over: bool,
    },
    /// The MDM holds a device out for so long, as it came and went too often (rule R12).
    Quarantined {
        /// Which.
        device: DeviceId,
        /// For how long.
        long: Duration,
    },
    /// A device is heard, and its address refuses connections.
    RefusesAlive {
        /// Which.
        device: DeviceId,
    },
    /// The other servers don't reach a device that the MDM hears: they do without it (rule R12); or that is over.
    CutOff {
        /// Which.
        device: DeviceId,
        /// True when it is over.
        over: bool,
    },
    /// A device takes so long that the MDM does without it (rule R12).
    Slow {
        /// Which.
        device: DeviceId,
        /// How long its operations, or its host's answers, take.
        took: Duration,
    },
    /// The MDM saw a server (again).
    DeviceUp {
        /// Whose device.
        device: DeviceId,
    },
    /// The MDM wrote a snapshot of its state.
    Snapshot {
        /// Of which version.
        version: MapVersion,
    },
    /// This MDM belongs to no cluster, and waits to be taken into one.
    Waiting,
    /// This MDM's log names another address than its own: it asks there whether another one serves.
    Moved {
        /// That address.
        from: SocketAddr,
    },
    /// This MDM leads from now on.
    Leading {
        /// Since which term.
        term: u64,
    },
    /// This MDM doesn't lead any more.
    Resigned,
    /// This MDM has applied an entry on which the MDMs agreed.
    Decided {
        /// Its place.
        index: u64,
        /// Its term.
        term: u64,
        /// A sum over all entries up to it.
        chain: u32,
    },
    /// A newer process serves in this one's name: this one must end.
    Superseded,
    /// The device failed in a way that this process can't go on from: it must end.
    DeviceFailed,
    /// The device can't be used, or not here: this process must end.
    DeviceRefused,
    /// This process was asked to end, and has put everything in order.
    Stopped,
    /// A client retried operations.
    Retried {
        /// How many.
        ops: u32,
    },
}
