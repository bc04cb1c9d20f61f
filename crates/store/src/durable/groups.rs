//! What replication must remember per group (rules R2, R5, R8): epochs, the dirty set, executed writes.
//!
//! Invariants: applying a history whose first part is in the state already gives the same state as
//! applying its rest; the dirty set never lacks a block that a durable record added and none took out.
//! When it has no room any more it becomes "all of the group", never less.

use super::format::{DiskBlocks, DiskExecuted, GroupHead};
use super::record::{Reader, Write, Writer, blocks_of, disk_blocks, disk_executed, executed_of};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use base::{BlockSet, Epoch, GroupId, Incarnation, SdcId, UnitKey, VolumeId};
use seam::{Change, ClientWrite, ExecutedBlocks, GroupRecord, Origin};

/// The executed writes of one client's newest life.
#[derive(Clone, Debug, Default)]
struct Client {
    incarnation: Incarnation,
    floor: u64,
    writes: BTreeMap<(u64, UnitKey), BlockSet>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    acted: Epoch,
    base: Epoch,
    dirty: BTreeMap<UnitKey, BlockSet>,
    all_dirty: bool,
    clients: BTreeMap<SdcId, Client>,
}

/// The records of all groups.
#[derive(Clone, Debug)]
pub struct Groups {
    groups: BTreeMap<GroupId, Group>,
    /// Units in dirty sets, and how many there may be.
    units: usize,
    most: usize,
}

impl Group {
    fn executed(&mut self, write: ClientWrite, unit: UnitKey, blocks: BlockSet) {
        let client = self.clients.entry(write.sdc).or_default();
        if client.incarnation > write.incarnation {
            return;
        }
        if client.incarnation < write.incarnation {
            *client = Client { incarnation: write.incarnation, ..Client::default() };
        }
        client.floor = client.floor.max(write.floor);
        let floor = client.floor;
        while client.writes.first_key_value().is_some_and(|((seq, _), _)| *seq < floor) {
            client.writes.pop_first();
        }
        if write.seq >= floor && !blocks.is_empty() {
            client.writes.entry((write.seq, unit)).or_default().insert(blocks);
        }
    }

    /// These blocks now have the content of a replica whose list is `theirs`.
    fn copied(&mut self, unit: UnitKey, blocks: BlockSet, theirs: &[ExecutedBlocks]) {
        for client in self.clients.values_mut() {
            let here = client.writes.iter_mut().filter(|((_, u), _)| *u == unit);
            here.for_each(|(_, have)| have.remove(blocks));
            client.writes.retain(|_, have| !have.is_empty());
        }
        for entry in theirs.iter().filter(|e| e.unit == unit) {
            let common = entry.blocks.and(blocks);
            if !common.is_empty() {
                self.executed(entry.write, unit, common);
            }
        }
    }

    fn list(&self) -> Vec<ExecutedBlocks> {
        let entries = self.clients.iter().flat_map(|(sdc, c)| {
            c.writes.iter().map(|((seq, unit), blocks)| ExecutedBlocks {
                write: ClientWrite {
                    sdc: *sdc,
                    incarnation: c.incarnation,
                    seq: *seq,
                    floor: c.floor,
                },
                unit: *unit,
                blocks: *blocks,
            })
        });
        entries.collect()
    }
}

/// A client's life and floor, as an entry without blocks: they count also when no write is left.
fn marker(sdc: SdcId, c: &Client) -> ExecutedBlocks {
    let write = ClientWrite { sdc, incarnation: c.incarnation, seq: c.floor, floor: c.floor };
    ExecutedBlocks { write, unit: UnitKey::default(), blocks: BlockSet::EMPTY }
}

impl Groups {
    /// No group; at most `most` units will be in dirty sets.
    pub fn new(most: usize) -> Groups {
        Groups { groups: BTreeMap::new(), units: 0, most }
    }

    /// A write became durable.
    pub fn wrote(&mut self, w: &Write) {
        if !w.is_marked() {
            return;
        }
        if w.marks.dirty {
            self.insert(w.group, w.unit, w.touched());
        }
        let group = self.groups.entry(w.group).or_default();
        match &w.marks.origin {
            Origin::Unnamed => {}
            Origin::Client(write) => group.executed(*write, w.unit, w.touched()),
            Origin::Copied(theirs) => group.copied(w.unit, w.touched(), theirs),
        }
    }

