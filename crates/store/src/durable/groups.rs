//! The replica records of all groups (rules R2, R5, R8): epochs, dirty set, executed writes.
//!
//! Invariants: replaying a history over a state that already contains its first part gives the same
//! state as replaying the rest alone; the dirty set never lacks a block that a durable record added
//! and none removed. When a dirty set has no room any more, it becomes "all of the group", never
//! less. Executed writes for which there is no room are forgotten, the oldest first, and
//! [`Forgotten`] covers them: with numbers of single groups, as far as there is room for these.
//!
//! All of it always fits into the records area: see [`Room`] and `docs/internals/limits.md`.

use super::format::{DiskBlocks, DiskExecuted, GroupHead};
use super::record::{Reader, Write, Writer, blocks_of, disk_blocks, disk_executed, executed_of};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{Epoch, GroupId, Mutant, VolumeId, mutant};
use seam::record::{Change, ExecutedBlocks, Forgotten, ReplicaRecord, oldest};

/// How the records area is divided: half of it is for dirty sets, a 32nd for the groups themselves,
/// and a fixed part for clients whose writes were forgotten in all groups. The rest is for executed
/// writes, and what these leave is for clients whose writes were forgotten in single groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Number of units that dirty sets may name.
    pub units: usize,
    /// Number of executed writes that may be listed.
    pub executed: usize,
    /// Number of entries that may cover forgotten writes of single groups.
    pub single: usize,
}

impl Room {
    /// Returns the room in an area of `area` bytes, for at most `units` and `executed`.
    pub(crate) fn of(area: u64, units: usize, executed: usize) -> Room {
        let area = area as usize;
        let forgotten = (Forgotten::MOST + 1) * size_of::<DiskExecuted>();
        let rest = (area / 2 - area / 32).saturating_sub(forgotten);
        let entries = rest / size_of::<DiskExecuted>();
        Room {
            units: units.min(area / 2 / size_of::<DiskBlocks>()),
            executed: executed.min(entries),
            single: executed.min(entries.saturating_sub(executed)),
        }
    }
}

/// The records of all groups.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    groups: BTreeMap<GroupId, ReplicaRecord>,
    room: Room,
    /// Number of units in all dirty sets.
    units: usize,
    /// Number of executed writes in all lists.
    listed: usize,
    /// How many executed writes were ever noted.
    noted: u64,
    forgotten: Forgotten,
}

impl Groups {
    /// Makes an empty set of records that stays within `room`.
    pub(crate) fn new(room: Room) -> Groups {
        let forgotten = Forgotten::new(room.single);
        Groups { groups: BTreeMap::new(), room, units: 0, listed: 0, noted: 0, forgotten }
    }

    /// Returns the number of executed writes that are listed, in all groups.
    pub(crate) fn executed_len(&self) -> usize {
        self.listed
    }

    /// Returns the upper bound of [`Groups::executed_len`].
    pub(crate) fn executed_most(&self) -> usize {
        self.room.executed
    }

    /// Returns the number of units that all dirty sets name.
    pub(crate) fn dirty_len(&self) -> usize {
        self.units
    }

    /// Returns the upper bound of [`Groups::dirty_len`].
    pub(crate) fn dirty_most(&self) -> usize {
        self.room.units
    }

    /// Returns what covers executed writes that are no longer listed.
    pub(crate) fn forgotten(&self) -> &Forgotten {
        &self.forgotten
    }

    /// Edits a group's record, and counts what is in it before and after. `edit` gets the number of
    /// units for which there is room in the group's dirty set.
    fn edit(&mut self, id: GroupId, edit: impl FnOnce(&mut ReplicaRecord, usize, &mut u64)) {
        let record = self.groups.entry(id).or_default();
        let (units, listed) = (record.dirty.units(), record.executed.len());
        let counted = self.units >= units && self.listed >= listed;
        assert!(counted, "the sums have the units and writes of each group");
        (self.units, self.listed) = (self.units - units, self.listed - listed);
        edit(record, self.room.units.saturating_sub(self.units), &mut self.noted);
        self.units += record.dirty.units();
        self.listed += record.executed.len();
    }

