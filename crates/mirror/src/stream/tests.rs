//! Tables of the stream at a secondary or joiner: which frames count, what they change, and when
//! they are answered.

use super::*;
use crate::members::GroupConfig;
use crate::secondary::Secondary;
use crate::testing::{
    EPOCH, GROUP, NOW, Rig, SECOND, UNIT, blocks, config, link_to, named, op, read,
};
use alloc::format;
use alloc::string::String;
use base::UnitKey;
use seam::BufPool;
use wire::Frame;

type Make = fn() -> Rig;
type Case = fn(&mut Rig);

const AS_IT_IS: Case = |_| {};
const OLD: Epoch = Epoch(EPOCH.0 - 1);
const NEW: Epoch = Epoch(EPOCH.0 + 1);

/// Returns the primary's question of this number; the stream begins after this lsn.
fn question(question: u64, after: u64) -> SyncStart {
    let (group, epoch, after) = (GROUP, EPOCH, Lsn(after));
    SyncStart { question, group, epoch, after, joiner: false, all: false }
}

/// Creates a replica in sync or a joiner, whose stream begins after lsn 4.
fn follows(joins: bool) -> Rig {
    let mut rig = Rig::following(joins);
    let m = SyncStart { joiner: joins, ..question(1, 4) };
    assert!(ask(&mut rig, 2, &m, &Buf::EMPTY).contains("SyncState Ok 1"));
    rig
}

fn in_sync() -> Rig {
    follows(false)
}

fn joiner() -> Rig {
    follows(true)
}

fn secondary(rig: &mut Rig) -> &mut Secondary {
    rig.replica().secondary().unwrap()
}

