//! Judges R10: a group counts as lost only when no full copy of it is left: every device of the
//! last in-sync set has really lost its content after it got in sync.
//!
//! The judge watches the configurations that the MDMs send, and learns from the run which devices
//! were emptied. Moments are steps of the world.

use super::Failure;
use base::{DeviceId, Epoch, GroupId};
use std::collections::{BTreeMap, BTreeSet};
use wire::control::GroupInfo;

/// The parts of a group's newest configuration that this judge needs.
#[derive(Clone, Debug)]
struct Copies {
    epoch: Epoch,
    /// The in-sync devices, each with the moment of the last configuration in which
    /// it was not in sync.
    since: BTreeMap<DeviceId, u64>,
    /// Moment of this configuration.
    seen: u64,
    lost: bool,
}

/// Real losses of devices' content.
#[derive(Clone, Default, Debug)]
pub struct Losses {
    /// The last moment at which each device lost its content.
    emptied: BTreeMap<DeviceId, u64>,
    /// Emptied devices whose next incarnation no MDM knows yet, which hold nothing; and the nonce
    /// of that incarnation once it has started.
    dead: BTreeMap<DeviceId, Option<u64>>,
    groups: BTreeMap<GroupId, Copies>,
    /// Groups that are lost, or were once.
    lost: BTreeSet<GroupId>,
}

impl Losses {
    /// Records that this device has lost all its content.
    pub fn emptied(&mut self, device: DeviceId, now: u64) {
        self.emptied.insert(device, now);
        self.dead.insert(device, None);
    }

    /// Records the start of a device's next incarnation, with this nonce.
    pub fn starts(&mut self, device: DeviceId, nonce: u64) {
        if let Some(next) = self.dead.get_mut(&device) {
            *next = Some(nonce);
        }
    }

    /// Records that an MDM knows the device's process with this nonce. If that is the next
    /// incarnation after a loss, the device held nothing until now, even where it was in sync: a
    /// group may be formed on a device of whose death the MDM has not heard.
    pub fn registered(&mut self, device: DeviceId, nonce: u64, now: u64) {
        if self.dead.get(&device) == Some(&Some(nonce)) {
            self.dead.remove(&device);
            self.emptied.insert(device, now);
        }
    }

    /// Returns true when the group is lost, or was once.
    pub fn has(&self, group: GroupId) -> bool {
        self.lost.contains(&group)
    }

