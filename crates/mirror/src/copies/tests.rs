//! Tables of copies at the primary: the turns of groups, and one copy from its turn to its end.

use super::*;
use crate::sync::Phase;
use crate::testing::{GROUP, NOW, Rig, UNIT, bits, blocks, copy, op, read};
use alloc::vec::Vec;
use base::{DeviceId, Policy};
use core::ops::Range;
use seam::BufPool;

type Make = fn() -> Rig;
type Case = fn(&mut Rig);

const AS_IT_IS: Case = |_| {};

/// Creates a primary that copies to the joiner 4. Device 2 is in sync.
fn joins() -> Rig {
    Rig::filling(&[2], 4)
}

/// Creates a primary that copies to devices 2 and 3, with which it settles.
fn settles() -> Rig {
    Rig::settling(&[2, 3])
}

/// Begins a copy of these blocks, which has its range.
fn begin(rig: &mut Rig, range: Range<u32>) -> u64 {
    rig.sync().todo.insert(UNIT, blocks(range.clone()));
    let most = range.end - range.start;
    assert_eq!(rig.sync().begin_copy(most), Some((UNIT, range.clone(), false)));
    rig.flows.peers.copies.begins();
    rig.hold(Op { at: range.start * BLOCK, len: most * BLOCK, ..op(copy()) })
}

/// Returns these blocks of several runs.
fn runs(ranges: &[Range<u32>]) -> BlockSet {
    let mut all = BlockSet::EMPTY;
    ranges.iter().for_each(|range| all.insert(blocks(range.clone())));
    all
}

fn one_block() -> Buf {
    BufPool::new(0).zeroed(BLOCK as usize)
}

// ---- turns ----

#[test]
fn groups_take_turns_and_one_without_room_holds_no_other_back() {
    let limits = Limits { copies: 2, ..Limits::TEST_MIN };
    let (mut copies, pace) = (Copies::default(), Pace::new(&limits));
    [1, 2, 3].into_iter().for_each(|group| copies.queue(GroupId(group)));
    let purpose = |group: GroupId| (group != GroupId(1)).then_some(Purpose::Settle);
    let next = |copies: &mut Copies| copies.next(Time(1), &pace, &limits, purpose);
    for group in [2, 3] {
        assert_eq!(next(&mut copies), Some((GroupId(group), Purpose::Settle)));
        copies.begins();
    }
    assert_eq!(next(&mut copies), None, "the first one has no room");
    copies.queue(GroupId(2));
    assert_eq!(next(&mut copies), None, "two run");
    copies.ends();
    assert_eq!(next(&mut copies), Some((GroupId(2), Purpose::Settle)));
    assert_eq!((copies.running(), copies.is_settled()), (1, false));
    copies.next(Time(1), &pace, &limits, |_| Some(Purpose::Settle));
    assert_eq!((copies.next(Time(1), &pace, &limits, purpose), copies.wake_at()), (None, None));
}

#[test]
fn a_copy_that_rests_wakes_the_device_and_holds_no_settle_back() {
    let policy = Policy::favour(3, 64 << 10);
    let limits = Limits { copies: 2, rebuild: policy, ..Limits::TEST_MIN };
    let (rebuild, settle) = (GroupId(1), GroupId(2));
    let (mut copies, mut pace) = (Copies::default(), Pace::new(&limits));
    let took = Duration::from_millis(4);
    pace.client(NOW);
    pace.ended(NOW, End::Source, Purpose::Rebuild, took, NOW, BLOCK);
    let due = NOW + took * 3;
    let purpose = |group| Some(if group == settle { Purpose::Settle } else { Purpose::Rebuild });
    copies.queue(rebuild);
    assert!(!copies.is_settled(), "a group was queued");
    assert_eq!(copies.next(NOW, &pace, &limits, purpose), None);
    assert_eq!((copies.wake_at(), copies.is_settled()), (Some(due), true));
    copies.queue(settle);
    assert!(!copies.is_settled(), "another group was queued");
    let next = copies.next(NOW, &pace, &limits, purpose);
    assert_eq!((next, copies.wake_at()), (Some((settle, Purpose::Settle)), None));
    assert_eq!(copies.next(NOW, &pace, &limits, purpose), None);
    let next = copies.next(due, &pace, &limits, purpose);
    assert_eq!((next, copies.wake_at()), (Some((rebuild, Purpose::Rebuild)), None));
    assert!(copies.is_settled() && copies.none_wait(), "nothing is left");
}

