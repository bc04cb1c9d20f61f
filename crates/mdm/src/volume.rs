//! Volumes in the state.

use crate::mapping::Mapping;
use crate::refused::Refused;
use crate::reserve::AllAsked;
use crate::seat::Seats;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use base::{GroupId, MAX_VOLUME_BYTES, MapVersion, PoolId, UNIT};
use target::reserve::Table;
use wire::control::AcceptedLoss;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Bytes, a multiple of 1 MiB.
    pub size: u64,
    /// Rises when a client's permission to use the volume ends, to fence that client, and when a
    /// reservation takes access from hosts.
    pub generation: u32,
    /// The clients that may use it.
    pub mapping: Mapping,
    /// Its storage pool. It never changes.
    pub pool: PoolId,
    /// Space for all of it is reserved.
    pub thick: bool,
    /// The groups of its units.
    pub slots: Vec<GroupId>,
    /// The latest losses that operators have accepted.
    pub losses: Vec<AcceptedLoss>,
    /// Groups whose part of the volume was lost, with the number of units that the volume had then:
    /// their blocks are errors to read until they are written.
    pub gaps: BTreeMap<GroupId, u32>,
    /// The registered hosts, and the reservation.
    pub reservations: Table,
    /// The last change of these by each client.
    pub asked: AllAsked,
    /// The gateways of its hosts.
    pub seats: Seats,
    /// The map version that changed it last.
    pub changed_at: MapVersion,
}

/// Checks a size that was rounded to whole units.
pub(crate) fn check_size(size: u64) -> Result<(), Refused> {
    match size {
        0 => Err(Refused::Empty),
        s if s > MAX_VOLUME_BYTES => Err(Refused::TooBig(s)),
        s if s % u64::from(UNIT) != 0 => Err(Refused::Outdated),
        _ => Ok(()),
    }
}
