//! A joiner whose device hangs in seals and other changes, and the questions for its state that it
//! answers meanwhile.

use super::window::{answered, go_on, with_a_joiner_that_hangs, write, write_to_other};
use super::*;
use base::Lsn;
use wire::message::{Replicate, SyncStart, SyncWipe};

/// The deletion is not durable, and the joiner's second answer to the question before it comes.
#[test]
fn a_wipe_ends_only_with_its_answer() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    let epoch = pair.epoch + 1;
    join_other(&mut pair, epoch, &[1]);
    let store = pair.mirrors[1].store_mut();
    (store.late, store.kept) = (true, true);
    join_other(&mut pair, epoch, &[0]);
    assert_eq!(pair.mirrors[1].store().ended.len(), 1, "the deletion");
    let (state, list) = pair.state.take().expect("it was asked");
    let (mirror, out) = (&mut pair.mirrors[0], &mut pair.outs[0]);
    mirror.sync_state_in(pair.now, DeviceId(2), &state, &list, out);
    pair.run();
    assert!(pair.state.is_none(), "it was asked again");
}

/// Devices 1 and 2, in this order, learn that device 2 joins group 4.
fn join_other(pair: &mut Pair, epoch: u64, by: &[usize]) {
    let other = moved::config(epoch, 1, &[1, 2], &[1], &[2]);
    for i in by {
        let (mirror, out) = (&mut pair.mirrors[*i], &mut pair.outs[*i]);
        mirror.configure(pair.now, GroupId(4), &other, true, out);
    }
    pair.wait(500);
}

/// From now on all jobs of the joiner's device end, and no change does.
fn hang_in_changes(pair: &mut Pair) {
    let store = pair.mirrors[1].store_mut();
    (store.hangs, store.late, store.kept) = (false, true, true);
    pair.wait(500);
}

/// Clients of both groups write, and are answered at once.
fn assert_served(pair: &mut Pair, epoch: u64, rounds: usize) {
    for round in 0..rounds {
        let before = answered(pair);
        (0..20).for_each(|block| write_to_other(pair, epoch, 0, block));
        write(pair, 0, 2);
        pair.run();
        assert_eq!(answered(pair) - before, 21, "no client waits in round {round}");
        pair.wait(2000);
    }
}

/// The joiner's device works again, and the joiner is admitted to both groups.
fn join_both(pair: &mut Pair) {
    pair.mirrors[1].store_mut().late = false;
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 2);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
    pair.assert_equal();
}

/// It has no operation in flight then, and would get everything again up to the next seal.
#[test]
pub(crate) fn a_joiner_that_stalled_in_its_seals_is_sent_nothing_before_they_are_durable() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    let epoch = pair.epoch + 1;
    join_other(&mut pair, epoch, &[1, 0]);
    hang_in_changes(&mut pair);
    let changes = pair.mirrors[1].store().ended.len();
    assert_eq!(changes, 2, "both groups are in their seals");
    pair.wait(6000);
    assert_served(&mut pair, epoch, 8);
    assert_eq!(pair.mirrors[1].store().ended.len(), changes, "there were no other seals");
    join_both(&mut pair);
}

/// The second group has nothing to do with the seal, and would hang in its own.
#[test]
fn a_joiner_that_stalled_in_a_seal_is_sent_nothing_of_another_group() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    let epoch = pair.epoch + 1;
    join_other(&mut pair, epoch, &[1]);
    hang_in_changes(&mut pair);
    pair.wait(6000);
    join_other(&mut pair, epoch, &[0]);
    assert_served(&mut pair, epoch, 8);
    join_both(&mut pair);
}

/// The link of a question may break before the seal is durable: the next one is answered.
#[test]
fn a_question_during_a_seal_is_answered_on_the_link_that_is_up() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    hang_in_changes(&mut pair);
    pair.wait(8000);
    pair.state = None;
    pair.connect(false);
    pair.wait(500);
    pair.connect(true);
    pair.wait(4000);
    assert!(pair.state.is_none(), "the seal is not durable");
    pair.mirrors[1].store_mut().late = false;
    pair.wait(50);
    assert!(pair.state.is_some());
    go_on(&mut pair);
}

