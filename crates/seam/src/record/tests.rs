//! Tests of records: tables, and random histories against a list that is as plain as possible.

use super::*;
use alloc::collections::BTreeMap;
use base::{GroupId, Prng, VolumeId};

const G: GroupId = GroupId(3);
const UNIT: UnitKey = UnitKey { volume: VolumeId(1), index: 0 };

fn write(incarnation: u64, seq: u64, floor: u64) -> ClientWrite {
    ClientWrite { sdc: SdcId(1), incarnation: Incarnation(incarnation), seq, floor }
}

fn by(sdc: u32, write: ClientWrite) -> ClientWrite {
    ClientWrite { sdc: SdcId(sdc), ..write }
}

fn blocks(range: core::ops::Range<u32>) -> BlockSet {
    BlockSet::from_range(range)
}

/// The model of a list: per client the newest incarnation, its floor, and blocks by write and unit.
#[derive(Clone, Default)]
struct Plain(BTreeMap<SdcId, (Incarnation, u64, Entries)>);

type Entries = BTreeMap<(u64, UnitKey), BlockSet>;

impl Plain {
    fn record(&mut self, write: ClientWrite, unit: UnitKey, blocks: BlockSet) {
        if blocks.is_empty() {
            return;
        }
        let new = (write.incarnation, 0, Entries::new());
        let client = self.0.entry(write.sdc).or_insert_with(|| new.clone());
        if client.0 > write.incarnation {
            return;
        }
        if client.0 < write.incarnation {
            *client = new;
        }
        client.1 = client.1.max(write.floor);
        client.2.entry((write.seq, unit)).or_default().insert(blocks);
        self.tidy();
    }

    fn overwrite(&mut self, unit: UnitKey, blocks: BlockSet, theirs: &[ExecutedBlocks]) {
        for (_, _, entries) in self.0.values_mut() {
            let here = entries.iter_mut().filter(|((_, u), _)| *u == unit);
            here.for_each(|(_, set)| set.remove(blocks));
        }
        self.tidy();
        let theirs = theirs.iter().filter(|e| e.unit == unit);
        theirs.for_each(|e| self.record(e.write, unit, e.blocks.and(blocks)));
    }

    fn tidy(&mut self) {
        self.0.retain(|_, (_, floor, entries)| {
            entries.retain(|(seq, _), set| *seq >= *floor && !set.is_empty());
            !entries.is_empty()
        });
    }

    fn list(&self) -> Vec<ExecutedBlocks> {
        let clients = self.0.iter().flat_map(|(sdc, (incarnation, floor, entries))| {
            entries.iter().map(move |((seq, unit), set)| {
                let (sdc, incarnation, floor) = (*sdc, *incarnation, *floor);
                let write = ClientWrite { sdc, incarnation, seq: *seq, floor };
                ExecutedBlocks { write, unit: *unit, blocks: *set }
            })
        });
        clients.collect()
    }
}

enum Step {
    Record(ExecutedBlocks),
    Overwrite(UnitKey, BlockSet, Vec<ExecutedBlocks>),
}

/// Returns a random history. Incarnations and floors rise, like those of clients, but writes come
/// in any order, and some more than once.
fn history(prng: &mut Prng) -> Vec<Step> {
    let some = |prng: &mut Prng| {
        let first = prng.below(8) as u32;
        blocks(first..first + prng.below(5) as u32)
    };
    let entry = |prng: &mut Prng, at: u64| {
        let (floor, incarnation) = (at / 4, 1 + at / 25);
        let named = by(1 + prng.below(3) as u32, write(incarnation, floor + prng.below(9), floor));
        let unit = UnitKey { index: prng.below(2) as u32, ..UNIT };
        ExecutedBlocks { write: named, unit, blocks: some(prng) }
    };
    let step = |at: u64| match prng.below(4) {
        0 => {
            let theirs = (0..prng.below(4)).map(|_| entry(prng, at)).collect();
            Step::Overwrite(UnitKey { index: prng.below(2) as u32, ..UNIT }, some(prng), theirs)
        }
        _ => Step::Record(entry(prng, at)),
    };
    (0..60).map(step).collect()
}

fn apply(list: &mut ExecutedList, steps: &[Step]) {
    let mut noted = 0;
    for step in steps {
        match step {
            Step::Record(e) => list.record(e.write, e.unit, e.blocks, &mut noted),
            Step::Overwrite(unit, set, theirs) => list.overwrite(*unit, *set, theirs, &mut noted),
        }
    }
}

