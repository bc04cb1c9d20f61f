//! The last entries of a survivor's log, which may not be decided.
//!
//! The survivor applies them, since they may be decided. But the lost MDMs may have decided other
//! entries in their place, and servers and clients have acted on those. So devices, servers,
//! clients and groups go back to the decided state: processes tell their own ids and incarnations.
//! The recovery skips the ids and incarnations of the undecided entries.

use crate::group::Doubt;
use crate::mapping::Mapping;
use crate::state::{GroupIndex, State, Volume};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, VolumeId};

/// Restores from the decided state everything that servers and clients report themselves.
pub(super) fn go_back_to(state: &mut State, decided: &State) {
    let emptied = emptied_since(state, decided);
    state.devices.clone_from(&decided.devices);
    state.servers.clone_from(&decided.servers);
    state.sdcs.clone_from(&decided.sdcs);
    state.last_sdc = decided.last_sdc;
    state.removed_sdcs.clone_from(&decided.removed_sdcs);
    state.objects.keep(&decided.objects);
    groups_of_decided(state, decided, &emptied);
    volumes_of_decided(state, decided);
    state.group_index = GroupIndex::of(&state.groups, state.volumes.values());
}

/// Returns the decided devices whose content has changed since.
fn emptied_since(state: &State, decided: &State) -> BTreeSet<DeviceId> {
    let store = |state: &State, d: &DeviceId| state.devices.get(d).map(|d| d.store);
    let emptied = |d: &DeviceId| store(state, d) != store(decided, d);
    decided.devices.keys().copied().filter(emptied).collect()
}

/// Restores the groups of the decided state. It is unknown what a device had that may be empty now.
fn groups_of_decided(state: &mut State, decided: &State, emptied: &BTreeSet<DeviceId>) {
    state.groups.retain(|_, g| g.replicas.iter().all(|d| decided.devices.contains_key(d)));
    for (id, group) in &decided.groups {
        let mut group = group.clone();
        if group.in_sync.iter().any(|d| emptied.contains(d)) {
            group.in_sync.retain(|d| !emptied.contains(d));
            group.doubt = Doubt::Gone;
        }
        state.groups.insert(*id, group);
    }
}

/// Drops volumes whose groups are gone, and the grants of clients that are gone. These volumes
/// are unknown from now on, and so are volumes that an undecided entry deleted.
fn volumes_of_decided(state: &mut State, decided: &State) {
    let had: BTreeSet<VolumeId> =
        state.volumes.keys().chain(decided.volumes.keys()).copied().collect();
    let groups = &state.groups;
    state.volumes.retain(|_, v| v.slots.iter().all(|g| groups.contains_key(g)));
    state.volumes.values_mut().for_each(|v| only_for_clients_of(decided, v));
    let gone = had.into_iter().filter(|id| !state.volumes.contains_key(id));
    let gone: Vec<VolumeId> = gone.collect();
    gone.into_iter().for_each(|id| state.recovery.doubt(id));
}

fn only_for_clients_of(decided: &State, volume: &mut Volume) {
    let gone = volume.mapping.clients().any(|(sdc, _)| !decided.may_be_client(sdc));
    if gone {
        let mut info = volume.mapping.info();
        info.sdcs.retain(|g| decided.may_be_client(base::SdcId(g.sdc)));
        volume.mapping = Mapping::of(Some(info));
    }
}
