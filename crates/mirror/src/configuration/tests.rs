//! Tables of the change of configurations: what counts as news, what ends, and how the next one
//! begins.

use super::*;
use crate::lease::PeerState;
use crate::op::Op;
use crate::sync::Phase;
use crate::testing::{
    EPOCH, GROUP, ME, NOW, Rig, SECOND, UNIT, bits, blocks, compare, config, fetch, of_client, op,
    read, stream, write,
};
use alloc::format;
use alloc::string::String;
use base::{BLOCK, BlockSet, Incarnation, Limits, Lsn, MapVersion};
use seam::ReplicaRecord;
use wire::Frame;
use wire::message::SyncStart;

type Make = fn() -> Rig;
type Case = fn(&mut Rig);

const NEXT: Epoch = Epoch(EPOCH.0 + 1);

/// Returns a configuration of the next epoch, led by the first device in sync.
fn next(in_sync: &[u32], joiners: &[u32]) -> GroupConfig {
    GroupConfig { epoch: NEXT, ..config(in_sync, joiners) }
}

fn configure(rig: &mut Rig, config: &GroupConfig, from_mdm: bool) -> bool {
    let Rig { shard, flows, out, .. } = rig;
    flows.configure(shard, NOW, GROUP, config, from_mdm, out)
}

fn enter(rig: &mut Rig) {
    let Rig { shard, flows, out, .. } = rig;
    flows.epochs.enter(shard, &mut flows.peers, NOW, GROUP, out);
}

/// Returns a short text for the role of the replica.
fn role(rig: &mut Rig) -> &'static str {
    match &rig.replica().role {
        Role::Out => "out",
        Role::Primary(primary) if primary.active => "serves",
        Role::Primary(_) => "leads",
        Role::Secondary(secondary) if secondary.is_joiner() => "joins",
        Role::Secondary(_) => "follows",
    }
}

