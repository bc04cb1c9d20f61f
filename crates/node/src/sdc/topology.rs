//! The map as the client core and the NBD sessions see it.

use crate::mapview::{MapView, Volume};
use base::{GroupId, MapVersion, UnitKey, VolumeId};
use mirror::client::{Leader, Topology, Usable};
use target::nbd::{Export, Exports};
use wire::control::Access;

impl Topology for MapView {
    #[inline]
    fn version(&self) -> MapVersion {
        self.version
    }

    #[inline]
    fn volume(&self, id: VolumeId) -> Option<Usable> {
        let volume = self.volumes.get(&id)?;
        let grant = self.my_grant(volume)?;
        let (generation, since) = (grant.generation, grant.since);
        let writable = grant.access == Access::ReadWrite;
        Some(Usable { size: volume.size, generation, since, writable })
    }

    #[inline]
    fn group_of(&self, unit: UnitKey) -> Option<GroupId> {
        MapView::group_of(self, unit)
    }

    #[inline]
    fn leader(&self, group: GroupId) -> Leader {
        match self.group(group) {
            Some(group) if group.lost => Leader::Lost,
            Some(group) => group.primary.map_or(Leader::Nobody, |p| Leader::At(p, group.epoch)),
            None => Leader::Nobody,
        }
    }
}

impl MapView {
    /// Returns the export of a volume, if the volume is mapped to this client.
    fn export<'a>(&self, id: VolumeId, volume: &'a Volume) -> Option<Export<'a>> {
        let read_only = self.my_grant(volume)?.access == Access::ReadOnly;
        let access = volume.reservations.access_of_strangers();
        let (cluster, size, name) = (self.cluster, volume.size, &volume.name);
        Some(Export { cluster, volume: id, size, read_only, access, name })
    }
}

impl Exports for MapView {
    fn find(&self, name: &[u8]) -> Option<Export<'_>> {
        let (id, volume) = self.volumes.iter().find(|(_, v)| v.name.as_bytes() == name)?;
        self.export(*id, volume)
    }

    fn each<'a>(&'a self, visit: &mut dyn FnMut(Export<'a>)) {
        self.volumes.iter().filter_map(|(id, volume)| self.export(*id, volume)).for_each(visit);
    }
}
