//! Gives seats to gateways, moves them, and ends them.

use super::{Edits, State, Volume};
use crate::command;
use crate::seat::{SEATS, Seat, is_host_name};
use alloc::collections::BTreeMap;
use base::mutant::{self, Mutant};
use base::{SdcId, VolumeId};

/// Changes seats. A change of a seat that another gateway has by now does nothing, and neither does
/// one that the volume has no room for.
///
/// Invariant: if a seat leaves a gateway, the generations of all permissions rise, so that servers
/// refuse what the host has sent through that gateway. After a recovery, a gateway may have had a
/// seat that the state does not have.
pub(super) fn seat(state: &State, c: &command::Seat) -> Edits {
    let mut volumes: BTreeMap<VolumeId, Volume> = BTreeMap::new();
    for change in &c.changes {
        let id = VolumeId(change.volume);
        let Some(mut volume) = volumes.remove(&id).or_else(|| state.volumes.get(&id).cloned())
        else {
            continue;
        };
        take(state, change, &mut volume);
        volumes.insert(id, volume);
    }
    let changed = volumes.into_iter().filter(|(id, volume)| state.volumes[id] != *volume);
    let volumes = changed.map(|(id, volume)| (id, Some(volume))).collect();
    Edits { volumes, ..Edits::default() }
}

fn take(state: &State, change: &command::SeatChange, volume: &mut Volume) {
    let (from, to) = (SdcId(change.from), SdcId(change.to));
    let has = volume.seats.get(&change.host).map_or(SdcId(0), |seat| seat.sdc);
    let gives = to != SdcId(0);
    let may = is_host_name(&change.host)
        && has == from
        && from != to
        && (!gives || state.sdcs.contains_key(&to) && volume.mapping.grant(to).is_some())
        && (!gives || volume.mapping.admits(&change.host))
        && (!gives || from != SdcId(0) || volume.seats.len() < SEATS);
    if !may {
        return;
    }
    // Generation 0 means "no seat" in messages. Volumes of the oldest logs have it.
    let first = volume.generation == 0;
    let fences = from != SdcId(0) || state.recovery.number > 0 || first;
    if fences && !mutant::on(Mutant::MoveUnfenced) {
        let Some(generation) = volume.generation.checked_add(1) else { return };
        volume.generation = generation;
        volume.mapping = volume.mapping.renewed(generation);
    }
    match gives {
        true => {
            let seat = Seat { sdc: to, since: volume.generation };
            volume.seats.insert(change.host.clone(), seat);
        }
        false => drop(volume.seats.remove(&change.host)),
    }
}
