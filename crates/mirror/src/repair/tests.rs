//! Tables of repairs: who is asked, which answers count, and what is written.

use super::*;
use crate::testing::{GROUP, NOW, Rig, SECOND, UNIT, blocks, named, of_client, op, read, write};
use base::{BLOCK, Epoch, GroupId, UnitKey};
use seam::BufPool;
use wire::Frame;
use zerocopy::IntoBytes;

/// A read at a primary that waits for its first block from device 2, and the answer.
struct Asked {
    rig: Rig,
    key: u64,
    from: DeviceId,
    answer: Fetched,
    body: Buf,
}

fn asked(rig: Rig) -> Asked {
    asked_by(rig, op(read()), &[])
}

/// The same for another operation, which was sent to these replicas.
fn asked_by(mut rig: Rig, what: Op, sent: &[u32]) -> Asked {
    let key = if sent.is_empty() { rig.hold(what) } else { rig.send(what, sent) };
    ask(&mut rig, key);
    assert_eq!(rig.left(), "Fetch to 2");
    let epoch = rig.replica().config.epoch;
    let (at, len, sender) = (0, BLOCK, Default::default());
    let answer = Fetched { status: Status::Ok, op: key, group: GROUP, epoch, at, len, sender };
    let body = BufPool::new(0).zeroed(BLOCK as usize);
    Asked { rig, key, from: SECOND, answer, body }
}

fn ask(rig: &mut Rig, key: u64) {
    let Rig { shard, flows, out, .. } = rig;
    flows.repairs.ask_other(shard, NOW, key, (0, 1), out);
}

impl Asked {
    fn take(&mut self) -> bool {
        let Rig { shard, flows, out, .. } = &mut self.rig;
        let body = self.body.clone();
        flows.repairs.fetched_in(shard, NOW, self.from, &self.answer, body, out)
    }
}

