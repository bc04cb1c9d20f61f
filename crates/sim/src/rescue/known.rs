//! Which volumes are known after a recovery: those on the map of a server that ran all the time, but for those of which
//! somebody knew at the loss that they are deleted: a server, the log that the recovery begins with, or the backup. Who
//! ordered that has not heard how it ended, and has to take either for true: the last entries of a log may be decided or not.

use base::VolumeId;
use std::collections::{BTreeMap, BTreeSet};

/// What was known at the loss.
#[derive(Default, Debug)]
pub(super) struct Known {
    /// Servers whose maps have a volume, in these lives.
    by: BTreeMap<VolumeId, Vec<(u8, u32)>>,
    /// Volumes that are deleted, as somebody knows.
    deleted: BTreeSet<VolumeId>,
}

/// What a map has, or a log: volumes, and the id of the next one.
pub(super) type Has = (BTreeSet<VolumeId>, VolumeId);

impl Known {
    /// What is known of these volumes: by servers, in these lives, and by what the recovery begins with.
    pub fn new(ids: &[VolumeId], servers: &[((u8, u32), Has)], log: Option<&Has>) -> Known {
        let mut known = Known::default();
        let maps = || servers.iter().map(|(_, has)| has);
        for id in ids {
            let has = servers.iter().filter(|(_, (volumes, _))| volumes.contains(id));
            known.by.insert(*id, has.map(|(server, _)| *server).collect());
            let is_deleted = |(volumes, next): &Has| id < next && !volumes.contains(id);
            if maps().chain(log).any(is_deleted) {
                known.deleted.insert(*id);
            }
        }
        known
    }

    /// What is wrong with that these volumes are not known any more. `ran`: the server is in this life yet; `kept`: it is
    /// known that nobody knows what became of the volume.
    pub fn judge(
        &self,
        lost: &[VolumeId],
        ran: impl Fn(&(u8, u32)) -> bool,
        kept: impl Fn(VolumeId) -> bool,
    ) -> Result<(), String> {
        for id in lost.iter().filter(|id| !self.deleted.contains(id)) {
            if self.by.get(id).is_some_and(|by| by.iter().any(&ran)) {
                return Err(format!(
                    "{id} was on the map of a server that ran all the time, and is not known any more"
                ));
            }
            if !kept(*id) {
                return Err(format!("nobody knows what became of {id}, and it counts as deleted"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: VolumeId = VolumeId(2);

    fn has(volumes: &[u32], next: u32) -> Has {
        (volumes.iter().map(|id| VolumeId(*id)).collect(), VolumeId(next))
    }

    /// Whether volume 2 may be unknown after a recovery in which server 0 stayed in its life 7.
    fn may_go(servers: &[((u8, u32), Has)], log: Option<&Has>, kept: bool) -> bool {
        let known = Known::new(&[OURS], servers, log);
        known.judge(&[OURS], |server| *server == (0, 7), |_| kept).is_ok()
    }

    #[test]
    fn what_a_server_that_ran_knows_is_not_lost() {
        let map = has(&[1, 2], 3);
        assert!(!may_go(&[((0, 7), map.clone())], None, true));
        assert!(!may_go(&[((0, 7), map.clone())], Some(&has(&[1], 2)), true), "an older log");
        assert!(may_go(&[((0, 6), map.clone())], None, true), "it was started again");
        assert!(!may_go(&[((0, 6), map)], None, false), "and its data counts as deleted");
    }

    #[test]
    fn what_is_deleted_may_go_though_a_server_has_not_heard_of_it() {
        let old = [((0, 7), has(&[1, 2], 3))];
        assert!(may_go(&old, Some(&has(&[1], 3)), false), "the log has it");
        assert!(may_go(&old, Some(&has(&[1, 3], 4)), true), "and what came later");
        let [old] = old;
        assert!(may_go(&[old.clone(), ((1, 1), has(&[1], 3))], None, false), "a server has it");
        assert!(!may_go(&[old, ((1, 1), has(&[1], 2))], None, true), "an older map");
    }
}
