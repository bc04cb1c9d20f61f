//! Tables of syncs as a primary carries them out: states of peers, questions, and seals.

use super::*;
use crate::op::{Local, Op};
use crate::testing::{EPOCH, GROUP, NOW, Rig, UNIT, bits, blocks, op, write};
use base::{BLOCK, BlockSet, Lsn};
use seam::BufPool;

type Make = fn() -> Rig;
type Change = fn(&mut Rig);

const JOINER: DeviceId = DeviceId(4);

/// Creates a primary that has asked the joiner 4 for its state. Device 2 is in sync.
fn asks_joiner() -> Rig {
    let mut rig = Rig::leading(&[2], &[4]);
    rig.replica().record.base = Epoch(2);
    rig.primary().ask(bits(&[4]), Some(JOINER), 0).streaming = true;
    rig.flows.peers.timers.join(GROUP);
    rig
}

/// Creates a primary that has asked devices 2 and 3, with which it settles.
fn asks_members() -> Rig {
    let mut rig = Rig::leading(&[2, 3], &[]);
    rig.primary().active = false;
    rig.primary().ask(bits(&[2, 3]), None, 0);
    rig
}

/// Returns the answer of a peer that has missed nothing since epoch 2.
fn state() -> SyncState {
    SyncState {
        status: Status::Ok,
        question: 1,
        group: GROUP,
        epoch: EPOCH,
        base: Epoch(2),
        sender: Default::default(),
        more: false,
        all: false,
        empty: false,
    }
}

/// Returns the list of these blocks.
fn list(blocks: BlockSet) -> Buf {
    BufPool::new(0).copy(UnitBlocks::new(UNIT, blocks).as_bytes())
}

fn take(rig: &mut Rig, from: u32, m: &SyncState, body: &Buf) {
    let Rig { shard, flows, out, .. } = rig;
    flows.peers.take_state(shard, NOW, DeviceId(from), m, body, out);
}

#[test]
fn only_the_state_that_was_asked_for_counts() {
    let rows: &[(&str, u32, SyncState, Option<Buf>, Change)] = &[
        ("another group", 4, SyncState { group: GroupId(8), ..state() }, None, |_| {}),
        ("an older epoch", 4, SyncState { epoch: Epoch(3), ..state() }, None, |_| {}),
        ("another replica", 2, state(), None, |_| {}),
        ("no replica", 9, state(), None, |_| {}),
        ("another question", 4, SyncState { question: 2, ..state() }, None, |_| {}),
        ("half an entry", 4, state(), Some(BufPool::new(0).zeroed(20)), |_| {}),
        ("no sync", 4, state(), None, |r| r.primary().sync = None),
        ("no role", 4, state(), None, |r| r.replica().role = Role::Out),
        ("it is copying", 4, state(), None, |r| assert!(r.sync().tells(bits(&[4]), true, false))),
    ];
    for (name, from, m, body, change) in rows {
        let mut rig = asks_joiner();
        change(&mut rig);
        let body = body.clone().unwrap_or_else(|| list(blocks(0..1)));
        take(&mut rig, *from, m, &body);
        assert_eq!((&rig.left()[..], rig.notes.len()), ("", 0), "{name}");
        let Some(primary) = rig.replica().primary() else { continue };
        assert!(primary.sync.as_ref().is_none_or(|sync| sync.todo.is_empty()), "{name}");
    }
}