    /// A change became durable; the content is the caller's business.
    pub fn change(&mut self, id: GroupId, change: &Change) {
        let group = self.groups.entry(id).or_default();
        match change {
            Change::Acted(epoch) => group.acted = *epoch,
            Change::Base(epoch) => group.base = *epoch,
            Change::Dirty(list) => list.iter().for_each(|(u, b)| self.insert(id, *u, *b)),
            Change::Clean(list) => list.iter().for_each(|(u, b)| self.remove(id, *u, *b)),
            Change::CleanAll => self.clean(id),
            Change::Executed(list) => {
                group.clients.clear();
                list.iter().for_each(|e| group.executed(e.write, e.unit, e.blocks));
            }
            Change::Wipe => {
                group.base = Epoch(0);
                group.clients.clear();
                self.clean(id);
            }
        }
    }

    /// A volume is gone.
    pub fn drop_volume(&mut self, volume: VolumeId) {
        for group in self.groups.values_mut() {
            let before = group.dirty.len();
            group.dirty.retain(|unit, _| unit.volume != volume);
            self.units -= before - group.dirty.len();
        }
    }

    fn insert(&mut self, id: GroupId, unit: UnitKey, blocks: BlockSet) {
        let group = self.groups.entry(id).or_default();
        if group.all_dirty || blocks.is_empty() {
            return;
        }
        if self.units >= self.most && !group.dirty.contains_key(&unit) {
            self.units -= group.dirty.len();
            group.dirty.clear();
            group.all_dirty = true;
            return;
        }
        let before = group.dirty.len();
        group.dirty.entry(unit).or_default().insert(blocks);
        self.units += group.dirty.len() - before;
    }

    fn remove(&mut self, id: GroupId, unit: UnitKey, blocks: BlockSet) {
        let group = self.groups.entry(id).or_default();
        if let Some(set) = group.dirty.get_mut(&unit) {
            set.remove(blocks);
            if set.is_empty() {
                group.dirty.remove(&unit);
                self.units -= 1;
            }
        }
    }

    fn clean(&mut self, id: GroupId) {
        let group = self.groups.entry(id).or_default();
        self.units -= group.dirty.len();
        group.dirty.clear();
        group.all_dirty = false;
    }

    /// All of it, for the replication.
    pub fn records(&self) -> Vec<(GroupId, GroupRecord)> {
        let record = |(id, g): (&GroupId, &Group)| {
            let record = GroupRecord {
                acted: g.acted,
                base: g.base,
                dirty: g.dirty.clone(),
                all_dirty: g.all_dirty,
                executed: g.list(),
            };
            (*id, record)
        };
        self.groups.iter().map(record).collect()
    }

