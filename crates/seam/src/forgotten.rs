//! Client writes that a device no longer lists, although it may hold them (rule R8).
//!
//! A list of executed writes is bounded. When it is full its oldest entries go, and what is remembered
//! of them is one number per client: a retry of a lower one must neither be executed (it may be in the
//! content, under what came after it) nor answered as done (it may not be). It ends with an error.
//!
//! Invariants: a number never falls while its client's life lasts; at most `most` clients are named, and
//! whoever loses its place is covered by `before` from then on.

use crate::{ClientWrite, ExecutedBlocks};
use alloc::collections::BTreeMap;
use base::{BlockSet, Incarnation, SdcId, UnitKey};

/// What was forgotten on one device, by client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// By client: its life, and the number below which its writes may have been forgotten.
    clients: BTreeMap<SdcId, (Incarnation, u64)>,
    /// Of lives up to this one every write may have been.
    before: Incarnation,
    most: usize,
}

impl Forgotten {
    /// Clients that are named at most: as many as a cluster takes.
    pub const MOST: usize = 4096;

    /// Nothing was forgotten.
    pub fn new() -> Forgotten {
        Forgotten::with(Forgotten::MOST)
    }

    /// The same, which names at most so many clients.
    pub fn with(most: usize) -> Forgotten {
        Forgotten { clients: BTreeMap::new(), before: Incarnation(0), most }
    }

    /// Writes of this life with numbers below `seq` may be forgotten from now on.
    pub fn raise(&mut self, sdc: SdcId, incarnation: Incarnation, seq: u64) {
        if sdc.0 == 0 {
            self.before = self.before.max(incarnation);
        }
        if incarnation <= self.before {
            return;
        }
        let entry = self.clients.entry(sdc).or_insert((incarnation, seq));
        *entry = (*entry).max((incarnation, seq));
        if self.clients.len() > self.most {
            let oldest = self.clients.iter().map(|(sdc, (life, _))| (*life, *sdc)).min();
            let (life, sdc) = oldest.expect("there is one");
            self.clients.remove(&sdc);
            self.before = self.before.max(life);
        }
    }

    /// True when a write that no list names may have been executed all the same.
    pub fn covers(&self, write: ClientWrite) -> bool {
        let named = self.clients.get(&write.sdc);
        write.incarnation <= self.before
            || named.is_some_and(|(life, seq)| {
                *life > write.incarnation || *life == write.incarnation && write.seq < *seq
            })
    }

    /// As entries that name no block: how it is kept on a device and handed to other replicas.
    pub fn entries(&self) -> impl Iterator<Item = ExecutedBlocks> + '_ {
        let marker = |sdc, incarnation, seq| ExecutedBlocks {
            write: ClientWrite { sdc, incarnation, seq, floor: 0 },
            unit: UnitKey::default(),
            blocks: BlockSet::EMPTY,
        };
        let all = (self.before.0 > 0).then(|| marker(SdcId(0), self.before, 0));
        let named = self.clients.iter().map(move |(sdc, (life, seq))| marker(*sdc, *life, *seq));
        all.into_iter().chain(named)
    }

    /// Takes in such an entry; false for one that names blocks, which is none.
    pub fn take(&mut self, entry: &ExecutedBlocks) -> bool {
        let ClientWrite { sdc, incarnation, seq, floor } = entry.write;
        // Earlier builds kept each client's floor in each group like this. Nothing was forgotten then.
        if entry.blocks.is_empty() && floor == 0 && (seq > 0 || sdc.0 == 0) {
            self.raise(sdc, incarnation, seq);
        }
        entry.blocks.is_empty()
    }

    /// True when taking in this entry of another device would change nothing.
    pub fn has(&self, entry: &ExecutedBlocks) -> bool {
        let last = ClientWrite { seq: entry.write.seq.saturating_sub(1), ..entry.write };
        self.covers(last)
    }

    /// Covers whoever has a number by its life, which takes one entry.
    pub fn merge(&mut self) {
        let lives = self.clients.values().map(|(life, _)| *life);
        self.before = lives.fold(self.before, Incarnation::max);
        self.clients.clear();
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.clients.len() + usize::from(self.before.0 > 0)
    }

    /// True when nothing was forgotten.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Default for Forgotten {
    fn default() -> Forgotten {
        Forgotten::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(sdc: u32, life: u64, seq: u64) -> ClientWrite {
        ClientWrite { sdc: SdcId(sdc), incarnation: Incarnation(life), seq, floor: 0 }
    }

    #[test]
    fn what_may_have_been_forgotten_is_covered_and_nothing_else() {
        let mut f = Forgotten::with(2);
        f.raise(SdcId(1), Incarnation(5), 10);
        f.raise(SdcId(1), Incarnation(5), 7);
        assert!(f.covers(write(1, 5, 9)) && !f.covers(write(1, 5, 10)));
        assert!(f.covers(write(1, 4, 99)), "an older life");
        assert!(!f.covers(write(1, 6, 1)) && !f.covers(write(2, 5, 1)));
        f.raise(SdcId(1), Incarnation(6), 3);
        assert!(f.covers(write(1, 5, 99)) && !f.covers(write(1, 6, 3)));
    }

    #[test]
    fn one_entry_covers_all() {
        let mut f = Forgotten::new();
        (1..=9).for_each(|n| f.raise(SdcId(n), Incarnation(u64::from(n)), 5));
        f.merge();
        assert_eq!(f.len(), 1);
        assert!((1..=9).all(|n| f.covers(write(n, u64::from(n), 4))) && !f.covers(write(1, 10, 1)));
    }

    #[test]
    fn who_loses_its_place_is_still_covered() {
        let mut f = Forgotten::with(2);
        f.raise(SdcId(1), Incarnation(5), 10);
        f.raise(SdcId(2), Incarnation(8), 10);
        f.raise(SdcId(3), Incarnation(9), 10);
        assert_eq!(f.len(), 3, "two by name, and all lives up to the fifth");
        assert!(f.covers(write(1, 5, 999)) && !f.covers(write(1, 6, 1)));
        assert!(!f.covers(write(2, 8, 10)), "it has a number of its own");
        let mut again = Forgotten::with(2);
        assert!(!f.entries().any(|e| again.has(&e)));
        assert!(f.entries().all(|e| again.take(&e)));
        assert_eq!(again, f);
        assert!(f.entries().all(|e| again.has(&e)));
        f.raise(SdcId(2), Incarnation(8), 11);
        assert_eq!(f.entries().filter(|e| !again.has(e)).count(), 1);
    }
}
