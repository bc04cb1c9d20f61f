//! The configuration of one group, and the ways in which it may change.
//!
//! Each function takes the present group and the known state of devices, and changes the group's
//! replicas. None of them touches the epoch: `State::apply` raises it by one for every group that
//! has changed.
//!
//! Invariants (checked by [`Group::check`]):
//! - In-sync devices and joiners are replicas, and no device is both.
//! - The primary is in sync and up.
//! - Joiners are up, and their group has a primary.
//! - A group is lost if and only if it has no in-sync device.
//! - A group has two replicas, or three while one of them leaves. The leaving one is the last in
//!   the list and does not join.

use crate::command::Told;
use alloc::boxed::Box;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Epoch, MapVersion};

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Group {
    /// The epoch: the number of this configuration.
    pub epoch: Epoch,
    /// The replica that serves clients.
    pub primary: Option<DeviceId>,
    /// The replicas, the preferred primary first.
    pub replicas: Vec<DeviceId>,
    /// The replicas that hold every acknowledged write, in the order of `replicas`.
    pub in_sync: Vec<DeviceId>,
    /// The replicas that are being brought up to date.
    pub joiners: Vec<DeviceId>,
    /// The replica that leaves as soon as the others are in sync (rule R11).
    pub leaving: Option<DeviceId>,
    /// Every copy is gone (rule R10).
    pub lost: bool,
    /// Tells whether it is known which replica has every acknowledged write.
    pub doubt: Doubt,
    /// While the group is in doubt: what servers told of it.
    pub told: Option<Box<Told>>,
    /// Replicas that never had all of the group: they came in the place of another one, or with an
    /// empty store, and have not been in sync since.
    pub filling: Vec<DeviceId>,
    /// The map version that changed the group last.
    pub changed_at: MapVersion,
}

/// Tells whether it is known which replica of a group has every acknowledged write. Groups are in
/// doubt after a recovery of the MDMs ([`crate::recovery`]): they have no primary, and only the end
/// of the doubt changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Doubt {
    /// It is known: the in-sync replicas.
    #[default]
    None,
    /// The in-sync replicas have every write, unless a decision that was lost says otherwise:
    /// devices have to report.
    Reports,
    /// A device that may have had more writes than the others was emptied since. Reports end this
    /// doubt only if a server's map has a newer configuration; otherwise an operator decides.
    Gone,
}

impl Group {
    /// Returns a new, empty group.
    pub fn new(replicas: Vec<DeviceId>, up: &impl Fn(DeviceId) -> bool) -> Group {
        let mut group = Group { replicas, lost: true, ..Group::default() };
        group.form(up);
        group
    }

    /// Returns the doubt as maps tell it. The map of an earlier recovery may have told more than
    /// the state knows itself.
    pub fn told_doubt(&self) -> Doubt {
        let told = self.told.as_deref().filter(|_| self.doubt == Doubt::Reports);
        let is_gone = |told: &Told| {
            let newest = told.config.as_ref().map_or(self.epoch.0, |c| c.epoch.max(self.epoch.0));
            told.gone > 0 && told.gone >= newest
        };
        if told.is_some_and(is_gone) { Doubt::Gone } else { self.doubt }
    }

    /// Returns the highest epoch that the group is known to have reached.
    pub fn reached(&self) -> Epoch {
        self.told.as_ref().map_or(self.epoch, |told| self.epoch.max(Epoch(told.reached)))
    }

    /// Returns true when every write, old or new, is on as many replicas as are wanted.
    pub fn is_whole(&self) -> bool {
        let wanted = self.replicas.len() - usize::from(self.leaving.is_some());
        self.in_sync.len() >= wanted && self.primary.is_some()
    }

    /// Returns the replica that takes the place of the leaving one and is not in sync yet.
    pub fn newcomer(&self) -> Option<DeviceId> {
        self.leaving?;
        self.staying().find(|d| !self.in_sync.contains(d))
    }

    /// Returns true if this replica had all of the group once: now, or in an earlier epoch.
    pub fn was_whole(&self, device: DeviceId) -> bool {
        self.replicas.contains(&device)
            && !self.filling.contains(&device)
            && self.newcomer() != Some(device)
    }

    /// Returns the replicas except the one that leaves.
    pub fn staying(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.replicas.iter().copied().filter(|d| Some(*d) != self.leaving)
    }

    /// Returns true when no primary serves the group.
    pub fn is_failed(&self) -> bool {
        self.primary.is_none() || self.doubt != Doubt::None
    }

    /// Returns the two replicas that the group has, or will have when its move ends.
    pub fn pair(&self) -> Option<[DeviceId; 2]> {
        let mut staying = self.staying();
        Some([staying.next()?, staying.next()?])
    }

