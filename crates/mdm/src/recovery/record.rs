//! The state's record of recoveries, and the numbers that follow from the time of a recovery.

use crate::command::{Forget, Reconcile};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::{DeviceId, MapVersion, VolumeId};
use core::ops::Range;

/// Step by which a recovery raises epochs, incarnations and map versions. Normal operation never
/// raises them this far.
pub const JUMP: u64 = 1 << 32;
/// Least number of ids of devices, servers and clients that a recovery skips, and the number of ids
/// of MDMs.
pub(super) const IDS: u32 = 1000;
/// How far above all ids that this MDM has given away the id of a returning device may be: as many
/// as two recoveries skip at most.
const ABOVE: u32 = 2 * 64 * IDS;
/// Least number of ids of groups and volumes that a recovery skips.
const MANY_IDS: u32 = 1 << 16;
/// The latest time of an order that counts, in seconds since 1970: it keeps the numbers that are
/// computed from the time far below 2^63.
const LATEST: u64 = 1 << 33;
/// Ids that reports name count only below this one, so that there is room for new ones.
pub(crate) const IDS_END: u32 = 1 << 31;

/// For each device the content that a map names, with the version of that map.
pub type Contents = BTreeMap<DeviceId, (MapVersion, u64)>;

/// The state's record of recoveries.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Number of recoveries so far.
    pub number: u32,
    /// True while the last recovery collects reports: the MDM hands out no map, and takes no orders
    /// except those that help devices to register, and those that end the recovery.
    pub open: bool,
    /// Name of the person or program that ordered it.
    pub by: String,
    /// Time of the order: seconds since 1970, UTC.
    pub at: u64,
    /// This MDM's map version when the recovery began.
    pub version: MapVersion,
    /// The map version at which the oldest present doubt began. Later maps do not show that a
    /// device kept its memory since.
    pub began: MapVersion,
    /// Versions of the maps that only lost MDMs know: above what this MDM knows to be decided, and
    /// below this recovery.
    pub lost: Range<MapVersion>,
    /// Contents that such maps name, if no process had registered with them at that time. Maps of
    /// this MDM name them, too, as long as groups are in doubt.
    pub awaited: Contents,
    /// Devices that came back with another content after the recovery, while groups were in doubt
    /// and before they had reported: with the contents that they had. These may have had more of
    /// any group.
    pub emptied: BTreeMap<DeviceId, u64>,
    /// Devices that have registered in a recovery with the newer content that a map names. The
    /// state's own configurations below this epoch are about the content that they had before.
    pub replaced: BTreeMap<DeviceId, u64>,
    /// The lost MDMs may have given away ids of devices up to this one.
    pub device: u32,
    /// The same for servers.
    pub server: u32,
    /// The same for groups.
    pub group: u32,
    /// The same for clients.
    pub sdc: u32,
    /// The last client id that this MDM itself had given away when its first recovery began.
    pub sdc_known: u32,
    /// Ids that lost MDMs may have given to volumes, in this recovery and earlier ones, except
    /// those of volumes whose fate is known. Only an order that names these volumes deletes their
    /// data.
    pub unknown: Vec<Range<VolumeId>>,
    /// The unknown volumes that servers had reported when the last recovery ended.
    pub left: Vec<u32>,
    /// The last order to delete data of such volumes.
    pub forgot: Option<Forget>,
}

/// Returns the least index, incarnation and epoch after a recovery at this time (seconds since
/// 1970, UTC). Each second has its own, so two recoveries from one backup do not lead to the same
/// numbers.
pub(crate) fn first_number(at: u64) -> u64 {
    let at = at.min(LATEST);
    at / 60 * JUMP + at % 60 * (JUMP / 64)
}

/// Returns the least generation of a volume after a recovery at this time (seconds since 1970,
/// UTC). It depends on the minute, so that a second restore of the same backup leads to other
/// generations.
pub(crate) fn first_generation(at: u64) -> u32 {
    (at.min(LATEST) / 60 * 16) as u32
}

