//! Blocks that were copied as lost, because their source had lost them: how long the bytes of such
//! a block may differ between two copies.

use crate::plan::Who;
use crate::stage::Stage;
use base::{GroupId, UnitKey};
use node::sds::Sds;

impl Stage {
    /// Drops blocks that the scan and the scrub have repaired. If two servers were told that a
    /// block is lost, neither may be able to repair the other, as the server that could was away
    /// when the second copy was made. Then the scan could not read the block, either, and it stays.
    /// Memory is not scrubbed; it reports itself which blocks are lost.
    pub fn forget_mended(&mut self) {
        let unread = |copy: &(u8, UnitKey, u32)| self.unread.contains(&(copy.1, copy.2));
        let stays = |copy: &&(u8, UnitKey, u32)| {
            !self.plan.keeps(Who::Sds(copy.0)) || self.has_twin(copy) && unread(copy)
        };
        self.lost_copies = self.lost_copies.iter().filter(stays).copied().collect();
    }

    /// Returns true when the bytes of a block on this server may be anything, as no
    /// checksum matches them.
    pub(crate) fn is_told_lost(&self, i: u8, group: GroupId, unit: UnitKey, block: u32) -> bool {
        let device = self.sds(i).and_then(Sds::device);
        let lost = || device.is_some_and(|d| d.is_lost_in_memory(group, unit, block));
        self.lost_copies.contains(&(i, unit, block)) && (self.plan.keeps(Who::Sds(i)) || lost())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::trace::Sink;
    use base::VolumeId;

    const UNIT: UnitKey = UnitKey { volume: VolumeId(1), index: 0 };

    fn stage(told: &[(u8, u32)]) -> Stage {
        let plan = "gabion-plan 1\nsds 3\nmemory 4\nvolume 1\nlength 1.0";
        let mut stage = Stage::new(&plan.parse::<Plan>().unwrap(), Sink::Off);
        stage.lost_copies = told.iter().map(|(i, block)| (*i, UNIT, *block)).collect();
        stage
    }

    fn excused(stage: &Stage, i: u8, block: u32) -> bool {
        stage.is_told_lost(i, GroupId(1), UNIT, block)
    }

    #[test]
    fn after_the_last_scrub_only_unreadable_blocks_may_differ() {
        let mut stage = stage(&[(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]);
        assert!((1..4).all(|block| excused(&stage, 0, block)) && !excused(&stage, 1, 3));
        stage.unread.extend([(UNIT, 1), (UNIT, 3)]);
        stage.forget_mended();
        assert!(excused(&stage, 0, 1) && excused(&stage, 1, 1), "two were told, nobody can read");
        assert!(!excused(&stage, 0, 2) && !excused(&stage, 1, 2), "somebody could read it");
        assert!(!excused(&stage, 0, 3), "the other one could mend it");
    }

    #[test]
    fn memory_is_believed_only_while_it_says_itself_that_a_block_is_lost() {
        let mut stage = stage(&[(2, 1)]);
        assert!(!excused(&stage, 2, 1), "a server that doesn't run says nothing");
        stage.forget_mended();
        assert!(!excused(&stage, 2, 1));
    }
}