/// A seal of a former configuration may become durable in the next one.
#[test]
fn a_configuration_that_changes_during_a_seal_goes_on() {
    for joiners in [&[2][..], &[]] {
        let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
        hang_in_changes(&mut pair);
        pair.wait(8000);
        pair.configure(1, &[1], joiners, &[0, 1]);
        pair.wait(4000);
        let before = answered(&pair);
        write(&mut pair, 0, 3);
        pair.run();
        assert_eq!(answered(&pair) - before, 1, "no client waits");
        if joiners.is_empty() {
            pair.configure(1, &[1], &[2], &[0, 1]);
        }
        go_on(&mut pair);
    }
}

/// Both devices are in sync in this group. Then device 1 goes on alone and writes a block of unit
/// 0. The epochs are 1 and 2.
fn lead_alone(pair: &mut Pair, group: u32) {
    for (epoch, in_sync) in [(1, &[1, 2][..]), (2, &[1])] {
        let config = moved::config(epoch, 1, &[1, 2], in_sync, &[]);
        configure_other(pair, group, &config, &[1, 0]);
    }
    pair.seq += 1;
    let (client, range) = (named(7, pair.seq, pair.seq), place(0, 50 * BLOCK, BLOCK));
    let request = request(pair.seq, GroupId(group), 2, range, client);
    let (body, write) = (summed(&[3; BLOCK as usize], &pair.outs[0]), io(Kind::Write, request, 0));
    pair.mirrors[0].client(pair.now, on(CLIENT), &write, body, &mut pair.outs[0]);
    pair.run();
}

/// These devices, in this order, learn a configuration of the group.
fn configure_other(pair: &mut Pair, group: u32, config: &GroupConfig, by: &[usize]) {
    for i in by {
        let (mirror, out) = (&mut pair.mirrors[*i], &mut pair.outs[*i]);
        mirror.configure(pair.now, GroupId(group), config, true, out);
    }
    pair.wait(500);
}

/// What the joiner lacks in the first of three groups is done there, and only the answer does not
/// come. So it tells its state in that group at once. That says nothing of the seal of the second
/// group, in which its device hangs.
#[test]
fn a_joiner_that_stalled_in_two_groups_is_sent_nothing_before_it_has_told_both() {
    let mut pair = settle(Pair::new([4, 4]));
    pair.configure(1, &[1], &[], &[0, 1]);
    lead_alone(&mut pair, 2);
    lead_alone(&mut pair, 4);
    pair.wait(3000);
    let join = |epoch| moved::config(epoch, 1, &[1, 2], &[1], &[2]);
    pair.mute = Some(GroupId(2));
    configure_other(&mut pair, 2, &join(3), &[1, 0]);
    configure_other(&mut pair, 4, &join(3), &[1]);
    pair.epoch += 1;
    let epoch = pair.epoch;
    configure_other(&mut pair, 3, &join(epoch), &[1]);
    hang_in_changes(&mut pair);
    configure_other(&mut pair, 3, &join(epoch), &[0]);
    assert_eq!(pair.mirrors[1].store().ended.len(), 1, "its seal");
    pair.wait(8000);
    configure_other(&mut pair, 4, &join(3), &[0]);
    assert_served(&mut pair, 3, 8);
    pair.mute = None;
    pair.mirrors[1].store_mut().late = false;
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 3);
    assert_eq!(pair.mirrors[0].in_flight() + pair.mirrors[1].in_flight(), 0);
}

/// The joiner was asked twice before its stream had a first operation. Its second answer comes when
/// it has stalled, and was asked once more.
#[test]
fn a_late_answer_to_an_older_question_ends_no_stall() {
    let mut pair = settle(Pair::new([4, 4]));
    pair.configure(1, &[1], &[], &[0, 1]);
    lead_alone(&mut pair, 4);
    pair.wait(3000);
    let join = |epoch| moved::config(epoch, 1, &[1, 2], &[1], &[2]);
    configure_other(&mut pair, 4, &join(3), &[1]);
    pair.epoch += 1;
    let epoch = pair.epoch;
    configure_other(&mut pair, 3, &join(epoch), &[1]);
    hang_in_changes(&mut pair);
    configure_other(&mut pair, 3, &join(epoch), &[0]);
    assert_eq!(pair.mirrors[1].store().ended.len(), 1, "its seal");
    let (state, list) = pair.state.clone().expect("it was asked");
    assert_eq!(state.group, GROUP);
    pair.wait(8000);
    let (mirror, out) = (&mut pair.mirrors[0], &mut pair.outs[0]);
    mirror.sync_state_in(pair.now, DeviceId(2), &state, &list, out);
    configure_other(&mut pair, 4, &join(3), &[0]);
    assert_served(&mut pair, 3, 8);
    pair.mirrors[1].store_mut().late = false;
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 2);
}