    /// Starts a lost group again, empty, on those of its replicas that are up. The caller uses it
    /// only for groups that no volume uses. Without a replica that is up, nothing changes.
    pub fn form(&mut self, up: &impl Fn(DeviceId) -> bool) {
        let there: Vec<DeviceId> = self.replicas.iter().copied().filter(|d| up(*d)).collect();
        if self.lost && !there.is_empty() {
            self.primary = Some(there[0]);
            self.in_sync = there;
            self.filling = Vec::new();
            self.joiners.clear();
            self.lost = false;
        }
    }

    /// Handles a new store of the device: its former content is gone. `up` already tells whether
    /// the device itself is up.
    pub fn emptied(&mut self, device: DeviceId, up: &impl Fn(DeviceId) -> bool) {
        self.joiners.retain(|d| *d != device);
        if self.was_whole(device) {
            self.filling.push(device);
        }
        let whole = self.in_sync.len() > 1 && mutant::on(Mutant::LoseWhole);
        if self.in_sync == [device] || whole && self.in_sync.contains(&device) {
            self.lose(device);
        } else {
            self.in_sync.retain(|d| *d != device);
        }
        self.elect(up);
    }

    /// Handles a new incarnation of the device with its old store.
    pub fn restarted(&mut self, device: DeviceId, up: &impl Fn(DeviceId) -> bool) {
        // The new incarnation does not know what the old one received as a joiner.
        self.joiners.retain(|d| *d != device);
        self.elect(up);
    }

    /// Handles the loss of the device; `up` already says that it is down. With `empty`, its content
    /// is gone, too.
    pub fn went_down(&mut self, device: DeviceId, empty: bool, up: &impl Fn(DeviceId) -> bool) {
        self.joiners.retain(|d| *d != device);
        if self.in_sync.contains(&device) {
            let rest: Vec<DeviceId> = self.in_sync.iter().copied().filter(|d| up(*d)).collect();
            if !rest.is_empty() {
                self.in_sync = rest;
            } else if let Some(any) = self.promotable(up) {
                self.in_sync = Vec::from([any]);
            } else if empty && self.in_sync == [device] {
                self.lose(device);
            }
        }
        self.elect(up);
    }

    /// Takes out a device that the primary suspects.
    pub fn suspected(&mut self, device: DeviceId) {
        self.in_sync.retain(|d| *d != device);
        self.joiners.retain(|d| *d != device);
    }

    /// Makes a joiner of this device, which is up: the primary begins to bring it up to date.
    pub fn join(&mut self, device: DeviceId) {
        let here = self.staying().any(|d| d == device) && !self.in_sync.contains(&device);
        if here && !self.joiners.contains(&device) {
            self.joiners.push(device);
        }
    }

    /// Takes in a joiner that has everything, as of `epoch`. If it is the preferred primary, it
    /// leads from now on. This is safe, since a new epoch settles first.
    pub fn admit(&mut self, epoch: Epoch, device: DeviceId, up: &impl Fn(DeviceId) -> bool) {
        let same = epoch == self.epoch && self.joiners.contains(&device);
        let blind = mutant::on(Mutant::NoCompareAndSwap)
            && self.primary.is_some()
            && self.replicas.contains(&device)
            && up(device);
        if !(same || blind) || self.in_sync.contains(&device) {
            return;
        }
        self.joiners.retain(|d| *d != device);
        self.filling.retain(|d| *d != device);
        self.in_sync = self
            .replicas
            .iter()
            .copied()
            .filter(|d| *d == device || self.in_sync.contains(d))
            .collect();
        if self.replicas.first() == Some(&device) {
            self.primary = Some(device);
        }
    }

