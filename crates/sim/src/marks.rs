//! Which rare paths a campaign has met: kinds of notes, and what the simulator itself saw happen.

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

/// Counts by name.
#[derive(Clone, Default, Debug)]
pub struct Marks {
    counts: BTreeMap<String, u64>,
    kinds: Vec<(Discriminant<Note>, u64, &'static str)>,
}

impl Marks {
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

    /// Counts something else.
    pub fn meet(&mut self, what: &str) {
        match self.counts.get_mut(what) {
            Some(n) => *n += 1,
            None => {
                self.counts.insert(what.to_string(), 1);
            }
        }
    }

    /// All counts.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut all = self.counts.clone();
        self.kinds.iter().for_each(|(_, n, name)| *all.entry(name.to_string()).or_default() += n);
        all
    }

    /// Kinds of notes that were never met.
    pub fn missing(counts: &BTreeMap<String, u64>) -> Vec<&'static str> {
        NOTES.iter().copied().filter(|n| !counts.contains_key(*n)).collect()
    }
}
