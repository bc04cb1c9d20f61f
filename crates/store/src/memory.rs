//! A [`Store`] that remembers what replication must remember, as long as its process lives: [`Journal`]
//! for memory devices, so that the layers above need not know which kind they have.
//!
//! Marks become what is remembered in the step in which their job ends. A NULL device remembers nothing.

use crate::durable::groups::Groups;
use crate::durable::record::Write;
use crate::store::Store;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use base::{BLOCK, BlockSet, GroupId, UNIT, UnitKey, VolumeId};
use seam::{
    Buf, Change, DiskError, DiskOp, Effects, Finished, GroupRecord, Job, Journal, Marks, Media,
    Started,
};

/// A memory device with its records. A clone is what a crash of a process that keeps its memory would
/// leave; jobs in flight are not cloned.
#[derive(Debug)]
pub struct Memory {
    store: Store,
    groups: Groups,
    /// What jobs in flight say about themselves, by token.
    marks: BTreeMap<u64, Write>,
    finished: VecDeque<Finished>,
}

impl Clone for Memory {
    fn clone(&self) -> Memory {
        let (marks, finished) = (BTreeMap::new(), VecDeque::new());
        Memory { store: self.store.clone(), groups: self.groups.clone(), marks, finished }
    }
}

impl Memory {
    /// The records of this store; none yet.
    pub fn new(store: Store) -> Memory {
        let (marks, finished) = (BTreeMap::new(), VecDeque::new());
        Memory { store, groups: Groups::new(usize::MAX), marks, finished }
    }

    /// The content.
    pub fn store(&self) -> &Store {
        &self.store
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

impl Journal for Memory {
    fn start(
        &mut self,
        token: u64,
        group: GroupId,
        unit: UnitKey,
        job: Job,
        marks: Marks,
        out: &mut Effects,
    ) -> Started {
        let blocks = touched(&job).filter(|_| self.store.keeps_data());
        let write = blocks.map(|(first, end)| {
            let parts = Vec::new();
            Write { group, unit, first, end, marks, parts }
        });
        let started = self.store.start(token, group, unit, job, out);
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
        for change in &changes {
            if matches!(change, Change::Wipe) {
                self.store.wipe(group);
            }
            self.groups.change(group, change);
        }
        let ended = token.map(|token| Finished { token, result: Ok(Buf::EMPTY) });
        self.finished.extend(ended);
    }

    fn disk_done(&mut self, op: DiskOp, result: Result<Buf, DiskError>, _: &mut Effects) {
        let Some(ended) = self.store.disk_done(op, result) else { return };
        let write = self.marks.remove(&ended.token);
        if let Some(write) = write.filter(|_| ended.result.is_ok()) {
            self.groups.wrote(&write);
        }
        self.finished.push_back(ended);
    }

    fn finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    fn flush(&mut self, _: &mut Effects) {}

    fn has_space_for(&self, group: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        Media::has_space_for(&self.store, group, unit)
    }

    fn reserve(&mut self, group: GroupId, unit: UnitKey, _: u32, _: u32) -> bool {
        Media::reserve(&mut self.store, group, unit)
    }

    fn release(&mut self, group: GroupId, unit: UnitKey, _: u32, _: u32) {
        Media::release(&mut self.store, group, unit);
    }

    fn valid(&self, group: GroupId, unit: UnitKey) -> BlockSet {
        Media::valid(&self.store, group, unit)
    }

    fn units(&self, group: GroupId) -> Vec<UnitKey> {
        Media::units(&self.store, group)
    }

    fn volumes(&self) -> Vec<VolumeId> {
        Media::volumes(&self.store)
    }

    fn is_empty(&self, group: GroupId) -> bool {
        Media::units(&self.store, group).is_empty()
    }

    fn drop_volume(&mut self, volume: VolumeId) -> u64 {
        self.groups.drop_volume(volume);
        u64::from(Media::drop_volume(&mut self.store, volume)) * u64::from(UNIT)
    }

    fn records(&self) -> Vec<(GroupId, GroupRecord)> {
        self.groups.records()
    }

    fn keeps_data(&self) -> bool {
        self.store.keeps_data()
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
        let mut memory = Memory::new(Store::new(DiskId(0), 4 * u64::from(UNIT), true));
        let (group, unit) = (GroupId(1), UnitKey { volume: VolumeId(1), index: 2 });
        let write = ClientWrite { sdc: SdcId(1), incarnation: Incarnation(1), seq: 5, floor: 1 };
        let marks = Marks { dirty: true, origin: Origin::Client(write) };
        let job = Job::Write { at: 512, body: out.copy(&[1; 4096]) };
        let started = Journal::start(&mut memory, 9, group, unit, job, marks.clone(), &mut out);
        assert!(matches!(started, Started::Pending) && memory.records().is_empty());
        let Some(Effect::Write { op, .. }) = out.drain().next() else { panic!("a write") };
        Journal::disk_done(&mut memory, op, Ok(Buf::EMPTY), &mut out);
        assert_eq!(memory.finished().map(|f| f.token), Some(9));
        let record = memory.clone().records()[0].1.clone();
        assert_eq!(record.dirty[&unit], BlockSet::from_range(0..2));
        assert_eq!(record.executed[0].write, write);
        memory.change(Some(10), group, alloc::vec![Change::Wipe]);
        assert_eq!(memory.finished().map(|f| f.token), Some(10));
        assert_eq!((memory.records()[0].1.clone(), memory.store().used()), Default::default());
    }
}
