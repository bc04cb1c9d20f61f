//! The map as the client core and the NBD sessions want to see it.

use crate::mapview::{MapView, Volume};
use base::{GroupId, MapVersion, UnitKey, VolumeId};
use mirror::client::{Leader, Topology};
use target::nbd::{Export, Exports};

impl Topology for MapView {
    #[inline]
    fn version(&self) -> MapVersion {
        self.version
    }

    #[inline]
    fn volume(&self, id: VolumeId) -> Option<(u64, u32)> {
        self.volumes.get(&id).map(|v| (v.size, v.generation))
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

fn export(id: VolumeId, volume: &Volume) -> Export<'_> {
    Export { volume: id, size: volume.size, read_only: false, name: &volume.name, description: "" }
}

impl Exports for MapView {
    fn find(&self, name: &[u8]) -> Option<Export<'_>> {
        let (id, volume) = self.volumes.iter().find(|(_, v)| v.name.as_bytes() == name)?;
        Some(export(*id, volume))
    }

    fn each<'a>(&'a self, visit: &mut dyn FnMut(Export<'a>)) {
        self.volumes.iter().for_each(|(id, volume)| visit(export(*id, volume)));
    }
}