/// Returns the changes of the record that something waits for, as a text.
fn waits_for(rig: &Rig) -> String {
    let waiting = rig.shard.store.changes.iter().filter(|(token, _)| token.is_some());
    let texts = waiting.map(|(_, changes)| match changes[..] {
        [Change::Acted(epoch)] => format!("acts {}", epoch.0),
        [Change::ActedAsJoiner(epoch)] => format!("joins {}", epoch.0),
        [Change::Wipe] => "wipes".into(),
        _ => panic!("{changes:?}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Makes the first change durable that something waits for.
fn make_durable(rig: &mut Rig) {
    let changes = &mut rig.shard.store.changes;
    let first = changes.iter().position(|(token, _)| token.is_some()).unwrap();
    let token = changes.remove(first).0.unwrap();
    let (group, after) = rig.shard.jobs.take_change(token).unwrap();
    let Rig { shard, flows, out, .. } = rig;
    flows.changed(shard, NOW, group, after, out);
}

// ---- news ----

fn plain(epoch: u64, primary: u32, replicas: &[u32]) -> GroupConfig {
    GroupConfig {
        epoch: Epoch(epoch),
        primary: Some(DeviceId(primary)),
        replicas: replicas.iter().map(|id| DeviceId(*id)).collect(),
        ..GroupConfig::default()
    }
}

#[test]
fn only_newer_configurations_count_and_those_that_an_mdm_puts_right() {
    let mut replica = Replica::new(ReplicaRecord { acted: Epoch(4), ..Default::default() });
    // After a restart, before any configuration.
    assert_eq!(replica.judge(&plain(4, 1, &[1, 2]), false), News::None, "R2");
    assert_eq!(replica.judge(&plain(5, 1, &[1, 2]), false), News::New);
    replica.enter(plain(5, 2, &[1, 2]), MapVersion(1), ME);
    for (next, sure, expected) in [
        (plain(5, 2, &[1, 2]), false, News::None),
        (plain(5, 2, &[1, 2]), true, News::Confirmed),
        (plain(5, 3, &[1, 3]), false, News::None),
        (plain(5, 3, &[1, 3]), true, News::New),
        (plain(4, 2, &[1, 2]), true, News::None),
        (plain(6, 2, &[1, 2]), false, News::New),
    ] {
        assert_eq!(replica.judge(&next, sure), expected, "{next:?} {sure}");
    }
    // One that waits to be entered is the newest.
    replica.next = Some((plain(7, 2, &[1, 2]), MapVersion(2)));
    assert_eq!(replica.judge(&plain(6, 2, &[1, 2]), false), News::None);
}

#[test]
fn a_group_that_stops_waits_for_no_leases() {
    let (a, b, mut epochs) = (GroupId(1), GroupId(2), Epochs::default());
    assert!(epochs.none_wait() && epochs.wake_at().is_none());
    assert!(epochs.wait_grace(a, Time(10)) && !epochs.wait_grace(a, Time(15)));
    assert!(epochs.wait_grace(b, Time(20)));
    assert_eq!(epochs.wake_at(), Some(Time(15)));
    assert!(!epochs.is_grace_over(Time(14)) && epochs.is_grace_over(Time(15)));
    epochs.stop(a);
    assert_eq!((epochs.wake_at(), epochs.is_grace_over(Time(19))), (Some(Time(20)), false));
    epochs.stop(b);
    assert!(epochs.none_wait() && epochs.wake_at().is_none());
}

#[test]
fn a_new_primary_knows_whose_leases_may_still_run() {
    let limits = Limits::SHIPPED;
    let mut leases = Leases::new(Time(0), &limits);
    let now = Time(0) + limits.grace * 10;
    assert!(leases.grant(now, DeviceId(2), Incarnation(1), MapVersion(1)));
    let mut replica = Replica::new(ReplicaRecord::default());
    replica.enter(plain(5, 2, &[1, 2, 3]), MapVersion(1), ME);
    // Device 2 leaves the group while it may still read; device 3 has no lease.
    replica.remember_promises(&plain(6, 3, &[1, 3]), ME, now, &leases);
    assert_eq!(replica.former, [DeviceId(2)]);
    assert!(replica.promises.is_empty(), "another device leads");
    replica.enter(plain(6, 3, &[1, 3]), MapVersion(2), ME);
    replica.remember_promises(&plain(7, 1, &[1, 3]), ME, now, &leases);
    let promised = |device| (DeviceId(device), leases.promised(DeviceId(device)));
    assert_eq!(replica.promises, [promised(3), promised(2)]);
    let later = now + limits.grace;
    replica.remember_promises(&plain(8, 1, &[1, 3]), ME, later, &leases);
    assert!(replica.former.is_empty(), "its lease has run out");
}

/// What a configuration changes: whether it is taken over, the newest epoch, whether an MDM still
/// has to confirm it, and what a client is told whose read waits.
#[test]
fn a_configuration_counts_if_it_is_newer_or_an_mdm_puts_another_server_right() {
    type Row = (&'static str, GroupConfig, bool, bool, bool, u64, bool, &'static str);
    let same = config(&[1, 2], &[]);
    let other = config(&[1, 3], &[]);
    let old = GroupConfig { epoch: Epoch(3), ..same.clone() };
    let new = next(&[1, 2], &[]);
    let foreign = GroupConfig { replicas: [SECOND].into(), ..next(&[2], &[]) };
    let unsound = GroupConfig { primary: Some(DeviceId(3)), ..new.clone() };
    let rows: &[Row] = &[
        ("the same", same.clone(), false, false, false, 4, false, ""),
        ("the same from an MDM", same.clone(), true, false, false, 4, false, ""),
        ("a confirmation", same.clone(), true, true, true, 4, false, ""),
        ("a server repeats it", same, false, true, false, 4, true, ""),
        ("a server differs", other.clone(), false, false, false, 4, false, ""),
        ("a server differs from a server", other.clone(), false, true, false, 4, true, ""),
        ("an MDM differs from an MDM", other.clone(), true, false, false, 4, false, ""),
        ("an MDM differs from a server", other, true, true, true, 4, false, "Stale"),
        ("an older one", old, true, true, false, 4, true, ""),
        ("a newer one", new.clone(), true, false, true, 5, false, "Stale"),
        ("a newer one from a server", new.clone(), false, false, true, 5, true, "Stale"),
        ("a newer one ends a doubt", new, true, true, true, 5, false, "Stale"),
        ("a newer one without this device", foreign, false, false, true, 5, true, "Stale"),
        ("a newer one that no MDM names", unsound, false, false, false, 4, false, ""),
    ];
    for (name, config, from_mdm, unsure, taken, epoch, unsure_after, left) in rows {
        let mut rig = Rig::leading(&[2], &[]);
        rig.hold(op(read()));
        rig.shard.known.heard_of(GROUP, !unsure);
        assert_eq!(configure(&mut rig, config, *from_mdm), *taken, "{name}");
        assert_eq!(rig.replica().newest().epoch, Epoch(*epoch), "{name}");
        assert_eq!(rig.shard.known.is_unsure(GROUP), *unsure_after, "{name}");
        assert_eq!(rig.left(), *left, "{name}");
    }
}

#[test]
fn a_device_has_replicas_only_of_groups_that_name_it() {
    let group = GroupId(8);
    for (replicas, expected) in [(&[ME, SECOND][..], true), (&[SECOND], false)] {
        let mut rig = Rig::leading(&[2], &[]);
        let config = GroupConfig { replicas: replicas.to_vec(), ..next(&[2], &[]) };
        let Rig { shard, flows, out, .. } = &mut rig;
        let taken = flows.configure(shard, NOW, group, &config, true, out);
        assert_eq!((taken, rig.shard.replicas.has(group)), (expected, expected));
    }
}

// ---- the end of a configuration ----

/// Adds an operation whose media job is in this state.
fn runs(rig: &mut Rig, work: Work, local: Local) -> u64 {
    let key = rig.hold(Op { local, ..op(work) });
    rig.replica().local = u32::from(matches!(local, Local::Running | Local::Repairing));
    key
}

/// What a new configuration makes of an operation: the answer, and whether the operation is over or
/// only its media job is left.
#[test]
fn operations_end_unanswered_or_stale_and_jobs_run_on_for_nobody() {
    type Row = (&'static str, Make, fn(&mut Rig) -> u64, &'static str, bool);
    let leads: Make = || Rig::leading(&[2], &[]);
    let fills: Make = || Rig::filling(&[2], 4);
    let follows: Make = || Rig::following(false);
    let rows: &[Row] = &[
        ("a read", leads, |r| runs(r, read(), Local::NotStarted), "Stale", true),
        ("a read that runs", leads, |r| runs(r, read(), Local::Running), "Stale", false),
        ("extents", leads, |r| r.hold(op(Work::Extents(of_client(), NOW))), "Stale", true),
        ("a comparison", leads, |r| runs(r, compare(), Local::Running), "Stale", false),
        ("a write", leads, |r| runs(r, write(), Local::NotStarted), "Stale", true),
        ("a write that runs", leads, |r| runs(r, write(), Local::Running), "Stale", false),
        ("a write that was sent", leads, |r| r.send(op(write()), &[2]), "Stale", true),
        ("a write that is repaired", leads, |r| runs(r, write(), Local::Repairing), "Stale", false),
        ("a copy that is read", fills, |r| r.read_to_copy(), "", true),
        ("a copy that was sent", fills, |r| r.send_copy(&[4]), "", true),
        ("of the stream", follows, |r| r.hold(op(Work::Stream(stream()))), "", true),
        (
            "of the stream, running",
            follows,
            |r| runs(r, Work::Stream(stream()), Local::Running),
            "",
            false,
        ),
        ("a fetch", follows, |r| runs(r, fetch(), Local::Running), "", false),
        ("a scrub", leads, |r| runs(r, Work::Scrub, Local::Running), "", false),
        ("whole blocks", leads, |r| r.send(op(Work::Whole { of: None }), &[2]), "", true),
    ];
    for (name, make, begin, left, over) in rows {
        let mut rig = make();
        let key = begin(&mut rig);
        assert!(configure(&mut rig, &next(&[1, 2], &[]), true), "{name}");
        assert_eq!((&rig.left()[..], rig.is_over(key)), (*left, *over), "{name}");
        assert_eq!(rig.flows.peers.copies.running(), 0, "{name}");
        assert_eq!(rig.shard.windows.most_flying(), 0, "{name}: its room is free");
        assert_eq!(role(&mut rig), "out", "{name}");
        let waits = rig.shard.store.changes.is_empty();
        assert_eq!(waits, !over, "{name}: the next one begins when no job runs");
        if !over {
            assert!(rig.op(key).is_orphan(), "{name}");
            let newest = GroupConfig { epoch: Epoch(6), ..next(&[1, 2], &[]) };
            assert!(configure(&mut rig, &newest, true), "{name}");
            assert_eq!((rig.left(), rig.is_over(key)), ("".into(), false), "{name}: once");
        }
    }
}

/// What clients are told whose operations wait for something else than a job.
#[test]
fn clients_are_told_whatever_their_operations_wait_for() {
    type Row = (&'static str, Make, fn(&mut Rig) -> u64, &'static str);
    let leads: Make = || Rig::leading(&[2], &[]);
    let rows: &[Row] = &[
        (
            "for its range",
            leads,
            |r| {
                r.hold(op(write()));
                r.shard.queue(op(write()))
            },
            "Stale, Stale",
        ),
        (
            "for a lease",
            leads,
            |r| {
                let key = r.hold(op(read()));
                r.shard.replicas.block(&mut r.shard.ops, GROUP, key);
                key
            },
            "Stale",
        ),
        (
            "for service",
            || Rig::settling(&[2]),
            |r| {
                let key = r.shard.ops.insert(op(read()));
                r.primary().waiting_for_service.push_back(key);
                key
            },
            "Stale",
        ),
        (
            "for another replica's blocks",
            leads,
            |r| {
                let key = r.shard.ops.insert(Op { local: Local::Asking, ..op(read()) });
                r.flows.repairs.begin(key, SECOND, (0, 1));
                key
            },
            "Stale",
        ),
    ];
    for (name, make, begin, left) in rows {
        let mut rig = make();
        let key = begin(&mut rig);
        assert!(configure(&mut rig, &next(&[2, 1], &[]), true), "{name}");
        let frames = rig.frames();
        let texts: Vec<_> = frames.iter().map(|(to, f, _)| crate::testing::text(*to, f)).collect();
        assert_eq!((&texts.join(", ")[..], rig.is_over(key)), (*left, true), "{name}");
        let told =
            |f: &Frame| matches!(f, Frame::Reply(m) if (m.epoch, m.leader) == (NEXT, Some(SECOND)));
        assert!(frames.iter().all(|(_, f, _)| told(f)), "{name}: the next epoch and its primary");
        assert!(rig.ready().iter().all(|key| rig.is_over(*key)), "{name}: nothing starts");
    }
}

/// It has no range any more, so it is found only in the stream.
#[test]
fn a_write_that_only_a_joiner_lacks_ends_although_its_client_has_the_answer() {
    let mut rig = Rig::filling(&[2], 4);
    let key = rig.send(op(write()), &[2, 4]);
    (rig.op(key).local, rig.op(key).acked) = (Local::Done, bits(&[2]));
    rig.shard.check_write(NOW, key, &mut rig.out);
    assert_eq!((&rig.left()[..], rig.replica().locks.is_empty()), ("Ok", true));
    assert!(configure(&mut rig, &next(&[1, 2], &[]), true));
    assert!(rig.is_over(key));
    assert_eq!(rig.shard.windows.most_flying(), 0, "its room is free");
    assert_eq!(rig.replica().record.dirty.blocks(UNIT), blocks(0..1));
}

#[test]
fn space_that_was_reserved_is_free_when_the_configuration_ends() {
    let mut rig = Rig::leading(&[2], &[]);
    let key = rig.send(op(write()), &[2]);
    assert!(rig.shard.reserve(NOW, (GROUP, UNIT, 0, BLOCK), &mut rig.out));
    rig.op(key).reserved = true;
    assert!(configure(&mut rig, &next(&[1, 2], &[]), true));
    assert_eq!(rig.shard.store.reserved, 0);
}

/// Which blocks are dirty, and since when, after a configuration in which a write of the first
/// block was in flight. Blocks 4 and 5 were dirty before.
#[test]
fn what_was_in_flight_is_dirty_and_what_an_admitted_joiner_has_is_not() {
    type Row = (&'static str, Make, Case, GroupConfig, BlockSet, u64);
    let leads: Make = || Rig::leading(&[2], &[]);
    let fills: Make = || Rig::filling(&[2], 4);
    let limbo: Case = |r| {
        r.send(op(write()), &[2, 4]);
        r.sync().phase = Phase::Admit;
    };
    let sent: Case = |r| {
        r.send(op(write()), &[2]);
    };
    let done: Case = |r| {
        r.send(Op { at: 7 * BLOCK, ..op(write()) }, &[2]);
        r.send(op(write()), &[2]);
        r.primary().leave(Lsn(2));
    };
    let admits = next(&[1, 2, 4], &[]);
    let mut all = blocks(4..6);
    let before = all;
    all.insert(blocks(0..1));
    let mut last = before;
    last.insert(blocks(7..8));
    let rows: &[Row] = &[
        ("nothing", leads, |_| {}, next(&[1, 2], &[]), before, 2),
        ("a write", leads, sent, next(&[1, 2], &[]), all, 2),
        ("one of two is everywhere", leads, done, next(&[1, 2], &[]), last, 2),
        ("of the stream", || Rig::following(false), uncertain, next(&[1, 2], &[]), all, 2),
        ("it is admitted", fills, limbo, admits.clone(), blocks(0..1), 4),
        ("it is not admitted", fills, limbo, next(&[1, 2], &[4]), all, 2),
        ("this one is not in sync", fills, limbo, next(&[2, 4], &[]), all, 2),
        ("it was not in limbo", fills, sent, admits, all, 2),
    ];
    for (name, make, change, config, dirty, base) in rows {
        let mut rig = make();
        rig.replica().record.dirty.insert(UNIT, blocks(4..6));
        rig.replica().record.base = Epoch(2);
        change(&mut rig);
        assert!(configure(&mut rig, config, true), "{name}");
        let record = &rig.replica().record;
        assert_eq!((record.dirty.blocks(UNIT), record.base), (*dirty, Epoch(*base)), "{name}");
        let told = rig.shard.store.changes.iter().find(|(token, _)| token.is_none());
        let told = told.map(|(_, changes)| format!("{changes:?}"));
        let set = [(UNIT, blocks(0..1))].into();
        let clean = [Change::CleanAll, Change::Base(EPOCH), Change::Dirty(set)];
        let expected = (*base == 4).then(|| format!("{clean:?}"));
        assert_eq!(told, expected, "{name}: the unit store");
    }
}

/// Makes a write of the first block uncertain at a secondary.
fn uncertain(rig: &mut Rig) {
    let (question, group, epoch, joiner) = (1, GROUP, EPOCH, false);
    let m = SyncStart { question, group, epoch, after: Lsn(0), joiner, all: false };
    let mut dirty = Default::default();
    let secondary = rig.replica().secondary().unwrap();
    secondary.ask(crate::testing::link_to(2), &m, Default::default(), &mut dirty);
    secondary.take(Lsn(1), 0, Some((UNIT, blocks(0..1))), &mut dirty);
    secondary.end(Lsn(1), wire::Status::Ok);
}

#[test]
fn a_device_that_stores_nothing_has_no_dirty_blocks() {
    let mut rig = Rig::leading(&[2], &[]);
    rig.shard.store.null = true;
    rig.send(op(write()), &[2]);
    assert!(configure(&mut rig, &next(&[1, 2], &[]), true));
    assert!(rig.replica().record.dirty.is_empty());
}

/// Which devices are known to have read and done everything, once each has answered something that
/// was sent later: all except those that will be asked for what they have done.
#[test]
fn only_devices_that_will_be_asked_still_have_to_tell_what_they_have_done() {
    for (name, config, clear) in [
        ("both are asked", next(&[1, 2], &[4]), [false, false]),
        ("the joiner is asked", next(&[1], &[4]), [true, false]),
        ("the secondary is asked", next(&[1, 2], &[]), [false, true]),
        ("another joiner comes first", next(&[1, 2], &[3, 4]), [false, true]),
        ("another device leads", next(&[2, 1], &[4]), [true, true]),
    ] {
        let mut rig = Rig::filling(&[2], 4);
        rig.send(op(write()), &[2, 4]);
        assert!(configure(&mut rig, &config, true), "{name}");
        let windows = &mut rig.shard.windows;
        for (device, clear) in [2, 4].map(DeviceId).into_iter().zip(clear) {
            let number = windows.next_number();
            windows.answered(NOW, device, 0, number);
            assert_eq!(windows.is_clear(device, GROUP), clear, "{name}: {device}");
        }
    }
}

#[test]
fn nothing_waits_for_a_configuration_that_has_ended() {
    let mut rig = Rig::filling(&[2], 4);
    let key = rig.hold(op(read()));
    rig.shard.replicas.block(&mut rig.shard.ops, GROUP, key);
    rig.flows.peers.timers.ask_at(GROUP, NOW);
    assert!(rig.flows.epochs.wait_grace(GROUP, NOW));
    assert!(configure(&mut rig, &next(&[1, 2], &[]), true));
    assert!(rig.flows.peers.timers.none_ask() && rig.flows.epochs.none_wait());
    assert_eq!(rig.flows.peers.timers.joining().count(), 0);
    assert_eq!(rig.shard.ops.next_blocked(), None);
}

#[test]
#[should_panic = "no step outlives its configuration"]
fn no_configuration_ends_between_a_step_and_its_cause() {
    let mut rig = Rig::leading(&[2], &[]);
    rig.shard.jobs.push_step(crate::jobs::Step::Activate(GROUP));
    configure(&mut rig, &next(&[1, 2], &[]), true);
}

// ---- the next configuration ----

/// What has to be durable before a replica acts, and its role then (R2).
#[test]
fn a_replica_acts_in_an_epoch_when_that_is_durable_and_not_before() {
    type Row = (&'static str, GroupConfig, &'static str, &'static str, u64, bool);
    let lost = GroupConfig { lost: true, ..next(&[1], &[]) };
    let unled = GroupConfig { primary: None, ..next(&[1, 2], &[]) };
    let rows: &[Row] = &[
        ("it leads alone", next(&[1], &[]), "acts 5", "serves", 5, false),
        ("it leads others", next(&[1, 2], &[]), "acts 5", "leads", 5, false),
        ("it follows", next(&[2, 1], &[]), "acts 5", "follows", 5, false),
        ("it joins", next(&[2], &[1]), "joins 5", "joins", 5, true),
        ("it has no part", next(&[2], &[]), "", "out", 3, true),
        ("every copy is lost", lost, "", "out", 3, true),
        ("nobody leads", unled, "", "out", 3, true),
    ];
    for (name, config, waits, then, acted, joiner) in rows {
        let mut rig = Rig::leading(&[2], &[]);
        (rig.replica().record.acted, rig.replica().record.joiner) = (Epoch(3), true);
        rig.replica().record.base = Epoch(1);
        assert!(configure(&mut rig, config, true), "{name}");
        enter(&mut rig);
        assert_eq!(waits_for(&rig), *waits, "{name}: it is told once");
        let at_once = waits.is_empty();
        assert_eq!(rig.replica().next.is_none(), at_once, "{name}");
        if !at_once {
            assert_eq!((role(&mut rig), &rig.left()[..]), ("out", ""), "{name}");
            assert!(rig.notes.is_empty(), "{name}: nobody is served yet");
            make_durable(&mut rig);
        }
        assert!(rig.replica().next.is_none(), "{name}");
        assert_eq!((rig.replica().config.epoch, role(&mut rig)), (NEXT, *then), "{name}");
        let record = &rig.replica().record;
        assert_eq!((record.acted, record.joiner), (Epoch(*acted), *joiner), "{name}");
    }
}

/// What a restart does not bring back needs no record, and what is recorded is recorded once.
#[test]
fn an_epoch_begins_at_once_where_nothing_has_to_be_recorded() {
    let volatile: Case = |r| r.shard.store.volatile = true;
    let acted: Case = |r| r.replica().record.acted = NEXT;
    let noted: Case = |r| r.replica().noted = NEXT;
    for (name, change, then) in
        [("volatile", volatile, "follows"), ("acted", acted, "follows"), ("noted", noted, "out")]
    {
        let mut rig = Rig::leading(&[2], &[]);
        change(&mut rig);
        assert!(configure(&mut rig, &next(&[2, 1], &[]), true), "{name}");
        assert_eq!((&waits_for(&rig)[..], role(&mut rig)), ("", then), "{name}");
    }
}

#[test]
fn a_newer_configuration_takes_the_place_of_one_that_is_not_durable_yet() {
    let newest = |in_sync| GroupConfig { epoch: Epoch(6), ..next(in_sync, &[]) };
    let mut rig = Rig::leading(&[2], &[]);
    assert!(configure(&mut rig, &next(&[1], &[]), true));
    assert!(configure(&mut rig, &newest(&[2, 1]), true));
    assert_eq!(waits_for(&rig), "acts 5, acts 6");
    make_durable(&mut rig);
    assert_eq!((rig.replica().record.acted, role(&mut rig)), (Epoch(5), "out"));
    assert!(rig.replica().config.epoch == EPOCH && rig.notes.is_empty(), "5 is not entered");
    make_durable(&mut rig);
    assert_eq!((rig.replica().config.epoch, role(&mut rig)), (Epoch(6), "follows"));

    let mut rig = Rig::leading(&[2], &[]);
    assert!(configure(&mut rig, &next(&[1], &[]), true));
    assert!(configure(&mut rig, &newest(&[2]), true));
    assert_eq!((rig.replica().config.epoch, role(&mut rig)), (Epoch(6), "out"));
    make_durable(&mut rig);
    assert_eq!((rig.replica().record.acted, role(&mut rig)), (Epoch(5), "out"));
}

#[test]
fn no_epoch_begins_while_a_job_of_the_last_one_runs() {
    let mut rig = Rig::leading(&[2], &[]);
    let key = runs(&mut rig, write(), Local::Running);
    rig.shard.store.volatile = true;
    assert!(configure(&mut rig, &next(&[2, 1], &[]), true));
    assert_eq!((role(&mut rig), rig.replica().config.epoch), ("out", EPOCH));
    rig.replica().local = 0;
    rig.shard.end_op(key);
    enter(&mut rig);
    assert_eq!((role(&mut rig), rig.replica().config.epoch), ("follows", NEXT));
}

#[test]
#[should_panic = "no replica acts in an epoch after a newer one (R2)"]
fn a_replica_that_has_acted_in_a_newer_epoch_does_not_go_back() {
    let mut rig = Rig::leading(&[2], &[]);
    rig.replica().record.acted = Epoch(NEXT.0 + 1);
    configure(&mut rig, &next(&[2, 1], &[]), true);
}

/// Since when the dirty set is complete, and what the unit store is told of that (R5).
#[test]
fn a_copy_that_never_was_equal_to_another_one_knows_nothing_of_earlier_epochs() {
    let lost = GroupConfig { lost: true, ..next(&[1], &[]) };
    for (name, before, config, after) in [
        ("it is alone", 0, next(&[1], &[]), 5),
        ("it was equal before", 2, next(&[1], &[]), 2),
        ("another one is in sync", 0, next(&[1, 2], &[]), 0),
        ("it follows", 0, next(&[2, 1], &[]), 0),
        ("it is another one", 0, next(&[2], &[1]), 0),
        ("it does not act", 0, lost, 0),
    ] {
        let mut rig = Rig::leading(&[2], &[]);
        rig.replica().record.base = Epoch(before);
        assert!(configure(&mut rig, &config, true), "{name}");
        assert_eq!(rig.replica().record.base, Epoch(after), "{name}");
        let told = |changes: &[Change]| matches!(changes, [Change::Base(Epoch(5))]);
        let first = rig.shard.store.changes.first();
        let first = first.is_some_and(|(token, changes)| token.is_none() && told(changes));
        assert_eq!(first, before != after, "{name}");
    }
}

#[test]
fn content_is_deleted_when_an_mdm_has_said_that_this_device_left() {
    let left = GroupConfig { replicas: [SECOND, DeviceId(3)].into(), ..next(&[2], &[]) };
    let out = next(&[2], &[]);
    for (name, config, sources, deletes) in [
        ("an MDM", &left, &[true][..], true),
        ("another server", &left, &[false], false),
        ("another server, and then an MDM", &left, &[false, true], true),
        ("it is a replica out of sync", &out, &[true], false),
    ] {
        let mut rig = Rig::leading(&[2], &[]);
        rig.shard.store.valid = blocks(0..1);
        for from_mdm in sources {
            assert!(configure(&mut rig, config, *from_mdm), "{name}");
        }
        let waits = if deletes { "wipes" } else { "" };
        assert_eq!((&waits_for(&rig)[..], role(&mut rig)), (waits, "out"), "{name}");
    }
}

// ---- the primary ----

/// What a new primary does first: the frames that leave, and the notes.
#[test]
fn a_primary_serves_at_once_when_it_is_alone_and_settles_with_others() {
    let (group, epoch) = (GROUP, NEXT);
    let alone = Note::Active { group, epoch, alone: true };
    for (name, in_sync, joiners, left, notes) in [
        ("alone", &[1][..], &[][..], "", &[Note::Primary { group, epoch }, alone][..]),
        ("with a joiner", &[1], &[4], "SyncStart to 4", &[Note::Primary { group, epoch }, alone]),
        (
            "with others",
            &[1, 2, 3],
            &[],
            "SyncStart to 2, SyncStart to 3",
            &[Note::Primary { group, epoch }],
        ),
        (
            "with another one and a joiner",
            &[1, 2],
            &[4],
            "SyncStart to 2",
            &[Note::Primary { group, epoch }],
        ),
    ] {
        let mut rig = Rig::following(false);
        rig.shard.store.volatile = true;
        assert!(configure(&mut rig, &next(in_sync, joiners), true), "{name}");
        assert_eq!((&rig.left()[..], &rig.notes[..]), (left, notes), "{name}");
        let serves = if notes.len() == 2 { "serves" } else { "leads" };
        assert_eq!(role(&mut rig), serves, "{name}");
    }
}

/// Whether a new primary serves, after the former one, device 2, got a lease from this device (R4).
#[test]
fn a_primary_serves_when_no_lease_of_a_former_one_counts_any_more() {
    let grace = Limits::TEST_MIN.grace;
    let (life, map) = (Incarnation(1), MapVersion(2));
    let dies: Case = |r| {
        let state = PeerState { incarnation: Incarnation(1), dead: true };
        r.shard.known.take_map(MapVersion(3), [(SECOND, state)].into());
    };
    let learns: Case = |r| {
        assert!(r.shard.leases.heard(NOW, SECOND, Incarnation(1), MapVersion(2)));
    };
    let just_before = NOW + grace - base::Duration::from_nanos(1);
    for (name, change, now, serves) in [
        ("it may read", (|_| {}) as Case, NOW, false),
        ("it may read to the end", |_| {}, just_before, false),
        ("its lease is over", |_| {}, NOW + grace, true),
        ("it knows the map", learns, NOW, true),
        ("it is dead", dies, NOW, true),
    ] {
        let mut rig = Rig::following(false);
        rig.shard.store.volatile = true;
        assert!(rig.shard.leases.grant(NOW, SECOND, life, MapVersion(1)));
        rig.shard.leases.know(map, &BTreeMap::new());
        rig.shard.known.take_map(map, BTreeMap::new());
        assert!(configure(&mut rig, &next(&[1], &[4]), true), "{name}");
        let waits: Vec<u64> = [0, 1]
            .map(|i| rig.shard.ops.insert(Op { at: i * BLOCK, ..op(read()) }))
            .into_iter()
            .inspect(|key| rig.primary().waiting_for_service.push_back(*key))
            .collect();
        assert_eq!(rig.flows.epochs.wake_at(), Some(NOW + grace), "{name}");
        change(&mut rig);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.epochs.try_waiting(shard, &mut flows.peers, now, out);
        let left = if serves { "SyncStart to 4" } else { "" };
        assert_eq!((rig.replica().serves(), &rig.left()[..]), (serves, left), "{name}");
        assert_eq!(rig.flows.epochs.none_wait(), serves, "{name}");
        assert_eq!(rig.ready(), if serves { waits } else { [].into() }, "{name}: in order");
        let told = rig.notes.iter().filter(|n| **n == Note::GraceWait { group: GROUP }).count();
        assert_eq!(told, 1, "{name}");
    }
}

/// Creates a primary that has settled and does not serve yet.
fn settled() -> Rig {
    let mut rig = Rig::leading(&[2], &[]);
    rig.primary().active = false;
    rig
}

fn activate(mut rig: Rig) {
    let Rig { shard, flows, out, .. } = &mut rig;
    flows.epochs.activate(shard, &mut flows.peers, NOW, GROUP, out);
}

#[test]
#[should_panic = "nothing is served under an old configuration"]
fn a_primary_whose_configuration_ends_does_not_begin_to_serve() {
    let mut rig = settled();
    rig.end_soon();
    activate(rig);
}

#[test]
#[should_panic = "a primary gets active once"]
fn a_primary_begins_to_serve_once() {
    activate(Rig::leading(&[2], &[]));
}

#[test]
#[should_panic = "when it has settled (R6)"]
fn a_primary_that_settles_does_not_serve() {
    activate(Rig::settling(&[2]));
}