    /// Returns true when no device has the data of the group any more, whether or not an MDM has
    /// heard of it.
    pub fn is_without_data(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|copies| {
            copies.lost || copies.since.iter().all(|copy| self.is_empty(copy))
        })
    }

    /// Returns true for a device of an in-sync set that was emptied since it got in sync.
    fn is_empty(&self, (device, since): (&DeviceId, &u64)) -> bool {
        self.emptied.get(device).is_some_and(|at| at >= since)
    }

    /// Records that the group is lost as it was before its last configurations.
    pub fn stays_lost(&mut self, group: GroupId) {
        if let Some(copies) = self.groups.get_mut(&group) {
            copies.lost = true;
        }
    }

    /// Processes a configuration that an MDM sent.
    pub fn group(&mut self, new: &GroupInfo, now: u64) -> Result<(), Failure> {
        let (id, epoch) = (GroupId(new.id), Epoch(new.epoch));
        let old = self.groups.get(&id);
        if old.is_some_and(|old| epoch <= old.epoch) {
            return Ok(());
        }
        // Devices can be emptied before the first configuration of a group is sent.
        let emptied = || new.replicas.iter().any(|d| self.emptied.contains_key(&DeviceId(*d)));
        if new.lost && old.map_or_else(emptied, |old| !old.lost) {
            self.lost.insert(id);
        }
        let old = old.cloned().unwrap_or(Copies {
            epoch: Epoch(0),
            since: BTreeMap::new(),
            seen: 0,
            lost: true,
        });
        if new.lost && !old.lost {
            self.is_gone(id, &old, epoch)?;
        }
        let before = |d: &DeviceId| old.since.get(d).copied().unwrap_or(old.seen);
        let since = new.in_sync.iter().map(|d| DeviceId(*d)).map(|d| (d, before(&d))).collect();
        self.groups.insert(id, Copies { epoch, since, seen: now, lost: new.lost });
        Ok(())
    }

    /// Fails unless every device of the in-sync set has lost its content. If configurations in
    /// between were not seen, one such device is enough.
    fn is_gone(&self, id: GroupId, old: &Copies, epoch: Epoch) -> Result<(), Failure> {
        let empty = |copy: (&DeviceId, &u64)| self.is_empty(copy);
        let next = epoch.0 == old.epoch.0 + 1;
        let gone = match next {
            true => old.since.iter().all(empty),
            false => old.since.iter().any(empty),
        };
        if gone {
            return Ok(());
        }
        let whole: Vec<DeviceId> =
            old.since.iter().filter(|copy| !empty(*copy)).map(|(d, _)| *d).collect();
        let text = format!("{id} is given up as lost in {epoch}, and {whole:?} had all of it");
        Err(Failure::new("R10", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DeviceId = DeviceId(1);
    const B: DeviceId = DeviceId(2);

    fn config(epoch: u64, in_sync: &[DeviceId]) -> GroupInfo {
        GroupInfo {
            id: 7,
            epoch,
            replicas: vec![A.0, B.0],
            in_sync: in_sync.iter().map(|d| d.0).collect(),
            lost: in_sync.is_empty(),
            ..GroupInfo::default()
        }
    }

    fn formed() -> Losses {
        let mut losses = Losses::default();
        losses.group(&config(1, &[A, B]), 10).unwrap();
        losses
    }

    #[test]
    fn the_last_copy_has_to_be_gone() {
        let mut losses = formed();
        losses.group(&config(2, &[A]), 20).unwrap();
        losses.emptied(B, 25);
        assert!(losses.group(&config(3, &[]), 30).is_err(), "A has everything");
        let mut losses = formed();
        losses.group(&config(2, &[A]), 20).unwrap();
        losses.emptied(A, 25);
        losses.group(&config(3, &[]), 30).unwrap();
        assert!(losses.has(GroupId(7)));
    }

    #[test]
    fn data_is_gone_with_its_last_copy_even_if_no_mdm_has_heard_of_it() {
        let mut losses = formed();
        losses.emptied(A, 15);
        assert!(!losses.is_without_data(GroupId(7)), "B has everything");
        losses.emptied(B, 16);
        assert!(losses.is_without_data(GroupId(7)) && !losses.has(GroupId(7)));
        assert!(!losses.is_without_data(GroupId(8)), "it was never seen");
    }

    #[test]
    fn both_copies_have_to_be_gone_if_both_counted() {
        let mut losses = formed();
        losses.emptied(A, 15);
        assert!(losses.group(&config(2, &[]), 20).is_err(), "B has everything");
        let mut losses = formed();
        losses.emptied(A, 15);
        losses.group(&config(4, &[]), 20).unwrap(); // configurations 2 and 3 were not seen
    }

    #[test]
    fn a_refilled_replica_has_everything_again() {
        let mut losses = formed();
        losses.emptied(B, 15);
        losses.group(&config(2, &[A]), 20).unwrap();
        losses.group(&config(3, &[A, B]), 30).unwrap();
        losses.group(&config(4, &[B]), 40).unwrap();
        assert!(losses.group(&config(5, &[]), 50).is_err(), "B was filled after it was emptied");
    }

    #[test]
    fn a_group_that_is_formed_anew_may_be_lost_anew() {
        let mut losses = formed();
        losses.emptied(A, 15);
        losses.group(&config(2, &[B]), 16).unwrap();
        losses.emptied(B, 17);
        losses.group(&config(3, &[]), 20).unwrap();
        losses.group(&config(4, &[A]), 30).unwrap();
        assert!(losses.group(&config(5, &[]), 40).is_err(), "A was not emptied since");
    }

    #[test]
    fn a_group_may_be_lost_before_its_first_configuration_is_sent() {
        let mut losses = Losses::default();
        losses.group(&config(4, &[]), 10).unwrap();
        assert!(!losses.has(GroupId(7)), "no device of it was emptied");
        let mut losses = Losses::default();
        losses.emptied(B, 5);
        losses.group(&config(4, &[]), 10).unwrap();
        assert!(losses.has(GroupId(7)));
    }

    #[test]
    fn a_device_that_was_dead_when_the_group_was_formed_had_nothing() {
        let mut losses = formed();
        losses.emptied(A, 15);
        losses.emptied(B, 16);
        losses.group(&config(2, &[]), 20).unwrap();
        losses.group(&config(3, &[A]), 30).unwrap();
        losses.starts(A, 7);
        losses.group(&config(4, &[B]), 31).unwrap();
        losses.group(&config(5, &[B, A]), 32).unwrap();
        losses.group(&config(6, &[A]), 33).unwrap();
        losses.registered(A, 6, 34); // an earlier incarnation
        assert!(losses.clone().group(&config(7, &[]), 35).is_err(), "no MDM knows of a new life");
        losses.registered(A, 7, 40);
        losses.group(&config(7, &[]), 41).unwrap();
        losses.group(&config(8, &[A]), 50).unwrap();
        losses.starts(A, 9); // its content was kept
        losses.registered(A, 9, 60);
        assert!(
            losses.group(&config(9, &[]), 61).is_err(),
            "A was alive, and was not emptied since"
        );
    }
}
