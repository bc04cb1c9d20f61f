//! What a recovery takes over of the volumes in servers' maps.
//!
//! The newest map tells which volumes there are. Servers pass on maps without deletions, so the map
//! that came last from an MDM itself tells which ones were deleted.
//!
//! **Names.** The state and the map may have two volumes with one name: after an earlier recovery
//! that did not know the volume of the state, a user gave its name to another one. Both exist. The
//! volume of the state keeps the name, and the other one gets a name that is free
//! ([`free_name`]). But first come all other changes: the map may delete or rename the volume
//! that has the name. A volume gets the name of its map again as soon as that name is free.

use super::device_report::{self, DeviceReports, Map};
use super::{GENERATIONS, newest, newest_map};
use crate::command::Reconcile;
use crate::refused::NAME_MAX;
use crate::state::{State, reconcile};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base::{GroupId, Mutant, VolumeId, mutant};
use prost::Message;
use wire::control::{IdRange, VolumeInfo};

/// Maximum number of volumes in one command.
const VOLUMES: usize = 64;
/// A command takes no further volume once its volumes have this many bytes.
const BYTES: usize = 256 << 10;

/// Maximum number of ranges of ids in one command.
const RANGES: usize = 1024;
/// What a map tells of unknown ids is stored only if at most this many of its volumes are not taken
/// over. (Each of them divides a range.)
const PENDING: usize = 64;

/// Returns the changes of volumes that the newest map of a server shows, if that map is at least as
/// new as the state was. An older map only restores volumes whose deletion was perhaps not decided.
pub(super) fn volumes(state: &State, reports: &DeviceReports) -> Reconcile {
    let mut change = Reconcile::default();
    let newer = newest_map(state, reports);
    let told = || {
        device_report::lost_maps(state, reports)
            .max_by_key(|m| m.from_mdm)
            .filter(|_| state.recovery.open)
    };
    let Some(map) = newer.or_else(told) else { return change };
    let known = |v: &VolumeInfo| v.slots.iter().all(|g| state.groups.contains_key(&GroupId(*g)));
    // The last entries of the log need not have been decided. A volume that they delete and that
    // the newest map of an MDM has still exists: no server has deleted its data.
    let is_back = |v: &VolumeInfo| {
        let id = VolumeId(v.id);
        !state.volumes.contains_key(&id) && state.recovery.is_unknown(id)
    };
    // Servers pass on only volumes that exist. Only maps from MDMs tell which ones were deleted.
    let from_mdm = newest(state, reports, |m| m.from_mdm);
    let is_deleted = |id: VolumeId| from_mdm.is_some_and(|map| map.is_deleted(id));
    let is_news = |v: &VolumeInfo| {
        (newer.is_some() || is_back(v))
            && !is_deleted(VolumeId(v.id))
            && known(v)
            && reconcile::adopted(state, v, GENERATIONS).is_some()
    };
    let mut names = BTreeSet::new();
    let other = map.volumes.values().filter(|v| is_news(v) && names.insert(&v.name));
    change.volumes = some(other.cloned());
    let gone = state.volumes.keys().filter(|id| is_deleted(**id));
    change.deleted = gone.take(VOLUMES).map(|id| id.0).collect();
    change.known = from_mdm.map_or_else(Vec::new, |map| known_ids(state, map));
    if change.volumes.is_empty() && change.deleted.is_empty() {
        change.volumes = some(renamed(state, map).into_iter().filter(is_news));
    }
    change.generations = if change.volumes.is_empty() { 0 } else { GENERATIONS };
    change
}

/// Returns the ids whose fate this map of an MDM tells. After the recovery, the state's map takes
/// its place: a further recovery, from a newer backup, must not bring a deleted volume back.
fn known_ids(state: &State, map: &Map) -> Vec<IdRange> {
    let pending = map.volumes.keys().filter(|id| !state.volumes.contains_key(id)).copied();
    let pending: Vec<VolumeId> = pending.take(PENDING + 1).collect();
    if pending.len() > PENDING || mutant::on(Mutant::ForgetDeletions) {
        return Vec::new();
    }
    let known = map.known_ids(&state.recovery.unknown, &pending);
    known.iter().take(RANGES).map(IdRange::of).collect()
}

/// Returns the first of these volumes, as many as one command takes.
fn some(volumes: impl Iterator<Item = VolumeInfo>) -> Vec<VolumeInfo> {
    let mut bytes = 0;
    let room = |v: &VolumeInfo| {
        let full = bytes >= BYTES;
        bytes += v.encoded_len();
        !full
    };
    volumes.take(VOLUMES).take_while(room).collect()
}

/// Returns the volumes of the map whose names other volumes of the state have, each with a name
/// that is free.
fn renamed(state: &State, map: &Map) -> Vec<VolumeInfo> {
    let here: BTreeMap<&str, u32> =
        state.volumes.iter().map(|(id, v)| (v.name.as_str(), id.0)).collect();
    let told: BTreeMap<&str, u32> = map.volumes.values().map(|v| (v.name.as_str(), v.id)).collect();
    let is_free = |name: &str, id: u32| {
        [&here, &told].iter().all(|names| names.get(name).is_none_or(|other| *other == id))
    };
    let taken = |v: &&VolumeInfo| here.get(v.name.as_str()).is_some_and(|other| *other != v.id);
    let anew = |v: &VolumeInfo| {
        let name = free_name(&v.name, v.id, |name| is_free(name, v.id));
        VolumeInfo { name, ..v.clone() }
    };
    map.volumes.values().filter(taken).map(anew).collect()
}

/// Returns `NAME-ID`, or `NAME-2-ID` and so on if that is taken. The name is cut so that the whole
/// is not too long. It ends with the id, so two volumes never get the same name.
fn free_name(name: &str, id: u32, is_free: impl Fn(&str) -> bool) -> String {
    let candidate = |n: u32| {
        let end = if n == 1 { format!("-{id}") } else { format!("-{n}-{id}") };
        let cut = &name[..name.floor_char_boundary(NAME_MAX - end.len())];
        format!("{cut}{end}")
    };
    let mut all = (1..=u32::MAX).map(candidate);
    all.find(|name| is_free(name)).expect("there are fewer volumes than numbers")
}