    /// All of it, as bytes for the area of records.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (id, group) in &self.groups {
            let mut executed = group.list();
            executed.extend(group.clients.iter().map(|(sdc, c)| marker(*sdc, c)));
            let len = size_of::<GroupHead>()
                + group.dirty.len() * size_of::<DiskBlocks>()
                + executed.len() * size_of::<DiskExecuted>();
            let start = bytes.len();
            bytes.resize(start + len, 0);
            let mut to = Writer::new(&mut bytes[start..]);
            to.add(&GroupHead {
                group: id.0.into(),
                flags: u32::from(group.all_dirty).into(),
                acted: group.acted.0.into(),
                base: group.base.0.into(),
                dirty: (group.dirty.len() as u32).into(),
                executed: (executed.len() as u32).into(),
            });
            group.dirty.iter().for_each(|(unit, blocks)| to.add(&disk_blocks(*unit, *blocks)));
            executed.iter().for_each(|e| to.add(&disk_executed(e)));
        }
        bytes
    }

    /// What [`Groups::encode`] wrote; `None` when these bytes are something else.
    pub fn decode(bytes: &[u8], most: usize) -> Option<Groups> {
        let mut all = Groups::new(most);
        let mut from = Reader(bytes);
        while !from.0.is_empty() {
            let head = from.take::<GroupHead>()?;
            let id = GroupId(head.group.get());
            for _ in 0..head.dirty.get() {
                let (unit, blocks) = blocks_of(from.take::<DiskBlocks>()?);
                all.insert(id, unit, blocks);
            }
            let group = all.groups.entry(id).or_default();
            (group.acted, group.base) = (Epoch(head.acted.get()), Epoch(head.base.get()));
            for _ in 0..head.executed.get() {
                let e = executed_of(from.take::<DiskExecuted>()?);
                group.executed(e.write, e.unit, e.blocks);
            }
            if head.flags.get() & 1 == 1 {
                all.clean(id);
                all.groups.entry(id).or_default().all_dirty = true;
            }
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const G: GroupId = GroupId(3);

    fn unit(index: u32) -> UnitKey {
        UnitKey { volume: VolumeId(1), index }
    }

    fn dirty(index: u32, range: core::ops::Range<u32>) -> Change {
        Change::Dirty(vec![(unit(index), BlockSet::from_range(range))])
    }

    /// A history of one group at random, and the state that it leaves.
    fn history(prng: &mut base::Prng) -> Vec<Step> {
        let blocks = |prng: &mut base::Prng| {
            let first = prng.below(8) as u32;
            BlockSet::from_range(first..first + 1 + prng.below(4) as u32)
        };
        let write = |prng: &mut base::Prng| {
            let seq = prng.range(1, 12);
            let floor = if prng.chance(0.2) { seq.saturating_sub(3) } else { 0 };
            let incarnation = Incarnation(prng.range(1, 2));
            ClientWrite { sdc: SdcId(prng.below(2) as u32), incarnation, seq, floor }
        };
        let step = |prng: &mut base::Prng| {
            let (unit, set) = (unit(prng.below(2) as u32), blocks(prng));
            let executed = ExecutedBlocks { write: write(prng), unit, blocks: set };
            let origin = match prng.below(3) {
                0 => Origin::Unnamed,
                1 => Origin::Client(executed.write),
                _ => Origin::Copied(alloc::rc::Rc::new([executed])),
            };
            match prng.below(12) {
                0 => Step::Change(Change::Clean(vec![(unit, set)])),
                1 => Step::Change(Change::Acted(Epoch(prng.below(9)))),
                2 => Step::Change(Change::Executed(vec![executed])),
                3 if prng.chance(0.3) => Step::Change(Change::CleanAll),
                4 if prng.chance(0.3) => Step::Change(Change::Wipe),
                _ => {
                    let run = set.first_run().unwrap();
                    let marks = seam::Marks { dirty: prng.chance(0.5), origin };
                    let (first, end, parts) = (run.start, run.end, Vec::new());
                    Step::Write(Write { group: G, unit, first, end, marks, parts })
                }
            }
        };
        (0..30).map(|_| step(prng)).collect()
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
            let mut straight = Groups::new(100);
            apply(&mut straight, &steps);
            let begin = prng.below(steps.len() as u64) as usize;
            let ahead = begin + prng.below((steps.len() - begin) as u64 + 1) as usize;
            let mut fuzzy = Groups::new(100);
            apply(&mut fuzzy, &steps[..ahead]);
            let mut fuzzy = Groups::decode(&fuzzy.encode(), 100).unwrap();
            apply(&mut fuzzy, &steps[begin..]);
            assert_eq!(fuzzy.records(), straight.records(), "{begin} {ahead}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_too_much_becomes_all() {
        let mut groups = Groups::new(2);
        let write = ClientWrite { sdc: SdcId(1), incarnation: Incarnation(2), seq: 9, floor: 4 };
        let entry = ExecutedBlocks { write, unit: unit(0), blocks: BlockSet::from_range(1..3) };
        for change in [Change::Acted(Epoch(7)), dirty(0, 0..4), Change::Executed(vec![entry])] {
            groups.change(G, &change);
        }
        let again = Groups::decode(&groups.encode(), 2).unwrap();
        assert_eq!(again.records(), groups.records());
        assert_eq!(again.records()[0].1.executed, [entry]);
        groups.change(G, &dirty(1, 0..1));
        groups.change(G, &dirty(1, 5..6));
        assert!(!groups.records()[0].1.all_dirty);
        groups.change(G, &dirty(2, 0..1));
        let record = &Groups::decode(&groups.encode(), 2).unwrap().records()[0].1;
        assert!(record.all_dirty && record.dirty.is_empty() && record.acted == Epoch(7));
        groups.change(G, &Change::Clean(vec![(unit(0), BlockSet::FULL)]));
        assert!(groups.records()[0].1.all_dirty);
        groups.change(G, &Change::CleanAll);
        assert!(!groups.records()[0].1.all_dirty);
    }
}
