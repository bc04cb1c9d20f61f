//! What this shard knows and has not told yet, because it is told with the next beacons: to the
//! secondaries the commit points that no write has carried to them, and to the unit store which
//! blocks are clean. It is safe to tell either late. The owner asks whether a joiner is ready.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::GroupId;

/// Groups with something to tell.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    commits: Vec<GroupId>,
    clean: BTreeSet<GroupId>,
    /// A joiner has become ready to be admitted.
    ready: bool,
}

impl Untold {
    /// The secondaries may not know this group's commit point.
    pub(crate) fn commit(&mut self, group: GroupId) {
        self.commits.push(group);
    }

    /// Takes the groups whose commit points are to be told.
    pub(crate) fn take_commits(&mut self) -> Vec<GroupId> {
        core::mem::take(&mut self.commits)
    }

    /// The unit store does not know all clean blocks of this group.
    #[inline]
    pub(crate) fn clean(&mut self, group: GroupId) {
        self.clean.insert(group);
    }

    /// A joiner has become ready to be admitted.
    pub(crate) fn ready_to_admit(&mut self) {
        self.ready = true;
    }

    /// Returns true once after joiners have become ready to be admitted.
    pub(crate) fn take_ready_to_admit(&mut self) -> bool {
        core::mem::take(&mut self.ready)
    }

    /// Takes a group of which clean blocks are to be told.
    #[inline]
    pub(crate) fn next_clean(&mut self) -> Option<GroupId> {
        self.clean.pop_first()
    }
}
