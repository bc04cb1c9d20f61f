//! Judges which volumes are known after a recovery: all that are on the map of a server
//! that ran all the time.
//!
//! Volumes whose deletion was known at the loss are excepted: to a server, to the log with which
//! the recovery begins, or to the backup. The administrator has not heard how the deletion ended,
//! and must accept both outcomes, as the last entries of a log may be decided or not.
//!
//! A volume may stay unknown if one of its groups was only on maps of servers that have restarted,
//! as the group's replicas are unknown then. It may also stay unknown if an earlier recovery did
//! not know it: the map of that recovery is newer than a map that has it. A volume that no server
//! reports may count as deleted: nothing was written to it, and no server that ran has it on its
//! map.

use base::{DeviceId, GroupId, UnitKey, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A server and its incarnation.
pub(super) type Life = (u8, u32);

/// Knowledge of volumes at the time of the loss.
#[derive(Default, Debug)]
pub(super) struct Known {
    /// Servers with the volume on their maps.
    by: BTreeMap<VolumeId, Vec<Life>>,
    /// By volume, for each of its groups that the log does not have: servers with the
    /// group on their maps.
    groups: BTreeMap<VolumeId, Vec<Vec<Life>>>,
    /// Volumes with data on a device.
    held: BTreeSet<VolumeId>,
    some_off: bool,
    /// Volumes that an earlier recovery did not know. Its map is newer than a map that has them.
    earlier: BTreeSet<VolumeId>,
    /// Volumes of the log.
    logged: BTreeSet<VolumeId>,
    /// Volumes that are deleted, by the knowledge of a server or of the log.
    deleted: BTreeSet<VolumeId>,
}

/// Content of a map or of a log.
#[derive(Clone, Default, Debug)]
pub(super) struct Has {
    /// Volumes, with the groups of their units.
    pub volumes: BTreeMap<VolumeId, Vec<GroupId>>,
    /// Id of the next volume.
    pub next: VolumeId,
    /// Lower ids of volumes that may exist.
    pub unknown: Vec<Range<VolumeId>>,
    /// Groups whose replicas are known.
    pub groups: BTreeSet<GroupId>,
    /// Groups that are lost.
    pub lost: BTreeSet<GroupId>,
    /// Volumes with data on the server's device.
    pub held: BTreeSet<VolumeId>,
    /// Only of a log: content ids of devices, also those that an undecided entry replaces.
    pub stores: BTreeSet<(DeviceId, u64)>,
}

/// What was there when the logs were lost.
#[derive(Default, Debug)]
pub(super) struct Before {
    /// The volumes that are judged.
    pub ids: BTreeSet<VolumeId>,
    /// Maps of the servers that ran.
    pub servers: Vec<(Life, Has)>,
    /// Those of them that an earlier recovery did not know.
    pub earlier: BTreeSet<VolumeId>,
    /// Some server did not run.
    pub some_off: bool,
    /// Content id of each device that could be read.
    pub contents: BTreeMap<DeviceId, u64>,
}

impl Has {
    /// Returns true if the volume is deleted, by this map or log.
    pub(super) fn is_deleted(&self, id: VolumeId) -> bool {
        let unknown = self.unknown.iter().any(|range| range.contains(&id));
        id < self.next && !self.volumes.contains_key(&id) && !unknown
    }
}

impl Known {
    /// Collects what servers, and the log with which the recovery begins, know of these volumes.
    pub(super) fn new(
        ids: &BTreeSet<VolumeId>,
        servers: &[(Life, Has)],
        log: Option<&Has>,
    ) -> Known {
        let held = servers.iter().flat_map(|(_, has)| &has.held).copied().collect();
        let logged = log.map(|log| log.volumes.keys().copied().collect()).unwrap_or_default();
        let mut known = Known { held, logged, ..Known::default() };
        let maps = || servers.iter().map(|(_, has)| has);
        let all = |what: &dyn Fn(&Has) -> bool| {
            servers.iter().filter(|(_, has)| what(has)).map(|(life, _)| *life).collect()
        };
        for id in ids {
            known.by.insert(*id, all(&|has| has.volumes.contains_key(id)));
            let groups: BTreeSet<_> = maps().filter_map(|m| m.volumes.get(id)).flatten().collect();
            let groups = groups.into_iter().filter(|g| log.is_none_or(|l| !l.groups.contains(g)));
            known.groups.insert(*id, groups.map(|g| all(&|has| has.groups.contains(g))).collect());
            if maps().chain(log).any(|has| has.is_deleted(*id)) {
                known.deleted.insert(*id);
            }
        }
        known
    }

    /// Returns true if somebody knows that the volume is deleted.
    pub(super) fn is_deleted(&self, id: VolumeId) -> bool {
        self.deleted.contains(&id)
    }

    /// Adds deletions of which a server has heard since the loss.
    pub(super) fn learn_deleted(&mut self, deleted: Vec<VolumeId>) {
        self.deleted.extend(deleted);
    }

    /// Records whether some servers were off at the loss, so that their data is not included, and
    /// which volumes an earlier recovery did not know.
    pub(super) fn with(self, some_off: bool, earlier: BTreeSet<VolumeId>) -> Known {
        Known { some_off, earlier, ..self }
    }

    /// Adds what is known when the recovery is over: `held` are volumes with data on a device that
    /// can have reported, and `written` are those with data that was acknowledged, which may be on
    /// a server that was off.
    pub(super) fn learn(&mut self, held: Vec<VolumeId>, written: &BTreeSet<VolumeId>) {
        self.held.extend(held);
        self.held.extend(written.iter().filter(|_| self.some_off));
    }

    /// Returns why it is wrong that these volumes are unknown after the recovery. `ran` is
    /// true for a server that is still in this incarnation; `kept` is true for a volume that
    /// the MDM lists as unknown.
    pub(super) fn judge(
        &self,
        lost: &[VolumeId],
        ran: impl Fn(&Life) -> bool,
        kept: impl Fn(VolumeId) -> bool,
    ) -> Result<(), String> {
        for id in lost.iter().filter(|id| !self.deleted.contains(id)) {
            let named = self.by.get(id).is_some_and(|by| by.iter().any(&ran));
            let whole =
                self.groups.get(id).is_some_and(|all| all.iter().all(|by| by.iter().any(&ran)));
            if named && whole && !self.earlier.contains(id) {
                return Err(format!(
                    "{id} was on the map of a server that ran all the time, its groups were on such maps, and it is \
                     not known any more"
                ));
            }
            if self.logged.contains(id) && !self.some_off {
                return Err(format!(
                    "{id} was in the log that the recovery began with, nobody knew it as deleted, \
                     and it is not known any more"
                ));
            }
            let told = named || self.held.contains(id);
            if told && !kept(*id) {
                return Err(format!("nobody knows what became of {id}, and it counts as deleted"));
            }
        }
        Ok(())
    }
}

/// Returns the volumes of which no written unit has its data any more. `is_lost` is true for a unit
/// whose group has no copy left.
pub(super) fn without_data(
    written: &BTreeSet<UnitKey>,
    is_lost: impl Fn(&UnitKey) -> bool,
) -> BTreeSet<VolumeId> {
    let has_data = written.iter().filter(|unit| !is_lost(unit)).map(|unit| unit.volume);
    let has_data: BTreeSet<VolumeId> = has_data.collect();
    written.iter().map(|unit| unit.volume).filter(|id| !has_data.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    const OURS: VolumeId = VolumeId(2);

    #[test]
    fn a_volume_has_data_while_one_written_unit_has() {
        let unit = |volume, index| UnitKey { volume: VolumeId(volume), index };
        let written = [unit(1, 0), unit(1, 1), unit(2, 0)].into();
        assert_eq!(without_data(&written, |u| u.index == 0), [OURS].into(), "unit 1 of volume 1");
        assert_eq!(without_data(&written, |_| true).len(), 2);
        assert!(without_data(&written, |u| u.volume == VolumeId(1) && u.index == 0).is_empty());
    }

    /// Returns a map in which each volume has one group, with the same number.
    fn has(volumes: &[u32], next: u32) -> Has {
        let groups = volumes.iter().map(|id| GroupId(*id)).collect();
        let held = volumes.iter().map(|id| VolumeId(*id)).collect();
        let volumes = volumes.iter().map(|id| (VolumeId(*id), vec![GroupId(*id)])).collect();
        Has { volumes, next: VolumeId(next), groups, held, ..Has::default() }
    }

    /// Returns whether volume 2 may be unknown after a recovery that server 0 survived in
    /// incarnation 7.
    fn may_go(servers: &[(Life, Has)], log: Option<&Has>, kept: bool) -> bool {
        let known = Known::new(&[OURS].into(), servers, log);
        known.judge(&[OURS], |server| *server == (0, 7), |_| kept).is_ok()
    }

    #[test]
    fn a_volume_that_a_running_server_knows_may_not_be_dropped() {
        let map = has(&[1, 2], 3);
        assert!(!may_go(&[((0, 7), map.clone())], None, true));
        assert!(!may_go(&[((0, 7), map.clone())], Some(&has(&[1], 2)), true), "an older log");
        assert!(may_go(&[((0, 6), map.clone())], None, true), "it was started again");
        assert!(!may_go(&[((0, 6), map)], None, false), "and its data counts as deleted");
    }

    #[test]
    fn a_volume_that_no_server_reports_may_count_as_deleted() {
        let empty = Has { held: BTreeSet::new(), ..has(&[1, 2], 3) };
        assert!(
            may_go(&[((0, 6), empty.clone())], None, false),
            "and its server was started again"
        );
        assert!(!may_go(&[((0, 7), empty)], None, false), "a server that ran has it on its map");
    }

    #[test]
    fn a_volume_without_groups_on_running_servers_may_be_dropped() {
        let part = Has { groups: BTreeSet::new(), ..has(&[1, 2], 3) };
        let (ran, other) = (((0, 7), part), has(&[1, 2], 3));
        assert!(may_go(from_ref(&ran), None, true), "its group is on no map");
        assert!(may_go(&[ran.clone(), ((1, 1), other.clone())], None, true), "started again since");
        assert!(!may_go(from_ref(&ran), None, false), "but its data counts as deleted");
        let old = Has { volumes: BTreeMap::new(), next: VolumeId(1), ..other };
        assert!(!may_go(&[ran], Some(&old), true), "the log has the group");
    }

    #[test]
    fn a_volume_of_the_log_is_deleted_only_if_somebody_knows_that() {
        let empty = Has { held: BTreeSet::new(), ..has(&[1], 3) };
        let log = has(&[1, 2], 3);
        assert!(may_go(&[((0, 6), empty.clone())], Some(&log), false), "a server knows it");
        let unknown = Has { unknown: vec![OURS..VolumeId(3)], ..empty };
        assert!(!may_go(&[((0, 6), unknown.clone())], Some(&log), true), "no server knows it");
        let known = Known::new(&[OURS].into(), &[((0, 6), unknown)], Some(&log));
        let known = known.with(true, BTreeSet::new());
        assert!(known.judge(&[OURS], |_| true, |_| true).is_ok(), "one that was off may know it");
    }

    #[test]
    fn a_volume_that_an_earlier_recovery_did_not_know_may_stay_unknown() {
        let judge = |earlier: &[VolumeId], kept: bool| {
            let known = Known::new(&[OURS].into(), &[((0, 7), has(&[1, 2], 3))], None);
            let known = known.with(false, earlier.iter().copied().collect());
            known.judge(&[OURS], |_| true, |_| kept).is_ok()
        };
        assert!(judge(&[OURS], true) && !judge(&[], true));
        assert!(!judge(&[OURS], false), "its data is kept");
    }

    #[test]
    fn a_deleted_volume_may_be_dropped_although_a_server_has_not_heard_of_it() {
        let old = [((0, 7), has(&[1, 2], 3))];
        assert!(may_go(&old, Some(&has(&[1], 3)), false), "the log has it");
        assert!(may_go(&old, Some(&has(&[1, 3], 4)), true), "and what came later");
        let [old] = old;
        assert!(may_go(&[old.clone(), ((1, 1), has(&[1], 3))], None, false), "a server has it");
        assert!(!may_go(&[old, ((1, 1), has(&[1], 2))], None, true), "an older map");
    }
}