    /// Applies a write that became durable.
    pub(crate) fn wrote(&mut self, w: &Write) {
        if w.is_marked() {
            self.edit(w.group, |record, most, noted| {
                record.wrote(w.unit, w.touched(), &w.marks, most, noted);
            });
            self.bound();
        }
    }

    /// Applies a change that became durable. The caller takes care of the content.
    pub(crate) fn change(&mut self, id: GroupId, change: &Change) {
        self.edit(id, |record, most, noted| record.change(change, most, noted));
        if let Change::Forgotten(list) = change {
            for entry in list {
                self.forgotten.take(id, entry);
            }
        }
        self.bound();
    }

    /// Forgets executed writes if there is no room for all of them: a quarter at once, because it
    /// has to look at all of them.
    fn bound(&mut self) {
        if self.listed > self.room.executed && !mutant::on(Mutant::EndlessList) {
            self.forget_oldest(self.listed - self.room.executed * 3 / 4);
        }
    }

    fn forget_oldest(&mut self, count: usize) {
        let noted = self.groups.values().flat_map(|record| record.executed.noted()).collect();
        let Some(last) = oldest(noted, count) else { return };
        for (id, record) in &mut self.groups {
            let listed = record.executed.len();
            assert!(self.listed >= listed, "the sum has the writes of each group");
            self.listed -= listed;
            record.executed.forget_until(last, *id, &mut self.forgotten);
            self.listed += record.executed.len();
        }
    }

