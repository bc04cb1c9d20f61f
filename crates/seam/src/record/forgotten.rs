//! Client writes that a device no longer lists, although its content may include them (rule R8).
//!
//! A list of executed writes is bounded. When it is full, its oldest entries are dropped, and one
//! number per client and group remains. A retry of a write below that number must not be executed
//! (it may be in the content, below later writes), and must not be answered as done (it may not be
//! in the content). It ends with an error.
//!
//! If there are too many such numbers, the oldest become numbers of their clients for *all* groups
//! of the device. Then writes that were never executed may be refused, too.
//!
//! Invariants: a write that is covered stays covered during the incarnation of its client. There
//! are at most `room` numbers of single groups, and at most `most` of one group. At most `most`
//! clients have a number for all groups; `before` covers a client that loses its place.

use super::{ClientWrite, ExecutedBlocks};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{BlockSet, GroupId, Incarnation, Mutant, SdcId, UnitKey, VolumeId, mutant};

/// The unit that an entry for a single group names. Older builds apply the entry to all groups.
const HERE: UnitKey = UnitKey { volume: VolumeId(0), index: 1 };

/// A client's incarnation, and the number below which its writes may have been forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    life: Incarnation,
    seq: u64,
}

impl Number {
    fn covers(self, write: ClientWrite) -> bool {
        self.life > write.incarnation || self.life == write.incarnation && write.seq < self.seq
    }

    /// Returns the last write that it covers.
    fn last(self, sdc: SdcId) -> ClientWrite {
        ClientWrite { sdc, incarnation: self.life, seq: self.seq.saturating_sub(1), floor: 0 }
    }

    fn marker(self, sdc: SdcId, unit: UnitKey) -> ExecutedBlocks {
        let write = ClientWrite { sdc, incarnation: self.life, seq: self.seq, floor: 0 };
        ExecutedBlocks { write, unit, blocks: BlockSet::EMPTY }
    }
}

/// Numbers of single groups.
#[derive(Clone, Debug, Default)]
struct Single {
    /// Each number with the order of its last raise. Client 0: all incarnations up to this one.
    numbers: BTreeMap<(GroupId, SdcId), (Number, u64)>,
    /// How many numbers each group has.
    counts: BTreeMap<GroupId, usize>,
    raised: u64,
    room: usize,
}

/// The forgotten writes of one device, by client.
#[derive(Clone, Debug)]
pub struct Forgotten {
    single: Single,
    /// Numbers for all groups.
    clients: BTreeMap<SdcId, Number>,
    /// Every write of incarnations up to this one may have been forgotten, in all groups.
    before: Incarnation,
    most: usize,
}

impl Forgotten {
    /// Most clients that have a number for all groups: as many as a cluster takes.
    pub const MOST: usize = 4096;

    /// Creates an empty set that keeps at most `room` numbers of single groups.
    pub fn new(room: usize) -> Forgotten {
        Forgotten::with(Forgotten::MOST, room)
    }

    /// The same, with a limit on the clients that have a number for all groups.
    pub fn with(most: usize, room: usize) -> Forgotten {
        let single = Single { room, ..Single::default() };
        Forgotten { single, clients: BTreeMap::new(), before: Incarnation(0), most }
    }

    /// Records that writes of this incarnation to this group with numbers below `seq` may be
    /// forgotten. Client 0: all writes of incarnations up to this one.
    pub fn raise(&mut self, group: GroupId, sdc: SdcId, life: Incarnation, seq: u64) {
        let number = Number { life, seq };
        if self.covers_everywhere(number.last(sdc)) {
            return;
        }
        if mutant::on(Mutant::ForgetEverywhere) {
            return self.raise_everywhere(sdc, number);
        }
        let Single { numbers, counts, raised, .. } = &mut self.single;
        *raised += 1;
        let count = counts.entry(group).or_default();
        let known = numbers.entry((group, sdc)).or_insert_with(|| {
            *count += 1;
            (number, *raised)
        });
        if number > known.0 {
            *known = (number, *raised);
        }
        let of_group = *count;
        if of_group > self.most {
            self.fold(self.most, Some(group));
        }
        self.set_room(self.single.room);
    }