/// What follows from a joiner's state: frames, the phase, whether all is copied, and which blocks.
#[test]
fn a_joiner_gets_what_may_differ_or_everything() {
    let here: Change = |r| {
        r.shard.store.valid = blocks(8..10);
        r.replica().record.dirty.insert(UNIT, blocks(4..5));
    };
    let all: Change = |r| r.replica().record.all_dirty = true;
    let cut: Change = |r| r.sync().streaming = false;
    let told = blocks(0..1);
    let union = |sets: &[BlockSet]| {
        let mut all = BlockSet::EMPTY;
        sets.iter().for_each(|set| all.insert(*set));
        all
    };
    let changes = union(&[told, blocks(4..5)]);
    let everything = union(&[told, blocks(8..10)]);
    let (none, as_it_is): (_, Change) = (BlockSet::EMPTY, |_| {});
    let (m, wiped) = (state(), "SyncWipe to 4");
    let (ask, wipe, copy) = (Phase::Ask, Phase::Wipe, Phase::Copy);
    let old = SyncState { base: Epoch(1), ..m };
    let newer = SyncState { base: Epoch(3), ..m };
    let more = SyncState { more: true, ..m };
    let any = SyncState { all: true, ..m };
    let empty = SyncState { empty: true, ..old };
    let refused = SyncState { status: Status::Behind, ..m };
    let rows: &[(&str, SyncState, Change, &str, Phase, bool, BlockSet)] = &[
        ("it has missed some", m, as_it_is, "", copy, false, changes),
        ("it knows more", newer, as_it_is, "", copy, false, changes),
        ("it goes on", more, as_it_is, "", ask, false, told),
        ("it knows less", old, as_it_is, wiped, wipe, false, none),
        ("any block may differ", any, as_it_is, wiped, wipe, false, none),
        ("any block may differ here", m, all, wiped, wipe, false, none),
        ("it has nothing", empty, as_it_is, "", copy, true, everything),
        ("it can't tell", refused, as_it_is, "", ask, false, none),
        ("it was cut off", m, cut, "SyncStart to 4", ask, false, none),
        ("it was cut off, and goes on", more, cut, "", ask, false, none),
    ];
    for (name, m, change, left, phase, full, copied) in rows {
        let mut rig = asks_joiner();
        here(&mut rig);
        change(&mut rig);
        take(&mut rig, 4, m, &list(told));
        assert_eq!((&rig.left()[..], rig.sync().phase), (*left, *phase), "{name}");
        assert_eq!(rig.sync().is_full(), *full, "{name}");
        let todo = rig.sync().todo.blocks(UNIT);
        if *phase != Phase::Wipe {
            assert_eq!(todo, *copied, "{name}");
        }
        let begins = *phase == Phase::Copy;
        assert_eq!(!rig.flows.peers.copies.none_wait(), begins, "{name}");
        assert_eq!(rig.notes.len(), usize::from(begins), "{name}");
    }
}

#[test]
fn copies_of_a_settle_begin_when_all_peers_have_told_their_states() {
    let mut rig = asks_members();
    rig.shard.store.valid = blocks(8..9);
    take(&mut rig, 2, &state(), &list(blocks(0..1)));
    assert_eq!((rig.sync().phase, rig.sync().unanswered()), (Phase::Ask, bits(&[3])));
    take(&mut rig, 2, &state(), &list(blocks(5..6)));
    assert_eq!(rig.sync().todo.blocks(UNIT), blocks(0..1), "it has told its state already");
    // One peer knows nothing of what may differ: everything is copied, and nothing is deleted.
    take(&mut rig, 3, &SyncState { all: true, base: Epoch(0), ..state() }, &list(blocks(1..2)));
    assert_eq!((rig.sync().phase, rig.sync().is_full()), (Phase::Copy, true));
    assert_eq!(rig.left(), "");
    let mut expected = blocks(0..2);
    expected.insert(blocks(8..9));
    assert_eq!(rig.sync().todo.blocks(UNIT), expected);
}

#[test]
fn blocks_of_a_deleted_volume_are_not_copied() {
    let mut rig = asks_joiner();
    rig.delete_volume();
    take(&mut rig, 4, &state(), &list(blocks(0..1)));
    assert_eq!(rig.left(), "Seal to 4", "there is nothing else to do");
}

/// What is in flight and was not sent to the joiner is in no dirty set yet.
#[test]
fn writes_that_the_joiner_was_not_sent_are_copied() {
    for (to, expected) in [(&[2][..], blocks(0..1)), (&[2, 4], BlockSet::EMPTY)] {
        let mut rig = asks_joiner();
        rig.send(op(write()), to);
        take(&mut rig, 4, &state(), &Buf::EMPTY);
        assert_eq!(rig.sync().todo.blocks(UNIT), expected, "{to:?}");
    }
}

// ---- questions ----