    /// Removes a dropped volume from the dirty sets.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) {
        for record in self.groups.values_mut() {
            let units = record.dirty.units();
            assert!(self.units >= units, "the sum has the units of each group");
            self.units -= units;
            record.dirty.drop_volume(volume);
            self.units += record.dirty.units();
        }
    }

    /// Returns all records, for replication.
    pub(crate) fn records(&self) -> Vec<(GroupId, ReplicaRecord)> {
        self.groups.iter().map(|(id, record)| (*id, record.clone())).collect()
    }

    /// Encodes all records for a records area of `area` bytes.
    ///
    /// The result is longer only if the groups alone don't fit, which takes more than twice
    /// [`base::MAX_REPLICAS`] of them.
    pub(crate) fn encode(&mut self, area: u64) -> Vec<u8> {
        self.fit(area as usize);
        let mut bytes = Vec::with_capacity(self.encoded_len());
        let mut everywhere: Vec<ExecutedBlocks> = self.forgotten.everywhere().collect();
        for (id, group) in &self.groups {
            // Entries that hold for all groups lie with the first group.
            let mut executed = core::mem::take(&mut everywhere);
            executed.extend(self.forgotten.here(*id));
            executed.extend(group.executed.by_client());
            let len = size_of::<GroupHead>()
                + group.dirty.units() * size_of::<DiskBlocks>()
                + executed.len() * size_of::<DiskExecuted>();
            let start = bytes.len();
            bytes.resize(start + len, 0);
            let mut to = Writer::new(&mut bytes[start..]);
            to.add(&GroupHead {
                group: id.0.into(),
                flags: (u32::from(group.all_dirty) | u32::from(group.joiner) << 1).into(),
                acted: group.acted.0.into(),
                base: group.base.0.into(),
                dirty: (group.dirty.units() as u32).into(),
                executed: (executed.len() as u32).into(),
            });
            group.dirty.iter().for_each(|(unit, blocks)| to.add(&disk_blocks(unit, blocks)));
            executed.iter().for_each(|e| to.add(&disk_executed(e)));
        }
        bytes
    }

    fn encoded_len(&self) -> usize {
        self.groups.len() * size_of::<GroupHead>()
            + self.units * size_of::<DiskBlocks>()
            + (self.listed + self.forgotten.len()) * size_of::<DiskExecuted>()
    }

    /// Makes room when there are more groups than their share of the area holds.
    ///
    /// First, entries of single groups become entries of all groups. Then groups without content
    /// here are removed: their epoch is not needed, because the MDM raises it in every group that
    /// it gives to an incarnation of this device. Then executed writes are forgotten, dirty sets
    /// become "all", and in the end one entry covers all earlier clients.
    fn fit(&mut self, area: usize) {
        self.forgotten.set_room(if self.encoded_len() > area { 0 } else { self.room.single });
        let excess = |all: &Groups| all.encoded_len().saturating_sub(area);
        if excess(self) > 0 {
            let most = self.groups.len()
                - excess(self).div_ceil(size_of::<GroupHead>()).min(self.groups.len());
            let newest = self.groups.iter().max_by_key(|(_, g)| g.acted).map(|(id, _)| *id);
            let mut left = self.groups.len();
            self.groups.retain(|id, group| {
                let stays = left <= most || !group.is_vacant() || Some(*id) == newest;
                left -= usize::from(!stays);
                stays
            });
        }
        if excess(self) > 0 {
            self.forget_oldest(excess(self).div_ceil(size_of::<DiskExecuted>()));
        }
        if excess(self) == 0 {
            return;
        }
        let sizes = self.groups.iter().map(|(id, record)| (record.dirty.units(), *id));
        let mut largest: Vec<(usize, GroupId)> = sizes.filter(|(units, _)| *units > 0).collect();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        for (units, id) in largest {
            let record = self.groups.get_mut(&id).expect("it was listed");
            record.all_differs();
            assert!(self.units >= units, "the sum has the units of each group");
            self.units -= units;
            if excess(self) == 0 {
                return;
            }
        }
        self.forgotten.merge();
    }

    /// Decodes the result of [`Groups::encode`]. `None`: these bytes are something else.
    pub(crate) fn decode(bytes: &[u8], room: Room) -> Option<Groups> {
        let mut all = Groups::new(room);
        let mut executed = Vec::new();
        let mut from = Reader(bytes);
        while !from.0.is_empty() {
            let head = from.take::<GroupHead>()?;
            let id = GroupId(head.group.get());
            for _ in 0..head.dirty.get() {
                let (unit, blocks) = blocks_of(from.take::<DiskBlocks>()?);
                all.edit(id, |record, most, _| record.differs(unit, blocks, most));
            }
            let group = all.groups.entry(id).or_default();
            (group.acted, group.base) = (Epoch(head.acted.get()), Epoch(head.base.get()));
            group.joiner = head.flags.get() & 2 == 2;
            for _ in 0..head.executed.get() {
                let entry = executed_of(from.take::<DiskExecuted>()?);
                if !all.forgotten.take(id, &entry) {
                    executed.push((id, entry));
                }
            }
            if head.flags.get() & 1 == 1 {
                all.edit(id, |record, _, _| record.all_differs());
            }
        }
        // The order in which they were noted is not stored, so writes of the earliest incarnations
        // count as the oldest. An area of an earlier build may list more than there is room for.
        executed.sort_unstable_by_key(|(_, e)| (e.write.incarnation, e.write.seq));
        for (id, e) in executed {
            all.edit(id, |record, _, noted| {
                record.executed.record(e.write, e.unit, e.blocks, noted);
            });
        }
        all.bound();
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use base::{BlockSet, Incarnation, SdcId, UnitKey};
    use seam::{ClientWrite, Origin};

    const G: GroupId = GroupId(3);
    const AREA: u64 = 1 << 20;
    const ROOM: Room = Room { units: 100, executed: 100, single: 10 };
    const TWO: Room = Room { units: 2, executed: 100, single: 10 };

    fn unit(index: u32) -> UnitKey {
        UnitKey { volume: VolumeId(1), index }
    }

    fn dirty(index: u32, range: core::ops::Range<u32>) -> Change {
        Change::Dirty(vec![(unit(index), BlockSet::from_range(range))])
    }

    /// Returns a random history of one group.
    fn history(prng: &mut base::Prng) -> Vec<Step> {
        let blocks = |prng: &mut base::Prng| {
            let first = prng.below(8) as u32;
            BlockSet::from_range(first..first + 1 + prng.below(4) as u32)
        };
        // Incarnations and floors rise, like those of clients.
        let write = |prng: &mut base::Prng, at: u64| {
            let (floor, incarnation) = (at / 4, Incarnation(1 + at / 15));
            let seq = floor + prng.below(9);
            ClientWrite { sdc: SdcId(1 + prng.below(2) as u32), incarnation, seq, floor }
        };
        let step = |prng: &mut base::Prng, at: u64| {
            let (unit, set) = (unit(prng.below(2) as u32), blocks(prng));
            let executed = ExecutedBlocks { write: write(prng, at), unit, blocks: set };
            let origin = match prng.below(3) {
                0 => Origin::Unnamed,
                1 => Origin::Client(executed.write),
                _ => Origin::Copied(alloc::rc::Rc::new([executed])),
            };
            match prng.below(12) {
                0 => Step::Change(Change::Clean(vec![(unit, set)])),
                1 if prng.chance(0.5) => Step::Change(Change::ActedAsJoiner(Epoch(prng.below(9)))),
                1 => Step::Change(Change::Acted(Epoch(prng.below(9)))),
                2 => Step::Change(Change::Executed(vec![executed])),
                3 if prng.chance(0.3) => Step::Change(Change::CleanAll),
                4 if prng.chance(0.3) => Step::Change(Change::Wipe),
                _ => {
                    let run = set.first_run().unwrap();
                    let marks = seam::WriteMetadata { dirty: prng.chance(0.5), origin };
                    let (first, end, parts) = (run.start, run.end, Vec::new());
                    Step::Write(Write { group: G, unit, first, end, marks, parts })
                }
            }
        };
        (0..30).map(|at| step(prng, at)).collect()
    }

    enum Step {
        Write(Write),
        Change(Change),
    }

    fn apply(groups: &mut Groups, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Write(write) => groups.wrote(write),
                Step::Change(change) => groups.change(G, change),
            }
        }
    }

    #[test]
    fn replaying_over_a_state_that_is_ahead_gives_the_same_state() {
        let mut prng = base::Prng::new(1);
        for _ in 0..2000 {
            let steps = history(&mut prng);
            let mut straight = Groups::new(ROOM);
            apply(&mut straight, &steps);
            let begin = prng.below(steps.len() as u64) as usize;
            let ahead = begin + prng.below((steps.len() - begin) as u64 + 1) as usize;
            let mut fuzzy = Groups::new(ROOM);
            apply(&mut fuzzy, &steps[..ahead]);
            let mut fuzzy = Groups::decode(&fuzzy.encode(AREA), ROOM).unwrap();
            apply(&mut fuzzy, &steps[begin..]);
            assert_eq!(fuzzy.records(), straight.records(), "{begin} {ahead}");
        }
    }

    #[test]
    fn entries_without_room_are_forgotten_oldest_first_and_covered() {
        let write =
            |sdc, seq| ClientWrite { sdc: SdcId(sdc), incarnation: Incarnation(7), seq, floor: 1 };
        let entry = |sdc, seq| ExecutedBlocks {
            write: write(sdc, seq),
            unit: unit(0),
            blocks: BlockSet::from_range(0..1),
        };
        let group = |seq| GroupId(4 + seq as u32);
        for single in [0, 20, 200] {
            let room = Room { units: 10, executed: 8, single };
            let mut groups = Groups::new(room);
            for seq in 1..=100 {
                groups.change(G, &Change::Executed(vec![entry(1, seq), entry(2, seq)]));
                groups.change(group(seq), &Change::Executed(vec![entry(1, seq)]));
            }
            for _ in 0..2 {
                let list = groups.records().into_iter().flat_map(|(_, r)| r.executed.entries());
                let list: Vec<_> = list.map(|e| (e.write.sdc, e.write.seq)).collect();
                assert!((6..=8).contains(&list.len()), "{list:?}");
                assert!(list.contains(&(SdcId(1), 100)) && list.contains(&(SdcId(2), 100)));
                let forgotten = |id, seq| groups.forgotten().covers(id, write(1, seq));
                let known = |seq| list.contains(&(SdcId(1), seq)) || forgotten(group(seq), seq);
                assert!((1..=100).all(known) && !forgotten(group(100), 101));
                assert!(groups.forgotten().len() <= single + 1);
                // No write of this group itself was forgotten.
                let elsewhere = (1..=100).filter(|seq| forgotten(G, *seq)).count();
                assert!(if single < 200 { elsewhere > 60 } else { elsewhere == 0 });
                groups = Groups::decode(&groups.encode(AREA), room).unwrap();
            }
        }
    }

    /// Builds that kept one number per client, for all groups, wrote such entries.
    #[test]
    fn a_number_of_an_earlier_build_holds_for_all_groups() {
        let marker = |seq| ExecutedBlocks {
            write: ClientWrite { sdc: SdcId(1), incarnation: Incarnation(7), seq, floor: 0 },
            unit: UnitKey::default(),
            blocks: BlockSet::EMPTY,
        };
        let mut groups = Groups::new(ROOM);
        groups.change(G, &Change::Forgotten(vec![marker(10)]));
        for _ in 0..2 {
            let covers = |id, seq| groups.forgotten().covers(id, marker(seq).write);
            assert!(covers(G, 9) && covers(GroupId(9), 9) && !covers(G, 10));
            groups = Groups::decode(&groups.encode(AREA), ROOM).unwrap();
        }
    }

    /// Servers refuse this number, but an earlier build may have logged it.
    #[test]
    fn the_highest_number_there_is_can_be_forgotten_and_replayed() {
        let room = Room { units: 10, executed: 8, single: 0 };
        let entry = |seq| ExecutedBlocks {
            write: ClientWrite { sdc: SdcId(1), incarnation: Incarnation(7), seq, floor: 0 },
            unit: unit(0),
            blocks: BlockSet::from_range(0..1),
        };
        let mut groups = Groups::new(room);
        groups.change(G, &Change::Executed(vec![entry(u64::MAX)]));
        groups = Groups::decode(&groups.encode(AREA), room).unwrap();
        for seq in 1..=20 {
            groups.change(GroupId(4 + seq as u32), &Change::Executed(vec![entry(seq)]));
        }
        let groups = Groups::decode(&groups.encode(AREA), room).unwrap();
        assert!(groups.executed_len() <= 8 && groups.forgotten().covers(G, entry(20).write));
    }

    #[test]
    fn a_short_area_keeps_less_and_stays_correct() {
        let mut groups = Groups::new(Room { units: 50, executed: 50, single: 5 });
        let write = |seq| ClientWrite { sdc: SdcId(1), incarnation: Incarnation(7), seq, floor: 1 };
        for group in 1..=40 {
            groups.change(GroupId(group), &Change::Acted(Epoch(u64::from(group))));
        }
        for seq in 1..=20 {
            let (unit, blocks) = (unit(0), BlockSet::from_range(0..1));
            let executed = vec![ExecutedBlocks { write: write(seq), unit, blocks }];
            let id = GroupId(30 + seq as u32);
            groups.change(id, &Change::Executed(executed));
            groups.change(id, &dirty(1, 0..1));
        }
        let whole = groups.encode(AREA);
        assert_eq!(Groups::decode(&whole, groups.room).unwrap().records(), groups.records());
        for area in [whole.len() - 1, 2600, 1500, 720] {
            let bytes = groups.encode(area as u64);
            assert!(bytes.len() <= area, "{} of {area}", bytes.len());
            let again = Groups::decode(&bytes, groups.room).unwrap();
            let records: BTreeMap<_, _> = again.records().into_iter().collect();
            for seq in 1..=20 {
                let id = GroupId(30 + seq as u32);
                let record = &records[&id];
                assert!(!record.executed.is_empty() || again.forgotten().covers(id, write(seq)));
                assert!(!record.dirty.is_empty() || record.all_dirty);
            }
            assert!(records.values().any(|r| r.acted == Epoch(40)), "the newest epoch");
        }
    }

    #[test]
    fn the_smallest_area_takes_every_replica_that_a_device_may_have() {
        let room = Room::of(AREA, 1 << 15, 1 << 16);
        let mut groups = Groups::new(room);
        let entry = |sdc, seq, blocks| ExecutedBlocks {
            write: ClientWrite { sdc: SdcId(sdc), incarnation: Incarnation(7), seq, floor: 0 },
            unit: unit(0),
            blocks,
        };
        let clients = Forgotten::MOST as u32;
        let lost = (1..=clients).map(|sdc| entry(sdc, 9, BlockSet::EMPTY)).collect();
        groups.change(G, &Change::Forgotten(lost));
        let add = |groups: &mut Groups, ids: core::ops::Range<u64>| {
            for id in ids {
                let (id, one) = (GroupId(id as u32), BlockSet::from_range(0..1));
                let change = Change::Executed(vec![entry(1 + id.0 % clients, 10, one)]);
                [Change::Base(Epoch(1)), change, dirty(id.0, 0..1)]
                    .iter()
                    .for_each(|c| groups.change(id, c));
            }
        };
        let most = base::MAX_REPLICAS;
        add(&mut groups, 1..most + 1);
        assert!(groups.encode(AREA).len() <= AREA as usize);
        let again = Groups::decode(&groups.encode(AREA), room).unwrap();
        assert_eq!(again.records().len() as u64, most);
        assert_eq!(again.forgotten().len() as u32, clients, "by name");
        // Almost twice as many still fit. Then one entry covers all clients.
        add(&mut groups, most + 1..2 * most - 8);
        assert!(groups.encode(AREA).len() <= AREA as usize);
        assert!(
            (1..=clients)
                .all(|sdc| groups.forgotten().covers(G, entry(sdc, 8, BlockSet::EMPTY).write))
        );
    }

    #[test]
    fn records_read_back_and_too_large_a_dirty_set_becomes_everything() {
        let mut groups = Groups::new(TWO);
        let write = ClientWrite { sdc: SdcId(1), incarnation: Incarnation(2), seq: 9, floor: 4 };
        let entry = ExecutedBlocks { write, unit: unit(0), blocks: BlockSet::from_range(1..3) };
        for change in [Change::Acted(Epoch(7)), dirty(0, 0..4), Change::Executed(vec![entry])] {
            groups.change(G, &change);
        }
        let again = Groups::decode(&groups.encode(AREA), TWO).unwrap();
        assert_eq!(again.records(), groups.records());
        assert_eq!(again.records()[0].1.executed.entries(), [entry]);
        groups.change(G, &dirty(1, 0..1));
        groups.change(G, &dirty(1, 5..6));
        assert!(!groups.records()[0].1.all_dirty);
        groups.change(G, &dirty(2, 0..1));
        let record = &Groups::decode(&groups.encode(AREA), TWO).unwrap().records()[0].1;
        assert!(record.all_dirty && record.dirty.is_empty() && record.acted == Epoch(7));
        groups.change(G, &Change::Clean(vec![(unit(0), BlockSet::FULL)]));
        assert!(groups.records()[0].1.all_dirty);
        groups.change(G, &Change::CleanAll);
        assert!(!groups.records()[0].1.all_dirty);
    }
}
