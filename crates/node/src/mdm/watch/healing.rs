//! Commands that follow from the watch: devices that are slow or cut off go down, and groups get
//! other replicas.

use super::Watch;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::mutant::{self, Mutant};
use base::{DeviceId, Duration, GroupId, Time};
use mdm::command::{Command, DeviceDown, DevicesDown};
use mdm::state::State;
use seam::{Effects, Note};

impl Watch {
    /// Returns the command that takes devices which are cut off out of the groups that others can
    /// serve (rule R12; `mdm::reach` finds these devices). Such a device goes down, so that other
    /// devices lead the groups that it led. Its next heartbeat brings it back, without those
    /// groups. From then on it leads only groups in which it alone is in sync, and joins the others
    /// again when their primaries reach it.
    pub(in crate::mdm) fn cut_off(
        &mut self,
        now: Time,
        state: &State,
        out: &mut Effects,
    ) -> Option<Command> {
        let found = self.reach.look(now, state, &self.limits)?;
        self.observed.parted = self.reach.parted();
        let before = core::mem::replace(&mut self.observed.cut_off, found.clone());
        for device in before.difference(&found) {
            out.note(Note::CutOff { device: *device, over: true });
        }
        for device in found.difference(&before) {
            out.note(Note::CutOff { device: *device, over: false });
            if !shares(state, *device, &found) {
                // It counts as an absence: primaries would try to bring the device up to date again
                // and again.
                self.count_absence(now, *device, None, state, out);
            }
        }
        let down = |device: &DeviceId| {
            let incarnation = state.devices[device].incarnation.0;
            DeviceDown { device: device.0, incarnation, dead: false }
        };
        let list: Vec<DeviceDown> =
            found.iter().filter(|d| shares(state, **d, &found)).map(down).collect();
        (!list.is_empty()).then_some(Command::DevicesDown(DevicesDown { list }))
    }

    /// Returns the devices that are to be ejected because they are slow, each with the time that an
    /// operation took there. An ejected device counts as lost, and is held out when it registers.
    pub(in crate::mdm) fn slow(&mut self, now: Time, state: &State) -> Vec<(DeviceId, Duration)> {
        let limits = &self.limits;
        let never = limits.slow.is_zero() || limits.quarantine.is_zero();
        let slow = self.slowness.look(now, state, &self.observed, limits);
        let ejects = !never && !mutant::on(Mutant::KeepSlow);
        slow.into_iter().filter(|_| ejects).collect()
    }

    /// Records that a slow device was ejected.
    pub(in crate::mdm) fn ejected(&mut self, device: DeviceId) {
        self.observed.devices.entry(device).or_default().quarantine.ejected();
    }

    /// Schedules a round of the healer soon, because a replica may be up to date by now.
    pub(in crate::mdm) fn hurry(&mut self, now: Time) {
        self.healer.hurry(now, &self.limits);
    }

    /// Returns the commands that give groups other replicas where that is due.
    pub(in crate::mdm) fn heal(&mut self, now: Time, state: &State) -> Vec<Command> {
        self.healer.work(now, state, &self.observed, &self.limits)
    }

    /// Tells the driver when rebuilds begin or cease to be held back.
    pub(in crate::mdm) fn note_rebuilds(&mut self, out: &mut Effects) {
        let held_back = self.healer.is_held_back();
        if held_back != core::mem::replace(&mut self.rebuilds_held, held_back) {
            out.note(Note::RebuildHeld { over: !held_back });
        }
    }

    /// Returns true if rebuilds are held back, because many servers are away.
    pub(in crate::mdm) fn holds_rebuilds(&self) -> bool {
        self.rebuilds_held
    }
}

/// Returns true if the device is up, and in some group is in sync together with another device that
/// is up and not cut off.
fn shares(state: &State, device: DeviceId, cut_off: &BTreeSet<DeviceId>) -> bool {
    let there = |d: &DeviceId| *d != device && state.is_up(*d) && !cut_off.contains(d);
    let with_others = |g: &GroupId| {
        let in_sync = &state.groups[g].in_sync;
        in_sync.contains(&device) && in_sync.iter().any(there)
    };
    state.is_up(device) && state.groups_of(device).iter().any(with_others)
}
