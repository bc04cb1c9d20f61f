//! Devices that other servers cannot reach: which suspicions count, and which devices are taken out
//! (rule R12; `mdm::reach` finds the devices that are cut off). Such a device goes down, so that
//! the others lead what it led. Its next heartbeat brings it back, without those groups. From then
//! on it leads only groups in which it alone is in sync, and joins the others again when their
//! primaries reach it.

use super::Mdm;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use base::{DeviceId, Time};
use mdm::command::{Command, DeviceDown, DevicesDown};
use mdm::entry::Commands;
use mdm::state::State;
use seam::{Effects, Note};
use wire::control::Proposal;

impl Mdm {
    /// Removes from a proposal what does not count, or not yet: its sender repeats it with each
    /// heartbeat.
    pub(super) fn weigh(&mut self, now: Time, m: &mut Proposal) {
        let (by, limits) = (DeviceId(m.device), &self.config.limits);
        self.reach.told(now, by, &m.unreached, limits);
        m.join.iter().for_each(|device| self.reach.reached(now, by, DeviceId(*device)));
        let (reach, unreached) = (&self.reach, &m.unreached);
        m.suspects.retain(|d| !unreached.contains(d) || reach.counts(by, DeviceId(*d), limits));
    }

    /// Takes devices that are cut off out of the groups that others can serve.
    pub(super) fn do_without_cut_off(
        &mut self,
        now: Time,
        batch: &mut Commands,
        out: &mut Effects,
    ) {
        let Some(found) = self.reach.look(now, &self.state, &self.config.limits) else { return };
        self.observed.parted = self.reach.parted(now, &self.config.limits);
        let before = core::mem::replace(&mut self.observed.cut_off, found.clone());
        for device in before.difference(&found) {
            out.note(Note::CutOff { device: *device, over: true });
        }
        for device in found.difference(&before) {
            out.note(Note::CutOff { device: *device, over: false });
            if !shares(&self.state, *device, &found) {
                // It counts as an absence: primaries would try to bring the device up to date again
                // and again.
                self.count_absence(now, *device, None, out);
            }
        }
        let down = |device: &DeviceId| {
            let incarnation = self.state.devices[device].incarnation.0;
            DeviceDown { device: device.0, incarnation, dead: false }
        };
        let list: Vec<DeviceDown> =
            found.iter().filter(|d| shares(&self.state, **d, &found)).map(down).collect();
        if !list.is_empty() {
            self.execute(now, Command::DevicesDown(DevicesDown { list }), batch, out);
        }
    }
}

/// Returns true when the device shares its place in a group's in-sync set with another one that is
/// up and not cut off.
fn shares(state: &State, device: DeviceId, cut_off: &BTreeSet<DeviceId>) -> bool {
    let there = |d: &DeviceId| *d != device && state.is_up(*d) && !cut_off.contains(d);
    let with_others = |g: &base::GroupId| {
        let in_sync = &state.groups[g].in_sync;
        in_sync.contains(&device) && in_sync.iter().any(there)
    };
    state.is_up(device) && state.groups_of(device).iter().any(with_others)
}
