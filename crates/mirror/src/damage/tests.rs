//! Tables of operations that meet damage.

use super::*;
use crate::op::Op;
use crate::repairs::Repairs;
use crate::testing::{
    GROUP, NOW, Rig, SECOND, UNIT, bits, blocks, compare, copy, fetch, op, read, stream, write,
};
use base::BLOCK;

type Make = fn() -> Rig;
type Change = fn(&mut Rig, u64);

const BAD: DiskError = DiskError::Corrupt { first: 0, blocks: 1 };
const LEADS: Make = || Rig::leading(&[2], &[]);
const FOLLOWS: Make = || Rig::following(false);
const AS_IT_IS: Change = |_, _| {};

fn fail(rig: &mut Rig, key: u64, error: DiskError) {
    rig.op(key).local = Local::Done;
    let Rig { shard, flows, out, .. } = rig;
    flows.job_failed(shard, NOW, key, error, out);
}

fn zeroing() -> Work {
    Work::Write(Write { zero: true, ..Write::new(crate::testing::of_client(), NOW) })
}

/// What follows when the job of an operation has met damage: frames, and whether the operation
/// waits for another replica's blocks, can start again, or is over.
#[test]
fn damage_is_repaired_refused_or_read_again_alone() {
    let whole = Work::Whole { of: None };
    let orphan = Work::Orphan { changes: false, reads: true };
    let alone: Change = |r, key| r.op(key).alone = true;
    let gone: Change = |r, _| r.delete_volume();
    let rows: &[(&str, Make, Work, Change, &str, &str)] = &[
        ("a read that shares", LEADS, read(), AS_IT_IS, "", "starts"),
        ("a scrub that shares", LEADS, Work::Scrub, AS_IT_IS, "", "starts"),
        ("a read", LEADS, read(), alone, "Fetch to 2", "asks"),
        ("a scrub", LEADS, Work::Scrub, alone, "Fetch to 2", "asks"),
        ("a comparison", LEADS, compare(), AS_IT_IS, "Fetch to 2", "asks"),
        ("a write", LEADS, write(), AS_IT_IS, "Fetch to 2", "asks, reserved"),
        ("a zeroing", LEADS, zeroing(), AS_IT_IS, "Fetch to 2", "asks"),
        ("a copy", LEADS, copy(), AS_IT_IS, "Fetch to 2", "asks"),
        ("blocks for a scrubber", LEADS, whole, AS_IT_IS, "Fetch to 2", "asks"),
        (
            "a write of the stream",
            FOLLOWS,
            Work::Stream(stream()),
            AS_IT_IS,
            "Replicated SendWhole to 2",
            "over",
        ),
        ("a fetch", FOLLOWS, fetch(), AS_IT_IS, "Fetched Media to 2", "over"),
        ("a scrub of a secondary", FOLLOWS, Work::Scrub, AS_IT_IS, "", "over"),
        ("a deleted volume", LEADS, compare(), gone, "", "starts"),
        ("a write to a deleted volume", LEADS, write(), gone, "", "runs"),
        ("a configuration that has ended", LEADS, orphan, AS_IT_IS, "", "over"),
        ("blocks of an epoch that ends", LEADS, whole, |r, _| r.end_soon(), "", "over"),
    ];
    for (name, make, work, change, left, expected) in rows {
        let mut rig = make();
        let key = rig.hold(op(*work));
        change(&mut rig, key);
        fail(&mut rig, key, BAD);
        assert_eq!((&rig.left()[..], &fate(&mut rig, key)[..]), (*left, *expected), "{name}");
        assert!(!rig.shard.failures.is_here(), "{name}");
    }
}

/// Returns in a few words what becomes of an operation.
fn fate(rig: &mut Rig, key: u64) -> alloc::string::String {
    if rig.is_over(key) {
        return "over".into();
    }
    let ready = rig.ready().contains(&key);
    let op = rig.op(key);
    let state = match op.local {
        _ if ready => "starts",
        Local::Asking => "asks",
        Local::Running => "runs",
        Local::NotStarted => "waits",
        other => panic!("{other:?}"),
    };
    [state, if op.reserved { ", reserved" } else { "" }].concat()
}

#[test]
fn a_read_that_has_met_damage_has_its_range_alone_the_next_time() {
    let mut rig = LEADS();
    let keys = [rig.hold(op(read())), rig.hold(op(read()))];
    fail(&mut rig, keys[0], BAD);
    assert!(rig.op(keys[0]).alone && rig.ready().is_empty(), "the other one still reads");
    fail(&mut rig, keys[1], BAD);
    assert_eq!(rig.ready(), [keys[0]], "the first one, and then the second one");
}

