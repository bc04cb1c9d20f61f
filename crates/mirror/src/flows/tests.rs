//! Tables of the loop: what follows a job, a step and a change.

use super::*;
use crate::op::{Op, Streamed};
use crate::testing::{
    EPOCH, GROUP, NOW, Rig, SECOND, UNIT, bits, blocks, compare, fetch, link_to, named, of_client,
    op, read, stream, write,
};
use base::{BLOCK, Epoch, Lsn};
use seam::{BufPool, Note};
use wire::message::SyncStart;

type Make = fn() -> Rig;

/// Ends the job of an operation that the group counts.
fn end_job(rig: &mut Rig, key: u64, result: Result<Buf, DiskError>) {
    rig.op(key).local = Local::Running;
    rig.replica().local = 1;
    let Rig { shard, flows, out, .. } = rig;
    flows.job_done_at_once(shard, NOW, key, result, out);
    let running = rig.shard.store.jobs.len() as u32;
    assert_eq!(rig.replica().local, running, "only the jobs that follow it run");
}

/// What leaves when the job of an operation has ended, and whether the operation is over.
#[test]
fn each_kind_of_work_goes_on_in_its_own_way_after_its_job() {
    let leads: Make = || Rig::leading(&[2], &[]);
    let follows: Make = || Rig::following(false);
    let orphan = Work::Orphan { changes: true, reads: false };
    let rows: &[(&str, Make, Work, &str, bool)] = &[
        ("a read", leads, read(), "Ok", true),
        ("a write of one copy", || Rig::leading(&[], &[]), write(), "Ok", true),
        ("a write that was not answered", leads, write(), "", false),
        ("a comparison", leads, compare(), "Replicate 1 to 2", false),
        ("blocks for a scrubber", leads, Work::Whole { of: None }, "Replicate 1 to 2", false),
        ("a scrub", leads, Work::Scrub, "", true),
        ("a write of the stream", follows, Work::Stream(stream()), "Replicated Ok to 2", true),
        ("a fetch", follows, fetch(), "Fetched Ok to 2", true),
        ("an operation that counts no more", leads, orphan, "", true),
    ];
    for (name, make, work, left, over) in rows {
        let mut rig = make();
        rig.shard.store.valid = blocks(0..1);
        let key = match work {
            Work::Write(_) => {
                let others = rig.replica().others;
                let to: &[u32] = if others.is_empty() { &[] } else { &[2] };
                rig.send(op(*work), to)
            }
            Work::Whole { .. } => rig.hold(Op { sent: bits(&[2]), ..op(*work) }),
            _ => rig.hold(op(*work)),
        };
        end_job(&mut rig, key, Ok(BufPool::new(0).zeroed(BLOCK as usize)));
        assert_eq!((&rig.left()[..], rig.is_over(key)), (*left, *over), "{name}");
    }
    let mut rig = Rig::filling(&[2], 4);
    let key = rig.read_to_copy();
    end_job(&mut rig, key, Ok(BufPool::new(0).zeroed(BLOCK as usize)));
    assert_eq!(rig.left(), "Replicate 1 copy to 4");
}

/// A client's write is listed where it was executed, and nothing else is.
#[test]
fn the_list_of_executed_writes_has_what_clients_have_changed() {
    for (name, make, work, client, listed) in [
        ("a write", (|| Rig::leading(&[], &[])) as Make, write(), named(3), true),
        ("of the stream", || Rig::following(false), Work::Stream(stream()), named(3), true),
        (
            "of no client",
            || Rig::following(false),
            Work::Stream(stream()),
            Default::default(),
            false,
        ),
        ("a read", || Rig::leading(&[], &[]), read(), named(3), false),
    ] {
        let mut rig = make();
        let what = Op { client, ..op(work) };
        let key = if matches!(work, Work::Write(_)) { rig.send(what, &[]) } else { rig.hold(what) };
        end_job(&mut rig, key, Ok(Buf::EMPTY));
        let blocks = rig.replica().record.executed.of(UNIT, blocks(0..1));
        assert_eq!(!blocks.is_empty(), listed, "{name}");
    }
}

/// Content that comes from another replica comes with that replica's list.
#[test]
fn a_copy_replaces_what_the_list_says_of_its_blocks() {
    let mut rig = Rig::following(true);
    for block in [0, 1] {
        let list = &mut rig.replica().record.executed;
        list.record(named(3 + u64::from(block)), UNIT, blocks(block..block + 1), &mut 0);
    }
    let key = rig.hold(op(Work::Stream(Streamed { copy: true, ..stream() })));
    rig.op(key).list = Some([].into());
    end_job(&mut rig, key, Ok(Buf::EMPTY));
    let left = rig.replica().record.executed.entries();
    assert_eq!(left.iter().map(|e| e.write.seq).collect::<alloc::vec::Vec<_>>(), [4]);
}