/// Returns what left, with the status and the number of a state.
fn left(rig: &mut Rig) -> String {
    let texts = rig.frames().into_iter().map(|(link, frame, _)| match frame {
        Frame::SyncState(m) => format!("SyncState {:?} {} to {}", m.status, m.question, link.0),
        frame => crate::testing::text(link, &frame),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns a write of the first block.
fn write(lsn: u64) -> Replicate {
    let range = UnitRange { unit: UNIT, at: 0, len: BLOCK };
    Replicate::new(70 + lsn, GROUP, EPOCH, Lsn(lsn), range)
}

fn body(len: u32) -> Body {
    Body { data: BufPool::new(0).zeroed(len as usize), crc: None }
}

/// Takes a write on the link 2, with a body of one block.
fn take(rig: &mut Rig, from: u32, m: &Replicate) -> bool {
    let Rig { shard, flows, out, .. } = rig;
    let link = link_to(2);
    flows.secondaries.replicate_in(shard, link, DeviceId(from), m, body(BLOCK), out)
}

/// Takes the next write, which has its range. Returns its operation.
fn run(rig: &mut Rig, m: &Replicate) -> u64 {
    assert!(take(rig, 2, m));
    let ready = rig.ready();
    assert_eq!(ready.len(), 1, "its range is free");
    ready[0]
}

fn end(rig: &mut Rig, key: u64, status: Status) {
    let Rig { shard, flows, out, .. } = rig;
    flows.secondaries.end_replicated(shard, NOW, key, status, out);
}

fn ask(rig: &mut Rig, from: u32, m: &SyncStart, body: &Buf) -> String {
    let Rig { shard, flows, out, .. } = &mut *rig;
    flows.secondaries.sync_start_in(shard, link_to(2), DeviceId(from), m, body, out);
    left(rig)
}

/// Returns the bytes of a list: executed writes of a client with these numbers, each in a block of
/// its own, and forgotten writes before this number.
fn list(executed: &[u64], forgotten: Option<u64>) -> Buf {
    let (sdc, life) = (named(0).sdc, named(0).incarnation);
    let entry = |seq: &u64, blocks| Executed::new(sdc, life, *seq, UNIT, blocks);
    let mut all: Vec<Executed> = Vec::new();
    all.extend(forgotten.iter().map(|seq| entry(seq, BlockSet::EMPTY)));
    all.extend(executed.iter().map(|seq| entry(seq, blocks(*seq as u32..*seq as u32 + 1))));
    BufPool::new(0).copy(all.as_bytes())
}

fn half_an_entry() -> Buf {
    BufPool::new(0).zeroed(size_of::<Executed>() / 2)
}

/// Makes the first change durable that something waits for.
fn make_durable(rig: &mut Rig) {
    let token = rig.shard.store.changes.remove(0).0.unwrap();
    let (group, after) = rig.shard.jobs.take_change(token).unwrap();
    let Rig { shard, flows, out, .. } = rig;
    flows.changed(shard, NOW, group, after, out);
}

// ---- writes ----

#[test]
fn a_body_is_what_flags_and_range_say() {
    let range = UnitRange { len: BLOCK, ..UnitRange::default() };
    let write = Replicate::new(1, GroupId(1), Epoch(1), Lsn(1), range);
    let whole = BLOCK as usize;
    assert!(is_whole(&write, whole) && !is_whole(&write, 0) && !is_whole(&write, 512));
    let zero = Replicate { zero: true, ..write };
    assert!(is_whole(&zero, 0) && !is_whole(&zero, whole));
    let lost = Replicate { lost: true, copy: true, ..write };
    assert!(is_whole(&lost, 0) && !is_whole(&lost, whole));
    assert!(!is_whole(&Replicate { copy: false, ..lost }, 0), "only copies are of lost blocks");
    assert!(!is_whole(&Replicate { zero: true, ..lost }, 0));
    let part = UnitRange { len: BLOCK / 2, ..range };
    assert!(!is_whole(&Replicate { range: part, ..lost }, 0), "blocks are lost as a whole");
}

/// What a frame leaves: an answer, or a link that is closed; whether it was taken; and the present
/// epoch, if a note names it because the frame does not belong to it (R2).
#[test]
fn a_write_counts_if_it_is_the_next_of_the_primary_of_the_present_epoch() {
    type Row = (&'static str, Make, Case, u32, Replicate, &'static str, bool, Option<u64>);
    let (stale, behind) = ("Replicated Stale to 2", "Replicated Behind to 2");
    let m = write(5);
    let of = |epoch| Replicate { epoch, ..m };
    let at = |at, len| Replicate { range: UnitRange { unit: UNIT, at, len }, ..m };
    let other = Replicate { group: GroupId(8), ..m };
    let leads: Make = || Rig::leading(&[2], &[]);
    let unasked: Make = || Rig::following(true);
    let wiped: Case = |r| secondary(r).order_wipe(link_to(2), 1);
    let beyond = at(base::UNIT - 512, BLOCK);
    let rows: &[Row] = &[
        ("the next", in_sync, AS_IT_IS, 2, m, "", true, None),
        ("the next at a joiner", joiner, AS_IT_IS, 2, m, "", true, None),
        ("an older epoch", in_sync, AS_IT_IS, 2, of(OLD), stale, false, Some(4)),
        ("a newer epoch", in_sync, AS_IT_IS, 2, of(NEW), behind, false, Some(4)),
        ("another device", in_sync, AS_IT_IS, 3, m, behind, false, Some(4)),
        ("another group", in_sync, AS_IT_IS, 2, other, behind, false, Some(0)),
        ("its epoch ends", in_sync, |r| r.end_soon(), 2, m, stale, false, Some(4)),
        ("it leads itself", leads, AS_IT_IS, 2, m, behind, false, Some(4)),
        ("no role", in_sync, |r| r.replica().role = Role::Out, 2, m, behind, false, Some(4)),
        ("before a question", unasked, AS_IT_IS, 2, m, behind, false, None),
        ("after it was wiped", joiner, wiped, 2, m, behind, false, None),
        ("one is missing", in_sync, AS_IT_IS, 2, write(6), "Close 2", false, None),
        ("it has no range", in_sync, AS_IT_IS, 2, at(0, 0), "Close 2", false, None),
        ("it leaves its unit", in_sync, AS_IT_IS, 2, beyond, "Close 2", false, None),
        ("its body is short", in_sync, AS_IT_IS, 2, at(0, 8192), "Close 2", false, None),
    ];
    for (name, make, change, from, m, left, taken, have) in rows {
        let mut rig = make();
        change(&mut rig);
        assert_eq!(take(&mut rig, *from, m), *taken, "{name}");
        assert_eq!(rig.left(), *left, "{name}");
        let count = usize::from(*taken);
        assert_eq!((rig.ready().len(), rig.shard.ops.len()), (count, count), "{name}");
        let stale =
            have.map(|have| Note::StaleEpoch { group: m.group, have: Epoch(have), got: m.epoch });
        let closed = left.starts_with("Close");
        let gap = closed.then_some(Note::Refused { link: link_to(2).id, why: GAP });
        assert_eq!(rig.notes, stale.into_iter().chain(gap).collect::<Vec<_>>(), "{name}");
    }
}

/// An answer names the write, so that the primary finds it.
#[test]
fn an_answer_names_the_operation_the_epoch_and_the_place_of_its_write() {
    for (name, epoch, change, status) in [
        ("done", EPOCH, AS_IT_IS, Status::Ok),
        ("refused", EPOCH, AS_IT_IS, Status::Full),
        ("an older epoch", OLD, AS_IT_IS, Status::Stale),
        ("an unknown epoch", NEW, AS_IT_IS, Status::Behind),
        ("not asked", EPOCH, |r: &mut Rig| secondary(r).order_wipe(link_to(2), 1), Status::Behind),
    ] {
        let mut rig = joiner();
        change(&mut rig);
        if take(&mut rig, 2, &Replicate { epoch, ..write(5) }) {
            let key = rig.ready()[0];
            end(&mut rig, key, status);
        }
        let frames = rig.frames();
        let [(link, Frame::Replicated(m), _)] = &frames[..] else { panic!("{name}: {frames:?}") };
        assert_eq!((*link, m.op, m.group), (link_to(2).id, 75, GROUP), "{name}");
        assert_eq!((m.status, m.epoch, m.lsn), (status, epoch, Lsn(5)), "{name}");
    }
}

/// The link broke before the answer, so the primary has sent the write again on another one.
#[test]
fn a_write_that_comes_again_is_done_once_and_answered_on_the_last_link() {
    for status in [Status::Ok, Status::Full, Status::SendWhole] {
        let mut rig = in_sync();
        let key = run(&mut rig, &write(5));
        for (lsn, answer) in [(5, ""), (4, "Replicated Ok to 12")] {
            let m = Replicate { op: 99, ..write(lsn) };
            let Rig { shard, flows, out, .. } = &mut rig;
            let from = &mut flows.secondaries;
            assert!(!from.replicate_in(shard, link_to(12), SECOND, &m, body(BLOCK), out));
            assert_eq!(rig.left(), answer, "{status:?} {lsn}");
        }
        assert_eq!((rig.shard.ops.len(), rig.ready().len()), (1, 0), "{status:?}");
        end(&mut rig, key, status);
        let frames = rig.frames();
        let [(link, Frame::Replicated(m), _)] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((link.0, m.op, m.status), (12, 99, status), "as the primary names it now");
        assert!(!take(&mut rig, 2, &write(5)), "{status:?}");
        assert_eq!(rig.left(), format!("Replicated {status:?} to 2"), "its result is known");
        assert_eq!(rig.shard.ops.len(), 0, "{status:?}");
    }
}

#[test]
fn what_was_taken_is_uncertain_where_content_is_kept() {
    let wide = Replicate { range: UnitRange { unit: UNIT, at: 512, len: BLOCK }, ..write(5) };
    for (name, make, null, m, expected) in [
        ("in sync", in_sync as Make, false, write(5), blocks(0..1)),
        ("a joiner", joiner, false, write(5), blocks(0..1)),
        ("parts of two blocks", in_sync, false, wide, blocks(0..2)),
        ("nothing is kept", in_sync, true, write(5), BlockSet::EMPTY),
    ] {
        let mut rig = make();
        rig.shard.store.null = null;
        assert!(take(&mut rig, 2, &m), "{name}");
        let uncertain = secondary(&mut rig).uncertain().map(|(_, blocks)| blocks);
        let uncertain: Vec<BlockSet> = uncertain.collect();
        let expected: &[BlockSet] = if expected.is_empty() { &[] } else { &[expected] };
        assert_eq!(uncertain, expected, "{name}");
    }
}

/// What follows the end of a write, besides its answer.
#[test]
fn the_end_of_a_write_frees_its_range_and_lets_an_answer_or_a_wipe_go_on() {
    type Row = (&'static str, Case, Status, &'static str, usize);
    let (ok, states) = ("Replicated Ok to 2", "Replicated Ok to 2, SyncState Ok 2 to 2");
    let full = "Replicated Full to 2";
    let asks: Case = |r| assert_eq!(ask(r, 2, &question(2, 5), &Buf::EMPTY), "");
    let wipes: Case = |r| secondary(r).order_wipe(link_to(2), 2);
    let orphan: Case = |r| {
        let key = r.shard.ops.iter().next().unwrap().0;
        r.op(key).orphan();
        r.replica().role = Role::Out;
    };
    let rows: &[Row] = &[
        ("done", AS_IT_IS, Status::Ok, ok, 0),
        ("refused", AS_IT_IS, Status::Full, full, 0),
        ("its state was asked for", asks, Status::Ok, states, 0),
        ("it has to be wiped", wipes, Status::Ok, ok, 1),
        ("its configuration has ended", orphan, Status::Ok, "", 0),
    ];
    for (name, change, status, expected, wiped) in rows {
        let mut rig = joiner();
        let key = run(&mut rig, &write(5));
        change(&mut rig);
        end(&mut rig, key, *status);
        assert_eq!(left(&mut rig), *expected, "{name}");
        assert!(rig.is_over(key) && rig.replica().locks.is_empty(), "{name}");
        assert_eq!(rig.shard.store.changes.len(), *wiped, "{name}");
    }
    let mut rig = in_sync();
    let first = run(&mut rig, &write(5));
    assert!(take(&mut rig, 2, &write(6)) && rig.ready().is_empty(), "it waits for the first one");
    end(&mut rig, first, Status::Ok);
    assert_eq!(rig.ready().len(), 1, "in order");
}

/// Returns the blocks that the unit store is told to be clean.
fn told_clean(rig: &mut Rig) -> BlockSet {
    rig.shard.store.changes.clear();
    rig.shard.tell_clean();
    match &rig.shard.store.changes[..] {
        [] => BlockSet::EMPTY,
        [(None, changes)] => match &changes[..] {
            [Change::Clean(list)] => list[0].1,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Which blocks the unit store learns to be clean, after a write of the first block at a replica
/// that is sealed, and which writes are still uncertain (R5).
#[test]
fn a_commit_point_of_the_present_primary_cleans_what_came_after_the_seal() {
    type Row = (&'static str, Case, bool, u32, Epoch, u64, bool, bool);
    let volatile: Case = |r| r.shard.store.volatile = true;
    let rows: &[Row] = &[
        ("it covers the write", AS_IT_IS, true, 2, EPOCH, 5, true, true),
        ("it does not", AS_IT_IS, true, 2, EPOCH, 4, false, false),
        ("another device", AS_IT_IS, true, 3, EPOCH, 5, false, false),
        ("an older epoch", AS_IT_IS, true, 2, OLD, 5, false, false),
        ("a newer epoch", AS_IT_IS, true, 2, NEW, 5, false, false),
        ("its epoch ends", |r| r.end_soon(), true, 2, EPOCH, 5, false, false),
        ("before the seal", AS_IT_IS, false, 2, EPOCH, 5, false, false),
        ("nothing survives", volatile, true, 2, EPOCH, 5, true, false),
    ];
    for (name, change, sealed, from, epoch, commit, certain, clean) in rows {
        let mut rig = in_sync();
        if *sealed {
            assert_eq!(secondary(&mut rig).seal(Lsn(4)), Some(SECOND), "{name}");
        }
        let key = run(&mut rig, &write(5));
        end(&mut rig, key, Status::Ok);
        change(&mut rig);
        let m = Commit { group: GROUP, epoch: *epoch, commit: Lsn(*commit) };
        let Rig { shard, flows, .. } = &mut rig;
        flows.secondaries.commit_in(shard, DeviceId(*from), &m);
        assert_eq!(secondary(&mut rig).uncertain().count(), usize::from(!certain), "{name}");
        assert_eq!(told_clean(&mut rig) == blocks(0..1), *clean, "{name}");
    }
}

#[test]
fn a_write_carries_the_commit_point_of_those_before_it() {
    for (sealed, commit, clean) in [(true, 5, true), (true, 4, false), (false, 5, false)] {
        let mut rig = in_sync();
        if sealed {
            assert_eq!(secondary(&mut rig).seal(Lsn(4)), Some(SECOND));
        }
        let key = run(&mut rig, &write(5));
        end(&mut rig, key, Status::Ok);
        let range = UnitRange { unit: UNIT, at: BLOCK, len: BLOCK };
        run(&mut rig, &Replicate { commit: Lsn(commit), range, ..write(6) });
        assert_eq!(told_clean(&mut rig) == blocks(0..1), clean, "{sealed} {commit}");
    }
}

// ---- questions ----

/// What a question leaves, and whether it is still to be answered.
#[test]
fn a_question_of_the_present_primary_is_answered_when_all_before_it_is_done() {
    type Row = (&'static str, Case, u32, SyncStart, Option<Buf>, &'static str, bool);
    let m = question(2, 5);
    let of = |epoch| SyncStart { epoch, ..m };
    let (ok, stale) = ("SyncState Ok 2 to 2", "SyncState Stale 2 to 2");
    let behind = "SyncState Behind 2 to 2";
    let runs: Case = |r| {
        run(r, &write(5));
    };
    let seals: Case = |r| assert_eq!(seal(r, 2, &seal_of(4), &Buf::EMPTY), "");
    let out: Case = |r| r.replica().role = Role::Out;
    let broken = Some(half_an_entry());
    let rows: &[Row] = &[
        ("nothing is before it", AS_IT_IS, 2, m, None, ok, false),
        ("a write runs", runs, 2, m, None, "", true),
        ("a seal is not durable", seals, 2, m, None, "", true),
        ("an older epoch", AS_IT_IS, 2, of(OLD), None, stale, false),
        ("a newer epoch", AS_IT_IS, 2, of(NEW), None, behind, false),
        ("another device", AS_IT_IS, 3, m, None, behind, false),
        ("its epoch ends", |r| r.end_soon(), 2, m, None, stale, false),
        ("no role", out, 2, m, None, behind, false),
        ("half an entry", AS_IT_IS, 2, m, broken, "", false),
    ];
    for (name, change, from, m, body, expected, waits) in rows {
        let mut rig = in_sync();
        change(&mut rig);
        let body = body.clone().unwrap_or(Buf::EMPTY);
        assert_eq!(ask(&mut rig, *from, m, &body), *expected, "{name}");
        let Some(secondary) = rig.replica().secondary() else { continue };
        assert_eq!(secondary.is_asked(), *waits, "{name}");
        // The stream goes on after the question only if that counts.
        let counts = *waits || expected == &ok;
        let next = if counts { write(6) } else { write(5) };
        let place = secondary.place(&next);
        assert_eq!(place, Place::Next, "{name}");
    }
}

#[test]
fn a_question_that_waits_for_a_seal_is_answered_when_that_is_durable() {
    let mut rig = in_sync();
    assert_eq!(seal(&mut rig, 2, &seal_of(4), &Buf::EMPTY), "");
    assert_eq!(ask(&mut rig, 2, &question(2, 4), &Buf::EMPTY), "");
    make_durable(&mut rig);
    assert_eq!(left(&mut rig), "SyncState Ok 2 to 2", "the seal itself counts no more");
    assert!(!secondary(&mut rig).is_equal());
}

#[test]
fn a_question_makes_uncertain_writes_dirty_and_brings_the_list_of_the_primary() {
    let mut rig = in_sync();
    let key = run(&mut rig, &write(5));
    end(&mut rig, key, Status::Ok);
    rig.left();
    assert!(rig.replica().record.dirty.is_empty());
    ask(&mut rig, 2, &question(2, 5), &list(&[3], Some(3)));
    assert_eq!(rig.replica().record.dirty.blocks(UNIT), blocks(0..1));
    assert_eq!(secondary(&mut rig).uncertain().count(), 0);
    let source = secondary(&mut rig).source().entries();
    assert_eq!(source.iter().map(|e| e.write.seq).collect::<Vec<_>>(), [3]);
    let forgotten = rig.shard.history.forgotten();
    assert!(forgotten.covers(GROUP, named(2)) && !forgotten.covers(GROUP, named(3)));
    assert!(!forgotten.covers(GroupId(8), named(2)), "only this group's content comes from there");
}

/// What a replica tells of itself: its list, whether any block may differ, and whether it is empty.
#[test]
fn a_replica_tells_what_may_differ_or_all_that_it_holds() {
    type Row = (&'static str, bool, bool, Case, &'static [(u32, u32)], bool, bool);
    let clean: Case = |r| r.shard.store.valid = blocks(2..4);
    let dirty: Case = |r| {
        r.shard.store.valid = blocks(2..4);
        r.replica().record.dirty.insert(UNIT, blocks(0..1));
    };
    let only: Case = |r| r.replica().record.dirty.insert(UNIT, blocks(0..1));
    let any: Case = |r| {
        r.shard.store.valid = blocks(2..4);
        r.replica().record.dirty.insert(UNIT, blocks(0..1));
        r.replica().record.all_dirty = true;
    };
    let nothing: Case = |r| r.replica().record.all_dirty = true;
    let rows: &[Row] = &[
        ("clean", false, false, clean, &[], false, false),
        ("empty", false, false, AS_IT_IS, &[], false, true),
        ("dirty", false, false, dirty, &[(0, 1)], false, false),
        ("dirty zeros", false, false, only, &[(0, 1)], false, false),
        ("any may differ here", false, false, any, &[(0, 1), (2, 4)], true, false),
        ("any may differ there", false, true, dirty, &[(0, 1), (2, 4)], false, false),
        ("a dirty joiner", true, false, dirty, &[(0, 1)], false, false),
        ("a joiner: any here", true, false, any, &[], true, false),
        ("a joiner: any there", true, true, dirty, &[], true, false),
        ("a joiner with nothing", true, false, nothing, &[], true, true),
        ("an empty joiner", true, false, AS_IT_IS, &[], false, true),
    ];
    for (name, joins, all, change, told, all_told, empty) in rows {
        let mut rig = follows(*joins);
        rig.replica().record.base = Epoch(3);
        change(&mut rig);
        let m = SyncStart { joiner: *joins, all: *all, ..question(2, 4) };
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.secondaries.sync_start_in(shard, link_to(2), SECOND, &m, &Buf::EMPTY, out);
        let frames = rig.frames();
        let [(_, Frame::SyncState(m), body)] = &frames[..] else { panic!("{name}: {frames:?}") };
        assert_eq!((m.all, m.empty, m.more), (*all_told, *empty, false), "{name}");
        assert_eq!((m.base, m.epoch, m.question), (Epoch(3), EPOCH, 2), "{name}");
        let list = records::read::<UnitBlocks>(body).unwrap();
        let list: Vec<BlockSet> = list.iter().map(|entry| entry.set()).collect();
        let told: Vec<BlockSet> = told.iter().map(|(from, to)| blocks(*from..*to)).collect();
        assert_eq!(list, told, "{name}");
    }
}

#[test]
fn a_long_list_comes_in_several_frames_and_only_the_last_one_ends_it() {
    let most = |entries: usize| (entries * size_of::<UnitBlocks>()) as u32;
    for (room, units, expected) in [
        (most(2), 0, &[(0, false)][..]),
        (most(2), 2, &[(2, false)]),
        (most(2), 3, &[(2, true), (1, false)]),
        (most(2), 4, &[(2, true), (2, false)]),
        (1, 2, &[(1, true), (1, false)]),
    ] {
        let mut rig = in_sync();
        rig.shard.limits.frame_body = room;
        for index in 0..units {
            rig.replica().record.dirty.insert(UnitKey { index, ..UNIT }, blocks(0..1));
        }
        let Rig { shard, flows, out, .. } = &mut rig;
        let m = question(2, 4);
        flows.secondaries.sync_start_in(shard, link_to(2), SECOND, &m, &Buf::EMPTY, out);
        let pages = rig.frames().into_iter().map(|(_, frame, body)| match frame {
            Frame::SyncState(m) => (records::read::<UnitBlocks>(&body).unwrap().len(), m.more),
            other => panic!("{other:?}"),
        });
        assert_eq!(pages.collect::<Vec<_>>(), expected, "{room} {units}");
    }
}

// ---- wipes ----

/// Creates a joiner that has blocks, some of them dirty, and knows of a client's write.
fn holds_blocks() -> Rig {
    let mut rig = joiner();
    rig.shard.store.valid = blocks(0..4);
    let record = &mut rig.replica().record;
    (record.base, record.all_dirty) = (Epoch(2), true);
    record.dirty.insert(UNIT, blocks(0..1));
    record.executed.record(named(3), UNIT, blocks(0..1), &mut 0);
    rig
}

fn order_wipe(rig: &mut Rig, link: u32, from: u32, question: u64, epoch: Epoch) -> (bool, String) {
    let m = SyncWipe { question, group: GROUP, epoch };
    let Rig { shard, flows, out, .. } = &mut *rig;
    let (link, from) = (link_to(link), DeviceId(from));
    let taken = flows.secondaries.sync_wipe_in(shard, NOW, link, from, &m, out);
    (taken, left(rig))
}

fn wipe_if_idle(rig: &mut Rig) {
    let Rig { shard, flows, .. } = rig;
    flows.secondaries.wipe_if_idle(shard, NOW, GROUP);
}

/// What an order to delete everything leaves: an answer that refuses it, whether it was taken, and
/// whether the deletion begins now.
#[test]
fn content_is_deleted_by_order_of_the_primary_if_an_mdm_says_that_it_is_not_in_sync() {
    type Row = (&'static str, Case, u32, Epoch, &'static str, bool, bool);
    let in_sync: Case = |r| r.replica().config = config(&[2, 1], &[]);
    let unsure: Case = |r| r.shard.known.heard_of(GROUP, false);
    let out: Case = |r| r.replica().role = Role::Out;
    let (stale, behind) = ("SyncState Stale 2 to 2", "SyncState Behind 2 to 2");
    let rows: &[Row] = &[
        ("a joiner", AS_IT_IS, 2, EPOCH, "", true, true),
        ("an older epoch", AS_IT_IS, 2, OLD, stale, false, false),
        ("a newer epoch", AS_IT_IS, 2, NEW, behind, false, false),
        ("another device", AS_IT_IS, 3, EPOCH, behind, false, false),
        ("its epoch ends", |r| r.end_soon(), 2, EPOCH, stale, false, false),
        ("no role", out, 2, EPOCH, behind, false, false),
        ("it is in sync", in_sync, 2, EPOCH, behind, false, false),
        ("only another server says so", unsure, 2, EPOCH, behind, false, false),
        ("a job runs", |r| r.replica().local = 1, 2, EPOCH, "", true, false),
    ];
    for (name, change, from, epoch, left, taken, wipes) in rows {
        let mut rig = holds_blocks();
        change(&mut rig);
        let answer = order_wipe(&mut rig, 2, *from, 2, *epoch);
        assert_eq!(answer, (*taken, String::from(*left)), "{name}");
        assert_eq!(rig.shard.store.changes.len(), usize::from(*wipes), "{name}");
        assert_eq!(rig.replica().record.is_vacant(), *wipes, "{name}");
    }
}

/// The deletion waits for everything that uses the content, and the stream ends with the order.
#[test]
fn content_is_deleted_when_nothing_uses_it_and_an_answer_follows() {
    type Row = (&'static str, Case, Case);
    let locks: Case = |r| {
        r.shard.queue(op(read()));
    };
    let frees: Case = |r| {
        let key = r.ready()[0];
        r.shard.end_op(key);
    };
    let runs: Case = |r| r.replica().local = 1;
    let rows: &[Row] = &[
        ("an operation has a range", locks, frees),
        ("a job runs", runs, |r| r.replica().local = 0),
        ("its configuration ends", |r| r.end_soon(), |r| r.replica().next = None),
    ];
    for (name, busy, idle) in rows {
        let mut rig = holds_blocks();
        secondary(&mut rig).order_wipe(link_to(2), 2);
        busy(&mut rig);
        wipe_if_idle(&mut rig);
        assert!(rig.shard.store.changes.is_empty(), "{name}");
        idle(&mut rig);
        wipe_if_idle(&mut rig);
        wipe_if_idle(&mut rig);
        let [(Some(_), changes)] = &rig.shard.store.changes[..] else { panic!("{name}") };
        assert!(matches!(changes[..], [Change::Wipe]), "{name}: once");
        assert!(rig.left().is_empty(), "{name}: it is not durable yet");
        assert!(!take(&mut rig, 2, &write(5)), "{name}: the stream has ended");
        assert_eq!(rig.left(), "Replicated Behind to 2", "{name}");
        rig.shard.store.valid = BlockSet::EMPTY;
        make_durable(&mut rig);
        let frames = rig.frames();
        let [(_, Frame::SyncState(m), body)] = &frames[..] else { panic!("{name}: {frames:?}") };
        assert_eq!((m.status, m.question, m.base), (Status::Ok, 2, Epoch(0)), "{name}");
        assert!(m.empty && !m.all && !m.more && body.is_empty(), "{name}");
    }
}

#[test]
fn a_wipe_of_an_epoch_that_has_ended_is_not_answered() {
    for (epoch, answer) in [(EPOCH, "SyncState Ok 2 to 2"), (OLD, "")] {
        let mut rig = joiner();
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.secondaries.wiped(shard, GROUP, (2, epoch), link_to(2), out);
        assert_eq!(left(&mut rig), answer, "{epoch:?}");
    }
}

#[test]
fn an_order_that_is_repeated_deletes_once_and_is_answered_on_the_last_link() {
    let mut rig = holds_blocks();
    for link in [2, 12] {
        assert_eq!(order_wipe(&mut rig, link, 2, 2, EPOCH), (true, "".into()));
        assert_eq!(rig.shard.store.changes.len(), 1);
    }
    assert_eq!(order_wipe(&mut rig, 2, 2, 3, EPOCH), (true, "".into()));
    assert_eq!(rig.shard.store.changes.len(), 2, "another order is another deletion");
    for answer in ["SyncState Ok 2 to 12", "SyncState Ok 3 to 2"] {
        rig.shard.store.valid = BlockSet::EMPTY;
        make_durable(&mut rig);
        assert_eq!(left(&mut rig), answer);
    }
}

#[test]
fn what_was_uncertain_before_a_wipe_does_not_become_dirty_after_it() {
    let mut rig = joiner();
    let key = run(&mut rig, &write(5));
    end(&mut rig, key, Status::Ok);
    rig.left();
    assert_eq!(order_wipe(&mut rig, 2, 2, 2, EPOCH), (true, "".into()));
    ask(&mut rig, 2, &question(3, 5), &Buf::EMPTY);
    assert!(rig.replica().record.dirty.is_empty());
}

#[test]
#[should_panic = "an in-sync copy is never deleted"]
fn no_order_deletes_a_copy_that_is_in_sync() {
    let mut rig = in_sync();
    secondary(&mut rig).order_wipe(link_to(2), 2);
    wipe_if_idle(&mut rig);
}

// ---- the seal ----

fn seal_of(lsn: u64) -> Seal {
    Seal { group: GROUP, epoch: EPOCH, lsn: Lsn(lsn) }
}

fn seal(rig: &mut Rig, from: u32, m: &Seal, body: &Buf) -> String {
    let Rig { shard, flows, out, .. } = &mut *rig;
    let from = (link_to(2), DeviceId(from));
    let count = shard.store.changes.len();
    let begins = flows.secondaries.seal_in(shard, NOW, from, m, body, out);
    assert_eq!(begins, shard.store.changes.len() > count, "the loop has something to do");
    left(rig)
}

/// What a seal leaves: an answer, or a change of the record that has to be durable first (R6).
#[test]
fn a_seal_begins_if_everything_has_come_and_is_refused_otherwise() {
    type Row = (&'static str, Case, u32, Seal, Option<Buf>, &'static str, usize);
    let (stale, behind) = ("Sealed Stale to 2", "Sealed Behind to 2");
    let m = seal_of(4);
    let of = |epoch| Seal { epoch, ..m };
    let broken = Some(half_an_entry());
    let sealed: Case = |r| assert_eq!(secondary(r).seal(Lsn(4)), Some(SECOND));
    let seals: Case = |r| assert_eq!(seal(r, 2, &seal_of(4), &Buf::EMPTY), "");
    let wiped: Case = |r| secondary(r).order_wipe(link_to(2), 1);
    let more: Case = |r| {
        run(r, &write(5));
    };
    let rows: &[Row] = &[
        ("everything has come", AS_IT_IS, 2, m, None, "", 1),
        ("an older epoch", AS_IT_IS, 2, of(OLD), None, stale, 0),
        ("a newer epoch", AS_IT_IS, 2, of(NEW), None, stale, 0),
        ("another device", AS_IT_IS, 3, m, None, stale, 0),
        ("its epoch ends", |r| r.end_soon(), 2, m, None, stale, 0),
        ("no role", |r| r.replica().role = Role::Out, 2, m, None, stale, 0),
        ("half an entry", AS_IT_IS, 2, m, broken, stale, 0),
        ("something is missing", AS_IT_IS, 2, seal_of(5), None, behind, 0),
        ("something has come since", more, 2, m, None, behind, 0),
        ("it was wiped", wiped, 2, m, None, behind, 0),
        ("it is durable already", sealed, 2, m, None, "Sealed Ok to 2", 0),
        ("it is under way", seals, 2, m, None, "", 1),
    ];
    for (name, change, from, m, body, left, changes) in rows {
        let mut rig = in_sync();
        rig.replica().record.dirty.insert(UNIT, blocks(7..8));
        change(&mut rig);
        let body = body.clone().unwrap_or(Buf::EMPTY);
        assert_eq!(seal(&mut rig, *from, m, &body), *left, "{name}");
        assert_eq!(rig.shard.store.changes.len(), *changes, "{name}");
        assert_eq!(rig.replica().record.dirty.is_empty(), *changes > 0, "{name}");
    }
    let mut rig = Rig::following(true);
    assert_eq!(seal(&mut rig, 2, &seal_of(0), &Buf::EMPTY), behind, "no stream has begun");
}

/// The base epoch after a seal: a joiner that is not admitted beside two replicas in sync can't
/// come back for only what it has missed (R5, R11).
#[test]
fn a_seal_makes_a_replica_clean_since_its_epoch_if_others_note_what_it_misses() {
    type Row = (&'static str, GroupConfig, bool, Epoch);
    let rows: &[Row] = &[
        ("in sync", config(&[2, 1], &[]), false, EPOCH),
        ("one of three", config(&[2, 1, 3], &[]), false, EPOCH),
        ("a joiner", config(&[2], &[1]), false, EPOCH),
        ("a joiner beside two", config(&[2, 3], &[1]), false, Epoch(0)),
        ("on a volatile device", config(&[2, 1], &[]), true, EPOCH),
    ];
    for (name, config, volatile, base) in rows {
        let mut rig = follows(!config.in_sync.contains(&crate::testing::ME));
        rig.replica().config = config.clone();
        rig.shard.store.volatile = *volatile;
        let key = run(&mut rig, &write(5));
        end(&mut rig, key, Status::Ok);
        rig.left();
        let record = &mut rig.replica().record;
        (record.base, record.all_dirty) = (Epoch(2), true);
        record.dirty.insert(UNIT, blocks(7..8));
        record.executed.record(named(9), UNIT, blocks(9..10), &mut 0);
        assert_eq!(seal(&mut rig, 2, &seal_of(5), &list(&[3, 4], Some(3))), "", "{name}");
        let record = &rig.replica().record;
        assert!(record.dirty.is_empty() && !record.all_dirty, "{name}");
        assert_eq!(record.base, *base, "{name}");
        let listed: Vec<u64> = record.executed.entries().iter().map(|e| e.write.seq).collect();
        assert_eq!(listed, [3, 4], "{name}: the list of the primary");
        let executed = record.executed.entries();
        assert_eq!(secondary(&mut rig).uncertain().count(), 0, "{name}");
        assert!(rig.shard.history.forgotten().covers(GROUP, named(2)), "{name}");
        let mut expected = [Change::CleanAll, Change::Base(*base)].to_vec();
        if !volatile {
            expected.push(Change::Executed(executed));
        }
        let [(token, changes)] = &rig.shard.store.changes[..] else { panic!("{name}") };
        assert_eq!(token.is_some(), !volatile, "{name}");
        assert_eq!(format!("{changes:?}"), format!("{expected:?}"), "{name}");
    }
}

#[test]
fn entries_of_a_list_that_have_no_room_here_are_forgotten_and_not_unknown() {
    let mut rig = in_sync();
    rig.shard.limits.executed_group = 2;
    assert_eq!(seal(&mut rig, 2, &seal_of(4), &list(&[3, 4, 5], None)), "");
    let listed = rig.replica().record.executed.entries();
    assert!(listed.len() <= 2 && listed.iter().all(|e| e.write.seq > 3));
    let forgotten = rig.shard.history.forgotten();
    assert!(forgotten.covers(GROUP, named(3)) && !forgotten.covers(GROUP, named(5)));
}

/// Whether a seal that is durable counts, and what leaves.
#[test]
fn a_replica_is_equal_when_its_last_seal_is_durable_and_nothing_has_come_since() {
    type Row = (&'static str, Case, Epoch, bool);
    let asks: Case = |r| {
        let key = run(r, &write(5));
        assert_eq!(ask(r, 2, &question(2, 5), &Buf::EMPTY), "");
        assert!(!r.is_over(key));
    };
    let more: Case = |r| {
        run(r, &write(5));
    };
    let rows: &[Row] = &[
        ("nothing has come", AS_IT_IS, EPOCH, true),
        ("a write has come", more, EPOCH, false),
        ("the primary has asked since", asks, EPOCH, false),
        ("its epoch has ended", AS_IT_IS, OLD, false),
        ("no role", |r| r.replica().role = Role::Out, EPOCH, false),
    ];
    for (name, change, epoch, counts) in rows {
        let mut rig = joiner();
        change(&mut rig);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.secondaries.sealed(shard, GROUP, *epoch, Lsn(4), link_to(2), out);
        let frames = rig.frames();
        match &frames[..] {
            [] => assert!(!counts, "{name}"),
            [(link, Frame::Sealed(m), _)] => {
                let found = (*link, m.status, m.epoch, m.lsn, *counts);
                assert_eq!(found, (link_to(2).id, Status::Ok, EPOCH, Lsn(4), true), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
        let note = Note::Sealed { group: GROUP, peer: SECOND, lsn: Lsn(4) };
        assert_eq!(rig.notes.contains(&note), *counts, "{name}");
        let Some(secondary) = rig.replica().secondary() else { continue };
        assert_eq!((secondary.is_equal(), secondary.is_joiner()), (*counts, !counts), "{name}");
    }
}