    /// Sets the limit on numbers of single groups.
    pub fn set_room(&mut self, room: usize) {
        self.single.room = room;
        if self.single.numbers.len() > room {
            self.fold(room, None);
        }
    }

    /// Called if there are more than `most` numbers of single groups, or of this group: the oldest
    /// quarter of them becomes numbers for all groups.
    #[cold]
    fn fold(&mut self, most: usize, group: Option<GroupId>) {
        let concerns = |id: GroupId| group.is_none_or(|group| group == id);
        let numbers = self.single.numbers.iter().filter(|((id, _), _)| concerns(*id));
        let mut raised: Vec<u64> = numbers.map(|(_, (_, at))| *at).collect();
        let count = raised.len() - most * 3 / 4;
        let last = *raised.select_nth_unstable(count - 1).1;
        let is_old = |id: GroupId, at: u64| concerns(id) && at <= last;
        let all = core::mem::take(&mut self.single.numbers);
        let (old, mut left): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.into_iter().partition(|((id, _), (_, at))| is_old(*id, *at));
        old.into_iter().for_each(|((_, sdc), (number, _))| self.raise_everywhere(sdc, number));
        left.retain(|(_, sdc), (number, _)| !self.covers_everywhere(number.last(*sdc)));
        self.single.counts.clear();
        for (id, _) in left.keys() {
            *self.single.counts.entry(*id).or_default() += 1;
        }
        self.single.numbers = left;
    }

    fn raise_everywhere(&mut self, sdc: SdcId, number: Number) {
        if sdc.0 == 0 {
            self.before = self.before.max(number.life);
        }
        if number.life <= self.before {
            return;
        }
        let known = self.clients.entry(sdc).or_insert(number);
        *known = number.max(*known);
        if self.clients.len() > self.most {
            let oldest = self.clients.iter().map(|(sdc, n)| (n.life, *sdc)).min();
            let (life, sdc) = oldest.expect("there is one");
            self.clients.remove(&sdc);
            self.before = self.before.max(life);
        }
    }

    /// Returns true if a write to this group may have been executed although no list names it.
    pub fn covers(&self, group: GroupId, write: ClientWrite) -> bool {
        let numbers = &self.single.numbers;
        let named = numbers.get(&(group, write.sdc)).is_some_and(|(n, _)| n.covers(write));
        let all = || numbers.get(&(group, SdcId(0)));
        named
            || all().is_some_and(|(n, _)| write.incarnation <= n.life)
            || self.covers_everywhere(write)
    }

    fn covers_everywhere(&self, write: ClientWrite) -> bool {
        let named = self.clients.get(&write.sdc).is_some_and(|n| n.covers(write));
        named || write.incarnation <= self.before
    }

    // ---- as entries without blocks: the form on a device and on the way to other replicas ----

