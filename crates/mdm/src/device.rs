//! Devices and their servers in the state.

use alloc::string::String;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DomainId, FaultSetId, Incarnation, MapVersion, PoolId, SdsId};
use wire::control::{DeviceKind, Intent};

/// Returns true for a device that keeps its content when its process ends.
pub fn survives(kind: DeviceKind) -> bool {
    kind == DeviceKind::Durable
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its server.
    pub sds: SdsId,
    /// Number of its shard in the server: with the server it is the device's place.
    pub shard: u32,
    /// Address where its process listens.
    pub address: String,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The number that the process drew at its start.
    pub nonce: u64,
    /// Nonces of earlier processes, the latest last.
    pub past: Vec<u64>,
    /// The number drawn at random when its store was made (RAM: when the process started). It
    /// identifies the content.
    pub store: u64,
    /// Its kind.
    pub kind: DeviceKind,
    /// Bytes for data.
    pub capacity: u64,
    /// The process id, for people.
    pub pid: u32,
    /// The release of the process; empty in a cluster of level 1.
    pub release: String,
    /// It counts as alive.
    pub up: bool,
    /// It is down, and known to be dead.
    pub dead: bool,
    /// Number of scrubs that were ordered.
    pub scrub: u32,
    /// Whether it may hold replicas, and whether it is to leave.
    pub intent: Intent,
    /// Its storage pool. It never changes.
    pub pool: PoolId,
    /// The map version that changed it last.
    pub changed_at: MapVersion,
}

impl Device {
    /// Returns true while the device counts as alive in its place: a process that claims to be it
    /// in another place has a copy.
    pub(crate) fn is_in_use(&self) -> bool {
        self.up && !mutant::on(Mutant::TakeCopy)
    }
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name that its processes give. It never changes.
    pub own: String,
    /// Its name, for people.
    pub name: String,
    /// Its protection domain. It never changes.
    pub domain: DomainId,
    /// Its fault set. It never changes.
    pub fault_set: Option<FaultSetId>,
    /// Its fault unit: the first server of its fault set, or itself.
    pub unit: SdsId,
}