#[test]
#[should_panic = "a copy ends once"]
fn no_copy_ends_twice() {
    let mut copies = Copies::default();
    copies.begins();
    copies.ends();
    copies.ends();
}

/// Queues the group, as far as it has blocks to copy, and takes its turns. Returns the ranges, in
/// blocks, of the copies that begin.
fn take_turns(rig: &mut Rig, todo: Range<u32>, change: Case) -> Vec<(u32, u32)> {
    rig.shard.pace.set(Policy::UNLIMITED, Policy::UNLIMITED);
    rig.sync().todo.insert(UNIT, blocks(todo));
    let Rig { shard, flows, out, .. } = &mut *rig;
    flows.peers.advance(shard, NOW, GROUP, out);
    change(rig);
    let Rig { shard, flows, out, .. } = &mut *rig;
    flows.peers.start_copies(shard, NOW, out);
    let begun = rig.ready();
    begun.iter().map(|key| (rig.op(*key).at / BLOCK, rig.op(*key).len / BLOCK)).collect()
}

/// What a turn begins: the copies, the blocks that are left, and whether the group waits for one
/// more turn. Two copies of two blocks may run.
#[test]
fn a_turn_begins_what_the_limits_allow_and_what_is_still_to_be_copied() {
    type Row = (&'static str, Range<u32>, Case, &'static [(u32, u32)], BlockSet, bool);
    let full: Case = |r| r.shard.limits.stream = 0;
    let none = BlockSet::EMPTY;
    let rows: &[Row] = &[
        ("one", 0..1, AS_IT_IS, &[(0, 1)], none, false),
        ("two", 0..4, AS_IT_IS, &[(0, 2), (2, 2)], none, false),
        ("more", 0..5, AS_IT_IS, &[(0, 2), (2, 2)], blocks(4..5), true),
        ("one runs", 0..4, |r| r.flows.peers.copies.begins(), &[(0, 2)], blocks(2..4), true),
        ("the stream is full", 0..4, full, &[], blocks(0..4), true),
        ("it asks again", 0..4, |r| r.sync().phase = Phase::Ask, &[], blocks(0..4), false),
        ("it was cut off", 0..4, |r| r.sync().cut_off(), &[], blocks(0..4), false),
        ("it has no sync", 0..4, |r| r.primary().sync = None, &[], none, false),
        ("it leads no more", 0..4, |r| r.replica().role = Role::Out, &[], none, false),
    ];
    for (name, todo, change, begun, left, waits) in rows {
        let mut rig = joins();
        assert_eq!(take_turns(&mut rig, todo.clone(), *change), *begun, "{name}");
        assert_eq!(!rig.flows.peers.copies.none_wait(), *waits, "{name}");
        assert_eq!(rig.left(), "", "{name}");
        let Some(sync) = rig.shard.replicas.sync_mut(GROUP) else { continue };
        assert_eq!((sync.todo.blocks(UNIT), sync.is_idle()), (*left, begun.is_empty()), "{name}");
    }
}

#[test]
fn copies_that_clients_wait_for_may_be_more_than_those_of_a_joiner() {
    for (name, make, running) in [("a joiner", joins as Make, 4), ("a settle", settles, 5)] {
        let mut rig = make();
        rig.shard.limits.copies = 4;
        let begun = take_turns(&mut rig, 0..20, AS_IT_IS);
        assert_eq!(begun.len() as u32, running, "{name}");
        assert_eq!(rig.flows.peers.copies.running(), running, "{name}");
    }
}

/// The turn of a sync whose blocks belonged to a deleted volume ends the copies.
#[test]
fn a_turn_that_finds_nothing_to_copy_seals_the_peers() {
    let mut rig = joins();
    let begun = take_turns(&mut rig, 0..4, |r| r.shard.replicas.drop_volume(UNIT.volume));
    assert_eq!((begun.len(), &rig.left()[..]), (0, "Seal to 4"));
}

// ---- one copy ----

