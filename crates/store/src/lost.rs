//! Blocks of a memory device whose data is lost. Jobs that need them fail as if the blocks were
//! damaged, until the blocks are written or zeroed whole. There are hardly ever any.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, UnitKey, VolumeId};
use seam::{DiskError, Finished, Job};

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<(GroupId, UnitKey), BlockSet>,
    /// Jobs that failed because of such blocks, until the caller asks for them.
    refused: Vec<Finished>,
}

/// All lost blocks of a device. A clone leaves out the jobs.
#[derive(Debug, Default)]
pub(crate) struct Lost(Option<Box<State>>);

impl Clone for Lost {
    fn clone(&self) -> Lost {
        let copy = |s: &State| Box::new(State { blocks: s.blocks.clone(), refused: Vec::new() });
        Lost(self.0.as_deref().map(copy))
    }
}

impl Lost {
    /// Marks blocks as lost.
    pub(crate) fn insert(&mut self, group: GroupId, unit: UnitKey, blocks: BlockSet) {
        let state = self.0.get_or_insert_default();
        state.blocks.entry((group, unit)).or_default().insert(blocks);
    }

    /// True when the block is lost.
    pub(crate) fn has(&self, group: GroupId, unit: UnitKey, block: u32) -> bool {
        let blocks = self.0.as_deref().and_then(|state| state.blocks.get(&(group, unit)));
        blocks.is_some_and(|blocks| blocks.contains(block))
    }

    /// Returns true for a job that needs lost blocks, and fails it. Otherwise, blocks that the job
    /// writes or zeros whole are no longer lost.
    #[inline]
    pub(crate) fn stops(&mut self, token: u64, group: GroupId, unit: UnitKey, job: &Job) -> bool {
        self.0.as_deref_mut().is_some_and(|state| state.stops(token, group, unit, job))
    }

    /// Returns the next failed job.
    #[inline]
    pub(crate) fn refused(&mut self) -> Option<Finished> {
        self.0.as_deref_mut()?.refused.pop()
    }

    /// Forgets the lost blocks of a wiped group.
    pub(crate) fn wipe(&mut self, group: GroupId) {
        if let Some(state) = &mut self.0 {
            state.blocks.retain(|(g, _), _| *g != group);
        }
    }

    /// Forgets the lost blocks of a dropped volume.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) {
        if let Some(state) = &mut self.0 {
            state.blocks.retain(|(_, unit), _| unit.volume != volume);
        }
    }
}

impl State {
    fn stops(&mut self, token: u64, group: GroupId, unit: UnitKey, job: &Job) -> bool {
        let Some(lost) = self.blocks.get_mut(&(group, unit)) else { return false };
        let (at, len) = match job {
            Job::Write { at, body, .. } => (*at, body.len() as u32),
            Job::Read { at, len } | Job::Zero { at, len } | Job::MarkLost { at, len } => {
                (*at, *len)
            }
        };
        let mut needed = BlockSet::touching(at, len);
        if !matches!(job, Job::Read { .. }) {
            needed.remove(BlockSet::within(at, len));
        }
        if let Some(run) = lost.and(needed).first_run() {
            let (first, blocks) = (run.start as u16, (run.end - run.start) as u16);
            let result = Err(DiskError::Corrupt { first, blocks });
            self.refused.push(Finished { token, result, crc: None });
            return true;
        }
        if !matches!(job, Job::Read { .. }) {
            lost.remove(BlockSet::within(at, len));
        }
        false
    }
}
