//! Judges R11: when a server stays away and nothing else is wrong, the rebuild of its first copy
//! begins soon after `rebuild_after`.
//!
//! The time runs from the moment at which an MDM declares the device down, and ends with the first
//! map in which another device takes its place. The number of copies at a time is limited, so a
//! copy that waited for others has to begin soon after one of these has ended.

use super::Failure;
use base::{DeviceId, Limits, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::control::GroupInfo;

/// Time until the replicas in sync notice the loss and the healer looks, with limits
/// that are drawn small.
const SLACK: Duration = Duration::from_secs(1);

/// Devices that are down, and when the rebuild of their copies began.
#[derive(Default, Debug)]
pub struct Pace {
    down: BTreeMap<DeviceId, Time>,
    begun: BTreeMap<DeviceId, Begun>,
    /// Groups of which a copy is being made, and the last time at which one was complete.
    busy: BTreeSet<u32>,
    ready: Option<Time>,
}

/// When the first copy began, and the last time before at which another one was complete.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: Time,
    after: Option<Time>,
}

impl Pace {
    /// Records that an MDM declares the device down.
    pub fn down(&mut self, device: DeviceId, now: Time) {
        self.begun.remove(&device);
        self.down.insert(device, now);
    }

    /// Processes a group of a map.
    pub fn group(&mut self, group: &GroupInfo, now: Time) {
        let leaving = DeviceId(group.leaving);
        match group.leaving {
            0 if self.busy.remove(&group.id) => self.ready = Some(now),
            0 => {}
            _ => drop(self.busy.insert(group.id)),
        }
        if self.down.contains_key(&leaving) {
            let begun = Begun { at: now, after: self.ready };
            self.begun.entry(leaving).or_insert(begun);
        }
    }

    /// Checks a device that was away long enough for its copies to be rebuilt, if it had any.
    pub fn check(&self, device: DeviceId, limits: &Limits) -> Result<(), Failure> {
        let (Some(down), Some(begun)) = (self.down.get(&device), self.begun.get(&device)) else {
            return Ok(());
        };
        // A clock may be slow by a tenth.
        let slack = limits.heartbeat_every * 4 + SLACK;
        let bound = limits.rebuild_after * 11 / 10 + slack;
        let took = begun.at.since(*down);
        let waited = begun.after.is_some_and(|ready| begun.at.since(ready) <= slack);
        if took <= bound || waited {
            return Ok(());
        }
        let text = format!(
            "{device} was down for {took:?} before a copy of it was made anew, which may take {bound:?}"
        );
        Err(Failure::new("R11", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_copy_is_made_anew_in_time() {
        let limits = Limits { rebuild_after: Duration::from_secs(2), ..Limits::SHIPPED };
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        let leaves = GroupInfo { leaving: 3, ..GroupInfo::default() };
        let begins = |second: u64| {
            let mut pace = Pace::default();
            pace.group(&leaves, at(1)); // a move while the device was up
            pace.down(DeviceId(3), at(10));
            pace.group(&leaves, at(10 + second));
            pace.group(&leaves, at(100));
            pace.check(DeviceId(3), &limits).is_ok()
        };
        assert!(begins(2) && begins(3));
        assert!(!begins(10));
        // Others were copied before.
        let other = |leaving| GroupInfo { id: 7, leaving, ..GroupInfo::default() };
        let waits = |ready: u64| {
            let mut pace = Pace::default();
            pace.down(DeviceId(3), at(10));
            pace.group(&other(4), at(12));
            pace.group(&other(0), at(ready));
            pace.group(&leaves, at(20));
            pace.check(DeviceId(3), &limits).is_ok()
        };
        assert!(waits(19) && !waits(15));
        assert!(Pace::default().check(DeviceId(3), &limits).is_ok(), "it had nothing");
    }
}