#[test]
fn a_question_that_is_due_is_repeated_in_its_phase() {
    let seal: Change = |r| r.sync().phase = Phase::Seal(Lsn(0));
    let wipe: Change = |r| {
        r.sync().streaming = false;
        r.sync().wipe(1);
    };
    let copies: Change = |r| {
        r.sync().todo.insert(UNIT, blocks(0..2));
        r.sync().tells(bits(&[4]), true, false);
        r.sync().begin_copy(1);
        r.sync().cut_off();
    };
    let told: Change = |r| assert!(r.sync().tells(bits(&[4]), true, false));
    let phase: fn(&mut Rig, Phase) = |r, phase| r.sync().phase = phase;
    let rows: &[(&str, Make, &dyn Fn(&mut Rig), &str, bool)] = &[
        ("a settle asks", asks_members, &|_| {}, "SyncStart to 2, SyncStart to 3", true),
        ("a joiner is asked", asks_joiner, &|_| {}, "SyncStart to 4", true),
        ("while a copy is in flight", asks_joiner, &copies, "", true),
        ("a joiner is wiped", asks_joiner, &wipe, "SyncWipe to 4", true),
        ("a joiner is sealed", asks_joiner, &seal, "Seal to 4", true),
        ("peers are sealed", asks_members, &seal, "Seal to 2, Seal to 3", true),
        ("all is copied", asks_joiner, &told, "Seal to 4", true),
        ("it drains", asks_joiner, &|r| phase(r, Phase::Drain), "", false),
        ("it waits for its admission", asks_joiner, &|r| phase(r, Phase::Admit), "", false),
        ("there is no sync", asks_joiner, &|r| r.primary().sync = None, "", false),
        ("no link", asks_joiner, &|r| assert!(!r.shard.windows.connect(JOINER, None)), "", true),
    ];
    for (name, make, change, left, again) in rows {
        let mut rig = make();
        change(&mut rig);
        for (due, expected) in [(NOW + Duration::from_nanos(1), ""), (NOW, left)] {
            rig.flows.peers.timers.ask_at(GROUP, due);
            let Rig { shard, flows, out, .. } = &mut rig;
            flows.peers.ask_again(shard, NOW, out);
            assert_eq!(rig.left(), expected, "{name}");
        }
        assert_eq!(!rig.flows.peers.timers.none_ask(), *again, "{name}");
        assert!(rig.flows.peers.timers.wake_at().is_none_or(|at| at > NOW), "{name}");
    }
}

#[test]
fn each_question_waits_twice_as_long_as_the_one_before() {
    let mut rig = asks_members();
    for expected in [20, 40, 80] {
        rig.flows.peers.timers.ask_at(GROUP, NOW);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.ask_again(shard, NOW, out);
        let wait = Duration::from_millis(expected);
        assert_eq!(rig.flows.peers.timers.wake_at(), Some(NOW + wait));
    }
    rig.sync().be_patient(ASK_AT_LAST);
    rig.flows.peers.timers.ask_at(GROUP, NOW);
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.peers.ask_again(shard, NOW, out);
    assert_eq!(rig.flows.peers.timers.wake_at(), Some(NOW + ASK_AT_LAST));
}

/// Clients wait for a joiner in limbo, and for no other one.
#[test]
fn a_joiner_that_is_cut_off_holds_no_write_back() {
    for (phase, cut) in [(Phase::Copy, true), (Phase::Drain, true), (Phase::Admit, false)] {
        let mut rig = asks_joiner();
        let key = rig.send(op(write()), &[2, 4]);
        (rig.op(key).local, rig.op(key).acked) = (Local::Done, bits(&[2]));
        rig.op(key).write_mut().unwrap().answered = true;
        let waits = rig.hold(Op { at: BLOCK, ..op(write()) });
        rig.shard.replicas.block(&mut rig.shard.ops, GROUP, waits);
        rig.sync().phase = phase;
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.cut(shard, NOW, GROUP, out);
        assert_eq!((rig.is_over(key), rig.sync().streaming), (cut, !cut), "{phase:?}");
        assert_eq!((rig.ready().len(), rig.left()), (usize::from(cut), "".into()), "{phase:?}");
    }
}

// ---- the seal ----

#[test]
fn peers_are_sealed_when_everything_is_sent_and_answered() {
    let rows: &[(&str, Phase, bool, &str)] = &[
        ("it drains", Phase::Drain, false, "Seal to 4"),
        ("an operation is in flight", Phase::Drain, true, ""),
        ("it copies", Phase::Copy, false, ""),
        ("it is sealed", Phase::Seal(Lsn(0)), false, ""),
    ];
    for (name, phase, in_flight, left) in rows {
        let mut rig = Rig::filling(&[2], 4);
        if *in_flight {
            rig.send(op(write()), &[2, 4]);
        }
        rig.sync().phase = *phase;
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.seal(shard, NOW, GROUP, out);
        assert_eq!(rig.left(), *left, "{name}");
        assert_eq!(rig.flows.peers.timers.none_ask(), left.is_empty(), "{name}");
    }
}

fn confirm(rig: &mut Rig, from: u32, m: &Sealed) -> bool {
    let Rig { shard, flows, out, .. } = rig;
    flows.peers.sealed_in(shard, DeviceId(from), m, out)
}

