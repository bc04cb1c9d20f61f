//! A replica's knowledge about its own content, for judges that compare it with the content itself.

use crate::mirror::Mirror;
use crate::op::Local;
use crate::replica::Role;
use alloc::vec::Vec;
use base::{BlockSet, GroupId};
use seam::record::Dirty;
use seam::{ExecutedBlocks, UnitStore};

/// One replica's knowledge of its own content.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Any block may differ from another replica's.
    pub all: bool,
    /// Blocks that may differ: D, uncertain writes, and blocks of operations in progress.
    pub may_differ: Dirty,
    /// Blocks of operations in progress. They may contain any part of what is being written.
    pub busy: Dirty,
    /// Client writes that the content includes.
    pub executed: Vec<ExecutedBlocks>,
}

impl<S: UnitStore> Mirror<S> {
    /// Returns what this replica knows of its content. `None`: there is no replica of the group
    /// here.
    pub fn standing(&self, group: GroupId) -> Option<Standing> {
        let replica = self.shard.replicas.get(group)?;
        let mut busy = Dirty::default();
        for (_, op) in self.shard.ops.iter().filter(|(_, op)| op.group == group) {
            let begun = op.lsn.0 != 0 || op.local != Local::NotStarted;
            if begun && !op.shares() {
                busy.insert(op.unit, BlockSet::touching(op.at, op.len));
            }
        }
        let mut may_differ = replica.record.dirty.clone();
        may_differ.extend(&busy);
        if let Role::Secondary(secondary) = &replica.role {
            secondary.uncertain().for_each(|(unit, blocks)| may_differ.insert(unit, blocks));
        }
        let executed = replica.record.executed.entries();
        Some(Standing { all: replica.record.all_dirty, may_differ, busy, executed })
    }
}
