//! Tables of answers of peers, and of their links.

use super::*;
use crate::op::{Local, Op};
use crate::testing::{EPOCH, GROUP, NOW, Rig, SECOND, bits, link_to, op, read, write};
use base::{Epoch, GroupId};

type Change = fn(&mut Rig, u64, &mut Replicated);

/// Returns the answer of a device to an operation of the stream.
fn answer(rig: &mut Rig, key: u64, status: Status) -> Replicated {
    let (lsn, sender) = (rig.op(key).lsn, Default::default());
    Replicated { status, op: key, group: GROUP, epoch: EPOCH, lsn, sender }
}

fn take(rig: &mut Rig, from: u32, m: &Replicated) -> bool {
    let Rig { shard, flows, out, .. } = rig;
    flows.peers.replicated(shard, NOW, DeviceId(from), m, out)
}

#[test]
fn only_answers_to_what_was_sent_in_this_epoch_count() {
    let rows: &[(&str, u32, Change, bool)] = &[
        ("an operation that is over", 2, |_, _, m| m.op += 1, false),
        ("another group", 2, |_, _, m| m.group = GroupId(8), false),
        ("another place", 2, |_, _, m| m.lsn = Lsn(9), false),
        ("no place yet", 2, |r, k, m| (r.op(k).lsn, m.lsn) = (Lsn(0), Lsn(0)), false),
        ("an older epoch", 2, |_, _, m| m.epoch = Epoch(3), false),
        ("a newer epoch", 2, |_, _, m| m.epoch = Epoch(5), false),
        ("only its job is left", 2, |r, k, _| assert!(r.op(k).orphan().changes_data()), false),
        ("a replica that it was not sent to", 3, |_, _, _| {}, true),
        ("no replica", 9, |_, _, _| {}, true),
    ];
    for (name, from, change, taken) in rows {
        let mut rig = Rig::leading(&[2, 3], &[]);
        let key = rig.send(op(write()), &[2]);
        rig.op(key).local = Local::Done;
        let mut m = answer(&mut rig, key, Status::Ok);
        change(&mut rig, key, &mut m);
        assert_eq!(take(&mut rig, *from, &m), *taken, "{name}");
        assert_eq!((rig.op(key).acked, rig.op(key).in_flight), (bits(&[]), bits(&[2])), "{name}");
        assert_eq!(rig.left(), "", "{name}");
    }
}

/// What an answer leaves: a client's answer, whether the operation is over, and who has done it.
#[test]
fn an_operation_goes_on_when_its_replicas_answer() {
    for (name, from, status, local, left, acked) in [
        ("2 has it", 2, Status::Ok, Local::Done, "Ok", bits(&[2])),
        ("2 has it before this one", 2, Status::Ok, Local::Running, "", bits(&[2])),
        ("the joiner has it", 4, Status::Ok, Local::Done, "", bits(&[4])),
        ("2 knows no such epoch", 2, Status::Behind, Local::Done, "", bits(&[])),
        ("2 needs it whole", 2, Status::SendWhole, Local::Running, "", bits(&[])),
    ] {
        let mut rig = Rig::filling(&[2], 4);
        let key = rig.send(op(write()), &[2, 4]);
        rig.op(key).local = local;
        let m = answer(&mut rig, key, status);
        assert!(take(&mut rig, from, &m));
        assert_eq!(rig.left(), left, "{name}");
        assert_eq!(rig.op(key).acked, acked, "{name}");
        assert!(!rig.op(key).in_flight.intersects(bits(&[from])), "{name}: its room is free");
        assert!(rig.sync().streaming, "{name}");
    }
}

/// A joiner that answers that it can't take the stream starts over.
#[test]
fn a_joiner_that_does_not_follow_is_cut_off() {
    for (status, cut) in
        [(Status::Ok, false), (Status::Behind, true), (Status::Stale, true), (Status::Full, true)]
    {
        let mut rig = Rig::filling(&[2], 4);
        let key = rig.send(op(write()), &[2, 4]);
        let m = answer(&mut rig, key, status);
        assert!(take(&mut rig, 4, &m));
        assert_eq!(
            (rig.sync().phase == Phase::Ask, rig.sync().streaming),
            (cut, !cut),
            "{status:?}"
        );
        let sent = if cut { bits(&[2]) } else { bits(&[2, 4]) };
        assert_eq!(rig.op(key).sent, sent, "{status:?}");
    }
}

