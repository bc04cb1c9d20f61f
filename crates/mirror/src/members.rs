//! The configuration of a group, and sets of its replicas.

use alloc::vec::Vec;
use base::{DeviceId, Epoch};

/// The most replicas of a group.
const REPLICAS_MAX: usize = 8;

/// A group's configuration, as the map has it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct GroupConfig {
    /// The number of the configuration.
    pub epoch: Epoch,
    /// The replica that serves; `None` when no in-sync replica is up.
    pub primary: Option<DeviceId>,
    /// All replicas, the preferred primary first; at most 8.
    pub replicas: Vec<DeviceId>,
    /// Replicas that hold every acknowledged write.
    pub in_sync: Vec<DeviceId>,
    /// Replicas that are being filled.
    pub joiners: Vec<DeviceId>,
    /// Every copy is lost (rule R10).
    pub lost: bool,
}

/// A set of a group's replicas: one bit per place in `GroupConfig::replicas`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ReplicaSet(pub u8);

impl ReplicaSet {
    pub(crate) fn contains_all(self, other: ReplicaSet) -> bool {
        other.0 & !self.0 == 0
    }

    pub(crate) fn insert(&mut self, other: ReplicaSet) {
        self.0 |= other.0;
    }

    pub(crate) fn remove(&mut self, other: ReplicaSet) {
        self.0 &= !other.0;
    }

    pub(crate) fn without(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 & !other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn is_one(self) -> bool {
        self.0.is_power_of_two()
    }

    pub(crate) fn intersects(self, other: ReplicaSet) -> bool {
        self.0 & other.0 != 0
    }
}

impl GroupConfig {
    /// Returns true if the group has no more replicas than it may have, each replica that is in
    /// sync or is being filled is one of them, and one that is in sync leads. An MDM names no other
    /// configuration.
    pub fn is_sound(&self) -> bool {
        let led = self.primary.is_none_or(|primary| self.in_sync.contains(&primary));
        let mut others = self.in_sync.iter().chain(&self.joiners);
        self.replicas.len() <= REPLICAS_MAX && led && others.all(|d| self.replicas.contains(d))
    }

    /// Returns the replica's bit; the empty set for a device that is no replica.
    pub(crate) fn member(&self, device: DeviceId) -> ReplicaSet {
        ReplicaSet(self.replicas.iter().position(|r| *r == device).map_or(0, |i| 1 << i))
    }

    pub(crate) fn members(&self, devices: &[DeviceId]) -> ReplicaSet {
        ReplicaSet(devices.iter().fold(0, |bits, d| bits | self.member(*d).0))
    }

    pub(crate) fn devices(&self, members: ReplicaSet) -> impl Iterator<Item = DeviceId> {
        self.each(members).map(|(_, device)| device)
    }

    /// Like `devices`, with each replica's bit.
    pub(crate) fn each(&self, members: ReplicaSet) -> impl Iterator<Item = (ReplicaSet, DeviceId)> {
        let places = self.replicas.iter().enumerate();
        places.map(|(i, d)| (ReplicaSet(1 << i), *d)).filter(move |(m, _)| members.intersects(*m))
    }
}