#[test]
fn any_other_error_means_that_the_device_has_failed() {
    for error in [DiskError::Io, DiskError::NoSpace, DiskError::OutOfRange] {
        let mut rig = LEADS();
        let key = rig.hold(op(read()));
        fail(&mut rig, key, error);
        assert!(rig.shard.failures.is_here() && rig.left().is_empty(), "{error:?}");
    }
}

/// The blocks of a write can't be read back for a replica that needs them whole.
#[test]
fn a_write_that_cannot_be_read_back_is_repaired_and_done_again() {
    let mut rig = LEADS();
    let write = rig.send(op(write()), &[2]);
    let to = {
        let whole = &mut rig.op(write).write_mut().unwrap().whole;
        whole.add(bits(&[2]));
        whole.begin()
    };
    rig.op(write).local = Local::Done;
    let whole = Op { sent: to, ..op(Work::Whole { of: Some(write) }) };
    let key = rig.shard.ops.insert(whole);
    fail(&mut rig, key, BAD);
    assert_eq!((rig.is_over(key), &rig.left()[..]), (true, "Fetch to 2"));
    let op = rig.op(write);
    let whole = op.write().unwrap().whole;
    assert_eq!((op.local, whole.running, whole.needed), (Local::Asking, false, bits(&[2])));
}

// ---- a body that has changed ----

#[test]
fn a_body_that_has_changed_is_sent_again_or_ends_the_process() {
    let orphan = Work::Orphan { changes: true, reads: false };
    let rows: &[(&str, Make, Work, Change, &str, &str, bool)] = &[
        ("nobody else has it", LEADS, write(), AS_IT_IS, "Damaged", "", false),
        ("it was sent", LEADS, write(), |r, k| r.op(k).sent = bits(&[2]), "", "", true),
        ("a copy", LEADS, copy(), AS_IT_IS, "", "", true),
        (
            "of the stream",
            FOLLOWS,
            Work::Stream(stream()),
            AS_IT_IS,
            "Replicated SendWhole to 2",
            "",
            false,
        ),
        ("it counts no more", LEADS, orphan, AS_IT_IS, "", "Enter", false),
    ];
    for (name, make, work, change, left, tasks, failed) in rows {
        let mut rig = make();
        let key = rig.hold(op(*work));
        change(&mut rig, key);
        fail(&mut rig, key, DiskError::BadBody);
        assert_eq!((&rig.left()[..], &rig.tasks()[..]), (*left, *tasks), "{name}");
        assert_eq!((rig.shard.failures.is_here(), rig.is_over(key)), (*failed, !failed), "{name}");
        assert!(rig.notes.contains(&Note::BadMemory { group: GROUP }), "{name}");
    }
}

#[test]
fn a_damaged_write_of_a_replica_alone_leaves_the_stream() {
    let mut rig = Rig::leading(&[], &[]);
    let key = rig.send(op(write()), &[]);
    fail(&mut rig, key, DiskError::BadBody);
    assert_eq!((&rig.left()[..], rig.primary().stream.len()), ("Damaged", 0));
}

// ---- without a good copy ----

fn unreadable(rig: &mut Rig, key: u64) {
    rig.op(key).local = Local::Asking;
    let Rig { shard, flows, out, .. } = rig;
    flows.unreadable(shard, NOW, key, (0, 1), out);
}

/// What follows when no in-sync replica has the blocks that an operation needs.
#[test]
fn an_operation_ends_when_no_replica_has_its_blocks() {
    let rows: &[(&str, Work, &str, &str, bool)] = &[
        ("a read", read(), "Media", "", false),
        ("a comparison", compare(), "Media", "", false),
        ("a scrub", Work::Scrub, "", "", false),
        ("blocks for a scrubber", Work::Whole { of: None }, "", "Enter", false),
    ];
    for (name, work, left, tasks, accused) in rows {
        let mut rig = LEADS();
        let key = rig.hold(op(*work));
        unreadable(&mut rig, key);
        assert_eq!((&rig.left()[..], &rig.tasks()[..]), (*left, *tasks), "{name}");
        assert_eq!((rig.is_over(key), rig.shard.stats.unreadable), (true, 1), "{name}");
        assert_eq!(rig.shard.failures.accused().count() > 0, *accused, "{name}");
        let note = Note::Unreadable { group: GROUP, unit: UNIT, first: 0, blocks: 1 };
        assert_eq!(rig.notes, [note], "{name}");
    }
}

