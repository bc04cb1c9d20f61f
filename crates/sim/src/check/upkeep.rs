//! Judges R12: while a server is in maintenance, its copies are not rebuilt elsewhere.
//!
//! Compares the states after two consecutive entries: no group begins to leave a device that is in
//! (instant) maintenance after both.

use super::Failure;
use base::{DeviceId, GroupId};
use mdm::State;
use std::collections::{BTreeMap, BTreeSet};
use wire::control::Intent;

/// State after the last entry.
#[derive(Default, Debug)]
pub struct Upkeep {
    entry: u64,
    leaving: BTreeMap<GroupId, DeviceId>,
    maintained: BTreeSet<DeviceId>,
}

impl Upkeep {
    /// Processes the state of an MDM that has applied this entry. A leader's state may be
    /// ahead of the entry.
    pub fn look(&mut self, entry: u64, state: &State) -> Result<(), Failure> {
        if entry <= self.entry {
            return Ok(());
        }
        let all = state.groups.iter().filter_map(|(id, g)| Some((*id, g.leaving?)));
        let before = std::mem::replace(&mut self.leaving, all.collect());
        let all = state.devices.iter().filter(|(_, d)| d.intent == Intent::Maintain && !d.up);
        let all: BTreeSet<DeviceId> = all.map(|(id, _)| *id).collect();
        let were = std::mem::replace(&mut self.maintained, all);
        if std::mem::replace(&mut self.entry, entry) + 1 != entry {
            return Ok(()); // several entries were applied together
        }
        let maintained = |d: &DeviceId| were.contains(d) && self.maintained.contains(d);
        let new = |(id, d): &(&GroupId, &DeviceId)| before.get(*id) != Some(*d) && maintained(d);
        match self.leaving.iter().find(new) {
            None => Ok(()),
            Some((id, d)) => {
                let text = format!("{id} leaves {d}, whose server is in maintenance");
                Err(Failure::new("R12", text))
            }
        }
    }
}