#[test]
fn a_list_says_what_the_plain_one_says() {
    let mut prng = Prng::new(3);
    for _ in 0..500 {
        let (mut list, mut plain, mut noted) = (ExecutedList::default(), Plain::default(), 0);
        for step in history(&mut prng) {
            match &step {
                Step::Record(e) => {
                    list.record(e.write, e.unit, e.blocks, &mut noted);
                    plain.record(e.write, e.unit, e.blocks);
                }
                Step::Overwrite(unit, set, theirs) => {
                    list.overwrite(*unit, *set, theirs, &mut noted);
                    plain.overwrite(*unit, *set, theirs);
                }
            }
            let all = plain.list();
            assert_eq!(list.by_client(), all);
            assert_eq!((list.len(), list.noted().count()), (all.len(), all.len()));
            let mut here = list.of(UNIT, blocks(2..5));
            here.sort_by_key(|e| e.write);
            let common =
                |e: &ExecutedBlocks| ExecutedBlocks { blocks: e.blocks.and(blocks(2..5)), ..*e };
            let wanted = all.iter().filter(|e| e.unit == UNIT).map(common);
            assert_eq!(here, wanted.filter(|e| !e.blocks.is_empty()).collect::<Vec<_>>());
            for e in &all {
                assert!(list.blocks(e.write).contains_all(e.blocks));
                assert_eq!(list.life(e.write.sdc), Some(e.write.incarnation));
            }
        }
        assert_eq!(list, list.renoted(&mut 0));
        assert_eq!(list, ExecutedList::from_entries(list.entries(), &mut 0));
    }
}

#[test]
fn a_history_over_a_list_that_contains_a_part_of_it_gives_the_same_list() {
    let mut prng = Prng::new(4);
    for _ in 0..2000 {
        let steps = history(&mut prng);
        let mut straight = ExecutedList::default();
        apply(&mut straight, &steps);
        let begin = prng.below(steps.len() as u64) as usize;
        let ahead = begin + prng.below((steps.len() - begin) as u64 + 1) as usize;
        let mut fuzzy = ExecutedList::default();
        apply(&mut fuzzy, &steps[..ahead]);
        apply(&mut fuzzy, &steps[begin..]);
        assert_eq!(fuzzy.by_client(), straight.by_client(), "{begin} {ahead}");
    }
}

#[test]
fn a_list_has_exactly_the_writes_that_may_be_retried() {
    let (mut list, mut noted) = (ExecutedList::default(), 0);
    for seq in 1..10_000 {
        list.record(write(5, seq, seq.saturating_sub(4)), UNIT, blocks(0..1), &mut noted);
    }
    assert!((9_995..10_000).all(|seq| list.blocks(write(5, seq, 0)) == blocks(0..1)));
    assert_eq!((list.len(), list.widest()), (5, 5));
    assert_eq!(list.blocks(write(5, 9_994, 0)), BlockSet::FULL, "it was answered");
    assert!(list.blocks(write(5, 10_000, 0)).is_empty());
    list.record(write(6, 1, 1), UNIT, blocks(0..1), &mut noted);
    assert!(!list.blocks(write(6, 1, 1)).is_empty() && list.blocks(write(5, 9_999, 0)).is_empty());
    list.record(write(5, 2, 1), UNIT, blocks(0..1), &mut noted);
    assert!(list.blocks(write(5, 2, 1)).is_empty(), "an older life counts no more");
}

#[test]
fn copied_blocks_carry_the_executed_writes_of_the_source() {
    let (mut mine, mut theirs, mut noted) = (ExecutedList::default(), ExecutedList::default(), 0);
    mine.record(write(1, 7, 1), UNIT, blocks(0..4), &mut noted);
    mine.record(write(1, 8, 1), UNIT, blocks(4..8), &mut noted);
    theirs.record(write(1, 8, 1), UNIT, blocks(4..8), &mut noted);
    theirs.record(write(1, 9, 1), UNIT, blocks(2..6), &mut noted);
    mine.overwrite(UNIT, blocks(3..6), &theirs.of(UNIT, blocks(3..6)), &mut noted);
    assert_eq!(mine.blocks(write(1, 7, 1)), blocks(0..3));
    assert_eq!(mine.blocks(write(1, 8, 1)), blocks(4..8));
    assert_eq!(mine.blocks(write(1, 9, 1)), blocks(3..6));
}

#[test]
fn a_list_has_a_length_and_what_it_forgets_is_covered() {
    let (mut list, mut forgotten, mut noted) = (ExecutedList::default(), Forgotten::new(100), 0);
    let named = |seq: u64| by(1 + (seq % 3) as u32, write(4, seq, 1));
    for seq in 1..=5000 {
        list.record(named(seq), UNIT, blocks(0..1), &mut noted);
        list.bound(100, G, &mut forgotten);
        assert!(list.len() <= 100);
    }
    for seq in 1..=5000 {
        let listed = !list.blocks(named(seq)).is_empty();
        assert!(listed || seq < 4950 && forgotten.covers(G, named(seq)), "{seq}");
    }
    assert!(!forgotten.covers(G, write(4, 5001, 1)) && !forgotten.covers(G, write(5, 1, 1)));
}