/// Returns the number of ids of devices, servers and clients that a recovery at this time (seconds
/// since 1970, UTC) skips. It depends on the second, modulo 64, so that two recoveries from one
/// backup rarely give the same ids away: a silent server may have a device of the first one.
pub(super) fn ids(at: u64) -> u32 {
    IDS * (1 + (at % 64) as u32)
}

/// Returns the number of ids of groups and volumes that a recovery at this time skips. It depends
/// on the second, modulo 1024, for the same reason. At least 500 recoveries fit below [`IDS_END`].
pub(super) fn many_ids(at: u64) -> u32 {
    MANY_IDS + (at % 1024) as u32 * (1 << 12)
}

impl Recovery {
    /// Returns true if lost MDMs may have given this id to a volume whose fate is unknown.
    pub fn is_unknown(&self, id: VolumeId) -> bool {
        self.unknown.iter().any(|range| range.contains(&id))
    }

    /// Returns true if groups in doubt wait for this content of a device.
    pub(crate) fn is_awaited(&self, device: DeviceId, store: u64) -> bool {
        self.awaited.get(&device).is_some_and(|(_, awaited)| *awaited == store)
    }

    /// Returns true if lost MDMs may have given this id away: it is not above `last`, the last one
    /// that the recovery skips. While the recovery is open it may be any id: the same state may
    /// have been recovered before, and ids were given away since.
    pub(crate) fn may_be_given(&self, id: u32, last: u32) -> bool {
        id != 0 && (id <= last || self.open && id < IDS_END)
    }

    /// Returns true for the id of a device that this MDM has not given away yet and that lost MDMs
    /// may have given away: after an earlier recovery from the same backup, which may have skipped
    /// more ids. `next` is the next id that this MDM gives away.
    pub(crate) fn is_above(&self, id: u32, next: u32) -> bool {
        self.number > 0 && (next..next.saturating_add(ABOVE).min(IDS_END)).contains(&id)
    }

    /// Records that a device with an id above those given away has registered. Others of the same
    /// earlier recovery may follow, with lower and higher ids.
    pub(crate) fn device_returned(&mut self, id: u32) {
        self.device = self.device.max(id + ids(self.at));
    }

    /// Records that this volume is deleted: its id is no longer unknown.
    pub(crate) fn forget(&mut self, id: VolumeId) {
        self.know(id..VolumeId(id.0 + 1));
        self.left.retain(|other| *other != id.0);
    }

    /// Records that it is not known any more whether this volume is deleted.
    pub(crate) fn doubt(&mut self, id: VolumeId) {
        if !self.is_unknown(id) {
            self.unknown.push(id..VolumeId(id.0 + 1));
        }
    }

    /// Records that the volumes with these ids are deleted, or are in the state.
    pub(crate) fn know(&mut self, ids: Range<VolumeId>) {
        let unknown = core::mem::take(&mut self.unknown);
        self.unknown = unknown.iter().flat_map(|range| without(range, &ids)).collect();
    }
}

/// Returns the parts of a range that are not in the other one.
fn without(
    range: &Range<VolumeId>,
    other: &Range<VolumeId>,
) -> impl Iterator<Item = Range<VolumeId>> + use<> {
    let before = range.start..range.end.min(other.start);
    let after = range.start.max(other.end)..range.end;
    let parts = match other.is_empty() {
        true => [range.clone(), range.end..range.end],
        false => [before, after],
    };
    parts.into_iter().filter(|part| !part.is_empty())
}

/// The last ids that lost MDMs may have given away, and the next id of a volume. 0: none is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct SkippedIds {
    pub device: u32,
    pub group: u32,
    pub sdc: u32,
    pub next_volume: u32,
}

impl SkippedIds {
    /// Returns the ids that a command names.
    pub(crate) fn of(c: &Reconcile) -> SkippedIds {
        SkippedIds { device: c.device, group: c.group, sdc: c.sdc, next_volume: c.next_volume }
    }
}
