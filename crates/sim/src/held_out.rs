//! Devices that come and go too often: the MDM gives them nothing for a while (rule R12), for at
//! most 640 s with the shipped limits. Phase 2 waits as long for what depends on such a device, but
//! not for anything else, nor for copies that others can take over.

use crate::stage::Stage;
use base::DeviceId;
use mdm::detector::loss_limit;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::control::GroupInfo;

impl Stage {
    /// Returns the devices that the leading MDM holds out, and for how long, by its clock.
    pub(crate) fn held_out(&self) -> BTreeMap<DeviceId, Duration> {
        let Some((who, mdm)) = self.leading_mdm() else { return BTreeMap::new() };
        let (now, seen) = (self.world.local_now(self.proc(who)), mdm.observed());
        let left = seen.devices.keys().map(|id| (*id, seen.quarantine(*id, now)));
        left.filter(|(_, left)| *left > Duration::ZERO).collect()
    }

    /// Returns true when all copies of these devices are to be rebuilt on others: each of their
    /// pools has two fault units left, and one accident explains their absence.
    pub(crate) fn are_replaced(&self, held: &BTreeMap<DeviceId, Duration>) -> bool {
        let plan = &self.plan;
        let is_held = |i: &u8| self.sds(*i).is_some_and(|sds| held.contains_key(&sds.id()));
        let (out, rest): (Vec<u8>, Vec<u8>) = (0..plan.sds).partition(is_held);
        let units = |of: &[u8]| of.iter().map(|i| plan.unit(*i)).collect::<BTreeSet<u8>>();
        let (all, left) = (units(&[&out[..], &rest].concat()), units(&rest));
        let enough = |i: &u8| {
            let mates = rest.iter().copied().filter(|j| plan.pool(*j) == plan.pool(*i));
            units(&mates.collect::<Vec<_>>()).len() > 1
        };
        let stays = !self.observer.devices.values().any(|d| d.leaves);
        stays
            && !self.is_tight()
            && all.len() - left.len() <= loss_limit(all.len())
            && out.iter().all(enough)
    }
}

/// Returns true when a group lacks only copies on these devices, which get nothing yet.
pub(crate) fn waits_for(g: &GroupInfo, held: &BTreeSet<DeviceId>) -> bool {
    let mut missing = g.replicas.iter().filter(|d| !g.in_sync.contains(d)).peekable();
    missing.peek().is_some() && missing.all(|d| held.contains(&DeviceId(*d)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_waits_only_for_quarantined_devices() {
        let group = |in_sync: &[u32]| GroupInfo {
            replicas: vec![1, 2, 3],
            in_sync: in_sync.to_vec(),
            ..GroupInfo::default()
        };
        let waits = |in_sync: &[u32], held: &[u32]| {
            waits_for(&group(in_sync), &held.iter().copied().map(DeviceId).collect())
        };
        assert!(waits(&[1, 3], &[2]) && waits(&[1], &[2, 3]));
        assert!(!waits(&[1], &[2]), "3 is not held out");
        assert!(!waits(&[1, 3], &[]) && !waits(&[1, 3], &[1]));
        assert!(!waits(&[1, 2, 3], &[1, 2, 3]), "it lacks nothing");
    }
}