/// Servers refuse this number, but a log that an earlier build wrote may contain it.
#[test]
fn the_highest_number_there_is_can_be_forgotten() {
    let (mut list, mut forgotten, mut noted) = (ExecutedList::default(), Forgotten::new(100), 0);
    list.record(write(4, u64::MAX, 0), UNIT, blocks(0..1), &mut noted);
    for seq in 2..=200 {
        list.record(by(2, write(4, seq, 0)), UNIT, blocks(0..1), &mut noted);
    }
    list.bound(100, G, &mut forgotten);
    assert!(forgotten.covers(G, write(4, u64::MAX - 1, 0)));
}

#[test]
fn a_window_that_is_full_takes_the_lowest_number_only() {
    let (mut list, mut noted) = (ExecutedList::default(), 0);
    (2..=9).for_each(|seq| list.record(write(4, seq, 1), UNIT, blocks(0..1), &mut noted));
    for (write, most, answer, why) in [
        (write(4, 10, 1), 8, Err(NotAdmitted::Full), "eight are listed"),
        (write(4, 10, 1), 9, Ok(()), "there is room"),
        (write(4, 1, 1), 8, Ok(()), "the one that the floor waits for"),
        (write(4, 10, 5), 8, Ok(()), "the floor has moved"),
        (by(2, write(4, 10, 1)), 8, Ok(()), "another client"),
        (write(5, 10, 1), 8, Ok(()), "a new life"),
        (write(3, 1, 1), 8, Err(NotAdmitted::Superseded), "an old life"),
    ] {
        assert_eq!(list.admits(write, most), answer, "{why}");
    }
}

#[test]
fn a_dirty_set_without_room_becomes_everything_and_never_less() {
    let unit = |index| UnitKey { index, ..UNIT };
    let mut record = ReplicaRecord::default();
    let listed = |record: &ReplicaRecord| record.dirty.iter().collect::<Vec<_>>();
    record.differs(unit(0), blocks(0..4), 1);
    record.differs(unit(1), BlockSet::EMPTY, 1);
    record.differs(unit(0), blocks(4..7), 1);
    assert!(!record.all_dirty && listed(&record) == [(unit(0), blocks(0..7))]);
    record.differs(unit(1), blocks(0..1), 1);
    assert!(record.all_dirty && record.dirty.is_empty() && !record.is_vacant());
    record.differs(unit(1), blocks(0..1), 2);
    assert!(record.dirty.is_empty(), "everything contains it");
    record.clean();
    assert!(!record.all_dirty && record.is_vacant());
}

/// Each change, and what it leaves of a record in which everything is set.
#[test]
fn a_change_touches_what_it_names() {
    let entry = ExecutedBlocks { write: write(1, 7, 1), unit: UNIT, blocks: blocks(0..4) };
    let other = ExecutedBlocks { write: write(1, 8, 1), ..entry };
    let mut full = ReplicaRecord { acted: Epoch(5), base: Epoch(4), ..ReplicaRecord::default() };
    let marks = WriteMetadata { dirty: true, origin: Origin::Client(entry.write) };
    full.wrote(UNIT, blocks(0..4), &marks, 9, &mut 0);
    let edited = |edit: &dyn Fn(&mut ReplicaRecord)| {
        let mut record = full.clone();
        edit(&mut record);
        record
    };
    let set = |range| alloc::vec![(UNIT, blocks(range))];
    for (change, wanted) in [
        (Change::Acted(Epoch(6)), edited(&|r| r.acted = Epoch(6))),
        (Change::ActedAsJoiner(Epoch(6)), edited(&|r| (r.acted, r.joiner) = (Epoch(6), true))),
        (Change::Base(Epoch(6)), edited(&|r| r.base = Epoch(6))),
        (Change::Dirty(set(4..5)), edited(&|r| r.dirty.insert(UNIT, blocks(4..5)))),
        (Change::Clean(set(1..9)), edited(&|r| r.dirty.remove(UNIT, blocks(1..9)))),
        (Change::CleanAll, edited(&|r| r.dirty.clear())),
        (
            Change::Executed(alloc::vec![other]),
            edited(&|r| r.executed = ExecutedList::from_entries([other], &mut 0)),
        ),
        (Change::Forgotten(alloc::vec![entry]), full.clone()),
        (Change::Wipe, ReplicaRecord { acted: Epoch(5), ..ReplicaRecord::default() }),
    ] {
        let mut record = full.clone();
        record.change(&change, 9, &mut 0);
        assert_eq!(record, wanted, "{change:?}");
    }
    // A copy of block 1 brings what its source has there.
    let marks = WriteMetadata { dirty: false, origin: Origin::Copied([other].into()) };
    let mut record = full.clone();
    record.wrote(UNIT, blocks(1..2), &marks, 9, &mut 0);
    assert_eq!(record.executed.blocks(other.write), blocks(1..2));
    assert!(!record.executed.blocks(entry.write).contains(1));
    assert_eq!(record.dirty, full.dirty);
}