#[test]
fn the_last_answer_ends_each_kind_of_operation() {
    let whole = crate::op::Work::Whole { of: None };
    for (name, work, to, left) in [("a write", write(), 2, "Ok"), ("whole blocks", whole, 2, "")] {
        let mut rig = Rig::leading(&[2], &[]);
        let key = rig.send(op(work), &[to]);
        rig.op(key).local = Local::Done;
        let m = answer(&mut rig, key, Status::Ok);
        assert!(take(&mut rig, to, &m));
        assert_eq!((&rig.left()[..], rig.is_over(key)), (left, true), "{name}");
        assert_eq!((rig.primary().commit, rig.primary().stream.len()), (Lsn(1), 0), "{name}");
    }
    let mut rig = Rig::filling(&[2], 4);
    let key = rig.send_copy(&[4]);
    let m = answer(&mut rig, key, Status::Ok);
    assert!(take(&mut rig, 4, &m));
    assert!(rig.is_over(key) && rig.sync().is_idle());
    assert_eq!(rig.left(), "Seal to 4", "nothing is left to copy");
}

// ---- links ----

/// What a new link to a device carries: what it may lack, in order.
#[test]
fn a_new_link_carries_what_was_not_answered() {
    let mut rig = Rig::leading(&[2, 3], &[]);
    let keys: Vec<u64> = [0, 1, 2, 3]
        .map(|i| Op { at: i * base::BLOCK, ..op(write()) })
        .into_iter()
        .map(|op| rig.send(op, &[2, 3]))
        .collect();
    rig.op(keys[1]).acked = bits(&[2]);
    rig.op(keys[2]).sent = bits(&[3]);
    for (device, left) in [
        (2, "Replicate 1 to 12, Replicate 4 to 12"),
        (3, "Replicate 1 to 13, Replicate 2 to 13, Replicate 3 to 13, Replicate 4 to 13"),
        (4, ""),
    ] {
        let Rig { shard, flows, out, .. } = &mut rig;
        shard.windows.connect(DeviceId(device), Some(link_to(device + 10)));
        flows.peers.connected(shard, NOW, DeviceId(device), out);
        assert_eq!(rig.left(), left);
    }
}

#[test]
fn a_new_link_carries_the_question_that_was_not_answered() {
    let settles: fn() -> Rig = || Rig::settling(&[2]);
    let fills: fn() -> Rig = || Rig::filling(&[], 4);
    for (name, make, device, phase, left) in [
        ("a settle asks", settles, 2, Phase::Ask, "SyncStart to 2"),
        ("a settle seals", settles, 2, Phase::Seal(Lsn(0)), "Seal to 2"),
        ("a settle copies", settles, 2, Phase::Copy, ""),
        ("of another device", settles, 3, Phase::Ask, ""),
        ("a joiner is wiped", fills, 4, Phase::Wipe, "SyncWipe to 4"),
        ("a joiner is in limbo", fills, 4, Phase::Admit, ""),
    ] {
        let mut rig = make();
        let joins = rig.sync().joiner;
        let mut sync = crate::sync::Sync::new(rig.sync().members, joins, 1, Lsn(0), 0);
        sync.phase = phase;
        rig.primary().sync = Some(sync);
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.connected(shard, NOW, DeviceId(device), out);
        let texts = rig.left();
        assert!(texts.split(", ").all(|text| text == left), "{name}: {texts}"); // may come twice
    }
}

/// Clients wait for an in-sync replica, and not for a joiner.
#[test]
fn a_lost_link_cuts_a_joiner_off_and_no_other_replica() {
    for (device, cut) in [(2, false), (3, false), (4, true)] {
        let mut rig = Rig::filling(&[2], 4);
        let key = rig.send(op(write()), &[2, 4]);
        (rig.op(key).local, rig.op(key).acked) = (Local::Done, bits(&[]));
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.peers.disconnected(shard, NOW, DeviceId(device), out);
        assert_eq!(rig.shard.windows.link(DeviceId(device)), None);
        assert_eq!((rig.sync().streaming, rig.left()), (!cut, "".into()), "{device}");
        let sent = if cut { bits(&[2]) } else { bits(&[2, 4]) };
        assert_eq!(rig.op(key).sent, sent, "{device}");
    }
}

#[test]
fn a_new_link_lets_clients_go_on_that_waited_for_room() {
    for (crowded, ready) in [(true, 1), (false, 0)] {
        let mut rig = Rig::leading(&[2], &[]);
        let key = rig.hold(op(read()));
        rig.shard.replicas.block(&mut rig.shard.ops, GROUP, key);
        if crowded {
            rig.crowd();
        }
        let Rig { shard, flows, out, .. } = &mut rig;
        flows.connected(shard, NOW, SECOND, link_to(12), out);
        assert_eq!(rig.ready().len(), ready);
    }
}