/// What a copy of three blocks starts: a job, or a frame; the length that is left of it, in blocks;
/// and the blocks that go back to those that are to be copied.
#[test]
fn a_copy_is_of_data_or_of_zeros_and_the_rest_is_copied_later() {
    type Row = (&'static str, BlockSet, &'static str, &'static str, u32, BlockSet);
    let (zeros, none) = ("Replicate 1 zero copy to 4", BlockSet::EMPTY);
    let rows: &[Row] = &[
        ("data", blocks(0..9), "Read 4096+12288", "", 3, none),
        ("zeros", blocks(0..1), "", zeros, 3, none),
        ("data first", blocks(1..2), "Read 4096+4096", "", 1, blocks(2..4)),
        ("zeros first", blocks(2..4), "", zeros, 1, blocks(2..4)),
        ("data last", blocks(3..4), "", zeros, 2, blocks(3..4)),
    ];
    for (name, valid, jobs, left, len, todo) in rows {
        let mut rig = joins();
        rig.shard.store.valid = *valid;
        let key = begin(&mut rig, 1..4);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.start_copy(shard, NOW, key, out);
        assert_eq!((&rig.jobs()[..], &rig.left()[..]), (*jobs, *left), "{name}");
        assert_eq!((rig.op(key).at / BLOCK, rig.op(key).len / BLOCK), (1, *len), "{name}");
        assert_eq!(rig.sync().todo.blocks(UNIT), *todo, "{name}");
        let local = if jobs.is_empty() { Local::Done } else { Local::Running };
        assert_eq!(rig.op(key).local, local, "{name}");
    }
}

#[test]
fn nothing_of_a_deleted_volume_is_read_or_sent() {
    let mut rig = joins();
    rig.shard.store.valid = blocks(0..1);
    let key = begin(&mut rig, 0..1);
    rig.delete_volume();
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.peers.start_copy(shard, NOW, key, out);
    assert_eq!((rig.jobs(), rig.is_over(key)), ("".into(), true));
    assert_eq!(rig.left(), "Seal to 4", "nothing else was to be copied");
}

/// A copy goes to the peers of the sync, and to no other replica: what leaves, whether the copy is
/// over, and the last place in the stream.
#[test]
fn a_copy_that_was_read_goes_to_the_peers_that_still_get_the_stream() {
    type Row = (&'static str, Make, Case, &'static str, bool, u64);
    let two = "Replicate 1 copy to 2, Replicate 1 copy to 3";
    let rows: &[Row] = &[
        ("a joiner", joins, AS_IT_IS, "Replicate 1 copy to 4", false, 1),
        ("a settle", settles, AS_IT_IS, two, false, 1),
        ("the joiner was cut off", joins, |r| r.sync().cut_off(), "", true, 0),
    ];
    for (name, make, change, left, over, last) in rows {
        let mut rig = make();
        let key = rig.read_to_copy();
        let waits = rig.shard.queue(op(read()));
        change(&mut rig);
        let later = NOW + Duration::from_millis(3);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.send_copy(shard, later, key, one_block(), None, out);
        assert_eq!((&rig.left()[..], rig.is_over(key)), (*left, *over), "{name}");
        assert_eq!(rig.primary().last, Lsn(*last), "{name}");
        let ready: &[u64] = if *over { &[waits] } else { &[] };
        assert_eq!(rig.ready(), ready, "{name}: its range is free when it is over");
        let running = u32::from(!over);
        assert_eq!(rig.flows.peers.copies.running(), running, "{name}");
        assert_eq!(rig.sync().is_idle(), *over, "{name}");
        if let Some(op) = rig.shard.ops.get(key) {
            let Work::Copy(work) = op.work else { panic!("{name}") };
            assert_eq!(work.read, Duration::from_millis(3), "{name}");
        }
    }
}

#[test]
fn a_copy_has_the_checksum_of_the_unit_store_or_one_of_its_own() {
    let own = base::crc::crc32c(&one_block());
    for (data, known, expected) in
        [(one_block(), Some(5), 5), (one_block(), None, own), (Buf::EMPTY, None, 0)]
    {
        let mut rig = joins();
        let key = rig.read_to_copy();
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.send_copy(shard, NOW, key, data, known, out);
        assert_eq!(rig.op(key).body_crc, Some(expected));
    }
}

/// When a copy of one block ends: who has answered, what is left to be copied, and what is in
/// flight beside it.
#[test]
fn a_copy_ends_when_all_peers_have_it_and_the_last_one_seals_them() {
    type Row = (&'static str, Make, &'static [u32], Case, bool, &'static str);
    let seals = "Seal to 2, Seal to 3";
    let more: Case = |r| r.sync().todo.insert(UNIT, blocks(5..6));
    let beside: Case = |r| {
        begin(r, 7..8);
    };
    let rows: &[Row] = &[
        ("none has it", settles, &[], AS_IT_IS, false, ""),
        ("one has it", settles, &[2], AS_IT_IS, false, ""),
        ("both have it", settles, &[2, 3], AS_IT_IS, true, seals),
        ("the joiner has it", joins, &[4], AS_IT_IS, true, "Seal to 4"),
        ("another replica has it", joins, &[2], AS_IT_IS, false, ""),
        ("there is more", settles, &[2, 3], more, true, ""),
        ("another copy is in flight", settles, &[2, 3], beside, true, ""),
    ];
    for (name, make, acked, change, over, left) in rows {
        let mut rig = make();
        let peers = if rig.sync().joiner.is_some() { &[4][..] } else { &[2, 3] };
        let key = rig.send_copy(peers);
        rig.op(key).body = one_block();
        change(&mut rig);
        rig.op(key).acked = bits(acked);
        let running = rig.flows.peers.copies.running();
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.check_copy(shard, NOW, key, out);
        assert_eq!((rig.is_over(key), &rig.left()[..]), (*over, *left), "{name}");
        let ended = u32::from(*over);
        assert_eq!(rig.flows.peers.copies.running(), running - ended, "{name}");
        assert_eq!(rig.primary().commit, Lsn(ended.into()), "{name}: it leaves the stream");
        let queued = *over && !rig.sync().todo.is_empty();
        assert_eq!(!rig.flows.peers.copies.none_wait(), queued, "{name}");
        let moved =
            |peer: &u32| Note::Copied { group: GROUP, peer: DeviceId(*peer), bytes: BLOCK.into() };
        let expected: Vec<Note> = peers.iter().filter(|_| *over).map(moved).collect();
        assert_eq!(rig.notes, expected, "{name}");
        assert_eq!(rig.shard.stats.moved, expected.len() as u64 * u64::from(BLOCK), "{name}");
    }
}

#[test]
fn zeros_count_as_no_data_that_was_moved() {
    let mut rig = joins();
    let key = rig.send_copy(&[4]);
    rig.op(key).acked = bits(&[4]);
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.peers.check_copy(shard, NOW, key, out);
    assert_eq!((rig.is_over(key), &rig.left()[..]), (true, "Seal to 4"));
    assert_eq!((rig.notes.len(), rig.shard.stats.moved), (0, 0));
}

/// An operation without a place in the stream was sent to nobody, so nobody can have it.
#[test]
fn a_copy_that_is_still_read_does_not_end() {
    let mut rig = joins();
    let key = rig.read_to_copy();
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.peers.check_copy(shard, NOW, key, out);
    assert_eq!((rig.is_over(key), rig.left()), (false, "".into()));
}

/// A joiner that is cut off takes its copies with it.
#[test]
fn a_copy_to_a_joiner_that_is_cut_off_ends_without_its_answer() {
    let mut rig = joins();
    let key = rig.send_copy(&[4]);
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.peers.cut(shard, NOW, GROUP, out);
    assert_eq!((rig.is_over(key), rig.left()), (true, "".into()));
    assert_eq!(rig.flows.peers.copies.running(), 0);
    assert_eq!((rig.sync().phase, rig.sync().is_idle()), (Phase::Ask, true));
}

/// The rest after a copy of one block that took 8 ms, of which the read here took one.
#[test]
fn the_wait_for_a_receiver_counts_only_if_this_end_sets_the_pace() {
    let ms = Duration::from_millis;
    let whole = Duration::from_micros(62_500); // one block by a floor of 64 KiB per second
    for (name, policy, rest) in [
        ("by duration", Policy::favour(3, 64 << 10), ms(8) * 3),
        ("by latency", Policy::latency_micros(20_000, 64 << 10), whole - ms(1)),
    ] {
        let mut rig = joins();
        rig.shard.pace.set(Policy::UNLIMITED, policy);
        rig.shard.pace.begun(NOW, Purpose::Move);
        rig.shard.pace.client(NOW);
        let key = rig.send_copy(&[4]);
        let since = Time(NOW.0 - 8_000_000);
        rig.op(key).work = Work::Copy(Copying { since, read: ms(1), lost: false });
        rig.op(key).acked = bits(&[4]);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.check_copy(shard, NOW, key, out);
        let Rig { shard, .. } = &rig;
        let turn = shard.pace.turn(NOW, End::Source, Purpose::Move, 0, &shard.limits);
        assert_eq!(turn, Turn::At(NOW + rest), "{name}");
    }
}

// ---- blocks that can't be read ----

/// Makes a copy of these blocks find damage.
fn skip(rig: &mut Rig, copied: Range<u32>, bad: Range<u32>) -> u64 {
    let key = begin(rig, copied);
    let Rig { shard, flows, out, .. } = rig;
    flows.peers.skip_copy(shard, NOW, key, blocks(bad), out);
    key
}

#[test]
fn blocks_that_can_not_be_read_are_tried_again_after_the_rest_was_copied() {
    for (copied, bad, rest) in [
        (0..4, 1..2, runs(&[0..1, 2..4])),
        (0..4, 0..3, blocks(3..4)),
        (0..2, 0..2, BlockSet::EMPTY),
    ] {
        let mut rig = joins();
        let key = skip(&mut rig, copied, bad.clone());
        assert_eq!((rig.is_over(key), rig.left()), (true, "".into()), "{bad:?}: no seal yet");
        assert_eq!(rig.sync().todo.blocks(UNIT), rest, "{bad:?}");
        assert_eq!(rig.flows.peers.copies.none_wait(), rest.is_empty(), "{bad:?}");
        assert_eq!(rig.flows.peers.timers.wake_at(), Some(NOW + READ_AGAIN), "{bad:?}");
        assert_eq!(rig.flows.peers.copies.running(), 0, "{bad:?}");
        rig.sync().todo.clear();
        rig.sync().read_again();
        assert_eq!(rig.sync().todo.blocks(UNIT), blocks(bad), "they come back");
    }
}

/// What follows when blocks can't be read at the second try: frames, the range of the copy in
/// blocks if it goes on, and the blocks that are to be copied.
#[test]
fn blocks_that_can_not_be_read_twice_are_told_to_all_peers_as_lost() {
    type Row = (&'static str, Make, Range<u32>, Case, &'static str, Option<(u32, u32)>, BlockSet);
    let (lost, none) = ("Replicate 1 copy lost to 4", BlockSet::EMPTY);
    let two = "Replicate 1 copy lost to 2, Replicate 1 copy lost to 3";
    let rest = runs(&[0..1, 2..4]);
    let cut: Case = |r| r.sync().cut_off();
    let gone: Case = |r| r.primary().sync = None;
    let rows: &[Row] = &[
        ("all of it", joins, 0..4, AS_IT_IS, lost, Some((0, 4)), none),
        ("a part", joins, 1..2, AS_IT_IS, lost, Some((1, 1)), rest),
        ("in a settle", settles, 1..2, AS_IT_IS, two, Some((1, 1)), rest),
        ("it was cut off", joins, 1..2, cut, "", None, rest),
        ("its sync has ended", joins, 1..2, gone, "", None, none),
    ];
    for (name, make, bad, change, left, range, todo) in rows {
        let mut rig = make();
        skip(&mut rig, 0..4, 0..4);
        rig.sync().read_again();
        rig.sync().todo.clear();
        let key = begin(&mut rig, 0..4);
        change(&mut rig);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.skip_copy(shard, NOW, key, blocks(bad.clone()), out);
        assert_eq!(rig.left(), *left, "{name}");
        let op = rig.shard.ops.get(key);
        assert_eq!(op.map(|op| (op.at / BLOCK, op.len / BLOCK)), *range, "{name}");
        assert!(op.is_none_or(|op| op.body.is_empty() && op.local == Local::Done), "{name}");
        assert_eq!(rig.flows.peers.copies.running(), u32::from(range.is_some()), "{name}");
        let Some(sync) = rig.shard.replicas.sync_mut(GROUP) else { continue };
        assert_eq!(sync.todo.blocks(UNIT), *todo, "{name}");
    }
}

#[test]
fn blocks_that_fail_for_the_first_time_in_the_second_try_get_one_more() {
    let mut rig = joins();
    skip(&mut rig, 0..1, 0..1);
    rig.sync().read_again();
    rig.sync().todo.clear();
    let key = skip(&mut rig, 0..2, 0..2);
    assert_eq!((rig.is_over(key), rig.left()), (true, "".into()), "nothing is lost yet");
    rig.sync().read_again();
    assert_eq!(rig.sync().todo.blocks(UNIT), blocks(0..2));
}