    /// Changes the list of replicas (rule R11): a newcomer in the place of a leaving replica, the
    /// end or abort of such a move, or another order of preference. This happens only if the epoch
    /// is still this one (rule R4), and never so that an acknowledged write could be missing: an
    /// in-sync replica is dropped only when all that remain are in sync, and a newcomer gets in
    /// sync like every joiner. The preferred primary leads if it can. This is safe, since a new
    /// epoch settles first.
    pub fn reshape(
        &mut self,
        epoch: Epoch,
        replicas: &[DeviceId],
        leaving: Option<DeviceId>,
        up: &impl Fn(DeviceId) -> bool,
    ) {
        let same = epoch == self.epoch || mutant::on(Mutant::MoveBlindly);
        if !same || self.lost || self.primary.is_none() {
            return;
        }
        let new = |d: &&DeviceId| !self.replicas.contains(d);
        let known =
            replicas.iter().filter(new).count() <= 1 && replicas.iter().filter(new).all(|d| up(*d));
        let gone = |d: &&DeviceId| !replicas.contains(d);
        let kept = |d: &DeviceId| self.in_sync.contains(d) || mutant::on(Mutant::DropEarly);
        let safe = !self.in_sync.iter().any(|d| gone(&d)) || replicas.iter().all(kept);
        let some = self.in_sync.iter().any(|d| replicas.contains(d) && up(*d));
        if !(known && safe && some) {
            return;
        }
        let mut next = self.clone();
        (next.replicas, next.leaving) = (replicas.to_vec(), leaving);
        let within = |d: &DeviceId, of: &[DeviceId]| of.contains(d);
        next.in_sync = replicas.iter().copied().filter(|d| within(d, &self.in_sync)).collect();
        if mutant::on(Mutant::AdmitUncopied) && leaving.is_some() {
            next.in_sync = replicas.to_vec();
        }
        let joins = |d: &DeviceId| within(d, &self.joiners) && Some(*d) != leaving;
        next.joiners = replicas.iter().copied().filter(joins).collect();
        let lacks = |d: &DeviceId| !within(d, &next.in_sync) && !self.was_whole(*d);
        next.filling = replicas.iter().copied().filter(lacks).collect();
        next.primary = next.leader_beside(leaving, up);
        if next.check(up).is_ok() {
            *self = next;
        }
    }

    /// Returns the replica that leads while `leaving` leaves, and so makes the copy in its place:
    /// the first one that is in sync and up. The leaving one leads only if there is no other.
    pub fn leader_beside(
        &self,
        leaving: Option<DeviceId>,
        up: &impl Fn(DeviceId) -> bool,
    ) -> Option<DeviceId> {
        self.in_sync.iter().copied().filter(|d| up(*d)).min_by_key(|d| Some(*d) == leaving)
    }

    /// Marks the group as lost: the last copy is gone.
    fn lose(&mut self, device: DeviceId) {
        if mutant::on(Mutant::ReviveEmpty) {
            debug_assert_eq!(self.in_sync, [device]);
            return;
        }
        self.lost = true;
        self.in_sync.clear();
    }

    /// Returns `None` (only a mutant returns a device): only an in-sync replica may be promoted
    /// (rule R4), and `elect` does that.
    fn promotable(&self, up: &impl Fn(DeviceId) -> bool) -> Option<DeviceId> {
        self.replicas.iter().copied().find(|d| mutant::on(Mutant::PromoteAny) && up(*d))
    }

    /// Keeps the primary while it is in sync and up; otherwise makes the first in-sync replica that
    /// is up the primary. Without a primary there are no joiners.
    fn elect(&mut self, up: &impl Fn(DeviceId) -> bool) {
        let can = |d: &DeviceId| self.in_sync.contains(d) && up(*d);
        self.primary =
            self.primary.filter(can).or_else(|| self.in_sync.iter().copied().find(|d| up(*d)));
        if self.primary.is_none() {
            self.joiners.clear();
        }
    }

    /// Returns the first invariant that does not hold.
    pub fn check(&self, up: &impl Fn(DeviceId) -> bool) -> Result<(), &'static str> {
        let mut distinct = self.replicas.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let three = self.leaving.is_some() && self.replicas.last().copied() == self.leaving;
        let held = [
            (
                distinct.len() == self.replicas.len()
                    && (self.replicas.len() == 2 || self.replicas.len() == 3 && three),
                "two replicas, or a third one that leaves",
            ),
            (
                self.leaving.is_none() || self.replicas.len() == 3,
                "a replica leaves, and none is to come",
            ),
            (
                self.joiners.iter().all(|d| Some(*d) != self.leaving),
                "the leaving replica is a joiner",
            ),
            (
                self.in_sync.iter().all(|d| self.replicas.contains(d)),
                "an in-sync device is no replica",
            ),
            (self.joiners.iter().all(|d| self.replicas.contains(d)), "a joiner is no replica"),
            (self.joiners.iter().all(|d| !self.in_sync.contains(d)), "a joiner is in sync"),
            (self.joiners.iter().all(|d| up(*d)), "a joiner is down"),
            (self.primary.is_none_or(|p| self.in_sync.contains(&p)), "the primary is not in sync"),
            (self.primary.is_none_or(up), "the primary is down"),
            (self.primary.is_some() || self.joiners.is_empty(), "a joiner without a primary"),
            (self.primary.is_some() || !self.in_sync.iter().any(|d| up(*d)), "no replica leads"),
            (self.lost == self.in_sync.is_empty(), "lost and in sync, or neither"),
        ];
        held.iter().find(|(ok, _)| !ok).map_or(Ok(()), |(_, what)| Err(what))
    }
}