#[test]
fn only_the_answer_to_the_present_question_is_written() {
    type Row = (&'static str, fn(&mut Asked));
    let rows: &[Row] = &[
        ("nothing is asked", |a| a.rig.flows.repairs.end(a.key)),
        ("another operation asks", |a| a.answer.op += 1),
        ("another replica was asked", |a| a.from = DeviceId(3)),
        ("another group", |a| a.answer.group = GroupId(8)),
        ("an older epoch", |a| a.answer.epoch = Epoch(3)),
        ("the configuration ends", |a| a.rig.end_soon()),
        ("it waits no more", |a| a.rig.op(a.key).local = Local::NotStarted),
        ("other blocks", |a| a.answer.at = BLOCK),
        ("more blocks", |a| a.answer.len = 2 * BLOCK),
        ("a replica that does not know the epoch", |a| a.answer.status = Status::Behind),
        ("a replica of a later epoch", |a| a.answer.status = Status::Stale),
        ("a deleted volume", |a| a.answer.status = Status::NoVolume),
        ("too short a body", |a| a.body = BufPool::new(0).zeroed(BLOCK as usize - 1)),
        ("half an entry of a list", |a| a.body = BufPool::new(0).zeroed(BLOCK as usize + 32)),
    ];
    for (name, change) in rows {
        let mut asked = asked(Rig::leading(&[2, 3], &[]));
        change(&mut asked);
        let before = asked.rig.op(asked.key).local;
        assert!(!asked.take(), "{name}");
        let (rig, key) = (&mut asked.rig, asked.key);
        assert_eq!((rig.jobs(), rig.left(), rig.tasks()), Default::default(), "{name}");
        assert_eq!((rig.op(key).local, rig.replica().local), (before, 0), "{name}");
    }
    let mut asked = asked(Rig::leading(&[2, 3], &[]));
    assert!(asked.take());
    assert_eq!((&asked.rig.jobs()[..], asked.rig.replica().local), ("Write 0+4096", 1));
    assert_eq!(asked.rig.op(asked.key).local, Local::Repairing);
}

/// Others may lack what comes with the blocks if this copy settles, or if the write is in the
/// stream.
#[test]
fn repaired_blocks_are_dirty_if_another_copy_may_differ() {
    for (name, mut asked, dirty) in [
        ("a read", asked(Rig::leading(&[2], &[])), false),
        ("a write before it is sent", asked_by(Rig::leading(&[2], &[]), op(write()), &[]), false),
        ("a write that was sent", asked_by(Rig::leading(&[2], &[]), op(write()), &[2]), true),
        ("a read for a settle", asked(Rig::settling(&[2])), true),
    ] {
        assert!(asked.take());
        assert_eq!(asked.rig.shard.store.jobs[0].2.dirty, dirty, "{name}");
        let expected = if dirty { blocks(0..1) } else { blocks(0..0) };
        assert_eq!(asked.rig.replica().record.dirty.blocks(UNIT), expected, "{name}");
    }
}

#[test]
fn the_next_replica_is_asked_for_what_one_cannot_read() {
    let mut asked = asked(Rig::leading(&[2, 3], &[]));
    asked.answer.status = Status::Media;
    assert!(asked.take());
    assert_eq!((&asked.rig.left()[..], &asked.rig.tasks()[..]), ("Fetch to 3", ""));
    assert!(!asked.take(), "device 2 is asked no more");
    asked.from = DeviceId(3);
    assert!(asked.take());
    assert_eq!((&asked.rig.left()[..], &asked.rig.tasks()[..]), ("", "Unreadable 0+1"));
}

#[test]
fn blocks_for_which_there_is_no_space_cannot_be_repaired() {
    let mut asked = asked(Rig::leading(&[2], &[]));
    asked.rig.shard.store.started.push_back(Started::Full);
    assert!(asked.take());
    assert_eq!(&asked.rig.tasks()[..], "Unreadable 0+1");
    assert_eq!((asked.rig.op(asked.key).local, asked.rig.replica().local), (Local::Asking, 0));
}

#[test]
fn a_repair_that_ends_at_once_is_a_task_of_the_loop() {
    let mut asked = asked(Rig::leading(&[2], &[]));
    asked.rig.shard.store.started.push_back(Started::Done(Buf::EMPTY));
    assert!(asked.take());
    assert_eq!((&asked.rig.tasks()[..], asked.rig.replica().local), ("Done", 1));
}

#[test]
fn the_list_that_comes_with_the_blocks_is_kept_with_them() {
    let mut asked = asked(Rig::leading(&[2], &[]));
    let write = named(3);
    let entry = Executed::new(write.sdc, write.incarnation, write.seq, UNIT, blocks(0..1));
    let body = [&asked.body[..], entry.as_bytes()].concat();
    asked.body = BufPool::new(0).copy(&body);
    assert!(asked.take());
    let list = asked.rig.op(asked.key).list.clone().unwrap();
    assert_eq!(
        list.iter().map(|e| (e.write.seq, e.blocks)).collect::<alloc::vec::Vec<_>>(),
        [(3, blocks(0..1))]
    );
    let (_, _, marks) = &asked.rig.shard.store.jobs[0];
    assert!(matches!(&marks.origin, Origin::Copied(with) if with.len() == 1));
}

// ---- questions ----

#[test]
fn damaged_blocks_are_asked_for_unless_a_repair_was_in_vain() {
    type Row = (&'static str, &'static [u32], bool, &'static str, &'static str, bool);
    let rows: &[Row] = &[
        ("one other replica", &[2], false, "Fetch to 2", "", false),
        ("two", &[2, 3], false, "Fetch to 2", "", false),
        ("none", &[], false, "", "Unreadable 0+1", false),
        ("they were rewritten before", &[2], true, "", "", true),
    ];
    for (name, others, before, left, tasks, failed) in rows {
        let mut rig = Rig::leading(others, &[]);
        let key = rig.hold(op(read()));
        if *before {
            rig.flows.repairs.begin(key, SECOND, (0, 1));
        }
        ask(&mut rig, key);
        assert_eq!((&rig.left()[..], &rig.tasks()[..]), (*left, *tasks), "{name}");
        assert_eq!(rig.shard.failures.is_here(), *failed, "{name}");
        let note = Note::NotMended { group: GROUP, unit: UNIT, first: 0, blocks: 1 };
        assert_eq!(rig.notes.contains(&note), *failed, "{name}");
    }
}

/// The failed job has released its space. Zeros need none.
#[test]
fn a_write_that_asks_has_its_space_reserved_again() {
    let zero = Work::Write(Write { zero: true, ..Write::new(of_client(), NOW) });
    for (name, work, reserved, expected) in [
        ("a write", write(), false, 1),
        ("a write that has it", write(), true, 0),
        ("zeros", zero, false, 0),
        ("a read", read(), false, 0),
    ] {
        let mut rig = Rig::leading(&[2], &[]);
        let key = rig.hold(Op { reserved, ..op(work) });
        ask(&mut rig, key);
        assert_eq!(rig.shard.store.reserved, expected, "{name}");
        assert_eq!(rig.op(key).reserved, reserved || expected == 1, "{name}");
    }
}

#[test]
fn a_question_names_the_blocks_and_is_repeated_until_it_is_answered() {
    let mut rig = Rig::leading(&[2], &[]);
    let every = rig.shard.limits.beacon_every;
    let key = rig.hold(Op { len: 4 * BLOCK, ..op(read()) });
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.repairs.ask_other(shard, NOW, key, (2, 2), out);
    let range = UnitRange { unit: UNIT, at: 2 * BLOCK, len: 2 * BLOCK };
    let fetch = Fetch { op: key, group: GROUP, epoch: crate::testing::EPOCH, range };
    assert!(matches!(rig.frames()[..], [(_, Frame::Fetch(m), _)] if m == fetch));
    let later = NOW + every;
    for (name, now, of, waits, left) in [
        ("too early", NOW, None, true, ""),
        ("a new link to 2", NOW, Some(SECOND), true, "Fetch to 2"),
        ("a new link to 3", NOW, Some(DeviceId(3)), true, ""),
        ("it waits no more", later, None, false, ""),
        ("a beacon period later", later, None, true, "Fetch to 2"),
        ("again too early", later, None, true, ""),
    ] {
        rig.op(key).local = if waits { Local::Asking } else { Local::NotStarted };
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.repairs.fetch_again(shard, now, of, out);
        assert_eq!(rig.left(), left, "{name}");
    }
}

/// A replica that knows of the deletion has nothing to answer.
#[test]
fn operations_of_a_deleted_volume_wait_for_no_blocks() {
    let other = UnitKey { volume: VolumeId(2), index: 0 };
    for (unit, expected) in [(UNIT, Local::NotStarted), (other, Local::Asking)] {
        let mut rig = Rig::leading(&[2], &[]);
        let key = rig.hold(Op { unit, ..op(read()) });
        ask(&mut rig, key);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.repairs.end_repairs(shard, NOW, UNIT.volume, out);
        assert_eq!((rig.op(key).local, rig.ready() == [key]), (expected, unit == UNIT));
        assert_eq!(rig.flows.repairs.get(key).is_none(), unit == UNIT);
    }
}