#[test]
fn blocks_that_were_repaired_let_their_operation_begin_again() {
    let mut rig = Rig::leading(&[2], &[]);
    let key = rig.hold(op(read()));
    rig.flows.repairs.begin(key, crate::testing::SECOND, (0, 1));
    rig.op(key).local = Local::Repairing;
    rig.replica().local = 1;
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.job_done_at_once(shard, NOW, key, Ok(Buf::EMPTY), out);
    assert_eq!((rig.ready(), rig.left()), ([key].into(), "".into()));
    assert_eq!(rig.shard.stats.repaired, u64::from(BLOCK));
}

// ---- steps ----

fn step(rig: &mut Rig, step: Step) {
    let Rig { shard, flows, out, .. } = rig;
    flows.step(shard, NOW, step, out);
}

#[test]
fn each_step_is_done_by_its_flow() {
    let mut rig = Rig::filling(&[2], 4);
    rig.sync().phase = crate::sync::Phase::Drain;
    step(&mut rig, Step::Seal(GROUP));
    assert_eq!(rig.left(), "Seal to 4");

    let mut rig = Rig::settling(&[2]);
    rig.primary().sync = None;
    let waits = rig.shard.ops.insert(op(read()));
    rig.primary().waiting_for_service.push_back(waits);
    step(&mut rig, Step::Activate(GROUP));
    assert!(rig.replica().serves());
    assert_eq!(rig.ready(), [waits]);

    let mut rig = Rig::following(false);
    let key = rig.hold(Op { local: Local::Running, ..op(Work::Stream(stream())) });
    rig.replica().local = 1;
    step(&mut rig, Step::Refuse(key));
    assert_eq!(rig.left(), "Replicated Full to 2");

    let mut rig = Rig::leading(&[2], &[]);
    let key = rig.hold(op(read()));
    step(&mut rig, Step::Unreadable(key, (0, 1)));
    assert_eq!(rig.left(), "Media");
    let note = Note::Unreadable { group: GROUP, unit: UNIT, first: 0, blocks: 1 };
    assert_eq!(rig.notes, [note]);
}

/// What starts when an operation has its range.
#[test]
fn each_kind_of_work_starts_in_its_own_way() {
    let copied = Work::Stream(Streamed { copy: true, yields: true, ..stream() });
    let fresh = Work::Stream(Streamed { fresh: true, ..stream() });
    let zero = Work::Stream(Streamed { copy: true, yields: true, zero: true, ..stream() });
    let alone: Make = || Rig::leading(&[], &[]);
    let follows: Make = || Rig::following(true);
    let extents = Work::Extents(of_client(), NOW);
    for (name, make, work, jobs, left, waits) in [
        ("a read", alone, read(), "Read 0+4096", "", 0),
        ("extents", alone, extents, "", "Ok", 0),
        ("a write", alone, write(), "Write 0+4096", "", 0),
        ("a comparison", alone, compare(), "Read 0+4096", "", 0),
        ("a scrub", alone, Work::Scrub, "Read 0+4096", "", 0),
        ("blocks for a scrubber", alone, Work::Whole { of: None }, "Read 0+4096", "", 0),
        ("a write of the stream", follows, Work::Stream(stream()), "Write 0+4096", "", 0),
        ("a first write", follows, fresh, "Write 0+4096", "", 0),
        ("a copy that may wait", follows, copied, "", "", 1),
        ("zeros don't wait", follows, zero, "Zero 0+4096", "", 0),
        ("a fetch", follows, fetch(), "Read 0+4096", "", 0),
        ("nothing", alone, Work::Orphan { changes: true, reads: true }, "", "", 0),
    ] {
        let mut rig = make();
        let key = rig.hold(op(work));
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.start_op(shard, NOW, key, out);
        assert_eq!((&rig.jobs()[..], &rig.left()[..]), (jobs, left), "{name}");
        assert_eq!(rig.flows.secondaries.arrivals.is_empty(), waits == 0, "{name}");
    }
    let mut rig = Rig::filling(&[2], 4);
    rig.shard.store.valid = blocks(0..1);
    let key = rig.read_to_copy();
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.start_op(shard, NOW, key, out);
    assert_eq!(rig.jobs(), "Read 0+4096", "a copy");
    // What has ended by now starts nothing.
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.start_op(shard, NOW, u64::MAX, out);
    assert_eq!(rig.jobs(), "");
}

