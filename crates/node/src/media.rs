//! A device's [`Store`] as the media of its mirror: the two crates don't know each other.

use alloc::vec::Vec;
use base::{BlockSet, GroupId, UnitKey, VolumeId};
use seam::{Buf, DiskError, DiskOp, Effects};
use store::{Finished, Store};

/// The store of one device.
#[derive(Debug, Clone)]
pub struct Media(pub Store);

impl mirror::Media for Media {
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: mirror::Job,
        out: &mut Effects,
    ) -> mirror::Started {
        let job = match job {
            mirror::Job::Read { at, len } => store::Job::Read { at, len },
            mirror::Job::Write { at, body } => store::Job::Write { at, body },
            mirror::Job::Zero { at, len } => store::Job::Zero { at, len },
        };
        match self.0.start(token, group, unit, job, out) {
            store::Started::Done(data) => mirror::Started::Done(data),
            store::Started::Pending => mirror::Started::Pending,
            store::Started::Full => mirror::Started::Full,
        }
    }

    fn disk_done(
        &mut self,
        op: DiskOp,
        result: Result<Buf, DiskError>,
    ) -> Option<(u64, Result<Buf, DiskError>)> {
        self.0.disk_done(op, result).map(|Finished { token, result }| (token, result))
    }

    fn has_space_for(&self, group: GroupId, unit: UnitKey) -> bool {
        self.0.has_space_for(group, unit)
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey) -> bool {
        self.0.reserve(group, unit)
    }

    fn release(&mut self, group: GroupId, unit: UnitKey) {
        self.0.release(group, unit);
    }

    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        self.0.valid(group, unit)
    }

    fn units(&self, group: GroupId) -> Vec<UnitKey> {
        self.0.units(group)
    }

    fn wipe(&mut self, group: GroupId) {
        self.0.wipe(group);
    }

    fn volumes(&self) -> Vec<VolumeId> {
        self.0.volumes()
    }

    fn drop_volume(&mut self, volume: VolumeId) -> (u32, bool) {
        self.0.drop_volume(volume)
    }

    fn keeps_data(&self) -> bool {
        self.0.keeps_data()
    }
}