    /// Returns the numbers for all groups.
    pub fn everywhere(&self) -> impl Iterator<Item = ExecutedBlocks> + '_ {
        let before = Number { life: self.before, seq: 0 };
        let all = (self.before.0 > 0).then(|| before.marker(SdcId(0), UnitKey::default()));
        let marker = |(sdc, n): (&SdcId, &Number)| n.marker(*sdc, UnitKey::default());
        all.into_iter().chain(self.clients.iter().map(marker))
    }

    /// Returns the numbers for this group only.
    pub fn here(&self, group: GroupId) -> impl Iterator<Item = ExecutedBlocks> + '_ {
        let range = (group, SdcId(0))..=(group, SdcId(u32::MAX));
        self.single.numbers.range(range).map(|((_, sdc), (n, _))| n.marker(*sdc, HERE))
    }

    /// Returns all numbers that apply to this group.
    pub fn entries(&self, group: GroupId) -> impl Iterator<Item = ExecutedBlocks> + '_ {
        self.everywhere().chain(self.here(group))
    }

    /// Returns the same entry, restricted to the group that it is sent for.
    pub fn of_group(entry: ExecutedBlocks) -> ExecutedBlocks {
        ExecutedBlocks { unit: HERE, ..entry }
    }

    /// Adds an entry that was received for this group. Returns false for an entry with blocks,
    /// which is not one of these.
    pub fn take(&mut self, group: GroupId, entry: &ExecutedBlocks) -> bool {
        let ClientWrite { sdc, incarnation: life, seq, floor } = entry.write;
        // Earlier builds stored each client's floor in each group like this; these entries mean
        // that nothing was forgotten.
        if entry.blocks.is_empty() && floor == 0 && (seq > 0 || sdc.0 == 0) {
            match entry.unit == HERE {
                true => self.raise(group, sdc, life, seq),
                false => self.raise_everywhere(sdc, Number { life, seq }),
            }
        }
        entry.blocks.is_empty()
    }

    /// Returns true if adding this entry for this group would change nothing.
    pub fn has(&self, group: GroupId, entry: &ExecutedBlocks) -> bool {
        let last = ClientWrite { seq: entry.write.seq.saturating_sub(1), ..entry.write };
        self.covers(group, last)
    }

    /// Replaces all numbers by `before`, which needs one entry and covers the incarnations of these
    /// clients in all groups.
    pub fn merge(&mut self) {
        self.single.counts.clear();
        let single = core::mem::take(&mut self.single.numbers).into_values().map(|(n, _)| n.life);
        let lives = self.clients.values().map(|n| n.life).chain(single);
        self.before = lives.fold(self.before, Incarnation::max);
        self.clients.clear();
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.single.numbers.len() + self.clients.len() + usize::from(self.before.0 > 0)
    }

    /// Returns true if nothing was forgotten.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: GroupId = GroupId(3);
    const H: GroupId = GroupId(4);

    fn write(sdc: u32, life: u64, seq: u64) -> ClientWrite {
        ClientWrite { sdc: SdcId(sdc), incarnation: Incarnation(life), seq, floor: 0 }
    }

    fn raise(f: &mut Forgotten, group: GroupId, sdc: u32, life: u64, seq: u64) {
        f.raise(group, SdcId(sdc), Incarnation(life), seq);
    }

    /// Returns one with room for single groups, and one without.
    fn both() -> [Forgotten; 2] {
        [0, 100].map(|room| Forgotten::with(2, room))
    }

    #[test]
    fn the_list_covers_exactly_the_writes_that_may_have_been_forgotten() {
        for mut f in both() {
            raise(&mut f, G, 1, 5, 10);
            raise(&mut f, G, 1, 5, 7);
            assert!(f.covers(G, write(1, 5, 9)) && !f.covers(G, write(1, 5, 10)));
            assert!(f.covers(G, write(1, 4, 99)), "an older life");
            assert!(!f.covers(G, write(1, 6, 1)) && !f.covers(G, write(2, 5, 1)));
            raise(&mut f, G, 1, 6, 3);
            assert!(f.covers(G, write(1, 5, 99)) && !f.covers(G, write(1, 6, 3)));
            assert_eq!(f.covers(H, write(1, 5, 1)), f.single.room == 0, "another group");
        }
    }

    #[test]
    fn numbers_without_a_place_hold_for_all_groups_the_oldest_first() {
        let mut f = Forgotten::new(8);
        for group in 1..=9 {
            raise(&mut f, GroupId(group), 1, 5, 10 * u64::from(group));
            raise(&mut f, GroupId(2), 1, 5, 20 + u64::from(group));
        }
        assert!(f.single.numbers.len() <= 8 && f.clients.len() == 1);
        let number = f.clients[&SdcId(1)].seq;
        assert!(number < 60, "{number} is not that of an old one");
        for group in 1..=9 {
            let own = if group == 2 { 29 } else { 10 * u64::from(group) };
            let until = own.max(number);
            let at = |seq| f.covers(GroupId(group), write(1, 5, seq));
            assert!(at(until - 1) && !at(until), "{group}");
        }
        f.set_room(0);
        assert!(f.covers(G, write(1, 5, 89)) && !f.covers(G, write(1, 5, 90)) && f.len() == 1);
    }

    #[test]
    fn one_group_has_no_more_numbers_than_a_frame_takes() {
        let mut f = Forgotten::with(4, 100);
        for sdc in 1..=20 {
            let life = u64::from(sdc);
            raise(&mut f, G, sdc, life, 10);
            raise(&mut f, H, 30, 99, life);
            assert!(f.here(G).count() <= 4 && f.entries(G).count() <= 9);
            assert!((1..=sdc).all(|sdc| f.covers(G, write(sdc, u64::from(sdc), 9))));
            assert_eq!(f.here(G).count(), f.single.counts[&G]);
        }
        assert!(!f.covers(G, write(20, 20, 10)) && !f.covers(G, write(30, 99, 1)));
    }

    #[test]
    fn one_entry_covers_all() {
        let mut f = Forgotten::new(4);
        (1..=9).for_each(|n| raise(&mut f, GroupId(n), n, u64::from(n), 5));
        f.merge();
        assert_eq!(f.len(), 1);
        assert!((1..=9).all(|n| f.covers(G, write(n, u64::from(n), 4))));
        assert!(!f.covers(G, write(1, 10, 1)));
        // Received by another device for one group, it applies to that group there.
        let mut other = Forgotten::new(4);
        f.entries(G).for_each(|e| assert!(other.take(G, &Forgotten::of_group(e))));
        assert!(other.covers(G, write(7, 9, 4)) && !other.covers(G, write(7, 10, 4)));
        assert!(!other.covers(H, write(7, 1, 4)));
        other.set_room(0);
        assert!(other.covers(H, write(7, 9, 4)) && !other.covers(H, write(7, 10, 4)));
    }

    #[test]
    fn a_client_that_loses_its_entry_is_still_covered() {
        for room in [0, 2] {
            let mut f = Forgotten::with(2, room);
            raise(&mut f, G, 1, 5, 10);
            raise(&mut f, G, 2, 8, 10);
            raise(&mut f, G, 3, 9, 10);
            f.set_room(0);
            assert_eq!(f.len(), 3, "two by name, and all lives up to the fifth");
            assert!(f.covers(G, write(1, 5, 999)) && !f.covers(G, write(1, 6, 1)));
            assert!(!f.covers(G, write(2, 8, 10)), "it has a number of its own");
        }
    }

    /// A device reads entries back in this form, and so do builds without numbers of single groups.
    #[test]
    fn entries_tell_all_of_it() {
        for mut f in both() {
            raise(&mut f, G, 1, 5, 10);
            raise(&mut f, G, 2, 8, 10);
            raise(&mut f, H, 3, 9, 10);
            let entries: Vec<_> =
                [G, H].into_iter().flat_map(|g| f.entries(g).map(move |e| (g, e))).collect();
            let mut again = Forgotten::with(2, f.single.room);
            assert!(!entries.iter().any(|(g, e)| again.has(*g, e)));
            assert!(entries.iter().all(|(g, e)| again.take(*g, e)));
            assert!(entries.iter().all(|(g, e)| again.has(*g, e)));
            assert!([G, H].into_iter().all(|g| again.entries(g).eq(f.entries(g))));
            raise(&mut f, G, 2, 8, 11);
            assert_eq!(f.entries(G).filter(|e| !again.has(G, e)).count(), 1);
        }
    }
}
