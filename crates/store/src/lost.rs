//! Blocks of a device in memory that hold data which nobody has: jobs that need them fail as if they were
//! damaged, until they are written or zeroed whole. There are hardly ever any.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, UnitKey, VolumeId};
use seam::{DiskError, Finished, Job};

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<(GroupId, UnitKey), BlockSet>,
    /// Jobs that met some, until somebody asks.
    refused: Vec<Finished>,
}

/// All such blocks. Cloning it leaves out the jobs.
#[derive(Debug, Default)]
pub struct Lost(Option<Box<State>>);

impl Clone for Lost {
    fn clone(&self) -> Lost {
        let copy = |s: &State| Box::new(State { blocks: s.blocks.clone(), refused: Vec::new() });
        Lost(self.0.as_deref().map(copy))
    }
}

impl Lost {
    /// These blocks are lost.
    pub fn insert(&mut self, group: GroupId, unit: UnitKey, blocks: BlockSet) {
        let state = self.0.get_or_insert_default();
        state.blocks.entry((group, unit)).or_default().insert(blocks);
    }

    /// True for such a block.
    pub fn has(&self, group: GroupId, unit: UnitKey, block: u32) -> bool {
        let blocks = self.0.as_deref().and_then(|state| state.blocks.get(&(group, unit)));
        blocks.is_some_and(|blocks| blocks.contains(block))
    }

    /// True when a job needs such blocks: it ends then with an error. Those that another job covers are lost
    /// no more.
    #[inline]
    pub fn stops(&mut self, token: u64, group: GroupId, unit: UnitKey, job: &Job) -> bool {
        self.0.as_deref_mut().is_some_and(|state| state.stops(token, group, unit, job))
    }

    /// The next job that was stopped.
    #[inline]
    pub fn refused(&mut self) -> Option<Finished> {
        self.0.as_deref_mut()?.refused.pop()
    }

    /// The group's content goes.
    pub fn wipe(&mut self, group: GroupId) {
        if let Some(state) = &mut self.0 {
            state.blocks.retain(|(g, _), _| *g != group);
        }
    }

    /// The volume's content goes.
    pub fn drop_volume(&mut self, volume: VolumeId) {
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
            Job::Read { at, len } | Job::Zero { at, len } | Job::Lose { at, len } => (*at, *len),
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