fn sealed() -> Sealed {
    let (status, lsn, sender) = (Status::Ok, Lsn(0), Default::default());
    Sealed { status, group: GROUP, epoch: EPOCH, lsn, sender }
}

#[test]
fn a_joiner_is_in_limbo_when_it_has_recorded_its_own_seal() {
    let rows: &[(&str, u32, Sealed, Phase, bool)] = &[
        ("its seal", 4, sealed(), Phase::Seal(Lsn(0)), true),
        ("an earlier seal", 4, Sealed { lsn: Lsn(9), ..sealed() }, Phase::Seal(Lsn(0)), false),
        ("of another replica", 2, sealed(), Phase::Seal(Lsn(0)), false),
        ("it can't", 4, Sealed { status: Status::Behind, ..sealed() }, Phase::Seal(Lsn(0)), false),
        ("another epoch", 4, Sealed { epoch: Epoch(3), ..sealed() }, Phase::Seal(Lsn(0)), false),
        ("another group", 4, Sealed { group: GroupId(8), ..sealed() }, Phase::Seal(Lsn(0)), false),
        ("it was not asked", 4, sealed(), Phase::Copy, false),
        ("it is in limbo already", 4, sealed(), Phase::Admit, false),
    ];
    for (name, from, m, phase, admits) in rows {
        let mut rig = Rig::filling(&[2], 4);
        rig.sync().phase = *phase;
        let waits = rig.hold(op(write()));
        rig.shard.replicas.block(&mut rig.shard.ops, GROUP, waits);
        assert_eq!(confirm(&mut rig, *from, m), *admits, "{name}");
        let expected = if *admits { Phase::Admit } else { *phase };
        assert_eq!(rig.sync().phase, expected, "{name}");
        assert_eq!(rig.flows.peers.ready_to_admit, *admits, "{name}");
        assert_eq!(rig.ready().len(), usize::from(*admits), "{name}");
        let admissions = rig.flows.peers.admissions(&rig.shard);
        let limbo = expected == Phase::Admit;
        assert_eq!(admissions.first(), limbo.then_some(&(GROUP, EPOCH, JOINER)), "{name}");
    }
}

/// From then on this copy counts as equal, too.
#[test]
fn a_group_that_has_settled_is_clean_and_served() {
    let mut rig = Rig::settling(&[2, 3]);
    rig.replica().record.dirty.insert(UNIT, blocks(0..3));
    rig.sync().phase = Phase::Seal(Lsn(0));
    assert!(!confirm(&mut rig, 2, &sealed()) && !confirm(&mut rig, 2, &sealed()));
    assert_eq!((rig.tasks(), rig.replica().record.base), ("".into(), Epoch(0)));
    assert!(confirm(&mut rig, 3, &sealed()));
    assert!(rig.primary().sync.is_none() && rig.replica().record.dirty.is_empty());
    assert_eq!((&rig.tasks()[..], rig.replica().record.base), ("Activate", EPOCH));
    assert_eq!(rig.shard.store.changes.len(), 1, "the unit store learns it");
}

/// A joiner in place of a replica that is out of sync: bytes to copy, and bytes that the other one
/// lacks.
#[test]
fn a_move_is_reported_while_the_other_replica_is_out_of_sync() {
    let bytes = |n: u64| n * u64::from(BLOCK);
    let rows: &[(&str, Make, bool, Option<(u64, u64)>)] = &[
        ("this copy is the only one", || Rig::filling(&[], 4), false, Some((bytes(2), bytes(3)))),
        ("it has no list", || Rig::filling(&[], 4), true, Some((bytes(2), u64::MAX))),
        ("there is another copy", || Rig::filling(&[2], 4), false, None),
    ];
    for (name, make, all, expected) in rows {
        let mut rig = make();
        rig.sync().todo.insert(UNIT, blocks(0..2));
        rig.replica().record.dirty.insert(UNIT, blocks(0..3));
        rig.replica().record.all_dirty = *all;
        let moves = rig.flows.peers.moves(&rig.shard);
        let expected = expected.iter().map(|(todo, missed)| (GROUP, *todo, *missed));
        let expected: Vec<_> = expected.collect();
        assert_eq!(moves, expected, "{name}");
        rig.sync().phase = Phase::Ask;
        assert!(rig.flows.peers.moves(&rig.shard).is_empty(), "{name}: it has not begun");
    }
}
