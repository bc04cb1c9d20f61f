//! A memory device whose content and records outlive its process: what the replication must do for
//! durable devices, without any of theirs. For the simulator.
//!
//! Marks become what is remembered in the step in which their job ends.

use crate::durable::groups::Groups;
use crate::durable::record::Write;
use crate::memory::Memory;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, GroupId, UnitKey, VolumeId};
use seam::{
    Buf, Change, DiskError, DiskOp, Effects, Finished, GroupRecord, Job, Journal, Marks, Started,
};

/// A memory device with its records. A clone is what a crash of a process that keeps its memory would
/// leave; jobs in flight are not cloned.
#[derive(Debug)]
pub struct Kept {
    memory: Memory,
    groups: Groups,
    /// What jobs in flight say about themselves, by token.
    marks: BTreeMap<u64, Write>,
    finished: Vec<Finished>,
}

impl Clone for Kept {
    fn clone(&self) -> Kept {
        let (marks, finished) = (BTreeMap::new(), Vec::new());
        Kept { memory: self.memory.clone(), groups: self.groups.clone(), marks, finished }
    }
}

impl Kept {
    /// The records of this device; none yet.
    pub fn new(memory: Memory) -> Kept {
        let (marks, finished) = (BTreeMap::new(), Vec::new());
        Kept { memory, groups: Groups::new(usize::MAX), marks, finished }
    }

    /// The content.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// The blocks that a job changes; `None` for a read.
fn touched(job: &Job) -> Option<(u32, u32)> {
    let (at, len) = match job {
        Job::Read { .. } => return None,
        Job::Write { at, body } => (*at, body.len() as u32),
        Job::Zero { at, len } => (*at, *len),
    };
    Some((at / BLOCK, (at + len).div_ceil(BLOCK)))
}

impl Journal for Kept {
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Job,
        marks: Marks,
        out: &mut Effects,
    ) -> Started {
        let write = touched(&job).map(|(first, end)| {
            let parts = Vec::new();
            Write { group, unit, first, end, marks, parts }
        });
        let started = self.memory.start(token, group, unit, job, Marks::default(), out);
        match (&started, write) {
            (Started::Done(_), Some(write)) => self.groups.wrote(&write),
            (Started::Pending, Some(write)) if write.is_marked() => {
                self.marks.insert(token, write);
            }
            _ => {}
        }
        started
    }

    fn change(&mut self, token: Option<u64>, group: GroupId, changes: Vec<Change>) {
        changes.iter().for_each(|change| self.groups.change(group, change));
        self.memory.change(None, group, changes);
        let ended = token.map(|token| Finished { token, result: Ok(Buf::EMPTY) });
        self.finished.extend(ended);
    }

    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, out: &mut Effects) {
        self.memory.disk_done(op, result, out);
        let Some(ended) = self.memory.finished() else { return };
        let write = self.marks.remove(&ended.token);
        if let Some(write) = write.filter(|_| ended.result.is_ok()) {
            self.groups.wrote(&write);
        }
        self.finished.push(ended);
    }

    fn finished(&mut self) -> Option<Finished> {
        if self.finished.is_empty() { None } else { Some(self.finished.remove(0)) }
    }

    fn flush(&mut self, _: &mut Effects) {}

    fn has_space_for(&self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        self.memory.has_space_for(group, unit, at, len)
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) -> bool {
        self.memory.reserve(group, unit, at, len)
    }

    fn release(&mut self, group: GroupId, unit: UnitKey, at: u32, len: u32) {
        self.memory.release(group, unit, at, len);
    }

    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        self.memory.valid(group, unit)
    }

    fn units(&self, group: GroupId) -> Vec<UnitKey> {
        self.memory.units(group)
    }

    fn is_empty(&self, group: GroupId) -> bool {
        self.memory.is_empty(group)
    }

    fn volumes(&self) -> Vec<VolumeId> {
        self.memory.volumes()
    }

    fn drop_volume(&mut self, volume: VolumeId) -> u64 {
        self.groups.drop_volume(volume);
        self.memory.drop_volume(volume)
    }

    fn records(&self) -> Vec<(GroupId, GroupRecord)> {
        self.groups.records()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Incarnation, Prng, SdcId};
    use seam::{BufPool, ClientWrite, DiskId, Effect, Origin};

    #[test]
    fn marks_come_with_the_end_of_their_job() {
        let mut out = Effects::new(BufPool::new(0), Prng::new(1), None);
        let mut kept = Kept::new(Memory::new(DiskId(0), 4 * u64::from(base::UNIT), true));
        let (group, unit) = (GroupId(1), UnitKey { volume: VolumeId(1), index: 2 });
        let write = ClientWrite { sdc: SdcId(1), incarnation: Incarnation(1), seq: 5, floor: 1 };
        let marks = Marks { dirty: true, origin: Origin::Client(write) };
        let job = Job::Write { at: 512, body: out.copy(&[1; 4096]) };
        let started = Journal::start(&mut kept, 9, group, unit, job, marks.clone(), &mut out);
        assert!(matches!(started, Started::Pending) && kept.records().is_empty());
        let Some(Effect::Write { op, .. }) = out.drain().next() else { panic!("a write") };
        Journal::disk_done(&mut kept, op, Ok(Buf::EMPTY), &mut out);
        assert_eq!(kept.finished().map(|f| f.token), Some(9));
        let record = kept.clone().records()[0].1.clone();
        assert_eq!(record.dirty[&unit], BlockSet::from_range(0..2));
        assert_eq!(record.executed[0].write, write);
        kept.change(Some(10), group, alloc::vec![Change::Wipe]);
        assert_eq!(kept.finished().map(|f| f.token), Some(10));
        assert_eq!((kept.records()[0].1.clone(), kept.memory().used()), Default::default());
    }
}
