//! Marks: counts of rare paths that a campaign has met, which are kinds of notes and observations
//! of the simulator.

use seam::Note;
use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};

/// Kinds of notes that a campaign should meet.
pub const NOTES: &[&str] = &[
    "Refused",
    "Garbage",
    "BadBody",
    "Map",
    "Primary",
    "Active",
    "StaleEpoch",
    "SyncStart",
    "Copied",
    "Sealed",
    "LeaseWait",
    "GraceWait",
    "Deduped",
    "OldSession",
    "Full",
    "Grown",
    "Dropped",
    "Discarded",
    "DeviceDown",
    "DeviceUp",
    "Snapshot",
    "Retried",
];

/// Other notes and observations that a campaign should meet. Without them some judge
/// has nothing to judge, or a family of faults never strikes.
pub const SEEN: &[&str] = &[
    "Crowded",
    "CutOff",
    "Quarantined",
    "Recovered",
    "RefusesAlive",
    "Repaired",
    "SpaceKept",
    "Stuck",
    "Superseded",
    "sim: a backup was restored",
    "sim: a block was damaged",
    "sim: a client was started elsewhere",
    "sim: a clock jumped ahead",
    "sim: a device became larger",
    "sim: a device had only its spare left",
    "sim: a device was refused and put right",
    "sim: a device was tampered with",
    "sim: a disk hung under copies",
    "sim: a disk was replaced",
    "sim: a former life of a server was told",
    "sim: a frame was announced that nobody takes",
    "sim: a host has excluded its former gateway",
    "sim: a host was unmapped under load",
    "sim: a host's path was moved by order",
    "sim: a leader died between two seals",
    "sim: a loss was reported",
    "sim: a mapping was confirmed",
    "sim: a process changed its build",
    "sim: a reservation was in the way",
    "sim: a second server died",
    "sim: a server died with its devices",
    "sim: a server that refuses dials was cut from an MDM",
    "sim: a server was removed and another added",
    "sim: a server was slow",
    "sim: a server was started elsewhere",
    "sim: a server was wiped with its devices",
    "sim: a stranger lied",
    "sim: a virtual machine was stopped",
    "sim: a write was forgotten",
    "sim: all MDMs were away",
    "sim: an MDM was replaced",
    "sim: an MDM was told to go on alone",
    "sim: an MDM's disk failed",
    "sim: an address changed hands",
    "sim: an iscsi command was aborted",
    "sim: an iscsi session was gone",
    "sim: an nbd connection was gone",
    "sim: an nvme command was not aborted",
    "sim: an nvme controller was gone",
    "sim: an operation was cut off by unmapping",
    "sim: asked again over another nbd connection",
    "sim: asked again over iscsi",
    "sim: asked again over nvme",
    "sim: copies are made anew under load",
    "sim: copies compared after a seal",
    "sim: copies of a server that stays away were made anew",
    "sim: data was compared and written",
    "sim: death in the middle of effects",
    "sim: first success after Cut",
    "sim: first success after Dark",
    "sim: first success after Dead",
    "sim: first success after Deaf",
    "sim: first success after FailedDisk",
    "sim: first success after Frozen",
    "sim: first success after Heard",
    "sim: first success after Mute",
    "sim: first success after Unheard",
    "sim: first success within the bound",
    "sim: no answer in time",
    "sim: other data than expected",
    "sim: requests were withdrawn",
    "sim: space was given back",
    "sim: space was made for held writes",
    "sim: the MDMs' logs were lost",
    "sim: the end of a quarantine was waited for",
    "sim: the level was raised",
    "sim: the limits are those that ship",
];

/// Number of runs after which everything should have been met.
pub const ENOUGH: u64 = 1000;

/// Counts by mark.
#[derive(Clone, Default, Debug)]
pub struct Coverage {
    counts: BTreeMap<String, u64>,
    kinds: Vec<(Discriminant<Note>, u64, &'static str)>,
}

impl Coverage {
    /// Counts a note by its kind.
    pub fn note(&mut self, note: &Note) {
        let kind = discriminant(note);
        match self.kinds.iter_mut().find(|k| k.0 == kind) {
            Some(k) => k.1 += 1,
            None => {
                let text = format!("{note:?}");
                let name = text.split([' ', '(']).next().unwrap_or_default().to_string();
                self.kinds.push((kind, 1, Box::leak(name.into_boxed_str())));
            }
        }
    }

    /// Counts another mark.
    pub fn meet(&mut self, what: &str) {
        match self.counts.get_mut(what) {
            Some(n) => *n += 1,
            None => {
                self.counts.insert(what.to_string(), 1);
            }
        }
    }

    /// Returns all counts.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut all = self.counts.clone();
        self.kinds.iter().for_each(|(_, n, name)| *all.entry(name.to_string()).or_default() += n);
        all
    }

    /// Returns the marks that were never met.
    pub fn missing(counts: &BTreeMap<String, u64>) -> Vec<&'static str> {
        NOTES.iter().chain(SEEN).copied().filter(|n| !counts.contains_key(*n)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_is_never_met_is_missing() {
        let mut marks = Coverage::default();
        NOTES.iter().chain(&SEEN[1..]).for_each(|name| marks.meet(name));
        assert_eq!(Coverage::missing(&marks.counts()), SEEN[..1]);
        marks.meet(SEEN[0]);
        assert!(Coverage::missing(&marks.counts()).is_empty());
    }
}
