//! R11: when a server stays away and nothing else is wrong, the first lost copy is made anew soon after `rebuild_after`.
//!
//! The time runs from the moment at which an MDM takes the device for gone, and ends with the first map in which
//! somebody takes its place. Only so many copies are made at a time: one that waited for others begins soon after
//! one of those has ended.

use super::Failure;
use base::{DeviceId, Limits, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::control::GroupInfo;

/// What it takes until those in sync have noticed, and until the healer looks, with limits that are drawn small.
const SLACK: Duration = Duration::from_secs(1);

/// Devices that are down, and when their copies began to be made anew.
#[derive(Default, Debug)]
pub struct Pace {
    down: BTreeMap<DeviceId, Time>,
    begun: BTreeMap<DeviceId, Begun>,
    /// Groups of which a copy is being made, and when one was ready last.
    busy: BTreeSet<u32>,
    ready: Option<Time>,
}

/// When the first copy began, and when another one had been ready last.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: Time,
    after: Option<Time>,
}

impl Pace {
    /// An MDM takes the device for gone.
    pub fn down(&mut self, device: DeviceId, now: Time) {
        self.begun.remove(&device);
        self.down.insert(device, now);
    }

    /// The map tells of a group.
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

    /// This device was away long enough for its copies to be made anew, if it had any.
    pub fn check(&self, device: DeviceId, limits: &Limits) -> Result<(), Failure> {
        let (Some(down), Some(begun)) = (self.down.get(&device), self.begun.get(&device)) else {
            return Ok(());
        };
        // A clock may run slow by a tenth.
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
            pace.group(&leaves, at(1)); // it was up, and moved away
            pace.down(DeviceId(3), at(10));
            pace.group(&leaves, at(10 + second));
            pace.group(&leaves, at(100));
            pace.check(DeviceId(3), &limits).is_ok()
        };
        assert!(begins(2) && begins(3));
        assert!(!begins(10));
        // Others were copied before it.
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