// ---- changes ----

/// What is durable counts, whatever the next configuration is by now.
#[test]
fn the_epoch_in_which_a_replica_acts_never_falls() {
    for (before, epoch, joins, expected) in [
        (3, 4, true, (Epoch(4), true)),
        (3, 4, false, (Epoch(4), false)),
        (5, 4, true, (Epoch(5), false)),
        (4, 4, true, (Epoch(4), false)),
    ] {
        let mut rig = Rig::leading(&[2], &[]);
        rig.replica().record.acted = Epoch(before);
        let Rig { shard, flows, out, .. } = &mut rig;
        let after = AfterChange::Entry { epoch: Epoch(epoch), joins };
        flows.changed(shard, NOW, GROUP, after, out);
        let record = &rig.replica().record;
        assert_eq!((record.acted, record.joiner), expected, "{before} {epoch} {joins}");
    }
}

#[test]
fn a_seal_and_a_wipe_are_answered_when_they_are_durable() {
    let link = link_to(2);
    let seal = |lsn, epoch| AfterChange::Seal { epoch, lsn: Lsn(lsn), link };
    let wipe = |epoch| AfterChange::Wipe { epoch, question: 1, link };
    let old = Epoch(3);
    for (name, after, left) in [
        ("a seal", seal(6, EPOCH), "Sealed Ok to 2"),
        ("an earlier seal", seal(5, EPOCH), ""),
        ("a seal of an epoch that has ended", seal(6, old), ""),
        ("a wipe", wipe(EPOCH), "SyncState to 2"),
        ("a wipe of an epoch that has ended", wipe(old), ""),
    ] {
        let mut rig = Rig::following(true);
        let (group, epoch, joiner) = (GROUP, EPOCH, true);
        let m = SyncStart { question: 1, group, epoch, after: Lsn(6), joiner, all: false };
        let mut dirty = Default::default();
        let secondary = rig.replica().secondary().unwrap();
        secondary.ask(link, &m, Default::default(), &mut dirty);
        secondary.take_question(false).unwrap();
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.changed(shard, NOW, GROUP, after, out);
        assert_eq!(rig.left(), left, "{name}");
        let equal = rig.replica().secondary().unwrap().is_equal();
        assert_eq!(equal, left == "Sealed Ok to 2", "{name}");
    }
}

#[test]
fn the_data_of_deleted_volumes_is_dropped_and_no_other() {
    let volume = UNIT.volume;
    let next = VolumeId(5);
    let deleted = Volumes { next, ..Volumes::default() };
    let live = Volumes { live: [volume].into(), next, ..Volumes::default() };
    let unknown = Volumes { unknown: [volume..next].into(), next, ..Volumes::default() };
    for (name, volumes, dropped) in [
        ("deleted", deleted, true),
        ("it exists", live, false),
        ("it may exist", unknown, false),
        ("not yet assigned", Volumes::default(), false),
    ] {
        let mut rig = Rig::filling(&[2], 4);
        rig.shard.store.valid = blocks(0..3);
        rig.replica().record.dirty.insert(UNIT, blocks(0..1));
        rig.sync().todo.insert(UNIT, blocks(0..1));
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.set_volumes(shard, NOW, volumes, out);
        rig.left();
        assert_eq!(rig.shard.store.valid.is_empty(), dropped, "{name}");
        assert_eq!(rig.replica().record.dirty.is_empty(), dropped, "{name}");
        assert_eq!(rig.sync().todo.is_empty(), dropped, "{name}");
        let note = Note::Dropped { volume, bytes: 3 * u64::from(base::BLOCK) };
        assert_eq!(rig.notes.contains(&note), dropped, "{name}");
        assert_eq!(rig.shard.replicas.view(GROUP).map(|view| view.active), Some(true));
    }
}

#[test]
fn reads_of_a_deleted_volume_wait_for_no_other_replica() {
    let mut rig = Rig::leading(&[2], &[]);
    rig.shard.store.valid = blocks(0..1);
    let key = rig.hold(op(read()));
    rig.op(key).local = Local::Asking;
    rig.flows.repairs.begin(key, SECOND, (0, 1));
    let volumes = Volumes { next: VolumeId(UNIT.volume.0 + 1), ..Volumes::default() };
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.set_volumes(shard, NOW, volumes, out);
    assert_eq!((&rig.left()[..], rig.is_over(key)), ("NoVolume", true));
}
