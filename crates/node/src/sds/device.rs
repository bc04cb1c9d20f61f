//! A shard's device of either kind: in memory, or durable.

use alloc::boxed::Box;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, UnitKey, VolumeId};
use seam::{
    Buf, Change, DiskError, DiskOp, Effects, Finished, Forgotten, Job, ReplicaRecord, Started,
    UnitStore, Walk, WriteMetadata,
};
use store::Memory;
use store::durable::Durable;

/// A device.
#[derive(Debug)]
pub enum Device {
    /// RAM and NULL.
    Memory(Box<Memory>),
    /// A file or a block device, mounted.
    Durable(Box<Durable>),
}

impl Device {
    /// Returns the capacity for data, in bytes.
    pub fn capacity(&self) -> u64 {
        match self {
            Device::Memory(memory) => memory.capacity(),
            Device::Durable(durable) => durable.capacity(),
        }
    }

    /// Returns the mounted device, if it is durable.
    pub fn durable(&self) -> Option<&Durable> {
        match self {
            Device::Memory(_) => None,
            Device::Durable(durable) => Some(durable),
        }
    }

    /// True for a block of a memory device that can't be read until it is written as a whole.
    pub fn is_lost_in_memory(&self, group: GroupId, unit: UnitKey, block: u32) -> bool {
        matches!(self, Device::Memory(memory) if memory.is_lost(group, unit, block))
    }

    /// Returns the position of a block on the device, in bytes, if the block holds data.
    pub fn place(&self, group: GroupId, unit: UnitKey, block: u32) -> Option<u64> {
        match self {
            Device::Memory(memory) => {
                let start = memory.place(group, unit);
                let start = start.filter(|_| memory.valid(group, unit).contains(block));
                start.map(|start| start + u64::from(block * base::BLOCK))
            }
            Device::Durable(durable) => durable.place(group, unit, block),
        }
    }
}

macro_rules! of {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            Device::Memory($device) => $call,
            Device::Durable($device) => $call,
        }
    };
}

impl UnitStore for Device {
    #[inline]
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Job,
        marks: WriteMetadata,
        out: &mut Effects,
    ) -> Started {
        of!(self, d => d.start(token, group, unit, job, marks, out))
    }

    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>) {
        of!(self, d => d.change(token, group, changes));
    }

    #[inline]
    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, out: &mut Effects) {
        of!(self, d => d.disk_done(op, result, out));
    }

    #[inline]
    fn finished(&mut self) -> Option<Finished> {
        of!(self, d => d.finished())
    }

    fn flush(&mut self, out: &mut Effects) {
        of!(self, d => d.flush(out));
    }

    fn rest(&mut self, out: &mut Effects) {
        of!(self, d => d.rest(out));
    }

    fn has_space_for(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        of!(self, d => d.has_space_for(group, unit, at, len))
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        of!(self, d => d.reserve(group, unit, at, len))
    }

    fn release(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) {
        of!(self, d => d.release(group, unit, at, len));
    }

    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        of!(self, d => d.valid(group, unit))
    }

    fn units(&self, group: GroupId) -> Vec<UnitKey> {
        of!(self, d => d.units(group))
    }

    fn is_empty(&self, group: GroupId) -> bool {
        of!(self, d => d.is_empty(group))
    }

    fn volumes(&self) -> Vec<VolumeId> {
        of!(self, d => d.volumes())
    }

    fn drop_volume(&mut self, volume: VolumeId) -> u64 {
        of!(self, d => d.drop_volume(volume))
    }

    fn walk(&self, cursor: u64, most: u32) -> Walk {
        of!(self, d => d.walk(cursor, most))
    }

    #[inline]
    fn used(&self) -> u64 {
        of!(self, d => d.used())
    }

    fn records(&self) -> Vec<(GroupId, ReplicaRecord)> {
        of!(self, d => d.records())
    }

    fn forgotten(&self) -> Option<&Forgotten> {
        of!(self, d => d.forgotten())
    }

    fn keeps_data(&self) -> bool {
        of!(self, d => d.keeps_data())
    }

    fn survives(&self) -> bool {
        of!(self, d => d.survives())
    }

    fn failed(&self) -> Option<DiskError> {
        match self {
            Device::Memory(_) => None,
            Device::Durable(durable) => Durable::failed(durable),
        }
    }
}
