//! Backups of the MDMs' log: the operator keeps the first and the newest one, and may restore
//! either.

use super::known::Has;
use super::{Phase, has};
use crate::plan::Who;
use crate::stage::{NEXT, Stage};
use node::backup::{Backup, pack};
use seam::DiskId;

/// A backup of the MDMs' log.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub bytes: Vec<u8>,
    pub has: Has,
    /// A server was emptied, and this backup does not know it.
    pub emptied: bool,
}

/// One of the backups that the operator keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// The first one that was written.
    First,
    /// The newest one.
    Newest,
}

impl Stage {
    /// Lets the leading MDM write a backup.
    pub(crate) fn back_up(&mut self) {
        let Some(mdm) = self.mdm().filter(|m| m.is_decided()) else { return };
        let backup = pack(&mdm.state().to_bytes(), self.seconds());
        let has = has(mdm.state());
        let knows_all = (0..self.plan.sds).all(|i| self.is_content(i, &has));
        // The mark stays while a recovery is open, which waits for reports from before the backup.
        self.rescue.emptied &= !knows_all || !self.rescue.is_whole();
        if !self.rescue.is_whole() {
            self.marks.meet("sim: a backup was written while a recovery was open");
        }
        let kept = Kept { bytes: backup, has, emptied: self.rescue.emptied };
        self.rescue.first.get_or_insert_with(|| kept.clone());
        self.rescue.newest = Some(kept);
    }

    /// Makes a backup the log of an MDM, and starts it.
    pub(crate) fn restore_mdms(&mut self, i: u8, which: Which) {
        let kept = match which {
            Which::First => self.rescue.first.clone(),
            Which::Newest => self.rescue.newest.clone(),
        };
        let (Phase::Lost(None), Some(kept)) = (self.rescue.phase, kept) else { return };
        if Some(&kept.bytes) != self.rescue.newest.as_ref().map(|newest| &newest.bytes) {
            self.marks.meet("sim: an older backup than the newest was restored");
        }
        let backup = Backup::from_bytes(&kept.bytes, NEXT.level_max).expect("it was just made");
        let writes =
            backup.log(&format!("mdm{i}"), Stage::address(Who::Mdm(i)), "admin", self.seconds());
        self.rescue.phase = Phase::Begun(i);
        self.rescue.emptied |= kept.emptied;
        self.rescue.begin_with(kept.has);
        self.marks.meet("sim: a backup was restored");
        self.end_mdm(i);
        let id = self.proc(Who::Mdm(i));
        let disk = self.world.disk(id, DiskId(0));
        disk.wipe();
        for (at, data) in writes {
            disk.write(at, &data, true).expect("there is room");
        }
        self.start(Who::Mdm(i));
    }
}