/// The joiner stalled in a group that now waits for another replica, so nobody asks for its state
/// there. Then it stalls in a second group.
#[test]
fn a_stalled_joiner_need_not_report_a_state_that_was_not_requested() {
    let mut pair = with_a_joiner_that_hangs(Limits::TEST_MIN);
    pair.wait(8000);
    let epoch = pair.epoch + 1;
    let settles = moved::config(epoch, 1, &[1, 2, 3], &[1, 3], &[2]);
    configure_other(&mut pair, 3, &settles, &[1, 0]);
    join_other(&mut pair, epoch, &[1, 0]);
    pair.wait(8000);
    pair.mirrors[1].store_mut().hangs = false;
    pair.wait(40_000);
    assert_eq!(pair.mirrors[0].admissions().len(), 1, "the second group goes on");
}

/// The primary has ordered a deletion that waits for a write, and starts over before it is done.
#[test]
fn a_question_withdraws_a_deletion_that_waits() {
    let mut pair = settle(Pair::new([4, 4]));
    pair.configure(1, &[1], &[2], &[1]);
    let (group, epoch, link, primary) = (GROUP, Epoch(pair.epoch), on(LinkId(10)), DeviceId(1));
    let (mirror, out) = (&mut pair.mirrors[1], &mut pair.outs[1]);
    let start = |mirror: &mut Mirror<Memory>, question, after, out: &mut Effects| {
        let start =
            SyncStart { question, group, epoch, after: Lsn(after), joiner: true, all: false };
        mirror.sync_start_in(link, primary, &start, &Buf::EMPTY, out);
    };
    let write = |mirror: &mut Mirror<Memory>, lsn: u32, out: &mut Effects| {
        let range = place(0, lsn * BLOCK, BLOCK);
        let write = Replicate::new(lsn.into(), group, epoch, Lsn(lsn.into()), range);
        let body = summed(&[7; BLOCK as usize], out);
        mirror.replicate_in(pair.now, link, primary, &write, body, out);
    };
    start(mirror, 1, 0, out);
    mirror.store_mut().hangs = true;
    write(mirror, 1, out);
    let wipe = SyncWipe { question: 2, group, epoch };
    mirror.sync_wipe_in(pair.now, link, primary, &wipe, out);
    start(mirror, 3, 1, out);
    write(mirror, 2, out);
    mirror.store_mut().hangs = false;
    pair.run();
    let valid = pair.mirrors[1].store().valid(GROUP, UNIT0);
    assert!(valid.contains(1) && valid.contains(2), "{valid:?}");
}

/// The answer to the first order comes twice, the second time when there is another order.
#[test]
fn the_answer_to_an_earlier_wipe_ends_no_later_one() {
    let mut pair = settle(Pair::new([4, 4]));
    assert_eq!(pair.write(0, 0, 1), Some(Status::Ok));
    pair.connected = false;
    pair.configure(1, &[1], &[2], &[0]);
    let (group, epoch) = (GROUP, Epoch(pair.epoch));
    let sender = Sender { incarnation: Incarnation(7), map: MapVersion(pair.epoch) };
    let tell = |pair: &mut Pair, question, empty: bool| {
        let (status, base, more, all) = (Status::Ok, Epoch(0), false, !empty);
        let state = SyncState { status, question, group, epoch, base, sender, more, all, empty };
        let (mirror, out) = (&mut pair.mirrors[0], &mut pair.outs[0]);
        mirror.sync_state_in(pair.now, DeviceId(2), &state, &Buf::EMPTY, out);
        pair.run();
    };
    let asked = |pair: &Pair| match pair.asked.last() {
        Some(Frame::SyncStart(m)) => m.question,
        other => panic!("{other:?} is no question"),
    };
    let ordered = |pair: &Pair| match pair.asked.last() {
        Some(Frame::SyncWipe(m)) => m.question,
        other => panic!("{other:?} is no order"),
    };
    let question = asked(&pair);
    tell(&mut pair, question, false);
    let first = ordered(&pair);
    tell(&mut pair, first, true);
    let question = asked(&pair);
    tell(&mut pair, question, false);
    let second = ordered(&pair);
    assert_ne!(first, second);
    tell(&mut pair, first, true);
    assert_eq!(ordered(&pair), second, "it waits for the second deletion");
    tell(&mut pair, second, true);
    asked(&pair);
}
