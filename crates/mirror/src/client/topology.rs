//! The cluster map as the client sees it.

use base::{DeviceId, Epoch, GroupId, MapVersion, UnitKey, VolumeId};

/// What the client needs of the cluster map.
pub trait Topology {
    /// Returns the map's version; 0 when there is none yet.
    fn version(&self) -> MapVersion;
    /// Returns a volume, if it exists and this client may use it.
    fn volume(&self, id: VolumeId) -> Option<Usable>;
    /// Returns the group of a unit, if its volume exists.
    fn group_of(&self, unit: UnitKey) -> Option<GroupId>;
    /// Returns the primary of a group.
    fn leader(&self, group: GroupId) -> Leader;
}

/// A volume, as a client may use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usable {
    /// Its size in bytes.
    pub size: u64,
    /// Servers refuse I/O of an earlier generation.
    pub generation: u32,
    /// The generation at which the client's permission began. Requests of an earlier one are over.
    pub since: u32,
    /// The client may write.
    pub writable: bool,
}

/// The primary of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leader {
    /// This device, in this epoch.
    At(DeviceId, Epoch),
    /// None for now.
    Nobody,
    /// None: every copy is lost (rule R10).
    Lost,
}