/// A write ends only if no other replica can have done it.
#[test]
fn a_write_ends_without_its_blocks_if_nobody_has_done_it() {
    let rows: &[(&str, Change, &str)] = &[
        ("2 may have done it", AS_IT_IS, ""),
        ("2 has met damage, too", |r, k| whole(r, k).add(bits(&[2])), "Media"),
        (
            "2 has met it again after it was sent whole blocks",
            |r, k| {
                whole(r, k).add(bits(&[2]));
                whole(r, k).begin();
                whole(r, k).add(bits(&[2]));
            },
            "",
        ),
    ];
    for (name, change, left) in rows {
        let mut rig = Rig::filling(&[2], 4);
        let key = rig.send(op(write()), &[2, 4]);
        change(&mut rig, key);
        rig.op(key).reserved = true;
        rig.shard.store.reserved = 1;
        unreadable(&mut rig, key);
        assert_eq!(&rig.left()[..], *left, "{name}");
        let ends = !left.is_empty();
        let accused: &[base::DeviceId] = if ends { &[] } else { &[SECOND] };
        assert!(rig.shard.failures.accused().eq(accused.iter().copied()), "{name}");
        assert_eq!((rig.is_over(key), rig.shard.store.reserved == 0), (ends, ends), "{name}");
        assert_eq!(rig.primary().stream.is_empty(), ends, "{name}");
        // The joiner may have done it.
        assert_eq!(rig.sync().streaming, !ends, "{name}");
    }
}

fn whole(rig: &mut Rig, key: u64) -> &mut crate::op::WholeBlocks {
    &mut rig.op(key).write_mut().unwrap().whole
}

#[test]
fn a_copy_is_tried_twice_and_then_says_that_its_blocks_are_lost() {
    let mut rig = Rig::filling(&[], 4);
    let key = rig.read_to_copy();
    unreadable(&mut rig, key);
    assert_eq!((rig.is_over(key), rig.left()), (true, "".into()));
    assert!(rig.sync().todo.is_empty() && rig.flows.peers.timers.wake_at() > Some(NOW));
    rig.sync().read_again();
    rig.sync().todo.clear();
    let key = rig.read_to_copy();
    unreadable(&mut rig, key);
    assert_eq!((rig.is_over(key), &rig.left()[..]), (false, "Replicate 1 copy lost to 4"));
}

// ---- after a repair ----

/// What follows when the blocks of an operation were rewritten.
#[test]
fn an_operation_begins_again_when_its_blocks_are_repaired() {
    let full: Change = |r, _| r.shard.store.full = true;
    let reserved: Change = |r, k| {
        r.shard.store.full = true;
        r.op(k).reserved = true;
    };
    let rows: &[(&str, Work, Change, &str, &str, bool)] = &[
        ("a read", read(), AS_IT_IS, "starts", "", false),
        ("a scrub", Work::Scrub, AS_IT_IS, "starts", "", false),
        ("a copy to a joiner", copy(), AS_IT_IS, "starts", "", false),
        ("a write", write(), AS_IT_IS, "runs", "Write 0+4096", false),
        ("a write that has its space", write(), reserved, "runs", "Write 0+4096", false),
        ("a write without space", write(), full, "waits", "", true),
        ("a zeroing without space", zeroing(), full, "runs", "Zero 0+4096", false),
        ("blocks for a scrubber", Work::Whole { of: None }, AS_IT_IS, "runs", "Read 0+4096", false),
    ];
    for (name, work, change, expected, jobs, accused) in rows {
        let mut rig = LEADS();
        let key = rig.hold(op(*work));
        change(&mut rig, key);
        repaired(&mut rig, key);
        assert_eq!((&fate(&mut rig, key)[..], &rig.jobs()[..]), (*expected, *jobs), "{name}");
        assert_eq!(rig.shard.failures.accused().count() > 0, *accused, "{name}");
        assert_eq!(rig.shard.stats.repaired, u64::from(BLOCK), "{name}");
    }
}

/// The other copy's content may be another one, so the peers are asked once more.
#[test]
fn a_settle_that_has_repaired_its_own_copy_asks_again() {
    let mut rig = Rig::settling(&[2]);
    let key = rig.read_to_copy();
    let before = rig.primary().questions;
    repaired(&mut rig, key);
    assert_eq!((rig.is_over(key), &rig.left()[..]), (true, "SyncStart to 2"));
    assert_eq!(rig.primary().questions, before + 1);
}

fn repaired(rig: &mut Rig, key: u64) {
    rig.flows.repairs = Repairs::default();
    rig.flows.repairs.begin(key, SECOND, (0, 1));
    rig.op(key).local = Local::Done;
    let Rig { shard, flows, out, .. } = rig;
    flows.repaired(shard, NOW, key, out);
}

/// Writes that the other copy has not done are gone from these blocks.
#[test]
fn repaired_blocks_have_the_list_of_the_copy_that_they_come_from() {
    let mut rig = LEADS();
    let list = &mut rig.replica().record.executed;
    list.record(crate::testing::named(3), UNIT, blocks(0..2), &mut 0);
    let key = rig.hold(op(read()));
    rig.op(key).list = Some([].into());
    repaired(&mut rig, key);
    let kept = rig.replica().record.executed.entries();
    assert_eq!(kept.iter().map(|e| e.blocks).collect::<alloc::vec::Vec<_>>(), [blocks(1..2)]);
}
